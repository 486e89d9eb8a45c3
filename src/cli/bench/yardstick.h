/* yardstick.h: what a device reaches at its best, measured once, to hold figures against. */
#ifndef TARN__YARDSTICK_H
#define TARN__YARDSTICK_H

#include "cli/bench/timer.h"

typedef struct tarn__roofline {
    int64_t rows;   /* of the square matrices of the product */
    double product; /* operations a second of it */
    double copy;    /* bytes a second, read and written, of a large copy */
    double peak;    /* operations a second that the maker states; NaN: not known here */
} tarn__roofline;

/* Measures for a precision ("f32", "tf32", "bf16"). False with an error pending. */
bool tarn__roofline_measure(tarn_device device, const char *precision, tarn__roofline *yardstick);

/* "memory  8 GiB at most: parameters 1 GiB, …" */
void tarn__print_memory_kinds(const tarn_memory_kinds *memory);
void tarn__json_memory_kinds(tarn__json *json, const tarn_memory_kinds *memory);

#endif
