/* index.h: writing at indices, for caches that are filled while a text grows. */
#ifndef TARN__OPS_INDEX_H
#define TARN__OPS_INDEX_H

#include "ops/op.h"

/* y[b, index[b] + t along the axis, which is not the first] = x[b, t] for all t of x; index is i32 or i64 [B], on the
 * device, so that nobody waits for it. x has y's dtype, rank and sizes, but for the axis. Nothing is recorded. Borrows
 * all three. False with an error. */
bool tarn__write_rows(const char *function, tarn_tensor *y, int axis, tarn_tensor *index, tarn_tensor *x);

/* tarn_embedding(); of a weight of blocks in that float dtype, rather than f32. Borrows both; the result belongs to the
 * open scope. */
tarn_tensor *tarn__embedding_as(tarn_tensor *weight, tarn_tensor *index, tarn_dtype dtype);

#endif
