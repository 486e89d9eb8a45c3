/* transfer.h: requests to a hub: libcurl behind one function, with the rules of redirects and of the token.
 *
 * Only http and https, with certificates verified; never from https to http. The token goes to the endpoint's own
 * scheme, host and port, and nowhere else: redirects are followed here, a request each. */
#ifndef TARN__TRANSFER_H
#define TARN__TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hub/hub.h"

/* The headers of a response that matter; "" and -1: not sent. Untrusted. linked_*: X-Linked-ETag and X-Linked-Size;
 * commit: X-Repo-Commit; retry_after: seconds. */
typedef struct tarn__hub_response {
    long status;
    char etag[300], linked_etag[300], commit[TARN__HUB_REVISION], range[128], error_code[64], error_message[300];
    int64_t length, linked_size, retry_after;
    bool is_elsewhere; /* from another host than the endpoint */
} tarn__hub_response;

typedef struct tarn__hub_request {
    const char *url;
    bool head;
    int64_t from;         /* first byte to send; 0: all */
    const char *if_range; /* etag with its quotes, sent to the endpoint alone; NULL: none */
    /* Called with the headers of the last response, and then with its body, if its status is 2xx; false aborts. */
    bool (*begin)(const tarn__hub_response *response, void *ctx);
    bool (*body)(const char *bytes, size_t count, void *ctx);
    void *ctx;
} tarn__hub_request;

typedef enum tarn__hub_outcome {
    TARN__HUB_ANSWERED, /* the whole response; its status may be an error */
    TARN__HUB_BROKEN,   /* no connection, or one that broke: may succeed later */
    TARN__HUB_ABORTED,  /* a callback returned false, or the user stopped */
    TARN__HUB_REFUSED   /* never succeeds; an error is pending */
} tarn__hub_outcome;

/* A connection that is kept over requests. */
typedef struct tarn__hub_client tarn__hub_client;

/* NULL with an error. `settings` is borrowed; `stopped` is asked about once a second, with `ctx`. */
tarn__hub_client *tarn__hub_client_new(const tarn__hub_settings *settings, bool (*stopped)(void *ctx), void *ctx);
void tarn__hub_client_free(tarn__hub_client *client);

/* One request and its redirects. After TARN__HUB_BROKEN `why` holds the reason. */
tarn__hub_outcome tarn__hub_transfer(tarn__hub_client *client, const tarn__hub_request *request,
                                     tarn__hub_response *response, char why[400]);

/* Appends the percent-encoded text to a URL, with or without its slashes. False with an error if it is too long. */
bool tarn__hub_add_quoted(char url[TARN__HUB_PATH], const char *text, bool keeps_slashes);

#endif
