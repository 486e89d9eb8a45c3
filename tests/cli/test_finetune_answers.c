/* test_finetune_answers.c: fine-tuning end to end: a model that is tuned by the command answers in a chat. Half a
 * minute of training on 2 cores, so `make test` leaves this program to `make test-slow`. */
#include <tarn/text.h>

#include "support/command.h"
#include "support/files.h"
#include "support/reversal.h"
#include "tarn_features.h"

/* Asks for all held-out words, each in its own conversation. Returns the fraction of exactly correct answers. */
static double right_answers(const char *model)
{
    static char questions[1 << 16];
    char word[REVERSAL_MAX_LETTERS + 1], back[REVERSAL_MAX_LETTERS + 1];
    int asked = 0, right = 0;
    size_t used = 0;
    for (int i = 0; i < reversal_words(); i++)
        if (reversal_is_held_out(i)) {
            reversal_word(i, word);
            used += (size_t)snprintf(questions + used, sizeof(questions) - used, "%s\n/reset\n", word);
        }
    write_text("questions.txt", questions);
    expect_command(
        command_line("chat %s --device cpu --temperature 0 < %s 2>/dev/null", model, scratch("questions.txt")), 0, "");
    const char *at = command_output;
    for (int i = 0; i < reversal_words(); i++)
        if (reversal_is_held_out(i)) {
            reversal_word(i, word);
            reversal_of(word, back);
            asked++;
            right += at && strncmp(at, back, strlen(back)) == 0 && at[strlen(back)] == '\n';
            at = at && strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
        }
    return (double)right / asked;
}

/* The base model has no template; --template names one. */
static void ask_before(const char *base)
{
    expect_command(command_line("chat %s --device cpu < /dev/null 2>&1", scratch(base)), 1, "no chat template");
    tarn_tokenizer *tokenizer = tarn_tokenizer_open(scratch(base));
    assert_true(tarn_tokenizer_set_chat(tokenizer, "chatml") && tarn_tokenizer_save(tokenizer, scratch(base)));
    tarn_tokenizer_free(tokenizer);
    double before = right_answers(scratch(base));
    print_message("answers that are right: before %.1f %%", 100 * before);
    assert_true(before < 0.05);
}

static bool is_long(void)
{
    return getenv("TARN_TEST_LONG") != NULL;
}

/* Fine-tunes a base model with the options; nearly all answers must then be correct. The folder is "tuned" + number. */
static void tune_and_ask(const char *base, int number, const char *name, const char *options, int steps)
{
    char trained[1200], asked[1200], folder[1200];
    snprintf(trained, sizeof(trained), "%s", reversal_chats("trained.jsonl", false));
    snprintf(asked, sizeof(asked), "%s", reversal_chats("asked.jsonl", true));
    snprintf(folder, sizeof(folder), "%s%d", scratch("tuned"), number);
    expect_command(
        command_line("train --model %s --data %s --val %s --template chatml %s --warmup 10 --clip-norm 1 --context "
                     "64 --batch-size "
                     "8 --steps %d --eval-every 1000 --device cpu --out %s",
                     scratch(base), trained, asked, options, steps, folder),
        0, "of them in the loss, in ");
    double after = right_answers(folder);
    print_message(", %s %.1f %%", name, 100 * after);
    if (!(after > 0.95))
        fail_msg("%s: %.1f %% are right", name, 100 * after);
}

/* A synthetic task (reversing words) is learned with all weights, LoRA, and QLoRA. TARN_TEST_LONG uses longer words. */
static void words_are_turned_in_a_chat_after_fine_tuning(void **state)
{
    (void)state;
    static const struct {
        const char *name, *options;
    } kinds[] = {{"all weights", "--lr 0.003"},
                 {"adapters", "--lora 16 --lr 0.005 --merge gguf"},
                 {"adapters beside q8_0", "--lora 16 --lr 0.005 --quantize q8_0"}};
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON || getenv("TARN_TEST_QUICK") || !getenv("TARN_COMMAND"))
        skip();
    reversal_base("turning");
    ask_before("turning");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        tune_and_ask("turning", (int)i, kinds[i].name, kinds[i].options, is_long() ? 800 : 200);
    double merged = right_answers(scratch("tuned1/merged.gguf"));
    print_message(", merged %.1f %%\n", 100 * merged);
    assert_true(merged > 0.95);
}

/* The same with rows of 256, the block size of q4_k. Not under sanitizers: minutes, and the test above covers them. */
static void words_are_turned_beside_blocks_of_256(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON || TARN__SANITIZE[0] || getenv("TARN_TEST_QUICK") ||
        !getenv("TARN_COMMAND"))
        skip();
    reversal_wide_base("turning-wide");
    ask_before("turning-wide");
    tune_and_ask("turning-wide", 3, "adapters beside q4_k", "--lora 16 --lr 0.003 --quantize q4_k",
                 is_long() ? 800 : 400);
    print_message("\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(words_are_turned_in_a_chat_after_fine_tuning),
        in_scope(words_are_turned_beside_blocks_of_256),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
