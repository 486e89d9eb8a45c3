/* jinja.h: runs chat templates: the part of Jinja that they use, with the environment that transformers makes for them
 * (trim_blocks, lstrip_blocks, the immutable sandbox, loop controls, generation blocks).
 *
 * A program is compiled once and rendered any number of times, by any number of threads. Rendering reads its context
 * and writes its output; there is no other input or output but the date of strftime_now. Steps, depth, memory and
 * output are bounded. Errors name the template and its line. */
#ifndef TARN__JINJA_H
#define TARN__JINJA_H

#include <time.h>

#include "base/buffer.h"
#include <tarn/text.h>

typedef struct tarn__jinja_program tarn__jinja_program;
typedef struct tarn__jinja_context tarn__jinja_context;

/* Compiles a template; `name` is for errors. The program belongs to the caller. NULL with an error that begins with
 * `function`. */
tarn__jinja_program *tarn__jinja_compile(const char *function, const char *name, const char *source, size_t length);
void tarn__jinja_program_free(tarn__jinja_program *program);

/* True if the template contains a generation block. */
bool tarn__jinja_has_generation(const tarn__jinja_program *program);

/* The variables of a rendering, from the text of a JSON object. Belongs to the caller. Strings are marked with
 * their origin (tarn__jinja_masks). NULL with an error that begins with `function`. */
tarn__jinja_context *tarn__jinja_context_json(const char *function, const char *text, size_t length);

/* The same from messages, with add_generation_prompt. */
tarn__jinja_context *tarn__jinja_context_messages(const char *function, const tarn_chat_message *messages, int count,
                                                  bool add_generation_prompt);

/* Sets a variable to a string that is copied. False with an error. */
bool tarn__jinja_context_set(tarn__jinja_context *context, const char *name, const char *text, size_t length);

/* Sets the time of strftime_now, which is otherwise the current local time. */
void tarn__jinja_context_set_time(tarn__jinja_context *context, const struct tm *now);
void tarn__jinja_context_free(tarn__jinja_context *context);

/* The origin of a byte: 0 is the template's own text and its tokens (variables named …_token); an input is any other
 * variable, messages and their roles included; from 2 on it is what an assistant wrote, 2 + n % 126 in message n. */
#define TARN__JINJA_GENERATION 0x80 /* a flag beside it: printed inside a generation block */
#define TARN__JINJA_ORIGIN 0x7F
#define TARN__JINJA_INPUT 1
#define TARN__JINJA_ASSISTANT 2

/* Where the bytes of an output stem from. All zero is empty. */
typedef struct tarn__jinja_masks {
    tarn__buffer origins; /* uint8_t per byte of the output */
} tarn__jinja_masks;

/* Renders into `output` (bytes, appended) and, unless NULL, `masks`. False with an error that begins with the name of
 * the function that compiled the program. */
bool tarn__jinja_render(const tarn__jinja_program *program, const tarn__jinja_context *context, tarn__buffer *output,
                        tarn__jinja_masks *masks);

#endif
