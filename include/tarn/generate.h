/* generate.h: text from language models, token by token: a decoder that remembers what it has seen, samplers, and
 * writers that put them together. */
#ifndef TARN_GENERATE_H
#define TARN_GENERATE_H

#include <tarn/model.h>
#include <tarn/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* A model and the keys and values of the tokens that it has seen in one sequence or several, on the model's device. */
typedef struct tarn_decoder tarn_decoder;

/* How keys and values are stored. */
typedef enum tarn_kv_type {
    TARN_KV_MODEL = 0, /* in the model's dtype */
    TARN_KV_F32,
    TARN_KV_BF16,
    TARN_KV_F16,
    TARN_KV_Q8_0 /* in 8 bits, with a scale of 16 bits for each 32 numbers of a head's row, as blocks of Q8_0 have it:
                    an error of at most 0.45 % of the largest of these */
} tarn_kv_type;

/* "model", "f32", "bf16", "f16" or "q8_0", and back; what is none of them is an error. */
TARN_API const char *tarn_kv_type_name(tarn_kv_type kv_type);
TARN_API bool tarn_kv_type_parse(const char *text, tarn_kv_type *kv_type);

/* Options of tarn_decoder_new(); zero is every field's default. */
typedef struct tarn_decoder_options {
    int64_t batch;   /* sequences that are decoded at once, each with its own length; default 1 */
    int64_t context; /* tokens that there is room for in each; default: the model's context, which is also the most */
    tarn_kv_type kv_type; /* how keys and values are stored */
    /* tokens of a prompt that are computed at a time: more are faster and take more memory; default 512 */
    int64_t prefill_chunk;
    /* one token at a time, even where the device can record the step of a token and repeat it: while another thread
     * uses the device */
    bool no_capture;
} tarn_decoder_options;

/* A decoder for a language model, such as tarn_model_gpt2() and tarn_model_open() make. Borrows the model, which must
 * outlive it and stay on its device. Where there is no memory for the context the error says how much is missing and
 * what would fit. `...` is a const tarn_decoder_options *, or NULL. The caller owns the decoder. */
TARN_API tarn_decoder *tarn_decoder_new_sized(tarn_module *model, const tarn_decoder_options *options,
                                              size_t options_size);
#define tarn_decoder_new(model, ...) tarn_decoder_new_sized(model, __VA_ARGS__, sizeof(tarn_decoder_options))

/* Lets the model see the next tokens, i32 or i64 [batch, T], of every sequence, and gives the logits [batch, vocab] of
 * what follows the last ones: those of the whole texts so far. Nothing is recorded or dropped out. More tokens than a
 * sequence has room for are an error, and change nothing. */
TARN_API tarn_tensor *tarn_decoder_feed(tarn_decoder *decoder, tarn_tensor *tokens);

/* The same for one sequence: tokens [1, T], logits [1, vocab]. The others stay as they are. */
TARN_API tarn_tensor *tarn_decoder_feed_one(tarn_decoder *decoder, int64_t sequence, tarn_tensor *tokens);

/* How many tokens the decoder remembers of the longest sequence or of one, and how many there is room for in each; -1
 * on error. */
TARN_API int64_t tarn_decoder_length(const tarn_decoder *decoder);
TARN_API int64_t tarn_decoder_length_of(const tarn_decoder *decoder, int64_t sequence);
TARN_API int64_t tarn_decoder_capacity(const tarn_decoder *decoder);

/* Forgets all but the first `length` tokens, of every sequence or of one. */
TARN_API bool tarn_decoder_rewind(tarn_decoder *decoder, int64_t length);
TARN_API bool tarn_decoder_rewind_one(tarn_decoder *decoder, int64_t sequence, int64_t length);

/* Frees a decoder, not its model. NULL is allowed; works while an error is pending. */
TARN_API void tarn_decoder_free(tarn_decoder *decoder);

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

/* A way to choose tokens, and the random numbers it has left. */
typedef struct tarn_sampler tarn_sampler;

/* Options of tarn_sampler_new(); zero is every field's default. They act in this order, which is that of transformers:
 * repetition penalty, temperature, top_k, top_p, min_p; each sees what the ones before it have left. */
typedef struct tarn_sampler_options {
    /* logits are divided by it, from 0.0001 to 100; 0: always the likeliest token, the first of equal ones */
    double temperature;
    int64_t top_k; /* only so many of the likeliest tokens, the first of equal ones; 0: all */
    /* only the likeliest tokens that together reach this probability, the one that reaches it included; 0: all */
    double top_p;
    uint64_t seed; /* the same seed chooses the same tokens from the same logits */
    double min_p;  /* only tokens at least this many times as likely as the likeliest, from 0 to 1; 0: all */
    /* logits of tokens that were seen are divided by it where positive, else multiplied, from 0.01 to 100; 0: 1, none
     */
    double repeat_penalty;
    int64_t repeat_last_n; /* how many of the last tokens count as seen; 0: all */
} tarn_sampler_options;

/* A sampler. `...` is a const tarn_sampler_options *, or NULL. The caller owns it. */
TARN_API tarn_sampler *tarn_sampler_new_sized(const tarn_sampler_options *options, size_t options_size);
#define tarn_sampler_new(...) tarn_sampler_new_sized(__VA_ARGS__, sizeof(tarn_sampler_options))

/* Tells a sampler the tokens of a text, i32 or i64 [batch, T], for the repetition penalty; those that it draws it knows
 * itself. */
TARN_API bool tarn_sampler_accept(tarn_sampler *sampler, tarn_tensor *tokens);

/* Forgets the tokens that were seen, not where the random numbers stand. */
TARN_API bool tarn_sampler_reset(tarn_sampler *sampler);

/* Chooses one token for each row of logits [batch, vocab], on their device: i64 [batch, 1], which tarn_decoder_feed()
 * takes. -1 where a row holds NaN, +infinity or no finite number, so that nobody has to wait to find out. The thread's
 * own generator is not touched. */
TARN_API tarn_tensor *tarn_sampler_sample(tarn_sampler *sampler, tarn_tensor *logits);

/* Logarithms of probabilities, as the logits [batch, vocab] have them before a sampler changes them: f64 [batch, 1 + 2
 * · top], on their device. In each row first that of the token, i32 or i64 [batch, 1], then the `top` likeliest tokens,
 * the likeliest first, then theirs. */
TARN_API tarn_tensor *tarn_token_logprobs(tarn_tensor *logits, tarn_tensor *tokens, int64_t top);

/* Frees a sampler. NULL is allowed; works while an error is pending. */
TARN_API void tarn_sampler_free(tarn_sampler *sampler);

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Sees a token as soon as it is known; false ends the text after it. */
typedef bool (*tarn_token_fn)(int32_t token, void *ctx);

/* How a text goes on; zero is every field's default. */
typedef struct tarn_generate_options {
    int64_t tokens;     /* to make at most; default: as many as there is room for */
    double temperature; /* as of a sampler, and so are the next three */
    int64_t top_k;
    double top_p;
    uint64_t seed;
    /* tokens that end the text, as the model's own end token does; they are not part of it. NULL: none */
    const int32_t *stop;
    int stop_count;
    bool ignore_eos;        /* go on after the model's own end token */
    tarn_token_fn on_token; /* of tarn_generate(); may be NULL */
    void *ctx;              /* of on_token */
    double min_p;           /* as of a sampler, and so are the next two */
    double repeat_penalty;
    int64_t repeat_last_n;
    /* of a writer with a tokenizer: texts that end it; they are not part of it. NULL: none */
    const char *const *stop_strings;
    int stop_string_count;
    bool logprobs;    /* of a writer: pieces have the logarithm of their token's probability */
    int top_logprobs; /* and so many of the likeliest tokens, up to 100 */
    bool no_capture;  /* of tarn_generate(): as of a decoder */
    /* past the context, and with a prompt that is longer, the beginning of the text and its last half of a context
     * stay, and are computed again; default: an error */
    bool slide;
    /* with .slide: tokens at the beginning that stay, at most half of the context; default: BOS, where the text begins
     * with it */
    int64_t keep;
} tarn_generate_options;

/* Lets a model go on with a prompt of `count` tokens, at least one. `tokens` receives what follows (NULL: on_token sees
 * it); it has room for the most that can come: .tokens, or the model's context less the prompt. Returns how many came,
 * -1 on error. A prompt and .tokens that do not fit into the model's context together are an error, but with .slide.
 * `...` is a const tarn_generate_options *, or NULL. */
TARN_API int64_t tarn_generate_sized(tarn_module *model, const int32_t *prompt, int64_t count, int32_t *tokens,
                                     const tarn_generate_options *options, size_t options_size);
#define tarn_generate(model, prompt, count, tokens, ...) \
    tarn_generate_sized(model, prompt, count, tokens, __VA_ARGS__, sizeof(tarn_generate_options))

/* A model, its tokenizer, and one text or several that it writes at once, piece by piece. */
typedef struct tarn_generator tarn_generator;

/* Options of writers; zero is every field's default. */
typedef struct tarn_generator_options {
    int64_t sequences; /* texts that are written at once; default 1 */
    int64_t context;   /* as of a decoder, and so are the next two */
    tarn_kv_type kv_type;
    int64_t prefill_chunk;
    tarn_dtype dtype;      /* of tarn_generator_open(): as tarn_model_open() has it */
    bool no_capture;       /* as of a decoder */
    int64_t device_layers; /* of tarn_generator_open(): as tarn_model_open() has it, and so is the next */
    bool as_stored;
} tarn_generator_options;

/* A writer. Borrows the model and the tokenizer, which must outlive it; the tokenizer may be NULL: then there are
 * tokens only. `...` is a const tarn_generator_options *, or NULL. The caller owns the writer. */
TARN_API tarn_generator *tarn_generator_new_sized(tarn_module *model, const tarn_tokenizer *tokenizer,
                                                  const tarn_generator_options *options, size_t options_size);
#define tarn_generator_new(model, tokenizer, ...) \
    tarn_generator_new_sized(model, tokenizer, __VA_ARGS__, sizeof(tarn_generator_options))

/* The same with a model and a tokenizer of its own, from a model's folder or a GGUF file: see tarn_model_open() and
 * tarn_tokenizer_open(). */
TARN_API tarn_generator *tarn_generator_open_sized(const char *path, tarn_device device,
                                                   const tarn_generator_options *options, size_t options_size);
#define tarn_generator_open(path, device, ...) \
    tarn_generator_open_sized(path, device, __VA_ARGS__, sizeof(tarn_generator_options))

/* What a writer works with. Borrowed from it; NULL is an error, but for a tokenizer that is not there. */
TARN_API tarn_module *tarn_generator_model(const tarn_generator *writer);
TARN_API const tarn_tokenizer *tarn_generator_tokenizer(const tarn_generator *writer);

/* Sets one sequence's whole text so far, from its beginning, and how it goes on. What it has in common with the text
 * that the writer remembers of this sequence is not computed again: a conversation that grows costs its last turn. At
 * least one token, and room for one more (or .slide), or it is an error that changes nothing. Texts of the options are
 * copied. `...` is a const tarn_generate_options *, or NULL. */
TARN_API bool tarn_generator_prompt_sized(tarn_generator *writer, int64_t sequence, const int32_t *tokens,
                                          int64_t count, const tarn_generate_options *options, size_t options_size);
#define tarn_generator_prompt(writer, sequence, tokens, count, ...) \
    tarn_generator_prompt_sized(writer, sequence, tokens, count, __VA_ARGS__, sizeof(tarn_generate_options))

/* The same from text: special tokens in it count, and what the tokenizer's file puts around a text is added. */
TARN_API bool tarn_generator_prompt_text_sized(tarn_generator *writer, int64_t sequence, const char *text,
                                               size_t length, const tarn_generate_options *options,
                                               size_t options_size);
#define tarn_generator_prompt_text(writer, sequence, text, length, ...) \
    tarn_generator_prompt_text_sized(writer, sequence, text, length, __VA_ARGS__, sizeof(tarn_generate_options))

/* Why a text ended. */
typedef enum tarn_finish_reason {
    TARN_FINISH_NONE = 0, /* it goes on */
    TARN_FINISH_TOKEN,    /* the model's end token, or one of .stop, came */
    TARN_FINISH_STRING,   /* one of .stop_texts came */
    TARN_FINISH_LENGTH    /* .tokens were made, or the context is full and does not slide */
} tarn_finish_reason;

/* A token and how likely it was. */
typedef struct tarn_candidate {
    int32_t token;
    double logprob;
} tarn_candidate;

/* What came next. */
typedef struct tarn_output {
    int64_t sequence;
    int32_t token; /* -1: none; the text has ended */
    /* whole characters that are certain now, perhaps none; borrowed until the writer is used again. NULL without a
     * tokenizer */
    const char *text;
    size_t length; /* bytes of it */
    tarn_finish_reason end;
    double logprob;                     /* of the token, with .logprobs; else NaN */
    const tarn_candidate *top_logprobs; /* borrowed likewise */
    int top_logprob_count;
    /* with .slide: before this piece the context was full, or the prompt too long, and the middle of the text was
     * dropped */
    bool slid;
} tarn_output;

/* The next piece of any sequence; false when all have ended, or on an error. A text that may be the beginning of a stop
 * text, or of a character, is held back until it is certain; bytes that are no character come as U+FFFD: see
 * tarn_text_stream_push(). */
TARN_API bool tarn_generator_next_sized(tarn_generator *writer, tarn_output *piece, size_t piece_size);
#define tarn_generator_next(writer, piece) tarn_generator_next_sized(writer, piece, sizeof(tarn_output))

/* The tokens of a sequence so far, prompt and what was written, and how many; with .slide those that are in its window;
 * borrowed until the writer is used again. NULL on error. */
TARN_API const int32_t *tarn_generator_tokens(const tarn_generator *writer, int64_t sequence, int64_t *count);

/* Ends a sequence where it is; what it has so far stays. */
TARN_API bool tarn_generator_stop(tarn_generator *writer, int64_t sequence);

/* Frees a writer. NULL is allowed; works while an error is pending. */
TARN_API void tarn_generator_free(tarn_generator *writer);

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* What to measure; zero is the default of all but the first. */
typedef struct tarn_decode_options {
    const char *model; /* the name of a size: "gpt2-124m", "llama-1b" …, as tarn train has them */
    /* of the weights; with blocks, matrices are blocks, and all else is f32 on the CPU, bf16 elsewhere; default f32 */
    tarn_dtype dtype;
    tarn_device device; /* default: the CPU */
    int64_t prompt;     /* tokens; default 512 */
    int64_t tokens;     /* that are decoded after it; default 64 */
    int64_t sequences;  /* at once; default 1 */
    tarn_kv_type kv_type;
    int64_t prefill_chunk;               /* of the prompt; default: all of it */
    int64_t runs;                        /* of which the median counts; default 3 */
    int64_t vocab, layers, heads, width; /* other sizes than those of the name */
    int64_t device_layers;               /* blocks that lie on the device, as tarn_model_offload() has it; 0: all */
} tarn_decode_options;

/* How long it takes. Times are medians, in milliseconds. */
typedef struct tarn_decode_timing {
    int64_t parameters, weight_bytes; /* all of them */
    int64_t read_bytes;               /* weights that a token needs: all but a table of which rows are taken */
    int64_t cache_bytes, peak_bytes;  /* keys and values; all memory that was used on the device at once */
    double prompt_ms;                 /* the prompt, for all sequences */
    double first_ms;                  /* the same until the first token is known to the host */
    double token_ms, min_token_ms;    /* one token for all sequences, chosen greedily and read by the host */
} tarn_decode_timing;

/* Measures how fast a model of random weights reads a prompt and decodes. Sets the counters of tarn_stats() to zero.
 * `...` is a const tarn_decode_options *. */
TARN_API bool tarn_decode_measure_sized(tarn_decode_timing *timing, size_t timing_size,
                                        const tarn_decode_options *options, size_t options_size);
#define tarn_decode_measure(timing, ...) \
    tarn_decode_measure_sized(timing, sizeof(tarn_decode_timing), __VA_ARGS__, sizeof(tarn_decode_options))

#ifdef __cplusplus
}
#endif
#endif
