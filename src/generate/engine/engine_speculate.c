/* engine_speculate.c: speculative decoding of an engine's requests: which tokens are proposed, and when they pay.
 *
 * Proposals are n-grams of a request's own tokens (generate/speculate.h), or what a draft model writes
 * (engine_draft.c). They are computed with the request's next
 * token, in the page that this one is in, so that none takes a page from another request. Every row of logits has the
 * bits of a step of its own by batch invariance, and rows are sampled in order, until a token is another than the one
 * proposed: a request has the same tokens as without.
 *
 * With a grammar n-grams are proposed when the mask of the next token is computed (engine_masks.c), as each needs one.
 * A step takes what is known by then. The draft's proposals get their masks before the step; a request whose masks are
 * late has them in a later step.
 *
 * A step that decodes alone is timed, by its number of tokens. Proposals are added while the time that they take is
 * less than what the tokens that they are expected to give would take otherwise; how many of a request's proposals are
 * accepted is known from those before. One that is given up is tried again after a while. Times decide what is
 * proposed, never which tokens come. */
#include <string.h>

#include "generate/engine/engine.h"
#include "generate/speculate.h"

#define FIRST_LENGTH 3     /* tokens of a request's first proposal, and of one that is tried again */
#define FIRST_ACCEPTED 0.5 /* fraction of a proposal, until it is known */
#define LEARNING_RATE 0.3  /* of that fraction */
#define TRY_AGAIN 32       /* steps without proposals after which a request has some */
#define FASTER 0.5         /* weight of a step that was faster than expected: slower ones may be another program's */
#define SLOWER 0.1
#define FIRST_COST 0.3 /* time of a proposed token, in steps of one token, until it is known */

void tarn__engine_open_speculation(tarn__request *r, const tarn_generate_options *o)
{
    r->draft_tokens = o->speculate == TARN_SPECULATE_OFF ? 0
                      : o->draft_tokens > 0              ? o->draft_tokens
                                                         : TARN__ENGINE_PROPOSALS;
    r->proposal_length = FIRST_LENGTH;
    r->accepted_part = FIRST_ACCEPTED;
}

bool tarn__engine_check_speculation(const tarn_engine *e, const tarn_generate_options *o)
{
    if (o->speculate < TARN_SPECULATE_OFF || o->speculate > TARN_SPECULATE_DRAFT)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".speculate is %d; it must be from %d to %d", (int)o->speculate,
                           TARN_SPECULATE_OFF, TARN_SPECULATE_DRAFT);
    if (o->draft_tokens < 0 || o->draft_tokens > TARN__ENGINE_PROPOSALS)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".draft_tokens is %lld; it must be from 0 to %d",
                           (long long)o->draft_tokens, TARN__ENGINE_PROPOSALS);
    if (o->speculate == TARN_SPECULATE_OFF)
        return o->draft_tokens == 0 || tarn__raise(TARN_ERROR_ARGUMENT, ".draft_tokens is %lld; it needs .speculate",
                                                   (long long)o->draft_tokens);
    if (o->speculate == TARN_SPECULATE_DRAFT && !e->draft.model)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".speculate needs the engine's .draft: it has no draft model");
    return (tarn__device_map_is_cpu(&e->pages.shape.map) && !e->options.not_invariant) ||
           tarn__raise(TARN_ERROR_UNSUPPORTED, ".speculate needs batch invariance, which the CPU has without "
                                               ".not_invariant: elsewhere the bits of logits depend on how many "
                                               "tokens are computed at once");
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

/* Estimated milliseconds of a decoding step of so many tokens; 0: none was timed. */
static double step_time(const tarn_engine *e, int64_t tokens)
{
    if (e->decode_ms[tokens] > 0)
        return e->decode_ms[tokens];
    int64_t known = tokens;
    while (known > 0 && e->decode_ms[known] <= 0)
        known--;
    return known > 0 ? e->decode_ms[known] * (1 + FIRST_COST * (double)(tokens - known) / (double)known) : 0;
}

void tarn__engine_estimate(double *known, double ms)
{
    *known = *known > 0 ? *known + (ms - *known) * (ms < *known ? FASTER : SLOWER) : ms;
}

void tarn__engine_note_time(tarn_engine *e, double ms)
{
    int64_t tokens = e->decoding_tokens;
    if (tokens >= 1 && tokens <= TARN__ENGINE_TIMED_TOKENS)
        tarn__engine_estimate(&e->decode_ms[tokens], ms);
}

/* True if `more` tokens of a request are expected to save more time than they take in a step of `tokens` for so many
 * requests, and in the draft. */
static bool pays(const tarn_engine *e, const tarn__request *r, int64_t tokens, int64_t requests, int64_t more)
{
    double now = step_time(e, tokens), then = step_time(e, tokens + more);
    double draft = r->draft.page && r->draft.made == 0 ? (double)more * e->draft.token_ms : 0;
    return now > 0 && r->accepted_part * (double)more * step_time(e, requests) / (double)requests > then - now + draft;
}

/* ---- proposals --------------------------------------------------------------------------------------------------- */

/* Tokens that may be proposed to a request, at most: they stay in its last page, on its side of longrope's short
 * context, and one is left to be sampled after them. */
static int64_t most_proposals(const tarn_engine *e, const tarn__request *r, int64_t left)
{
    int64_t most = r->proposal_length < r->draft_tokens ? r->proposal_length : r->draft_tokens;
    int64_t limits[] = {left, tarn__engine_pages_for(r->count) * TARN__KV_PAGE - r->count, r->max_count - r->count - 1,
                        e->short_context > 0 && r->count <= e->short_context ? e->short_context - r->count : left};
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        most = most < limits[i] ? most : limits[i];
    return most;
}

int64_t tarn__engine_look_ahead(const tarn_engine *e, const tarn__request *r)
{
    bool is_due = r->steps_without + 1 >= TRY_AGAIN;
    if (r->draft.page)
        return r->draft.made;
    return r->draft_tokens > 0 && (r->is_paying || is_due) ? most_proposals(e, r, TARN__ENGINE_PROPOSALS) : 0;
}

/* Proposals after a request's tokens, at most so many: n-grams, or those whose masks are known. */
static int64_t find_proposals(const tarn__request *r, int64_t most)
{
    if (r->constraint.grammar)
        return most < r->prepared ? most : r->prepared;
    return tarn__propose_ngram(r->tokens, r->count, most, r->tokens + r->count);
}

/* Adds proposals to a decoding request's plan, or wants them of the draft; returns their number, at most. */
static int64_t propose(tarn_engine *e, tarn__request *r, int64_t tokens, int64_t requests)
{
    int64_t most = most_proposals(e, r, TARN__ENGINE_TIMED_TOKENS - tokens);
    bool is_due = ++r->steps_without >= TRY_AGAIN;
    r->is_paying = most > 0 && pays(e, r, tokens, requests, most);
    if (most < 1 || !(r->is_paying || is_due))
        return 0;
    if (is_due)
        most = most < FIRST_LENGTH ? most : FIRST_LENGTH;
    if (r->draft.page)
        return tarn__engine_want_draft(e, r, most);
    int64_t found = find_proposals(r, most);
    if (found > 0)
        r->steps_without = 0;
    r->proposed = found;
    r->planned += found;
    return found;
}

/* Adds the draft's proposals to a request's plan. Without the masks after them it is left out of the step. */
static void take_drafted(tarn__request *r)
{
    const tarn__drafted *d = &r->draft;
    if (!d->page || d->made == 0 || r->planned != 1)
        return;
    if (tarn__request_needs_mask(r) || r->has_failed) {
        r->planned = 0;
        return;
    }
    int64_t made = r->constraint.grammar ? r->prepared : d->made;
    r->steps_without = 0;
    r->proposed = made < d->wanted ? made : d->wanted;
    r->planned += r->proposed;
}

/* Runs the draft, and waits for the masks after its proposals as long as a step waits for any. */
static bool propose_drafted(tarn_engine *e)
{
    if (!tarn__engine_run_draft(e))
        return false;
    tarn__engine_wait_for_masks(e, true);
    for (int i = 0; i < e->count; i++)
        take_drafted(e->request[i]);
    return true;
}

bool tarn__engine_propose(tarn_engine *e)
{
    int64_t tokens = 0, requests = 0;
    e->draft.budget = e->options.prompt_tokens;
    bool is_decoding = true; /* alone: a step with prompts is long, and proposals would make it longer */
    for (int i = 0; i < e->count; i++) {
        tarn__request *r = e->request[i];
        r->draft.wanted = r->draft.fed = 0;
        tokens += r->planned;
        requests += r->planned > 0;
        is_decoding = is_decoding && (r->planned == 0 || (r->planned == 1 && r->count - r->computed == 1));
    }
    for (int i = 0; is_decoding && i < e->count; i++) {
        tarn__request *r = e->request[i];
        r->is_paying = r->is_paying && tokens < TARN__ENGINE_TIMED_TOKENS;
        if (r->planned == 1 && r->draft_tokens > 0 && tokens < TARN__ENGINE_TIMED_TOKENS)
            tokens += propose(e, r, tokens, requests);
    }
    if (e->draft.model && is_decoding && !propose_drafted(e))
        return false;
    e->decoding_tokens = 0;
    for (int i = 0; is_decoding && i < e->count; i++)
        e->decoding_tokens += e->request[i]->planned;
    return true;
}

/* What the draft has made for a step and the grammar did not allow took its time, too: it counts as rejected. */
void tarn__engine_note_accepted(tarn_engine *e, tarn__request *r)
{
    int64_t accepted = r->proposed > 0 ? r->ids - 1 : 0, known = r->count + accepted;
    int64_t drafted = r->draft.made < r->draft.wanted ? r->draft.made : r->draft.wanted,
            tried = drafted > r->proposed ? drafted : r->proposed;
    r->draft.computed = r->draft.computed < known ? r->draft.computed : known;
    r->draft.made = 0;
    if (tried == 0)
        return;
    e->stats.proposed_tokens += r->proposed;
    e->stats.accepted_tokens += accepted;
    r->proposed_tokens += r->proposed;
    r->accepted_tokens += accepted;
    r->accepted_part += LEARNING_RATE * ((double)accepted / (double)tried - r->accepted_part);
    r->proposal_length = accepted == tried ? 2 * tried : accepted > 0 ? accepted : FIRST_LENGTH;
    r->proposed = 0;
}
