/* available_memory.c: how much memory a process can still have: what the machine has available, or less where a control
 * group or a limit of the process is nearer. */
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

/* The number after `key` at the start of a line of a file, "" for the first; -1: there is none. */
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

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- control groups ---------------------------------------------------------------------------------------------- */

typedef struct group_files {
    /* names; the last is a key in memory.stat: pages that the kernel takes back when asked */
    const char *limit, *used, *cache;
} group_files;

static const group_files second = {"memory.max", "memory.current", "inactive_file "};
static const group_files first = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

/* What one group leaves; INT64_MAX where it sets no limit ("max", or a number beyond all memory). */
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

/* The nearest limit of a group and all around it. `group` is "/user.slice/a.scope"; within a container it may be a path
 * of the machine outside, and the root is all that can be seen. */
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
        left = smaller(left, left_in(folder, files));
    }
    return smaller(left, left_in(root, files));
}

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
            left = smaller(left, left_up_to(mounted, group, &second));
        else if (strstr(controllers, "memory"))
            left = smaller(left, left_up_to(memory, group, &first));
    }
    if (file)
        fclose(file);
    return left;
}

/* ---- limits of the process --------------------------------------------------------------------------------------- */

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
    return smaller(left_below(RLIMIT_AS, address_space > 0 ? address_space * 1024 : -1),
                   left_below(RLIMIT_DATA, data > 0 ? data * 1024 : -1));
}

int64_t tarn__platform_memory_free(void)
{
    int64_t available = number_in("/proc/meminfo", "MemAvailable:");
    if (available < 0)
        return 0;
    available = smaller(available * 1024, smaller(tarn__platform_cgroup_memory("/sys/fs/cgroup", "/proc/self/cgroup"),
                                                  left_to_process()));
    return available > 0 ? available : 1; /* 0 would mean that nothing is known */
}
