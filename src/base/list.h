/* list.h: lists that grow. */
#ifndef TARN__LIST_H
#define TARN__LIST_H

#include <stdbool.h>
#include <stddef.h>

/* Makes room for one more element of `each` bytes in a list that holds `count` and has room for `*room`: *list is then
 * perhaps elsewhere, and twice as long. False with an error, and nothing changed. The list is released by
 * tarn__release() with `*room` times `each` bytes. */
bool tarn__list_reserve(void *list, int count, int *room, size_t each);

#endif
