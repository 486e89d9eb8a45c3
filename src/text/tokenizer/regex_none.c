/* regex_none.c: what stands in for patterns in a build without PCRE2. None can be made, so nothing else is ever called.
 */
#include "base/error.h"
#include "text/tokenizer/tokenizer.h"

tarn__regex *tarn__regex_new(const char *function, const char *name, const char *text)
{
    (void)text;
    tarn__raise(TARN_ERROR_UNSUPPORTED,
                "%s: '%s': this tokenizer splits text by a pattern, and this build of tarn has none: it was built "
                "without PCRE2; install "
                "libpcre2-dev (Debian, Ubuntu) or pcre2-devel (Fedora) and build again",
                function, name);
    return NULL;
}

const char *tarn__regex_source(const tarn__regex *pattern)
{
    (void)pattern;
    return "";
}

void tarn__regex_free(tarn__regex *pattern)
{
    (void)pattern;
}

tarn__matcher *tarn__matcher_new(void)
{
    tarn__raise(TARN_ERROR_INTERNAL, "pattern: there can be none in this build");
    return NULL;
}

void tarn__matcher_free(tarn__matcher *matcher)
{
    (void)matcher;
}

int tarn__regex_next(const tarn__regex *pattern, tarn__matcher *matcher, const char *text, size_t length, size_t from,
                     size_t *begin, size_t *end)
{
    (void)pattern, (void)matcher, (void)text, (void)length, (void)from, (void)begin, (void)end;
    tarn__raise(TARN_ERROR_INTERNAL, "pattern: there can be none in this build");
    return -1;
}
