/* generate.h: text from language models, token by token: a decoder that remembers what it has seen, a sampler, and the loop around them. */
#ifndef TARN_GENERATE_H
#define TARN_GENERATE_H

#include <tarn/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- decoding -------------------------------------------------------------------------------------------------------------- */

/* A model and the keys and values of the tokens that it has seen, on the model's device. */
typedef struct tarn_decoder tarn_decoder;

/* Options of tarn_decoder_new(); zero is every field's default. */
typedef struct tarn_decoder_options {
    int64_t batch;   /* texts that are decoded at once, all of one length; default 1 */
    int64_t context; /* tokens that there is room for; default: the model's context, which is also the most */
} tarn_decoder_options;

/* A decoder for a model that tarn_model_gpt2() or tarn_model_open() made. Borrows the model, which must outlive it and stay on its device. `...` is a
 * const tarn_decoder_options *, or NULL. The caller owns the decoder. */
TARN_API tarn_decoder *tarn_decoder_new_sized(tarn_module *model, const tarn_decoder_options *options, size_t options_size);
#define tarn_decoder_new(model, ...) tarn_decoder_new_sized(model, __VA_ARGS__, sizeof(tarn_decoder_options))

/* Lets the model see the next tokens, i32 or i64 [batch, T], and gives the logits [batch, vocab] of what follows the last one: those of the
 * whole text so far. Nothing is recorded or dropped out. More tokens than there is room for are an error, and change nothing. */
TARN_API tarn_tensor *tarn_decoder_feed(tarn_decoder *decoder, tarn_tensor *tokens);

/* How many tokens the decoder remembers of each text, and how many there is room for; -1 on error. */
TARN_API int64_t tarn_decoder_length(const tarn_decoder *decoder);
TARN_API int64_t tarn_decoder_room(const tarn_decoder *decoder);

/* Forgets all but the first `length` tokens. */
TARN_API bool tarn_decoder_rewind(tarn_decoder *decoder, int64_t length);

/* Frees a decoder, not its model. NULL is allowed; works while an error is pending. */
TARN_API void tarn_decoder_free(tarn_decoder *decoder);

/* ---- sampling -------------------------------------------------------------------------------------------------------------- */

/* A way to choose tokens, and the random numbers it has left. */
typedef struct tarn_sampler tarn_sampler;

/* Options of tarn_sampler_new(); zero is every field's default. */
typedef struct tarn_sampler_options {
    double temperature; /* logits are divided by it, from 0.0001 to 100; 0: always the likeliest token, the first of equal ones */
    int64_t top_k;      /* only so many of the likeliest tokens; 0: all */
    double top_p;       /* only the likeliest tokens that together reach this probability, the one that reaches it included; 0: all */
    uint64_t seed;      /* the same seed chooses the same tokens from the same logits */
} tarn_sampler_options;

/* A sampler. `...` is a const tarn_sampler_options *, or NULL. The caller owns it. */
TARN_API tarn_sampler *tarn_sampler_new_sized(const tarn_sampler_options *options, size_t options_size);
#define tarn_sampler_new(...) tarn_sampler_new_sized(__VA_ARGS__, sizeof(tarn_sampler_options))

/* Chooses one token for each row of logits [batch, vocab], on their device: i64 [batch, 1], which tarn_decoder_feed() takes. -1 where a row holds
 * NaN, +infinity or no finite number, so that nobody has to wait to find out. The thread's own generator is not touched. */
TARN_API tarn_tensor *tarn_sampler_draw(tarn_sampler *sampler, tarn_tensor *logits);

/* Frees a sampler. NULL is allowed; works while an error is pending. */
TARN_API void tarn_sampler_free(tarn_sampler *sampler);

/* ---- all of it ------------------------------------------------------------------------------------------------------------- */

/* Sees a token as soon as it is known; false ends the text after it. */
typedef bool (*tarn_token_fn)(int32_t token, void *ctx);

/* Options of tarn_generate(); zero is every field's default. */
typedef struct tarn_generate_options {
    int64_t tokens;     /* to make at most; default: as many as the model's context has room for */
    double temperature; /* as of a sampler, and so are the next three */
    int64_t top_k;
    double top_p;
    uint64_t seed;
    const int32_t *stop; /* tokens that end the text, as the model's own end token does; they are not part of it. NULL: none */
    int stop_count;
    bool ignore_end;        /* go on after the model's own end token */
    tarn_token_fn on_token; /* may be NULL */
    void *ctx;              /* of on_token */
} tarn_generate_options;

/* Lets a model go on with a prompt of `count` tokens, at least one. `tokens` receives what follows (NULL: on_token sees it); it has room for
 * the most that can come: .tokens, or the model's context less the prompt. Returns how many came, -1 on error. A prompt and .tokens that do
 * not fit into the model's context together are an error: nothing is forgotten on the way. `...` is a const tarn_generate_options *, or NULL. */
TARN_API int64_t tarn_generate_sized(tarn_module *model, const int32_t *prompt, int64_t count, int32_t *tokens,
                                     const tarn_generate_options *options, size_t options_size);
#define tarn_generate(model, prompt, count, tokens, ...) \
    tarn_generate_sized(model, prompt, count, tokens, __VA_ARGS__, sizeof(tarn_generate_options))

#ifdef __cplusplus
}
#endif
#endif
