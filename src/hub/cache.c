/* cache.c: paths, links, refs and locks in the cache folder, and the models that are found in it.
 *
 * The layout is in hub.h. Links and refs are replaced by a rename, so that a reader sees the old one or the new one.
 *
 * Writers make what a link or ref names before the link or ref itself, and hold no lock for either: two processes that
 * pull the same commit write the same bytes, so the last rename may win.
 *
 * Nothing is ever deleted here but temporary files: blobs that no snapshot needs any more are removed by the user,
 * or by the tools of huggingface_hub. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <tarn/base.h>
#include <time.h>
#include <unistd.h>

#include "hub/hub.h"

/* GGUF models that an error may list, and how often a held lock is tried again. */
enum { MAX_MODELS = 64, LOCK_POLL_MS = 200 };

static bool too_long(void)
{
    return tarn_set_error(TARN_ERROR_ARGUMENT, "a path in the cache of models is too long; expected at most %d bytes",
                          TARN__HUB_PATH - 1);
}

/* Appends to a path. False with an error. */
static bool append(char path[TARN__HUB_PATH], const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool append(char path[TARN__HUB_PATH], const char *format, ...)
{
    size_t used = strlen(path);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path + used, TARN__HUB_PATH - used, format, arguments);
    va_end(arguments);
    return (length >= 0 && (size_t)length < TARN__HUB_PATH - used) || too_long();
}

/* "org/name" and "refs/%s" with "main": CACHE/models--org--name/refs/main. `repo` must have passed
 * tarn__hub_is_repo(), which is why its slash exists. */
bool tarn__hub_path(char path[TARN__HUB_PATH], const char *cache, const char *repo, const char *format, ...)
{
    char rest[TARN__HUB_PATH];
    const char *slash = strchr(repo, '/');
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(rest, sizeof(rest), format, arguments);
    va_end(arguments);
    path[0] = 0;
    return ((length >= 0 && (size_t)length < sizeof(rest)) || too_long()) &&
           append(path, "%s/models--%.*s--%s%s%s", cache, (int)(slash - repo), repo, slash + 1, rest[0] ? "/" : "",
                  rest);
}

static bool is_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* Part after part from the front; what follows the last slash is the file's own name. Another process may make the
 * same folder at the same moment, so an error counts only where no folder is there afterwards. */
bool tarn__hub_make_folders(const char *path)
{
    char part[TARN__HUB_PATH];
    snprintf(part, sizeof(part), "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        int why = mkdir(part, 0777) == 0 ? 0 : errno;
        if (why != 0 && !is_folder(part))
            return tarn_set_error(TARN_ERROR_IO, "cannot create the folder '%.1000s': %s", part, strerror(why));
        *slash = '/';
    }
    return true;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* A name for a temporary file beside `path`: of this process alone. Beside, since a rename is atomic within one file
 * system only. */
static bool temporary(char to[TARN__HUB_PATH], const char *path)
{
    to[0] = 0;
    return append(to, "%s.%ld.tmp", path, (long)getpid());
}

static bool raise_write(const char *path, int why)
{
    return tarn_set_error(TARN_ERROR_IO, "cannot write '%.1000s': %s", path, strerror(why));
}

/* A relative link keeps the cache movable. From snapshots/COMMIT/FILE two folders up is the repository's, and one
 * more for each slash in FILE: "onnx/model.onnx" links to "../../../blobs/ETAG". A link that is right already is
 * left alone, so that a second pull writes nothing. */
bool tarn__hub_link(const char *cache, const char *repo, const char *commit, const char *file, const char *etag)
{
    char path[TARN__HUB_PATH], target[TARN__HUB_PATH] = "../../", found[TARN__HUB_PATH], next[TARN__HUB_PATH];
    if (!tarn__hub_path(path, cache, repo, "snapshots/%s/%s", commit, file) || !tarn__hub_make_folders(path))
        return false;
    for (const char *slash = file; (slash = strchr(slash, '/')) != NULL; slash++)
        if (!append(target, "../"))
            return false;
    if (!append(target, "blobs/%s", etag) || !temporary(next, path))
        return false;
    ssize_t length = readlink(path, found, sizeof(found) - 1);
    if (length >= 0 && (size_t)length == strlen(target) && memcmp(found, target, (size_t)length) == 0)
        return true;
    unlink(next);
    if (symlink(target, next) != 0 || rename(next, path) != 0) {
        int why = errno;
        unlink(next);
        return raise_write(path, why);
    }
    return true;
}

/* The ref is the commit's 40 digits without a newline, as huggingface_hub writes and reads it. A revision with
 * slashes, such as "refs/pr/1", becomes folders. */
bool tarn__hub_write_ref(const char *cache, const char *repo, const char *revision, const char *commit)
{
    char path[TARN__HUB_PATH], next[TARN__HUB_PATH];
    if (!tarn__hub_path(path, cache, repo, "refs/%s", revision) || !tarn__hub_make_folders(path) ||
        !temporary(next, path))
        return false;
    FILE *file = fopen(next, "w");
    bool good = file && fputs(commit, file) >= 0;
    int why = errno;
    if (file && fclose(file) != 0 && good) {
        good = false;
        why = errno;
    }
    if (good && rename(next, path) != 0) {
        good = false;
        why = errno;
    }
    if (!good)
        unlink(next);
    return good || raise_write(path, why);
}

/* flock() is what huggingface_hub's locks use on Unix, so both tools exclude each other. It is tried rather than
 * waited for, since a wait in the kernel could not ask `stopped`. The file stays when the lock ends: removing it
 * would let a third process lock a new file while a second one waits for the old. */
int tarn__hub_lock(const char *cache, const char *repo, const char *etag, bool (*stopped)(void *ctx),
                   void (*waiting)(void *ctx), void *ctx)
{
    char path[TARN__HUB_PATH] = "", folder[TARN__HUB_REPO + 16];
    const char *slash = strchr(repo, '/');
    snprintf(folder, sizeof(folder), "models--%.*s--%s", (int)(slash - repo), repo, slash + 1);
    if (!append(path, "%s/.locks/%s/%s.lock", cache, folder, etag) || !tarn__hub_make_folders(path))
        return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        raise_write(path, errno);
        return -1;
    }
    for (bool waits = false; flock(fd, LOCK_EX | LOCK_NB) != 0; waits = true) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            tarn_set_error(TARN_ERROR_IO, "cannot lock '%.1000s': %s", path, strerror(errno));
            close(fd);
            return -1;
        }
        if (!waits)
            waiting(ctx);
        if (stopped(ctx)) {
            close(fd);
            return -1;
        }
        nanosleep(&(struct timespec){0, LOCK_POLL_MS * 1000000L}, NULL);
    }
    return fd;
}

/* ---- models in the cache ----------------------------------------------------------------------------------------- */

/* A revision without a ref stands for itself: it may be the 40 digits of a commit. A ref's contents are checked
 * before they become part of a path, since other tools write them, too. */
bool tarn__hub_commit(const char *cache, const char *repo, const char *revision, char commit[TARN__HUB_REVISION])
{
    char path[TARN__HUB_PATH];
    snprintf(commit, TARN__HUB_REVISION, "%s", revision);
    FILE *file = tarn__hub_path(path, cache, repo, "refs/%s", revision) ? fopen(path, "r") : NULL;
    if (file) {
        size_t length = fread(commit, 1, TARN__HUB_REVISION - 1, file);
        fclose(file);
        commit[length] = 0;
        commit[strcspn(commit, "\r\n")] = 0;
    }
    return tarn__hub_is_sha1(commit) && tarn__hub_path(path, cache, repo, "snapshots/%s", commit) && is_folder(path);
}

/* GGUF models in a snapshot, as paths below it. */
typedef struct models {
    char *names[MAX_MODELS]; /* owned */
    int count;
    bool has_folder; /* there is a config.json or an adapter */
} models;

/* Reads a folder of a snapshot, and those in it. */
static void find_models(models *found, const char *path, const char *below, int depth)
{
    char name[TARN__HUB_PATH], full[TARN__HUB_PATH + 300];
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        /* "." and "..", and hidden files */
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s%s%s", below, below[0] ? "/" : "", entry->d_name);
        snprintf(full, sizeof(full), "%s/%s", path, entry->d_name);
        if (is_folder(full)) {
            if (depth > 0)
                find_models(found, full, name, depth - 1);
            continue;
        }
        found->has_folder |= strcmp(name, "config.json") == 0 || strcmp(name, "adapter_config.json") == 0;
        /* access() follows the link: one whose blob was removed is no model */
        if (tarn__hub_is_gguf_model(name) && found->count < MAX_MODELS && access(full, F_OK) == 0 &&
            (found->names[found->count] = strdup(name)) != NULL)
            found->count++;
    }
    if (folder)
        closedir(folder);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The only GGUF model of a snapshot without a config.json, appended to its path. False with an error that lists
 * several. */
/* A snapshot with a config.json or an adapter is opened as a folder, whatever else is in it; so is one without any
 * model, whose error the opener raises. */
static bool choose_model(char path[TARN__HUB_PATH], const char *text)
{
    models found = {.count = 0};
    char list[600] = "";
    find_models(&found, path, "", 2);
    bool is_gguf = !found.has_folder && found.count > 0, good = !is_gguf || found.count == 1;
    if (good && is_gguf)
        good = append(path, "/%s", found.names[0]);
    else if (!good) {
        qsort(found.names, (size_t)found.count, sizeof(found.names[0]), by_name);
        for (int i = 0; i < found.count; i++) {
            size_t used = strlen(list);
            snprintf(list + used, sizeof(list) - used, "%s%s/%s", i ? ", " : "", text, found.names[i]);
        }
        tarn_set_error(TARN_ERROR_ARGUMENT, "'%s' has %d GGUF models in the cache; give one: %s", text, found.count,
                       list);
    }
    for (int i = 0; i < found.count; i++)
        free(found.names[i]);
    return good;
}

/* ORG/NAME[@REVISION][/FILE]; "main" and "" if not given. False if it has another form. "org/name@v1.0/q4.gguf" is
 * "org/name", "v1.0" and "q4.gguf". The first slash after '@' begins the file, so a revision that has slashes cannot
 * be written here. */
static bool parse(const char *text, char repo[TARN__HUB_REPO], char revision[TARN__HUB_REVISION],
                  char file[TARN__HUB_FILE])
{
    const char *slash = strchr(text, '/');
    size_t length = slash ? (size_t)(slash - text) + 1 + strcspn(slash + 1, "@/") : 0;
    if (length == 0 || length >= TARN__HUB_REPO)
        return false;
    snprintf(repo, TARN__HUB_REPO, "%.*s", (int)length, text);
    const char *at = text + length;
    size_t name = at[0] == '@' ? strcspn(at, "/") : 0;
    if (name > TARN__HUB_REVISION || strlen(at + name) >= TARN__HUB_FILE)
        return false;
    snprintf(revision, TARN__HUB_REVISION, "%.*s", name ? (int)name - 1 : 4, name ? at + 1 : "main");
    snprintf(file, TARN__HUB_FILE, "%s", at[name] ? at + name + 1 : "");
    return tarn__hub_is_repo(repo) && tarn__hub_is_revision(revision) && (!at[name] || file[0]);
}

/* A path that exists wins over a model of the same name, and a repository that is not in the cache leaves the text
 * alone: it may be a path that does not exist, about which the caller knows a better sentence. */
bool tarn__hub_open(const char *text, char path[TARN__HUB_PATH])
{
    char repo[TARN__HUB_REPO], revision[TARN__HUB_REVISION], file[TARN__HUB_FILE], commit[TARN__HUB_REVISION],
        cache[TARN__HUB_PATH];
    if (!parse(text, repo, revision, file) || access(text, F_OK) == 0 || !tarn__hub_cache(cache) ||
        !tarn__hub_path(path, cache, repo, "%s", "") || !is_folder(path))
        return false;
    bool is_main = strcmp(revision, "main") == 0;
    if (!tarn__hub_commit(cache, repo, revision, commit))
        return tarn_set_error(TARN_ERROR_IO, "'%.200s': revision '%s' is not in the cache; run `tarn pull %s%s%s`",
                              text, revision, repo, is_main ? "" : " --revision ", is_main ? "" : revision);
    if (!tarn__hub_path(path, cache, repo, "snapshots/%s", commit))
        return false;
    if (!file[0])
        return choose_model(path, text);
    if (!tarn__hub_check_file(repo, file) || !append(path, "/%s", file))
        return false;
    return access(path, F_OK) == 0 ||
           tarn_set_error(TARN_ERROR_IO, "'%.500s' is not in the cache; run `tarn pull %s%s%s --include '%.500s'`",
                          text, repo, is_main ? "" : " --revision ", is_main ? "" : revision, file);
}
