/* train_plan.c: the plan of a run, printed before it starts: device, data, model, parameters, memory, optimizer, steps.
 *
 * The lines are written to memory first and then wrapped to the terminal's width under a hanging indent. Field names in
 * JSON are a stable interface: scripts read them. */
#define _XOPEN_SOURCE 700 /* open_memstream() */
#include "cli/train/train.h"

#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { INDENT = 14 }; /* columns before the text of a line such as "device" */

/* "3 × 32 × 32"; returns `text`. The sign takes two bytes in UTF-8. */
static const char *shape_text(tarn_shape shape, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < shape.rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? " × " : "", (long long)shape.size[i]);
    return text;
}

/* Chat datasets: documents are packed into rows, and only tokens under the loss mask are trained. */
static void print_chats(FILE *to, const tarn_train_plan *p)
{
    fprintf(to,
            "  data        %s: %lld training documents (%lld tokens, %lld of them in the loss, in %lld rows), %lld "
            "validation documents\n",
            tarn__escaped(p->options.data), (long long)p->training_documents, (long long)p->training_tokens,
            (long long)p->completion_tokens, (long long)p->training_samples, (long long)p->validation_documents);
    if (p->documents_truncated)
        fprintf(to, "              %lld documents were longer than the context and were truncated\n",
                (long long)p->documents_truncated);
}

/* What was found about the data, a line per sentence. Notes may have names of files and columns, which are not to be
 * trusted. */
static void print_notes(FILE *to, const char *notes)
{
    char line[1024];
    for (; *notes; notes += strcspn(notes, "\n"), notes += *notes == '\n') {
        snprintf(line, sizeof(line), "%.*s", (int)strcspn(notes, "\n"), notes);
        fprintf(to, "              %s\n", tarn__escaped(line));
    }
}

/* One line for the data; of a language model also one for its sizes, and one for those that were chosen by default. */
static void print_data(FILE *to, const tarn_train_plan *p)
{
    char shape[80];
    const tarn_train_options *o = &p->options;
    if (!p->training_tokens) {
        fprintf(to, "  data        %s: %lld training samples of %s, %lld validation samples", tarn__escaped(o->data),
                (long long)p->training_samples, shape_text(p->input, shape, sizeof(shape)),
                (long long)p->validation_samples);
        if (p->classes)
            fprintf(to, ", %lld classes", (long long)p->classes);
        fprintf(to, "\n");
        if (p->skipped_files)
            fprintf(to, "              unreadable files skipped: %lld\n", (long long)p->skipped_files);
        print_notes(to, p->notes);
        return;
    }
    if (p->training_documents)
        print_chats(to, p);
    else
        fprintf(to, "  data        %s: %lld training tokens, %lld validation tokens\n", tarn__escaped(o->data),
                (long long)p->training_tokens, (long long)p->validation_tokens);
    print_notes(to, p->notes);
    fprintf(to, "  model       %lld layers, %lld heads", (long long)o->layers, (long long)o->heads);
    if (o->kv_heads != o->heads)
        fprintf(to, " (%lld KV heads)", (long long)o->kv_heads);
    fprintf(to, ", hidden size %lld, context %lld, vocabulary %lld, FFN size %lld, dropout %g\n",
            (long long)o->hidden_size, (long long)o->context, (long long)p->classes, (long long)o->ffn_size,
            o->dropout);
    if (p->chosen[0])
        fprintf(to, "              chosen %s\n", p->chosen);
}

/* "NCCL 2.28.3"; "" on one rank. */
static const char *transport_of(const tarn_train_plan *p)
{
    return p->ranks > 1 ? tarn_comm_transport(p->options.comm) : "";
}

/* Steps that are left, from the first one of this process: a resumed run begins in the middle. */
static void print_steps(FILE *to, const tarn_train_plan *p)
{
    const tarn_train_options *o = &p->options;
    fprintf(to, "  steps       %lld to %lld, %lld %s%s per step, %lld step%s per epoch\n", (long long)p->first_step,
            (long long)p->steps, (long long)p->step_samples, p->sample_name, p->step_samples == 1 ? "" : "s",
            (long long)p->steps_in_epoch, p->steps_in_epoch == 1 ? "" : "s");
    if (o->micro_batch && o->micro_batch < p->step_samples)
        fprintf(to, "              gradient accumulation over micro-batches of %lld\n", (long long)o->micro_batch);
    if (p->captures)
        fprintf(to, "              captured as a graph\n");
    if (p->virtual_ranks > 1)
        fprintf(to, "  ranks       %d for %lld virtual ranks%s%s: bitwise identical on %s\n", p->ranks,
                (long long)p->virtual_ranks, p->ranks > 1 ? ", connected by " : "", transport_of(p),
                strcmp(o->reduce, "fast") == 0 ? "this number only: fast reduction, one sum per rank"
                : o->sync_batchnorm            ? "this number only: batchnorms have statistics of all ranks"
                                               : "any number that divides them");
    if (p->overlaps)
        fprintf(to, "              gradients are summed during the backward pass, in buckets of %g MiB\n",
                o->bucket_size);
    if (p->is_sharded)
        fprintf(to, "              ZeRO-1: optimizer state is divided among the ranks\n");
}

/* "learning rate 0.1, times 0.1 every 30 epochs" */
static void print_rate(FILE *to, const tarn_train_options *o)
{
    fprintf(to, "  optimizer   %s, learning rate %g, ", o->optimizer, o->lr);
    if (strcmp(o->schedule, "step") != 0)
        fprintf(to, "%s\n", o->schedule);
    else
        fprintf(to, "times %g every %lld %s\n", o->lr_gamma, (long long)(o->lr_step ? o->lr_step : o->lr_step_epochs),
                o->lr_step ? "steps" : "epochs");
}

/* The average of the weights over steps, w' = decay * w' + (1 - decay) * w. */
static void print_average(FILE *to, const tarn_train_options *o)
{
    if (o->ema > 0)
        fprintf(to, "  ema         decay %.9g; evaluations and the best weights are of the averaged weights\n", o->ema);
}

/* The base model of a fine-tuned run, and its adapters. Nothing for a run that trains all weights from scratch. */
static void print_base(FILE *to, const tarn_train_options *o)
{
    if (o->base[0])
        fprintf(to, "  weights     %s%s%s\n", tarn__escaped(o->base), o->quantize[0] ? ", linear layers as " : "",
                o->quantize);
    if (o->lora)
        fprintf(to, "  adapters    rank %lld, alpha %g, dropout %g, in %s\n", (long long)o->lora, o->lora_alpha,
                o->lora_dropout, o->lora_targets[0] ? o->lora_targets : "all linear layers but the head");
    if (o->lora_modules_to_save[0])
        fprintf(to, "  saved       %s, trained whole\n", o->lora_modules_to_save);
    if (o->add_tokens[0])
        fprintf(to, "  new tokens  %s\n", tarn__escaped(o->add_tokens));
}

/* "; chosen by auto (cuda, opencl missing)": backends that auto would have preferred; `tarn info` has the reasons. */
static void print_choice(FILE *to, tarn_device device)
{
    const char *backend, *before = " (";
    fprintf(to, "; chosen by auto");
    for (int b = 0; (backend = tarn_backend_name(b)) != NULL; b++)
        if (tarn_backend_missing(backend)[0] && tarn_backend_preferred(backend, device)) {
            fprintf(to, "%s%s", before, backend);
            before = ", ";
        }
    fprintf(to, "%s", before[0] == ',' ? " missing)" : "");
}

/* `to` is memory, or standard output without memory for it. The order is that of the questions before a long run:
 * where, on what, how large, does it fit, how it is trained, where it is written. */
static void print_lines(FILE *to, const tarn_train_plan *p, bool is_auto)
{
    const tarn_train_options *o = &p->options;
    tarn_device_info info = {.description = ""};
    tarn_device device = tarn_device_parse(p->device);
    tarn_device_query(device, &info);
    fprintf(to, "  device      %s, %s; %s", p->device, info.description[0] ? info.description : "unknown processor",
            o->precision);
    if (is_auto)
        print_choice(to, device);
    fprintf(to, "\n");
    print_data(to, p);
    print_base(to, o);
    if (o->finetune[0] && p->chosen[0])
        fprintf(to, "  weights     %s\n", tarn__escaped(p->chosen));
    fprintf(to, "  parameters  %lld trained, %lld frozen\n", (long long)p->trained, (long long)p->frozen);
    tarn__print_memory(to, p);
    print_rate(to, o);
    print_average(to, o);
    print_steps(to, p);
    fprintf(to, "  folder      %s\n", tarn__escaped(p->folder));
}

/* Flushed: the plan must be visible before the first step, which may take long. */
void tarn__train_plan_print(const tarn_train_plan *p, bool is_auto)
{
    char *text = NULL;
    size_t length;
    FILE *lines = open_memstream(&text, &length);
    tarn__heading("%s %s",
                  p->first_step                                  ? "resuming"
                  : p->options.base[0] || p->options.finetune[0] ? "fine-tuning"
                                                                 : "training",
                  p->options.model);
    if (lines) {
        print_lines(lines, p, is_auto);
        fclose(lines);
        tarn__print_wrapped(text, INDENT);
        free(text);
    } else {
        print_lines(stdout, p, is_auto);
    }
    fflush(stdout);
}

/* "fits": [{"settings": "micro_batch=4", "memory_needed": 123}]; only for a run that does not fit. */
static void print_fits_json(tarn__json *json, const tarn_train_plan *p)
{
    if (!p->fit_count)
        return;
    tarn__json_open(json, "fits", '[');
    for (int i = 0; i < p->fit_count; i++) {
        tarn__json_open(json, NULL, '{');
        tarn__json_string(json, "settings", p->fits[i].settings);
        tarn__json_int(json, "memory_needed", p->fits[i].memory_needed);
        tarn__json_close(json, '}');
    }
    tarn__json_close(json, ']');
}

/* Members that do not apply to the task are omitted. A number that is 0 because there is none would be read as a
 * result. */
void tarn__train_plan_print_json(const tarn_train_plan *p)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "event", "plan");
    tarn__json_string(&json, "model", p->options.model);
    tarn__json_string(&json, "data", p->options.data);
    tarn__json_string(&json, "device", p->device);
    tarn__json_string(&json, "precision", p->options.precision);
    tarn__json_shape(&json, "input", p->input);
    tarn__json_string(&json, "task", p->task);
    if (p->classes)
        tarn__json_int(&json, "classes", p->classes);
    tarn__json_int(&json, "training_samples", p->training_samples);
    tarn__json_int(&json, "validation_samples", p->validation_samples);
    if (p->skipped_files)
        tarn__json_int(&json, "skipped_files", p->skipped_files);
    if (p->training_tokens) {
        tarn__json_int(&json, "training_tokens", p->training_tokens);
        tarn__json_int(&json, "validation_tokens", p->validation_tokens);
    }
    if (p->notes[0])
        tarn__json_string(&json, "notes", p->notes);
    if (p->chosen[0])
        tarn__json_string(&json, "chosen", p->chosen);
    tarn__json_int(&json, "trained", p->trained);
    tarn__json_int(&json, "frozen", p->frozen);
    if (p->training_documents) {
        tarn__json_int(&json, "training_documents", p->training_documents);
        tarn__json_int(&json, "validation_documents", p->validation_documents);
        tarn__json_int(&json, "completion_tokens", p->completion_tokens);
        tarn__json_int(&json, "documents_truncated", p->documents_truncated);
    }
    if (p->options.base[0])
        tarn__json_string(&json, "base", p->options.base);
    if (p->options.lora)
        tarn__json_int(&json, "lora", p->options.lora);
    if (p->options.ema > 0)
        tarn__json_real(&json, "ema", p->options.ema, 9);
    tarn__json_int(&json, "weight_bytes", p->weight_bytes);
    tarn__json_int(&json, "gradient_bytes", p->gradient_bytes);
    tarn__json_int(&json, "state_bytes", p->state_bytes);
    tarn__json_int(&json, "activation_bytes", p->activation_bytes);
    tarn__json_int(&json, "memory_needed", p->memory_needed);
    tarn__json_int(&json, "memory_min", p->memory_min);
    tarn__json_int(&json, "memory_free", p->memory_free);
    print_fits_json(&json, p);
    tarn__json_int(&json, "first_step", p->first_step);
    tarn__json_int(&json, "steps", p->steps);
    tarn__json_int(&json, "steps_in_epoch", p->steps_in_epoch);
    tarn__json_bool(&json, "captures", p->captures);
    tarn__json_string(&json, "transport", transport_of(p));
    tarn__json_int(&json, "ranks", p->ranks);
    tarn__json_int(&json, "virtual_ranks", p->virtual_ranks);
    tarn__json_bool(&json, "zero", p->is_sharded);
    tarn__json_string(&json, "reduce", p->options.reduce);
    tarn__json_bool(&json, "overlap", p->overlaps);
    tarn__json_string(&json, "folder", p->folder);
    tarn__json_end(&json);
}
