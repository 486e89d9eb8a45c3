/* generate.h: text generation: decoders with a KV cache, samplers, and generators that combine both with a
 * tokenizer. */
#ifndef TARN_GENERATE_H
#define TARN_GENERATE_H

#include <tarn/grammar.h>
#include <tarn/model.h>
#include <tarn/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* A language model with a KV cache for one or several sequences, on the model's device. */
typedef struct tarn_decoder tarn_decoder;

/* Storage type of the KV cache. */
typedef enum tarn_kv_type {
    TARN_KV_MODEL = 0, /* the model's dtype */
    TARN_KV_F32,
    TARN_KV_BF16,
    TARN_KV_F16,
    /* 8 bits, with an f16 scale per 32 elements of a head's row, as in Q8_0 blocks: an error of at most 0.45 % of
     * the largest of these */
    TARN_KV_Q8_0
} tarn_kv_type;

/* "model", "f32", "bf16", "f16" or "q8_0", and back; any other name is an error. */
TARN_API const char *tarn_kv_type_name(tarn_kv_type kv_type);
TARN_API bool tarn_kv_type_parse(const char *text, tarn_kv_type *kv_type);

/* Options of tarn_decoder_new(); zero is every field's default. */
typedef struct tarn_decoder_options {
    int64_t batch;        /* sequences decoded at once, each with its own length; default 1 */
    int64_t context;      /* capacity in tokens per sequence; default and maximum: the model's context */
    tarn_kv_type kv_type; /* storage type of the KV cache */
    /* prompt tokens per forward pass: larger is faster and takes more memory; default 512 */
    int64_t prefill_chunk;
    /* do not capture the decode step as a graph: needed while another thread uses the device */
    bool no_capture;
} tarn_decoder_options;

/* A decoder of a language model, such as tarn_model_gpt2() and tarn_model_open() return. Borrows the model, which
 * must outlive it and stay on its device. If the KV cache does not fit, the error says how much memory is missing
 * and what would fit. `...` is a const tarn_decoder_options *, or NULL. The caller owns the decoder. */
TARN_API tarn_decoder *tarn_decoder_new_sized(tarn_module *model, const tarn_decoder_options *options,
                                              size_t options_size);
#define tarn_decoder_new(model, ...) tarn_decoder_new_sized(model, __VA_ARGS__, sizeof(tarn_decoder_options))

/* Appends tokens, i32 or i64 [batch, T], to every sequence and returns the logits [batch, vocab_size] after the last
 * ones. No tape, no dropout. More tokens than the capacity are an error, and change nothing. Keys stay as they are when
 * a sequence grows past the length up to which longrope has its short factors; a generator computes Phi-3's anew. */
TARN_API tarn_tensor *tarn_decoder_feed(tarn_decoder *decoder, tarn_tensor *tokens);

/* The same for one sequence: tokens [1, T], logits [1, vocab_size]. The others stay unchanged. */
TARN_API tarn_tensor *tarn_decoder_feed_one(tarn_decoder *decoder, int64_t sequence, tarn_tensor *tokens);

/* Tokens in the cache of the longest sequence or of one, and capacity of each; -1 on error. */
TARN_API int64_t tarn_decoder_length(const tarn_decoder *decoder);
TARN_API int64_t tarn_decoder_length_of(const tarn_decoder *decoder, int64_t sequence);
TARN_API int64_t tarn_decoder_capacity(const tarn_decoder *decoder);

/* Truncates every sequence, or one, to its first `length` tokens. */
TARN_API bool tarn_decoder_rewind(tarn_decoder *decoder, int64_t length);
TARN_API bool tarn_decoder_rewind_one(tarn_decoder *decoder, int64_t sequence, int64_t length);

/* Frees a decoder, not its model. NULL is allowed; works while an error is pending. */
TARN_API void tarn_decoder_free(tarn_decoder *decoder);

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

/* A sampler with its random state. */
typedef struct tarn_sampler tarn_sampler;

/* A value that is added to the logit of a token. */
typedef struct tarn_logit_bias {
    int32_t token;
    double bias;
} tarn_logit_bias;

/* Options of tarn_sampler_new(); zero is every field's default. They apply in this order: logit bias, repetition
 * penalty, frequency and presence penalty, temperature, top_k, top_p, min_p. */
typedef struct tarn_sampler_options {
    /* sampling temperature, from 0.0001 to 100; 0: greedy (argmax, the first of equal ones) */
    double temperature;
    int64_t top_k; /* keep the k most likely tokens, the first of equal ones; 0: all */
    /* keep the most likely tokens up to this cumulative probability, inclusive; 0: all */
    double top_p;
    uint64_t seed; /* the same seed samples the same tokens from the same logits */
    /* keep tokens with at least this fraction of the maximum probability, from 0 to 1; 0: all */
    double min_p;
    /* repetition penalty: divides positive logits of previous tokens, multiplies negative ones; from 0.01 to 100; 0:
     * 1, none */
    double repeat_penalty;
    int64_t repeat_last_n; /* number of previous tokens that are penalized; 0: all */
    /* OpenAI's penalties of tokens that were sampled before, not of those in the prompt, from -100 to 100: subtracted
     * from the logit, once per occurrence and once for all of them */
    double frequency_penalty, presence_penalty;
    /* added to the logits of these tokens, from -100 to 100 each; those of the same token add up. Copied. NULL: none */
    const tarn_logit_bias *logit_bias;
    int logit_bias_count;
} tarn_sampler_options;

/* A sampler. `...` is a const tarn_sampler_options *, or NULL. The caller owns it. */
TARN_API tarn_sampler *tarn_sampler_new_sized(const tarn_sampler_options *options, size_t options_size);
#define tarn_sampler_new(...) tarn_sampler_new_sized(__VA_ARGS__, sizeof(tarn_sampler_options))

/* Adds tokens, i32 or i64 [batch, T], to the history of the repetition penalty; sampled ones are added
 * automatically. */
TARN_API bool tarn_sampler_accept(tarn_sampler *sampler, tarn_tensor *tokens);

/* Clears the history; the random state stays. */
TARN_API bool tarn_sampler_reset(tarn_sampler *sampler);

/* Masks the logits of the next call of tarn_sampler_sample(), before all other options: one row of bits per sequence,
 * as of tarn_matcher_mask(), `words` each, which must be TARN_MASK_WORDS(vocab_size). Tokens whose bit is 0 are never
 * sampled. The masks are copied; NULL removes those set before. */
TARN_API bool tarn_sampler_mask(tarn_sampler *sampler, const uint32_t *masks, int64_t rows, int64_t words);

/* Samples one token per row of logits [batch, vocab_size], on their device: i64 [batch, 1], as tarn_decoder_feed()
 * takes them. -1 for a row with NaN, +infinity or no finite value, so that the call need not wait to report it. The
 * thread's generator is not used. */
TARN_API tarn_tensor *tarn_sampler_sample(tarn_sampler *sampler, tarn_tensor *logits);

/* Log probabilities by the logits [batch, vocab_size], before any sampler option: f64 [batch, 1 + 2 · top], on their
 * device. Each row has that of the token, i32 or i64 [batch, 1], then the `top` most likely tokens, most likely
 * first, then their log probabilities. */
TARN_API tarn_tensor *tarn_token_logprobs(tarn_tensor *logits, tarn_tensor *tokens, int64_t top);

/* Frees a sampler. NULL is allowed; works while an error is pending. */
TARN_API void tarn_sampler_free(tarn_sampler *sampler);

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Speculative decoding: several tokens are proposed and computed at once, and those that would have been sampled anyway
 * are kept. The tokens are the same as without it; it is faster where proposals are right, and stops where they are
 * not. For one sequence, with the whole model on the CPU. */
typedef enum tarn_speculate {
    TARN_SPECULATE_OFF = 0,
    TARN_SPECULATE_NGRAM, /* prompt lookup: what followed the last tokens where they came before */
    TARN_SPECULATE_DRAFT  /* tokens of a smaller model: .draft of the generator or the engine */
} tarn_speculate;

/* Receives each token as soon as it is known; false stops the generation after it. */
typedef bool (*tarn_token_fn)(int32_t token, void *ctx);

/* Options of generation; zero is every field's default. */
typedef struct tarn_generate_options {
    int64_t max_tokens; /* maximum number of new tokens; default: up to the context length */
    double temperature; /* this and the next three: see tarn_sampler_options */
    int64_t top_k;
    double top_p;
    uint64_t seed;
    const int32_t *stop; /* tokens that end the sequence, like EOS; not part of the output. NULL: none */
    int stop_count;
    bool ignore_eos;        /* continue after EOS */
    tarn_token_fn on_token; /* of tarn_generate(); may be NULL */
    void *ctx;              /* of on_token */
    double min_p;           /* this and the next two: see tarn_sampler_options */
    double repeat_penalty;
    int64_t repeat_last_n;
    /* of a generator with a tokenizer: strings that end the sequence; not part of the output. NULL: none */
    const char *const *stop_strings;
    int stop_string_count;
    bool logprobs;    /* of a generator: return the log probability of each token */
    int top_logprobs; /* and of this many of the most likely tokens, up to 100 */
    bool no_capture;  /* of tarn_generate(): see tarn_decoder_options */
    /* beyond the context, also for a longer prompt, keep the beginning and the last half of a context and recompute
     * them; default: an error */
    bool slide;
    /* with .slide: tokens kept at the beginning, at most half of the context; default: BOS, if the sequence begins
     * with it */
    int64_t keep;
    /* the new tokens follow this grammar, compiled for the model's vocabulary; the sequence ends with the grammar.
     * NULL: none. The sequence keeps it; not with .ignore_eos */
    tarn_grammar *grammar;
    double frequency_penalty, presence_penalty; /* this and the next: see tarn_sampler_options */
    const tarn_logit_bias *logit_bias;
    int logit_bias_count;
    /* of an engine, as the next two: outputs for the prompt's tokens too; implies .logprobs. All of the prompt is then
     * computed, shared prefixes included */
    bool prompt_logprobs;
    bool prompt_only;    /* with .prompt_logprobs: no new tokens; the prompt may then fill the context */
    uint64_t cache_salt; /* below 2^63: pages are shared between requests of the same value only */
    /* of a generator with one sequence, of tarn_generate() and of an engine, as is the next: source of proposals */
    tarn_speculate speculate;
    int64_t draft_tokens; /* with .speculate: maximum tokens per proposal, from 1 to 7; default 7 */
    int64_t adapter;      /* of an engine: number of tarn_engine_add_adapter(); 0: the model alone */
} tarn_generate_options;

/* Generates from a prompt of `count` tokens, at least one. `tokens` receives the new tokens (NULL: on_token receives
 * them); it has capacity for .max_tokens, or for the model's context less the prompt. Returns their number, -1 on
 * error. A prompt and .max_tokens that exceed the model's context are an error unless .slide is set. `...` is a
 * const tarn_generate_options *, or NULL. */
TARN_API int64_t tarn_generate_sized(tarn_module *model, const int32_t *prompt, int64_t count, int32_t *tokens,
                                     const tarn_generate_options *options, size_t options_size);
#define tarn_generate(model, prompt, count, tokens, ...) \
    tarn_generate_sized(model, prompt, count, tokens, __VA_ARGS__, sizeof(tarn_generate_options))

/* A model with a tokenizer that generates one or several sequences, token by token. */
typedef struct tarn_generator tarn_generator;

/* Options of generators; zero is every field's default. */
typedef struct tarn_generator_options {
    int64_t sequences; /* sequences generated at once; default 1 */
    int64_t context;   /* this and the next two: see tarn_decoder_options */
    tarn_kv_type kv_type;
    int64_t prefill_chunk;
    tarn_dtype dtype;      /* of tarn_generator_open(): see tarn_model_open_options */
    bool no_capture;       /* see tarn_decoder_options */
    int64_t device_layers; /* of tarn_generator_open(), as the next: see tarn_model_open_options */
    bool as_stored;
    /* for TARN_SPECULATE_DRAFT: a model with the same tokens. Borrowed: must outlive the generator. NULL: none */
    tarn_module *draft;
    /* its tokenizer, which must have the ids of the generator's. Borrowed for the call. NULL: the vocabularies must be
     * of one size */
    const tarn_tokenizer *draft_tokenizer;
    const tarn_model_split *split; /* of tarn_generator_open(): see tarn_model_open_options */
} tarn_generator_options;

/* Creates a generator. Borrows the model and the tokenizer, which must outlive it; the tokenizer may be NULL: tokens
 * only. `...` is a const tarn_generator_options *, or NULL. The caller owns the generator. */
TARN_API tarn_generator *tarn_generator_new_sized(tarn_module *model, const tarn_tokenizer *tokenizer,
                                                  const tarn_generator_options *options, size_t options_size);
#define tarn_generator_new(model, tokenizer, ...) \
    tarn_generator_new_sized(model, tokenizer, __VA_ARGS__, sizeof(tarn_generator_options))

/* The same with its own model and tokenizer, from a model folder or a GGUF file: see tarn_model_open() and
 * tarn_tokenizer_open(). */
TARN_API tarn_generator *tarn_generator_open_sized(const char *path, tarn_device device,
                                                   const tarn_generator_options *options, size_t options_size);
#define tarn_generator_open(path, device, ...) \
    tarn_generator_open_sized(path, device, __VA_ARGS__, sizeof(tarn_generator_options))

/* Model and tokenizer of a generator; the tokenizer may be NULL. Borrowed from it. */
TARN_API tarn_module *tarn_generator_model(const tarn_generator *generator);
TARN_API const tarn_tokenizer *tarn_generator_tokenizer(const tarn_generator *generator);

/* Sets the whole prompt of one sequence and its options. The common prefix with the sequence's cached tokens is not
 * recomputed: a growing conversation costs its last turn. At least one token, and capacity for one more (or .slide);
 * else an error that changes nothing. Strings of the options are copied. `...` is a const tarn_generate_options *,
 * or NULL. */
TARN_API bool tarn_generator_prompt_sized(tarn_generator *generator, int64_t sequence, const int32_t *tokens,
                                          int64_t count, const tarn_generate_options *options, size_t options_size);
#define tarn_generator_prompt(generator, sequence, tokens, count, ...) \
    tarn_generator_prompt_sized(generator, sequence, tokens, count, __VA_ARGS__, sizeof(tarn_generate_options))

/* The same from text: special tokens are parsed, and those of the tokenizer's post-processor are added. */
TARN_API bool tarn_generator_prompt_text_sized(tarn_generator *generator, int64_t sequence, const char *text,
                                               size_t length, const tarn_generate_options *options,
                                               size_t options_size);
#define tarn_generator_prompt_text(generator, sequence, text, length, ...) \
    tarn_generator_prompt_text_sized(generator, sequence, text, length, __VA_ARGS__, sizeof(tarn_generate_options))

/* Why a sequence ended. */
typedef enum tarn_finish_reason {
    TARN_FINISH_NONE = 0,  /* not ended */
    TARN_FINISH_TOKEN,     /* EOS or a token of .stop */
    TARN_FINISH_STRING,    /* one of .stop_strings */
    TARN_FINISH_LENGTH,    /* .max_tokens, or the context is full and does not slide */
    TARN_FINISH_GRAMMAR,   /* .grammar allows no more text */
    TARN_FINISH_CANCELLED, /* of an engine: tarn_engine_cancel() */
    TARN_FINISH_ERROR      /* of an engine: the request failed; the output has the error */
} tarn_finish_reason;

/* A token with its log probability. */
typedef struct tarn_candidate {
    int32_t token;
    double logprob;
} tarn_candidate;

/* One output of a generator. */
typedef struct tarn_output {
    int64_t sequence;
    int32_t token; /* -1: none; the sequence has ended */
    /* complete characters that are final, perhaps none; borrowed until the generator is used again. NULL without a
     * tokenizer */
    const char *text;
    size_t length; /* in bytes */
    tarn_finish_reason finish_reason;
    double logprob;                     /* of the token, with .logprobs; else NaN */
    const tarn_candidate *top_logprobs; /* borrowed likewise */
    int top_logprob_count;
    /* with .slide: the context was full, or the prompt too long, and the middle was dropped before this token */
    bool slid;
} tarn_output;

/* The next output of any sequence; false when all have ended, or on an error. Text that may be the beginning of a
 * stop string or of a character is buffered until it is decided; invalid bytes become U+FFFD: see
 * tarn_text_stream_push(). */
TARN_API bool tarn_generator_next_sized(tarn_generator *generator, tarn_output *output, size_t output_size);
#define tarn_generator_next(generator, output) tarn_generator_next_sized(generator, output, sizeof(tarn_output))

/* Tokens of a sequence so far, prompt included, and their number; with .slide those in its window. Borrowed until
 * the generator is used again. NULL on error. */
TARN_API const int32_t *tarn_generator_tokens(const tarn_generator *generator, int64_t sequence, int64_t *count);

/* Counters of a generator with one sequence that speculates. */
typedef struct tarn_generator_stats {
    int64_t steps;           /* forward passes after prompts */
    int64_t proposed_tokens; /* computed with the step before them */
    int64_t accepted_tokens; /* of these: sampled, each of which saved a step */
} tarn_generator_stats;

/* Fills in the counters since the generator was created; all 0 without speculation. Fields of a newer header's struct
 * that this library does not know become zero. */
TARN_API bool tarn_generator_query_sized(const tarn_generator *generator, tarn_generator_stats *stats,
                                         size_t stats_size);
#define tarn_generator_query(generator, stats) \
    tarn_generator_query_sized(generator, stats, sizeof(tarn_generator_stats))

/* Ends a sequence; its tokens stay. */
TARN_API bool tarn_generator_stop(tarn_generator *generator, int64_t sequence);

/* Frees a generator. NULL is allowed; works while an error is pending. */
TARN_API void tarn_generator_free(tarn_generator *generator);

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

/* Computes embeddings: the mean of a language model's last hidden states over the tokens of a sequence. They are those
 * after the last norm, as last_hidden_state of transformers. A sequence is computed in steps of one prefill chunk, so
 * that a thread can do other work between them. */
typedef struct tarn_embedder tarn_embedder;

/* Options of tarn_embedder_new(); zero is every field's default. */
typedef struct tarn_embedder_options {
    int64_t context;       /* tokens of a sequence; default and maximum: the model's context */
    tarn_kv_type kv_type;  /* storage type of the KV cache */
    int64_t prefill_chunk; /* tokens per step: larger is faster and takes more memory; default 512 */
} tarn_embedder_options;

/* An embedder with a KV cache for one sequence. Borrows the model, which must outlive it and stay on its device. `...`
 * is a const tarn_embedder_options *, or NULL. The caller owns the embedder. */
TARN_API tarn_embedder *tarn_embedder_new_sized(tarn_module *model, const tarn_embedder_options *options,
                                                size_t options_size);
#define tarn_embedder_new(model, ...) tarn_embedder_new_sized(model, __VA_ARGS__, sizeof(tarn_embedder_options))

/* Begins a sequence of 1 token to the context; drops the one before. Copies the tokens. */
TARN_API bool tarn_embedder_begin(tarn_embedder *embedder, const int32_t *tokens, int64_t count);

/* Computes the next chunk. Returns the number of tokens that are left; 0: the embedding is complete. -1 on error: the
 * sequence has ended. */
TARN_API int64_t tarn_embedder_step(tarn_embedder *embedder);

/* Copies the embedding of a complete sequence: `size` elements, the model's hidden_size. Hidden states that are not
 * finite are an error. */
TARN_API bool tarn_embedder_read(const tarn_embedder *embedder, float *embedding, int64_t size);

/* Frees an embedder, not its model. NULL is allowed; works while an error is pending. */
TARN_API void tarn_embedder_free(tarn_embedder *embedder);

/* ---- several devices --------------------------------------------------------------------------------------------- */

/* Options of tarn_model_plan_split(); zero is every field's default. */
typedef struct tarn_model_split_options {
    tarn_dtype dtype; /* how the model will be opened: see tarn_model_open_options */
    bool as_stored;
    tarn_dtype quantize;
    int64_t context;      /* of the KV cache in tokens per sequence; default and maximum: the model's context */
    int64_t sequences;    /* with a KV cache; default 1 */
    tarn_kv_type kv_type; /* storage type of the KV cache */
    int64_t kv_tokens;    /* maximum tokens of all sequences, at least one context; 0: no limit; -1: no KV cache */
    int64_t kv_bytes;     /* size of the KV cache, instead of the four above; 0: computed from them */
    /* [count]: proportion of the layers on each device; 0: none. NULL: by free memory. Borrowed for the call */
    const double *tensor_split;
} tarn_model_split_options;

/* Distributes the layers of the model at `path` (see tarn_model_open()) over `count` devices, in this order: in
 * proportion to their free memory, counting the weights and the KV cache of each layer, and on the first device the
 * embeddings and the head; or in the proportions of .tensor_split. The CPU next to other devices gets what does not fit
 * in nine tenths of their free memory. Reads only the headers of the files; adapters are not counted. If a device lacks
 * memory, the error names what each device needs and has free, and *split is filled in. False on error. `...` is a
 * const tarn_model_split_options *, or NULL. */
TARN_API bool tarn_model_plan_split_sized(const char *path, const tarn_device *devices, int count,
                                          tarn_model_split *split, size_t split_size,
                                          const tarn_model_split_options *options, size_t options_size);
#define tarn_model_plan_split(path, devices, count, split, ...) \
    tarn_model_plan_split_sized(path, devices, count, split, sizeof(tarn_model_split), __VA_ARGS__, \
                                sizeof(tarn_model_split_options))

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* What to measure; zero is the default of every field but the first. */
typedef struct tarn_decode_options {
    const char *model; /* name of a size: "gpt2-124m", "llama-1b" …, as in tarn train */
    /* of the weights; of a quantized dtype, matrices are quantized and the rest is f32 on the CPU, bf16 elsewhere;
     * default f32 */
    tarn_dtype dtype;
    tarn_device device; /* default: the CPU */
    int64_t prompt;     /* tokens; default 512 */
    int64_t tokens;     /* decoded after the prompt; default 64 */
    int64_t sequences;  /* batch size; default 1 */
    tarn_kv_type kv_type;
    int64_t prefill_chunk;                          /* default: the whole prompt */
    int64_t runs;                                   /* number of runs, of which the median is reported; default 3 */
    int64_t vocab_size, layers, heads, hidden_size; /* override the sizes of the name */
    int64_t device_layers;                          /* layers on the device: see tarn_model_offload(); 0: all */
} tarn_decode_options;

/* Timing of a decoder. Times are medians, in milliseconds. */
typedef struct tarn_decode_timing {
    int64_t parameters, weight_bytes; /* total */
    int64_t read_bytes;               /* weights read per token: all but embeddings that are gathered by row */
    int64_t cache_bytes, peak_bytes;  /* KV cache; peak memory of the device */
    double prompt_ms;                 /* prefill, for all sequences */
    double first_ms;                  /* time to first token, as known to the host */
    /* one decode step for all sequences, greedy, read by the host; median and minimum */
    double token_ms, min_token_ms;
} tarn_decode_timing;

/* Measures prefill and decode speed of a model with random weights. Resets the counters of tarn_stats(). `...` is a
 * const tarn_decode_options *. */
TARN_API bool tarn_decode_measure_sized(tarn_decode_timing *timing, size_t timing_size,
                                        const tarn_decode_options *options, size_t options_size);
#define tarn_decode_measure(timing, ...) \
    tarn_decode_measure_sized(timing, sizeof(tarn_decode_timing), __VA_ARGS__, sizeof(tarn_decode_options))

#ifdef __cplusplus
}
#endif
#endif
