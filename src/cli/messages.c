/* messages.c: the library's messages in the words of the command line.
 *
 * The library starts an error with the function that raised it, and names options as fields of C structs; a user of the
 * command knows neither. All messages of the library that reach a terminal pass through here.
 *
 * A function is a word of lower-case letters, digits and underscores before ": ", at the start; later only one with an
 * underscore inside, since other words before a colon are part of the message. Options of a run are looked up in the
 * library's own table. Buffers are the caller's; nothing is allocated. */
#include "cli/cli.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tarn/train.h>

/* Fields of C structs whose flag has another name. */
static const char *const renamed[][2] = {{"batch", "n"},
                                         {"sequences", "n"},
                                         {"prompt_tokens", "prefill-chunk"},
                                         {"device_layers", "gpu-layers"},
                                         {"draft", "draft-model"},
                                         {"stop_strings", "stop"},
                                         {"template_name", "template"},
                                         {"chat_template", "template"}};
#define RENAMED ((int)(sizeof(renamed) / sizeof(renamed[0])))

/* Other fields that errors name, and that are flags. */
static const char *const fields[] = {
    "max_tokens",        "prefill_chunk",    "temperature", "top_k",       "top_p", "min_p",
    "repeat_penalty",    "repeat_last_n",    "stop",        "kv_type",     "dtype", "top_logprobs",
    "frequency_penalty", "presence_penalty", "speculate",   "draft_tokens"};
#define FIELDS ((int)(sizeof(fields) / sizeof(fields[0])))

/* Length of the identifier at the start of a string; 0: none. */
static size_t name_length(const char *text)
{
    size_t length = 0;
    while (islower((unsigned char)text[length]) ||
           (length > 0 && (isdigit((unsigned char)text[length]) || text[length] == '_')))
        length++;
    return length;
}

/* True for an option of tarn_train_options, by its C name. The table cannot be read while an error is pending. */
static bool is_run_option(const char *name, size_t length)
{
    tarn_option option;
    for (int i = 0; i < tarn_train_option_count() && tarn_train_option(i, &option); i++)
        if (strlen(option.name) == length && memcmp(option.name, name, length) == 0)
            return true;
    return false;
}

/* Length of a function's name with its colon and space, at the start of a string; 0: none. is_first: at the start of
 * the message, where any word counts. */
static size_t function_length(const char *text, bool is_first)
{
    size_t length = name_length(text);
    if (length == 0 || text[length] != ':' || text[length + 1] != ' ')
        return 0;
    bool is_function = is_first || (memchr(text, '_', length) && !is_run_option(text, length));
    return is_function ? length + 2 : 0;
}

/* A string under construction; always terminated, truncated at `size`. */
typedef struct end {
    char *text;
    size_t used, size;
} end;

static void put(end *to, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count && to->used + 1 < to->size; i++)
        to->text[to->used++] = bytes[i];
    to->text[to->used] = 0;
}

/* "batch_size" → "--batch-size" */
static void put_flag(end *to, const char *name, size_t length)
{
    put(to, "--", 2);
    for (int i = 0; i < RENAMED; i++)
        if (strlen(renamed[i][0]) == length && memcmp(renamed[i][0], name, length) == 0) {
            put(to, renamed[i][1], strlen(renamed[i][1]));
            return;
        }
    for (size_t i = 0; i < length; i++)
        put(to, name[i] == '_' ? "-" : &name[i], 1);
}

/* True for a size of a model, which is a key of a file as well as a flag. */
static bool is_size(const char *name, size_t length)
{
    static const char *const sizes[] = {"layers",   "heads",      "kv_heads", "hidden_size", "head_dim",
                                        "ffn_size", "vocab_size", "epsilon",  "rope_theta",  "rope_factor"};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (strlen(sizes[i]) == length && memcmp(sizes[i], name, length) == 0)
            return true;
    return false;
}

/* True for a field of a C struct that is an option, or a size of a model. */
static bool is_field_of_options(const char *name, size_t length)
{
    for (int i = 0; i < FIELDS; i++)
        if (strlen(fields[i]) == length && memcmp(fields[i], name, length) == 0)
            return true;
    for (int i = 0; i < RENAMED; i++)
        if (strlen(renamed[i][0]) == length && memcmp(renamed[i][0], name, length) == 0)
            return true;
    return is_run_option(name, length) || is_size(name, length);
}

/* True when a word starts at `at`, inside the message `from`, and is not quoted or part of a path or flag. */
static bool begins_word(const char *from, const char *at)
{
    return at == from || at[-1] == ' ' || at[-1] == '(';
}

/* Length of a word that names an option: one of a run with an underscore, or the first word of the message, or a field
 * such as ".context"; 0: none. */
static size_t option_length(const char *from, const char *at)
{
    bool is_field = at[0] == '.';
    size_t length = name_length(at + is_field);
    char after = at[is_field + length];
    if (length == 0 || !begins_word(from, at) || after == '(' || after == '.' || after == '/' || after == '=' ||
        after == '\'')
        return 0;
    if (is_field)
        return is_field_of_options(at + 1, length) ? length : 0;
    bool is_first = at == from && (after == ' ' || after == ':') &&
                    strncmp(at, "out of ", 7) != 0; /* "out of memory" names no folder */
    bool is_meant = memchr(at, '_', length) || is_first;
    return is_meant && is_run_option(at, length) ? length : 0;
}

/* A C name followed by its flag, ".replace (--force)" or "tarn_lora_load() (--adapter)": returns the bytes before the
 * flag, and the flag's length in `*length`; 0: none. */
static size_t named_flag(const char *from, const char *at, size_t *length)
{
    bool is_function = strncmp(at, "tarn_", 5) == 0;
    size_t name = at[0] == '.' || is_function ? name_length(at + (at[0] == '.')) + (at[0] == '.') : 0;
    name += is_function && strncmp(at + name, "()", 2) == 0 ? 2 : 0;
    if (name < 2 || !begins_word(from, at) || strncmp(at + name, " (--", 4) != 0)
        return 0;
    const char *flag = at + name + 2;
    *length = strcspn(flag, ")");
    return flag[*length] == ')' ? name + 2 : 0;
}

/* Skips the functions at the start of a message. The first word before a colon counts as one. */
static const char *skip_functions(const char *from)
{
    from += strncmp(from, "tarn: ", 6) == 0 ? 6 : 0;
    size_t length = function_length(from, true);
    from += length;
    while (length > 0 && (length = function_length(from, false)) > 0)
        from += length;
    return from;
}

const char *tarn__user_message(const char *command, const char *from, char *text, size_t size)
{
    end to = {text, 0, size};
    /* only there sizes of a model are flags */
    bool trains = strncmp(command, "train", 5) == 0 || strncmp(command, "bench", 5) == 0;
    from = skip_functions(from);
    text[0] = 0;
    for (const char *at = from; *at;) {
        size_t length = at > from + 1 && at[-1] == ' ' && at[-2] == ':' ? function_length(at, false) : 0;
        if (length > 0) {
            at += length;
            continue;
        }
        size_t before = named_flag(from, at, &length);
        if (before > 0) {
            put(&to, at + before, length);
            at += before + length + 1;
            continue;
        }
        if ((length = option_length(from, at)) > 0) {
            at += at[0] == '.';
            if (trains || !is_size(at, length))
                put_flag(&to, at, length);
            else
                put(&to, at, length);
            at += length;
            continue;
        }
        put(&to, at++, 1);
    }
    return text;
}

const char *tarn__user_error(const char *command, char *text, size_t size)
{
    char why[1100];
    snprintf(why, sizeof(why), "%s", tarn_failed() ? tarn_error() : "failed without a reason");
    tarn_clear_error(); /* first: the library's table of options does not answer while an error is pending */
    return tarn__user_message(command, why, text, size);
}
