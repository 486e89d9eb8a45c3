/* sum_queue.c: sums over ranks on a thread of their own (sum_queue.h).
 *
 * One lock guards the list and the state of the thread. Tensors of a sum belong to scopes of the caller: the thread
 * creates its own in a scope of its own, and frees none of the caller's. */
#include "parallel/sum_queue.h"

#include <pthread.h>
#include <tarn/autograd.h>

#include "base/error.h"
#include "base/memory.h"

struct tarn__sum_queue {
    const char *function;
    tarn_comm *comm; /* borrowed */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    tarn__sum_item *first, *last; /* those that have not begun; borrowed */
    bool is_busy;                 /* a sum runs */
    bool is_closing;
    bool has_failed; /* since the last wait, with: */
    tarn__error_record error;
};

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static bool run_sum(const tarn__sum_queue *q, const tarn__sum_item *item)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    bool good = scope && tarn__tree_sum(q->function, item->tree, q->comm, item->sum);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good;
}

/* Under the lock, which is released while the sum runs. */
static void run_first(tarn__sum_queue *q)
{
    tarn__sum_item *item = q->first;
    q->first = item->next;
    q->is_busy = true;
    pthread_mutex_unlock(&q->lock);
    bool good = run_sum(q, item);
    pthread_mutex_lock(&q->lock);
    q->is_busy = false;
    if (!good) {
        q->has_failed = true;
        q->first = NULL;
        tarn__error_save(&q->error);
    }
    pthread_cond_broadcast(&q->changed);
}

static void *run(void *queue)
{
    tarn__sum_queue *q = queue;
    pthread_mutex_lock(&q->lock);
    while (!q->is_closing)
        if (q->first)
            run_first(q);
        else
            pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- the caller -------------------------------------------------------------------------------------------------- */

tarn__sum_queue *tarn__sum_queue_new(const char *function, tarn_comm *comm)
{
    tarn__sum_queue *q = tarn__alloc(sizeof(*q));
    if (!q)
        return NULL;
    *q = (tarn__sum_queue){.function = function, .comm = comm};
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    if (pthread_create(&q->thread, NULL, run, q) == 0)
        return q;
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    tarn__release(q, sizeof(*q));
    tarn__raise(TARN_ERROR_MEMORY, "%s: a thread cannot be started", function);
    return NULL;
}

bool tarn__sum_queue_put(tarn__sum_queue *q, tarn__sum_item *item)
{
    pthread_mutex_lock(&q->lock);
    bool good = !q->has_failed;
    item->next = NULL;
    if (good && q->first)
        q->last->next = item;
    else if (good)
        q->first = item;
    if (good)
        q->last = item;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return good || tarn__sum_queue_wait(q);
}

bool tarn__sum_queue_wait(tarn__sum_queue *q)
{
    bool was_failed = tarn_failed();
    pthread_mutex_lock(&q->lock);
    if (was_failed)
        q->first = NULL;
    if (was_failed && q->is_busy)
        tarn__comm_cancel(q->comm);
    while (q->first || q->is_busy)
        pthread_cond_wait(&q->changed, &q->lock);
    bool good = !was_failed && !q->has_failed;
    if (q->has_failed && !was_failed)
        tarn__error_restore(&q->error);
    q->has_failed = false;
    pthread_mutex_unlock(&q->lock);
    return good;
}

void tarn__sum_queue_free(tarn__sum_queue *q)
{
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->is_closing = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    tarn__release(q, sizeof(*q));
}
