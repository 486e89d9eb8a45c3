/* hub.h: models of a Hugging Face hub, in the cache folder that its own tools use.
 *
 *     CACHE/models--ORG--NAME/blobs/ETAG             contents, named by the hub's hash; ETAG.incomplete: a part of them
 *                            /refs/REVISION          the commit of a branch or tag
 *                            /snapshots/COMMIT/FILE  relative symbolic links to blobs
 *     CACHE/.locks/models--ORG--NAME/ETAG.lock       held while a blob is written, as by huggingface_hub
 *
 * Links and the ref appear when all files of a pull are complete and verified. Names, hashes and sizes
 * that a hub sends are untrusted: they are checked before they become part of a path. Nothing is written outside
 * CACHE. Failures raise the library's error. Opening needs the C library alone; pulling needs libcurl and jansson. */
#ifndef TARN__HUB_H
#define TARN__HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a path, a repository's name, a revision, a file's name in a repository, and an etag, with the final 0. */
enum {
    TARN__HUB_PATH = 4096,
    TARN__HUB_REPO = 200,
    TARN__HUB_REVISION = 256,
    TARN__HUB_FILE = 1025,
    TARN__HUB_ETAG = 129
};

/* ---- settings (settings.c) --------------------------------------------------------------------------------------- */

/* From HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_OFFLINE and HF_HUB_DOWNLOAD_TIMEOUT. */
typedef struct tarn__hub_settings {
    char endpoint[512];         /* without a slash at the end */
    char cache[TARN__HUB_PATH]; /* the folder; it may not exist */
    char token[512];            /* "": none */
    bool offline;
    long timeout; /* seconds without a byte after which a connection is given up */
} tarn__hub_settings;

/* The folder alone; false with an error. */
bool tarn__hub_cache(char cache[TARN__HUB_PATH]);

/* All of them; false with an error. */
bool tarn__hub_settings_read(tarn__hub_settings *settings);

/* ---- names (names.c) --------------------------------------------------------------------------------------------- */

/* True for ORG/NAME: letters, digits, '-', '_' and '.', without what could leave a folder. */
bool tarn__hub_is_repo(const char *name);

/* True for a branch, a tag or a commit. */
bool tarn__hub_is_revision(const char *revision);

/* True for 40 hexadecimal digits in lower case: a commit, or the SHA-1 of a git blob. */
bool tarn__hub_is_sha1(const char *text);

/* True for 64 of them. */
bool tarn__hub_is_sha256(const char *text);

/* True for what may name a blob: 1 to 128 letters, digits, '-', '_' and '.', the first not a dot. */
bool tarn__hub_is_etag(const char *text);

/* Checks the name of a file in a repository: relative, of components that stay below the folder, in UTF-8 without
 * control characters, of bounded length. False with an error that has the name. */
bool tarn__hub_check_file(const char *repo, const char *file);

/* ---- cache (cache.c) --------------------------------------------------------------------------------------------- */

/* A path below the cache's folder: CACHE/models--ORG--NAME[/FORMAT...]. False with an error if it is too long. */
bool tarn__hub_path(char path[TARN__HUB_PATH], const char *cache, const char *repo, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The commit of a revision in the cache, whose snapshot exists; false, without an error, if there is none. */
bool tarn__hub_commit(const char *cache, const char *repo, const char *revision, char commit[TARN__HUB_REVISION]);

/* A model on the command line, ORG/NAME[@REVISION][/FILE], that is in the cache and no path that exists: writes the
 * path of its snapshot, of the file, or of the only GGUF model in it, and true. False: `text` stands for itself, or
 * an error is pending, if the cache has the repository but not that revision or file, or several GGUF models. */
bool tarn__hub_open(const char *text, char path[TARN__HUB_PATH]);

/* Creates the folders above a path. False with an error. */
bool tarn__hub_make_folders(const char *path);

/* A lock on a blob: waits for other processes, calling `waiting` once if it must and giving up when `stopped`, both
 * with `ctx`. Returns a descriptor that unlocks when closed; -1 with an error, or without one if stopped. */
int tarn__hub_lock(const char *cache, const char *repo, const char *etag, bool (*stopped)(void *ctx),
                   void (*waiting)(void *ctx), void *ctx);

/* Makes snapshots/COMMIT/FILE a link to a blob, and writes refs/REVISION; both replace what there is, atomically. False
 * with an error. */
bool tarn__hub_link(const char *cache, const char *repo, const char *commit, const char *file, const char *etag);
bool tarn__hub_write_ref(const char *cache, const char *repo, const char *revision, const char *commit);

/* ---- selection (select.c) ---------------------------------------------------------------------------------------- */

/* A file of a repository. `etag` and `bytes` are "" and -1 until the hub has been asked for them. is_linked: the
 * repository holds a pointer (git LFS, Xet), and the contents are on another host. */
typedef struct tarn__hub_file {
    char *name; /* owned by the listing */
    int64_t bytes;
    char etag[TARN__HUB_ETAG];
    bool is_selected;
    bool is_linked; /* stored apart from the repository: its etag is not the one of the response that has it */
    bool is_cached; /* the blob was in the cache */
} tarn__hub_file;

/* The files of a commit, sorted by name. */
typedef struct tarn__hub_listing {
    char commit[TARN__HUB_REVISION];
    tarn__hub_file *files; /* owned */
    size_t count;
} tarn__hub_listing;

/* Marks the files that tarn needs, or those that match one of `patterns` (as fnmatch(): '*' matches '/' too); of a
 * GGUF model in shards all of them. False with an error: there are none, or several GGUF models, which it lists, or one
 * without all shards, or names that differ in case alone. */
bool tarn__hub_select(const char *repo, tarn__hub_listing *listing, const char *const *patterns, int pattern_count);

/* True for a GGUF file that is opened as a model, whole or a first shard: no other shard, no projector of images, no
 * importance matrix. */
bool tarn__hub_is_gguf_model(const char *name);

/* ---- pull (pull.c; where libcurl and jansson are) ---------------------------------------------------------------- */

typedef struct tarn__hub_pull_options {
    const char *repo, *revision;
    const char *const *patterns;
    int pattern_count;
    /* All are called on the calling thread, with `ctx`. */
    bool (*stopped)(void *ctx); /* the user asks to stop */
    /* before the first byte: what is to be done; `missing` bytes of `bytes` are not in the cache */
    void (*plan)(const tarn__hub_listing *listing, int64_t bytes, int64_t missing, void *ctx);
    void (*progress)(const char *file, int64_t done, int64_t total, void *ctx); /* bytes of all files */
    void (*finished)(const tarn__hub_file *file, void *ctx);
    void (*notice)(const char *text, void *ctx); /* a retry, a wait */
    void *ctx;
} tarn__hub_pull_options;

/* Downloads what is missing of a model. `*listing` has its files then; freed with tarn__hub_listing_free(), also after
 * a failure. Writes the snapshot's folder. False with an error, or without one when stopped. */
bool tarn__hub_pull(const tarn__hub_settings *settings, const tarn__hub_pull_options *options,
                    tarn__hub_listing *listing, char path[TARN__HUB_PATH]);

void tarn__hub_listing_free(tarn__hub_listing *listing);

#endif
