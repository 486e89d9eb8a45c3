/* option_table.h: a row of the table of options, shared by the table (option_table.c), the parser of values
 * (option_values.c) and the parser of arguments (options.c). */
#ifndef TARN__OPTION_TABLE_H
#define TARN__OPTION_TABLE_H

#include <stddef.h>

#include "cli/options.h"

/* Types of options; the field in tarn__options is noted at tarn__option_read(). */
typedef enum tarn__option_type {
    TARN__OPT_FLAG,
    TARN__OPT_INT,
    TARN__OPT_REAL,   /* bounds are integers */
    TARN__OPT_ABOVE,  /* a REAL above `low` */
    TARN__OPT_INTS,   /* separated by commas */
    TARN__OPT_BYTES,  /* INTS with KiB, MiB and GiB, or "model" */
    TARN__OPT_DTYPES, /* element types, separated by commas, `high` at most; tf32 where several are allowed */
    TARN__OPT_WORDS,  /* any words, separated by commas */
    TARN__OPT_DEVICE, /* devices, separated by commas, `high` at most */
    TARN__OPT_STRING,
    TARN__OPT_STRINGS /* a STRING that may be repeated, `high` times at most */
} tarn__option_type;

/* All strings are literals. */
typedef struct tarn__option_row {
    const char *name;
    tarn__option_type type;
    int64_t low, high;
    const char *default_value; /* as it would be typed; "" or NULL: none */
    const char *value;         /* placeholder of the value in --help */
    unsigned commands;
    size_t offset; /* of its field in tarn__options */
    size_t count;  /* offset of the field's length, for lists */
    const char *help;
} tarn__option_row;

#define TARN__MAX_OPTIONS 128 /* rows of the table at most */

/* Row i in the order of --help; NULL after the last. */
const tarn__option_row *tarn__option_at(int i);

/* The row of a flag of any of the commands, by its name or the one it had in an earlier version; NULL: none. */
const tarn__option_row *tarn__option_find(const char *name, size_t length, unsigned commands);

/* Writes the field at the row's offset by its type: bool, const char *, an array of strings, double, int64_t, or a list
 * with its count. Strings are borrowed from the arguments. TARN__DONE, or TARN__MISUSED (TARN__FAILED for a missing
 * device) with a message on standard error. */
int tarn__option_read(const char *command, const tarn__option_row *row, const char *text, tarn__options *options);

#endif
