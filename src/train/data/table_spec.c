/* table_spec.c: the encoder of a table in config.json.
 *
 * Column names may hold any character, dots too, so columns are arrays in parallel, and the words of all columns one
 * array with a count per column. Numbers have all their digits: a run that is opened encodes bitwise as it was
 * trained.
 *
 * An example with the columns "age" and "city": {"columns": ["age", "city"], "types": ["number", "category"],
 * "word_counts": [0, 2], "words": ["Bonn", "Ulm"], …}. A file from elsewhere may hold anything, so every count is
 * checked against what is left of the arrays. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/table/table.h"
#include "train/data/table_source.h"

#define KEY "data.table."
enum { MAX_WORDS = TARN__TABLE_MAX_COLUMNS * 64, MAX_CLASSES = 65536 };

static bool write_input(const tarn__encoder_input *in, tarn__json_file *d)
{
    bool good = tarn__json_file_add_string(d, KEY "columns", in->name) &&
                tarn__json_file_add_string(d, KEY "types", in->is_category ? "category" : "number") &&
                tarn__json_file_add_int(d, KEY "indicators", in->has_indicator) &&
                tarn__json_file_add_real(d, KEY "means", in->mean) &&
                tarn__json_file_add_real(d, KEY "stds", in->std) &&
                tarn__json_file_add_int(d, KEY "word_counts", in->words.count);
    for (int k = 0; good && k < in->words.count; k++)
        good = tarn__json_file_add_string(d, KEY "words", in->words.word[k]);
    return good;
}

bool tarn__encoder_write(const tarn_table_encoder *e, tarn__json_file *d)
{
    bool good = tarn__json_file_set_string(d, KEY "target", e->target) &&
                tarn__json_file_set_bool(d, KEY "is_regression", e->is_regression) &&
                tarn__json_file_set_bool(d, KEY "target_is_category", e->target_is_category) &&
                tarn__json_file_set_real(d, KEY "target_mean", e->mean) &&
                tarn__json_file_set_real(d, KEY "target_std", e->std) &&
                tarn__json_file_set_real(d, KEY "val_fraction", e->val_fraction) &&
                tarn__json_file_set_int(d, KEY "split_seed", (int64_t)e->seed) &&
                tarn__json_file_set_string(d, KEY "drop", e->drop) &&
                tarn__json_file_set_string(d, KEY "notes", e->notes.count ? e->notes.data : "");
    for (int i = 0; good && i < e->input_count; i++)
        good = write_input(&e->input[i], d);
    for (int i = 0; good && i < e->classes.count; i++)
        good = tarn__json_file_add_string(d, KEY "classes", e->classes.word[i]);
    return good;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Appends words from an array; a word that occurs twice is an error. */
static bool read_words(const tarn__json_file *d, const char *key, size_t first, size_t count, tarn__words *words)
{
    for (size_t i = first; i < first + count; i++) {
        const char *text = tarn__json_file_string_at(d, key, i);
        if (!text || tarn__words_add(words, text) < 0)
            return false;
        if (words->count != (int)(i - first + 1))
            return tarn__raise(TARN_ERROR_FORMAT, "config.json: \"%s\" has '%.60s' twice", key, text);
    }
    return true;
}

static bool check_scale(double mean, double std)
{
    return (isfinite(mean) && isfinite(std) && std > 0) ||
           tarn__raise(TARN_ERROR_FORMAT, "config.json: \"data.table\" has a mean or std that is not valid");
}

static bool read_input(const tarn__json_file *d, size_t index, size_t *words, size_t all_words, tarn__encoder_input *in)
{
    int64_t indicator, count;
    const char *name = tarn__json_file_string_at(d, KEY "columns", index),
               *type = name ? tarn__json_file_string_at(d, KEY "types", index) : NULL;
    if (!type || !tarn__json_file_int_at(d, KEY "indicators", index, 0, 1, &indicator) ||
        !tarn__json_file_real_at(d, KEY "means", index, &in->mean) ||
        !tarn__json_file_real_at(d, KEY "stds", index, &in->std) || !check_scale(in->mean, in->std) ||
        !tarn__json_file_int_at(d, KEY "word_counts", index, 0, TARN__TABLE_MAX_CATEGORIES, &count))
        return false;
    in->is_category = strcmp(type, "category") == 0;
    in->has_indicator = indicator != 0;
    if ((size_t)count > all_words - *words || (count == 0) == in->is_category)
        return tarn__raise(TARN_ERROR_FORMAT, "config.json: \"data.table\": column '%.60s' has %lld words", name,
                           (long long)count);
    bool good =
        read_words(d, KEY "words", *words, (size_t)count, &in->words) && (in->name = tarn__string_copy(name)) != NULL;
    *words += (size_t)count;
    return good;
}

static bool read_inputs(const tarn__json_file *d, tarn_table_encoder *e)
{
    size_t columns, all_words = 0, words = 0;
    bool has_words = tarn__json_file_has(d, KEY "words");
    if (!tarn__json_file_count(d, KEY "columns", TARN__TABLE_MAX_COLUMNS, &columns) ||
        (has_words && !tarn__json_file_count(d, KEY "words", MAX_WORDS, &all_words)))
        return false;
    if (columns < 1)
        return tarn__raise(TARN_ERROR_FORMAT, "config.json: \"data.table\" has no columns");
    if (!(e->input = tarn__alloc(sizeof(*e->input) * columns)))
        return false;
    e->input_capacity = e->input_count = (int)columns; /* those not read yet are zeroed */
    for (size_t i = 0; i < columns; i++)
        if (!read_input(d, i, &words, all_words, &e->input[i]))
            return false;
    tarn__encoder_number_features(e);
    return true;
}

static bool read_target(const tarn__json_file *d, tarn_table_encoder *e)
{
    int64_t seed;
    size_t classes = 0;
    const char *target = tarn__json_file_string(d, KEY "target"),
               *drop = target ? tarn__json_file_string(d, KEY "drop") : NULL,
               *notes = drop ? tarn__json_file_string(d, KEY "notes") : NULL;
    if (!notes || !tarn__json_file_bool(d, KEY "is_regression", &e->is_regression) ||
        !tarn__json_file_bool(d, KEY "target_is_category", &e->target_is_category) ||
        !tarn__json_file_real(d, KEY "target_mean", &e->mean) || !tarn__json_file_real(d, KEY "target_std", &e->std) ||
        !tarn__json_file_real(d, KEY "val_fraction", &e->val_fraction) ||
        !tarn__json_file_int(d, KEY "split_seed", INT64_MIN, INT64_MAX, &seed) ||
        (!e->is_regression && !tarn__json_file_count(d, KEY "classes", MAX_CLASSES, &classes)))
        return false;
    e->seed = (uint64_t)seed;
    if (!(e->val_fraction >= 0 && e->val_fraction < 1) || (!e->is_regression && classes < 2) ||
        (e->is_regression && e->target_is_category))
        return tarn__raise(TARN_ERROR_FORMAT, "config.json: \"data.table\" is invalid: val_fraction %g, %zu classes",
                           e->val_fraction, classes);
    return (!e->is_regression || check_scale(e->mean, e->std)) &&
           read_words(d, KEY "classes", 0, classes, &e->classes) && (e->target = tarn__string_copy(target)) != NULL &&
           (e->drop = tarn__string_copy(drop)) != NULL && tarn__buffer_add(&e->notes, notes, strlen(notes) + 1, 1);
}

tarn_table_encoder *tarn__encoder_read(const tarn__json_file *d)
{
    tarn_table_encoder *e = tarn__encoder_alloc();
    if (e && read_target(d, e) && read_inputs(d, e))
        return e;
    tarn_table_encoder_free(e);
    return NULL;
}
