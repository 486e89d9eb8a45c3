/* generator.h: the internals of tarn_generator: a decoder, and the state of each of its sequences.
 *
 * A step of all sequences is pipelined: the next tokens are sampled on the device and stay there until the caller
 * asks for an output, so that the host never waits for a token it does not need yet. */
#ifndef TARN__GENERATOR_H
#define TARN__GENERATOR_H

#include "generate/decoder.h"

#define TARN__MAX_TOP_LOGPROBS 100

/* A stop string; owns its copy. */
typedef struct tarn__stop_string {
    char *text;
    size_t length;
} tarn__stop_string;

/* Text between the tokenizer and the caller; see stop_buffer.c. Owns all its members. */
typedef struct tarn__stop_buffer {
    tarn__stop_string *stops;
    int stop_count;
    char *text;                     /* output of the last settle, then the undecided bytes */
    size_t ready, length, capacity; /* bytes of output, of all, and allocated */
    bool is_over;                   /* a stop string was found */
} tarn__stop_buffer;

/* One sequence. Its tokens are those in the KV cache and, while it is active, one more that was read and not yet
 * fed. */
typedef struct tarn__sequence {
    int32_t *tokens;
    int64_t count;
    size_t capacity; /* of `tokens`, in elements */
    bool is_active;
    int64_t generated, most; /* tokens after the prompt, and their maximum */
    bool slid;               /* the window slid since the last output */
    tarn_generate_options options;
    int32_t *stop; /* owned copy of options.stop */
    tarn_sampler *sampler;
    tarn_matcher *matcher;        /* of options.grammar; NULL: none */
    uint32_t *mask;               /* [TARN_MASK_WORDS(vocab_size)], with a matcher */
    const tarn__model_info *info; /* the model's; borrowed from the decoder */
    tarn_text_stream *stream;     /* detokenizer; NULL without a tokenizer */
    tarn__stop_buffer stop_buffer;
    tarn_tensor *sampled;  /* i64 [1, 1], retained: the next token, not yet read by the host; NULL: none */
    tarn_tensor *logprobs; /* of it, as of tarn_token_logprobs(), retained; NULL: not wanted */
    tarn_candidate top_logprobs[TARN__MAX_TOP_LOGPROBS];
} tarn__sequence;

/* The last prompt that was computed, with its logits: setting the same one for another sequence copies its keys and
 * values instead. Valid until the next step. */
typedef struct tarn__computed_prompt {
    tarn_tensor *logits; /* [1, vocab_size], retained; NULL: none */
    int64_t sequence, count;
} tarn__computed_prompt;

struct tarn_generator {
    tarn_decoder *decoder;
    tarn_module *model;
    const tarn_tokenizer *tokenizer; /* borrowed; NULL: none */
    tarn_module *own_model;          /* owned, of tarn_generator_open(); NULL: borrowed */
    tarn_tokenizer *own_tokenizer;
    int64_t count, next_sequence; /* number of sequences; the one of the next output */
    tarn__sequence *sequence;
    int64_t *ids;        /* [count]: sampled tokens on the host */
    tarn_tensor **parts; /* [count]: operands of a concat */
    bool is_on_host;     /* ids are valid; sequences before next_sequence have returned their output */
    tarn__computed_prompt computed;
};

/* tarn_generator_prompt() and tarn_generator_next() for checked arguments; their errors lack the function's name. */
bool tarn__generator_prompt(tarn_generator *generator, int64_t sequence, const int32_t *tokens, int64_t count,
                            const tarn_generate_options *options);
bool tarn__generator_next(tarn_generator *generator, tarn_output *output);

/* Releases the last computed prompt. */
void tarn__generator_drop_prompt(tarn_generator *generator);

/* True while sequences of this step have an output to return. */
bool tarn__generator_has_output(const tarn_generator *generator);

/* Feeds the tokens read last and samples the next ones. Requires that no output is left. */
bool tarn__generator_step(tarn_generator *generator);

/* With .slide: number of tokens to keep at the beginning; a prompt truncated to the window, which the caller
 * releases, with `*count` tokens; and a sequence whose context is full, before its last token is fed. NULL, or
 * false, with an error. */
int64_t tarn__slide_keep(const tarn_generator *generator, const tarn_generate_options *options, const int32_t *tokens);
int32_t *tarn__slide_prompt(const tarn_generator *generator, const tarn_generate_options *options,
                            const int32_t *tokens, int64_t *count);
bool tarn__sequence_slide(tarn_generator *generator, int64_t sequence);

/* Longrope (longrope.c): how many of `same` tokens in the cache a new prompt of `count` tokens can reuse; whether
 * sequences are on both sides of the short context, so that each must be fed alone; and computes the cache of a
 * sequence that the next token takes past it anew, if its model does so. False with an error. */
int64_t tarn__longrope_reusable(const tarn_generator *generator, int64_t sequence, int64_t same, int64_t count);
bool tarn__longrope_is_split(const tarn_generator *generator);
bool tarn__longrope_cross(tarn_generator *generator, int64_t sequence);

/* Samples the next token by logits [1, vocab_size] and leaves it on the device. */
bool tarn__sequence_sample(tarn__sequence *s, tarn_tensor *logits);

/* Appends a token. */
bool tarn__sequence_add(tarn__sequence *s, int32_t token);

/* Ends a sequence and drops its sampled token. */
void tarn__sequence_end(tarn__sequence *s);

/* ---- grammars (constrain.c) -------------------------------------------------------------------------------------- */

/* True for a token that ends a sequence: EOS, unless it is ignored, the caller's stop tokens, and those of the
 * grammar's vocabulary where the grammar may end. */
bool tarn__sequence_is_end(const tarn__sequence *s, int64_t token);

/* check: raises a grammar that does not fit the model. open: starts the matcher of the options' grammar, if any; close
 * frees it. mask: sets the sampler's mask for the next token. accept: appends a sampled token; *is_done is set where
 * the grammar has ended. False with an error. */
bool tarn__constrain_check(const tarn__model_info *info, const tarn_generate_options *options);
bool tarn__constrain_open(tarn__sequence *s, const tarn_generate_options *options);
void tarn__constrain_close(tarn__sequence *s);
bool tarn__constrain_mask(tarn__sequence *s);
bool tarn__constrain_accept(tarn__sequence *s, int32_t token, bool *is_done);

/* ---- stop strings (stop_buffer.c) -------------------------------------------------------------------------------- */

/* Copies the stop strings. False with an error; then there is nothing to release. Closing an all-zero buffer is
 * allowed. */
bool tarn__stop_buffer_open(tarn__stop_buffer *buffer, const char *const *stops, int count);
void tarn__stop_buffer_close(tarn__stop_buffer *buffer); /* all zero is allowed */

/* Appends bytes, and drops those output before. False with an error. */
bool tarn__stop_buffer_add(tarn__stop_buffer *buffer, const char *bytes, size_t count);

/* Decides what can be output: the first `ready` bytes of `text`, valid until the next add; everything if `is_end`.
 * Stops before a stop string and sets is_over; later text is ignored. */
void tarn__stop_buffer_settle(tarn__stop_buffer *buffer, bool is_end);

#endif
