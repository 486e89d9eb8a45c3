/* json_dump.h: JSON as text, whose numbers are as short as they can be. */
#ifndef TARN__JSON_DUMP_H
#define TARN__JSON_DUMP_H

#include <jansson.h>

/* As json_dumps(); each real number, rounded to JSON_REAL_PRECISION(), is the shortest text that reads back as the same
 * double. The caller frees it with free(). NULL: no memory. */
char *tarn__json_dump(const json_t *root, size_t flags);

#endif
