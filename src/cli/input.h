/* input.h: texts that commands read: files, standard input, pipes. */
#ifndef TARN__INPUT_H
#define TARN__INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Bytes that are read at most of what has no size of its own (a pipe, a device, standard input), and of one line. */
#define TARN__STREAM_MAX ((size_t)256 << 20)
#define TARN__LINE_MAX ((size_t)16 << 20)

/* A text that was read, with a 0 behind it; all zero at first. The caller frees `text`. */
typedef struct tarn__input {
    char *text;
    size_t length, room;
} tarn__input;

/* False: there is no memory. */
bool tarn__input_add(tarn__input *input, const char *bytes, size_t count);

/* Appends all of a file, or of a stream under a name for errors. The exit status; a failure is said on standard error.
 */
int tarn__input_file(tarn__input *input, const char *command, const char *path);
int tarn__input_stream(tarn__input *input, const char *command, FILE *from, const char *name);

/* Reads one line, with its end, in place of what the text was. False at the end, after an error (errno), and with errno
 * EFBIG where the line is longer than TARN__LINE_MAX. */
bool tarn__input_line(tarn__input *input, FILE *from);

/* Opens a regular file to be read; NULL for anything else, without waiting for it. */
FILE *tarn__input_regular(const char *path);

#endif
