/* convert.c: `tarn quantize` and `tarn convert`: a model's files in another dtype or format.
 *
 * Both are tarn_model_convert() with other options. The source is a file, a folder, or a run folder with --checkpoint;
 * the target is an atomic write, and an existing one is replaced only with --force. --adapter merges adapters on the
 * way. The summary goes to standard output, progress to standard error. */
#include <string.h>
#include <strings.h>
#include <tarn/convert.h>
#include <tarn/lora.h>
#include <tarn/model.h>
#include <unistd.h>

#include "cli/cli.h"

/* Overwrites its line; the last call, done == all, ends it. Called on the converting thread. */
static void show_progress(int64_t done, int64_t all, const char *name, void *ctx)
{
    (void)ctx;
    fprintf(stderr, "\r%3d %% of %s  %-48.48s%s", (int)(all ? 100 * (double)done / (double)all : 100),
            tarn__bytes_text(all), tarn__escaped(name), done == all ? "\n" : "");
}

/* Keys are the fields of tarn_convert_summary. */
static void print_json(const tarn__options *o, const tarn_convert_summary *s)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "from", o->words[0]);
    tarn__json_string(&json, "to", o->words[1]);
    tarn__checkpoint_json(&json, o);
    if (o->type)
        tarn__json_string(&json, "type", o->type);
    tarn__json_int(&json, "tensors", s->tensors);
    tarn__json_int(&json, "changed", s->changed);
    tarn__json_int(&json, "unquantized", s->unquantized);
    tarn__json_int(&json, "fallback", s->fallback);
    tarn__json_int(&json, "promoted", s->promoted);
    tarn__json_int(&json, "bytes_before", s->before);
    tarn__json_int(&json, "bytes", s->after);
    tarn__json_end(&json);
}

/* Notes the tensors that did not get --type: vectors stay f32, rows that are no multiple of the quant block fall back
 * to q8_0, the head may be promoted, and in a mixture other matrices, too. */
static void print_summary(const tarn__options *o, const tarn_convert_summary *s, bool is_mixture)
{
    printf("%s: %d tensors, %s instead of %s\n", tarn__escaped(o->words[1]), s->tensors, tarn__bytes_text(s->after),
           tarn__bytes_text(s->before));
    if (o->type && s->unquantized)
        printf("%d tensors stay f32: norms, biases and position embeddings\n", s->unquantized);
    if (s->fallback)
        printf("%d tensors fall back to %s or stay as they are: their rows are not a multiple of the quant block\n",
               s->fallback, is_mixture ? "another type" : "q8_0");
    if (s->promoted)
        printf(is_mixture ? "%d tensors are promoted to types of more bits\n" : "the head is promoted to q6_k\n",
               s->promoted);
}

/* Adapters alone, between a folder and a GGUF file. Returns an exit status. The form of the target follows from its
 * name; the base tells names and sizes. */
static int convert_adapters(const char *command, const tarn__options *o, const char *from)
{
    const char *to = o->words[1];
    if (o->type || o->adapter) {
        fprintf(stderr, "tarn %s: --base converts adapters alone; it does not go with --type and --adapter\n", command);
        return TARN__MISUSED;
    }
    if (!o->force && access(to, F_OK) == 0) {
        fprintf(stderr, "tarn %s: '%s' already exists; --force replaces it\n", command, tarn__escaped(to));
        return TARN__FAILED;
    }
    tarn_module *model =
        tarn_model_open(o->convert_base, tarn_device_cpu(), &(tarn_model_open_options){.as_stored = true});
    bool good = model && tarn_lora_load(model, from) && tarn_lora_save(model, to, o->convert_base);
    tarn_module_free(model);
    if (!good)
        return tarn__print_error(command);
    if (!o->quiet)
        printf("%s: adapters of %s\n", tarn__escaped(to), tarn__escaped(o->convert_base));
    return TARN__DONE;
}

/* Returns an exit status. Progress is for a user at a terminal only, not for logs. */
static int run(const char *command, const tarn__options *o, tarn_convert_options how)
{
    /* filled only on success */
    tarn_convert_summary summary;
    tarn_run_weights weights;
    int status = tarn__checkpoint_use(command, o, &weights);
    if (status != TARN__DONE)
        return status;
    if (o->convert_base)
        return convert_adapters(command, o, weights.path);
    /* an existing target is an error without --force */
    how.replace = o->force;
    how.adapter = o->adapter;
    how.importance = o->imatrix;
    how.progress = !o->quiet && isatty(STDERR_FILENO) ? show_progress : NULL;
    if (!tarn_model_convert(weights.path, o->words[1], &summary, &how))
        return tarn__print_error(command);
    if (o->json)
        print_json(o, &summary);
    else if (!o->quiet)
        print_summary(o, &summary, how.mixture != NULL);
    return TARN__DONE;
}

/* The mixture that begins with `type`: "Q4_K_M" for "Q4_K", since llama.cpp has that alias. NULL: none. */
static const char *completion(const char *type)
{
    const char *found = NULL, *name;
    for (int i = 0; (name = tarn_convert_mixture_at(i)) && !(found && strstr(found, "_M")); i++)
        found = strncasecmp(name, type, strlen(type)) == 0 ? name : found;
    return found;
}

/* The error of an unknown or missing --type. Lists what the library has: a new type needs no change here. */
static int misused(const char *command, const char *type)
{
    const char *near = type ? completion(type) : NULL;
    fprintf(stderr, "tarn %s: --type", command);
    if (type)
        fprintf(stderr, ": '%s' must be one of", tarn__escaped(type));
    else
        fprintf(stderr, " is missing: one of");
    for (int i = 0; tarn_convert_mixture_at(i); i++)
        fprintf(stderr, " %s", tarn_convert_mixture_at(i));
    fprintf(stderr, ", or in lower case for all matrices:");
    for (tarn_dtype d = TARN_Q8_0; d < TARN_DTYPE_COUNT; d++)
        fprintf(stderr, " %s", tarn_dtype_name(d));
    fprintf(stderr, " f16 bf16 f32%s%s%s\n", near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    return TARN__MISUSED;
}

/* A dtype for all matrices, or a mixture in upper or mixed case: "q4_0" and "Q4_0" differ. The dtypes are compared
 * first and with their case, so that "q4_0" is never the mixture. */
static bool type_of(const char *name, tarn_convert_options *how)
{
    how->quantize = true;
    for (tarn_dtype d = TARN_F32; d < TARN_DTYPE_COUNT; d++) {
        bool is_weight = d == TARN_F32 || d == TARN_F16 || d == TARN_BF16 || d >= TARN_Q8_0;
        how->type = d;
        if (is_weight && strcmp(name, tarn_dtype_name(d)) == 0)
            return true;
    }
    how->mixture = name;
    for (int i = 0; tarn_convert_mixture_at(i); i++)
        if (strcasecmp(name, tarn_convert_mixture_at(i)) == 0)
            return true;
    return false;
}

int tarn__quantize(const tarn__options *options)
{
    tarn_convert_options how = {0};
    return options->type && type_of(options->type, &how) ? run("quantize", options, how)
                                                         : misused("quantize", options->type);
}

/* Without --type tensors keep their dtype, only the container changes. */
int tarn__convert(const tarn__options *options)
{
    tarn_convert_options how = {0};
    return !options->type || type_of(options->type, &how) ? run("convert", options, how)
                                                          : misused("convert", options->type);
}
