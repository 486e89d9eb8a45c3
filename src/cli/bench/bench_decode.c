/* bench_decode.c: `tarn bench decode`: prefill and decode speed of a language model with random weights, compared with
 * the lower bound of a decode step: reading the weights once per token.
 *
 * The library measures (tarn_decode_measure()); this file adds the bandwidth of a copy and prints. Rates are derived
 * from the median times. */
#include <math.h>

#include "cli/bench/timer.h"
#include "cli/lm/lm_common.h"

/* Times in milliseconds are in `timing`. */
typedef struct result {
    tarn_decode_options options;
    tarn_decode_timing timing;
    double prompt_rate, token_rate; /* tokens per second, of all sequences */
    double bytes_rate;              /* bytes of weights per second, read once per token */
    double copy;                    /* bytes per second of a large copy, read plus written */
} result;

static void print_table(const result *f)
{
    tarn_device_info info = {.description = ""};
    char device[32];
    const tarn_decode_timing *t = &f->timing;
    tarn_device_query(f->options.device, &info);
    tarn__heading("decoding with %s in %s on %s, %s", f->options.model, tarn_dtype_name(f->options.dtype),
                  tarn_device_name(f->options.device, device, sizeof(device)), info.description);
    printf("  %-10s %s, %lld parameters; KV cache %s\n", "weights", tarn__bytes_text(t->weight_bytes),
           (long long)t->parameters, tarn__bytes_text(t->cache_bytes));
    printf("  %-10s %9.3f ms, %.0f tokens/s (%lld tokens); first token after %.3f ms\n", "prompt", t->prompt_ms,
           f->prompt_rate, (long long)(f->options.prompt * f->options.sequences), t->first_ms);
    printf("  %-10s %9.3f ms, minimum %.3f; %.1f tokens/s\n", "token", t->token_ms, t->min_token_ms, f->token_rate);
    printf("  %-10s %9.1f GB/s of weights, %.3f of a copy\n", "bandwidth", f->bytes_rate / 1e9,
           f->bytes_rate / f->copy);
    printf("  %-10s %s at most\n", "memory", tarn__bytes_text(t->peak_bytes));
}

static void print_json(const result *f)
{
    tarn__json json = {stdout, false};
    char device[32];
    const tarn_decode_timing *t = &f->timing;
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "model", f->options.model);
    tarn__json_string(&json, "dtype", tarn_dtype_name(f->options.dtype));
    tarn__json_string(&json, "device", tarn_device_name(f->options.device, device, sizeof(device)));
    tarn__json_string(&json, "kv_type", tarn_kv_type_name(f->options.kv_type));
    tarn__json_int(&json, "prompt", f->options.prompt);
    tarn__json_int(&json, "tokens", f->options.tokens);
    tarn__json_int(&json, "sequences", f->options.sequences);
    tarn__json_int(&json, "parameters", t->parameters);
    tarn__json_int(&json, "weight_bytes", t->weight_bytes);
    tarn__json_int(&json, "cache_bytes", t->cache_bytes);
    tarn__json_int(&json, "peak_bytes", t->peak_bytes);
    tarn__json_real(&json, "prompt_ms", t->prompt_ms, 4);
    tarn__json_real(&json, "prompt_tokens_per_second", f->prompt_rate, 1);
    tarn__json_real(&json, "first_token_ms", t->first_ms, 4);
    tarn__json_real(&json, "token_ms", t->token_ms, 4);
    tarn__json_real(&json, "min_token_ms", t->min_token_ms, 4);
    tarn__json_real(&json, "tokens_per_second", f->token_rate, 2);
    tarn__json_real(&json, "weight_bytes_per_second", f->bytes_rate, 0);
    tarn__json_real(&json, "of_copy", f->bytes_rate / f->copy, 4);
    tarn__json_end(&json);
}

int tarn__bench_decode(const tarn__options *o)
{
    tarn__roofline roofline;
    result f = {.options = {.model = o->model,
                            .device = o->device,
                            .prompt = o->prompt_tokens,
                            .tokens = o->max_tokens,
                            .sequences = o->sequences,
                            .prefill_chunk = o->prefill_chunk,
                            .runs = o->runs,
                            .device_layers = o->gpu_layers}};
    /* quantized dtypes too */
    f.options.dtype = tarn_dtype_parse(o->weights);
    if (tarn_failed()) {
        tarn__print_error("bench decode");
        return TARN__MISUSED;
    }
    if (tarn__lm_options("bench decode", o, &f.options.kv_type) != TARN__DONE)
        return TARN__MISUSED;
    if (!tarn_decode_measure(&f.timing, &f.options)) {
        /* an unknown model or a size out of range, as opposed to a device that fails */
        bool misused = tarn_error_code() == TARN_ERROR_ARGUMENT;
        tarn__print_error("bench decode");
        return misused ? TARN__MISUSED : TARN__FAILED;
    }
    if (!tarn__roofline_measure(o->device, "f32", &roofline))
        return tarn__print_error("bench decode");
    /* only the copy of the roofline counts: decoding is bound by memory */
    f.copy = roofline.copy;
    f.prompt_rate = 1e3 * (double)(f.options.prompt * f.options.sequences) / f.timing.prompt_ms;
    f.token_rate = 1e3 * (double)f.options.sequences / f.timing.token_ms;
    f.bytes_rate = 1e3 * (double)f.timing.read_bytes / f.timing.token_ms;
    (o->json ? print_json : print_table)(&f);
    return TARN__DONE;
}
