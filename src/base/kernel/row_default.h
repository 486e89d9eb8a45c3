/* row_default.h: what a few rows of a table have, with a default for all others, so that a new row needs no entry.
 *
 *     #define BYTES_add , 0                           the rows that differ: a comma, then the value
 *     TARN__ROW_DEFAULT(BYTES_##name, 5)              0 for add, 5 for rows without a definition */
#ifndef TARN__ROW_DEFAULT_H
#define TARN__ROW_DEFAULT_H

#define TARN__SECOND(first, second, ...) second
#define TARN__ROW_DEFAULT(...) TARN__SECOND(__VA_ARGS__, 0)

#endif
