/* pages.h: files of the pages, embedded by the build (cmake/embed_files.cmake). */
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

#endif
