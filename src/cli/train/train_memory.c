/* train_memory.c: memory in `tarn train`: the lines of the plan, the error of a run that does not fit, and advice for
 * one that ran out of memory.
 *
 * The library names settings as its options are named (micro_batch=4); here they become flags. The numbers are the
 * library's estimates (plan_fit.c); none are computed here. */
#include "cli/train/train.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

/* "recompute=full micro_batch=4" as flags: "--recompute full --micro-batch 4"; returns `text`. */
static const char *flags_of(const char *settings, char text[128])
{
    size_t used = 0;
    bool is_start = true, in_name = true;
    for (const char *c = settings; *c && used < 120; c++) {
        if (is_start)
            used += (size_t)snprintf(text + used, 128 - used, "--");
        is_start = *c == ' ';
        in_name = is_start || (in_name && *c != '=');
        text[used++] = *c == '=' && !in_name ? ' ' : *c == '_' && in_name ? '-' : *c;
    }
    text[used] = 0;
    return text;
}

/* The settings that would fit, one per line, with their memory. */
static void print_fits(FILE *to, const tarn_train_plan *p, const char *indent)
{
    char text[128];
    for (int i = 0; i < p->fit_count; i++)
        fprintf(to, "%s  %-34s %10s\n", indent, flags_of(p->fits[i].settings, text),
                tarn__bytes_text(p->fits[i].memory_needed));
}

/* tarn__bytes_text() has rotating buffers, hence one call per value. */
void tarn__print_memory(FILE *to, const tarn_train_plan *p)
{
    fprintf(to, "  memory      about %s", tarn__bytes_text(p->memory_needed));
    fprintf(to, p->memory_free ? ", %s free\n" : "\n", tarn__bytes_text(p->memory_free));
    fprintf(to, "              %s of weights, ", tarn__bytes_text(p->weight_bytes));
    fprintf(to, "%s of gradients, ", tarn__bytes_text(p->gradient_bytes));
    fprintf(to, "%s of optimizer state, ", tarn__bytes_text(p->state_bytes));
    fprintf(to, "%s of activations\n", tarn__bytes_text(p->activation_bytes));
    /* 0 free means unknown: no verdict then */
    if (!p->memory_free || p->memory_needed <= p->memory_free)
        return;
    fprintf(to, "              %s fit: %s more than is free%s\n",
            p->memory_min > p->memory_free ? "does not" : "may not",
            tarn__bytes_text(p->memory_needed - p->memory_free), p->fit_count ? "; would fit:" : "");
    print_fits(to, p, "              ");
}

/* A line of the library's table; settings at its end become flags. */
static void print_line(const char *line, size_t length)
{
    static const char before[] = "would fit, with ";
    char own[256], text[128];
    snprintf(own, sizeof(own), "%.*s", (int)length, line);
    char *settings = strstr(own, before);
    if (settings) {
        *settings = 0;
        fprintf(stderr, "%s%s%s\n", own, before, flags_of(settings + strlen(before), text));
    } else {
        fprintf(stderr, "%s\n", own);
    }
}

/* The table is the part of the library's message after its first line (plan_fit.c). */
int tarn__print_memory_error(void)
{
    const char *sentence = tarn_error(), *table = strchr(sentence, '\n');
    /* other errors of memory have no table */
    if (!table || !strstr(sentence, "ignore_memory"))
        return tarn__print_error("train");
    fprintf(stderr, "tarn train: the run does not fit in memory; --ignore-memory starts it anyway\n");
    while (table) {
        const char *line = table + 1;
        table = strchr(line, '\n');
        print_line(line, table ? (size_t)(table - line) : strlen(line));
    }
    tarn_clear_error();
    return TARN__FAILED;
}

/* Advice: each option that lowers memory and that the run does not use yet. Halving an odd micro-batch gives 1, since
 * the batch must stay divisible by it. */
static void print_advice(const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    fprintf(stderr, "to reduce memory:");
    if (o->micro_batch > 1)
        fprintf(stderr, " --micro-batch %lld,", (long long)(o->micro_batch % 2 ? 1 : o->micro_batch / 2));
    if (tarn_train_option_applies("recompute", p->task) && strcmp(o->recompute, "full") != 0)
        fprintf(stderr, " --recompute full,");
    if (strcmp(o->precision, "bf16") != 0)
        fprintf(stderr, " --precision bf16,");
    if (o->batch_size > 1)
        fprintf(stderr, " a smaller --batch-size (%lld now),", (long long)o->batch_size);
    if (tarn_train_option_applies("context", p->task) && !o->base[0])
        fprintf(stderr, " a smaller --context (%lld now),", (long long)o->context);
    if (o->base[0] && !o->lora)
        fprintf(stderr, " --lora 8,");
    fprintf(stderr, " a smaller model%s\n", strcmp(p->device, "cpu") == 0 ? "" : ", or --device cpu");
}

int tarn__out_of_memory(const tarn_train_plan *p)
{
    int status = tarn__print_error("train");
    print_advice(p);
    return status;
}
