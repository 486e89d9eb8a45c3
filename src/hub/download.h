/* download.h: a file of a repository into its blob.
 *
 * Everything here runs on the thread that called tarn__hub_pull(), callbacks included. Failures raise the library's
 * error; a stop by the user raises none, which is how callers tell the two apart. */
#ifndef TARN__DOWNLOAD_H
#define TARN__DOWNLOAD_H

#include "hub/transfer.h"

/* A pull that runs; all borrowed but the client. */
typedef struct tarn__hub_session {
    const tarn__hub_settings *settings;
    const tarn__hub_pull_options *options;
    tarn__hub_client *client;
    const char *commit;
    int64_t done, total; /* bytes of all files */
} tarn__hub_session;

/* Runs a request until it is answered or hopeless: broken connections and the statuses 408, 429 and 5xx are tried
 * again after a growing wait, which begins anew when `*bytes` has grown. `what` is for messages. True: the status is
 * 2xx, or 3xx for a HEAD. False with an error, or without one when stopped or aborted by a callback. */
bool tarn__hub_request_retried(tarn__hub_session *session, const char *what, tarn__hub_request *request,
                               tarn__hub_response *response, const int64_t *bytes);

/* URL of a file: ENDPOINT/ORG/NAME/resolve/COMMIT/FILE. False with an error. */
bool tarn__hub_file_url(const tarn__hub_session *session, const char *file, char url[TARN__HUB_PATH]);

/* Bytes of a file's blob that are in the cache: all of them, or those of a partial download. */
int64_t tarn__hub_present(const tarn__hub_session *session, const tarn__hub_file *file, bool *is_whole);

/* Downloads a file into its blob, under its lock, from where an earlier download ended, and verifies it. False with an
 * error, or without one when stopped; then what has arrived is kept. */
bool tarn__hub_download(tarn__hub_session *session, tarn__hub_file *file);

#endif
