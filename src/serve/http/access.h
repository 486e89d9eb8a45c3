/* access.h: whether a browser may be where a request comes from.
 *
 * A page of another site cannot read answers of this server, but it can send requests; and a name of its own that
 * resolves to this machine (DNS rebinding) makes it read them, too. So the Host header, or the
 * host of a target that is a URL, must name this server, and an Origin header must be the same, or one that was
 * allowed. */
#ifndef TARN__ACCESS_H
#define TARN__ACCESS_H

#include <stdbool.h>

#include "serve/http/request.h"

typedef struct tarn__http_access {
    const char *address;        /* that the server listens on */
    const char *const *names;   /* host names by which it is reached, beside localhost and loopback addresses */
    const char *const *origins; /* allowed beside its own: "https://example.org" */
    int name_count, origin_count;
    bool any_host; /* the Host header may name anything: what is served needs a key */
} tarn__http_access;

/* NULL: the request may be answered. Else the sentence of a 403. */
const char *tarn__http_access_refusal(const tarn__http_access *access, const tarn__http_request *request);

/* True where the origin was allowed by name, and gets CORS headers. */
bool tarn__http_access_is_foreign(const tarn__http_access *access, const char *origin);

#endif
