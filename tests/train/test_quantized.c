/* test_quantized.c: a Llama of width 256, trained here on made sentences, then written with its weights in fewer bits:
 * what that does to its perplexity. */
#include <math.h>
#include <tarn/convert.h>
#include <tarn/model.h>
#include <tarn/text.h>
#include <tarn/train.h>

#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

enum { SENTENCES = 6000, JUDGED = 600, STEPS = 160 };

/* ---- a language -------------------------------------------------------------------------------------------------- */

static const char *word(uint64_t *bits, const char *const *words, int count)
{
    return words[random_below(bits, count)];
}

/* "the old captain saw a red ship near the harbour ." What follows what is random, but not everything follows
 * everything. */
static void add_sentence(uint64_t *bits, char *text, size_t room)
{
    static const char *const who[] = {"captain", "sailor", "merchant", "queen", "child", "fisher", "judge", "baker"};
    static const char *const how[] = {"old", "young", "tired", "brave", "quiet", "clever"};
    static const char *const verb[] = {"saw", "sold", "lost", "found", "carried", "wanted", "remembered"};
    static const char *const what[] = {"ship", "lamp", "letter", "coat", "crown", "loaf", "net", "map"};
    static const char *const like[] = {"red", "broken", "heavy", "golden", "small"};
    static const char *const where[] = {"harbour", "market", "forest", "bridge", "tower", "river"};
    size_t used = strlen(text);
    /* everybody has three things to do with */
    int64_t subject = random_below(bits, 8), thing = (subject + random_below(bits, 3)) % 8;
    snprintf(text + used, room - used, "the %s %s %s a %s %s near the %s .\n", word(bits, how, 6), who[subject],
             word(bits, verb, 7), word(bits, like, 5), what[thing], word(bits, where, 6));
}

static const char *write_sentences(const char *name, uint64_t seed, int count, char *path)
{
    uint64_t bits = seed;
    size_t room = (size_t)count * 80 + 1;
    char *text = calloc(room, 1), *end = text;
    assert_non_null(text);
    for (int i = 0; i < count; i++) {
        add_sentence(&bits, end, room - (size_t)(end - text));
        end += strlen(end);
    }
    snprintf(path, 1200, "%s", write_text(name, text));
    free(text);
    return path;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static void train(const char *text)
{
    tarn_tokenizer *tokenizer = tarn_bpe_train_files(&text, 1, 384, NULL);
    assert_true(tarn_tokenizer_save(tokenizer, scratch("tokenizer")));
    tarn_tokenizer_free(tokenizer);
    tarn_train_options options = {.model = "llama",
                                  .layers = 2,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .hidden_size = 256,
                                  .ffn_size = 768,
                                  .context = 48,
                                  .batch_size = 8,
                                  .steps = STEPS,
                                  .lr = 0.002,
                                  .min_lr = 0.0002,
                                  .weight_decay = 0.1,
                                  .clip_norm = 1,
                                  .device = "cpu",
                                  .eval_every = STEPS,
                                  .log_every = STEPS,
                                  .seed = 3};
    snprintf(options.data, sizeof(options.data), "text:%s", text);
    snprintf(options.tokenizer, sizeof(options.tokenizer), "%s", scratch("tokenizer"));
    snprintf(options.out, sizeof(options.out), "%s", scratch("run"));
    tarn_trainer *trainer = tarn_trainer_new(&options);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
}

static double perplexity_of(const char *model, const char *text)
{
    char data[1300];
    tarn_text_evaluation evaluation;
    snprintf(data, sizeof(data), "text:%s", text);
    tarn_run *run = tarn_run_open(model, CPU);
    if (!run || !tarn_run_evaluate_text(run, data, 16, &evaluation))
        fail_msg("%s: %s", model, tarn_error());
    tarn_run_close(run);
    return evaluation.perplexity;
}

static void fewer_bits_cost_little(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON || getenv("TARN_TEST_QUICK"))
        skip();
    static const struct {
        tarn_dtype type;
        const char *name;
        double most; /* that the perplexity may rise by */
    } kinds[] = {{TARN_BF16, "bf16.gguf", 0.001},
                 {TARN_Q8_0, "q8_0.gguf", 0.001},
                 {TARN_Q6_K, "q6_k.gguf", 0.005},
                 {TARN_Q4_K, "q4_k.gguf", 0.02}};
    char text[1200], judged[1200], best[1200];
    train(write_sentences("text.txt", 7, SENTENCES, text));
    write_sentences("judged.txt", 8, JUDGED, judged);
    double plain = perplexity_of(scratch("run"), judged), bf16 = 0;
    print_message("perplexity: f32 %.5f", plain);
    assert_true(plain < 4); /* of 384 tokens; a sentence's words are nearly all there is to guess */
    snprintf(best, sizeof(best), "%s/best", scratch("run"));
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        char path[1200];
        snprintf(path, sizeof(path), "%s", scratch(kinds[i].name));
        assert_true(
            tarn_model_convert(best, path, NULL, &(tarn_convert_options){.quantize = true, .type = kinds[i].type}));
        double perplexity = perplexity_of(path, judged);
        bf16 = i == 0 ? perplexity : bf16;
        print_message(", %s %.5f", tarn_dtype_name(kinds[i].type), perplexity);
        if (!(fabs(perplexity / (i == 0 ? plain : bf16) - 1) <= kinds[i].most))
            fail_msg("%s: a perplexity of %.5f, of bf16 %.5f, of f32 %.5f", kinds[i].name, perplexity, bf16, plain);
    }
    print_message("\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(fewer_bits_cost_little),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
