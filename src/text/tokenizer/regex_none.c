/* regex_none.c: stubs of regex.c for a build without PCRE2. Creation raises an error and returns NULL, so the other
 * functions are never reached. */
#include "base/error.h"
#include "text/tokenizer/tokenizer.h"

tarn__regex *tarn__regex_new(const char *function, const char *name, const char *text)
{
    (void)text;
    tarn__raise(
        TARN_ERROR_UNSUPPORTED,
        "%s: '%s': this tokenizer needs regexes, and this build of tarn has none: it was built without PCRE2; install "
        "libpcre2-dev (Debian, Ubuntu) or pcre2-devel (Fedora) and build again",
        function, name);
    return NULL;
}

const char *tarn__regex_source(const tarn__regex *regex)
{
    (void)regex;
    return "";
}

void tarn__regex_free(tarn__regex *regex)
{
    (void)regex;
}

/* Matching needs a regex, of which there is none. */
tarn__matcher *tarn__matcher_new(void)
{
    tarn__raise(TARN_ERROR_INTERNAL, "regex: not available in this build");
    return NULL;
}

void tarn__matcher_free(tarn__matcher *matcher)
{
    (void)matcher;
}

int tarn__regex_next(const tarn__regex *regex, tarn__matcher *matcher, const char *text, size_t length, size_t from,
                     size_t *begin, size_t *end)
{
    (void)regex, (void)matcher, (void)text, (void)length, (void)from, (void)begin, (void)end;
    tarn__raise(TARN_ERROR_INTERNAL, "regex: not available in this build");
    return -1;
}
