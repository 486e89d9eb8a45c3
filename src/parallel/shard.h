/* shard.h: flat tensors that are divided among ranks: rank r has elements begin(r) to begin(r + 1) of each.
 *
 * Shards begin at multiples of TARN__SHARD_UNIT elements, so that a kernel over a shard treats every element as a
 * kernel over the whole tensor does: the bits of a result do not depend on the number of ranks. Any size can be
 * divided; of a small tensor some ranks have nothing. A communicator of NULL is one rank, which has everything. */
#ifndef TARN__SHARD_H
#define TARN__SHARD_H

#include <tarn/tensor.h>

#include "parallel/comm.h"

enum { TARN__SHARD_UNIT = 128 };

/* The first element of a rank's shard of `count` elements; of rank `size` it is `count`. */
int64_t tarn__shard_begin(const tarn_comm *comm, int64_t count, int rank);

/* The nearest rank in a direction, 1 or -1, whose shard of `count` elements is not empty; -1: none. */
int tarn__shard_neighbour(const tarn_comm *comm, int64_t count, int direction);

/* Gives all ranks the shards of all in a contiguous tensor of rank 1, through host memory. No-op with one rank and on a
 * meta device. False with an error. */
bool tarn__shard_gather(const char *function, tarn_comm *comm, tarn_tensor *whole);

#endif
