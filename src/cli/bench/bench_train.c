/* bench_train.c: `tarn bench train`: time of a training step, its phases, and the fraction of the device's throughput
 * that it reaches.
 *
 * The library measures on random data (tarn_train_measure()), after warm-up steps; this file adds the roofline and
 * prints. A captured step is timed as a whole; its phases come from steps run operation by operation. */
#include <math.h>
#include <string.h>

#include "cli/bench/timer.h"

/* Tokens or images per second, at the median step. */
static double rate_of(const tarn_train_timing *t)
{
    return (double)(t->tokens ? t->tokens : t->samples) * 1e3 / t->step_ms;
}

/* FLOP/s; NaN if the FLOPs of the model are not known. */
static double speed_of(const tarn_train_timing *t)
{
    return t->flops > 0 ? t->flops * 1e3 / t->step_ms : (double)NAN;
}

static void print_heading(const tarn_train_timing *t)
{
    tarn_device_info info = {.description = ""};
    tarn_device_query(tarn_device_parse(t->options.device), &info);
    tarn__heading("a step of %s on %s, %s; %s", t->options.model, t->options.device, info.description,
                  t->options.precision);
    if (t->tokens)
        printf("  %lld sequences of %lld tokens, micro-batch %lld, vocabulary %lld, %lld parameters, recompute %s\n",
               (long long)t->samples, (long long)t->options.context, (long long)t->options.micro_batch,
               (long long)t->options.vocab_size, (long long)t->parameters, t->options.recompute);
    if (t->tokens && t->options.lora)
        printf("  LoRA adapters of rank %lld, %lld frozen parameters\n", (long long)t->options.lora,
               (long long)t->frozen);
    if (!t->tokens)
        printf("  %lld images, %lld parameters\n", (long long)t->samples, (long long)t->parameters);
}

static void print_table(const tarn_train_timing *t, const tarn__roofline *y)
{
    double speed = speed_of(t);
    print_heading(t);
    printf("  %-10s %9.3f ms, minimum %.3f; %.0f %s/s\n", "step", t->step_ms, t->min_step_ms, rate_of(t),
           t->tokens ? "tokens" : "images");
    if (t->is_captured)
        printf("  %-10s   captured and replayed as a graph; phases of an eager step:\n", "");
    printf("  %-10s %9.3f ms\n  %-10s %9.3f ms\n  %-10s %9.3f ms\n  %-10s %9.3f ms\n", "  batch", t->batch_ms,
           "  forward", t->forward_ms, "  backward", t->backward_ms, "  update", t->update_ms);
    printf("  %-10s %9.3f ms per step\n", "host", t->host_ms);
    printf("  %-10s %9.1f %% utilization\n", "device", 100 * t->utilization);
    if (!isnan(speed)) {
        printf("  %-10s %9.2f TFLOP/s, %.3f of a matmul of %lld rows", "speed", speed / 1e12, speed / y->matmul,
               (long long)y->rows);
        printf(isnan(y->peak) ? "\n" : ", MFU %.3f of a peak of %.0f\n", speed / y->peak, y->peak / 1e12);
    }
    tarn__print_memory_kinds(&t->memory);
}

/* MFU is missing (null) on devices whose peak is not known. */
static void print_json(const tarn_train_timing *t, const tarn__roofline *y)
{
    double speed = speed_of(t);
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "model", t->options.model);
    tarn__json_string(&json, "device", t->options.device);
    tarn__json_string(&json, "precision", t->options.precision);
    tarn__json_int(&json, "batch", t->samples);
    if (t->tokens) {
        tarn__json_int(&json, "micro_batch", t->options.micro_batch);
        tarn__json_int(&json, "context", t->options.context);
        tarn__json_string(&json, "recompute", t->options.recompute);
    }
    if (t->options.lora)
        tarn__json_int(&json, "lora", t->options.lora);
    tarn__json_int(&json, "parameters", t->parameters);
    tarn__json_int(&json, "frozen", t->frozen);
    tarn__json_bool(&json, "captured", t->is_captured);
    tarn__json_real(&json, "step_ms", t->step_ms, 4);
    tarn__json_real(&json, "min_step_ms", t->min_step_ms, 4);
    tarn__json_real(&json, t->tokens ? "tokens_per_second" : "images_per_second", rate_of(t), 1);
    tarn__json_real(&json, "batch_ms", t->batch_ms, 4);
    tarn__json_real(&json, "forward_ms", t->forward_ms, 4);
    tarn__json_real(&json, "backward_ms", t->backward_ms, 4);
    tarn__json_real(&json, "update_ms", t->update_ms, 4);
    tarn__json_real(&json, "host_ms", t->host_ms, 4);
    tarn__json_real(&json, "utilization", t->utilization, 4);
    tarn__json_real(&json, "tflops", speed / 1e12, 3);
    tarn__json_real(&json, "of_matmul", speed / y->matmul, 4);
    tarn__json_real(&json, "mfu", speed / y->peak, 4);
    tarn__json_memory_kinds(&json, &t->memory);
    tarn__json_end(&json);
}

/* Classifiers train without clipping. */
static bool is_classifier(const char *model)
{
    return strcmp(model, "mlp") == 0 || strcmp(model, "lenet") == 0 || strncmp(model, "resnet", 6) == 0;
}

int tarn__bench_train(const tarn__options *options)
{
    tarn_train_timing timing;
    tarn__roofline y;
    tarn_train_options train = options->train;
    train.batch_size = options->batch_size;
    if (!(train.clip_norm > 0) && !is_classifier(train.model))
        train.clip_norm = 1; /* language models are trained with clipping, which costs time */
    if (!tarn_train_measure(options->warmup, options->steps, &timing, &train)) {
        int misused = tarn_error_code() == TARN_ERROR_ARGUMENT;
        tarn__print_error("bench train");
        return misused ? TARN__MISUSED : TARN__FAILED;
    }
    if (!tarn__roofline_measure(tarn_device_parse(timing.options.device), timing.options.precision, &y))
        return tarn__print_error("bench train");
    if (options->json)
        print_json(&timing, &y);
    else
        print_table(&timing, &y);
    return TARN__DONE;
}
