/* list.c: lists that grow. */
#include "base/list.h"

#include <string.h>

#include "base/memory.h"

#define FIRST_ROOM 32

bool tarn__list_reserve(void *list, int count, int *room, size_t each)
{
    void *old, *wider;
    if (count < *room)
        return true;
    int more = *room ? 2 * *room : FIRST_ROOM;
    if (!(wider = tarn__alloc(each * (size_t)more)))
        return false;
    memcpy(&old, list, sizeof(old)); /* a pointer to elements of any type */
    if (count > 0)
        memcpy(wider, old, each * (size_t)count);
    tarn__release(old, each * (size_t)*room);
    memcpy(list, &wider, sizeof(wider));
    *room = more;
    return true;
}
