/* test_finetune_chat.c: fine-tuning on conversations: runs resume bitwise identical, micro-batches of answers of
 * different lengths are one batch, merged models are what adapters made, and GGUF files are bases. That models train
 * well so is in tests/cli/test_finetune_answers.c. */
#include <math.h>
#include <stdlib.h>
#include <tarn/convert.h>
#include <tarn/model.h>
#include <tarn/train.h>

#include "support/files.h"
#include "support/reversal.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static tarn_train_options tuning(const char *base, const char *folder, int64_t steps)
{
    tarn_train_options o = {.context = 64,
                            .batch_size = 8,
                            .steps = steps,
                            .clip_norm = 1,
                            .device = "cpu",
                            .eval_every = steps,
                            .log_every = 50,
                            .seed = 4,
                            .chat_template = "chatml"};
    snprintf(o.base, sizeof(o.base), "%s", base);
    snprintf(o.data, sizeof(o.data), "%s", reversal_chats("trained.jsonl", false));
    snprintf(o.val, sizeof(o.val), "%s", reversal_chats("asked.jsonl", true));
    snprintf(o.out, sizeof(o.out), "%s", scratch(folder));
    return o;
}

typedef struct story {
    tarn_trainer *trainer;
    int64_t stop_at; /* 0: never */
    double first_loss, last_loss;
    char text[64]; /* of the last sample */
} story;

static void listen(const tarn_train_report *report, void *ctx)
{
    story *s = ctx;
    if (report->kind == TARN_REPORT_TRAINING) {
        s->first_loss = s->first_loss > 0 ? s->first_loss : report->loss;
        s->last_loss = report->loss;
    } else if (report->kind == TARN_REPORT_SAMPLE) {
        snprintf(s->text, sizeof(s->text), "%s", report->text);
    }
    if (s->stop_at && report->step >= s->stop_at)
        tarn_trainer_stop(s->trainer);
}

static story run(tarn_trainer *trainer, int64_t stop_at)
{
    story s = {.trainer = trainer, .stop_at = stop_at};
    if (!trainer || !tarn_trainer_run(trainer, listen, &s, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    assert_ok();
    return s;
}

/* ---- conversations as data --------------------------------------------------------------------------------------- */

static void the_plan_counts_documents(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    tarn_train_plan plan;
    tarn_train_options o = tuning(reversal_random("planned"), "plan", 4);
    tarn_trainer *trainer = tarn_trainer_new(&o);
    assert_true(tarn_trainer_plan(trainer, &plan));
    assert_string_equal(plan.task, "chat");
    assert_int_equal(plan.training_documents + plan.validation_documents, reversal_words());
    assert_int_equal(plan.completion_tokens, plan.training_documents * (reversal_letters() + 1));
    assert_int_equal(plan.documents_truncated, 0);
    assert_true(plan.training_samples < plan.training_documents); /* several share a row */
    tarn_trainer_free(trainer);
}

static void a_stopped_run_on_conversations_resumes_bitwise_identically(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    char base[1200];
    snprintf(base, sizeof(base), "%s", reversal_random("gone-on"));
    tarn_train_options whole = tuning(base, "whole", 10), stopped = tuning(base, "stopped", 10);
    whole.lora = stopped.lora = 4;
    whole.lora_dropout = stopped.lora_dropout = 0.1;
    whole.micro_batch = stopped.micro_batch = 2;
    whole.eval_every = stopped.eval_every = 4;
    whole.log_every = stopped.log_every = 3;
    whole.eval_batches = stopped.eval_batches = 2;
    stopped.sample = 5;
    run(tarn_trainer_new(&whole), 0);
    run(tarn_trainer_new(&stopped), 3);
    run(tarn_trainer_resume(stopped.out, &(tarn_train_options){.workers = 2}), 7);
    story s = run(tarn_trainer_resume(stopped.out, NULL), 0);
    assert_true(s.last_loss > 0 && s.text[0]);
    assert_same_file(whole.out, stopped.out, "adapter_model.safetensors");
    assert_same_file(whole.out, stopped.out, "optimizer.safetensors");
    assert_same_file(whole.out, stopped.out, "best/adapter_model.safetensors");
    tarn_text_evaluation own, named;
    tarn_run *opened = tarn_run_open(stopped.out, CPU);
    assert_string_equal(tarn_chat_name(tarn_run_tokenizer(opened)), "chatml"); /* that the run was given */
    assert_true(tarn_run_evaluate_text(opened, NULL, 8, &own) &&
                tarn_run_evaluate_text(opened, stopped.val, 8, &named));
    assert_int_equal(own.tokens, named.tokens);
    assert_true(fabs(own.loss - named.loss) < 1e-6 * own.loss);
    tarn_run_close(opened);
    reversal_chats("trained.jsonl", true); /* other conversations under the same name */
    assert_null(tarn_trainer_resume(stopped.out, NULL));
    assert_error(TARN_ERROR_FORMAT, "is not the text that the run was started with");
}

/* Answers of 1 to 20 letters: a mean over micro-batches, each by itself, would be another loss and other gradients. */
static void micro_batches_of_answers_are_one_batch(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    char text[4096] = "", base[1200];
    for (int i = 0; i < 24; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "{\"prompt\": \"%c\", \"completion\": \"%.*s\"}\n",
                 'b' + i % 8, 1 + 19 * (i % 2), "bcdfgjkmbcdfgjkmbcdf");
    snprintf(base, sizeof(base), "%s", reversal_random("micro"));
    double loss[2][2];
    for (int k = 0; k < 2; k++) {
        tarn_train_options o = tuning(base, k ? "micro-1" : "micro-8", 3);
        snprintf(o.data, sizeof(o.data), "%s", write_text("answers.jsonl", text));
        o.val[0] = 0;
        o.context = 32;
        o.lr = 0.001;
        o.log_every = 1;
        o.micro_batch = k ? 1 : 8;
        story s = run(tarn_trainer_new(&o), 0);
        loss[k][0] = s.first_loss;
        loss[k][1] = s.last_loss;
    }
    for (int i = 0; i < 2; i++)
        if (!(fabs(loss[0][i] - loss[1][i]) < 1e-4 * loss[0][i]))
            fail_msg("losses of %g and %g", loss[0][i], loss[1][i]);
}

/* ---- merged ------------------------------------------------------------------------------------------------------ */

/* The loss of a model on the asked words. */
static double loss_of(const char *model)
{
    char data[1300];
    tarn_text_evaluation evaluation;
    tarn_run *opened = tarn_run_open(model, CPU);
    snprintf(data, sizeof(data), "text:%s", scratch("judged.txt"));
    if (!opened || !tarn_run_evaluate_text(opened, data, 8, &evaluation))
        fail_msg("%s: %s", model, tarn_error());
    tarn_run_close(opened);
    return evaluation.loss;
}

static void check_merged(bool is_gpt2)
{
    char base[1200], path[1300], gguf[1300];
    snprintf(base, sizeof(base), "%s",
             is_gpt2 ? reversal_random_gpt2("merged-base-gpt2") : reversal_random("merged-base"));
    write_text("judged.txt", "bcd <-> dcb\nfgj <-> jgf\nkmb <-> bmk\nbcd <-> dcb\nfgj <-> jgf\nkmb <-> bmk\n");
    tarn_train_options o = tuning(base, is_gpt2 ? "merging-gpt2" : "merging", 6);
    o.lora = 4;
    o.lr = 0.01;
    snprintf(o.merge, sizeof(o.merge), "folder");
    run(tarn_trainer_new(&o), 0);
    snprintf(path, sizeof(path), "%s/merged", o.out);
    double tuned = loss_of(o.out), plain = loss_of(base);
    assert_true(fabs(tuned - plain) > 1e-3);
    assert_true(fabs(loss_of(path) - tuned) < 1e-5 * tuned);
    run(tarn_trainer_resume(o.out, &(tarn_train_options){.merge = "gguf"}), 0);
    snprintf(gguf, sizeof(gguf), "%s/merged.gguf", o.out);
    assert_true(fabs(loss_of(gguf) - tuned) < 1e-5 * tuned);
    const tarn_convert_options again = {.replace = true};
    assert_true(tarn_model_convert(o.out, scratch("converted"), NULL, &again) &&
                fabs(loss_of(scratch("converted")) - tuned) < 1e-5 * tuned);
    assert_true(tarn_model_convert(o.out, scratch("converted.gguf"), NULL, &again) &&
                fabs(loss_of(scratch("converted.gguf")) - tuned) < 1e-5 * tuned);
}

static void merged_models_are_what_the_adapters_made(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    check_merged(false);
    check_merged(true);
}

/* A GGUF file of blocks is a base, too: head and all. One of elements can be trained as a whole. */
static void check_bases(bool is_gpt2)
{
    char base[1200];
    snprintf(base, sizeof(base), "%s", is_gpt2 ? reversal_random_gpt2("gguf-base-gpt2") : reversal_random("gguf-base"));
    assert_true(tarn_model_convert(base, scratch("blocks.gguf"), NULL,
                                   &(tarn_convert_options){.quantize = true, .type = TARN_Q8_0, .replace = true}));
    assert_true(tarn_model_convert(base, scratch("elements.gguf"), NULL, &(tarn_convert_options){.replace = true}));
    tarn_train_options o = tuning(scratch("blocks.gguf"), is_gpt2 ? "from-blocks-gpt2" : "from-blocks", 8);
    assert_null(tarn_trainer_new(&o));
    assert_error(TARN_ERROR_ARGUMENT, "has quantized weights ('");
    o.lora = 4;
    o.lr = 0.01;
    o.log_every = 2;
    tarn_train_options stopped = o;
    snprintf(stopped.out, sizeof(stopped.out), "%s",
             scratch(is_gpt2 ? "from-blocks-stopped-gpt2" : "from-blocks-stopped"));
    story s = run(tarn_trainer_new(&o), 0);
    assert_true(s.last_loss < s.first_loss);
    run(tarn_trainer_new(&stopped), 3);
    run(tarn_trainer_resume(stopped.out, NULL), 0);
    assert_same_file(o.out, stopped.out, "adapter_model.safetensors");
    snprintf(o.quantize, sizeof(o.quantize), "q8_0");
    snprintf(o.out, sizeof(o.out), "%s", scratch(is_gpt2 ? "twice-gpt2" : "twice"));
    assert_null(tarn_trainer_new(&o));
    assert_error(TARN_ERROR_ARGUMENT, "quantize applies to model folders");
    tarn_train_options whole = tuning(scratch("elements.gguf"), is_gpt2 ? "from-elements-gpt2" : "from-elements", 8);
    whole.lr = 0.003;
    whole.log_every = 2;
    s = run(tarn_trainer_new(&whole), 0);
    assert_true(s.last_loss < s.first_loss);
}

static void gguf_files_are_bases(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    check_bases(false);
    check_bases(true);
}

/* The one that adapters were trained with, not that of the file they are merged into. */
static void a_merged_file_has_the_template_of_its_adapters(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    char base[1200], merged[1300];
    snprintf(base, sizeof(base), "%s", reversal_random("of-another-template"));
    write_text("of-another-template/chat_template.jinja", "{{ 'another' }}");
    assert_true(tarn_model_convert(base, scratch("another.gguf"), NULL, &(tarn_convert_options){0}));
    tarn_train_options o = tuning(scratch("another.gguf"), "template", 2);
    o.lora = 2;
    snprintf(o.merge, sizeof(o.merge), "gguf");
    run(tarn_trainer_new(&o), 0);
    snprintf(merged, sizeof(merged), "%s/merged.gguf", o.out);
    tarn_tokenizer *before = tarn_tokenizer_open(scratch("another.gguf")), *after = tarn_tokenizer_open(merged);
    assert_ok();
    assert_string_equal(tarn_chat_name(before), "model");
    assert_string_equal(tarn_chat_name(after), "chatml");
    tarn_tokenizer_free(before);
    tarn_tokenizer_free(after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_plan_counts_documents),
        in_scope(a_stopped_run_on_conversations_resumes_bitwise_identically),
        in_scope(micro_batches_of_answers_are_one_batch),
        in_scope(merged_models_are_what_the_adapters_made),
        in_scope(gguf_files_are_bases),
        in_scope(a_merged_file_has_the_template_of_its_adapters),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
