/* sequence.c: one text of a writer: its tokens, and the token that comes next. */
#include <string.h>

#include "base/memory.h"
#include "generate/generator.h"

bool tarn__sequence_add(tarn__sequence *s, int32_t token)
{
    if (s->count == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 256;
        int32_t *tokens = tarn__alloc(sizeof(*tokens) * (size_t)capacity);
        if (!tokens)
            return false;
        if (s->count > 0)
            memcpy(tokens, s->tokens, sizeof(*tokens) * (size_t)s->count);
        tarn__release(s->tokens, sizeof(*tokens) * (size_t)s->capacity);
        s->tokens = tokens;
        s->capacity = capacity;
    }
    s->tokens[s->count++] = token;
    return true;
}

void tarn__sequence_end(tarn__sequence *s)
{
    tarn_free(s->drawn);
    tarn_free(s->logprobs);
    s->drawn = s->logprobs = NULL;
    s->is_active = false;
}

bool tarn__sequence_sample(tarn__sequence *s, tarn_tensor *logits)
{
    tarn_tensor *drawn = tarn_sampler_sample(s->sampler, logits), *logprobs = NULL;
    if (!drawn)
        return false;
    if (s->options.logprobs || s->options.top_logprobs) { /* a token of -1 is noticed when it is read */
        logprobs = tarn_token_logprobs(logits, tarn_maximum(drawn, tarn_scalar(0)), s->options.top_logprobs);
        if (!logprobs)
            return false;
    }
    s->drawn = tarn__scope_take(drawn);
    s->logprobs = logprobs ? tarn__scope_take(logprobs) : NULL;
    return !tarn_failed();
}
