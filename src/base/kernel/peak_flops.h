/* peak_flops.h: peak FLOP/s of known devices. */
#ifndef TARN__PEAK_FLOPS_H
#define TARN__PEAK_FLOPS_H

/* Peak FLOP/s of dense matmuls of the device with that name, in the precision "f32", "tf32" or "bf16"; 0 when
 * unknown. */
double tarn__peak_flops_of(const char *device, const char *precision);

#endif
