/* curl_library.c: opening libcurl.
 *
 * The library stays open until the process ends. A call that failed is tried again by the next one. The functions
 * are found by name, so a libcurl that lacks one of them is refused here and not in the middle of a download. */
#include "hub/curl_library.h"

#include <dlfcn.h>
#include <string.h>
#include <tarn/base.h>

#include "tarn_features.h"

/* POSIX lets a pointer to an object hold one to a function; ISO C has no cast for it. */
static bool find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof(found));
    return found || tarn_set_error(TARN_ERROR_UNSUPPORTED, "%s has no %s()", TARN__CURL_FILE, name);
}

static bool load(tarn__curl_library *curl)
{
    void *library = dlopen(TARN__CURL_FILE, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return tarn_set_error(TARN_ERROR_UNSUPPORTED, "libcurl cannot be opened: %s; the package libcurl4 brings it",
                              dlerror());
/* every member in the order of the table, until one is missing */
#define FIND(name, result, arguments) &&find(library, "curl_" #name, &curl->name)
    if (!(true TARN__CURL_FUNCTIONS(FIND)))
        return false;
#undef FIND
    return curl->global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ||
           tarn_set_error(TARN_ERROR_MEMORY, "libcurl does not start: out of memory");
}

/* Without a lock: pulls run on one thread. */
const tarn__curl_library *tarn__curl(void)
{
    static tarn__curl_library curl;
    static bool is_loaded;
    is_loaded = is_loaded || load(&curl);
    return is_loaded ? &curl : NULL;
}
