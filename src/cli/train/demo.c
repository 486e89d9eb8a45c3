/* demo.c: `tarn demo`: a small GPT learns to write like tarn's own source, which the build put into the program, and
 * then writes some. */
#include "cli/train/demo_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tarn/generate.h>
#include <unistd.h>

#include "cli/cli.h"

enum { CONTEXT = 128, WRITTEN = 600, ROOM = CONTEXT + WRITTEN };

/* What is trained: about a minute on two cores. */
static const tarn_train_options recipe = {.model = "gpt2",
                                          .tokenizer = "characters",
                                          .layers = 4,
                                          .heads = 4,
                                          .hidden_size = 128,
                                          .context = CONTEXT,
                                          .batch_size = 8,
                                          .lr = 0.002,
                                          .min_lr = 0.0002,
                                          .beta2 = 0.99,
                                          .weight_decay = 0.1,
                                          .clip_norm = 1,
                                          .eval_every = 200,
                                          .eval_batches = 10,
                                          .log_every = 20};

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int cannot(const char *path)
{
    fprintf(stderr, "tarn demo: '%s' cannot be written: %s\n", tarn__escaped(path), strerror(errno));
    return TARN__FAILED;
}

/* The folders above a path. */
static bool make_folders_above(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        bool good = mkdir(path, 0777) == 0 || errno == EEXIST;
        *slash = '/';
        if (!good)
            return false;
    }
    return true;
}

/* runs/demo, or runs/demo-2 where that is there already, and so on. */
static void choose_folder(const tarn__options *o, char *folder, size_t size)
{
    snprintf(folder, size, "%s", o->out ? o->out : "runs/demo");
    for (int number = 2; !o->out && access(folder, F_OK) == 0; number++)
        snprintf(folder, size, "runs/demo-%d", number);
}

static int write_source(const char *path)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return cannot(path);
    bool good = fwrite(tarn__demo_text, 1, tarn__demo_length, file) == tarn__demo_length;
    return fclose(file) == 0 && good ? TARN__DONE : cannot(path);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool print_tokens(const tarn_tokenizer *tokenizer, const int32_t *ids, int64_t count)
{
    size_t length = 0;
    char *text = tarn_tokenizer_decode(tokenizer, ids, count, &length);
    if (text)
        tarn__print_generated(text, length);
    tarn_tokenizer_release(text);
    fflush(stdout);
    return text != NULL;
}

/* A model looks at no more than its context: it goes on with the last half of it, again and again. */
static bool go_on(tarn_module *model, const tarn_tokenizer *tokenizer, uint64_t seed, int32_t *ids, int64_t count)
{
    while (count < WRITTEN) {
        int64_t seen = count < CONTEXT / 2 ? count : CONTEXT / 2;
        int64_t made = tarn_generate(
            model, ids + count - seen, seen, ids + count,
            &(tarn_generate_options){.max_tokens = CONTEXT / 2, .temperature = 0.7, .seed = seed + (uint64_t)count});
        if (made < 1 || !print_tokens(tokenizer, ids + count, made))
            return false;
        count += made;
    }
    return true;
}

static int write_some(const char *folder, const tarn__options *o)
{
    static const char prompt[] = "\nstatic ";
    int32_t ids[ROOM];
    int64_t count = 0;
    tarn_run *run = tarn_run_open(folder, o->device);
    const tarn_tokenizer *tokenizer = run ? tarn_run_tokenizer(run) : NULL;
    int32_t *begin = tokenizer ? tarn_tokenizer_encode(tokenizer, prompt, sizeof(prompt) - 1, NULL, &count) : NULL;
    if (begin)
        memcpy(ids, begin, sizeof(*ids) * (size_t)count);
    tarn_tokenizer_release(begin);
    tarn__heading("what it writes");
    bool good = begin && print_tokens(tokenizer, ids, count) &&
                go_on(tarn_run_model(run), tokenizer, (uint64_t)o->seed, ids, count);
    printf("\n");
    tarn_run_close(run);
    return good ? TARN__DONE : tarn__print_error("demo");
}

int tarn__demo(const tarn__options *options)
{
    tarn__options own = *options;
    char folder[1000], text[1010];
    if (options->out && strlen(options->out) >= sizeof(folder)) {
        fprintf(stderr, "tarn demo: --out: the name of the folder is too long\n");
        return TARN__MISUSED;
    }
    own.train = recipe;
    own.train.steps = options->steps;
    own.train.warmup = options->steps / 16;
    own.train.seed = options->seed;
    choose_folder(options, folder, sizeof(folder));
    snprintf(text, sizeof(text), "%s.txt", folder);
    snprintf(own.train.out, sizeof(own.train.out), "%s", folder);
    snprintf(own.train.data, sizeof(own.train.data), "text:%s", text);
    tarn_device_name(options->device, own.train.device, sizeof(own.train.device));
    if (!make_folders_above(text))
        return cannot(text);
    int status = write_source(text);
    if (status == TARN__DONE)
        status = tarn__train(&own);
    if (status != TARN__DONE)
        return status;
    status = write_some(folder, options);
    if (status == TARN__DONE)
        printf("\nthe model is in %s: tarn generate %s \"int \"; its curves are in %s/report.html\n", folder, folder,
               folder);
    return status;
}
