/* table_source.c: tables as the data of a run.
 *
 * "csv:PATH", or a path that ends as those of tables do. What was found out about the columns is in the encoder,
 * which a run keeps in its config.json: a resumed run, an evaluation and a prediction encode by it, whatever another
 * file looks like. */
#include "train/data/table_source.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/table/table.h"
#include "models/hf/weights.h"

enum { SPLIT_SEED = 3 }; /* fixed: the same name is the same data in every run */

static const char prefix[] = "csv:";

const char *tarn__table_path(const char *name)
{
    return strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
}

bool tarn__data_is_table(const char *name)
{
    static const char *const others[] = {
        "text:", "shards:", "digits:", "mnist:", "cifar10:", "idx:", "npy:", "chats:", "images:"};
    static const char *const endings[] = {".csv", ".tsv", ".csv.gz", ".tsv.gz"};
    if (tarn__table_path(name) != name)
        return true;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strncmp(name, others[i], strlen(others[i])) == 0)
            return false;
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
        if (tarn__ends_with(name, endings[i]))
            return true;
    return false;
}

/* Options that say how a table is read would have no effect on other data, so they are errors there. */
bool tarn__table_options_check(const char *function, const tarn_train_options *o)
{
    const char *given = o->target[0]                                           ? "target"
                        : o->drop[0]                                           ? "drop"
                        : o->task[0] && strcmp(o->task, "auto") != 0           ? "task"
                        : o->delimiter[0] && strcmp(o->delimiter, "auto") != 0 ? "delimiter"
                        : o->decimal[0] && strcmp(o->decimal, "auto") != 0     ? "decimal"
                        : o->header[0] && strcmp(o->header, "auto") != 0       ? "header"
                        : o->val_fraction > 0                                  ? "val_fraction"
                                                                               : NULL;
    bool is_images = strncmp(o->data, "images:", 7) == 0;
    if (is_images && given && strcmp(given, "val_fraction") == 0)
        return true;
    return !given || tarn__data_is_table(o->data) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s applies to tables (FILE.csv)%s only; the data is '%.200s'",
                       function, given,
                       strcmp(given, "val_fraction") == 0 ? ", images:FOLDER and chats (FILE.jsonl)" : "", o->data);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Index of a word in "auto", …; 0 for "". */
static int word_index(const char *word, const char *const *words, int count)
{
    for (int i = 1; i < count; i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    return 0;
}

tarn_table_options tarn__table_options_of(const tarn_train_options *o, const tarn_table_encoder *like)
{
    static const char *const headers[] = {"auto", "yes", "no"}, *const decimals[] = {"auto", "point", "comma"},
                             *const delimiters[] = {"auto", "comma", "semicolon", "tab"};
    return (tarn_table_options){.header = (tarn_csv_header)word_index(o->header, headers, 3),
                                .decimal = (tarn_csv_decimal)word_index(o->decimal, decimals, 3),
                                .delimiter = "\0,;\t"[word_index(o->delimiter, delimiters, 4)],
                                .like = like};
}

/* Appends a line; one that does not fit is dropped. */
static void add_note(char *notes, size_t size, const char *format, ...) TARN_PRINTF(3, 4);
static void add_note(char *notes, size_t size, const char *format, ...)
{
    size_t used = strlen(notes), start = used;
    va_list list;
    if (used && used + 1 < size)
        notes[used++] = '\n';
    va_start(list, format);
    int length = vsnprintf(notes + used, size - used, format, list);
    va_end(list);
    if (length < 0 || (size_t)length >= size - used)
        notes[start] = 0;
}

/* "table of 891 rows and 8 columns (',' between fields), with a header; target 'Survived', 12 inputs from 6 columns" */
static void describe(const tarn_table *t, const tarn_table_encoder *e, bool is_default_target, char *notes, size_t size)
{
    add_note(notes, size, "table of %lld rows and %d columns, %s between fields%s, %s", (long long)t->rows,
             t->column_count,
             t->delimiter == '\t'  ? "tabs"
             : t->delimiter == ';' ? "semicolons"
                                   : "commas",
             t->point == ',' ? ", decimal commas" : "", t->has_header ? "with a header" : "without a header");
    if (t->broken)
        add_note(notes, size, "%lld broken rows were skipped", (long long)t->broken);
    add_note(notes, size, "target '%s'%s, %lld features from %d columns", e->target,
             is_default_target ? " (the last column; --target gives another)" : "", (long long)e->features,
             e->input_count);
    for (const char *at = e->notes.data; *at;) {
        size_t length = strcspn(at, "\n");
        add_note(notes, size, "%.*s", (int)length, at);
        at += length + (at[length] == '\n');
    }
}

static bool open_splits(tarn_table *table, tarn_table_encoder *encoder, tarn_dataset **training,
                        tarn_dataset **validation)
{
    *training = tarn_dataset_table(table, encoder, TARN_TABLE_TRAINING);
    *validation = *training ? tarn_dataset_table(table, encoder, TARN_TABLE_VALIDATION) : NULL;
    return *validation != NULL;
}

bool tarn__table_data_open(const char *function, const tarn_train_options *o, tarn__data_spec *spec,
                           tarn_dataset **training, tarn_dataset **validation, char *notes, size_t size)
{
    static const char *const tasks[] = {"auto", "classify", "regress"};
    tarn_table_options how = tarn__table_options_of(o, NULL);
    if (!tarn__table_path(o->data)[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' has no path; must be csv:PATH", function, o->data);
    tarn_table *table = tarn_table_open(tarn__table_path(o->data), &how);
    tarn_table_encoder_options options = {.target = o->target,
                                          .drop = o->drop,
                                          .task = (tarn_table_task)word_index(o->task, tasks, 3),
                                          .val_fraction = o->val_fraction,
                                          .seed = SPLIT_SEED};
    tarn_table_encoder *encoder = table ? tarn_table_encoder_new(table, &options) : NULL;
    bool good = encoder && open_splits(table, encoder, training, validation) &&
                tarn__data_spec_create_table(function, encoder, *training, *validation, spec);
    if (good)
        describe(table, encoder, !o->target[0], notes, size);
    tarn_table_free(table);
    tarn_table_encoder_free(encoder);
    return good || tarn__raise_within(function);
}

/* Counts first: a table that has grown may have other classes, too. The split depends on the number of rows, so the
 * samples of each part tell whether it is the same. */
static bool check_counts(const char *function, const char *data, const tarn_table *table, const tarn__data_spec *spec)
{
    size_t bytes = sizeof(int64_t) * (size_t)(table->rows ? table->rows : 1);
    int64_t training = 0, *order = tarn__alloc(bytes),
            count = order ? tarn__encoder_split(function, table, spec->table, order, &training) : -1;
    tarn__release(order, bytes);
    return count >= 0 && ((training == spec->training_samples && count - training == spec->validation_samples) ||
                          tarn__raise(TARN_ERROR_FORMAT,
                                      "%s: '%.200s' is not the data that the run was started with; it had %lld "
                                      "training samples, and has %lld",
                                      function, data, (long long)spec->training_samples, (long long)training));
}

bool tarn__table_data_reopen(const char *function, const tarn_train_options *o, const tarn__data_spec *spec,
                             tarn_dataset **training, tarn_dataset **validation)
{
    tarn_table_options how = tarn__table_options_of(o, spec->table);
    *training = *validation = NULL;
    tarn_table *table = tarn_table_open(tarn__table_path(o->data), &how);
    bool good =
        table && check_counts(function, o->data, table, spec) && open_splits(table, spec->table, training, validation);
    tarn_table_free(table);
    return good || tarn__raise_within(function);
}

/* Another file may have another dialect: its own is found. */
tarn_dataset *tarn__table_data_all(const char *function, const char *data, const tarn_train_options *o,
                                   const tarn__data_spec *spec)
{
    tarn_table_options how = {.like = spec->table};
    (void)o;
    if (!tarn__data_is_table(data)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the run was trained on a table; '%.200s' is none (FILE.csv)", function,
                    data);
        return NULL;
    }
    tarn_table *table = tarn_table_open(tarn__table_path(data), &how);
    tarn_dataset *all = table ? tarn_dataset_table(table, spec->table, TARN_TABLE_ALL) : NULL;
    tarn_table_free(table);
    if (all && tarn_dataset_count(all) < 1) {
        tarn_dataset_free(all);
        all = NULL;
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%.200s' has no row with a target", function, data);
    }
    if (!all)
        tarn__raise_within(function);
    return all;
}
