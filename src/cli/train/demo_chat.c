/* demo_chat.c: `tarn demo --chat`: a chat with the story model, which is trained first if it does not exist.
 *
 * The model is looked for next to the installed command (share/tarn/models/stories), then in the user's cache. Else it
 * is trained there: a tokenizer, a small Llama on stories (stories.c), and the same on conversations about stories with
 * a chat template, all by `tarn train`. With --out it is always trained, into that folder.
 *
 * Training happens in a folder next to the model's, FOLDER-training: files of data appear under their names when they
 * are complete, and a run that was stopped is resumed by the next command, so no work is lost and none is done twice.
 * The model's folder is the best checkpoint, which is renamed when all is done: where it exists, it is complete. */
#define _XOPEN_SOURCE 700 /* nftw() */
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tarn/runs.h>
#include <tarn/text.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/train/stories.h"
#include "cli/train/train.h"

/* Data of the recipe, at most: a short training reads less, STORIES_PER_STEP and so on. Stories and conversations have
 * seeds of their own, and so have the conversations that evaluate the model. */
enum {
    STORIES = 24000,
    CONVERSATIONS = 16000,
    HELD_OUT_CONVERSATIONS = 500,
    STORIES_PER_STEP = 25,
    CONVERSATIONS_PER_STEP = 25
};
enum { FEWEST = 1000, VOCABULARY = 640, CONTEXT = 320, PATH_BYTES = 900 };
enum { STEPS = 1500, STEPS_PER_EVAL_BATCH = 75 };
enum { STORY_SEED = 1, CONVERSATION_SEED = 2, HELD_OUT_SEED = 3 };

/* Sizes and rates; steps, seed and device come from the command line. The conversations take half as many steps. */
static const tarn_train_options recipe = {.model = "llama",
                                          .layers = 4,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .hidden_size = 128,
                                          .ffn_size = 320,
                                          .context = CONTEXT,
                                          .batch_size = 8,
                                          .lr = 0.003,
                                          .min_lr = 0.0003,
                                          .beta2 = 0.99,
                                          .weight_decay = 0.1,
                                          .clip_norm = 1,
                                          .precision = "f32",
                                          .eval_every = 500,
                                          .log_every = 20};

/* Where everything is. */
typedef struct places {
    char model[PATH_BYTES], training[PATH_BYTES + 16];
    bool is_cache; /* files of the training are removed at the end */
} places;

/* Reports errno, so it must be called right after the failed call. */
static int print_write_error(const char *path)
{
    fprintf(stderr, "tarn demo: '%s' cannot be written: %s\n", tarn__escaped(path), strerror(errno));
    return TARN__FAILED;
}

/* "FOLDER/name", in one of the rotating buffers; paths fit by the bound of `places`. */
static const char *in(const char *folder, const char *name)
{
    static char buffers[8][PATH_BYTES + 64];
    static int turn;
    char *path = buffers[turn++ % 8];
    snprintf(path, sizeof(buffers[0]), "%s/%s", folder, name);
    return path;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* Creates a folder and those above it; `path` is restored. */
static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        bool good = mkdir(path, 0777) == 0 || errno == EEXIST;
        *slash = '/';
        if (!good)
            return false;
    }
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

/* The model that was installed with this command: share/tarn/models/stories next to bin/. False if there is none. */
static bool find_installed(char *path)
{
    char self[PATH_BYTES - 64];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length <= 0)
        return false;
    self[length] = 0;
    for (int i = 0; i < 2; i++) { /* the command, then bin */
        char *slash = strrchr(self, '/');
        if (!slash)
            return false;
        *slash = 0;
    }
    snprintf(path, PATH_BYTES, "%s/share/tarn/models/stories", self);
    return exists(in(path, "config.json"));
}

/* False, with a message, without a folder for the user's cache. */
static bool find_cache(char *path)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = cache && cache[0] == '/' ? snprintf(path, PATH_BYTES, "%s/tarn/models/stories", cache)
                 : home && home[0] == '/' ? snprintf(path, PATH_BYTES, "%s/.cache/tarn/models/stories", home)
                                          : -1;
    if (length > 0 && length < PATH_BYTES)
        return true;
    fprintf(stderr,
            "tarn demo: --chat: no folder for the model: neither XDG_CACHE_HOME nor HOME is an absolute path of at "
            "most %d bytes; give --out FOLDER\n",
            PATH_BYTES - 64);
    return false;
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *at)
{
    (void)about;
    (void)kind;
    (void)at;
    return remove(path);
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* Writes `count` stories or conversations to a file, unless it exists. Returns the exit status. */
static int write_data(const char *path, bool (*write)(tarn__input *, uint64_t, uint64_t), uint64_t seed, int count)
{
    char next[PATH_BYTES + 96];
    tarn__input text = {0};
    if (exists(path))
        return TARN__DONE;
    for (int i = 0; i < count; i++)
        if (!write(&text, seed, (uint64_t)i)) {
            free(text.text);
            fprintf(stderr, "tarn demo: out of memory\n");
            return TARN__FAILED;
        }
    snprintf(next, sizeof(next), "%s.next", path);
    FILE *to = fopen(next, "wb");
    bool good = to && fwrite(text.text, 1, text.length, to) == text.length;
    good = (!to || fclose(to) == 0) && good && rename(next, path) == 0;
    free(text.text);
    return good ? TARN__DONE : print_write_error(path);
}

/* The tokenizer of the stories, unless it exists. */
static int make_tokenizer(const places *p)
{
    const char *stories = in(p->training, "stories.txt");
    if (exists(in(p->training, "tokenizer/tokenizer.json")))
        return TARN__DONE;
    tarn_tokenizer *tokenizer = tarn_bpe_train_files(&stories, 1, VOCABULARY, NULL);
    bool good = tokenizer && tarn_tokenizer_save(tokenizer, in(p->training, "tokenizer"));
    tarn_tokenizer_free(tokenizer);
    return good ? TARN__DONE : tarn__print_error("demo");
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* The last end of a run, by the log of its folder. */
typedef struct run_end {
    const char *folder;
    bool is_finished;
} run_end;

static void see_end(const tarn_logged_run *run, void *ctx)
{
    run_end *e = ctx;
    if (strcmp(run->folder, e->folder) == 0)
        e->is_finished = strcmp(run->end, "finished") == 0;
}

static bool is_finished(const places *p, const char *folder)
{
    run_end e = {.folder = folder};
    if (exists(in(p->training, "log.jsonl")) && !tarn_runs_read(p->training, see_end, &e))
        tarn_clear_error(); /* a log that cannot be read: the run is resumed, which ends at once if it is complete */
    return e.is_finished;
}

static int64_t steps_of(const tarn__options *o)
{
    return o->steps ? o->steps : STEPS;
}

/* In proportion, so that a short training is short. */
static int64_t eval_batches_of(const tarn__options *o)
{
    return steps_of(o) / STEPS_PER_EVAL_BATCH + 1;
}

/* Trains a run to its end, or resumes it. Returns the exit status; *is_stopped: by the user, with a checkpoint. */
static int train(const places *p, const char *name, const tarn__options *o, const tarn_train_options *how,
                 bool *is_stopped)
{
    char folder[PATH_BYTES + 64];
    tarn__options own = *o;
    snprintf(folder, sizeof(folder), "%s", in(p->training, name));
    if (is_finished(p, folder))
        return TARN__DONE;
    own.train = *how;
    own.train.seed = o->seed;
    own.train.warmup = how->steps / 16;
    own.train.overwrite = true; /* a run that was ended before its first checkpoint */
    snprintf(own.train.out, sizeof(own.train.out), "%s", folder);
    tarn_device_name(o->device, own.train.device, sizeof(own.train.device));
    if (exists(in(folder, "trainer.json"))) {
        own.train = (tarn_train_options){0};
        own.resume = folder;
    }
    int status = tarn__train(&own);
    *is_stopped = status == TARN__DONE && !is_finished(p, folder);
    return status;
}

static int train_stories(const places *p, const tarn__options *o, bool *is_stopped)
{
    tarn_train_options how = recipe;
    how.steps = steps_of(o);
    how.eval_batches = eval_batches_of(o);
    snprintf(how.data, sizeof(how.data), "text:%s", in(p->training, "stories.txt"));
    snprintf(how.tokenizer, sizeof(how.tokenizer), "%s", in(p->training, "tokenizer"));
    return train(p, "stories", o, &how, is_stopped);
}

/* All weights, with two tokens more for the turns; the held-out conversations choose the best checkpoint. */
static int train_conversations(const places *p, const tarn__options *o, bool *is_stopped)
{
    tarn_train_options how = {.context = CONTEXT,
                              .batch_size = recipe.batch_size,
                              .lr = 0.002,
                              .min_lr = 0.0002,
                              .clip_norm = 1,
                              .precision = "f32",
                              .chat_template = "chatml",
                              .add_tokens = "<|im_start|>,<|im_end|>",
                              .eval_every = 250,
                              .eval_batches = eval_batches_of(o),
                              .log_every = 20,
                              .steps = steps_of(o) / 2 ? steps_of(o) / 2 : 1};
    snprintf(how.base, sizeof(how.base), "%s", in(p->training, "stories"));
    snprintf(how.data, sizeof(how.data), "chats:%s", in(p->training, "conversations.jsonl"));
    snprintf(how.val, sizeof(how.val), "%s", in(p->training, "held-out.jsonl"));
    return train(p, "conversations", o, &how, is_stopped);
}

/* Stories or conversations that so many steps need, up to the recipe's. */
static int count_for(const tarn__options *o, int per_step, int most)
{
    int64_t wanted = steps_of(o) * per_step;
    return wanted < FEWEST ? FEWEST : wanted < most ? (int)wanted : most;
}

/* Says what will be done, and how long it takes. */
static void announce(const places *p, const tarn__options *o)
{
    bool continues = exists(in(p->training, "stories/trainer.json"));
    tarn__heading("%s a story model, %lld + %lld steps: a few minutes, once",
                  continues ? "continuing to train" : "training", (long long)steps_of(o), (long long)(steps_of(o) / 2));
    char text[4 * PATH_BYTES];
    snprintf(
        text, sizeof(text),
        "  Trained on %d stories and %d conversations from a built-in generator; stored in %s. Ctrl-C stops, and the "
        "same command resumes.\n",
        count_for(o, STORIES_PER_STEP, STORIES), count_for(o, CONVERSATIONS_PER_STEP, CONVERSATIONS),
        tarn__escaped(p->model));
    tarn__print_wrapped(text, 2);
    fflush(stdout);
}

/* Returns the exit status; *is_stopped: by the user. */
static int make_model(places *p, const tarn__options *o, bool *is_stopped)
{
    announce(p, o);
    if (!make_folders(p->training))
        return print_write_error(p->training);
    int status = write_data(in(p->training, "stories.txt"), tarn__story_write, STORY_SEED,
                            count_for(o, STORIES_PER_STEP, STORIES));
    if (status == TARN__DONE)
        status = write_data(in(p->training, "conversations.jsonl"), tarn__conversation_write, CONVERSATION_SEED,
                            count_for(o, CONVERSATIONS_PER_STEP, CONVERSATIONS));
    if (status == TARN__DONE)
        status = write_data(in(p->training, "held-out.jsonl"), tarn__conversation_write, HELD_OUT_SEED,
                            HELD_OUT_CONVERSATIONS);
    if (status == TARN__DONE)
        status = make_tokenizer(p);
    if (status == TARN__DONE)
        status = train_stories(p, o, is_stopped);
    if (status == TARN__DONE && !*is_stopped)
        status = train_conversations(p, o, is_stopped);
    if (status != TARN__DONE || *is_stopped)
        return status;
    if (rename(in(p->training, "conversations/best"), p->model) != 0)
        return print_write_error(p->model);
    if (p->is_cache)
        nftw(p->training, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return TARN__DONE;
}

/* ---- the chat ---------------------------------------------------------------------------------------------------- */

/* As the command would be typed. */
static int chat(const places *p, const tarn__options *o)
{
    char device[32], seed[32], model[PATH_BYTES];
    tarn__options own;
    tarn_device_name(o->device, device, sizeof(device));
    snprintf(seed, sizeof(seed), "%lld", (long long)o->seed);
    snprintf(model, sizeof(model), "%s", p->model);
    const char *const words[] = {model,           "--device", device,         "--seed", seed,
                                 "--temperature", "0.5",      "--max-tokens", "250"};
    /* training has caught them */
    signal(SIGTERM, SIG_DFL);
    int status = tarn__options_read(TARN__CHAT, "chat", (int)(sizeof(words) / sizeof(words[0])),
                                    (char *const *)(uintptr_t)words, &own);
    if (status != TARN__DONE)
        return status;
    fprintf(stderr, "story model: %s (tarn chat %s). Try: Tell me a story about Mia and a fox.\n",
            tarn__escaped(p->model), tarn__escaped(p->model));
    return tarn__chat(&own);
}

int tarn__demo_chat(const tarn__options *options)
{
    places p = {.model = ""};
    bool is_stopped = false;
    if (options->out && strlen(options->out) >= PATH_BYTES - 64) {
        fprintf(stderr, "tarn demo: --out: the folder name is too long\n");
        return TARN__MISUSED;
    }
    if (options->out && exists(options->out)) {
        fprintf(stderr, "tarn demo: --out '%s' already exists; give another folder, or chat with it: tarn chat %s\n",
                tarn__escaped(options->out), tarn__escaped(options->out));
        return TARN__FAILED;
    }
    p.is_cache = !options->out;
    if (options->out)
        snprintf(p.model, sizeof(p.model), "%s", options->out);
    else if (!find_installed(p.model) && !find_cache(p.model))
        return TARN__FAILED;
    snprintf(p.training, sizeof(p.training), "%s-training", p.model);
    int status = exists(in(p.model, "config.json")) ? TARN__DONE : make_model(&p, options, &is_stopped);
    return status == TARN__DONE && !is_stopped ? chat(&p, options) : status;
}
