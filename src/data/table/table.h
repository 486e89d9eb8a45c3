/* table.h: tables of numbers and words (CSV, TSV), and the encoder that makes them inputs of a model.
 *
 * rows.c cuts a file into rows and finds its dialect, header and column types; table.c keeps the columns in memory;
 * encoder.c learns from the training rows how a row becomes features; encode.c applies it, to a table or to one row.
 *
 * Files are not trusted. A row of another number of fields, or with text after a closing quote, is broken: it is
 * skipped, named in a warning (the first ones) and counted, unless the caller needs every row; more than one broken row
 * in ten is an error. A zero byte, text that is not UTF-8, a field of 64 KiB or a row of 16 MiB is an error with line
 * and column. */
#ifndef TARN__TABLE_H
#define TARN__TABLE_H

#include "base/buffer.h"
#include "data/dataset.h"
#include "data/readers/csv_fields.h"

enum { TARN__TABLE_MAX_COLUMNS = 16384, TARN__TABLE_MAX_ROW_BYTES = 1 << 24, TARN__TABLE_MAX_CATEGORIES = 256 };

/* ---- rows (rows.c) ----------------------------------------------------------------------------------------------- */

/* What the whole file says about a column. Words are counted for both decimal points: [0] '.', [1] ','. */
typedef struct tarn__column_scan {
    char *name; /* owned: by the header, else its number from 1 */
    int64_t values, missing;
    int64_t words[2], first_line[2]; /* values that are no numbers, and the line of the first; 0: none */
    char first_word[2][64];          /* truncated */
} tarn__column_scan;

/* A file as rows of text. Too large for the stack. */
typedef struct tarn__rows {
    const char *function, *path;
    tarn_table_options options;
    tarn__data_input input;
    tarn__csv csv;
    bool is_open;
    bool needs_all;        /* a broken row is an error */
    char delimiter, point; /* the dialect: found, or as the options say */
    bool has_header;
    int columns;
    tarn__column_scan *column; /* [columns], owned */
    int64_t rows, broken;      /* of the file */
    int64_t decimals[2];       /* numbers with a decimal point, with a decimal comma */
    char first_broken[512];    /* the error about the first broken row */
    tarn__buffer text;         /* the fields of the current row, each terminated, without blanks around them */
    char **cell;               /* [columns]: into `text`, owned array */
    int64_t line;              /* of the current row, from 1 */
} tarn__rows;

/* Opens a file and reads it once for dialect, header, types and counts. `r` is zeroed; the caller closes it, also after
 * a failure. False with an error. */
bool tarn__rows_open(tarn__rows *r, const char *function, const char *path, const tarn_table_options *options,
                     bool needs_all);

/* Starts at the first row of values. False with an error. */
bool tarn__rows_begin(tarn__rows *r);

/* Reads the next row into r->cell; false at the end, or with an error. Broken rows are skipped in silence: opening has
 * named them. */
bool tarn__rows_next(tarn__rows *r);
void tarn__rows_close(tarn__rows *r);

/* True for a value that stands for none: "", NA, NaN, null and ?, in any case. */
bool tarn__is_missing(const char *text);

/* Index of a column by its name, else by its number from 1, or from the end (-1); -1: not found. */
int tarn__rows_find(const tarn__rows *r, const char *name);

/* ---- tables (table.c) -------------------------------------------------------------------------------------------- */

/* Distinct strings with an index by hash. */
typedef struct tarn__words {
    char **word; /* [count], owned */
    int count, capacity;
    int32_t *slot; /* [slots], index + 1 of a word; 0: free */
    int slots;
} tarn__words;

/* The index of a word, added if it is new; -1 with an error. */
int tarn__words_add(tarn__words *words, const char *text);
int tarn__words_find(const tarn__words *words, const char *text); /* -1: not found */
void tarn__words_free(tarn__words *words);

typedef struct tarn__column {
    char *name; /* owned */
    bool is_category;
    int64_t missing;
    double *number;    /* [rows]; NaN: missing. NULL for categories */
    int32_t *category; /* [rows]: index into words; -1: missing. NULL for numbers */
    tarn__words words;
} tarn__column;

struct tarn_table {
    _Atomic int references; /* datasets retain their table */
    char *path;
    int column_count;
    tarn__column *column;
    int64_t rows, broken;
    int64_t *line; /* [rows]: of the file, for errors */
    char delimiter, point;
    bool has_header;
};

tarn_table *tarn__table_retain(tarn_table *table);

/* Index of a column by name or number, as tarn__rows_find(). */
int tarn__table_find(const tarn_table *table, const char *name);

/* The text of a cell: a word, or a number in its shortest form; NULL: missing. */
const char *tarn__table_text(const tarn__column *column, int64_t row, char number[32]);

/* ---- the encoder (encoder.c) ------------------------------------------------------------------------------------- */

/* An input column and how it becomes features.
 *
 * A number becomes (value - mean) / std, a missing one 0: the mean. A category becomes one-hot: one feature per word of
 * `word`, and a last one for all other words, those that occur once in the training rows and those that do not occur;
 * a missing one is taken for the most frequent word, word[0]. A column with missing values in the training rows has one
 * more feature, 1 where the value is missing. */
typedef struct tarn__encoder_input {
    char *name; /* owned */
    bool is_category, has_indicator;
    double mean, std;
    tarn__words words; /* by frequency in the training rows, most frequent first, then by bytes */
    int64_t first;     /* index of its first feature */
} tarn__encoder_input;

struct tarn_table_encoder {
    _Atomic int references; /* datasets retain their encoder */
    int input_count;
    tarn__encoder_input *input; /* [input_capacity] */
    int input_capacity;
    int64_t features;
    char *target; /* owned */
    bool is_regression, target_is_category;
    tarn__words classes; /* numbers in numeric order, words by bytes */
    double mean, std;    /* of the target of a regression: labels are (value - mean) / std */
    double val_fraction; /* of the rows with a target */
    uint64_t seed;       /* of the split */
    char *drop;          /* owned: columns left out on request */
    tarn__buffer notes;  /* sentences about decisions, one per line, with a 0 that counts */
};

tarn_table_encoder *tarn__encoder_alloc(void);
tarn_table_encoder *tarn__encoder_retain(tarn_table_encoder *encoder);

/* Sets `first` of all inputs, and `features`. */
void tarn__encoder_number_features(tarn_table_encoder *encoder);

/* Splits the rows with a target, stratified by class: order[0 … training - 1] are for training, the others for
 * validation, [rows]. Returns the number of rows with a target, -1 with an error. */
int64_t tarn__encoder_split(const char *function, const tarn_table *table, const tarn_table_encoder *encoder,
                            int64_t *order, int64_t *training);

/* ---- encoding (encode.c) ----------------------------------------------------------------------------------------- */

/* Maps the inputs of an encoder to the columns of a file. */
typedef struct tarn__row_encoder {
    const tarn_table_encoder *encoder;
    int *column; /* [input_count]: of the file; owned */
} tarn__row_encoder;

/* Finds the columns by name; missing ones are an error that names them all. */
bool tarn__row_encoder_init(tarn__row_encoder *e, const tarn__rows *rows, const tarn_table_encoder *encoder);
void tarn__row_encoder_free(tarn__row_encoder *e);

/* Writes the features of the current row. False with an error that names line and column. */
bool tarn__row_encode(const tarn__row_encoder *e, tarn__rows *rows, float *x);

#endif
