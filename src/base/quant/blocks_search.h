/* blocks_search.h: packing the types that have two levels of scales. */
#ifndef TARN__BLOCKS_SEARCH_H
#define TARN__BLOCKS_SEARCH_H

#include "base/quant/quant.h"

/* 256 finite elements into one block. */
void tarn__q4_k_quantize(const float *values, tarn__q4_k *block);
void tarn__q6_k_quantize(const float *values, tarn__q6_k *block);

/* The codes of a group's scale and least, 0 to 63. */
void tarn__q4_k_group(const tarn__q4_k *block, int group, int *scale, int *min);

#endif
