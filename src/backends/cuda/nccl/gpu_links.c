/* gpu_links.c: how two GPUs of this machine are connected: by NVLink, as the driver's management library (NVML) knows,
 * else as the CUDA runtime says. NVML is opened on first use; constants are those of its binary interface. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "backends/cuda/nccl/nccl.h"

enum { NVML_SUCCESS = 0, NVML_P2P_NVLINK = 2, NVML_P2P_OK = 0, NVML_ACTIVE = 1, MAX_LINKS = 18 };

static struct {
    int (*init)(void);
    int (*by_bus)(const char *bus, void **gpu);
    int (*p2p)(void *gpu, void *other, int what, int *status);
    int (*link_state)(void *gpu, unsigned link, int *state);
    bool is_open;
} nvml;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_nvml(void)
{
    void *opened = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!opened)
        return;
    *(void **)(void *)&nvml.init = dlsym(opened, "nvmlInit_v2");
    *(void **)(void *)&nvml.by_bus = dlsym(opened, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)(void *)&nvml.p2p = dlsym(opened, "nvmlDeviceGetP2PStatus");
    *(void **)(void *)&nvml.link_state = dlsym(opened, "nvmlDeviceGetNvLinkState");
    nvml.is_open = nvml.init && nvml.by_bus && nvml.p2p && nvml.link_state && nvml.init() == NVML_SUCCESS;
}

/* NVML's handle of a device; NULL: unknown. NVML numbers devices in its own way. */
static void *handle_of(int index)
{
    char bus[20];
    void *gpu = NULL;
    pthread_once(&once, open_nvml);
    if (!nvml.is_open || cudaDeviceGetPCIBusId(bus, (int)sizeof(bus), index) != cudaSuccess)
        return NULL;
    return nvml.by_bus(bus, &gpu) == NVML_SUCCESS ? gpu : NULL;
}

static int count_active(void *gpu)
{
    int count = 0, state = 0;
    for (unsigned i = 0; i < MAX_LINKS; i++)
        count += nvml.link_state(gpu, i, &state) == NVML_SUCCESS && state == NVML_ACTIVE;
    return count;
}

bool tarn__gpu_link(int a, int b, char *text, size_t size)
{
    void *gpu = handle_of(a), *other = handle_of(b);
    int status = -1, can_access = 0;
    if (gpu && other && nvml.p2p(gpu, other, NVML_P2P_NVLINK, &status) == NVML_SUCCESS && status == NVML_P2P_OK) {
        snprintf(text, size, "NVLink, %d links of each", count_active(gpu));
        return true;
    }
    if (!tarn__cuda_good(cudaDeviceGetP2PAttribute(&can_access, cudaDevP2PAttrAccessSupported, a, b),
                         "cannot query the devices"))
        return false;
    snprintf(text, size, "%s", can_access ? "PCIe, peer to peer" : "through host memory");
    return true;
}
