/* mirror.h: shared by the files of the mirror backend. */
#ifndef TESTS_MIRROR_H
#define TESTS_MIRROR_H

#include "base/kernel/backend.h"

#define MIRROR_DEVICES 2
#define MIRROR_SHIFT ((uintptr_t)1 << 62)

/* Device addresses are the host's, shifted. */
static inline void *mirror_shift(void *memory)
{
    return (void *)((uintptr_t)memory + MIRROR_SHIFT);
}

static inline char *mirror_real(const void *memory)
{
    return (char *)((uintptr_t)memory - MIRROR_SHIFT);
}

/* A call with the host's addresses. Its pointers lead into itself, so it is not copied. */
typedef struct mirror_call {
    tarn__call call;
    tarn__view in[TARN__MAX_INPUTS], out[TARN__MAX_OUTPUTS];
} mirror_call;

void mirror_shift_back(mirror_call *to, const tarn__call *call);

/* Runs the CPU's kernel, and keeps the fault it finds for the calling thread's next poll. */
void mirror_run_kernel(tarn__call *call);

/* Does the copies that come before what the device does next. */
void mirror_catch_up(int index);

/* decode.c: adds the kernels of the decode step. */
void mirror_add_decode(tarn__kernel_row *rows);

/* ---- capture.c --------------------------------------------------------------------------------------------------- */

bool mirror_is_capturing(int index);
void mirror_capture(tarn__kernel kernel, const tarn__call *call); /* instead of running it */
bool mirror_capture_begin(int index);
void *mirror_capture_end(int index);
bool mirror_graph_launch(int index, void *graph, void *stream);
void mirror_graph_free(int index, void *graph);
bool mirror_write_inline(int index, void *memory, int64_t offset, const void *bytes, size_t count, void *stream);

#endif
