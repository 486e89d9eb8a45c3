/* nccl.c: opens NCCL on first use: libnccl.so.2, or the library that TARN_NCCL names. */
#include "backends/cuda/nccl/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* The library: opened once, never closed. */
static struct {
    tarn__nccl functions;
    bool is_open;
    char about[32];
    char reason[200];
} library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

typedef struct symbol {
    const char *name;
    void **address;
} symbol;

/* NULL, or the name of a missing function. */
static const char *find_functions(void *opened, tarn__nccl *f)
{
    const symbol symbols[] = {
        {"ncclGetVersion", (void **)(void *)&f->version},
        {"ncclGetErrorString", (void **)(void *)&f->status_text},
        {"ncclGetLastError", (void **)(void *)&f->last_error},
        {"ncclGetUniqueId", (void **)(void *)&f->new_id},
        {"ncclCommInitRankConfig", (void **)(void *)&f->open},
        {"ncclCommGetAsyncError", (void **)(void *)&f->async_error},
        {"ncclGroupStart", (void **)(void *)&f->group_start},
        {"ncclGroupEnd", (void **)(void *)&f->group_end},
        {"ncclSend", (void **)(void *)&f->send},
        {"ncclRecv", (void **)(void *)&f->receive},
        {"ncclAllGather", (void **)(void *)&f->all_gather},
        {"ncclAllReduce", (void **)(void *)&f->all_reduce},
        {"ncclBroadcast", (void **)(void *)&f->broadcast},
        {"ncclCommFinalize", (void **)(void *)&f->finalize},
        {"ncclCommDestroy", (void **)(void *)&f->destroy},
        {"ncclCommAbort", (void **)(void *)&f->abort},
    };
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
        if ((*symbols[i].address = dlsym(opened, symbols[i].name)) == NULL)
            return symbols[i].name;
    return NULL;
}

static void open_library(void)
{
    const char *name = getenv("TARN_NCCL"), *missing;
    bool is_named = name && name[0];
    int version = 0;
    void *opened = dlopen(is_named ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        const char *why = dlerror();
        snprintf(library.reason, sizeof(library.reason), "%.150s", why ? why : "libnccl.so.2 cannot be opened");
        return;
    }
    missing = find_functions(opened, &library.functions);
    if (missing || library.functions.version(&version) != TARN__NCCL_SUCCESS || version < TARN__NCCL_MIN_VERSION) {
        if (missing)
            snprintf(library.reason, sizeof(library.reason), "libnccl.so.2 has no %s; 2.14 or later is needed",
                     missing);
        else
            snprintf(library.reason, sizeof(library.reason), "its version is %d; 2.14 or later is needed", version);
        dlclose(opened);
        return;
    }
    snprintf(library.about, sizeof(library.about), "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    library.is_open = true;
}

const tarn__nccl *tarn__nccl_open(void)
{
    pthread_once(&once, open_library);
    if (!library.is_open)
        tarn__cuda_fail("%s", library.reason);
    return library.is_open ? &library.functions : NULL;
}

const char *tarn__nccl_about(void)
{
    return library.about;
}
