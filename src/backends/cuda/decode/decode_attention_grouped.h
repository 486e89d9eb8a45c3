/* decode_attention_grouped.h: attention of a decode step on tensor cores, for decode_attention.cu. */
#ifndef TARN__CUDA_DECODE_ATTENTION_GROUPED_H
#define TARN__CUDA_DECODE_ATTENTION_GROUPED_H

#ifdef __cplusplus
extern "C" {
#endif
#include "base/kernel/call.h"

/* True if the kernel supports the call; its scratch is that of decode_attention.cu. */
bool tarn__cuda_decode_attention_grouped_fits(const tarn__call *call);
void tarn__cuda_decode_attention_grouped(const tarn__call *call);

#ifdef __cplusplus
}
#endif

#endif
