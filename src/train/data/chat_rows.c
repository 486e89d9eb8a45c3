/* chat_rows.c: rows of documents as the samples of a dataset, so that the loader draws, sends and resumes them as any
 * others. */
#include <pthread.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "train/data/chat_dataset.h"
#include "train/data/corpus.h"

typedef struct chat_rows {
    tarn__chat_dataset *chats; /* borrowed */
    int split;
    int64_t all, given;   /* rows that there are, and samples */
    pthread_mutex_t lock; /* one thread asks at a time */
} chat_rows;

/* Row `index`; where fewer are samples than there are, they are spread evenly. Beyond the last training row comes the
 * first of the next round. */
static bool get(int64_t index, void *const *memory, void *ctx)
{
    chat_rows *r = ctx;
    int64_t number = r->given < r->all ? (int64_t)((double)index * (double)r->all / (double)r->given) : index;
    tarn__chat_dataset_rows row = {memory[0], memory[1], memory[2], memory[3]};
    pthread_mutex_lock(&r->lock);
    bool good = tarn__chat_dataset_batch(r->chats, r->split, number, 1, &row);
    pthread_mutex_unlock(&r->lock);
    return good;
}

static void release(void *ctx)
{
    chat_rows *r = ctx;
    pthread_mutex_destroy(&r->lock);
    tarn__release(r, sizeof(*r));
}

tarn_dataset *tarn__chat_samples(const char *function, tarn__chat_dataset *chats, int split, int64_t context,
                                 int64_t count)
{
    static const char *const names[] = {"tokens", "targets", "positions", "starts"};
    tarn__chat_dataset_summary summary;
    tarn_field fields[4];
    tarn__chat_dataset_counts(chats, &summary);
    if (tarn_failed())
        return NULL;
    if (summary.rows[split] < 1) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: there are no documents %s", function,
                    split == TARN__CHAT_TRAINING ? "to train on"
                                                 : "for validation; give a larger val_fraction, or a file as val");
        return NULL;
    }
    for (int i = 0; i < 4; i++)
        fields[i] = (tarn_field){names[i], TARN_I32, TARN_SHAPE(context)};
    chat_rows *r = tarn__alloc(sizeof(*r));
    if (!r)
        return NULL;
    *r = (chat_rows){.chats = chats, .split = split, .all = summary.rows[split], .given = count};
    pthread_mutex_init(&r->lock, NULL);
    return tarn__dataset_new(function, fields, 4, count, get, r, release);
}
