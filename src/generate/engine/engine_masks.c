/* engine_masks.c: masks of grammars, computed by threads of their own while the steps of other requests go on.
 *
 * The first mask of a grammar's state may take long where the vocabulary is large. After the tokens that a step gave a
 * request with a grammar a worker appends them to the grammar and computes the next mask; a request without its mask is
 * left out of the steps. That the grammar is done is known then, too, so that the request's last output has no token.
 * Which step computes a request never changes its tokens.
 *
 * Where the request speculates, the worker proposes tokens, too, and computes the masks after them, as long as steps
 * wait for masks at most: proposals that the grammar does not allow are never computed by the model.
 *
 * A worker holds the grammar's lock while it computes. Nothing else waits for this lock: the workers take requests of
 * different grammars, and a request that has ended is freed when its grammar is not in use. Work and memory of a mask
 * are bounded (text/grammar/grammar.h); beyond the bound the request fails. */
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "generate/engine/engine.h"
#include "generate/speculate.h"

/* Milliseconds that a step waits for masks: at least this, and this part of the last step, beside other requests; and
 * without any. */
#define MIN_GRACE_MS 0.3
#define GRACE_PART 0.1
#define MAX_IDLE_MS 100.0

/* ---- workers ----------------------------------------------------------------------------------------------------- */

/* The oldest request that wants a mask of a grammar that no other worker has; NULL: none. */
static tarn__request *next_wanted(const tarn_engine *e)
{
    for (int i = 0; i < e->count; i++)
        if (e->request[i]->mask == TARN__MASK_WANTED && !tarn__engine_is_busy(e, e->request[i]))
            return e->request[i];
    return NULL;
}

/* Milliseconds that a step waits for masks beside other requests. */
static double grace(const tarn_engine *e)
{
    return GRACE_PART * e->step_ms > MIN_GRACE_MS ? GRACE_PART * e->step_ms : MIN_GRACE_MS;
}

/* What a worker needs to know, of the time when it had the lock. */
typedef struct job {
    int64_t count, ahead;
    bool is_last, is_drafted; /* is_drafted: the draft model has made the proposals */
    double grace_ms;
} job;

/* Appends the new tokens and computes the mask, and those after proposed tokens, without the engine's lock. The last
 * token of a request needs no mask after it. False with an error. */
static bool compute(tarn__request *r, const job *j)
{
    tarn__constraint *c = &r->constraint;
    while (r->matched < j->count)
        if (!tarn__constraint_accept(c, r->tokens[r->matched++], &r->is_grammar_done))
            return false;
    if (j->is_last || r->is_grammar_done)
        return true;
    if (!tarn__constraint_compute(c))
        return false;
    int32_t *proposed = r->tokens + j->count;
    int64_t found =
        j->ahead == 0 || j->is_drafted ? j->ahead : tarn__propose_ngram(r->tokens, j->count, j->ahead, proposed);
    r->prepared = tarn__constraint_look_ahead(c, proposed, found, 1e-3 * j->grace_ms);
    return true;
}

/* The sentence of the pending error, which is cleared. The caller owns it. NULL: no memory for it. */
static char *take_error(void)
{
    tarn__error_record why;
    tarn__error_save(&why);
    char *sentence = tarn__string_copy(why.text);
    tarn_clear_error();
    return sentence;
}

typedef struct seat {
    tarn_engine *engine;
    int index;
} seat;

static void *work(void *arg)
{
    seat own = *(seat *)arg;
    tarn_engine *e = own.engine;
    tarn__release(arg, sizeof(own));
    tarn__engine_lock(e);
    while (!e->is_closing) {
        tarn__request *r = next_wanted(e);
        if (!r) {
            pthread_cond_wait(&e->mask_wanted, &e->lock);
            continue;
        }
        const job j = {.count = r->count,
                       .ahead = tarn__engine_look_ahead(e, r),
                       .is_last = r->count == r->max_count,
                       .is_drafted = r->draft.page != NULL,
                       .grace_ms = grace(e)};
        r->mask = TARN__MASK_COMPUTING;
        e->busy[own.index] = r->constraint.grammar;
        tarn__engine_unlock(e);
        bool good = compute(r, &j);
        char *error = good ? NULL : take_error();
        tarn__engine_lock(e);
        e->busy[own.index] = NULL;
        r->mask = TARN__MASK_READY;
        r->has_failed = !good;
        r->mask_error = error;
        pthread_cond_broadcast(&e->mask_wanted); /* another worker may have waited for this grammar */
        pthread_cond_broadcast(&e->changed);
    }
    tarn__engine_unlock(e);
    return NULL;
}

/* Workers block all signals: handlers run in the program's own threads. */
static bool start_worker(tarn_engine *e)
{
    sigset_t all, before;
    seat *own = tarn__alloc(sizeof(*own));
    if (!own)
        return false;
    *own = (seat){e, e->workers};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int problem = pthread_create(&e->worker[e->workers], NULL, work, own);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (problem) {
        tarn__release(own, sizeof(*own));
        return tarn__raise(TARN_ERROR_MEMORY, "a thread for grammars could not be started: %s", strerror(problem));
    }
    e->workers++;
    return true;
}

bool tarn__engine_start_workers(tarn_engine *e)
{
    while (e->workers < TARN__MASK_WORKERS)
        if (!start_worker(e))
            return false;
    return true;
}

void tarn__engine_stop_workers(tarn_engine *e)
{
    tarn__engine_lock(e);
    e->is_closing = true;
    pthread_cond_broadcast(&e->mask_wanted);
    tarn__engine_unlock(e);
    for (int i = 0; i < e->workers; i++)
        pthread_join(e->worker[i], NULL);
    e->workers = 0;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

void tarn__engine_want_mask(tarn_engine *e, tarn__request *r)
{
    if (!r->constraint.grammar || r->prompt_only)
        return;
    r->prepared = 0;
    r->mask = TARN__MASK_WANTED;
    pthread_cond_signal(&e->mask_wanted);
}

void tarn__engine_want_masks_ahead(tarn_engine *e, tarn__request *r)
{
    r->mask = TARN__MASK_WANTED;
    pthread_cond_signal(&e->mask_wanted);
}

bool tarn__request_needs_mask(const tarn__request *r)
{
    return r->mask == TARN__MASK_WANTED || r->mask == TARN__MASK_COMPUTING;
}

bool tarn__engine_is_busy(const tarn_engine *e, const tarn__request *r)
{
    for (int i = 0; r->constraint.grammar && i < e->workers; i++)
        if (e->busy[i] == r->constraint.grammar)
            return true;
    return false;
}

/* Running requests with nothing left to compute but the token whose mask is missing; and the others. */
static void count_running(const tarn_engine *e, int *blocked, int *others)
{
    *blocked = *others = 0;
    for (int i = 0; i < e->count; i++) {
        const tarn__request *r = e->request[i];
        if (r->is_running)
            *(tarn__request_needs_mask(r) && r->count - r->computed == 1 ? blocked : others) += 1;
    }
}

void tarn__engine_wait_for_masks(tarn_engine *e, bool has_others)
{
    int blocked, others;
    struct timespec until = tarn__engine_time_in(has_others ? grace(e) : MAX_IDLE_MS);
    count_running(e, &blocked, &others);
    if (has_others && others == 0)
        return;
    for (bool is_over = false; blocked > 0 && !is_over; count_running(e, &blocked, &others))
        is_over = pthread_cond_timedwait(&e->changed, &e->lock, &until) != 0 || !has_others;
}

/* Queues the last output of a request, with the text that was held back. False with an error. */
static bool finish(tarn_engine *e, tarn__request *r)
{
    tarn__reply *reply = tarn__engine_reply(e, r, -1, r->is_grammar_done ? TARN_FINISH_GRAMMAR : TARN_FINISH_LENGTH);
    tarn__stop_buffer *text = &r->stop_buffer;
    if (!e->options.tokenizer)
        return true;
    if (!tarn__stop_buffer_add_token(text, e->options.tokenizer, r->stream, -1, true) ||
        !tarn__reply_text(e, reply, text->text, text->ready)) {
        e->replies--;
        return false;
    }
    reply->output.finish_reason = text->is_over ? TARN_FINISH_STRING : reply->output.finish_reason;
    return true;
}

void tarn__engine_settle_masks(tarn_engine *e)
{
    for (int i = e->count - 1; i >= 0; i--) {
        tarn__request *r = e->request[i];
        if (r->mask != TARN__MASK_READY)
            continue;
        if (r->has_failed) {
            tarn__engine_fail(e, r, r->mask_error ? r->mask_error : "out of memory");
        } else if (r->is_grammar_done || r->count == r->max_count) {
            if (finish(e, r)) {
                e->stats.finished++;
                tarn__engine_remove(e, r);
            } else {
                tarn__engine_fail(e, r, NULL);
                tarn_clear_error();
            }
        }
    }
}
