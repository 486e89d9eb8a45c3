/* generator.h: what a writer is: a decoder, and what is known of each of its sequences. */
#ifndef TARN__GENERATOR_H
#define TARN__GENERATOR_H

#include "generate/decoder.h"
#include "generate/held.h"

#define TARN__MAX_TOP_LOGPROBS 100

/* One text. Its tokens are those that the decoder has seen and, while it is active, one more that was drawn and not yet
 * fed. */
typedef struct tarn__sequence {
    int32_t *tokens;
    int64_t count, capacity;
    bool is_active;
    int64_t made, most; /* tokens since the prompt */
    bool slid;          /* the window slid, and no piece has said so yet */
    tarn_generate_options options;
    int32_t *stop; /* own copy of options.stop */
    tarn_sampler *sampler;
    tarn_text_stream *stream; /* from tokens to whole characters; NULL without a tokenizer */
    tarn__stop_buffer held;
    /* i64 [1, 1], kept: the token after the last one, which the host has not read yet; NULL: it must be computed */
    tarn_tensor *drawn;
    tarn_tensor *logprobs; /* of it, as tarn_token_logprobs() has them, kept; NULL: not wanted */
    tarn_candidate top_logprobs[TARN__MAX_TOP_LOGPROBS];
} tarn__sequence;

/* A prompt that was computed, and what follows it: the same one of another sequence costs a copy. Until the first step
 * after it. */
typedef struct tarn__computed_prompt {
    tarn_tensor *logits; /* [1, vocab], kept; NULL: there is none */
    int64_t sequence, count;
} tarn__computed_prompt;

struct tarn_generator {
    tarn_decoder *decoder;
    tarn_module *model;
    const tarn_tokenizer *tokenizer; /* NULL: there is none */
    tarn_module *own_model;
    tarn_tokenizer *own_tokenizer; /* NULL: borrowed */
    int64_t count, turn;           /* sequences; which one's piece is next */
    tarn__sequence *sequence;
    int64_t *ids;              /* [count]: tokens as they were read */
    tarn_tensor **parts;       /* [count]: room for a list */
    bool is_read;              /* ids are those that were drawn; pieces of sequences before `turn` were given out */
    tarn__computed_prompt fed; /* the last prompt that was computed */
};

/* tarn_generator_prompt() and tarn_generator_next() with arguments that are checked, and errors that do not name them.
 */
bool tarn__generator_prompt(tarn_generator *writer, int64_t sequence, const int32_t *tokens, int64_t count,
                            const tarn_generate_options *options);
bool tarn__generator_next(tarn_generator *writer, tarn_output *piece);

/* Forgets the last prompt that was computed. */
void tarn__generator_drop_prompt(tarn_generator *writer);

/* True when a sequence's piece of this step is still to come. */
bool tarn__generator_has_output(const tarn_generator *writer);

/* Feeds what was read, and draws what follows. There are no pieces to come. */
bool tarn__generator_step(tarn_generator *writer);

/* With .slide: tokens at the beginning of a text that stay in the window; a prompt cut to what fits, which the caller
 * releases, with `*count` tokens; and a sequence whose context is full, before its last token is fed. NULL, or false,
 * with an error. */
int64_t tarn__slide_keep(const tarn_generator *writer, const tarn_generate_options *options, const int32_t *tokens);
int32_t *tarn__slide_prompt(const tarn_generator *writer, const tarn_generate_options *options, const int32_t *tokens,
                            int64_t *count);
bool tarn__sequence_slide(tarn_generator *writer, int64_t sequence);

/* Chooses the token that follows, by logits [1, vocab], and leaves it on the device. */
bool tarn__sequence_sample(tarn__sequence *s, tarn_tensor *logits);

/* Adds a token to what the sequence has. */
bool tarn__sequence_add(tarn__sequence *s, int32_t token);

/* It goes no further: what was drawn is dropped. */
void tarn__sequence_end(tarn__sequence *s);

#endif
