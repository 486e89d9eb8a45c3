/* progress.c: progress of a run, for a display on another thread. Members are separate atomics: a reader may see a new
 * step with the samples of the last one, which a display tolerates. */
#include "base/error.h"
#include "train/trainer.h"

void tarn__progress_enter(tarn_trainer *t, tarn_train_phase phase)
{
    atomic_store(&t->progress.samples, 0);
    atomic_store(&t->progress.step, t->state.step);
    atomic_store(&t->progress.phase, (int)phase);
}

void tarn__progress_in_step(tarn_trainer *t, int64_t samples)
{
    atomic_store(&t->progress.samples, samples);
}

bool tarn_trainer_progress(const tarn_trainer *trainer, tarn_train_progress *progress)
{
    if (tarn_failed())
        return false;
    if (!trainer || !progress)
        return tarn__raise(TARN_ERROR_ARGUMENT, "trainer_progress: the %s is NULL", trainer ? "result" : "trainer");
    *progress = (tarn_train_progress){.phase = (tarn_train_phase)atomic_load(&trainer->progress.phase),
                                      .step = atomic_load(&trainer->progress.step),
                                      .steps = trainer->steps,
                                      .fraction = (double)atomic_load(&trainer->progress.samples) /
                                                  (double)trainer->batch_size};
    return true;
}
