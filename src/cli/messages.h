/* messages.h: the library's sentences as users of the command read them. */
#ifndef TARN__SENTENCE_H
#define TARN__SENTENCE_H

#include <stddef.h>

#define TARN__MESSAGE_MAX 1400 /* bytes that any sentence of the library fits */

/* A sentence of tarn_error() or of the log in the command's words: without the C functions that it went through ("tarn:
 * trainer_new: "), with options as they are typed ("--batch-size" for "batch_size", "--context" for ".context"). Sizes
 * of a model are options where `command` trains one, and words of its file elsewhere. In `text`, of `size` bytes;
 * returns it. */
const char *tarn__user_message(const char *command, const char *from, char *text, size_t size);

/* The same of the pending error, which is cleared. */
const char *tarn__user_error(const char *command, char *text, size_t size);

#endif
