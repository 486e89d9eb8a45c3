/* ranks.c: the place of a process in a data-parallel run, what all ranks must agree on, and its end (ranks.h). */
#include "train/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/xxh64.h"
#include "data/prefetch.h"
#include "parallel/comm.h"
#include "train/options.h"
#include "train/trainer.h"

enum { MIN_VIRTUAL_RANKS = 8 }; /* of a run that is started on several ranks: 2, 4 and 8 can resume it */

/* ---- virtual ranks ----------------------------------------------------------------------------------------------- */

/* "1, 2, 4 or 8": the divisors of a number. */
static const char *list_divisors(int64_t number, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int64_t i = 1; i <= number && used + 1 < size; i++)
        if (number % i == 0)
            used += (size_t)snprintf(text + used, size - used, "%s%" PRId64,
                                     i == 1        ? ""
                                     : i == number ? " or "
                                                   : ", ",
                                     i);
    return text;
}

/* A new run has as many as asked for, else 1 on one rank, else the smallest multiple of the ranks that is at least
 * MIN_VIRTUAL_RANKS; with a fast reduction as many as ranks. A resumed run keeps its own. */
static int64_t count_virtual_ranks(const tarn_trainer *t)
{
    int64_t size = t->ranks.size, given = t->options.virtual_ranks;
    if (given || t->is_resumed || size == 1)
        return given ? given : 1;
    if (t->ranks.is_fast)
        return size;
    return (MIN_VIRTUAL_RANKS + size - 1) / size * size;
}

bool tarn__ranks_open(const char *function, tarn_trainer *t)
{
    tarn__ranks *r = &t->ranks;
    char text[256];
    r->comm = t->options.comm;
    r->rank = r->comm ? tarn_comm_rank(r->comm) : 0;
    r->size = r->comm ? tarn_comm_size(r->comm) : 1;
    r->is_fast = strcmp(t->options.reduce, "fast") == 0;
    r->virtual_ranks = count_virtual_ranks(t);
    if (r->virtual_ranks > 1)
        t->options.virtual_ranks = r->virtual_ranks;
    if (r->comm && t->options.rank_timeout > 0)
        tarn_comm_set_timeout(r->comm, t->options.rank_timeout);
    if (r->is_fast && r->virtual_ranks < r->size)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: %d ranks exceed the run's virtual_ranks, %" PRId64 "; start at most that many",
                           function, r->size, r->virtual_ranks);
    if (!r->is_fast && r->virtual_ranks % r->size != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: %d ranks do not divide the run's virtual_ranks, %" PRId64 "; start %s", function,
                           r->size, r->virtual_ranks, list_divisors(r->virtual_ranks, text, sizeof(text)));
    if (!t->is_batch_given && !t->is_resumed)
        t->options.batch_size = (t->options.batch_size + r->virtual_ranks - 1) / r->virtual_ranks * r->virtual_ranks;
    return true;
}

bool tarn__ranks_check_batch(const char *function, const tarn_trainer *t)
{
    int64_t shares = t->ranks.virtual_ranks;
    if (t->batch_size % shares != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: a batch_size of %" PRId64 " cannot be divided among %" PRId64
                           " virtual_ranks; must be a multiple",
                           function, t->batch_size, shares);
    return t->batch_size % (shares * t->micro_batch) == 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: a micro_batch of %" PRId64 " does not divide the %" PRId64
                       " samples of a virtual rank: batch_size %" PRId64 ", virtual_ranks %" PRId64,
                       function, t->micro_batch, t->batch_size / shares, t->batch_size, shares);
}

/* Why sums of gradients cannot run during the backward pass; NULL: they can. */
static const char *overlap_obstacle(const tarn_trainer *t)
{
    if (t->options.sync_batchnorm)
        return "with sync_batchnorm the backward pass itself exchanges statistics";
    if (t->ranks.comm && t->ranks.comm->is_single_threaded)
        return "this MPI library allows calls from one thread only";
    return t->ranks.virtual_ranks == 1 ? "the run has one virtual rank: there are no gradients to exchange" : NULL;
}

/* True where a processor is idle while ranks exchange gradients through host memory: it waits for a device, or for
 * another machine. On the CPUs of one machine a sum takes the cores that compute. */
static bool overlap_pays(const tarn_trainer *t)
{
    const tarn_comm *comm = t->ranks.comm;
    bool is_far = false;
    for (int i = 1; i < comm->size; i++)
        is_far = is_far || strcmp(comm->host[i], comm->host[0]) != 0;
    return !comm->link && (is_far || !tarn_device_equal(t->device, tarn_device_cpu()));
}

bool tarn__ranks_plan_overlap(const char *function, tarn_trainer *t)
{
    const char *mode = t->options.overlap, *obstacle = overlap_obstacle(t);
    bool is_on = strcmp(mode, "on") == 0;
    if (is_on && obstacle)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: overlap is on, but %s; use overlap auto", function, obstacle);
    bool is_auto = !is_on && strcmp(mode, "off") != 0 && strcmp(t->options.capture, "on") != 0;
    t->ranks.overlaps = t->ranks.size > 1 && !obstacle && (is_on || (is_auto && overlap_pays(t)));
    return true;
}

void tarn__ranks_select(tarn_trainer *t)
{
    const tarn__ranks *r = &t->ranks;
    if (r->virtual_ranks > 1)
        tarn__loader_select(t->loader, t->steps_in_epoch * (t->batch_size / t->micro_batch), r->virtual_ranks,
                            tarn__ranks_first(r, r->rank), tarn__ranks_first(r, r->rank + 1));
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

/* What ranks compare. */
typedef struct fingerprint {
    uint64_t data, options;
    char level[160]; /* of instructions, on the CPU */
} fingerprint;

static fingerprint fingerprint_of(const tarn_trainer *t)
{
    fingerprint f = {.options = tarn__train_options_hash(&t->options)};
    const tarn__data_spec *d = &t->data_spec;
    const int64_t data[] = {(int64_t)d->hash,      d->training_tokens, d->validation_tokens, d->training_samples,
                            d->validation_samples, d->classes,         t->steps_in_epoch};
    f.data = tarn__xxh64_of(data, sizeof(data));
    tarn__instruction_level(t, f.level, sizeof(f.level));
    return f;
}

/* Raises where a rank differs from rank 0; all ranks see all fingerprints, so that all fail alike. */
static bool check_fingerprints(const char *function, const tarn_trainer *t, const fingerprint *all)
{
    for (int i = 1; i < t->ranks.size; i++) {
        const char *host = tarn_comm_host(t->ranks.comm, i);
        if (all[i].data != all[0].data)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: the data of rank %d on %s differs from that of rank 0: hash %016" PRIx64
                               ", not %016" PRIx64,
                               function, i, host, all[i].data, all[0].data);
        if (all[i].options != all[0].options)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the options of rank %d on %s differ from those of rank 0",
                               function, i, host);
        if (strcmp(all[i].level, all[0].level) != 0)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: rank %d on %s has the instruction level %s, rank 0 %s; results would differ",
                               function, i, host, all[i].level, all[0].level);
    }
    return true;
}

static bool gather(const tarn_trainer *t, const void *own, void *all, size_t bytes)
{
    size_t list_bytes = sizeof(size_t) * (size_t)t->ranks.size, *sizes = tarn__alloc(list_bytes);
    for (int i = 0; sizes && i < t->ranks.size; i++)
        sizes[i] = bytes;
    bool good = sizes && tarn_comm_all_gather(t->ranks.comm, own, all, sizes);
    tarn__release(sizes, list_bytes);
    return good;
}

/* The first wait: ranks may need minutes to read their data. */
bool tarn__ranks_compare(const char *function, tarn_trainer *t)
{
    if (t->ranks.size == 1)
        return true;
    size_t bytes = sizeof(fingerprint) * (size_t)t->ranks.size;
    fingerprint own = fingerprint_of(t), *all = tarn__alloc(bytes);
    double timeout = tarn__ranks_extend_timeout(&t->ranks, 0);
    bool good = all && tarn__ranks_wait(t) && gather(t, &own, all, sizeof(own)) &&
                check_fingerprints(function, t, all) &&
                tarn__ranks_broadcast(t, t->options.out, sizeof(t->options.out));
    tarn__ranks_set_timeout(&t->ranks, timeout);
    good = good && (t->is_dry_run || tarn_comm_connect(t->ranks.comm, t->device) || tarn__raise_within(function));
    tarn__release(all, bytes);
    return good;
}

/* ---- tuning ------------------------------------------------------------------------------------------------------ */

/* Lines of text, one after another. */
typedef struct line_list {
    char *text;
    size_t used, capacity;
    bool is_good;
} line_list;

static void add_line(void *ctx, const char *line)
{
    line_list *list = ctx;
    size_t length = strlen(line) + 1;
    if (list->used + length > list->capacity) {
        size_t capacity = 2 * (list->used + length);
        char *more = tarn__alloc(capacity);
        list->is_good = list->is_good && more;
        if (!more)
            return;
        if (list->used)
            memcpy(more, list->text, list->used);
        tarn__release(list->text, list->capacity);
        list->text = more;
        list->capacity = capacity;
    }
    memcpy(list->text + list->used, line, length);
    list->used += length;
}

/* Rank 0's results replace those of the others. */
bool tarn__ranks_share_tuning(const tarn_trainer *t)
{
    const tarn__backend *backend = tarn__backend_of(t->device, "trainer_run");
    line_list list = {.is_good = backend != NULL};
    bool is_first = t->ranks.rank == 0;
    if (is_first && list.is_good && backend->tuning_export)
        backend->tuning_export(t->device.index, add_line, &list);
    uint64_t bytes = list.used;
    bool good = list.is_good && tarn__ranks_broadcast(t, &bytes, sizeof(bytes));
    if (good && !is_first && bytes) {
        list = (line_list){.text = tarn__alloc((size_t)bytes), .used = (size_t)bytes, .capacity = (size_t)bytes};
        good = list.text != NULL;
    }
    good = good && (!bytes || tarn__ranks_broadcast(t, list.text, (size_t)bytes));
    for (size_t at = 0; good && !is_first && backend->tuning_import && at < list.used; at += strlen(list.text + at) + 1)
        backend->tuning_import(t->device.index, list.text + at);
    tarn__release(list.text, list.capacity);
    return good;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Any rank may be the late one: rank 0 writes, and another one reads more slowly than rank 0. */
bool tarn__ranks_wait(const tarn_trainer *t)
{
    if (t->ranks.size == 1)
        return true;
    double timeout = tarn__ranks_extend_timeout(&t->ranks, TARN__WRITING_TIME);
    bool good = tarn_comm_barrier(t->ranks.comm);
    tarn__ranks_set_timeout(&t->ranks, timeout);
    return good;
}

bool tarn__ranks_broadcast(const tarn_trainer *t, void *memory, size_t bytes)
{
    if (t->ranks.size == 1)
        return true;
    double timeout = tarn__ranks_extend_timeout(&t->ranks, TARN__WRITING_TIME);
    bool good = tarn_comm_broadcast(t->ranks.comm, 0, memory, bytes);
    tarn__ranks_set_timeout(&t->ranks, timeout);
    return good;
}

bool tarn__ranks_gather(const tarn__ranks *r, const void *own, void *all, const size_t *bytes)
{
    double timeout = tarn__ranks_extend_timeout(r, TARN__WRITING_TIME);
    bool good = tarn_comm_all_gather(r->comm, own, all, bytes);
    tarn__ranks_set_timeout(r, timeout);
    return good;
}

double tarn__ranks_extend_timeout(const tarn__ranks *r, double factor)
{
    double before = r->comm ? r->comm->timeout : 0;
    tarn__ranks_set_timeout(r, factor * before);
    return before;
}

void tarn__ranks_set_timeout(const tarn__ranks *r, double seconds)
{
    if (r->comm)
        r->comm->timeout = seconds;
}

bool tarn__ranks_is_stopped(const tarn_trainer *t)
{
    return t->ranks.size == 1 ? atomic_load(&t->stop) : t->ranks.is_stopped;
}

/* Names this rank and the step in the pending error of a run. Errors about a step that all ranks have found name it. */
static void add_place(const tarn_trainer *t, const char *text)
{
    const tarn__ranks *r = &t->ranks;
    tarn__error_record pending;
    const char *host = r->comm->host[r->rank];
    tarn__error_save(&pending);
    if (strncmp(text, "trainer_run: step ", strlen("trainer_run: step ")) == 0)
        tarn__error_restore(&pending);
    else
        tarn__raise(pending.code, "rank %d on %s: step %" PRId64 ": %.700s", r->rank, host, t->state.step + 1, text);
}

/* The failure of another rank names its place already. */
void tarn__ranks_fail(const tarn_trainer *t, bool is_running)
{
    char text[TARN__COMM_TEXT];
    const char *error = tarn_error();
    if (t->ranks.size == 1 || !tarn_failed())
        return;
    snprintf(text, sizeof(text), "%s", error + (strncmp(error, "tarn: ", 6) == 0 ? 6 : 0));
    if (is_running && !t->ranks.comm->is_broken) {
        char own[TARN__COMM_TEXT];
        memcpy(own, text, sizeof(own));
        add_place(t, own);
        snprintf(text, sizeof(text), "step %" PRId64 ": %.700s", t->state.step + 1, own);
    }
    tarn_comm_abort(t->ranks.comm, text);
}
