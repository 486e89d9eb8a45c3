/* npy_head.h: the head of a .npy file: how its elements are stored. */
#ifndef TARN__NPY_HEAD_H
#define TARN__NPY_HEAD_H

#include "data/dataset.h"
#include "data/readers/input.h"

typedef struct tarn__npy_head {
    tarn_dtype dtype;
    bool is_big_endian, is_fortran;
    tarn_shape shape;
} tarn__npy_head;

/* Reads the head; the source then stands at the first element, and the elements are known to fit into what can follow.
 */
bool tarn__npy_head_read(tarn__data_input *source, tarn__npy_head *head);

#endif
