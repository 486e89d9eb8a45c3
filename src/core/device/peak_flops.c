/* peak_flops.c: peak FLOP/s of a device, by its backend: the reference for MFU. */
#include <string.h>
#include <tarn/profile.h>

#include "base/error.h"
#include "core/device/device.h"

/* 0 for unknown devices: MFU is then not reported. No error for a CPU. */
double tarn_device_peak_flops(tarn_device device, const char *precision)
{
    if (tarn_failed())
        return 0;
    if (!precision ||
        (strcmp(precision, "f32") != 0 && strcmp(precision, "tf32") != 0 && strcmp(precision, "bf16") != 0)) {
        tarn__raise(TARN_ERROR_ARGUMENT, "device_peak_flops: precision is '%.20s'; it must be f32, tf32 or bf16",
                    precision ? precision : "NULL");
        return 0;
    }
    const tarn__backend *backend = tarn__backend_of(device, "device_peak_flops");
    return backend && backend->peak_flops ? backend->peak_flops(device.index, precision) : 0;
}
