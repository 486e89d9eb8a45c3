/* posix.c: the operating system's services on Linux and other POSIX systems: shared objects, clocks, memory,
 * processor and host names. */
#define _GNU_SOURCE /* dladdr */
#include "base/os/platform.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The object is never closed after success: its functions may be in use until the process ends. */
void *tarn__platform_symbol(const char *path, const char *symbol, char *why, size_t why_size)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, symbol) : NULL;
    if (!found) {
        const char *reason = dlerror();
        snprintf(why, why_size, "%s", reason ? reason : "no reason given");
        if (library)
            dlclose(library);
    }
    return found;
}

bool tarn__platform_readable(const char *path)
{
    return access(path, R_OK) == 0;
}

int64_t tarn__platform_file_bytes(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return -1;
    return S_ISREG(info.st_mode) ? (int64_t)info.st_size : -2;
}

bool tarn__platform_own_folder(char *path, size_t size)
{
    Dl_info info;
    const void *own = (const void *)(uintptr_t)tarn__platform_own_folder;
    if (!dladdr(own, &info) || !info.dli_fname)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    if (!slash || (size_t)(slash - info.dli_fname) >= size)
        return false;
    memcpy(path, info.dli_fname, (size_t)(slash - info.dli_fname));
    path[slash - info.dli_fname] = 0;
    return true;
}

static bool make_below(char *path, size_t size, const char *name)
{
    size_t length = strlen(path);
    snprintf(path + length, size - length, "/%s", name);
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

bool tarn__platform_cache_folder(const char *below, char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] == '/')
        snprintf(path, size, "%s", cache);
    else if (home && home[0] == '/')
        snprintf(path, size, "%s/.cache", home);
    else
        return false;
    mkdir(path, 0777);
    return make_below(path, size, "tarn") && (!below || make_below(path, size, below));
}

#define LARGE_PAGE ((size_t)2 << 20)

void *tarn__platform_large_memory(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, LARGE_PAGE, bytes) != 0)
        return NULL;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE); /* advisory */
#endif
    return memory;
}

bool tarn__platform_can_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED && munmap(memory, bytes) == 0;
}

/* Arm processors report an implementer and a part number instead of a name. */
static void arm_name(long implementer, long part, char *name, size_t size)
{
    static const struct {
        long part;
        const char *name;
    } parts[] = {{0xd03, "Cortex-A53"},  {0xd05, "Cortex-A55"}, {0xd07, "Cortex-A57"},  {0xd08, "Cortex-A72"},
                 {0xd0a, "Cortex-A75"},  {0xd0b, "Cortex-A76"}, {0xd0c, "Neoverse-N1"}, {0xd0d, "Cortex-A77"},
                 {0xd40, "Neoverse-V1"}, {0xd41, "Cortex-A78"}, {0xd44, "Cortex-X1"},   {0xd46, "Cortex-A510"},
                 {0xd47, "Cortex-A710"}, {0xd48, "Cortex-X2"},  {0xd49, "Neoverse-N2"}, {0xd4d, "Cortex-A715"},
                 {0xd4e, "Cortex-X3"},   {0xd4f, "Neoverse-V2"}};
    for (size_t i = 0; implementer == 0x41 && i < sizeof(parts) / sizeof(parts[0]); i++)
        if (parts[i].part == part) {
            snprintf(name, size, "Arm %s", parts[i].name);
            return;
        }
    snprintf(name, size, "processor 0x%lx of implementer 0x%lx", part, implementer);
}

void tarn__platform_parse_cpu_name(FILE *cpuinfo, char *name, size_t size)
{
    char line[4096];
    long implementer = -1;
    name[0] = 0;
    while (!name[0] && fgets(line, sizeof(line), cpuinfo)) {
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        colon += strspn(colon, ": \t");
        colon[strcspn(colon, "\n")] = 0;
        if (strncmp(line, "model name", 10) == 0)
            snprintf(name, size, "%s", colon);
        else if (strncmp(line, "CPU implementer", 15) == 0)
            implementer = strtol(colon, NULL, 16);
        else if (strncmp(line, "CPU part", 8) == 0 && implementer >= 0)
            arm_name(implementer, strtol(colon, NULL, 16), name, size);
    }
}

void tarn__platform_cpu_name(char *name, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    name[0] = 0;
    if (!file)
        return;
    tarn__platform_parse_cpu_name(file, name, size);
    fclose(file);
}

void tarn__platform_host_name(char *name, size_t size)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    if (gethostname(name, size) != 0 || !name[0])
        snprintf(name, size, "localhost");
    name[size - 1] = 0; /* a truncated name may lack its terminator */
    for (char *c = name; *c; c++)
        *c = strchr(allowed, *c) ? *c : '_';
}

double tarn__platform_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double tarn__platform_wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void tarn__platform_date(char *text, size_t size)
{
    time_t now = time(NULL);
    struct tm parts;
    if (!gmtime_r(&now, &parts) || strftime(text, size, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        snprintf(text, size, "unknown");
}
