/* pull.c: a model from a hub into the cache: listing, selection, headers of the files, downloads, links, ref.
 *
 * Links appear when all files are there, and the ref last: until then the revision is what it was before.
 *
 * The commit of the listing is what everything after it asks for, never the branch: a push in between cannot mix two
 * versions. Each file is asked for its headers before the first download, so that the plan, the space on the disk
 * and the limits are known before a byte is written. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <tarn/base.h>

#include "hub/download.h"
#include "hub/listing.h"

/* ---- the listing ------------------------------------------------------------------------------------------------- */

typedef struct text {
    char *bytes; /* owned */
    size_t length, capacity;
} text;

/* A retried request begins anew. */
static bool begin_text(const tarn__hub_response *response, void *ctx)
{
    (void)response;
    ((text *)ctx)->length = 0;
    return true;
}

static bool add_text(const char *bytes, size_t count, void *ctx)
{
    text *to = ctx;
    if (count > TARN__HUB_JSON_MAX - to->length)
        return tarn_set_error(TARN_ERROR_FORMAT, "the hub's list of files has more than %zu MiB; that is no model",
                              TARN__HUB_JSON_MAX >> 20);
    if (to->length + count > to->capacity) {
        size_t capacity = 2 * (to->length + count);
        char *more = realloc(to->bytes, capacity);
        if (!more)
            return tarn_set_error(TARN_ERROR_MEMORY, "out of memory for the hub's list of files");
        to->bytes = more;
        to->capacity = capacity;
    }
    memcpy(to->bytes + to->length, bytes, count);
    to->length += count;
    return true;
}

/* GET /api/models/ORG/NAME/revision/REVISION?blobs=true: without `blobs` the hub leaves the sizes out. A slash
 * within the revision is quoted as %2F, since it is one component of this path. */
static bool list(tarn__hub_session *session, tarn__hub_listing *listing)
{
    const tarn__hub_pull_options *o = session->options;
    char url[TARN__HUB_PATH];
    text json = {.length = 0};
    int64_t none = 0; /* a listing is not resumed */
    tarn__hub_response response;
    snprintf(url, sizeof(url), "%s/api/models/%s/revision/", session->settings->endpoint, o->repo);
    bool good = tarn__hub_add_quoted(url, o->revision, false);
    size_t used = strlen(url);
    snprintf(url + used, sizeof(url) - used, "?blobs=true"); /* with sizes; the longest parts leave space */
    tarn__hub_request request = {.url = url, .begin = begin_text, .body = add_text, .ctx = &json};
    good = good && tarn__hub_request_retried(session, o->repo, &request, &response, &none) &&
           tarn__hub_listing_read(o->repo, json.bytes ? json.bytes : "", json.length, listing);
    if (good && tarn__hub_is_sha1(o->revision) && strcmp(o->revision, listing->commit) != 0)
        good = tarn_set_error(TARN_ERROR_FORMAT, "'%s': the hub answers with commit %s; expected %s", o->repo,
                              listing->commit, o->revision);
    free(json.bytes);
    return good;
}

/* ---- headers of a file ------------------------------------------------------------------------------------------- */

/* An etag without its quotes and the mark of a weak one. "W/\"abc\"" is abc; one that is too long becomes empty,
 * which is refused later. */
static void take_etag(const char *from, char etag[TARN__HUB_ETAG])
{
    from += strncmp(from, "W/", 2) == 0 ? 2 : 0;
    from += from[0] == '"';
    size_t length = strcspn(from, "\"");
    snprintf(etag, TARN__HUB_ETAG, "%.*s", length < TARN__HUB_ETAG ? (int)length : 0, from);
}

/* A HEAD of ENDPOINT/…/resolve/COMMIT/FILE. For a file kept elsewhere the hub answers with a redirect, whose
 * X-Linked-ETag and X-Linked-Size are those of the contents; the Content-Length of a redirect is that of its own
 * body, and counts for nothing. */
static bool ask(tarn__hub_session *session, tarn__hub_file *file)
{
    char url[TARN__HUB_PATH];
    tarn__hub_response r;
    int64_t none = 0;
    tarn__hub_request request = {.url = url, .head = true};
    if (!tarn__hub_file_url(session, file->name, url) ||
        !tarn__hub_request_retried(session, file->name, &request, &r, &none))
        return false;
    file->is_linked = r.linked_etag[0] != 0;
    file->bytes = r.linked_size >= 0 ? r.linked_size : r.status / 100 == 2 ? r.length : -1;
    take_etag(file->is_linked ? r.linked_etag : r.etag, file->etag);
    /* X-Repo-Commit: a cache between here and the hub may answer for another version */
    if (strcmp(r.commit, session->commit) != 0)
        return tarn_set_error(TARN_ERROR_FORMAT, "'%.200s': the hub answers for commit '%.100s'; expected %s",
                              file->name, r.commit, session->commit);
    if (!tarn__hub_is_etag(file->etag) || file->bytes < 0)
        return tarn_set_error(TARN_ERROR_FORMAT, "'%.200s': the hub names no size and hash (ETag) of it", file->name);
    return true;
}

/* Asks for every selected file, and sums up. */
static bool ask_all(tarn__hub_session *session, tarn__hub_listing *listing, int64_t *missing)
{
    *missing = 0;
    for (size_t i = 0; i < listing->count; i++) {
        tarn__hub_file *file = &listing->files[i];
        if (!file->is_selected)
            continue;
        if (!ask(session, file))
            return false;
        /* sizes are the hub's word: their sum must not overflow */
        if (file->bytes > INT64_MAX / 2 - session->total)
            return tarn_set_error(TARN_ERROR_FORMAT, "'%.200s' has %lld bytes by the hub's headers; that is no size",
                                  file->name, (long long)file->bytes);
        session->total += file->bytes;
        *missing += file->bytes - tarn__hub_present(session, file, &file->is_cached);
    }
    return true;
}

/* Fails before the first byte rather than at the last one. Space for other users than root (f_bavail). A file system
 * that cannot tell is believed to have enough. */
static bool check_space(const tarn__hub_session *session, int64_t missing)
{
    char path[TARN__HUB_PATH];
    struct statvfs disk;
    if (!tarn__hub_path(path, session->settings->cache, session->options->repo, "blobs/x") ||
        !tarn__hub_make_folders(path))
        return false;
    *strrchr(path, '/') = 0;
    if (statvfs(path, &disk) != 0)
        return true;
    double available = (double)disk.f_bavail * (double)disk.f_frsize, mib = 1 << 20;
    return available >= (double)missing ||
           tarn_set_error(TARN_ERROR_IO,
                          "the disk of '%.1000s' has %.1f MiB free; %.1f MiB are needed: make space, or "
                          "set HF_HUB_CACHE to a folder on another disk",
                          path, available / mib, (double)missing / mib);
}

/* ---- a pull ------------------------------------------------------------------------------------------------------ */

/* All blobs, then all links, then the ref: a reader of the cache meanwhile sees the revision as it was, or
 * complete. A revision that is a commit has no ref; huggingface_hub writes none either. */
static bool download_all(tarn__hub_session *session, tarn__hub_listing *listing)
{
    const tarn__hub_settings *s = session->settings;
    const tarn__hub_pull_options *o = session->options;
    for (size_t i = 0; i < listing->count; i++) {
        tarn__hub_file *file = &listing->files[i];
        if (!file->is_selected)
            continue;
        if (!tarn__hub_download(session, file))
            return false;
        o->finished(file, o->ctx);
    }
    for (size_t i = 0; i < listing->count; i++) {
        const tarn__hub_file *file = &listing->files[i];
        if (file->is_selected && !tarn__hub_link(s->cache, o->repo, listing->commit, file->name, file->etag))
            return false;
    }
    return tarn__hub_is_sha1(o->revision) || tarn__hub_write_ref(s->cache, o->repo, o->revision, listing->commit);
}

bool tarn__hub_pull(const tarn__hub_settings *settings, const tarn__hub_pull_options *options,
                    tarn__hub_listing *listing, char path[TARN__HUB_PATH])
{
    tarn__hub_session session = {.settings = settings, .options = options, .commit = listing->commit};
    int64_t missing;
    *listing = (tarn__hub_listing){.count = 0};
    session.client = tarn__hub_client_new(settings, options->stopped, options->ctx);
    bool good = session.client && list(&session, listing) &&
                tarn__hub_select(options->repo, listing, options->patterns, options->pattern_count) &&
                ask_all(&session, listing, &missing) && check_space(&session, missing);
    if (good)
        options->plan(listing, session.total, missing, options->ctx);
    good = good && download_all(&session, listing) &&
           tarn__hub_path(path, settings->cache, options->repo, "snapshots/%s", listing->commit);
    tarn__hub_client_free(session.client);
    return good;
}
