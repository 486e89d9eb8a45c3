/* curl_library.h: the functions of libcurl, which is loaded when the first of them is needed: with the thirty libraries
 * behind it, linking would make the start of every command several times as long. */
#ifndef TARN__CURL_LIBRARY_H
#define TARN__CURL_LIBRARY_H

#define CURL_DISABLE_TYPECHECK /* its macros would call the linked functions */
#include <curl/curl.h>
#include <stdbool.h>

/* The members are the functions curl_NAME of libcurl, with their types. */
#define TARN__CURL_FUNCTIONS(X) \
    X(global_init, CURLcode, (long flags)) \
    X(easy_init, CURL *, (void)) \
    X(easy_cleanup, void, (CURL * curl)) \
    X(easy_reset, void, (CURL * curl)) \
    X(easy_perform, CURLcode, (CURL * curl)) \
    X(easy_setopt, CURLcode, (CURL * curl, CURLoption option, ...)) \
    X(easy_getinfo, CURLcode, (CURL * curl, CURLINFO info, ...)) \
    X(easy_strerror, const char *, (CURLcode code)) \
    X(slist_append, struct curl_slist *, (struct curl_slist * list, const char *text)) \
    X(slist_free_all, void, (struct curl_slist * list)) \
    X(url, CURLU *, (void)) \
    X(url_cleanup, void, (CURLU * url)) \
    X(url_set, CURLUcode, (CURLU * url, CURLUPart part, const char *text, unsigned flags)) \
    X(url_get, CURLUcode, (const CURLU *url, CURLUPart part, char **text, unsigned flags)) \
    X(free, void, (void *memory))

typedef struct tarn__curl_library {
#define TARN__CURL_MEMBER(name, result, arguments) result(*name) arguments;
    TARN__CURL_FUNCTIONS(TARN__CURL_MEMBER)
#undef TARN__CURL_MEMBER
} tarn__curl_library;

/* The library, which stays open; NULL with an error. For one thread. */
const tarn__curl_library *tarn__curl(void);

#endif
