/* async_checkpoint.c: checkpoints written by a background thread while training continues.
 *
 * Copying weights and optimizer state from a device takes a fraction of the time that the disk needs. So they are
 * copied to in-memory files, whose memory the next checkpoint reuses, and a thread performs the writes of
 * tarn__checkpoint_save(): the same files in the same order. A kill meanwhile leaves the previous checkpoint.
 *
 * One write is in flight at a time. The thread touches nothing but this struct; errors of a thread are thread-local, so
 * its error is carried over in `error` and raised by the next wait. */
#include "train/output/async_checkpoint.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/platform.h"
#include "core/device/device.h"

#define MEMORY_FRACTION 8 /* a checkpoint may take 1 / 8 of the host's memory */

struct tarn__async_checkpoint {
    tarn__memfiles files;
    tarn__checkpoint_renames renames;
    pthread_t thread;
    bool is_running;        /* the thread was started and not joined; main thread only */
    atomic_bool has_failed; /* set last by the thread: `error` is valid */
    tarn__error_record error;
};

/* Runs on the thread, or on the caller's if no thread could be started. */
static bool write_all(const tarn__async_checkpoint *c)
{
    bool good = tarn__memfiles_write(&c->files);
    for (int i = 0; good && i < TARN__CHECKPOINT_FILES; i++)
        good = !c->renames.from[i].text[0] ||
               tarn__file_rename("trainer_run", c->renames.from[i].text, c->renames.to[i].text);
    return good;
}

/* The error is stored before the flag: a reader that sees the flag sees the error. */
static void *run(void *ctx)
{
    tarn__async_checkpoint *c = ctx;
    if (!write_all(c)) {
        tarn__error_save(&c->error);
        atomic_store(&c->has_failed, true);
    }
    return NULL;
}

/* Starts the thread with all signals blocked: they are meant for the program's own threads. False: no thread. */
static bool start(tarn__async_checkpoint *c)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->is_running = pthread_create(&c->thread, NULL, run, c) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return c->is_running;
}

bool tarn__async_checkpoint_wait(tarn__async_checkpoint *c)
{
    if (!c || !c->is_running)
        return true;
    pthread_join(c->thread, NULL);
    c->is_running = false;
    if (!atomic_exchange(&c->has_failed, false))
        return true;
    /* an error of the run itself takes precedence */
    if (!tarn_failed())
        tarn__error_restore(&c->error);
    return false;
}

bool tarn__async_checkpoint_poll(tarn__async_checkpoint *c)
{
    return !c || !atomic_load(&c->has_failed) || tarn__async_checkpoint_wait(c);
}

void tarn__async_checkpoint_free(tarn__async_checkpoint *c)
{
    if (!c)
        return;
    if (c->is_running)
        pthread_join(c->thread, NULL);
    tarn__memfiles_free(&c->files);
    tarn__release(c, sizeof(*c));
}

/* The copy is in host memory, in addition to a CPU run's own memory. */
static bool fits_in_memory(const tarn_trainer *t)
{
    int64_t copy = t->weight_bytes + t->state_bytes, needed = tarn__is_cpu(t->device) ? t->memory_needed : 0;
    int64_t free_bytes = tarn__is_cpu(t->device) ? t->memory_free : tarn__platform_memory_free();
    return copy <= tarn__platform_memory_total() / MEMORY_FRACTION && (free_bytes == 0 || needed + copy <= free_bytes);
}

/* Without a thread the files are written here; so are those that several ranks write together, which exchange messages
 * meanwhile. */
bool tarn__async_checkpoint_save(tarn_trainer *t)
{
    if (!tarn__async_checkpoint_wait(t->async_checkpoint))
        return false;
    if (!tarn__ranks_is_first(&t->ranks) || tarn__is_sharded(&t->options) || !fits_in_memory(t))
        return tarn__checkpoint_save(t);
    if (!t->async_checkpoint && !(t->async_checkpoint = tarn__alloc(sizeof(*t->async_checkpoint))))
        return false;
    return tarn__checkpoint_snapshot(t, &t->async_checkpoint->files, &t->async_checkpoint->renames) &&
           (start(t->async_checkpoint) || write_all(t->async_checkpoint));
}
