/* pages.h: files of the pages, embedded by the build (cmake/embed_files.cmake), and the headers that they need. */
#ifndef TARN__PAGES_H
#define TARN__PAGES_H

#include <stddef.h>

typedef struct tarn__page {
    const char *name; /* "board.html" */
    const unsigned char *bytes;
    size_t size;
} tarn__page;

extern const tarn__page tarn__pages[];
extern const int tarn__page_count;

/* Content-Security-Policy of every page: scripts, styles and requests of the server itself and of nobody else, none
 * inline, no evaluated strings, no frames. */
#define TARN__PAGE_POLICY \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; " \
    "form-action 'none'; frame-ancestors 'none'"

/* The page of that name; NULL: there is none. */
const tarn__page *tarn__page_find(const char *name);

/* The Content-Type, by the extension of the name. */
const char *tarn__page_type(const tarn__page *page);

#endif
