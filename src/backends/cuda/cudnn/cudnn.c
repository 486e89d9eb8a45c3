/* cudnn.c: opens cuDNN on first use: libcudnn.so.9, then libcudnn.so, or the library that TARN_CUDNN names. One handle
 * per device; one lock for all of them. */
#include "backends/cuda/cudnn/cudnn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The library: opened once, never closed. */
static struct {
    tarn__cudnn functions;
    bool is_open, is_unusable;
    char about[64];   /* a few words, for device listings */
    char reason[200]; /* the error sentence if TARN_CUDNN cannot be used */
} library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A device's handle, and the stream it is bound to. */
static struct state {
    void *handle;
    cudaStream_t stream;
} states[TARN__CUDA_MAX_DEVICES];
static pthread_mutex_t use = PTHREAD_MUTEX_INITIALIZER;

/* ---- opening the library ----------------------------------------------------------------------------------------- */

typedef struct symbol {
    const char *name;
    void **address;
} symbol;

/* NULL, or the name of a missing function. */
static const char *find_functions(void *opened, tarn__cudnn *f)
{
    const symbol symbols[] = {
        {"cudnnGetVersion", (void **)(void *)&f->version},
        {"cudnnGetErrorString", (void **)(void *)&f->status_text},
        {"cudnnCreate", (void **)(void *)&f->create},
        {"cudnnSetStream", (void **)(void *)&f->set_stream},
        {"cudnnBackendCreateDescriptor", (void **)(void *)&f->create_descriptor},
        {"cudnnBackendDestroyDescriptor", (void **)(void *)&f->free},
        {"cudnnBackendSetAttribute", (void **)(void *)&f->set},
        {"cudnnBackendFinalize", (void **)(void *)&f->finalize},
        {"cudnnBackendGetAttribute", (void **)(void *)&f->get},
        {"cudnnBackendExecute", (void **)(void *)&f->run},
    };
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
        if ((*symbols[i].address = dlsym(opened, symbols[i].name)) == NULL)
            return symbols[i].name;
    return NULL;
}

/* Versions before 9 encode the major version in thousands, later ones in ten thousands. */
static bool is_our_version(size_t version)
{
    size_t unit = version < 10000 ? 1000 : 10000, major = version / unit;
    if (major == TARN__CUDNN_MAJOR) {
        snprintf(library.about, sizeof(library.about), "cuDNN %zu.%zu.%zu", major, version % unit / 100, version % 100);
        return true;
    }
    snprintf(library.about, sizeof(library.about), "no cuDNN: version %zu.%zu found, %d needed", major,
             version % unit / 100, TARN__CUDNN_MAJOR);
    return false;
}

/* True if the library `name` can be used; else library.about has the reason. */
static bool open_one(const char *name)
{
    void *opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        snprintf(library.about, sizeof(library.about), "no cuDNN: libcudnn.so.%d cannot be opened", TARN__CUDNN_MAJOR);
        return false;
    }
    const char *missing = find_functions(opened, &library.functions);
    if (missing)
        snprintf(library.about, sizeof(library.about), "no cuDNN: no %s in it", missing);
    if (!missing && is_our_version(library.functions.version()))
        return true;
    dlclose(opened);
    return false;
}

/* A named library that cannot be used is an error: no other one is tried. */
static void open_named(const char *name)
{
    library.is_open = open_one(name);
    if (library.is_open)
        return;
    const char *why = dlerror();
    library.is_unusable = true;
    snprintf(library.reason, sizeof(library.reason), "TARN_CUDNN must be off or the path of libcudnn.so.%d: %.120s",
             TARN__CUDNN_MAJOR, why ? why : library.about);
    if (why)
        snprintf(library.about, sizeof(library.about), "no cuDNN: TARN_CUDNN cannot be opened");
}

/* Runs once; the result is kept for the process. */
static void open_library(void)
{
    const char *name = getenv("TARN_CUDNN");
    if (name && strcmp(name, "off") == 0)
        snprintf(library.about, sizeof(library.about), "cuDNN is off");
    else if (name && name[0])
        open_named(name);
    else
        library.is_open = open_one("libcudnn.so.9") || open_one("libcudnn.so");
}

const tarn__cudnn *tarn__cudnn_open(void)
{
    pthread_once(&once, open_library);
    return library.is_open ? &library.functions : NULL;
}

const char *tarn__cudnn_about(void)
{
    pthread_once(&once, open_library);
    return library.about;
}

bool tarn__cudnn_is_unusable(void)
{
    pthread_once(&once, open_library);
    if (library.is_unusable)
        tarn__cuda_fail("%s", library.reason);
    return library.is_unusable;
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

bool tarn__cudnn_good(int status, const char *what)
{
    if (status == 0)
        return true;
    tarn__cuda_fail("%s: %s: %s", library.about, what, library.functions.status_text(status));
    return false;
}

void tarn__cudnn_lock(void)
{
    pthread_mutex_lock(&use);
}

void tarn__cudnn_unlock(void)
{
    pthread_mutex_unlock(&use);
}

/* Handles are created on first use and never destroyed. The stream is set only when it changes. */
void *tarn__cudnn_handle(int index, cudaStream_t stream)
{
    struct state *state = &states[index];
    bool is_ok = tarn__cuda_at(index) != NULL;
    if (is_ok && !state->handle)
        is_ok = tarn__cudnn_good(
            library.functions.create(&state->handle),
            "cannot create a handle on this device (TARN_CUDNN=off computes convolutions and attention without it)");
    if (is_ok && state->stream != stream) {
        is_ok = tarn__cudnn_good(library.functions.set_stream(state->handle, stream), "cannot set the stream");
        state->stream = is_ok ? stream : NULL;
    }
    return is_ok ? state->handle : NULL;
}
