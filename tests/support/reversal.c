/* reversal.c: words to reverse, as lines of text and as conversations, and models trained on them. */
#include "support/reversal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/model.h>
#include <tarn/optim.h>
#include <tarn/train.h>

#include "support/files.h"
#include "support/small_tokenizer.h"

enum { LETTERS = 8, LINES = 6000, CONTEXT = 64 };

/* ---- words ------------------------------------------------------------------------------------------------------- */

int reversal_letters(void)
{
    return getenv("TARN_TEST_LONG") ? REVERSAL_MAX_LETTERS : 3;
}

int reversal_words(void)
{
    int count = 1;
    for (int i = 0; i < reversal_letters(); i++)
        count *= LETTERS;
    return count;
}

void reversal_word(int number, char *word)
{
    static const char letters[] = "bcdfgjkm"; /* which the tokenizer has no merges of */
    for (int i = 0; i < reversal_letters(); i++, number /= LETTERS)
        word[i] = letters[number % LETTERS];
    word[reversal_letters()] = 0;
}

void reversal_of(const char *word, char *back)
{
    size_t length = strlen(word);
    for (size_t i = 0; i < length; i++)
        back[i] = word[length - 1 - i];
    back[length] = 0;
}

bool reversal_is_held_out(int number)
{
    uint32_t mixed = (uint32_t)number + 0x9e3779b9u; /* so that those words have nothing in common */
    mixed = (mixed ^ mixed >> 16) * 0x85ebca6bu;
    mixed = (mixed ^ mixed >> 13) * 0xc2b2ae35u;
    return (mixed ^ mixed >> 16) % 8 == 5;
}

const char *reversal_chats(const char *name, bool asked)
{
    size_t room = (size_t)reversal_words() * 120 + 1, used = 0;
    char *text = calloc(room, 1), word[REVERSAL_MAX_LETTERS + 1], back[REVERSAL_MAX_LETTERS + 1];
    for (int i = 0; i < reversal_words(); i++) {
        reversal_word(i, word);
        reversal_of(word, back);
        if (reversal_is_held_out(i) == asked)
            used += (size_t)snprintf(text + used, room - used,
                                     "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": "
                                     "\"assistant\", \"content\": \"%s\"}]}\n",
                                     word, back);
    }
    const char *path = write_text(name, text);
    free(text);
    return path;
}

static const char *write_lines(const char *name)
{
    uint64_t bits = 5;
    size_t room = (size_t)LINES * 24 + 1, used = 0;
    char *text = calloc(room, 1), word[REVERSAL_MAX_LETTERS + 1], back[REVERSAL_MAX_LETTERS + 1];
    for (int i = 0; i < LINES; i++) {
        int number = (int)random_below(&bits, reversal_words());
        reversal_word(number, word);
        reversal_of(word, back);
        if (!reversal_is_held_out(number))
            used += (size_t)snprintf(text + used, room - used, "%s <-> %s\n", word, back);
    }
    const char *path = write_text(name, text);
    free(text);
    return path;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Roles are one token each, so that a conversation is short: merges make them, letter by letter. */
static void write_tokenizer(const char *folder)
{
    static const char *const roles[] = {"user", "assistant"};
    char vocab_size[512] = "259", merges[512] = "\"merges\": [", added[400], name[300], part[32];
    int id = 263;
    for (int r = 0; r < 2; r++)
        for (size_t i = 2; i <= strlen(roles[r]); i++) {
            snprintf(part, sizeof(part), "%.*s", (int)i, roles[r]);
            snprintf(vocab_size + strlen(vocab_size), sizeof(vocab_size) - strlen(vocab_size), ", \"%s\": %d", part,
                     id++);
            snprintf(merges + strlen(merges), sizeof(merges) - strlen(merges), "\"%.*s %c\", ", (int)i - 1, roles[r],
                     roles[r][i - 1]);
        }
    assert_int_equal(id, REVERSAL_EOT - 1);
    snprintf(
        added, sizeof(added),
        "{\"added_tokens\": [{\"id\": %d, \"content\": \"<|im_start|>\", \"special\": true}, {\"id\": %d, \"content\": "
        "\"<|im_end|>\", \"special\": true}, ",
        id, id + 1);
    /* for which GGUF has no form */
    char *plain = replaced(small_tokenizer_text(), ", \"lstrip\": true, \"rstrip\": true", "");
    char *first = replaced(plain, "{\"added_tokens\": [", added),
         *second = replaced(first, "259}", strcat(vocab_size, "}"));
    char *third = replaced(second, "\"merges\": [", merges);
    snprintf(name, sizeof(name), "%s/tokenizer.json", folder);
    write_text(name, third);
    snprintf(name, sizeof(name), "%s/tokenizer_config.json", folder);
    write_text(name, "{\"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<|im_end|>\"}");
    free(plain);
    free(first);
    free(second);
    free(third);
}

/* Writes a model, which is freed, with the tokenizer. So few numbers learn sooner when they begin larger than those of
 * large models do. */
static const char *write_drawn(tarn_module *model, const char *name, double larger)
{
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *weight = tarn_requires_grad(tarn_module_parameter(model, i), false);
        if (tarn_rank(weight) == 2)
            tarn_copy(weight, tarn_mul(weight, tarn_scalar(larger)));
    }
    assert_true(tarn_model_write(model, scratch(name)));
    tarn_module_free(model);
    write_tokenizer(name);
    assert_ok();
    return scratch(name);
}

static tarn_module *make_llama(int64_t hidden_size, int64_t ffn_size)
{
    const tarn_llama_config config = {.vocab_size = REVERSAL_VOCAB,
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .hidden_size = hidden_size,
                                      .ffn_size = ffn_size,
                                      .tie_embeddings = true};
    return tarn_model_llama(&config, tarn_device_cpu(), 1);
}

const char *reversal_random(const char *name)
{
    return write_drawn(make_llama(64, 192), name, 5);
}

const char *reversal_random_gpt2(const char *name)
{
    const tarn_gpt2_config config = {.vocab_size = REVERSAL_VOCAB,
                                     .context = CONTEXT,
                                     .layers = 2,
                                     .heads = 4,
                                     .hidden_size = 64,
                                     .ffn_size = 192,
                                     .has_eos = true,
                                     .eos = REVERSAL_EOT};
    return write_drawn(tarn_model_gpt2(&config, tarn_device_cpu(), 1), name, 5);
}

/* Trains a drawn model on lines. */
static const char *train(const char *drawn, const char *name, int64_t steps, double lr)
{
    tarn_train_options o = {.context = 32,
                            .batch_size = 16,
                            .steps = steps,
                            .lr = lr,
                            .warmup = 20,
                            .clip_norm = 1,
                            .device = "cpu",
                            .eval_every = 1000,
                            .log_every = 100,
                            .seed = 3};
    snprintf(o.base, sizeof(o.base), "%s", drawn);
    snprintf(o.data, sizeof(o.data), "text:%s", write_lines("lines.txt"));
    snprintf(o.out, sizeof(o.out), "%s", scratch(name));
    tarn_trainer *trainer = tarn_trainer_new(&o);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    return scratch(name);
}

const char *reversal_base(const char *name)
{
    return train(reversal_random("drawn"), name, getenv("TARN_TEST_LONG") ? 1000 : 400, 0.004);
}

const char *reversal_wide_base(const char *name)
{
    return train(write_drawn(make_llama(256, 256), "drawn-wide", 2.5), name, getenv("TARN_TEST_LONG") ? 1000 : 250,
                 0.002);
}
