/* regex.c: regular expressions by PCRE2, JIT-compiled where the system allows it.
 *
 * Hugging Face's patterns are written for Oniguruma. Escapes that both engines have but define differently are
 * translated: \s and \w are Unicode's White_Space and word characters in Oniguruma, and slightly more or less in PCRE2.
 * Constructs without a translation are an error, never a different result. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer/tokenizer.h"

#include <pcre2.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

#define MAX_PATTERN 65536 /* bytes of a pattern */
#define SPACE "\\p{Z}\\t-\\r\\x{85}"
#define WORD \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}" \
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"

struct tarn__regex {
    char *text;
    pcre2_code *code;
    bool is_fast; /* JIT-compiled */
};

/* One per thread: PCRE2's match data and JIT stack are not shared. */
struct tarn__matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* ---- translation ------------------------------------------------------------------------------------------------- */

typedef struct class_escape {
    const char *outside, *inside; /* outside and inside brackets; NULL: not supported there */
} class_escape;

/* The translation of \letter; NULL: both engines agree. */
static const class_escape *translation(char letter)
{
    static const class_escape small_s = {"[" SPACE "]", SPACE}, large_s = {"[^" SPACE "]", NULL};
    static const class_escape small_w = {"[" WORD "]", WORD}, large_w = {"[^" WORD "]", NULL}, none = {NULL, NULL};
    return letter == 's'   ? &small_s
           : letter == 'S' ? &large_s
           : letter == 'w' ? &small_w
           : letter == 'W' ? &large_w
           : letter == 'h' ? &none
                           : NULL;
}

/* Raises an error for a construct that is not translated. Returns false. */
static bool raise_unsupported(const char *function, const char *name, const char *text, const char *part)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the pattern '%.200s' uses %s, which is not supported",
                       function, name, text, part);
}

/* Bytes of a class's opening: [, an optional ^, and a ] right after it, which is literal. */
static size_t class_prefix(const char *at)
{
    size_t length = 1;
    length += at[length] == '^';
    return length + (at[length] == ']');
}

/* Appends the pattern in PCRE2's syntax. False with an error. */
static bool translate(const char *function, const char *name, const char *text, tarn__buffer *out)
{
    bool inside = false; /* a class in brackets */
    int nested = 0;      /* classes in it, whose union it is: their brackets go */
    for (const char *at = text; *at;) {
        const class_escape *escape = at[0] == '\\' && at[1] ? translation(at[1]) : NULL;
        const char *part = escape ? (inside ? escape->inside : escape->outside) : NULL;
        if (escape && !part)
            return raise_unsupported(function, name, text, at[1] == 'h' ? "\\h" : "\\S or \\W in brackets");
        if (inside && at[0] == '&' && at[1] == '&')
            return raise_unsupported(function, name, text, "&& in brackets");
        if (inside && at[0] == '[' && (at[1] == '^' || at[1] == ':' || at[1] == ']'))
            return raise_unsupported(function, name, text, "brackets in brackets, with ^, : or ] after them");
        if (inside && (at[0] == '[' || (at[0] == ']' && nested > 0))) {
            nested += at[0] == '[' ? 1 : -1;
            at++;
            continue;
        }
        size_t length = at[0] == '\\' && at[1] ? 2 : at[0] == '[' ? class_prefix(at) : 1;
        inside = at[0] == '[' || (inside && at[0] != ']');
        if (!tarn__buffer_add(out, part ? part : at, part ? strlen(part) : length, 1))
            return false;
        at += length;
    }
    return true;
}

/* ---- compilation ------------------------------------------------------------------------------------------------- */

/* Multiline, Unicode properties, newline LF: Oniguruma's defaults. */
static bool compile(tarn__regex *regex, const char *function, const char *name, const tarn__buffer *text)
{
    int error;
    size_t offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context || pcre2_set_newline(context, PCRE2_NEWLINE_LF) != 0) {
        pcre2_compile_context_free(context);
        return tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for a pattern", function);
    }
    /* Without \C, which would match a byte in the middle of a character. */
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    regex->code = pcre2_compile((PCRE2_SPTR)text->data, text->count, options, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (!regex->code) {
        char reason[160] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof(reason));
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the pattern '%.200s' is not valid: %s", function, name,
                           regex->text, reason);
    }
    regex->is_fast = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0;
    return true;
}

/* PCRE2 gets the translation; the source is kept for files and the hash. */
tarn__regex *tarn__regex_new(const char *function, const char *name, const char *text)
{
    tarn__buffer translated = {0};
    if (strlen(text) > MAX_PATTERN) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': a pattern of %zu bytes; at most %d are supported", function, name,
                    strlen(text), MAX_PATTERN);
        return NULL;
    }
    tarn__regex *regex = tarn__alloc(sizeof(*regex));
    bool good = regex && (regex->text = tarn__string_copy(text)) != NULL &&
                translate(function, name, text, &translated) && tarn__buffer_add(&translated, "", 1, 1) &&
                (translated.count--, compile(regex, function, name, &translated));
    tarn__buffer_free(&translated, 1);
    if (good)
        return regex;
    tarn__regex_free(regex);
    return NULL;
}

/* As it was given, not as PCRE2 has it. */
const char *tarn__regex_source(const tarn__regex *regex)
{
    return regex->text;
}

void tarn__regex_free(tarn__regex *regex)
{
    if (!regex)
        return;
    pcre2_code_free(regex->code);
    tarn__string_free(regex->text);
    tarn__release(regex, sizeof(*regex));
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

/* One match vector serves every regex: only the whole match is read, no groups. The JIT stack may grow to 8 MiB, for
 * patterns that backtrack over long words. */
tarn__matcher *tarn__matcher_new(void)
{
    tarn__matcher *matcher = tarn__alloc(sizeof(*matcher));
    if (!matcher)
        return NULL;
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    /* NULL without JIT: then pcre2_match() runs */
    matcher->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
    if (!matcher->data || !matcher->context) {
        tarn__raise(TARN_ERROR_MEMORY, "out of host memory for matching a pattern");
        tarn__matcher_free(matcher);
        return NULL;
    }
    if (matcher->stack)
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return matcher;
}

void tarn__matcher_free(tarn__matcher *matcher)
{
    if (!matcher)
        return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    tarn__release(matcher, sizeof(*matcher));
}

/* JIT code checks no UTF-8: callers pass valid text. The interpreter is told not to check either. */
int tarn__regex_next(const tarn__regex *regex, tarn__matcher *matcher, const char *text, size_t length, size_t from,
                     size_t *begin, size_t *end)
{
    const uint32_t options = PCRE2_NOTEMPTY;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int found = regex->is_fast
                    ? pcre2_jit_match(regex->code, subject, length, from, options, matcher->data, matcher->context)
                    : pcre2_match(regex->code, subject, length, from, options | PCRE2_NO_UTF_CHECK, matcher->data,
                                  matcher->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return 0;
    if (found < 0) {
        char reason[160] = "";
        pcre2_get_error_message(found, (PCRE2_UCHAR *)reason, sizeof(reason));
        tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: the pattern '%.200s' gave up at byte %zu of %zu: %s",
                    regex->text, from, length, reason);
        return -1;
    }
    const size_t *offset = pcre2_get_ovector_pointer(matcher->data);
    *begin = offset[0];
    *end = offset[1];
    if (*begin < from || *end <= *begin || *end > length) { /* possible with \K */
        tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: the pattern '%.200s' matches backwards", regex->text);
        return -1;
    }
    return 1;
}
