/* csv_text.h: a CSV file cut into fields. */
#ifndef TARN__CSV_TEXT_H
#define TARN__CSV_TEXT_H

#include "data/readers/input.h"

#define TARN__CSV_FIELD 4096 /* bytes of a field, its final zero included */
#define TARN__CSV_BUFFER 65536

typedef enum tarn__csv_after { TARN__AFTER_DELIMITER, TARN__AFTER_LINE, TARN__AFTER_FILE } tarn__csv_after;

typedef struct tarn__csv {
    tarn__data_input *source;
    char delimiter;
    int64_t line;          /* where the field begins, from 1 */
    int64_t column;        /* of the field, from 1 */
    tarn__csv_after after; /* what ended the field */
    bool was_quoted;
    size_t length;
    char text[TARN__CSV_FIELD];
    int64_t lines_read; /* newlines so far */
    size_t have, next;  /* of the buffer */
    char buffer[TARN__CSV_BUFFER];
} tarn__csv;

/* Starts at the front of the file, after a byte order mark if there is one. */
bool tarn__csv_begin(tarn__csv *csv, tarn__data_input *source, char delimiter);

/* Reads the next field into csv->text, without its quotes. False with an error raised. */
bool tarn__csv_field(tarn__csv *csv);

/* True when nothing follows. An error may have been raised. */
bool tarn__csv_at_end(tarn__csv *csv);

/* Raises "function: path: line L, column C: ..."; is false. */
#define tarn__csv_bad(csv, ...) \
    ((void)sizeof(char[sizeof("" TARN__FIRST_OF(__VA_ARGS__, 0)) > 1 ? 1 : -1]), tarn__csv_raise((csv), __VA_ARGS__))
bool tarn__csv_raise(const tarn__csv *csv, const char *format, ...) TARN_PRINTF(2, 3);

#endif
