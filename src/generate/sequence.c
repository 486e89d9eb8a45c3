/* sequence.c: one text of a writer: its tokens, and the token that comes next. */
#include <string.h>

#include "base/memory.h"
#include "generate/generator.h"

bool tarn__sequence_add(tarn__sequence *s, int32_t token)
{
    if (s->count == s->room) {
        int64_t room = s->room ? 2 * s->room : 256;
        int32_t *tokens = tarn__alloc(sizeof(*tokens) * (size_t)room);
        if (!tokens)
            return false;
        if (s->count > 0)
            memcpy(tokens, s->tokens, sizeof(*tokens) * (size_t)s->count);
        tarn__release(s->tokens, sizeof(*tokens) * (size_t)s->room);
        s->tokens = tokens;
        s->room = room;
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

bool tarn__sequence_draw(tarn__sequence *s, tarn_tensor *logits)
{
    tarn_tensor *drawn = tarn_sampler_draw(s->sampler, logits), *logprobs = NULL;
    if (!drawn)
        return false;
    if (s->options.logprobs || s->options.likeliest) { /* a token of -1 is noticed when it is read */
        logprobs = tarn_token_logprobs(logits, tarn_maximum(drawn, tarn_scalar(0)), s->options.likeliest);
        if (!logprobs)
            return false;
    }
    s->drawn = tarn__scope_take(drawn);
    s->logprobs = logprobs ? tarn__scope_take(logprobs) : NULL;
    return !tarn_failed();
}
