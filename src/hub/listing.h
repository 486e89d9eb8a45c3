/* listing.h: the JSON in which a hub lists a repository. */
#ifndef TARN__LISTING_H
#define TARN__LISTING_H

#include "hub/hub.h"

/* Bytes of such JSON at most. */
#define TARN__HUB_JSON_MAX ((size_t)32 << 20)

/* Reads {"sha": COMMIT, "siblings": [{"rfilename": NAME, "size": BYTES}, …]}, checks every name, and sorts the files.
 * False with an error; the listing can be freed either way. */
bool tarn__hub_listing_read(const char *repo, const char *json, size_t length, tarn__hub_listing *listing);

#endif
