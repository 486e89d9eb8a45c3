/* image.h: shared parts of the image readers.
 *
 * Files are not trusted: sizes are checked against the limits below and against the bytes that can still follow before
 * memory is allocated. Images are u8 (C, H, W): C is 1 for grey, 3 for colour, one more with alpha. */
#ifndef TARN__DATA_IMAGE_H
#define TARN__DATA_IMAGE_H

#include "data/dataset.h"
#include "data/readers/input.h"

#define TARN__MAX_IMAGE_SIDE 32768                /* pixels per side */
#define TARN__MAX_IMAGE_PIXELS ((int64_t)1 << 27) /* per image */

/* Checks the sizes in a header; `byte` is their position, for errors. */
bool tarn__image_check_size(const tarn__data_input *input, int64_t byte, uint64_t height, uint64_t width);

/* Allocates an image, u8 (C, H, W), zeroed. The caller owns it. On failure the array is empty. */
bool tarn__image_alloc(tarn_array *image, int64_t channels, int64_t height, int64_t width);

/* Readers. The first two bytes, which identify the format, have been consumed. The caller frees the image, on failure
 * too. */
bool tarn__image_read_png(tarn__data_input *input, tarn_array *image);
bool tarn__image_read_pnm(tarn__data_input *input, char kind, tarn_array *image); /* 'P' and kind, '1' to '7' */

#endif
