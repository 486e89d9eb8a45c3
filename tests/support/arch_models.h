/* arch_models.h: small models of every architecture, for tests of the decode step. */
#ifndef SUPPORT_ARCH_MODELS_H
#define SUPPORT_ARCH_MODELS_H

#include <stdbool.h>
#include <tarn/tarn.h>

enum { ARCH_VOCAB = 64, ARCH_CONTEXT = 24, ARCH_HIDDEN = 64, ARCH_HEADS = 4, ARCH_CASES = 18 };

typedef struct arch_case {
    const char *arch;
    bool is_other; /* of two forms: the residual that is not the default; of Llama, biases everywhere */
    int kernels;   /* per layer of a decode step, where the device has all of its kernels */
} arch_case;

extern const arch_case arch_cases[ARCH_CASES];

/* A model on the CPU, out of training mode, f32, with weights so large that every part matters. Windows are shorter
 * than the context, soft caps low. The caller frees it. */
tarn_module *arch_model(const arch_case *row, int64_t layers);

/* Some tokens, i32 [batch, count] on the CPU; at most 256 in all. */
tarn_tensor *arch_tokens(int64_t batch, int64_t count);

#endif
