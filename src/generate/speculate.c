/* speculate.c: speculative decoding: proposals, and when they pay (speculate.h).
 *
 * N-grams (prompt lookup): the longest end of the text that occurred before is looked for, the latest occurrence of
 * equal ones; what followed it is proposed. The draft model continues the text greedily.
 *
 * A proposal is as long as the last one that was accepted, or twice as long where all of it was. Steps are timed, and
 * the time of each number of proposals estimated: the extra time of proposals, less what they saved, may be EXTRA_PART
 * of the time of all steps and EXTRA_STEPS steps. So a text whose proposals are rejected is slower by that much at
 * most, with any model, draft and length. Estimates, because one step that another program delays is as long as many.
 */
#include "generate/speculate.h"

#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "generate/generator.h"

#define FIRST_LENGTH 3   /* of the first proposal of a prompt */
#define MIN_NGRAM 3      /* tokens of an n-gram that was found, at least */
#define MAX_NGRAM 16     /* longer ones are not compared further */
#define EXTRA_PART 0.01  /* of the time of all steps */
#define EXTRA_STEPS 1.0  /* steps without proposals */
#define SAVED_STEPS 16.0 /* of time saved that is set off against later extra time */
#define FIRST_STEPS 2    /* without proposals: the first is slower than those after it */
#define STEPS_BETWEEN 32 /* every so many steps one is without proposals, to know its time */
#define MAX_COST 2.0     /* of a step with proposals, in steps without for each of its tokens; the first: 1 */

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

bool tarn__draft_check(const tarn__model_info *info, const tarn_tokenizer *tokenizer, const tarn_module *draft,
                       const tarn_tokenizer *draft_tokenizer)
{
    tarn__model_info own;
    if (!tarn__arch_of("the draft model", draft))
        return false;
    if (draft_tokenizer && tokenizer) {
        if (tarn_tokenizer_hash(draft_tokenizer) == tarn_tokenizer_hash(tokenizer))
            return true;
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "the draft model has another tokenizer: %s of %lld tokens; it must have the model's, %s of "
                           "%lld tokens",
                           tarn_tokenizer_kind(draft_tokenizer), (long long)tarn_tokenizer_count(draft_tokenizer),
                           tarn_tokenizer_kind(tokenizer), (long long)tarn_tokenizer_count(tokenizer));
    }
    tarn__model_describe(draft, &own);
    return own.vocab_size == info->vocab_size ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "the draft model has a vocabulary of %lld tokens; it must be the model's, of %lld",
                       (long long)own.vocab_size, (long long)info->vocab_size);
}

bool tarn__speculation_open(tarn__speculation *p, const tarn_decoder *target, const tarn_tokenizer *tokenizer,
                            const tarn_generator_options *o)
{
    tarn__model_info info;
    int64_t context = target->cache.shape.capacity;
    if (!o->draft)
        return !o->draft_tokenizer || tarn__raise(TARN_ERROR_ARGUMENT, ".draft_tokenizer needs .draft");
    if (!tarn__draft_check(&target->info, tokenizer, o->draft, o->draft_tokenizer))
        return false;
    tarn__model_describe(o->draft, &info);
    p->draft = tarn_decoder_new(o->draft, &(tarn_decoder_options){.context = info.context < context ? 0 : context,
                                                                  .kv_type = o->kv_type,
                                                                  .prefill_chunk = o->prefill_chunk,
                                                                  .no_capture = o->no_capture});
    if (p->draft)
        p->drafted = tarn__alloc(sizeof(*p->drafted) * (size_t)p->draft->cache.shape.capacity);
    return p->drafted != NULL;
}

void tarn__speculation_close(tarn__speculation *p)
{
    if (p->drafted)
        tarn__release(p->drafted, sizeof(*p->drafted) * (size_t)p->draft->cache.shape.capacity);
    tarn_decoder_free(p->draft);
    tarn_free(p->logits);
    *p = (tarn__speculation){0};
}

bool tarn__speculation_check(const tarn__speculation *p, const tarn_decoder *target, const tarn_generate_options *o)
{
    if (o->speculate < TARN_SPECULATE_OFF || o->speculate > TARN_SPECULATE_DRAFT)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".speculate is %d; it must be from %d to %d", (int)o->speculate,
                           TARN_SPECULATE_OFF, TARN_SPECULATE_DRAFT);
    if (o->draft_tokens < 0 || o->draft_tokens > TARN__MAX_DRAFT_TOKENS)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".draft_tokens is %lld; it must be from 0 to %d",
                           (long long)o->draft_tokens, TARN__MAX_DRAFT_TOKENS);
    if (o->speculate == TARN_SPECULATE_OFF)
        return o->draft_tokens == 0 || tarn__raise(TARN_ERROR_ARGUMENT, ".draft_tokens is %lld; it needs .speculate",
                                                   (long long)o->draft_tokens);
    if (o->speculate == TARN_SPECULATE_DRAFT && !p->draft)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".speculate needs the generator's .draft: it has no draft model");
    if (target->batch > 1)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, ".speculate is for one sequence; the generator has %lld",
                           (long long)target->batch);
    return tarn__decoder_can_feed_apart(target) ||
           tarn__raise(TARN_ERROR_UNSUPPORTED,
                       ".speculate needs the whole model on the CPU: elsewhere the bits of logits "
                       "depend on how many tokens are computed at once");
}

/* ---- what is proposed -------------------------------------------------------------------------------------------- */

/* Tokens that the end of a text and the end of its first `end` tokens have in common, at most MAX_NGRAM. */
static int64_t common_end(const int32_t *tokens, int64_t count, int64_t end)
{
    int64_t same = 0;
    while (same < end && same < MAX_NGRAM && tokens[end - 1 - same] == tokens[count - 1 - same])
        same++;
    return same;
}

/* Proposes up to `most` tokens after the text. Where the occurrence is so late that the text ends before, what follows
 * repeats: a period. Returns their number. */
int64_t tarn__propose_ngram(const int32_t *tokens, int64_t count, int64_t most, int32_t *proposed)
{
    int64_t best = 0, from = 0;
    for (int64_t end = count - 1; end > 0 && best < MAX_NGRAM; end--) {
        int64_t same = common_end(tokens, count, end);
        if (same > best)
            best = same, from = end;
    }
    if (best < MIN_NGRAM)
        return 0;
    for (int64_t i = 0; i < most; i++)
        proposed[i] = from + i < count ? tokens[from + i] : proposed[from + i - count];
    return most;
}

/* Feeds tokens to the draft model: the logits after the last one, [1, vocab_size]. Few are fed apart, as the model's
 * own steps are, so that a draft that is the model itself has its logits. */
static tarn_tensor *feed_draft(tarn__speculation *p, const int32_t *tokens, int64_t count)
{
    tarn_decoder *d = p->draft;
    int64_t length = d->cache.length[0];
    memcpy(p->drafted + length, tokens, sizeof(*tokens) * (size_t)count);
    if (length < p->prompt || count > TARN__ALONE_ROWS || !tarn__decoder_can_feed_apart(d)) {
        tarn_tensor *all = tarn_from_i32(tokens, TARN_SHAPE(1, count), d->info.device);
        return all ? tarn_decoder_feed_one(d, 0, all) : NULL;
    }
    tarn_tensor *logits = tarn__decoder_feed_apart(d, 0, tokens, count);
    return logits ? tarn_slice(logits, 0, count - 1, count) : NULL;
}

/* True if all tokens are in the draft's vocabulary, which may be padded otherwise than the model's. */
static bool knows_tokens(const tarn_decoder *d, const int32_t *tokens, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] >= d->info.vocab_size)
            return false;
    return true;
}

/* Brings the draft's cache to a text: the logits after it. A prompt is computed at once, as by the model. */
static tarn_tensor *follow(tarn__speculation *p, const int32_t *tokens, int64_t count)
{
    int64_t length = p->draft->cache.length[0], same = 0;
    while (same < length && same < count - 1 && p->drafted[same] == tokens[same])
        same++;
    return tarn_decoder_rewind_one(p->draft, 0, same) ? feed_draft(p, tokens + same, count - same) : NULL;
}

/* Greedy tokens of the draft model. Returns their number, 0 where its context or vocabulary is too small; -1 on
 * error. */
static int64_t propose_draft(tarn__speculation *p, const tarn_decoder *target, const int32_t *tokens, int64_t count,
                             int64_t most, int32_t *proposed)
{
    int64_t left = p->draft->cache.shape.capacity - count, made = 0;
    most = most < left + 1 ? most : left + 1; /* the last one is not fed */
    if (most < 1 || !knows_tokens(p->draft, tokens, count))
        return 0;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *logits = scope ? follow(p, tokens, count) : NULL;
    while (logits) {
        tarn_tensor *token = tarn__argmax_finite(logits);
        int64_t id = token ? (int64_t)tarn_item(token) : -1;
        if (id < 0 || id >= target->info.vocab_size)
            break;
        proposed[made++] = (int32_t)id;
        if (made == most)
            break;
        logits = feed_draft(p, &proposed[made - 1], 1);
    }
    tarn_scope_close(scope);
    return tarn_failed() ? -1 : made;
}

/* ---- how much is proposed ---------------------------------------------------------------------------------------- */

/* Lengths that the tokens of one step may give a sequence: RoPE must not depend on which of them it is. */
static int64_t rope_limit(const tarn_decoder *d, int64_t length)
{
    const tarn_rope_options *rope = &tarn__model_config(d->model)->rope;
    int64_t context = d->cache.shape.capacity;
    if (rope->scaling == TARN_ROPE_DYNAMIC)
        return rope->original_context < context ? rope->original_context : context;
    return d->short_context > 0 && length < d->short_context && d->short_context < context ? d->short_context : context;
}

/* Tokens to be proposed, at most; 0: none. */
static int64_t most_proposals(const tarn__speculation *p, const tarn_decoder *d, const tarn__sequence *s)
{
    int64_t length = d->cache.length[0],
            most = s->options.draft_tokens ? s->options.draft_tokens : TARN__MAX_DRAFT_TOKENS;
    int64_t wanted = s->most - s->generated - 1, room = rope_limit(d, length) - length - 1;
    if (p->stats.steps < FIRST_STEPS || p->stats.steps % STEPS_BETWEEN == 0 ||
        p->extra_ms > EXTRA_PART * p->all_ms + EXTRA_STEPS * p->step_ms[0])
        return 0;
    most = p->length < most ? p->length : most;
    most = wanted < most ? wanted : most;
    return room < most ? room : most;
}

/* The time of a kind of step: quick to believe in a shorter one, and slow in a longer one, which may be another
 * program's. */
static double estimate(double *known, double ms)
{
    *known = *known > 0 ? *known + (ms - *known) * (ms < *known ? 0.5 : 0.1) : ms;
    return *known;
}

/* A step took so long; what each accepted token saves is set off as it is read. The first steps warm up. */
static void note_step(tarn__speculation *p, double ms)
{
    double most = (p->step_ms[p->count] > 0 ? MAX_COST : 1) * (double)(p->count + 1) * p->step_ms[0];
    if (p->stats.steps < FIRST_STEPS)
        p->step_ms[0] = 0;
    ms = estimate(&p->step_ms[p->count], p->count > 0 && ms > most ? most : ms);
    p->all_ms += ms;
    p->extra_ms += p->count > 0 ? ms - p->step_ms[0] : 0;
}

static void note_accepted(tarn__speculation *p)
{
    double least = -SAVED_STEPS * p->step_ms[0], extra = p->extra_ms - p->step_ms[0];
    p->extra_ms = extra > least ? extra : least;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* The draft's prefill belongs to the prompt's time. */
bool tarn__speculation_begin(tarn__speculation *p, const tarn__sequence *s)
{
    p->prompt = s->count;
    p->length = FIRST_LENGTH;
    if (s->options.speculate != TARN_SPECULATE_DRAFT || s->count > p->draft->cache.shape.capacity ||
        !knows_tokens(p->draft, s->tokens, s->count))
        return true;
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && follow(p, s->tokens, s->count);
    tarn_scope_close(scope);
    return good;
}

/* Feeds the last token of the text and the proposals, and keeps the logits. */
static tarn_tensor *feed_proposals(tarn__speculation *p, tarn_decoder *target, const tarn__sequence *s)
{
    int32_t tokens[TARN__ALONE_ROWS] = {s->tokens[s->count - 1]};
    memcpy(tokens + 1, p->proposed, sizeof(*tokens) * (size_t)p->count);
    tarn_tensor *logits = tarn__decoder_feed_apart(target, 0, tokens, p->count + 1);
    if (!logits)
        return NULL;
    p->logits = tarn__scope_take(logits);
    p->row = 0;
    p->stats.proposed_tokens += p->count;
    return tarn__speculation_next(p);
}

tarn_tensor *tarn__speculation_feed(tarn__speculation *p, tarn_decoder *target, const tarn__sequence *s)
{
    double begin = now_ms();
    int64_t most = most_proposals(p, target, s);
    p->count = most < 1 ? 0
               : s->options.speculate == TARN_SPECULATE_NGRAM
                   ? tarn__propose_ngram(s->tokens, s->count, most, p->proposed)
                   : propose_draft(p, target, s->tokens, s->count, most, p->proposed);
    if (p->count < 0)
        return NULL;
    p->count = tarn__constraint_allowed(&s->constraint, p->proposed, p->count);
    tarn_tensor *logits = p->count > 0 ? feed_proposals(p, target, s) : tarn_decoder_feed_one(target, 0, s->sampled);
    note_step(p, now_ms() - begin);
    p->stats.steps++;
    return logits;
}

tarn_tensor *tarn__speculation_next(const tarn__speculation *p)
{
    return p->logits ? tarn_slice(p->logits, 0, p->row, p->row + 1) : NULL;
}

/* The length of the next proposal by what was accepted of this one. */
static void adapt(tarn__speculation *p)
{
    p->length = p->row == p->count ? 2 * p->count : p->row > 0 ? p->row : p->count / 2;
    p->length = p->length < 1 ? 1 : p->length > TARN__MAX_DRAFT_TOKENS ? TARN__MAX_DRAFT_TOKENS : p->length;
}

bool tarn__speculation_accept(tarn__speculation *p, tarn_decoder *target, int64_t count, int32_t token)
{
    if (!p->logits)
        return true;
    if (p->row < p->count && p->proposed[p->row] == token) {
        p->row++;
        p->stats.accepted_tokens++;
        note_accepted(p);
        return true;
    }
    double begin = now_ms();
    adapt(p);
    bool good = tarn__speculation_drop(p, target, count - 1);
    double ms = now_ms() - begin;
    p->extra_ms += ms < p->step_ms[0] ? ms : p->step_ms[0];
    return good;
}

bool tarn__speculation_drop(tarn__speculation *p, tarn_decoder *target, int64_t length)
{
    if (!p->logits)
        return true;
    tarn_free(p->logits);
    p->logits = NULL;
    return target->cache.length[0] <= length || tarn_decoder_rewind_one(target, 0, length);
}
