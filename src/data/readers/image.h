/* image.h: what the readers of image files share. A file is not to be trusted: its sizes are checked against the limits
 * and against what can still follow in the file before memory is asked for. */
#ifndef TARN__DATA_IMAGE_H
#define TARN__DATA_IMAGE_H

#include "data/dataset.h"
#include "data/readers/input.h"

#define TARN__MAX_IMAGE_SIDE 32768                /* pixels of a side */
#define TARN__MAX_IMAGE_PIXELS ((int64_t)1 << 27) /* of an image */

/* Checks sizes that a file gives at `byte`. */
bool tarn__image_check_size(const tarn__data_input *source, int64_t byte, uint64_t height, uint64_t width);

/* Makes room for an image, u8 [C, H, W], zeros. */
bool tarn__image_alloc(tarn_array *image, int64_t channels, int64_t height, int64_t width);

/* Readers. The first two bytes, which say what the file is, have been read. */
bool tarn__image_read_png(tarn__data_input *source, tarn_array *image);
bool tarn__image_read_pnm(tarn__data_input *source, char kind, tarn_array *image); /* 'P' and kind, '1' to '7' */

#endif
