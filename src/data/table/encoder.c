/* encoder.c: learns from the training rows of a table how its rows become inputs and labels.
 *
 * One-hot vectors, not embeddings: the first layer of a network over a one-hot vector is an embedding, and the input
 * stays one array of numbers that any model takes. A word that occurs once teaches nothing but the row it stands in;
 * together such words train the place of those that will occur at prediction only. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number_format.h"
#include "data/random.h"
#include "data/table/table.h"

/* Up to this many different integers a target is taken for classes if nothing else is said. */
enum { MAX_AUTO_CLASSES = 20, MAX_CLASSES = 65536 };
/* Of the rows with a target. */
#define DEFAULT_VAL_FRACTION 0.1

/* Adds a sentence to the notes. */
static bool note(tarn_table_encoder *e, const char *format, ...) TARN_PRINTF(2, 3);
static bool note(tarn_table_encoder *e, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return (e->notes.count == 0 || tarn__buffer_add(&e->notes, "\n", 1, 1)) &&
           tarn__buffer_add(&e->notes, text, strlen(text), 1);
}

/* ---- the split --------------------------------------------------------------------------------------------------- */

/* The class of a row for the split, from 1; 0: an unknown class, or a regression; -1: without a target. */
static int class_of(const tarn_table_encoder *e, const tarn__column *target, int64_t row)
{
    char number[32];
    const char *text = tarn__table_text(target, row, number);
    if (!text)
        return -1;
    return e->is_regression ? 0 : tarn__words_find(&e->classes, text) + 1;
}

/* Sorts rows by class, stable in their shuffled order. first[c] is where class c begins; [classes + 1]. */
static void sort_by_class(const int64_t *shuffled, int64_t count, const int32_t *class, int64_t *first, int classes,
                          int64_t *order)
{
    memset(first, 0, sizeof(int64_t) * (size_t)(classes + 1));
    for (int64_t i = 0; i < count; i++)
        if (class[i] >= 0)
            first[class[i] + 1]++;
    for (int c = 0; c < classes; c++)
        first[c + 1] += first[c];
    for (int64_t i = 0; i < count; i++) /* first[c] moves to the end of class c, the begin of the next */
        if (class[shuffled[i]] >= 0)
            order[first[class[shuffled[i]]]++] = shuffled[i];
    memmove(first + 1, first, sizeof(int64_t) * (size_t)classes);
    first[0] = 0;
}

/* Numbers of rows, ascending. */
static int compare_rows(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Every 1/fraction-th of the sorted rows is for validation, so that each class gives its share up to one row; a class
 * of one row is for training. Both parts are in the order of the file. */
static int64_t divide(const int64_t *sorted, const int64_t *first, int classes, double fraction, int64_t *order)
{
    int64_t training = 0, total = first[classes], validation = 0;
    for (int c = 0; c < classes; c++)
        for (int64_t i = first[c]; i < first[c + 1]; i++) {
            bool is_chosen = floor((double)(i + 1) * fraction + .5) > floor((double)i * fraction + .5);
            if (is_chosen && first[c + 1] - first[c] > 1)
                order[total - ++validation] = sorted[i];
            else
                order[training++] = sorted[i];
        }
    if (!validation && fraction > 0 && training > 1) /* few rows: one is enough */
        training--;
    qsort(order, (size_t)training, sizeof(int64_t), compare_rows);
    qsort(order + training, (size_t)(total - training), sizeof(int64_t), compare_rows);
    return training;
}

int64_t tarn__encoder_split(const char *function, const tarn_table *t, const tarn_table_encoder *e, int64_t *order,
                            int64_t *training)
{
    int target = tarn__table_find(t, e->target), classes = e->is_regression ? 1 : e->classes.count + 1;
    size_t rows = (size_t)(t->rows ? t->rows : 1), bytes = sizeof(int64_t) * rows,
           first_bytes = sizeof(int64_t) * (size_t)(classes + 1), class_bytes = sizeof(int32_t) * rows;
    if (target < 0)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: no target column '%.100s'", function, t->path, e->target) - 1;
    /* Shuffled with the key of epoch -1, which no epoch of training uses. */
    int64_t *shuffled = tarn__alloc(bytes), *sorted = tarn__alloc(bytes), *first = tarn__alloc(first_bytes), count = -1;
    int32_t *class = tarn__alloc(class_bytes);
    if (shuffled && sorted && first && class) {
        for (int64_t i = 0; i < t->rows; i++)
            class[i] = class_of(e, &t->column[target], i);
        tarn__shuffled(tarn__epoch_keys_of(e->seed, -1).order, shuffled, t->rows);
        sort_by_class(shuffled, t->rows, class, first, classes, sorted);
        *training = divide(sorted, first, classes, e->val_fraction, order);
        count = first[classes];
    }
    tarn__release(shuffled, bytes);
    tarn__release(sorted, bytes);
    tarn__release(first, first_bytes);
    tarn__release(class, class_bytes);
    return count;
}

/* ---- the target -------------------------------------------------------------------------------------------------- */

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* By value; 1 and 1.0 are the same text before they come here (tarn__table_text()). */
static int compare_numbers(const void *a, const void *b)
{
    double x = tarn__number_parse(*(char *const *)a), y = tarn__number_parse(*(char *const *)b);
    return x < y ? -1 : x > y ? 1 : compare_words(a, b);
}

/* Adds the distinct values of the target, at most `max` of them, then sorts them. */
static bool find_classes(const tarn_table *t, const tarn__column *c, int max, tarn__words *classes)
{
    char number[32];
    tarn__words found = {0};
    bool good = true;
    /* Stops at one class too many, which the caller recognizes. */
    for (int64_t i = 0; good && i < t->rows && found.count <= max; i++) {
        const char *text = tarn__table_text(c, i, number);
        good = !text || tarn__words_add(&found, text) >= 0;
    }
    if (good && found.count)
        qsort(found.word, (size_t)found.count, sizeof(char *), c->is_category ? compare_words : compare_numbers);
    for (int i = 0; good && i < found.count; i++)
        good = tarn__words_add(classes, found.word[i]) >= 0;
    tarn__words_free(&found);
    return good;
}

/* Missing values do not count. */
static bool all_integers(const tarn_table *t, const tarn__column *c)
{
    for (int64_t i = 0; i < t->rows; i++)
        if (!isnan(c->number[i]) && c->number[i] != floor(c->number[i]))
            return false;
    return true;
}

/* Decides the task, and finds the classes. */
static bool set_task(tarn_table_encoder *e, const tarn_table *t, const tarn__column *c, tarn_table_task task)
{
    bool is_auto = task == TARN_TABLE_AUTO;
    e->target_is_category = c->is_category;
    if (task == TARN_TABLE_REGRESS && c->is_category)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "table_encoder_new: %s: the target '%.100s' has words; a regression needs numbers", t->path,
                           c->name);
    if (!find_classes(t, c, is_auto && !c->is_category ? MAX_AUTO_CLASSES : MAX_CLASSES, &e->classes))
        return false;
    /* Such a target is a measurement or an id, which is no class. */
    bool is_each_different = e->classes.count > 2 && e->classes.count == t->rows - c->missing;
    e->is_regression = task == TARN_TABLE_REGRESS ||
                       (is_auto && !c->is_category &&
                        (e->classes.count > MAX_AUTO_CLASSES || is_each_different || !all_integers(t, c)));
    if (e->is_regression) {
        tarn__words_free(&e->classes);
        return note(e, "regression: %s '%.100s' %s", is_auto ? "the target" : "as given, of", c->name,
                    is_auto ? "has many or fractional numbers" : "is the target");
    }
    if (e->classes.count < 2 || e->classes.count > MAX_CLASSES)
        return tarn__raise(TARN_ERROR_FORMAT, "table_encoder_new: %s: the target '%.100s' has %s; must be from 2 to %d",
                           t->path, c->name,
                           e->classes.count < 2 ? "fewer than 2 different values" : "too many classes", MAX_CLASSES);
    if (is_each_different)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "table_encoder_new: %s: every row has its own class in the target '%.100s'; give another "
                           "target%s",
                           t->path, c->name, c->is_category ? "" : ", or the task regress");
    return note(e, "classification: %s '%.100s' has %d %s", is_auto ? "the target" : "as given,", c->name,
                e->classes.count, c->is_category ? "words" : "different integers");
}

/* Mean and standard deviation, by two passes. std is 1 for a constant: rounding noise must not be blown up. */
static void mean_and_std(const double *value, const int64_t *rows, int64_t count, double *mean, double *std)
{
    double sum = 0, squares = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(value[rows[i]])) {
            sum += value[rows[i]];
            n++;
        }
    *mean = n ? sum / (double)n : 0;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(value[rows[i]]))
            squares += (value[rows[i]] - *mean) * (value[rows[i]] - *mean);
    *std = n ? sqrt(squares / (double)n) : 1;
    if (!isfinite(*mean) || !(*std > 1e-9 * fabs(*mean)) || !isfinite(*std))
        *std = 1;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

/* How often a word of the table occurs in the training rows. */
typedef struct word_count {
    const char *word;
    int64_t count;
} word_count;

/* Most frequent first; equal counts by bytes, so that the order does not depend on the file's. */
static int compare_counts(const void *a, const void *b)
{
    const word_count *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count) : strcmp(x->word, y->word);
}

/* Words that occur at least twice in the training rows, most frequent first. */
static bool learn_words(const tarn__column *c, const int64_t *rows, int64_t count, tarn__encoder_input *in)
{
    size_t bytes = sizeof(word_count) * (size_t)(c->words.count ? c->words.count : 1);
    word_count *counts = tarn__alloc(bytes);
    bool good = counts != NULL;
    for (int k = 0; good && k < c->words.count; k++)
        counts[k].word = c->words.word[k];
    for (int64_t i = 0; good && i < count; i++)
        if (c->category[rows[i]] >= 0)
            counts[c->category[rows[i]]].count++;
    if (good)
        qsort(counts, (size_t)c->words.count, sizeof(word_count), compare_counts);
    for (int k = 0; good && k < c->words.count && k < TARN__TABLE_MAX_CATEGORIES && counts[k].count > 1; k++)
        good = tarn__words_add(&in->words, counts[k].word) >= 0;
    tarn__release(counts, bytes);
    return good;
}

/* Learns a column. Returns false with an error; a column that tells nothing gets no name. */
static bool learn_input(tarn_table_encoder *e, const tarn__column *c, const int64_t *rows, int64_t count)
{
    tarn__encoder_input *in = &e->input[e->input_count];
    int64_t missing = 0;
    for (int64_t i = 0; i < count; i++)
        missing += c->is_category ? c->category[rows[i]] < 0 : isnan(c->number[rows[i]]);
    *in = (tarn__encoder_input){.is_category = c->is_category, .has_indicator = missing > 0, .std = 1};
    if (c->is_category ? !learn_words(c, rows, count, in) : false)
        return false;
    if (missing == count || (c->is_category && !in->words.count)) {
        tarn__words_free(&in->words);
        return note(e, "column '%.100s' is left out: %s", c->name,
                    missing == count ? "it has no values" : "its words are all different");
    }
    if (!c->is_category)
        mean_and_std(c->number, rows, count, &in->mean, &in->std);
    else if (c->words.count > TARN__TABLE_MAX_CATEGORIES &&
             !note(e, "column '%.100s' has %d words; the %d most frequent are told apart", c->name, c->words.count,
                   in->words.count))
        return false;
    in->name = tarn__string_copy(c->name);
    e->input_count += in->name != NULL;
    return in->name != NULL;
}

/* Raises an error about a column that does not exist, with the name that may be meant. Returns false. */
static bool raise_unknown(const tarn_table *t, const char *option, const char *name)
{
    const char *names[64];
    int count = t->column_count < 64 ? t->column_count : 64;
    for (int i = 0; i < count; i++)
        names[i] = t->column[i].name;
    const char *near = t->has_header ? tarn_suggest(name, names, count) : NULL;
    return tarn__raise(TARN_ERROR_ARGUMENT,
                       "table_encoder_new: %s: %s: no column '%.100s'; the file has %d columns%s%s%s%s", t->path,
                       option, name, t->column_count, t->has_header ? "" : " and no header line",
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* Marks the columns to drop. Unknown names are errors with a suggestion. */
static bool mark_dropped(const tarn_table *t, const char *drop, int target, bool *is_dropped)
{
    for (const char *at = drop; *at;) {
        size_t length = strcspn(at, ",");
        char name[256];
        snprintf(name, sizeof(name), "%.*s", (int)length, at);
        int column = tarn__table_find(t, name);
        if (column == target)
            return tarn__raise(TARN_ERROR_ARGUMENT, "table_encoder_new: %s: .drop (--drop): the target is '%.100s'",
                               t->path, name);
        if (column < 0)
            return raise_unknown(t, ".drop (--drop)", name);
        is_dropped[column] = true;
        at += length + (at[length] == ',');
    }
    return true;
}

/* Columns that tell nothing are left out with a note, not an error. */
static bool learn_inputs(tarn_table_encoder *e, const tarn_table *t, int target, const int64_t *rows, int64_t count)
{
    size_t bytes = sizeof(bool) * (size_t)t->column_count;
    bool *is_dropped = tarn__alloc(bytes), good = is_dropped && mark_dropped(t, e->drop, target, is_dropped);
    e->input = good ? tarn__alloc(sizeof(*e->input) * (size_t)t->column_count) : NULL;
    good = e->input != NULL;
    e->input_capacity = good ? t->column_count : 0;
    for (int i = 0; good && i < t->column_count; i++)
        if (i != target && !is_dropped[i])
            good = learn_input(e, &t->column[i], rows, count);
    tarn__release(is_dropped, bytes);
    tarn__encoder_number_features(e);
    return good &&
           (e->input_count > 0 || tarn__raise(TARN_ERROR_FORMAT,
                                              "table_encoder_new: %s: no input column is left next to the target "
                                              "'%.100s'",
                                              t->path, e->target));
}

/* ---- creation and release ---------------------------------------------------------------------------------------- */

/* The split comes before the inputs: means, words and missing values are those of the training rows alone. */
static bool learn(tarn_table_encoder *e, const tarn_table *t, const tarn_table_encoder_options *o)
{
    int target = tarn__table_find(t, o->target && o->target[0] ? o->target : "-1");
    size_t bytes = sizeof(int64_t) * (size_t)(t->rows ? t->rows : 1);
    int64_t training, *rows = NULL;
    if (target < 0)
        return raise_unknown(t, ".target (--target)", o->target ? o->target : "");
    const tarn__column *c = &t->column[target];
    e->target = tarn__string_copy(c->name);
    e->drop = tarn__string_copy(o->drop ? o->drop : "");
    e->val_fraction = o->val_fraction < 0 ? 0 : o->val_fraction > 0 ? o->val_fraction : DEFAULT_VAL_FRACTION;
    e->seed = o->seed;
    if (!e->target || !e->drop || !set_task(e, t, c, o->task) || !(rows = tarn__alloc(bytes)))
        return false;
    int64_t count = tarn__encoder_split("table_encoder_new", t, e, rows, &training);
    bool good = count >= 0;
    if (good && (count < 2 || training < 1))
        good =
            tarn__raise(TARN_ERROR_FORMAT, "table_encoder_new: %s: %lld rows have a target; training needs at least 2",
                        t->path, (long long)count);
    if (good && e->is_regression)
        mean_and_std(c->number, rows, training, &e->mean, &e->std);
    good = good && learn_inputs(e, t, target, rows, training);
    if (good && c->missing)
        good = note(e, "%lld rows without a target are left out", (long long)c->missing);
    tarn__release(rows, bytes);
    return good && tarn__buffer_add(&e->notes, "", 1, 1);
}

tarn_table_encoder *tarn__encoder_alloc(void)
{
    tarn_table_encoder *e = tarn__alloc(sizeof(*e));
    if (e)
        e->references = 1;
    return e;
}

tarn_table_encoder *tarn_table_encoder_new_sized(const tarn_table *table, const tarn_table_encoder_options *options,
                                                 size_t options_size)
{
    tarn_table_encoder_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    if (tarn_failed())
        return NULL;
    if (!table || (unsigned)o.task > TARN_TABLE_REGRESS || !(o.val_fraction < 1)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "table_encoder_new: %s",
                    !table                                  ? "the table is NULL"
                    : (unsigned)o.task > TARN_TABLE_REGRESS ? ".task must be TARN_TABLE_AUTO, _CLASSIFY or _REGRESS"
                                                            : ".val_fraction must be below 1");
        return NULL;
    }
    tarn_table_encoder *e = tarn__encoder_alloc();
    if (e && learn(e, table, &o))
        return e;
    tarn_table_encoder_free(e);
    return NULL;
}

tarn_table_encoder *tarn__encoder_retain(tarn_table_encoder *e)
{
    e->references++;
    return e;
}

void tarn_table_encoder_free(tarn_table_encoder *e)
{
    if (!e || --e->references > 0)
        return;
    for (int i = 0; i < e->input_count; i++) {
        tarn__string_free(e->input[i].name);
        tarn__words_free(&e->input[i].words);
    }
    tarn__release(e->input, sizeof(*e->input) * (size_t)e->input_capacity);
    tarn__string_free(e->target);
    tarn__string_free(e->drop);
    tarn__words_free(&e->classes);
    tarn__buffer_free(&e->notes, 1);
    tarn__release(e, sizeof(*e));
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

/* Strings are borrowed from the encoder. */
bool tarn_table_encoder_query(const tarn_table_encoder *e, tarn_table_encoder_info *info)
{
    if (tarn_failed())
        return false;
    if (!e || !info)
        return tarn__raise(TARN_ERROR_ARGUMENT, "table_encoder_query: the %s is NULL", e ? "result" : "encoder");
    *info = (tarn_table_encoder_info){.features = e->features,
                                      .inputs = e->input_count,
                                      .target = e->target,
                                      .is_regression = e->is_regression,
                                      .classes = e->classes.count,
                                      .mean = e->mean,
                                      .std = e->std,
                                      .notes = e->notes.count ? e->notes.data : ""};
    return true;
}

const char *tarn_table_encoder_class(const tarn_table_encoder *e, int64_t index)
{
    if (tarn_failed())
        return NULL;
    if (e && index >= 0 && index < e->classes.count)
        return e->classes.word[index];
    tarn__raise(TARN_ERROR_ARGUMENT, "table_encoder_class: %s %lld", e ? "no class" : "the encoder is NULL for class",
                (long long)index);
    return NULL;
}
