/* engine_speculate.c: speculative decoding of an engine's requests: which tokens are proposed, and when they pay.
 *
 * Proposals are n-grams of a request's own tokens (generate/speculate.h). They are computed with the request's next
 * token, in the page that this one is in, so that none takes a page from another request. Every row of logits has the
 * bits of a step of its own by batch invariance, and rows are sampled in order, until a token is another than the one
 * proposed: a request has the same tokens as without.
 *
 * With a grammar the proposals are made when the mask of the next token is (engine_masks.c), as each needs one. A step
 * takes what is known by then.
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

void tarn__engine_note_time(tarn_engine *e, double ms)
{
    int64_t tokens = e->decoding_tokens;
    if (tokens < 1 || tokens > TARN__ENGINE_TIMED_TOKENS)
        return;
    double *known = &e->decode_ms[tokens];
    *known = *known > 0 ? *known + (ms - *known) * (ms < *known ? FASTER : SLOWER) : ms;
}

/* True if `more` tokens of a request are expected to save more time than they take in a step of `tokens` for so many
 * requests. */
static bool pays(const tarn_engine *e, const tarn__request *r, int64_t tokens, int64_t requests, int64_t more)
{
    double now = step_time(e, tokens), then = step_time(e, tokens + more);
    return now > 0 && r->accepted_part * (double)more * step_time(e, requests) / (double)requests > then - now;
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
    return r->draft_tokens > 0 && (r->is_paying || is_due) ? most_proposals(e, r, TARN__ENGINE_PROPOSALS) : 0;
}

/* Proposals after a request's tokens, at most so many: n-grams, or those whose masks are known. */
static int64_t find_proposals(const tarn__request *r, int64_t most)
{
    if (r->constraint.grammar)
        return most < r->prepared ? most : r->prepared;
    return tarn__propose_ngram(r->tokens, r->count, most, r->tokens + r->count);
}

/* Adds proposals to a decoding request's plan; returns their number. */
static int64_t propose(tarn_engine *e, tarn__request *r, int64_t tokens, int64_t requests)
{
    int64_t most = most_proposals(e, r, TARN__ENGINE_TIMED_TOKENS - tokens);
    bool is_due = ++r->steps_without >= TRY_AGAIN;
    r->is_paying = most > 0 && pays(e, r, tokens, requests, most);
    if (most < 1 || !(r->is_paying || is_due))
        return 0;
    if (is_due)
        most = most < FIRST_LENGTH ? most : FIRST_LENGTH;
    int64_t found = find_proposals(r, most);
    if (found > 0)
        r->steps_without = 0;
    r->proposed = found;
    r->planned += found;
    return found;
}

void tarn__engine_propose(tarn_engine *e)
{
    int64_t tokens = 0, requests = 0;
    bool is_decoding = true; /* alone: a step with prompts is long, and proposals would make it longer */
    for (int i = 0; i < e->count; i++) {
        const tarn__request *r = e->request[i];
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
    e->decoding_tokens = is_decoding ? tokens : 0;
}

void tarn__engine_note_accepted(tarn_engine *e, tarn__request *r)
{
    int64_t accepted = r->ids - 1;
    if (r->proposed == 0)
        return;
    e->stats.proposed_tokens += r->proposed;
    e->stats.accepted_tokens += accepted;
    r->proposed_tokens += r->proposed;
    r->accepted_tokens += accepted;
    r->accepted_part += LEARNING_RATE * ((double)accepted / (double)r->proposed - r->accepted_part);
    r->proposal_length = accepted == r->proposed ? 2 * r->proposed : accepted > 0 ? accepted : FIRST_LENGTH;
    r->proposed = 0;
}
