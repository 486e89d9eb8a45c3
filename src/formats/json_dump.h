/* json_dump.h: JSON as text, with reals as short as possible. */
#ifndef TARN__JSON_DUMP_H
#define TARN__JSON_DUMP_H

#include <jansson.h>

/* As json_dumps(), but each real, rounded to JSON_REAL_PRECISION(), is the shortest decimal that reads back as the same
 * double: 0.1, not 0.10000000000000001. The caller frees the result with free(). NULL: no memory. */
char *tarn__json_dump(const json_t *root, size_t flags);

#endif
