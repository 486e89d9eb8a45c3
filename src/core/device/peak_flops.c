/* peak_flops.c: peak FLOP/s of known devices, from their makers' data sheets: the reference for MFU.
 *
 * Values are for dense matmuls; they bound what any program can reach and say nothing about
 * memory-bound work. */
#include <string.h>
#include <tarn/profile.h>

#include "base/error.h"

/* Dense (not sparse) TFLOP/s, by a substring of the device's name; longer names come before their prefixes. */
static const struct {
    const char *name;
    double bf16, tf32, f32;
} peaks[] = {
    {"B200", 2250, 1125, 80},     {"H200", 989.4, 494.7, 66.9},    {"H100 PCIe", 756, 378, 51.2},
    {"H100 NVL", 835, 417.5, 60}, {"H100", 989.4, 494.7, 66.9},    {"A100", 312, 156, 19.5},
    {"L40S", 362, 183, 91.6},     {"RTX 4090", 165.2, 82.6, 82.6}, {"RTX 3090", 71, 35.6, 35.6},
};

/* 0 for unknown devices: MFU is then not reported. No error for a CPU. */
double tarn_device_peak_flops(tarn_device device, const char *precision)
{
    tarn_device_info info;
    if (tarn_failed())
        return 0;
    int kind = !precision                       ? -1
               : strcmp(precision, "bf16") == 0 ? 0
               : strcmp(precision, "tf32") == 0 ? 1
               : strcmp(precision, "f32") == 0  ? 2
                                                : -1;
    if (kind < 0) {
        tarn__raise(TARN_ERROR_ARGUMENT, "device_peak_flops: precision is '%.20s'; it must be f32, tf32 or bf16",
                    precision ? precision : "NULL");
        return 0;
    }
    if (!tarn_device_query(device, &info)) {
        tarn__raise_within("device_peak_flops");
        return 0;
    }
    for (size_t i = 0; i < sizeof(peaks) / sizeof(peaks[0]); i++)
        if (strstr(info.description, peaks[i].name))
            return 1e12 * (kind == 0 ? peaks[i].bf16 : kind == 1 ? peaks[i].tf32 : peaks[i].f32);
    return 0;
}
