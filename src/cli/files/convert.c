/* convert.c: `tarn quantize` and `tarn convert`: a model's files in another dtype or format.
 *
 * Both are tarn_model_convert() with other options. The source is a file, a folder, or a run folder with --checkpoint;
 * the target is an atomic write, and an existing one is replaced only with --force. --adapter merges adapters on the
 * way. The summary goes to standard output, progress to standard error. */
#include <string.h>
#include <tarn/convert.h>
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
 * to q8_0, and the head may be promoted. */
static void print_summary(const tarn__options *o, const tarn_convert_summary *s)
{
    printf("%s: %d tensors, %s instead of %s\n", tarn__escaped(o->words[1]), s->tensors, tarn__bytes_text(s->after),
           tarn__bytes_text(s->before));
    if (o->type && s->unquantized)
        printf("%d tensors stay f32: norms, biases and position embeddings\n", s->unquantized);
    if (s->fallback)
        printf("%d tensors fall back to q8_0 or stay as they are: their rows are not a multiple of the quant block\n",
               s->fallback);
    if (s->promoted)
        printf("the head is promoted to q6_k\n");
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
    /* an existing target is an error without --force */
    how.replace = o->force;
    how.adapter = o->adapter;
    how.progress = !o->quiet && isatty(STDERR_FILENO) ? show_progress : NULL;
    if (!tarn_model_convert(weights.path, o->words[1], &summary, &how))
        return tarn__print_error(command);
    if (o->json)
        print_json(o, &summary);
    else if (!o->quiet)
        print_summary(o, &summary);
    return TARN__DONE;
}

/* Dtypes are checked here, since the library's message would list types that files cannot have. */
int tarn__quantize(const tarn__options *options)
{
    /* the dtypes that tarn can quantize to; tarn_dtype_parse() knows more */
    static const char *const names[] = {"q8_0", "q4_0", "q4_k", "q6_k", "f16", "bf16", "f32"};
    if (!options->type) {
        fprintf(stderr, "tarn quantize: --type is missing: q8_0, q4_0, q4_k, q6_k, f16, bf16 or f32\n");
        return TARN__MISUSED;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(options->type, names[i]) == 0)
            return run("quantize", options,
                       (tarn_convert_options){.quantize = true, .type = tarn_dtype_parse(names[i])});
    fprintf(stderr, "tarn quantize: --type: '%s' must be q8_0, q4_0, q4_k, q6_k, f16, bf16 or f32\n",
            tarn__escaped(options->type));
    return TARN__MISUSED;
}

/* No --type: tensors keep their dtype, only the container changes. */
int tarn__convert(const tarn__options *options)
{
    return run("convert", options, (tarn_convert_options){0});
}
