/* pull.c: `tarn pull`: a model from a Hugging Face hub into the cache folder of its tools (hub/).
 *
 * What is going to be downloaded is printed first, then a line per file, and the folder at the end. Ctrl-C and SIGTERM
 * keep what has arrived.
 *
 * The handler of signals sets a flag and nothing else; the hub asks for it between parts of a file, so a stop comes
 * from ordinary code, which closes files and releases locks. A second Ctrl-C does no more than the first. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "hub/hub.h"
#include "tarn_features.h"

#if TARN__HAVE_CURL && TARN__HAVE_JANSSON

typedef struct pull {
    const tarn__options *options;
    bool is_drawn;
} pull;

static volatile sig_atomic_t is_stopped;

static void on_signal(int number)
{
    (void)number;
    is_stopped = 1;
}

static bool stopped(void *ctx)
{
    (void)ctx;
    return is_stopped;
}

/* Without SA_RESTART: a call that waits returns at once. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static bool prints(const pull *p)
{
    return !p->options->json && !p->options->quiet;
}

/* "org/name, main, commit 0123456789ab: 7 files, 2.1 GiB, 300 MiB to download". The last part is left out where all
 * is missing. */
static void print_plan(const tarn__hub_listing *listing, int64_t bytes, int64_t missing, void *ctx)
{
    const pull *p = ctx;
    char line[512];
    int files = 0;
    for (size_t i = 0; i < listing->count; i++)
        files += listing->files[i].is_selected;
    if (!prints(p))
        return;
    snprintf(line, sizeof(line), "%s, %.64s, commit %.12s: %d file%s, %s%s%s%s\n", p->options->words[0],
             tarn__escaped(p->options->revision), listing->commit, files, files == 1 ? "" : "s",
             tarn__bytes_text(bytes), missing < bytes ? ", " : "",
             missing == 0 && bytes > 0 ? "all in the cache"
             : missing < bytes         ? tarn__bytes_text(missing)
                                       : "",
             missing > 0 && missing < bytes ? " to download" : "");
    tarn__progress_pause();
    tarn__print_wrapped(line, 2);
    tarn__progress_resume();
}

static void show_progress(const char *file, int64_t done, int64_t total, void *ctx)
{
    const pull *p = ctx;
    if (p->is_drawn)
        tarn__progress_transfer(file, done, total);
}

/* Pausing takes the progress line away, so that a line of text does not begin in its middle. */
static void print_file(const tarn__hub_file *file, void *ctx)
{
    const pull *p = ctx;
    if (!prints(p))
        return;
    tarn__progress_pause();
    printf("  %-10s %s%s\n", tarn__bytes_text(file->bytes), tarn__escaped(file->name),
           file->is_cached ? " (in the cache)" : "");
    tarn__progress_resume();
}

/* A hub's own words may be in it, so it is escaped as a whole. */
static void print_notice(const char *text, void *ctx)
{
    const pull *p = ctx;
    if (p->options->quiet)
        return;
    tarn__progress_pause();
    fprintf(stderr, "tarn pull: %s\n", tarn__escaped(text));
    tarn__progress_resume();
}

/* After the pull: files that were selected, and which of them needed no download. */
static void print_json(const tarn__options *o, const tarn__hub_listing *listing, const char *path)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "model", o->words[0]);
    tarn__json_string(&json, "revision", o->revision);
    tarn__json_string(&json, "commit", listing->commit);
    tarn__json_string(&json, "path", path);
    tarn__json_open(&json, "files", '[');
    for (size_t i = 0; i < listing->count; i++) {
        const tarn__hub_file *file = &listing->files[i];
        if (!file->is_selected)
            continue;
        tarn__json_open(&json, NULL, '{');
        tarn__json_string(&json, "name", file->name);
        tarn__json_int(&json, "bytes", file->bytes);
        tarn__json_bool(&json, "was_cached", file->is_cached);
        tarn__json_close(&json, '}');
    }
    tarn__json_close(&json, ']');
    tarn__json_end(&json);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* HF_HUB_OFFLINE: what is in the cache. */
static int find_offline(const tarn__options *o, const tarn__hub_settings *settings)
{
    char commit[TARN__HUB_REVISION], path[TARN__HUB_PATH];
    if (!tarn__hub_commit(settings->cache, o->words[0], o->revision, commit) ||
        !tarn__hub_path(path, settings->cache, o->words[0], "snapshots/%s", commit)) {
        fprintf(stderr,
                "tarn pull: HF_HUB_OFFLINE is set, and '%s' (%s) is not in the cache; unset it to download the model\n",
                o->words[0], tarn__escaped(o->revision));
        return TARN__FAILED;
    }
    if (o->include_count > 0) {
        fprintf(
            stderr,
            "tarn pull: HF_HUB_OFFLINE is set, and --include chooses among the hub's files; '%s' has what is there\n",
            tarn__escaped(path));
        return TARN__FAILED;
    }
    tarn__hub_listing found = {.count = 0};
    snprintf(found.commit, sizeof(found.commit), "%s", commit);
    if (o->json)
        print_json(o, &found, path);
    else if (!o->quiet)
        printf("%s\n", tarn__escaped(path));
    return TARN__DONE;
}

static int download(const tarn__options *o, const tarn__hub_settings *settings)
{
    char path[TARN__HUB_PATH];
    tarn__hub_listing listing;
    pull p = {.options = o, .is_drawn = tarn__on_terminal() && !o->json && !o->quiet};
    const tarn__hub_pull_options how = {.repo = o->words[0],
                                        .revision = o->revision,
                                        .patterns = o->includes,
                                        .pattern_count = o->include_count,
                                        .stopped = stopped,
                                        .plan = print_plan,
                                        .progress = show_progress,
                                        .finished = print_file,
                                        .notice = print_notice,
                                        .ctx = &p};
    catch_signals();
    tarn__progress_open(p.is_drawn, o->quiet);
    tarn__progress_text("asks the hub");
    bool good = tarn__hub_pull(settings, &how, &listing, path);
    tarn__progress_close();
    if (good && o->json)
        print_json(o, &listing, path);
    else if (good && !o->quiet)
        printf("%s\n", tarn__escaped(path));
    tarn__hub_listing_free(&listing);
    if (good)
        return TARN__DONE;
    if (tarn_failed())
        return tarn__print_error("pull");
    fprintf(stderr, "tarn pull: stopped; what has arrived is kept: run the same command to resume\n");
    return TARN__FAILED;
}

int tarn__pull(const tarn__options *options)
{
    static tarn__hub_settings settings;
    if (!tarn__hub_is_repo(options->words[0])) {
        fprintf(stderr, "tarn pull: '%s' is no name of a model; expected ORG/NAME, as on the model's page\n",
                tarn__escaped(options->words[0]));
        return TARN__MISUSED;
    }
    if (!tarn__hub_is_revision(options->revision)) {
        fprintf(stderr, "tarn pull: --revision: '%s' is no revision; expected a branch, a tag or a commit\n",
                tarn__escaped(options->revision));
        return TARN__MISUSED;
    }
    if (!tarn__hub_settings_read(&settings))
        return tarn__print_error("pull");
    return settings.offline ? find_offline(options, &settings) : download(options, &settings);
}

#else

int tarn__pull(const tarn__options *options)
{
    (void)options;
    fprintf(stderr, "tarn pull: this build downloads nothing: %s\n",
            TARN__HAVE_CURL ? "jansson was not found (libjansson-dev brings it)"
                            : "libcurl was not found (libcurl4-openssl-dev brings it)");
    return TARN__FAILED;
}

#endif
