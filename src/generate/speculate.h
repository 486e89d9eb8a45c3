/* speculate.h: speculative decoding of a generator's sequence: the same tokens, several at a time.
 *
 * Tokens are proposed, by the n-grams of the text or by a draft model, and fed together with the last token of the
 * text. Every row of logits has the bits that it would have after a step of its own (tarn__decoder_feed_apart()), and
 * is sampled as always, when the token before it has been read: so sampler, grammar, stop strings and log probabilities
 * see the same logits in the same order as without proposals. While each sampled token is the one that was proposed,
 * the next row is used in place of a step; the rows after the first other token are dropped, and the KV cache is cut to
 * what it would hold without proposals, so that later prompts reuse the same keys.
 *
 * Proposals must pay: every step is timed, and the time that steps with proposals took beyond that of steps without
 * them, for the tokens that they gave, is limited to a small part of all (speculate.c). Times decide what is proposed,
 * never which tokens come. */
#ifndef TARN__SPECULATE_H
#define TARN__SPECULATE_H

#include "generate/decoder.h"

#define TARN__MAX_DRAFT_TOKENS (TARN__ALONE_ROWS - 1)

struct tarn__sequence;

/* Proposes up to `most` tokens after a text, by its n-grams. Returns their number, which may be 0. `proposed` may be
 * the memory after the text. */
int64_t tarn__propose_ngram(const int32_t *tokens, int64_t count, int64_t most, int32_t *proposed);

/* Raises a draft model whose tokens are not those of a model. Without both tokenizers their vocabularies must be of one
 * size. */
bool tarn__draft_check(const tarn__model_info *info, const tarn_tokenizer *tokenizer, const tarn_module *draft,
                       const tarn_tokenizer *draft_tokenizer);

/* The speculation of a generator with one sequence. Owns the decoder of the draft model, the tokens in its cache and
 * the logits. */
typedef struct tarn__speculation {
    tarn_decoder *draft; /* NULL: none */
    int32_t *drafted;    /* [capacity of the draft]: tokens in its cache */
    int64_t prompt;      /* tokens of the prompt, computed at once by the model */

    /* of the last step with proposals, while some of its rows may still be used: */
    tarn_tensor *logits; /* [count + 1, vocab_size], retained; NULL: none */
    int32_t proposed[TARN__MAX_DRAFT_TOKENS];
    int64_t count, row; /* proposals; the row after the last token that was read */

    int64_t length;                   /* of the next proposal, at most */
    double step_ms[TARN__ALONE_ROWS]; /* estimated, of a step by its number of proposals; 0: none yet */
    double all_ms, extra_ms; /* all steps; what proposals took beyond steps without them, less what they saved */
    tarn_generator_stats stats;
} tarn__speculation;

/* Opens the draft model of a generator, of at most `context` tokens. False with an error; closing is allowed then, and
 * if all is zero. */
bool tarn__speculation_open(tarn__speculation *speculation, const tarn_decoder *target, const tarn_tokenizer *tokenizer,
                            const tarn_generator_options *options);
void tarn__speculation_close(tarn__speculation *speculation);

/* Raises options that this decoder cannot honour. */
bool tarn__speculation_check(const tarn__speculation *speculation, const tarn_decoder *target,
                             const tarn_generate_options *options);

/* Begins the prompt of a sequence, whose tokens and options are set: the draft computes it, too. */
bool tarn__speculation_begin(tarn__speculation *speculation, const struct tarn__sequence *sequence);

/* Feeds the last token of a sequence with what is proposed after it: the logits after that token. In the open scope.
 * NULL with an error. */
tarn_tensor *tarn__speculation_feed(tarn__speculation *speculation, tarn_decoder *target,
                                    const struct tarn__sequence *sequence);

/* The logits after the last token that was read, if they are known already; in the open scope. NULL: they are not, or
 * an error. */
tarn_tensor *tarn__speculation_next(const tarn__speculation *speculation);

/* Compares the token that a sequence got last with the proposed one. Cuts the cache where it is another. */
bool tarn__speculation_accept(tarn__speculation *speculation, tarn_decoder *target, int64_t count, int32_t token);

/* Drops what is left of the proposals, and cuts the cache to `length` tokens if there were some. */
bool tarn__speculation_drop(tarn__speculation *speculation, tarn_decoder *target, int64_t length);

#endif
