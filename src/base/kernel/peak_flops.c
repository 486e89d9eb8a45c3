/* peak_flops.c: peak FLOP/s of known devices, from their makers' data sheets: the reference for MFU.
 *
 * Values are for dense matmuls; they bound what any program can reach and say nothing about
 * memory-bound work. One table for the backends that reach the same devices. */
#include "base/kernel/peak_flops.h"

#include <string.h>

/* Dense (not sparse) TFLOP/s, by a substring of the device's name; longer names come before their prefixes. */
static const struct {
    const char *name;
    double bf16, tf32, f32;
} peaks[] = {
    {"B200", 2250, 1125, 80},     {"H200", 989.4, 494.7, 66.9},    {"H100 PCIe", 756, 378, 51.2},
    {"H100 NVL", 835, 417.5, 60}, {"H100", 989.4, 494.7, 66.9},    {"A100", 312, 156, 19.5},
    {"L40S", 362, 183, 91.6},     {"RTX 4090", 165.2, 82.6, 82.6}, {"RTX 3090", 71, 35.6, 35.6},
};

double tarn__peak_flops_of(const char *device, const char *precision)
{
    for (size_t i = 0; i < sizeof(peaks) / sizeof(peaks[0]); i++)
        if (strstr(device, peaks[i].name))
            return 1e12 * (strcmp(precision, "bf16") == 0   ? peaks[i].bf16
                           : strcmp(precision, "tf32") == 0 ? peaks[i].tf32
                                                            : peaks[i].f32);
    return 0;
}
