/* loader.h: for programs that stand between the backend and OpenCL's loader: what they hand on to. */
#ifndef TESTS_LOADER_H
#define TESTS_LOADER_H

#include <dlfcn.h>
#include <stddef.h>

static inline void *in_loader(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libOpenCL.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

#endif
