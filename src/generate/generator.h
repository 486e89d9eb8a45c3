/* generator.h: the internals of tarn_generator: a decoder, and the state of each of its sequences.
 *
 * A step of all sequences is pipelined: the next tokens are sampled on the device and stay there until the caller
 * asks for an output, so that the host never waits for a token it does not need yet. */
#ifndef TARN__GENERATOR_H
#define TARN__GENERATOR_H

#include "generate/constrain.h"
#include "generate/decoder.h"
#include "generate/generate_options.h"
#include "generate/speculate.h"
#include "generate/stop_buffer.h"

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
    tarn_sampler *sampler;
    tarn__constraint constraint;
    tarn_text_stream *stream; /* detokenizer; NULL without a tokenizer */
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
    tarn__speculation speculation; /* of the one sequence, with .speculate */
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

/* Ends a sequence and drops its sampled token. Proposed tokens are dropped before. */
void tarn__sequence_end(tarn__sequence *s);

#endif
