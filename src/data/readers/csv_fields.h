/* csv_fields.h: the fields of a CSV file, one at a time (RFC 4180).
 *
 * A field is plain up to the delimiter, or quoted, where a doubled quote is one quote and a field may span lines. Lines
 * end in \n or \r\n; a UTF-8 byte order mark is skipped. Memory is bounded: the buffer and one field. */
#ifndef TARN__CSV_FIELDS_H
#define TARN__CSV_FIELDS_H

#include "data/readers/input.h"

#define TARN__CSV_FIELD_BYTES 65536 /* including the terminator */
#define TARN__CSV_BUFFER_BYTES 65536

typedef enum tarn__csv_end { TARN__CSV_DELIMITER, TARN__CSV_LINE_END, TARN__CSV_FILE_END } tarn__csv_end;

typedef struct tarn__csv {
    tarn__data_input *input;
    char delimiter;
    bool has_literal_quotes; /* a quote inside a plain field is a character like others; default: an error */
    size_t max_field;        /* bytes, including the terminator */
    int64_t line;            /* where the field begins; counted from 1, for errors */
    int64_t column;          /* of the field, from 1 */
    tarn__csv_end after;     /* what ended the field */
    bool was_quoted;         /* "" is a value, an empty field is a missing one */
    bool is_row_broken;      /* after an error: it is of this row alone, and tarn__csv_skip_line() goes on after it */
    size_t length;           /* of text */
    int64_t lines_read;      /* newlines so far */
    size_t have, next;       /* bytes in the buffer; the next one to read */
    char text[TARN__CSV_FIELD_BYTES]; /* the field without its quotes, terminated */
    char buffer[TARN__CSV_BUFFER_BYTES];
} tarn__csv;

/* Starts at the front of the file. Borrows the input. Set delimiter, max_field and has_literal_quotes before the first
 * field. False with an error. */
bool tarn__csv_begin(tarn__csv *csv, tarn__data_input *input);

/* True when no field follows. An error may have been raised. */
bool tarn__csv_at_end(tarn__csv *csv);

/* Reads the next field into csv->text, without its quotes. False with an error. */
bool tarn__csv_field(tarn__csv *csv);

/* Reads up to the end of the line, whatever follows. False with an error. */
bool tarn__csv_skip_line(tarn__csv *csv);

/* Raises "function: path: line L, column C: ..."; is false. */
#define tarn__csv_bad(csv, ...) \
    ((void)sizeof(char[sizeof("" TARN__FIRST_OF(__VA_ARGS__, 0)) > 1 ? 1 : -1]), tarn__csv_raise((csv), __VA_ARGS__))
bool tarn__csv_raise(const tarn__csv *csv, const char *format, ...) TARN_PRINTF(2, 3);

/* True for a decimal number with blanks around it at most; nan, inf and hexadecimals are none. `point` is '.' or
 * ','. */
bool tarn__csv_is_number(const char *text, char point);

/* Converts a text for which tarn__csv_is_number() holds, whatever the program's locale; infinite if it is too large.
 * The text is unchanged afterwards. */
double tarn__csv_f64(char *text, char point);
float tarn__csv_f32(char *text, char point);

#endif
