/* sequences.c: the sequences of `tarn generate`.
 *
 * Several of them are requests of an engine, as those of `tarn serve`: the prompt's full pages are computed and kept
 * once. A context that slides, which an engine cannot do, is left to the generator, which computes the same tokens with
 * a cache of its own for each sequence. */
#include "cli/lm/sequences.h"

#define PAGE_TOKENS 64

/* True if an engine computes the sequences. */
static bool uses_engine(const tarn__sequences_plan *plan)
{
    return plan->generator.sequences > 1 && plan->prompt->count + plan->each.max_tokens <= plan->generator.context;
}

/* ---- engine ------------------------------------------------------------------------------------------------------ */

/* A cache of the prompt's full pages once, the other pages of each sequence, and a page to spare, without which the
 * last sequence would wait. */
static int64_t cache_bytes(const tarn__sequences_plan *plan)
{
    int64_t shared = (plan->prompt->count - 1) / PAGE_TOKENS,
            own = (plan->generator.context + PAGE_TOKENS - 1) / PAGE_TOKENS - shared;
    return (shared + plan->generator.sequences * own + 1) * PAGE_TOKENS *
           tarn__lm_token_bytes(plan->info, plan->generator.kv_type);
}

static bool begin_engine(tarn__sequences *s, const tarn__sequences_plan *plan)
{
    const tarn_generator_options *o = &plan->generator;
    s->engine = tarn_engine_new(plan->model, &(tarn_engine_options){.context = o->context,
                                                                    .sequences = o->sequences,
                                                                    .kv_bytes = cache_bytes(plan),
                                                                    .kv_type = o->kv_type,
                                                                    .prompt_tokens = o->prefill_chunk,
                                                                    .tokenizer = plan->tokenizer});
    tarn_generate_options each = plan->each;
    each.slide = false; /* it fits */
    bool good = s->engine != NULL;
    for (int64_t i = 0; good && i < o->sequences; i++, each.seed++)
        good = tarn_engine_add(s->engine, plan->prompt->tokens, plan->prompt->count, &each) > 0;
    return good;
}

/* Requests are numbered from 1 in the order of the sequences. */
static bool next_of_engine(tarn_engine *engine, tarn_output *output, int64_t *cached)
{
    tarn_engine_output from;
    while (!tarn_engine_next(engine, &from))
        if (tarn_failed() || tarn_engine_step(engine) <= 0)
            return false;
    if (from.finish_reason == TARN_FINISH_ERROR)
        return tarn_set_error(TARN_ERROR_FORMAT, "%s", from.error);
    *cached = from.shared;
    *output = (tarn_output){.sequence = from.request - 1,
                            .token = from.token,
                            .text = from.text,
                            .length = from.length,
                            .finish_reason = from.finish_reason,
                            .logprob = from.logprob,
                            .top_logprobs = from.top_logprobs,
                            .top_logprob_count = from.top_logprob_count};
    return true;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

static bool begin_generator(tarn__sequences *s, const tarn__sequences_plan *plan)
{
    s->generator = tarn_generator_new(plan->model, plan->tokenizer, &plan->generator);
    tarn_generate_options each = plan->each;
    bool good = s->generator != NULL;
    for (int64_t i = 0; good && i < plan->generator.sequences; i++, each.seed++)
        good = tarn_generator_prompt(s->generator, i, plan->prompt->tokens, plan->prompt->count, &each);
    return good;
}

bool tarn__sequences_begin(tarn__sequences *s, const tarn__sequences_plan *plan)
{
    return uses_engine(plan) ? begin_engine(s, plan) : begin_generator(s, plan);
}

bool tarn__sequences_next(tarn__sequences *s, tarn_output *output, int64_t *cached)
{
    *cached = 0;
    return s->engine ? next_of_engine(s->engine, output, cached) : tarn_generator_next(s->generator, output);
}

void tarn__sequences_free(tarn__sequences *s)
{
    tarn_engine_free(s->engine);
    tarn_generator_free(s->generator);
    *s = (tarn__sequences){0};
}
