/* mistakes.c: what a classifier mistakes: the confusion matrix, and the samples whose own class it finds least
 * probable, by their file where they have one.
 *
 * One pass over the data gives both: the matrix counts every sample, and a sorted list keeps the --mistakes worst.
 * Paths are borrowed from the data during a call, so the list has copies. */
#include <stdlib.h>
#include <string.h>
#include <tarn/predict.h>

#include "cli/cli.h"
#include "cli/train/train.h"

enum { MAX_COLUMNS = 20 }; /* classes of a printed matrix; of more, the most frequent confusions are listed */
enum { MAX_PAIRS = 20 };

typedef struct mistake {
    tarn_prediction prediction;
    char *path; /* owned; NULL: none */
} mistake;

struct tarn__mistakes {
    int64_t classes, max_count, count;
    int64_t *confusion; /* [classes, classes]: samples of class i that were taken for class j */
    mistake *worst;     /* [count], the worst first; capacity max_count */
    bool has_memory;
};

/* Inserts a mistake by the probability of its own class; of equal ones the first in the data comes first.
 * O(max_count) each, which is small. A full list drops its last one. */
static bool insert(tarn__mistakes *m, const tarn_prediction *p)
{
    int64_t at = m->count;
    while (at > 0 && m->worst[at - 1].prediction.label_probability > p->label_probability)
        at--;
    if (at == m->max_count)
        return true;
    char *path = p->path ? strdup(p->path) : NULL;
    if (p->path && !path)
        return m->has_memory = false;
    if (m->count == m->max_count)
        free(m->worst[--m->count].path);
    memmove(&m->worst[at + 1], &m->worst[at], sizeof(m->worst[0]) * (size_t)(m->count - at));
    m->worst[at] = (mistake){*p, path};
    m->count++;
    return true;
}

static bool receive(const tarn_prediction *p, void *ctx)
{
    tarn__mistakes *m = ctx;
    m->confusion[p->label * m->classes + p->predicted]++;
    return p->label == p->predicted || m->max_count == 0 || insert(m, p);
}

/* NULL without a change of *status: nothing was asked for. The caller frees the result. */
tarn__mistakes *tarn__mistakes_find(const tarn__options *options, tarn_run *run, int *status)
{
    if (!options->confusion && !options->mistakes)
        return NULL;
    tarn__mistakes *m = calloc(1, sizeof(*m));
    if (m) {
        m->classes = tarn_run_classes(run);
        m->max_count = options->mistakes;
        m->confusion = calloc((size_t)(m->classes * m->classes), sizeof(int64_t));
        /* one more than asked for, so that none is not a calloc() of 0 bytes */
        m->worst = calloc((size_t)m->max_count + 1, sizeof(mistake));
        m->has_memory = m->confusion && m->worst;
    }
    if (m && m->has_memory && tarn_run_predict_data(run, options->data, options->batch_size, receive, m) &&
        m->has_memory)
        return m;
    if (!m || !m->has_memory)
        fprintf(stderr, "tarn eval: out of memory\n");
    else
        tarn__print_error("eval");
    tarn__mistakes_free(m);
    *status = TARN__FAILED;
    return NULL;
}

void tarn__mistakes_free(tarn__mistakes *m)
{
    for (int64_t i = 0; m && i < m->count; i++)
        free(m->worst[i].path);
    if (m) {
        free(m->worst);
        free(m->confusion);
    }
    free(m);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Rows are the classes of the samples, columns those predicted, in the same order. */
static void print_matrix(const tarn__mistakes *m, const tarn_run *run)
{
    tarn__heading("confusion: predicted classes, in the order of the rows");
    for (int64_t i = 0; i < m->classes; i++) {
        printf("  %-16s", tarn__escaped(tarn_run_class_name(run, i)));
        for (int64_t j = 0; j < m->classes; j++)
            printf(" %5lld", (long long)m->confusion[i * m->classes + j]);
        printf("\n");
    }
}

/* The most frequent confusions; O(pairs · classes²), with few pairs. */
static void print_pairs(const tarn__mistakes *m, const tarn_run *run)
{
    int64_t last = INT64_MAX, last_at = -1, cells = m->classes * m->classes;
    tarn__heading("most frequent confusions");
    for (int k = 0; k < MAX_PAIRS; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < cells; i++) {
            /* the next in the order of count, then place: the matrix stays as it is, without a list to sort */
            bool is_next = m->confusion[i] < last || (m->confusion[i] == last && i > last_at);
            if (i / m->classes != i % m->classes && m->confusion[i] > 0 && is_next &&
                (best < 0 || m->confusion[i] > m->confusion[best]))
                best = i;
        }
        if (best < 0)
            return;
        last = m->confusion[best];
        last_at = best;
        printf("  %6lld  %s", (long long)last, tarn__escaped(tarn_run_class_name(run, best / m->classes)));
        printf(" taken for %s\n", tarn__escaped(tarn_run_class_name(run, best % m->classes)));
    }
}

void tarn__mistakes_print(const tarn__mistakes *m, const tarn__options *options, const tarn_run *run)
{
    if (options->confusion && m->classes <= MAX_COLUMNS)
        print_matrix(m, run);
    else if (options->confusion)
        print_pairs(m, run);
    if (!options->mistakes)
        return;
    tarn__heading("worst mistakes");
    for (int64_t i = 0; i < m->count; i++) {
        const tarn_prediction *p = &m->worst[i].prediction;
        if (m->worst[i].path)
            printf("  %s: ", tarn__escaped(m->worst[i].path));
        else
            printf("  sample %lld: ", (long long)p->index);
        printf("%s %.1f %%", tarn__escaped(tarn_run_class_name(run, p->label)), 100 * p->label_probability);
        printf(", taken for %s %.1f %%\n", tarn__escaped(tarn_run_class_name(run, p->predicted)), 100 * p->probability);
    }
    if (m->count == 0)
        printf("  none\n");
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* "confusion": [[…]], rows and columns in the order of "classes"; "mistakes": [{…}]. */
void tarn__mistakes_print_json(const tarn__mistakes *m, const tarn__options *options, const tarn_run *run,
                               tarn__json *json)
{
    if (options->confusion)
        tarn__json_open(json, "confusion", '[');
    for (int64_t i = 0; options->confusion && i < m->classes; i++) {
        tarn__json_open(json, NULL, '[');
        for (int64_t j = 0; j < m->classes; j++)
            tarn__json_int(json, NULL, m->confusion[i * m->classes + j]);
        tarn__json_close(json, ']');
    }
    if (options->confusion)
        tarn__json_close(json, ']');
    if (!options->mistakes)
        return;
    tarn__json_open(json, "mistakes", '[');
    for (int64_t i = 0; i < m->count; i++) {
        const tarn_prediction *p = &m->worst[i].prediction;
        tarn__json_open(json, NULL, '{');
        tarn__json_int(json, "index", p->index);
        if (m->worst[i].path)
            tarn__json_string(json, "image", m->worst[i].path);
        tarn__json_string(json, "class", tarn_run_class_name(run, p->label));
        tarn__json_real(json, "probability", p->label_probability, 6);
        tarn__json_string(json, "predicted", tarn_run_class_name(run, p->predicted));
        tarn__json_real(json, "predicted_probability", p->probability, 6);
        tarn__json_close(json, '}');
    }
    tarn__json_close(json, ']');
}
