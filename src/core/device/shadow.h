/* shadow.h: devices without memory. The shadow of a device has its kernels and none of its bytes: tensors there have
 * shapes and take up room in its pool's books, no kernel runs, what is written there is gone and what is read is 0. So
 * a model that no memory has room for is made, applied and counted in a moment, with the choices that operations would
 * make on the device itself. */
#ifndef TARN__CORE_SHADOW_H
#define TARN__CORE_SHADOW_H

#include "core/device/device.h"

/* The shadow of a device; of a shadow itself. One that does not exist is given back, with an error. */
tarn_device tarn__meta_device_of(tarn_device device);

#endif
