/* demo.c: `tarn demo`: trains a small character-level GPT on tarn's own sources, then prints a sample of its text.
 *
 * The training text is part of the program (cmake/demo_text.cmake), so the demo needs no download. It is written next
 * to the run folder as FOLDER.txt, because a run reads its data from a path and must find it again when it is resumed.
 * Everything else is `tarn train` with a fixed recipe: --steps, --seed, --device and --out are the only inputs. */
#include "cli/train/train.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tarn/generate.h>
#include <unistd.h>

#include "cli/cli.h"

/* Sizes in tokens, which are characters here. */
enum { STEPS = 800, CONTEXT = 128, SAMPLE_TOKENS = 600, CAPACITY = CONTEXT + SAMPLE_TOKENS };

/* The recipe: about a minute on two CPU cores. Steps, warmup, seed and device come from the command line. */
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

/* Reports errno, so it must be called right after the failed call. */
static int print_write_error(const char *path)
{
    fprintf(stderr, "tarn demo: '%s' cannot be written: %s\n", tarn__escaped(path), strerror(errno));
    return TARN__FAILED;
}

/* Creates the parent folders of `path`, as mkdir -p does. The string is changed in place and restored. False with errno
 * set; a parent that already exists is no error. */
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

/* Without --out: runs/demo, or runs/demo-2 and so on if it already exists. A given --out is used as is; `tarn train`
 * reports one that already exists. */
static void choose_folder(const tarn__options *o, char *folder, size_t size)
{
    snprintf(folder, size, "%s", o->out ? o->out : "runs/demo");
    for (int number = 2; !o->out && access(folder, F_OK) == 0; number++)
        snprintf(folder, size, "runs/demo-%d", number);
}

/* A short write may only show in fclose(), so both results count. */
static int write_source(const char *path)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return print_write_error(path);
    bool good = fwrite(tarn__demo_text, 1, tarn__demo_length, file) == tarn__demo_length;
    return fclose(file) == 0 && good ? TARN__DONE : print_write_error(path);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Decodes `count` tokens and prints them at once. False with an error. */
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

/* Generates until `ids` has SAMPLE_TOKENS tokens. Each round prefills the last half of the context and generates the
 * other half: the KV cache never slides, and a text longer than the context needs no special case. `ids` has capacity
 * for one more round after SAMPLE_TOKENS. The seed differs per round, else equal prompts would repeat. */
static bool generate_rest(tarn_module *model, const tarn_tokenizer *tokenizer, uint64_t seed, int32_t *ids,
                          int64_t count)
{
    while (count < SAMPLE_TOKENS) {
        int64_t prompt_length = count < CONTEXT / 2 ? count : CONTEXT / 2;
        int64_t generated = tarn_generate(
            model, ids + count - prompt_length, prompt_length, ids + count,
            &(tarn_generate_options){.max_tokens = CONTEXT / 2, .temperature = 0.7, .seed = seed + (uint64_t)count});
        if (generated < 1 || !print_tokens(tokenizer, ids + count, generated))
            return false;
        count += generated;
    }
    return true;
}

/* Samples from the finished run. It is opened from its folder, as any user of the run would open it, and closed
 * here. */
static int print_sample(const char *folder, const tarn__options *o)
{
    /* in the style of the training text */
    static const char prompt[] = "\nstatic ";
    int32_t ids[CAPACITY];
    int64_t count = 0;
    tarn_run *run = tarn_run_open(folder, o->device);
    const tarn_tokenizer *tokenizer = run ? tarn_run_tokenizer(run) : NULL;
    int32_t *prompt_ids = tokenizer ? tarn_tokenizer_encode(tokenizer, prompt, sizeof(prompt) - 1, NULL, &count) : NULL;
    if (prompt_ids)
        memcpy(ids, prompt_ids, sizeof(*ids) * (size_t)count);
    tarn_tokenizer_release(prompt_ids);
    tarn__heading("sample of the model");
    bool good = prompt_ids && print_tokens(tokenizer, ids, count) &&
                generate_rest(tarn_run_model(run), tokenizer, (uint64_t)o->seed, ids, count);
    printf("\n");
    tarn_run_close(run);
    return good ? TARN__DONE : tarn__print_error("demo");
}

/* Writes the text, trains, and samples. Returns the status of the first part that fails. */
int tarn__demo(const tarn__options *options)
{
    tarn__options own = *options;
    /* ten bytes more: ".txt" always fits */
    char folder[1000], text[1010];
    if (options->chat)
        return tarn__demo_chat(options);
    if (options->out && strlen(options->out) >= sizeof(folder)) {
        fprintf(stderr, "tarn demo: --out: the folder name is too long\n");
        return TARN__MISUSED;
    }
    /* `own` is a copy: the caller's options are not changed. */
    own.train = recipe;
    own.train.steps = options->steps ? options->steps : STEPS;
    own.train.warmup = own.train.steps / 16;
    own.train.seed = options->seed;
    choose_folder(options, folder, sizeof(folder));
    snprintf(text, sizeof(text), "%s.txt", folder);
    snprintf(own.train.out, sizeof(own.train.out), "%s", folder);
    snprintf(own.train.data, sizeof(own.train.data), "text:%s", text);
    tarn_device_name(options->device, own.train.device, sizeof(own.train.device));
    if (!make_folders_above(text))
        return print_write_error(text);
    int status = write_source(text);
    if (status == TARN__DONE)
        status = tarn__train(&own);
    if (status != TARN__DONE)
        return status;
    status = print_sample(folder, options);
    if (status == TARN__DONE)
        printf("\nmodel: %s (tarn generate %s \"int \"); training curves: %s/report.html\n", folder, folder, folder);
    return status;
}
