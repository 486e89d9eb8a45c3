/* jinja.h: runs chat templates: the part of Jinja that they use, with the environment that transformers makes for them
 * (trim_blocks, lstrip_blocks, the immutable sandbox, loop controls, generation blocks).
 *
 * A program is compiled once and rendered any number of times, by any number of threads. Rendering reads its context
 * and writes its output; there is no other input or output but the date of strftime_now. Steps, depth, memory and
 * output are bounded. Errors name the template and its line, after the function unless that is empty.
 *
 *     template     {% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}
 *     context      {"messages": [{"role": "user", "content": "Hi"}]}
 *     output       <|user|>Hi
 *     origins      0 for "<|user|>", 2 for "Hi": what a tokenizer must not read special tokens in */
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

/* The same from messages, with add_generation_prompt; tools and documents are none. */
tarn__jinja_context *tarn__jinja_context_messages(const char *function, const tarn_chat_message *messages, int count,
                                                  bool add_generation_prompt);

/* Sets a variable to a string that is copied, whose bytes count as the template's; or to the value of a JSON text,
 * marked as an input; a name of NULL stands for all members of an object. False with an error, of the second with
 * `function` and the variable before it. */
bool tarn__jinja_context_set(tarn__jinja_context *context, const char *name, const char *text, size_t length);
bool tarn__jinja_context_set_json(const char *function, tarn__jinja_context *context, const char *name,
                                  const char *text, size_t length);

/* Messages of a context: their number, and whether a message has a role (NULL: any string). limit: renderings see the
 * first `count` messages, which may be as many as there were at first. */
size_t tarn__jinja_context_count(const tarn__jinja_context *context);
bool tarn__jinja_context_role(const tarn__jinja_context *context, size_t index, const char *role);
bool tarn__jinja_context_is_blank(const tarn__jinja_context *context, size_t index); /* says nothing but whitespace */
bool tarn__jinja_context_calls_tools(const tarn__jinja_context *context, size_t index);
bool tarn__jinja_context_has_weight(const tarn__jinja_context *context, size_t index); /* its "weight" is not 0 */
void tarn__jinja_context_limit(tarn__jinja_context *context, size_t count, bool add_generation_prompt);

/* Changes messages as transformers does for every template: members that are null go, and reasoning has the names
 * reasoning_content and thinking. False with an error without a function's name. */
bool tarn__jinja_context_prepare(tarn__jinja_context *context);

/* Replaces arguments of tool calls that are strings of JSON, as in OpenAI's format, by objects. False with an error
 * without a function's name. */
bool tarn__jinja_context_parse_arguments(tarn__jinja_context *context);

/* Sets the time of strftime_now, which is otherwise the current local time. */
void tarn__jinja_context_set_time(tarn__jinja_context *context, const struct tm *now);
void tarn__jinja_context_free(tarn__jinja_context *context);

/* The origin of a byte: 0 is the template's own text, its tokens (variables named …_token) and roles of letters,
 * digits, _ and -; from 2 on it is what a message says, 2 + n % 126 in message n; an input is any other variable. */
#define TARN__JINJA_GENERATION 0x80 /* a flag beside it: printed inside a generation block */
#define TARN__JINJA_ORIGIN 0x7F
#define TARN__JINJA_INPUT 1
#define TARN__JINJA_MESSAGE 2
#define TARN__JINJA_MESSAGES 126

/* Where the bytes of an output stem from. All zero is empty. */
typedef struct tarn__jinja_masks {
    tarn__buffer origins; /* uint8_t per byte of the output */
} tarn__jinja_masks;

/* Renders into `output` (bytes, appended) and, unless NULL, `masks`. False with an error that begins with the name of
 * the function that compiled the program. */
bool tarn__jinja_render(const tarn__jinja_program *program, const tarn__jinja_context *context, tarn__buffer *output,
                        tarn__jinja_masks *masks);

#endif
