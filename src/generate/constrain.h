/* constrain.h: which tokens end a sequence, and which a grammar allows next; of generators and engines. */
#ifndef TARN__CONSTRAIN_H
#define TARN__CONSTRAIN_H

#include <tarn/generate.h>

#include "models/lm/arch.h"

/* Masks of a constraint, at most: that of the next token, and one after each of the tokens that are proposed. */
#define TARN__MASK_ROWS TARN__ALONE_ROWS

/* Owns its arrays and the matcher, and holds a reference of the grammar. */
typedef struct tarn__constraint {
    const tarn__model_info *info; /* borrowed */
    int32_t *stop;
    int stop_count;
    bool ignore_eos;
    tarn_grammar *grammar; /* NULL: none */
    tarn_matcher *matcher; /* of the grammar, from the first mask on */
    int rows;
    uint32_t *mask;                /* [rows, TARN_MASK_WORDS(vocab_size)], with a grammar */
    bool may_end[TARN__MASK_ROWS]; /* where each mask was computed */
} tarn__constraint;

/* Raises a grammar that does not fit the model. */
bool tarn__constraint_check(const tarn__model_info *info, const tarn_generate_options *options);

/* open: copies the stop tokens and keeps the options' grammar, if any, without its lock, which another thread may hold
 * while it computes a mask; with space for `rows` masks. False with an error. close frees all, after a failure too; all
 * zero is allowed. */
bool tarn__constraint_open(tarn__constraint *constraint, const tarn__model_info *info,
                           const tarn_generate_options *options, int rows);
void tarn__constraint_close(tarn__constraint *constraint);

/* True for a token that ends a sequence: EOS, unless it is ignored, the caller's stop tokens, and those of the
 * grammar's vocabulary where the grammar may end. `row`: which mask it was sampled with, 0 for the next token. */
bool tarn__constraint_is_end(const tarn__constraint *constraint, int row, int64_t token);

/* Sets the sampler's mask for the next token: computes it, which may take long and waits for the grammar's lock, and
 * applies it. False with an error. */
bool tarn__constraint_mask(tarn__constraint *constraint, tarn_sampler *sampler);
bool tarn__constraint_compute(tarn__constraint *constraint);

/* Sets the sampler's mask to one that was computed. False with an error. */
bool tarn__constraint_apply(const tarn__constraint *constraint, int row, tarn_sampler *sampler);

/* Computes the masks after the first of so many proposed tokens, in rows 1, 2, …, and leaves the text as it is. Ends
 * before a token that the grammar does not allow, that ends the text or after which nothing may follow; and after
 * `seconds`, but with one mask at least. Returns the number of tokens; never an error: what cannot be looked at is not
 * proposed. */
int64_t tarn__constraint_look_ahead(tarn__constraint *constraint, const int32_t *tokens, int64_t count, double seconds);

/* Number of the first of so many proposed tokens that the grammar allows; all without a grammar. Never an error. */
int64_t tarn__constraint_allowed(const tarn__constraint *constraint, const int32_t *tokens, int64_t count);

/* Appends a sampled token; *is_done is set where the grammar has ended. False with an error. */
bool tarn__constraint_accept(tarn__constraint *constraint, int32_t token, bool *is_done);

#endif
