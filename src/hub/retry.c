/* retry.c: requests that are tried again, and the errors of statuses that are final.
 *
 * Waits double from half a second, so that five of them last some 15 s in all; a hub's Retry-After makes one longer,
 * up to a minute. Only tries without a new byte are counted: a large file over a bad line ends when no progress is
 * made, not after six breaks. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tarn/base.h>
#include <time.h>

#include "hub/download.h"

/* POLL_MS: how soon a wait notices that the user stops. */
enum { MAX_TRIES = 6, FIRST_WAIT_MS = 500, MAX_WAIT_MS = 60000, POLL_MS = 100 };

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* False when the user stops meanwhile. */
static bool wait_ms(const tarn__hub_session *session, int64_t ms)
{
    double end = seconds_now() + (double)ms * 1e-3;
    while (seconds_now() < end) {
        if (session->options->stopped(session->options->ctx))
            return false;
        nanosleep(&(struct timespec){0, POLL_MS * 1000000L}, NULL);
    }
    return true;
}

/* An address elsewhere that forbids: its signature has expired, and the next redirect has a new one. */
static bool may_succeed_later(const tarn__hub_response *r)
{
    return r->status == 408 || r->status == 429 || r->status / 100 == 5 ||
           (r->is_elsewhere && (r->status == 401 || r->status == 403));
}

/* The hub answers 401 for what does not exist as well, so as not to tell which private names there are; X-Error-Code
 * says GatedRepo where terms are to be accepted first. */
static void raise_access(const tarn__hub_session *session, const tarn__hub_response *r, const char *says)
{
    const char *repo = session->options->repo, *token = session->settings->token;
    if (strcmp(r->error_code, "GatedRepo") == 0)
        tarn_set_error(TARN_ERROR_IO, "'%s' is gated: accept its terms on its page, and set HF_TOKEN%s%s", repo,
                       token[0] ? " to a token of that account" : "", says);
    else if (token[0])
        tarn_set_error(TARN_ERROR_IO,
                       "the hub does not let this token read '%s' (status %ld); give one that may, in "
                       "HF_TOKEN%s",
                       repo, r->status, says);
    else
        tarn_set_error(TARN_ERROR_IO,
                       "'%s' does not exist, or is private: check its name, or set HF_TOKEN to a token "
                       "that may read it (status %ld)%s",
                       repo, r->status, says);
}

/* Raises the error of a status that is final. Returns false. */
static bool raise_status(const tarn__hub_session *session, const char *what, const tarn__hub_response *r)
{
    const tarn__hub_pull_options *o = session->options;
    char says[400] = "";
    if (r->error_message[0])
        snprintf(says, sizeof(says), "; the hub says: %s", r->error_message);
    if (r->status == 401 || r->status == 403)
        raise_access(session, r, says);
    else if (r->status == 404 && strcmp(r->error_code, "RevisionNotFound") == 0)
        tarn_set_error(TARN_ERROR_IO, "'%s' has no revision '%s'; give --revision a branch, a tag or a commit", o->repo,
                       o->revision);
    else if (r->status == 404)
        tarn_set_error(TARN_ERROR_IO, "%s was not found on %s%s", what, session->settings->endpoint, says);
    else
        tarn_set_error(TARN_ERROR_IO, "%s: the hub answers with status %ld; expected 200%s", what, r->status, says);
    return false;
}

static void notice(const tarn__hub_session *session, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void notice(const tarn__hub_session *session, const char *format, ...)
{
    char text[900];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    session->options->notice(text, session->options->ctx);
}

/* The wait before try `tries` + 1; at least what the hub asks for. 500 ms for the second; a Retry-After in the form
 * of a date was read as none. */
static int64_t wait_of(int tries, const tarn__hub_response *r)
{
    int64_t ms = (int64_t)FIRST_WAIT_MS << (tries - 1), asked = r->retry_after > 0 ? r->retry_after : 0;
    asked = asked < MAX_WAIT_MS / 1000 ? 1000 * asked : MAX_WAIT_MS;
    return asked > ms ? asked : ms;
}

bool tarn__hub_request_retried(tarn__hub_session *session, const char *what, tarn__hub_request *request,
                               tarn__hub_response *response, const int64_t *bytes)
{
    char why[400];
    int64_t before = *bytes;
    for (int tries = 1;; tries++) {
        tarn__hub_outcome outcome = tarn__hub_transfer(session->client, request, response, why);
        if (outcome == TARN__HUB_ABORTED || outcome == TARN__HUB_REFUSED)
            return false;
        if (outcome == TARN__HUB_ANSWERED) {
            bool is_redirect = request->head && response->status / 100 == 3;
            if (response->status / 100 == 2 || is_redirect)
                return true;
            if (!may_succeed_later(response))
                return raise_status(session, what, response);
            snprintf(why, sizeof(why), "status %ld", response->status);
        }
        tries = *bytes > before ? 1 : tries;
        before = *bytes;
        if (tries == MAX_TRIES)
            return tarn_set_error(TARN_ERROR_IO, "%s: %s, %d times in a row; run the same command later to resume",
                                  what, why, MAX_TRIES);
        int64_t ms = wait_of(tries, response);
        notice(session, "%s: %s; next try in %.1f s", what, why, (double)ms * 1e-3);
        if (!wait_ms(session, ms))
            return false;
        /* the next try asks for what is still missing */
        request->from = *bytes;
    }
}
