/* messages.h: the library's messages as users of the command read them. */
#ifndef TARN__MESSAGES_H
#define TARN__MESSAGES_H

#include <stddef.h>

#define TARN__MESSAGE_MAX 1400 /* bytes; fits any message of the library */

/* Rewrites a message of tarn_error() or of the log: without the C functions that raised it ("tarn: trainer_new: "),
 * with options as typed ("--batch-size" for "batch_size", "--context" for ".context"). Sizes of a model are options if
 * `command` trains one, else keys of its file. Writes at most `size` bytes to `text` and returns it. */
const char *tarn__user_message(const char *command, const char *from, char *text, size_t size);

/* Same for the pending error, which is cleared. */
const char *tarn__user_error(const char *command, char *text, size_t size);

#endif
