/* small_model.h: a small tokenizer.model, as SentencePiece writes one, with what a test wants to be different. */
#ifndef TESTS_SMALL_MODEL_H
#define TESTS_SMALL_MODEL_H

#include <stdbool.h>
#include <stddef.h>

/* All zero: BPE with byte_fallback, a space before a text, and no other change of it. The ids: 0 <unk>, 1 <s>, 2 </s>,
 * 3 to 258 the bytes, then from 259 on "▁", "h", "e", "l", "o", "w", "▁h", "he", "ll", "llo", "hello", "▁w", "▁▁", "é"
 * and "aa", "a". */
typedef struct small_model_options {
    int type;                 /* 0: BPE; else the number of another kind */
    bool no_bytes, no_prefix; /* without byte_fallback; without a space before a text */
    bool squeezes;            /* remove_extra_whitespaces */
    bool is_suffix;           /* treat_whitespace_as_suffix */
    const char *rules;        /* a precompiled_charsmap */
    const char *more;         /* one more piece, … */
    int more_type;            /* … of this type */
    float more_score;
    bool leave_out_byte; /* the last piece of a byte is not there */
} small_model_options;

/* Writes it; returns its bytes, at most 8192. */
size_t small_model(char *out, const small_model_options *options);

#endif
