/* flat.h: the flat buffers of an optimizer, see optimizer.h. */
#ifndef TARN__FLAT_H
#define TARN__FLAT_H

#include "optim/rates.h"

/* The buffers of a group. A group of 16-bit parameters has MASTER; a method has as many of the last two as it has
 * states. */
enum { TARN__PARAMETER, TARN__GRADIENT, TARN__MASTER, TARN__STATE, TARN__BUFFERS = TARN__STATE + 2 };

/* One parameter's place. */
typedef struct tarn__flat_segment {
    tarn_tensor *parameter;   /* held by the optimizer */
    int64_t begin, count;     /* in elements */
    int64_t steps;            /* that it took part in */
    int64_t saved_steps;      /* the same from a file, until all of it is read */
    uint32_t version;         /* of the parameter when it was last equal to its master weights */
    uint32_t clipped_version; /* of the gradient when it was last clipped */
    int order;                /* among the module's parameters */
    tarn__rates rates;
} tarn__flat_segment;

typedef struct tarn__flat_group {
    tarn_tensor *buffer[TARN__BUFFERS]; /* rank 1, held; NULL where there is none */
    tarn_device device;
    int first, segments;                   /* which of the list are its own */
    int64_t count;                         /* elements of a buffer */
    tarn_tensor *chunks, *firsts, *factor; /* of clip.c, held; NULL until a norm is asked for */
} tarn__flat_group;

/* All groups, and all segments in their order: by group, those that decay first, those of the same rates together. */
typedef struct tarn__flat_buffers {
    tarn__flat_group *group;
    tarn__flat_segment *segment;
    int groups, segments;
    int room; /* of both lists */
} tarn__flat_buffers;

/* Lays parameters out anew: `list` says which, `device` where each is to be, and `old` (NULL: none yet) where
 * gradients, master weights, state and step counts come from. With `old` nothing has moved when it fails, with an error
 * raised; without it parameters may lie in a flat buffer then, with the values they had. On success `flats` has
 * replaced `old`, whose buffers are gone, and the parameters stand on their new places. */
bool tarn__flat_build(tarn__flat_buffers *flats, const tarn__method *method, const tarn__flat_segment *list,
                      const tarn_device *device, int count, tarn__flat_buffers *old);

/* Lets go of the buffers; parameters and gradients keep alive what they stand on. */
void tarn__flat_release(tarn__flat_buffers *flats);

/* A view of elements [begin, end) of a buffer, in the open scope; the buffer itself where that is all of it. */
tarn_tensor *tarn__flat_range(tarn_tensor *buffer, int64_t begin, int64_t end);

/* A segment of a buffer in its parameter's shape, in the open scope. */
tarn_tensor *tarn__flat_shaped(tarn_tensor *buffer, const tarn__flat_segment *segment);

/* Brings the master weights of parameters that were written from outside up to date. In the open scope. */
bool tarn__flat_refresh_master(const tarn__method *method, tarn__flat_buffers *flats);

#endif
