/* gpt.c: a small GPT learns to write like a text, character by character.
 *
 *   build/release/examples/gpt [TEXT.txt [STEPS [FOLDER]]]
 *
 * Without a text it learns the lines below. With a folder it leaves the model there, as transformers and `tarn
 * generate` open it. This is the loop that `tarn train --data text:TEXT.txt` makes comfortable. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/tarn.h>

#define BATCH 8
#define CONTEXT 32
#define WRITTEN (CONTEXT - 1)

static const char verse[] =
    "How many miles to Babylon?\nThree score miles and ten.\nCan I get there by candle-light?\nYes, and back again.\n"
    "If your heels are nimble and light,\nYou may get there by candle-light.\n";

typedef struct text {
    tarn_tokenizer *tokenizer;
    int32_t *ids;
    int64_t count;
} text;

/* ---- the text ---------------------------------------------------------------------------------------------------- */

/* The bytes of a file, which the caller frees; NULL when it cannot be read. */
static char *read_file(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    char *bytes = NULL;
    *length = 0;
    if (file && fseek(file, 0, SEEK_END) == 0) {
        long size = ftell(file);
        rewind(file);
        bytes = size > 0 ? malloc((size_t)size) : NULL;
        *length = bytes ? fread(bytes, 1, (size_t)size, file) : 0;
    }
    if (file)
        fclose(file);
    return bytes;
}

/* Its tokens are the characters that it has. */
static bool take_text(text *t, const char *bytes, size_t length)
{
    t->tokenizer = tarn_tokenizer_characters(bytes, length);
    t->ids = t->tokenizer ? tarn_tokenizer_encode(t->tokenizer, bytes, length, NULL, &t->count) : NULL;
    return t->ids != NULL;
}

/* Windows at random places: tokens (BATCH, CONTEXT), and for each the one that follows it. */
static void draw_batch(const text *t, tarn_random_state *random, tarn_device device, tarn_tensor **tokens,
                       tarn_tensor **targets)
{
    int64_t from[BATCH * CONTEXT], to[BATCH * CONTEXT];
    for (int row = 0; row < BATCH; row++) {
        int64_t place = tarn_random_below(random, t->count - CONTEXT);
        for (int i = 0; i < CONTEXT; i++) {
            from[row * CONTEXT + i] = t->ids[place + i];
            to[row * CONTEXT + i] = t->ids[place + i + 1];
        }
    }
    *tokens = tarn_from_i64(from, TARN_SHAPE(BATCH, CONTEXT), device);
    *targets = tarn_from_i64(to, TARN_SHAPE(BATCH, CONTEXT), device);
}

/* ---- learning and writing ---------------------------------------------------------------------------------------- */

/* One step; returns the loss. What it makes is freed when it returns. */
static double train_step(tarn_module *model, tarn_optimizer *adam, const text *t, tarn_random_state *random,
                         tarn_device device)
{
    tarn_tensor *tokens, *targets;
    tarn_scope *scope = tarn_scope_open();
    draw_batch(t, random, device, &tokens, &targets);
    tarn_tensor *loss = tarn_gpt2_loss(model, tokens, targets);
    tarn_backward(loss);
    tarn_optimizer_clip_norm(adam, 1);
    tarn_optimizer_step(adam);
    double value = tarn_item(loss);
    tarn_scope_close(scope);
    return value;
}

static double train(tarn_module *model, const text *t, int64_t steps, tarn_device device)
{
    double loss = 0;
    tarn_random_state random = {.key = 1};
    tarn_optimizer *adam = tarn_adamw(model, &(tarn_adamw_options){.lr = 3e-3f, .beta2 = 0.99f, .weight_decay = 0.1f});
    tarn_optimizer_set_schedule(
        adam, &(tarn_schedule){
                  .kind = TARN_SCHEDULE_COSINE, .warmup_steps = steps / 10, .total_steps = steps, .final_factor = 0.1});
    for (int64_t step = 1; step <= steps && !tarn_failed(); step++) {
        loss = train_step(model, adam, t, &random, device);
        if (step == 1 || step % 50 == 0 || step == steps)
            printf("step %4lld of %lld  loss %.3f\n", (long long)step, (long long)steps, loss);
    }
    tarn_optimizer_free(adam);
    return loss;
}

static void write_some(tarn_module *model, const text *t)
{
    int32_t made[WRITTEN];
    size_t length = 0;
    int64_t count = tarn_generate(model, t->ids, 1, made,
                                  &(tarn_generate_options){.max_tokens = WRITTEN, .temperature = 0.5, .seed = 1});
    char *words = count > 0 ? tarn_tokenizer_decode(t->tokenizer, made, count, &length) : NULL;
    if (words)
        printf("it writes: %s%s\n", tarn_tokenizer_piece(t->tokenizer, t->ids[0], NULL), words);
    tarn_tokenizer_release(words);
}

int main(int count, char **words)
{
    size_t length = sizeof(verse) - 1;
    char *file = count > 1 ? read_file(words[1], &length) : NULL;
    int64_t steps = count > 2 ? atoi(words[2]) : 300;
    text t = {0};
    tarn_module *model = NULL;
    tarn_device device = tarn_device_auto();
    if ((count > 1 && !file) || steps < 1) {
        fprintf(stderr, "%s: '%s' %s\n", words[0], file ? words[2] : words[1],
                file ? "is no number of steps" : "cannot be read");
        return 2;
    }
    if (take_text(&t, file ? file : verse, length) && t.count > CONTEXT)
        model = tarn_model_gpt2(&((tarn_gpt2_config){.vocab_size = tarn_tokenizer_count(t.tokenizer),
                                                     .context = CONTEXT,
                                                     .layers = 2,
                                                     .heads = 2,
                                                     .hidden_size = 64}),
                                device, 1);
    double loss = model ? train(model, &t, steps, device) : 0;
    if (model && !tarn_failed())
        write_some(model, &t);
    if (model && count > 3 && tarn_tokenizer_save(t.tokenizer, words[3]) && tarn_model_write(model, words[3]))
        printf("the model is in %s: tarn generate %s\n", words[3], words[3]);
    if (tarn_failed() || !model)
        fprintf(stderr, "%s\n", tarn_failed() ? tarn_error() : "the text is too short");
    bool has_converged = model && !tarn_failed() && (count > 1 || loss < 1);
    tarn_module_free(model);
    tarn_tokenizer_release(t.ids);
    tarn_tokenizer_free(t.tokenizer);
    free(file);
    return !has_converged;
}
