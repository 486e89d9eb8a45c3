/* device_link.h: the contract of a device link: device memory that moves between ranks without the host, as NCCL moves
 * it. libtarn-NAME.so of a backend that has one exports a second symbol, tarn_link_entry.
 *
 * A link belongs to one rank and one device. Its calls enqueue work in order on a stream of the link and do not wait:
 * fork() lets it begin after what is on the device's stream by then, join() lets that stream go on after it. Between
 * them both streams run side by side, and memory that the link uses is not freed. After each call state() is asked
 * until it is READY, and only then is the next call allowed; finished() says when the device has done all of it. The
 * caller looks at the clock and at the other ranks meanwhile, and calls abort(), so that nothing hangs. Functions
 * return false or NULL with a sentence in failure(). */
#ifndef TARN__DEVICE_LINK_H
#define TARN__DEVICE_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TARN__LINK_ID = 128, TARN__LINK_GPU = 64, TARN__LINK_ROWS = 2048 };

/* A message to or from another rank; never to the own one. */
typedef struct tarn__message {
    void *memory; /* of a send it is only read */
    size_t bytes;
    int peer;
    bool is_send;
} tarn__message;

typedef enum tarn__link_state { TARN__LINK_BUSY, TARN__LINK_READY, TARN__LINK_FAILED } tarn__link_state;

/* Rows of equal length that are added as a tree (parallel/tree.h). Row i is `stride` elements after row i - 1; after it
 * the sum of the last two is taken merges[i] times. One sum is left at the end. */
typedef struct tarn__link_sum {
    const float *rows;
    int count; /* at most TARN__LINK_ROWS */
    const uint8_t *merges;
    int64_t stride, elements;
    float *sum;
} tarn__link_sum;

typedef struct tarn__link tarn__link;

typedef struct tarn__link_row {
    bool (*is_off)(void); /* the user wants no link */
    /* How two devices of this machine are connected, as text. */
    bool (*between)(int a, int b, char *text, size_t size);
    const char *(*name)(void);                         /* "NCCL 2.28.3"; NULL: see `failure` */
    bool (*new_id)(char id[TARN__LINK_ID]);            /* rank 0 makes it, and all open with it */
    bool (*gpu)(int index, char text[TARN__LINK_GPU]); /* tells GPUs apart: two ranks of one are refused */
    /* Begins to connect. The caller owns the link. */
    tarn__link *(*open)(int index, int rank, int size, const char id[TARN__LINK_ID]);
    bool (*fork)(tarn__link *link);
    bool (*join)(tarn__link *link);
    bool (*exchange)(tarn__link *link, const tarn__message *messages, int count); /* sends and receives together */
    bool (*copy)(tarn__link *link, void *to, const void *from, size_t bytes);
    /* Sums f32 elements of all ranks in place, in any order of additions. */
    bool (*all_reduce)(tarn__link *link, float *memory, int64_t elements);
    bool (*sum)(tarn__link *link, const tarn__link_sum *sum);
    /* Every rank gets the pieces of all, adjacent; the own one is in its position already. */
    bool (*gather)(tarn__link *link, void *all, const size_t *bytes);
    tarn__link_state (*state)(tarn__link *link);
    tarn__link_state (*finished)(tarn__link *link);
    const char *(*failure)(void);                /* of this thread */
    void (*free)(tarn__link *link, bool aborts); /* aborts: others may have ended */
} tarn__link_row;

#define TARN__LINK_SYMBOL "tarn_link_entry"

typedef const tarn__link_row *(*tarn__link_entry_fn)(void);

#endif
