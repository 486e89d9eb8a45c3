/* available_memory.c: how much memory this process can still allocate: the machine's available memory, or less where
 * a control group (container) or a limit of the process (ulimit) is tighter. Linux interfaces; 0 where they are
 * missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/os/platform.h"

int64_t tarn__platform_memory_total(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (int64_t)pages * page : 0;
}

/* The number after `key` at the start of a line of a file; with key "" the version1 number. -1: none. */
static int64_t number_in(const char *path, const char *key)
{
    char line[256];
    long long value = -1;
    size_t length = strlen(key);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%lld", &value) == 1)
            break;
    if (file)
        fclose(file);
    return value;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- control groups ---------------------------------------------------------------------------------------------- */

typedef struct group_files {
    /* file names; `cache` is a key of memory.stat: page cache that the kernel reclaims on demand */
    const char *limit, *used, *cache;
} group_files;

static const group_files version2 = {"memory.max", "memory.current", "inactive_file "};
static const group_files version1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

/* Bytes one control group leaves; INT64_MAX where it sets no limit ("max", or a number beyond all memory). */
static int64_t left_in(const char *folder, const group_files *files)
{
    char path[1400];
    snprintf(path, sizeof(path), "%s/%s", folder, files->limit);
    int64_t limit = number_in(path, "");
    snprintf(path, sizeof(path), "%s/%s", folder, files->used);
    int64_t used = number_in(path, "");
    if (limit < 0 || used < 0)
        return INT64_MAX;
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    int64_t cache = number_in(path, files->cache);
    used -= cache > 0 && cache < used ? cache : 0;
    return limit > used ? limit - used : 0;
}

/* The tightest limit of a group and its ancestors. `group` is like "/user.slice/a.scope". Inside a container it may
 * be a path of the host, of which only the root is visible. */
static int64_t left_up_to(const char *root, const char *group, const group_files *files)
{
    char folder[1200];
    int64_t left = INT64_MAX;
    size_t begin = strlen(root);
    if ((size_t)snprintf(folder, sizeof(folder), "%s%s", root, group) >= sizeof(folder))
        return left_in(root, files);
    for (size_t end = strlen(folder); end > begin; end--) {
        if (folder[end] && folder[end] != '/')
            continue;
        folder[end] = 0;
        left = min_i64(left, left_in(folder, files));
    }
    return min_i64(left, left_in(root, files));
}

/* Lines of /proc/self/cgroup are "id:controllers:path"; an empty list of controllers is version 2. */
int64_t tarn__platform_cgroup_memory(const char *mounted, const char *groups)
{
    char line[1100], memory[1200];
    int64_t left = INT64_MAX;
    snprintf(memory, sizeof(memory), "%s/memory", mounted);
    FILE *file = fopen(groups, "r");
    while (file && fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        if (strcmp(controllers, ":") == 0)
            left = min_i64(left, left_up_to(mounted, group, &version2));
        else if (strstr(controllers, "memory"))
            left = min_i64(left, left_up_to(memory, group, &version1));
    }
    if (file)
        fclose(file);
    return left;
}

/* ---- limits of the process --------------------------------------------------------------------------------------- */

/* Bytes left below a soft limit of the process; INT64_MAX: unlimited. */
static int64_t left_below(int resource, int64_t used)
{
    struct rlimit limit;
    if (used < 0 || getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > INT64_MAX)
        return INT64_MAX;
    return (int64_t)limit.rlim_cur > used ? (int64_t)limit.rlim_cur - used : 0;
}

static int64_t left_to_process(void)
{
    int64_t address_space = number_in("/proc/self/status", "VmSize:"), data = number_in("/proc/self/status", "VmData:");
    return min_i64(left_below(RLIMIT_AS, address_space > 0 ? address_space * 1024 : -1),
                   left_below(RLIMIT_DATA, data > 0 ? data * 1024 : -1));
}

/* Limits of the process are its own. */
int64_t tarn__platform_memory_share(int processes)
{
    int64_t available = number_in("/proc/meminfo", "MemAvailable:");
    if (available < 0)
        return 0;
    available = min_i64(available * 1024, tarn__platform_cgroup_memory("/sys/fs/cgroup", "/proc/self/cgroup"));
    available = min_i64(available / processes, left_to_process());
    return available > 0 ? available : 1; /* 0 means unknown */
}

int64_t tarn__platform_memory_free(void)
{
    return tarn__platform_memory_share(1);
}
