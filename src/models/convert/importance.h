/* importance.h: importance of the input columns of weights, from a text or a file of llama.cpp. */
#ifndef TARN__IMPORTANCE_H
#define TARN__IMPORTANCE_H

#include <stdbool.h>
#include <stdint.h>

/* One weight, by its name in GGUF files. */
typedef struct tarn__importance_row {
    char *name; /* owned */
    int64_t columns;
    double *sum;   /* [columns], of squares; owned */
    float *values; /* [columns], 1 on average; NULL: the weight was not used; owned */
    const void *storage;
} tarn__importance_row;

typedef struct tarn__importance {
    tarn__importance_row *row;
    int rows, capacity;
} tarn__importance;

/* Fills an empty table: from "text:FILE" by a run of the model over the file, or from llama.cpp's file. False with an
 * error, and an empty table. */
bool tarn__importance_open(const char *function, const char *model, const char *source, tarn__importance *importance);
void tarn__importance_free(tarn__importance *importance);

/* Values of a weight with rows of `columns` elements, borrowed; NULL: none are known. */
const float *tarn__importance_of(const tarn__importance *importance, const char *name, int64_t columns);

#endif
