/* input.h: input of commands: files, standard input, pipes; the growing arrays that hold it. */
#ifndef TARN__INPUT_H
#define TARN__INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Limits in bytes: of a stream (a pipe, a device, standard input), and of one line. */
#define TARN__STREAM_MAX ((size_t)256 << 20)
#define TARN__LINE_MAX ((size_t)16 << 20)

/* Grows an array of `count` elements of `each` bytes, with space for *capacity, so that `more` elements fit; at least
 * doubles it. Updates *array (a pointer to a pointer) and *capacity. False without memory, and nothing changed. The
 * caller frees the array. Counterpart of tarn__array_reserve() in the library, which the command cannot include. */
bool tarn__input_reserve(void *array, size_t count, size_t *capacity, size_t more, size_t each);

/* A buffer with a terminating 0; zeroed at first. The caller frees `text`. */
typedef struct tarn__input {
    char *text;
    size_t length, capacity;
} tarn__input;

/* Appends bytes. False without memory. */
bool tarn__input_add(tarn__input *input, const char *bytes, size_t count);

/* Appends a whole file, or a stream, whose name is for errors. Returns an exit status; a failure prints a message. */
int tarn__input_file(tarn__input *input, const char *command, const char *path);
int tarn__input_stream(tarn__input *input, const char *command, FILE *from, const char *name);

/* Reads one line, with its line break, replacing the previous text. False at the end, after an error (errno), and with
 * errno EFBIG for a line longer than TARN__LINE_MAX. */
bool tarn__input_line(tarn__input *input, FILE *from);

/* Opens a regular file for reading; NULL for anything else. Never blocks. The caller closes it. */
FILE *tarn__input_regular(const char *path);

#endif
