/* async_checkpoint.c: checkpoints that are written while the run goes on.
 *
 * Reading a model and its moments from a device takes a fraction of the time that a disk takes to have them. So they
 * are read into memory, which the next checkpoint uses again, and a thread of its own does what tarn__checkpoint_save()
 * would have done: the same files in the same order. Whoever stops the program meanwhile leaves the checkpoint before.
 */
#include "train/output/async_checkpoint.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "core/device/device.h"

#define SHARE 8 /* of the host's memory that a checkpoint may take */

struct tarn__async_checkpoint {
    tarn__memfiles kept;
    tarn__checkpoint_renames renaming;
    pthread_t thread;
    bool is_running;          /* the thread was started, and not waited for */
    atomic_bool has_failed;   /* the thread has ended with an error: */
    tarn__error_record error; /* this one */
};

static bool write_all(const tarn__async_checkpoint *b)
{
    bool good = tarn__memfiles_write(&b->kept);
    for (int i = 0; good && i < TARN__CHECKPOINT_FILES; i++)
        good = tarn__file_rename("trainer_run", b->renaming.from[i].text, b->renaming.to[i].text);
    return good;
}

static void *run(void *ctx)
{
    tarn__async_checkpoint *b = ctx;
    if (!write_all(b)) {
        tarn__error_save(&b->error);
        atomic_store(&b->has_failed, true);
    }
    return NULL;
}

/* Signals are for the program's own threads. False: there is no thread to be had. */
static bool start(tarn__async_checkpoint *b)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    b->is_running = pthread_create(&b->thread, NULL, run, b) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return b->is_running;
}

bool tarn__async_checkpoint_wait(tarn__async_checkpoint *b)
{
    if (!b || !b->is_running)
        return true;
    pthread_join(b->thread, NULL);
    b->is_running = false;
    if (!atomic_exchange(&b->has_failed, false))
        return true;
    if (!tarn_failed())
        tarn__error_restore(&b->error);
    return false;
}

bool tarn__async_checkpoint_poll(tarn__async_checkpoint *b)
{
    return !b || !atomic_load(&b->has_failed) || tarn__async_checkpoint_wait(b);
}

void tarn__async_checkpoint_free(tarn__async_checkpoint *b)
{
    if (!b)
        return;
    if (b->is_running)
        pthread_join(b->thread, NULL);
    tarn__memfiles_free(&b->kept);
    tarn__release(b, sizeof(*b));
}

/* The copy lies in the host's memory, beside all that the run itself takes there. */
static bool has_room(const tarn_trainer *t)
{
    int64_t copy = t->weight_bytes + t->state_bytes, needed = tarn__is_cpu(t->device) ? t->memory_needed : 0;
    int64_t free_bytes = tarn__is_cpu(t->device) ? t->memory_free : tarn__platform_memory_free();
    return copy <= tarn__platform_memory_total() / SHARE && (free_bytes == 0 || needed + copy <= free_bytes);
}

bool tarn__async_checkpoint_save(tarn_trainer *t)
{
    if (!tarn__async_checkpoint_wait(t->behind))
        return false;
    if (!has_room(t))
        return tarn__checkpoint_save(t);
    if (!t->behind && !(t->behind = tarn__alloc(sizeof(*t->behind))))
        return false;
    return tarn__checkpoint_snapshot(t, &t->behind->kept, &t->behind->renaming) &&
           (start(t->behind) || write_all(t->behind));
}
