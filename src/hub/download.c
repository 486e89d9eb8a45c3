/* download.c: a file of a repository into its blob.
 *
 * Bytes go to blobs/ETAG.incomplete and into a hash at once, so that both stand at the same offset whenever a
 * connection breaks; a file that an earlier process began is read once to bring the hash there. An etag of 64
 * hexadecimal digits is the file's SHA-256, one of 40 the SHA-1 of its git blob. Only a file that is complete and has
 * that hash is renamed to its blob. A lock per blob, huggingface_hub's own, keeps other processes away.
 *
 * Invariants between two callbacks: `at` is the offset of `fd`, the number of bytes in the file, and the number that
 * went into the hash; session->done counts them, and whatever takes bytes away (restart(), a second try) takes them
 * from it, so that progress never shows more than there is.
 *
 * An etag that is neither kind of hash leaves the size as the only check. */
#include "hub/download.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tarn/base.h>
#include <unistd.h>

#include "hub/sha.h"

/* Of the partial file at a time, while it is hashed. */
enum { READ_BYTES = 1 << 16 };

typedef struct download {
    tarn__hub_session *session;
    tarn__hub_file *file;
    char path[TARN__HUB_PATH]; /* of the partial file */
    int fd;
    int64_t at; /* bytes that are in the file and the hash */
    tarn__sha sha;
    bool has_hash, must_restart;
} download;

bool tarn__hub_file_url(const tarn__hub_session *session, const char *file, char url[TARN__HUB_PATH])
{
    snprintf(url, TARN__HUB_PATH, "%s/%s/resolve/%s/", session->settings->endpoint, session->options->repo,
             session->commit);
    return tarn__hub_add_quoted(url, file, true);
}

static bool blob_path(const download *d, char path[TARN__HUB_PATH], const char *suffix)
{
    return tarn__hub_path(path, d->session->settings->cache, d->session->options->repo, "blobs/%s%s", d->file->etag,
                          suffix);
}

/* Bytes of a regular file; -1: there is none. lstat(), since blobs are never links: one would lead out of the cache. */
static int64_t bytes_of(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0 && S_ISREG(about.st_mode) ? (int64_t)about.st_size : -1;
}

/* The size alone decides whether a blob is whole: only verified files have its name. A part larger than the file is
 * of another version and counts for nothing. */
int64_t tarn__hub_present(const tarn__hub_session *session, const tarn__hub_file *file, bool *is_whole)
{
    const download d = {.session = (tarn__hub_session *)session, .file = (tarn__hub_file *)file};
    char path[TARN__HUB_PATH];
    *is_whole = blob_path(&d, path, "") && bytes_of(path) == file->bytes;
    if (*is_whole)
        return file->bytes;
    int64_t part = blob_path(&d, path, ".incomplete") ? bytes_of(path) : 0;
    return part < 0 || part > file->bytes ? 0 : part;
}

/* ---- the partial file -------------------------------------------------------------------------------------------- */

static bool raise_file(const download *d, const char *what, int why)
{
    bool is_full = why == ENOSPC || why == EDQUOT || why == EFBIG;
    return tarn_set_error(TARN_ERROR_IO, "cannot %s '%.1000s': %s%s", what, d->path, strerror(why),
                          is_full ? "; what has arrived is kept: make space and run the same command to resume" : "");
}

static void begin_hash(download *d)
{
    char head[32];
    d->at = 0;
    d->has_hash = true;
    if (tarn__hub_is_sha256(d->file->etag)) {
        tarn__sha256_begin(&d->sha);
    } else if (tarn__hub_is_sha1(d->file->etag)) { /* git hashes "blob SIZE", a 0 byte and the contents */
        tarn__sha1_begin(&d->sha);
        tarn__sha_add(&d->sha, head, (size_t)snprintf(head, sizeof(head), "blob %" PRId64, d->file->bytes) + 1);
    } else {
        d->has_hash = false;
    }
}

/* From the first byte; what was counted for the progress is taken back. */
static bool restart(download *d)
{
    d->session->done -= d->at;
    begin_hash(d);
    return (ftruncate(d->fd, 0) == 0 && lseek(d->fd, 0, SEEK_SET) == 0) || raise_file(d, "truncate", errno);
}

static bool is_stopped(const download *d)
{
    return d->session->options->stopped(d->session->options->ctx);
}

/* Opens what an earlier process left, or a new file, and hashes what is in it. O_NOFOLLOW: a link in its place would
 * be written through. What is larger than the file cannot be a beginning of it. */
static bool open_part(download *d)
{
    char bytes[READ_BYTES];
    if (!blob_path(d, d->path, ".incomplete") || !tarn__hub_make_folders(d->path))
        return false;
    d->fd = open(d->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (d->fd < 0)
        return raise_file(d, "write", errno);
    begin_hash(d);
    for (ssize_t count; d->at <= d->file->bytes; d->at += count) {
        if ((count = read(d->fd, bytes, sizeof(bytes))) < 0)
            return raise_file(d, "read", errno);
        if (count == 0)
            break;
        if (is_stopped(d))
            return false;
        tarn__sha_add(&d->sha, bytes, (size_t)count);
    }
    d->session->done += d->at;
    return d->at <= d->file->bytes || restart(d);
}

/* ---- the response ------------------------------------------------------------------------------------------------ */

/* Status 200 has the file from its beginning, 206 from where it was asked for: another offset or size is another
 * file, and the download begins anew. "bytes 100-999/1000" answers a request from 100 of 1000 bytes; the size after
 * the slash may be "*" and is not looked at. */
static bool on_begin(const tarn__hub_response *r, void *ctx)
{
    download *d = ctx;
    char expected[64];
    if (r->status != 206)
        return d->at == 0 || restart(d);
    snprintf(expected, sizeof(expected), "bytes %" PRId64 "-%" PRId64 "/", d->at, d->file->bytes - 1);
    d->must_restart = strncmp(r->range, expected, strlen(expected)) != 0;
    return !d->must_restart;
}

static bool on_body(const char *bytes, size_t count, void *ctx)
{
    download *d = ctx;
    /* A hub that sends without end would fill the disk */
    if ((int64_t)count > d->file->bytes - d->at)
        return tarn_set_error(TARN_ERROR_FORMAT, "'%.200s': the hub sends more than the %lld bytes that it announced",
                              d->file->name, (long long)d->file->bytes);
    while (count > 0) {
        ssize_t written = write(d->fd, bytes, count);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return raise_file(d, "write", written < 0 ? errno : ENOSPC);
        tarn__sha_add(&d->sha, bytes, (size_t)written);
        d->at += written;
        d->session->done += written;
        bytes += written;
        count -= (size_t)written;
    }
    const tarn__hub_pull_options *o = d->session->options;
    o->progress(d->file->name, d->session->done, d->session->total, o->ctx);
    return true;
}

/* Bytes until the file is whole. A response that ends early is resumed like a broken connection, unless nothing
 * arrives. Status 416 says that the range begins behind the end: the part is of another file. One restart is allowed
 * in all, or a hub that never honours ranges would be asked for ever. */
static bool receive(download *d, const char *url)
{
    /* The condition of If-Range, "send the range if the file still is this one": an etag in its quotes. A linked
     * file's etag is not the one of the host that has its contents, so it gets none. */
    char quoted[TARN__HUB_ETAG + 2];
    tarn__hub_response response;
    snprintf(quoted, sizeof(quoted), "\"%s\"", d->file->etag);
    for (int restarts = 0; d->at < d->file->bytes;) {
        int64_t before = d->at;
        tarn__hub_request request = {.url = url,
                                     .from = d->at,
                                     .if_range = d->file->is_linked ? NULL : quoted,
                                     .begin = on_begin,
                                     .body = on_body,
                                     .ctx = d};
        bool good = tarn__hub_request_retried(d->session, d->file->name, &request, &response, &d->at);
        bool refused = !good && response.status == 416 && before > 0;
        if ((d->must_restart || refused) && restarts++ == 0) {
            if (refused)
                tarn_clear_error();
            d->must_restart = false;
            if (!restart(d))
                return false;
            continue;
        }
        if (!good)
            return !d->must_restart ? false
                                    : tarn_set_error(TARN_ERROR_FORMAT,
                                                     "'%.200s': the hub sends another range than asked for: '%.100s'",
                                                     d->file->name, response.range);
        if (d->at <= before)
            return tarn_set_error(TARN_ERROR_FORMAT, "'%.200s': the hub sends no more than %lld of %lld bytes",
                                  d->file->name, (long long)d->at, (long long)d->file->bytes);
    }
    return true;
}

/* ---- the whole file ---------------------------------------------------------------------------------------------- */

/* False with an error: the contents are not those that the hub announced, and are deleted. The hash is copied before
 * its end, since ending one destroys it and this may be asked twice. */
static bool verify(download *d)
{
    char text[TARN__SHA_TEXT];
    tarn__sha sha = d->sha;
    if (!d->has_hash || strcmp(tarn__sha_end(&sha, text), d->file->etag) == 0)
        return true;
    unlink(d->path);
    return tarn_set_error(TARN_ERROR_FORMAT,
                          "'%.200s' was damaged on the way: its %s is %s; expected %s; run the same "
                          "command to download it again",
                          d->file->name, d->sha.digest_bytes == 32 ? "SHA-256" : "git SHA-1", text, d->file->etag);
}

/* Under the lock. What was resumed and has another hash is downloaded once more from its beginning. The order of the
 * end matters: bytes on the disk (fsync), then the name that means "verified". Some file systems know no fsync and
 * say EINVAL. */
static bool fetch(download *d)
{
    char url[TARN__HUB_PATH], blob[TARN__HUB_PATH];
    if (!blob_path(d, blob, "") || !tarn__hub_file_url(d->session, d->file->name, url) || !open_part(d))
        return false;
    bool was_resumed = d->at > 0, good = receive(d, url);
    if (good && was_resumed && !verify(d)) {
        tarn_clear_error();
        close(d->fd);
        d->session->done -= d->at;
        good = open_part(d) && receive(d, url);
    }
    if (!good || !verify(d))
        return false;
    if (fsync(d->fd) != 0 && errno != EINVAL)
        return raise_file(d, "write", errno);
    return rename(d->path, blob) == 0 || raise_file(d, "rename", errno);
}

static void on_wait(void *ctx)
{
    const download *d = ctx;
    char text[300];
    snprintf(text, sizeof(text), "%.200s: another process downloads it; waiting", d->file->name);
    d->session->options->notice(text, d->session->options->ctx);
}

static bool ask_stopped(void *ctx)
{
    return is_stopped(ctx);
}

bool tarn__hub_download(tarn__hub_session *session, tarn__hub_file *file)
{
    download d = {.session = session, .file = file, .fd = -1};
    bool good = true, is_whole;
    int lock = tarn__hub_lock(session->settings->cache, session->options->repo, file->etag, ask_stopped, on_wait, &d);
    if (lock < 0)
        return false;
    tarn__hub_present(session, file, &is_whole); /* another process may have done it meanwhile */
    if (is_whole)
        session->done += file->bytes;
    else
        good = fetch(&d);
    if (d.fd >= 0)
        close(d.fd);
    close(lock);
    return good;
}
