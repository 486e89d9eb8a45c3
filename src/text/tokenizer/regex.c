/* regex.c: regular expressions by PCRE2, compiled to machine code where the system allows it.
 *
 * Hugging Face's files are written for Oniguruma. What both write alike but mean differently is translated: \s and \w
 * are Unicode's White_Space and word characters there, and slightly more or less in PCRE2. What has no translation here
 * is refused rather than read differently. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer/tokenizer.h"

#include <pcre2.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/tokenizer/buffer.h"

#define LONGEST 65536 /* bytes of a pattern */
#define SPACE "\\p{Z}\\t-\\r\\x{85}"
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"

struct tarn__regex {
    char *text;
    pcre2_code *code;
    bool is_fast; /* compiled to machine code */
};

struct tarn__matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* ---- translation ------------------------------------------------------------------------------------------------- */

typedef struct class_escape {
    const char *outside, *inside; /* NULL: has no place there */
} class_escape;

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

static bool refuse(const char *function, const char *name, const char *text, const char *part)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the pattern '%.200s' uses %s, which tarn cannot read",
                       function, name, text, part);
}

/* What stands at the beginning of a class and means itself: ^, and a ] right behind. */
static size_t class_head(const char *at)
{
    size_t length = 1;
    length += at[length] == '^';
    return length + (at[length] == ']');
}

static bool translate(const char *function, const char *name, const char *text, tarn__buffer *out)
{
    bool inside = false; /* a class in brackets */
    for (const char *at = text; *at;) {
        const class_escape *escape = at[0] == '\\' && at[1] ? translation(at[1]) : NULL;
        const char *part = escape ? (inside ? escape->inside : escape->outside) : NULL;
        if (escape && !part)
            return refuse(function, name, text, at[1] == 'h' ? "\\h" : "\\S or \\W in brackets");
        if (inside && at[0] == '&' && at[1] == '&')
            return refuse(function, name, text, "&& in brackets");
        if (inside && at[0] == '[')
            return refuse(function, name, text, "brackets in brackets");
        size_t length = at[0] == '\\' && at[1] ? 2 : at[0] == '[' ? class_head(at) : 1;
        inside = at[0] == '[' || (inside && at[0] != ']');
        if (!tarn__buffer_add(out, part ? part : at, part ? strlen(part) : length, 1))
            return false;
        at += length;
    }
    return true;
}

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

static bool compile(tarn__regex *pattern, const char *function, const char *name, const tarn__buffer *text)
{
    int error;
    size_t place;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context || pcre2_set_newline(context, PCRE2_NEWLINE_LF) != 0) {
        pcre2_compile_context_free(context);
        return tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for a pattern", function);
    }
    /* Without \C, which would match a byte in the middle of a character. */
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pattern->code = pcre2_compile((PCRE2_SPTR)text->data, text->count, options, &error, &place, context);
    pcre2_compile_context_free(context);
    if (!pattern->code) {
        char reason[160] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof(reason));
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the pattern '%.200s' is wrong: %s", function, name,
                           pattern->text, reason);
    }
    pattern->is_fast = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
    return true;
}

tarn__regex *tarn__regex_new(const char *function, const char *name, const char *text)
{
    tarn__buffer translated = {0};
    if (strlen(text) > LONGEST) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': a pattern of %zu bytes is longer than %d", function, name,
                    strlen(text), LONGEST);
        return NULL;
    }
    tarn__regex *pattern = tarn__alloc(sizeof(*pattern));
    bool good = pattern && (pattern->text = tarn__string_copy(text)) != NULL &&
                translate(function, name, text, &translated) && tarn__buffer_add(&translated, "", 1, 1) &&
                (translated.count--, compile(pattern, function, name, &translated));
    tarn__buffer_free(&translated, 1);
    if (good)
        return pattern;
    tarn__regex_free(pattern);
    return NULL;
}

const char *tarn__regex_source(const tarn__regex *pattern)
{
    return pattern->text;
}

void tarn__regex_free(tarn__regex *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    tarn__string_free(pattern->text);
    tarn__release(pattern, sizeof(*pattern));
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

tarn__matcher *tarn__matcher_new(void)
{
    tarn__matcher *matcher = tarn__alloc(sizeof(*matcher));
    if (!matcher)
        return NULL;
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    /* NULL where PCRE2 has no JIT: then it is not asked for */
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

int tarn__regex_next(const tarn__regex *pattern, tarn__matcher *matcher, const char *text, size_t length, size_t from,
                     size_t *begin, size_t *end)
{
    const uint32_t options = PCRE2_NOTEMPTY;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int found = pattern->is_fast
                    ? pcre2_jit_match(pattern->code, subject, length, from, options, matcher->data, matcher->context)
                    : pcre2_match(pattern->code, subject, length, from, options | PCRE2_NO_UTF_CHECK, matcher->data,
                                  matcher->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return 0;
    if (found < 0) {
        char reason[160] = "";
        pcre2_get_error_message(found, (PCRE2_UCHAR *)reason, sizeof(reason));
        tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: the pattern '%.200s' gave up at byte %zu of %zu: %s",
                    pattern->text, from, length, reason);
        return -1;
    }
    const size_t *place = pcre2_get_ovector_pointer(matcher->data);
    *begin = place[0];
    *end = place[1];
    if (*begin < from || *end <= *begin || *end > length) { /* \K can give such */
        tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: the pattern '%.200s' matches backwards", pattern->text);
        return -1;
    }
    return 1;
}
