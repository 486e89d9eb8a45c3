/* fma_lane.h: multiplying vectors by consecutive elements, one at a time. AArch64 multiplies by one lane of a
 * register, so eight elements are loaded as vectors: broadcasting loads would occupy the arithmetic pipes.
 * Intrinsics, since compilers split such vectors into single loads. For files with vector types of their own
 * (panels.inc, conv_planes.inc), as NAMED(LOAD_8)(a) and so on; other processors have FMA_SCALAR alone. */
#ifndef TARN__CPU_FMA_LANE_H
#define TARN__CPU_FMA_LANE_H

#if defined(__aarch64__)
#include <arm_neon.h>

#define LOAD_8_f32(a) float32x4_t v0 = vld1q_f32(a), v1 = vld1q_f32((a) + 4);
#define LOAD_8_f64(a) \
    float64x2_t v0 = vld1q_f64(a), v1 = vld1q_f64((a) + 2), v2 = vld1q_f64((a) + 4), v3 = vld1q_f64((a) + 6);

/* X(element, vector, lane) */
#define EACH_OF_8_f32(X) X(0, v0, 0) X(1, v0, 1) X(2, v0, 2) X(3, v0, 3) X(4, v1, 0) X(5, v1, 1) X(6, v1, 2) X(7, v1, 3)
#define EACH_OF_8_f64(X) X(0, v0, 0) X(1, v0, 1) X(2, v1, 0) X(3, v1, 1) X(4, v2, 0) X(5, v2, 1) X(6, v3, 0) X(7, v3, 1)

/* As many elements as a vector has lanes; and X(lane) for each. */
#define LOAD_LANES_f32(v, a) float32x4_t v = vld1q_f32(a);
#define LOAD_LANES_f64(v, a) float64x2_t v = vld1q_f64(a);
#define EACH_LANE_f32(X) X(0) X(1) X(2) X(3)
#define EACH_LANE_f64(X) X(0) X(1)

/* sum += x · lane of v */
#define FMA_LANE_f32(sum, x, v, lane) sum = (vector_f32)vfmaq_laneq_f32((float32x4_t)sum, (float32x4_t)x, v, lane)
#define FMA_LANE_f64(sum, x, v, lane) sum = (vector_f64)vfmaq_laneq_f64((float64x2_t)sum, (float64x2_t)x, v, lane)

/* sum += x · s, rounded as by FMA_LANE: without optimization gcc does not fuse an expression. */
#define FMA_SCALAR_f32(sum, x, s) sum = (vector_f32)vfmaq_n_f32((float32x4_t)(sum), (float32x4_t)(x), s)
#define FMA_SCALAR_f64(sum, x, s) sum = (vector_f64)vfmaq_n_f64((float64x2_t)(sum), (float64x2_t)(x), s)
#else
#define FMA_SCALAR_f32(sum, x, s) sum += (x) * (s)
#define FMA_SCALAR_f64(sum, x, s) sum += (x) * (s)
#endif

#endif
