/* image.h: what operations on images [N, C, H, W] share. */
#ifndef TARN__IMAGE_H
#define TARN__IMAGE_H

#include "ops/op.h"

/* Sizes beyond this are mistakes, and sums of a few of them do not overflow. */
#define TARN__IMAGE_LIMIT ((int64_t)1 << 31)

/* Raises unless x is there, of floats and of rank 4, with channels, rows and columns. */
bool tarn__check_image(const char *function, const tarn_tensor *x, const char *role);

/* Raises unless low <= value[0], value[1] <= TARN__IMAGE_LIMIT. `word` names the option. */
bool tarn__check_pair(const char *function, const char *word, const int64_t *value, int64_t low);

/* An attribute of two numbers, or of one that counts for both; `otherwise` where it was not given. False with an error
 * on another count. */
bool tarn__attribute_pair(const tarn__invocation *v, const char *name, int64_t otherwise, int64_t *pair);

/* True when x's channels lie next to each other and its columns do not: a result gets the same layout. */
bool tarn__channels_last(const tarn_tensor *x);

/* A new tensor [N, C, H, W], its channels last where `like`'s are. In the open scope. */
tarn_tensor *tarn__image_like(const char *function, const tarn_tensor *like, tarn_shape shape, tarn_dtype dtype,
                              tarn_device device);

#endif
