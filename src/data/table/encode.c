/* encode.c: rows as features: of a table, as a dataset, or of a file, row by row. Both ways call the same two functions
 * for a value, so that a row is encoded in the same way in training and prediction.
 *
 *     inputs       age (number)              city (category: Rome, Oslo; missing in training)
 *     features     (age - mean) / std        Rome, Oslo, another word, is missing
 *     a row        41, Oslo                  0.7   0 1 0 0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/table/table.h"

/* ---- a value ----------------------------------------------------------------------------------------------------- */

static int64_t features_of(const tarn__encoder_input *in)
{
    return (in->is_category ? in->words.count + 1 : 1) + in->has_indicator;
}

void tarn__encoder_number_features(tarn_table_encoder *e)
{
    e->features = 0;
    for (int i = 0; i < e->input_count; i++) {
        e->input[i].first = e->features;
        e->features += features_of(&e->input[i]);
    }
}

/* Writes the features of a number; NaN: missing. */
static void encode_number(const tarn__encoder_input *in, double value, float *x)
{
    bool is_missing = isnan(value);
    x[in->first] = is_missing ? 0 : (float)((value - in->mean) / in->std);
    if (in->has_indicator)
        x[in->first + 1] = is_missing;
}

/* Writes the features of a category: index of its word, words.count for another word, -1: missing. */
static void encode_category(const tarn__encoder_input *in, int category, float *x)
{
    memset(x + in->first, 0, sizeof(float) * (size_t)features_of(in));
    x[in->first + (category < 0 ? 0 : category)] = 1;
    if (in->has_indicator)
        x[in->first + in->words.count + 1] = category < 0;
}

/* ---- a table ----------------------------------------------------------------------------------------------------- */

/* The dataset. `column` and `map` are per input. */
typedef struct table_samples {
    tarn_table *table;           /* retained */
    tarn_table_encoder *encoder; /* retained */
    int64_t count;
    int64_t *row; /* [count]: of the table */
    void *label;  /* [count]: int64_t or float */
    const tarn__column **column;
    int32_t **map; /* of categories: from the table's words to the encoder's */
} table_samples;

static size_t label_bytes(const tarn_table_encoder *e)
{
    return e->is_regression ? sizeof(float) : sizeof(int64_t);
}

/* A sample of the dataset: x and label. Called from several threads; nothing is written but `memory`. */
static bool get(int64_t index, void *const *memory, void *ctx)
{
    const table_samples *s = ctx;
    int64_t row = s->row[index];
    for (int i = 0; i < s->encoder->input_count; i++) {
        const tarn__encoder_input *in = &s->encoder->input[i];
        if (in->is_category) {
            int32_t word = s->column[i]->category[row];
            encode_category(in, word < 0 ? -1 : s->map[i][word], memory[0]);
        } else {
            encode_number(in, s->column[i]->number[row], memory[0]);
        }
    }
    size_t bytes = label_bytes(s->encoder);
    memcpy(memory[1], (const char *)s->label + (size_t)index * bytes, bytes);
    return true;
}

/* No allocation of 0 bytes, whose NULL would look like an error. */
static size_t at_least_one(int64_t count)
{
    return (size_t)(count > 0 ? count : 1);
}

/* Also for samples whose preparation failed: what is missing is NULL. */
static void release(void *ctx)
{
    table_samples *s = ctx;
    size_t inputs = at_least_one(s->encoder->input_count);
    for (int i = 0; s->map && i < s->encoder->input_count; i++)
        if (s->map[i])
            tarn__release(s->map[i], sizeof(int32_t) * at_least_one(s->column[i]->words.count));
    tarn__release(s->map, sizeof(*s->map) * inputs);
    tarn__release(s->column, sizeof(*s->column) * inputs);
    tarn__release(s->row, sizeof(int64_t) * at_least_one(s->table->rows));
    tarn__release(s->label, label_bytes(s->encoder) * at_least_one(s->count));
    tarn_table_free(s->table);
    tarn_table_encoder_free(s->encoder);
    tarn__release(s, sizeof(*s));
}

/* Appends a name to a list in words; a long list ends in "…". */
static void list_name(char *list, size_t size, const char *name)
{
    size_t used = strlen(list);
    if (used + strlen(name) + 8 < size)
        snprintf(list + used, size - used, "%s'%s'", used ? ", " : "", name);
    else if (used + 8 < size && (used < 3 || strcmp(list + used - 3, "…") != 0))
        snprintf(list + used, size - used, ", …");
}

/* A file without a header has numbers as names, which rarely fit: the sentence says so. */
static bool raise_missing(const char *function, const char *path, const char *list, bool has_header)
{
    return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: missing columns: %s%s", function, path, list,
                       has_header ? "" : "; the file has no header line");
}

/* Finds the columns of the inputs and maps their words. */
static bool map_columns(table_samples *s)
{
    const tarn_table_encoder *e = s->encoder;
    char missing[400] = "";
    for (int i = 0; i < e->input_count; i++) {
        const tarn__encoder_input *in = &e->input[i];
        int at = 0;
        while (at < s->table->column_count && strcmp(s->table->column[at].name, in->name) != 0)
            at++;
        if (at == s->table->column_count) {
            list_name(missing, sizeof(missing), in->name);
            continue;
        }
        const tarn__column *c = s->column[i] = &s->table->column[at];
        if (c->is_category != in->is_category)
            return tarn__raise(TARN_ERROR_FORMAT,
                               "dataset_table: %s: column '%.100s' has %s, but the encoder has %s; open the "
                               "table with .like",
                               s->table->path, c->name, c->is_category ? "words" : "numbers",
                               in->is_category ? "words" : "numbers");
        if (!c->is_category)
            continue;
        if (!(s->map[i] = tarn__alloc(sizeof(int32_t) * at_least_one(c->words.count))))
            return false;
        for (int k = 0; k < c->words.count; k++) {
            int word = tarn__words_find(&in->words, c->words.word[k]);
            s->map[i][k] = word >= 0 ? word : in->words.count;
        }
    }
    return !missing[0] || raise_missing("dataset_table", s->table->path, missing, s->table->has_header);
}

/* Every row of `row` has a target: the split leaves the others out. */
static bool set_labels(table_samples *s, int target)
{
    const tarn_table_encoder *e = s->encoder;
    const tarn__column *c = &s->table->column[target];
    char number[32];
    for (int64_t i = 0; i < s->count; i++) {
        if (e->is_regression) {
            ((float *)s->label)[i] = (float)((c->number[s->row[i]] - e->mean) / e->std);
            continue;
        }
        const char *text = tarn__table_text(c, s->row[i], number);
        int class = tarn__words_find(&e->classes, text);
        if (class < 0)
            return tarn__raise(TARN_ERROR_FORMAT,
                               "dataset_table: %s: line %lld, column '%.60s': unknown class '%.60s'; it was not in the "
                               "training data",
                               s->table->path, (long long)s->table->line[s->row[i]], c->name, text);
        ((int64_t *)s->label)[i] = class;
    }
    return true;
}

/* The rows of a part, in the order of the split. */
static bool choose_rows(table_samples *s, tarn_table_part part)
{
    int64_t training;
    int64_t count = tarn__encoder_split("dataset_table", s->table, s->encoder, s->row, &training);
    if (count < 0)
        return false;
    s->count = part == TARN_TABLE_ALL ? count : part == TARN_TABLE_TRAINING ? training : count - training;
    if (part == TARN_TABLE_VALIDATION)
        memmove(s->row, s->row + training, sizeof(int64_t) * (size_t)s->count);
    return (s->label = tarn__alloc(label_bytes(s->encoder) * at_least_one(s->count))) != NULL;
}

/* The table may be another than the one that the encoder comes from: columns are found by name. */
static bool prepare(table_samples *s, tarn_table_part part)
{
    size_t inputs = at_least_one(s->encoder->input_count);
    int target = tarn__table_find(s->table, s->encoder->target);
    s->row = tarn__alloc(sizeof(int64_t) * at_least_one(s->table->rows));
    s->column = tarn__alloc(sizeof(*s->column) * inputs);
    s->map = tarn__alloc(sizeof(*s->map) * inputs);
    if (!s->row || !s->column || !s->map || !map_columns(s))
        return false;
    if (target < 0 || (s->encoder->is_regression && s->table->column[target].is_category))
        return tarn__raise(TARN_ERROR_FORMAT, "dataset_table: %s: %s '%.100s'", s->table->path,
                           target < 0 ? "no target column" : "words in the target of a regression,",
                           s->encoder->target);
    return choose_rows(s, part) && set_labels(s, target);
}

tarn_dataset *tarn_dataset_table(tarn_table *table, tarn_table_encoder *encoder, tarn_table_part part)
{
    const char *function = "dataset_table";
    if (tarn_failed())
        return NULL;
    if (!table || !encoder || (unsigned)part > TARN_TABLE_VALIDATION) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s", function,
                    !table     ? "table is NULL"
                    : !encoder ? "encoder is NULL"
                               : "part must be TARN_TABLE_ALL, _TRAINING or _VALIDATION");
        return NULL;
    }
    table_samples *s = tarn__alloc(sizeof(*s));
    if (!s)
        return NULL;
    s->table = tarn__table_retain(table);
    s->encoder = tarn__encoder_retain(encoder);
    if (!prepare(s, part)) {
        release(s);
        return NULL;
    }
    const tarn_field fields[] = {{"x", TARN_F32, TARN_SHAPE(encoder->features)},
                                 {"label", encoder->is_regression ? TARN_F32 : TARN_I64, TARN_SCALAR}};
    return tarn__dataset_new(function, fields, 2, s->count, get, s, release);
}

/* ---- one row of a file ------------------------------------------------------------------------------------------- */

/* A word in a column of numbers is an error, unlike in a table, where it would have made the column one of words. */
bool tarn__row_encoder_init(tarn__row_encoder *e, const tarn__rows *rows, const tarn_table_encoder *encoder)
{
    char missing[400] = "";
    *e = (tarn__row_encoder){encoder, tarn__alloc(sizeof(int) * at_least_one(encoder->input_count))};
    for (int i = 0; e->column && i < encoder->input_count; i++)
        if ((e->column[i] = tarn__rows_find(rows, encoder->input[i].name)) < 0)
            list_name(missing, sizeof(missing), encoder->input[i].name);
    return e->column && (!missing[0] || raise_missing(rows->function, rows->path, missing, rows->has_header));
}

void tarn__row_encoder_free(tarn__row_encoder *e)
{
    if (e->column)
        tarn__release(e->column, sizeof(int) * at_least_one(e->encoder->input_count));
    e->column = NULL;
}

bool tarn__row_encode(const tarn__row_encoder *e, tarn__rows *r, float *x)
{
    for (int i = 0; i < e->encoder->input_count; i++) {
        const tarn__encoder_input *in = &e->encoder->input[i];
        char *text = r->cell[e->column[i]];
        bool is_missing = tarn__is_missing(text);
        if (in->is_category) {
            int word = is_missing ? -1 : tarn__words_find(&in->words, text);
            encode_category(in, is_missing || word >= 0 ? word : in->words.count, x);
            continue;
        }
        double value = is_missing || !tarn__csv_is_number(text, r->point) ? (double)NAN : tarn__csv_f64(text, r->point);
        if (!is_missing && !isfinite(value))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: line %lld, column %d ('%.60s'): '%.60s' is not a number",
                               r->function, r->path, (long long)r->line, e->column[i] + 1, in->name, text);
        encode_number(in, value, x);
    }
    return true;
}
