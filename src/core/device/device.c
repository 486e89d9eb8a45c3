/* device.c: the registry of backends. The CPU's is linked in; others are shared objects, searched for when their
 * name is first used, or listed by their file names where all of them are asked for. A slot, once filled, never
 * changes, so reading a loaded slot needs no lock.
 *
 * Thread safety: `lock` guards the search and the reason texts; a loaded backend is published by a release store and
 * read by acquire loads. Backends are never unloaded. */
#include "core/device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/profile.h>

#include "base/error.h"
#include "base/os/files.h"
#include "base/os/platform.h"
#include "core/profile/profiler.h"

enum { UNTRIED = 0, PRESENT, MISSING };

/* Vendors of the released backends, by slot. */
static const char *const vendors[] = {
    "",
#define BACKEND(name, vendor) vendor,
#include "core/device/backends.def"
#undef BACKEND
};
#define RELEASED ((int)(sizeof(vendors) / sizeof(vendors[0])))

static struct slot {
    char name[16];
    int state;
    _Atomic(const tarn__backend *) backend;
    _Atomic(const tarn__backend *) table; /* the same, or a backend without a device: for its kernel table */
    char why[512];
} slots[TARN__BACKENDS] = {
    {.name = "cpu"},
#define BACKEND(backend, vendor) {.name = #backend},
#include "core/device/backends.def"
#undef BACKEND
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
enum { SEARCH_MAX = 3 * 1024 + 16 }; /* search_path and the library's two folders */

static char search_path[1024];
static bool search_path_set, is_listed; /* is_listed: the files of the search path have their slots */
static _Atomic int fallback_mode = -1;  /* -1: TARN_FALLBACK not read yet */

/* Overrides TARN_BACKEND_PATH; takes effect for backends not tried yet. */
bool tarn_set_backend_path(const char *folders)
{
    if (!folders || strlen(folders) >= sizeof(search_path))
        return tarn__raise(TARN_ERROR_ARGUMENT, "set_backend_path: %s",
                           folders ? "the list is too long" : "the list is NULL");
    pthread_mutex_lock(&lock);
    snprintf(search_path, sizeof(search_path), "%s", folders);
    search_path_set = true;
    is_listed = false;
    pthread_mutex_unlock(&lock);
    return true;
}

void tarn_set_fallback(tarn_fallback fallback)
{
    atomic_store(&fallback_mode, fallback == TARN_FALLBACK_ERROR);
}

/* The environment is read once, on first use. */
bool tarn__fallback_is_error(void)
{
    int mode = atomic_load_explicit(&fallback_mode, memory_order_relaxed);
    if (mode < 0) {
        const char *text = getenv("TARN_FALLBACK");
        mode = text && strcmp(text, "error") == 0;
        atomic_store(&fallback_mode, mode);
    }
    return mode == 1;
}

/* Loads a shared object into `slot`; false with the reason in slot->why. */
static bool open_backend(struct slot *slot, const char *path)
{
    char why[256] = "";
    /* dlsym() returns a function as an object pointer; POSIX guarantees equal representations. */
    union {
        void *object;
        tarn__backend_entry_fn call;
    } entry = {tarn__platform_symbol(path, TARN__BACKEND_SYMBOL, why, sizeof(why))};
    if (!entry.object) {
        snprintf(slot->why, sizeof(slot->why), "%s cannot be opened: %s", path, why);
        return false;
    }
    tarn__host host = {tarn__kernels_hash(), tarn_version(), tarn__cpu_backend()->kernels, tarn__log};
    const tarn__backend *backend = entry.call(&host, why, sizeof(why));
    if (!backend) {
        snprintf(slot->why, sizeof(slot->why), "%s does not work here: %s", path, why);
        return false;
    }
    if (backend->kernels_hash != host.kernels_hash) {
        snprintf(slot->why, sizeof(slot->why),
                 "%s is of version %s with another kernel list than this library's %s; install both together", path,
                 backend->version, tarn_version());
        return false;
    }
    atomic_store_explicit(&slot->table, backend, memory_order_release);
    if (backend->device_count() == 0) {
        snprintf(slot->why, sizeof(slot->why), "%s does not work here: %s", path, why[0] ? why : "no device found");
        return false;
    }
    slot->state = PRESENT;
    atomic_store_explicit(&slot->backend, backend, memory_order_release);
    tarn__log(TARN_LOG_INFO, "backend %s %s: %d device%s, from %s", backend->name, backend->version,
              backend->device_count(), backend->device_count() == 1 ? "" : "s", path);
    return true;
}

/* Under the lock: TARN_BACKEND_PATH, the library's own folder, and tarn/ in it, separated by ':'. Packages put plugins
 * there, since the folders of a system's libraries are for libraries that programs link. */
static void search_folders(char *folders, size_t size)
{
    if (!search_path_set) {
        const char *text = getenv("TARN_BACKEND_PATH");
        snprintf(search_path, sizeof(search_path), "%s", text ? text : "");
        search_path_set = true;
    }
    char own[1024];
    bool is_known = tarn__platform_own_folder(own, sizeof(own));
    size_t length = (size_t)snprintf(folders, size, "%s", search_path);
    if (is_known && length < size)
        snprintf(folders + length, size - length, ":%s:%s/tarn", own, own);
}

/* The next absolute folder of a list, NULL at its end: the working directory is never searched. */
static char *next_folder(char **rest)
{
    char *folder = strsep(rest, ":");
    while (folder && folder[0] != '/')
        folder = strsep(rest, ":");
    return folder;
}

/* Under the lock: the path of libtarn-NAME.so. False when there is no such file. */
static bool find_plugin(const char *name, char *path, size_t size)
{
    char folders[SEARCH_MAX], *rest = folders;
    search_folders(folders, sizeof(folders));
    for (char *folder; (folder = next_folder(&rest)) != NULL;) {
        snprintf(path, size, "%s/libtarn-%s.so", folder, name);
        if (tarn__platform_readable(path))
            return true;
    }
    return false;
}

bool tarn__plugin_find(const char *name, char *path, size_t size)
{
    pthread_mutex_lock(&lock);
    bool is_found = find_plugin(name, path, size);
    pthread_mutex_unlock(&lock);
    return is_found;
}

/* Lower-case letters and digits only: the name becomes part of a file name. */
static bool valid_name(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length < sizeof(slots[0].name) &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789") == length;
}

/* Whether TARN_BACKENDS, names separated by ',', leaves this one out. Unset or empty, it leaves out none. */
static bool is_hidden(const char *name)
{
    const char *next = getenv("TARN_BACKENDS");
    bool is_named = !next || !next[0];
    while (next) {
        char entry[32];
        size_t length = strcspn(next, ",");
        snprintf(entry, sizeof(entry), "%.*s", (int)length, next);
        is_named = is_named || strcmp(entry, name) == 0;
        next = next[length] ? next + length + 1 : NULL;
    }
    return !is_named;
}

/* Searches libtarn-NAME.so and loads it, unless it is hidden. False when there is no such file. */
static bool find_backend(struct slot *slot)
{
    char path[2304];
    slot->state = MISSING;
    if (find_plugin(slot->name, path, sizeof(path))) {
        if (is_hidden(slot->name))
            snprintf(slot->why, sizeof(slot->why), "hidden, since TARN_BACKENDS is '%.200s'", getenv("TARN_BACKENDS"));
        else
            open_backend(slot, path);
        return true;
    }
    snprintf(slot->why, sizeof(slot->why), "libtarn-%s.so not found next to libtarn or in TARN_BACKEND_PATH",
             slot->name);
    return false;
}

/* Under the lock: the slot of a valid name, a new one if it has none; -1 when all are taken. */
static int add_slot(const char *name, bool *is_new)
{
    for (int i = 0; i < TARN__BACKENDS; i++) {
        *is_new = !slots[i].name[0];
        if (*is_new)
            snprintf(slots[i].name, sizeof(slots[i].name), "%s", name);
        if (strcmp(slots[i].name, name) == 0)
            return i;
    }
    return -1;
}

/* The slot of a name, loaded if possible; -1 for an invalid name. */
static int slot_named(const char *name)
{
    if (!name || !valid_name(name))
        return -1;
    pthread_mutex_lock(&lock);
    bool is_new = false;
    int found = add_slot(name, &is_new);
    if (found == TARN__CPU_SLOT && slots[0].state == UNTRIED) {
        slots[0].state = PRESENT;
        atomic_store_explicit(&slots[0].table, tarn__cpu_backend(), memory_order_release);
        atomic_store_explicit(&slots[0].backend, tarn__cpu_backend(), memory_order_release);
    }
    if (found > 0 && slots[found].state == UNTRIED && !find_backend(&slots[found]) && is_new) {
        slots[found] = (struct slot){0}; /* an unknown name must not use up a slot */
        found = -1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- backends of the search path --------------------------------------------------------------------------------- */

typedef struct names {
    char name[TARN__BACKENDS][sizeof(slots[0].name)];
    int count;
} names;

/* Adds NAME of a file libtarn-NAME.so; TARN__BACKENDS names are more than there are slots left. libtarn-mpi.so is no
 * backend (parallel/mpi.c). */
static bool add_name(const char *file, void *ctx)
{
    names *found = ctx;
    size_t prefix = strlen("libtarn-"), length = strlen(file), end = strlen(".so");
    char *name = found->name[found->count];
    if (length <= prefix + end || strncmp(file, "libtarn-", prefix) != 0 || strcmp(file + length - end, ".so") != 0 ||
        length - prefix - end >= sizeof(found->name[0]))
        return true;
    memcpy(name, file + prefix, length - prefix - end);
    name[length - prefix - end] = 0;
    found->count += valid_name(name) && strcmp(name, "mpi") != 0;
    return found->count < TARN__BACKENDS;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Under the lock: gives every backend of the search path a slot, without loading it. Names of a folder are sorted, so
 * that the order is not that of the file system. */
static void list_backends(void)
{
    char folders[SEARCH_MAX], *rest = folders;
    search_folders(folders, sizeof(folders));
    for (char *folder; (folder = next_folder(&rest)) != NULL;) {
        names found = {.count = 0};
        bool is_new;
        tarn__folder_names(folder, add_name, &found);
        qsort(found.name, (size_t)found.count, sizeof(found.name[0]), by_name);
        for (int i = 0; i < found.count; i++)
            add_slot(found.name[i], &is_new);
    }
    is_listed = true;
}

const char *tarn_backend_name(int index)
{
    pthread_mutex_lock(&lock);
    if (!is_listed)
        list_backends();
    const char *name = index >= 0 && index < TARN__BACKENDS && slots[index].name[0] ? slots[index].name : NULL;
    pthread_mutex_unlock(&lock);
    return name;
}

const tarn__backend *tarn__backend_at(int slot)
{
    if (slot < 0 || slot >= TARN__MAX_BACKENDS)
        return NULL;
    return slot < TARN__BACKENDS ? atomic_load_explicit(&slots[slot].backend, memory_order_acquire)
                                 : tarn__meta_backend_at(slot - TARN__BACKENDS);
}

const tarn__backend *tarn__backend_named(const char *name)
{
    int slot = slot_named(name);
    return slot < 0 ? NULL : tarn__backend_at(slot);
}

const tarn__kernel_row *tarn__backend_kernels(const char *name)
{
    int slot = slot_named(name);
    const tarn__backend *table = slot < 0 ? NULL : atomic_load_explicit(&slots[slot].table, memory_order_acquire);
    return table ? table->kernels : NULL;
}

/* Why the kernels of this build cannot run on a device; NULL: they can. */
static const char *why_unusable(const tarn__backend *backend, int index)
{
    return backend->unusable ? backend->unusable(index) : NULL;
}

/* "cuda:0 (NVIDIA H200), cuda:1 (NVIDIA H200)" */
static void list_devices(const tarn__backend *backend, char *text, size_t size)
{
    size_t used = 0;
    snprintf(text, size, "none");
    for (int i = 0; i < backend->device_count() && used < size; i++) {
        tarn_device_info info = {0};
        backend->device_query(i, &info);
        used += (size_t)snprintf(text + used, size - used, "%s%s:%d (%s)", i ? ", " : "", backend->name, i,
                                 info.description);
    }
}

const tarn__backend *tarn__backend_of(tarn_device device, const char *function)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    if (!backend && device.backend >= 0 && device.backend < TARN__BACKENDS && slots[device.backend].name[0])
        backend = tarn__backend_named(slots[device.backend].name);
    if (!backend) {
        tarn__raise(TARN_ERROR_DEVICE, "%s: device {%d, %d} does not exist; create devices with tarn_device_parse()",
                    function, device.backend, device.index);
        return NULL;
    }
    if (device.index < 0 || device.index >= backend->device_count()) {
        char list[512];
        list_devices(backend, list, sizeof(list));
        tarn__raise(TARN_ERROR_DEVICE, "%s: device %s:%d not found; available: %s", function, backend->name,
                    device.index, list);
        return NULL;
    }
    return backend;
}

tarn_device tarn_device_cpu(void)
{
    return (tarn_device){TARN__CPU_SLOT, 0};
}

/* A CPU device of another backend does not count for `auto`: our own CPU kernels are faster. */
static bool is_gpu(const tarn__backend *backend, int index)
{
    tarn_device_info info = {0};
    return !why_unusable(backend, index) && backend->device_query(index, &info) && strcmp(info.type, "gpu") == 0;
}

/* The first usable GPU of a slot's backend; -1 when there is none or `auto` prefers the priority `above` to it. */
static int gpu_above(int slot, int *above)
{
    const tarn__backend *backend = tarn__backend_named(slots[slot].name);
    for (int i = 0; backend && backend->auto_priority > *above && i < backend->device_count(); i++)
        if (is_gpu(backend, i)) {
            *above = backend->auto_priority;
            return i;
        }
    return -1;
}

/* The GPU of the highest priority, else the CPU. Released backends come last and in falling order, so the first of
 * them with a GPU ends the search: the drivers of the others are not loaded. */
tarn_device tarn_device_auto(void)
{
    tarn_device best = tarn_device_cpu();
    int priority = 0, index;
    for (int slot = RELEASED; tarn_backend_name(slot); slot++)
        if ((index = gpu_above(slot, &priority)) >= 0)
            best = (tarn_device){slot, index};
    for (int slot = 1; slot < RELEASED; slot++)
        if ((index = gpu_above(slot, &priority)) >= 0)
            return (tarn_device){slot, index};
    return best;
}

/* A missing backend cannot be asked, so only released ones count. */
bool tarn_backend_preferred(const char *name, tarn_device device)
{
    tarn_device_info info;
    int slot = 1;
    while (slot < RELEASED && !(name && strcmp(slots[slot].name, name) == 0))
        slot++;
    if (slot == RELEASED)
        return false;
    if (!tarn_device_query(device, &info)) {
        tarn__raise_within("backend_preferred");
        return false;
    }
    return tarn__is_cpu(device) ||
           (device.backend != slot && vendors[slot][0] && strstr(info.vendor, vendors[slot]) != NULL);
}

/* Splits "cuda:1" into name and index; false if malformed. */
static bool split_name(const char *text, char *name, size_t size, int *index)
{
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    if (length == 0 || length >= size)
        return false;
    memcpy(name, text, length);
    name[length] = 0;
    *index = 0;
    if (!colon)
        return true;
    char *end;
    long number = strtol(colon + 1, &end, 10);
    *index = (int)number;
    return colon[1] >= '0' && colon[1] <= '9' && *end == 0 && number < 1000000;
}

/* "auto, cpu, cuda or opencl, with an index as in cuda:1", by the backends of the search path. */
static const char *device_names(char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "auto");
    for (int i = 0; used < size && tarn_backend_name(i); i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", tarn_backend_name(i + 1) ? ", " : " or ",
                                 tarn_backend_name(i));
    if (used < size)
        snprintf(text + used, size - used, ", with an index as in %s:1", slots[1].name);
    return text;
}

/* "cpu", "cuda", "cuda:1", "auto". Returns the CPU with an error, so that the result is always a valid device. */
tarn_device tarn_device_parse(const char *text)
{
    char name[16], list[256];
    int index = 0;
    if (!text || !split_name(text, name, sizeof(name), &index)) {
        tarn__raise(TARN_ERROR_DEVICE, "device_parse: '%s' is not a device; must be %s", text ? text : "NULL",
                    device_names(list, sizeof(list)));
        return tarn_device_cpu();
    }
    if (strcmp(name, "auto") == 0 && !strchr(text, ':'))
        return tarn_device_auto();
    int slot = slot_named(name);
    if (slot < 0) {
        tarn__raise(TARN_ERROR_DEVICE, "device_parse: unknown device '%s'; must be %s", name,
                    device_names(list, sizeof(list)));
        return tarn_device_cpu();
    }
    if (!tarn__backend_at(slot)) {
        tarn__raise(TARN_ERROR_DEVICE, "device_parse: '%s' is not available: %s", text, slots[slot].why);
        return tarn_device_cpu();
    }
    tarn_device device = {slot, index};
    const tarn__backend *backend = tarn__backend_of(device, "device_parse");
    const char *why = backend ? why_unusable(backend, index) : NULL;
    if (why)
        tarn__raise(TARN_ERROR_DEVICE, "device_parse: %s:%d cannot be used: %s", name, index, why);
    return backend && !why ? device : tarn_device_cpu();
}

/* A meta device has the name of its device: plans read like runs. */
char *tarn_device_name(tarn_device device, char *buffer, size_t size)
{
    if (!buffer || size == 0)
        return buffer;
    int slot = tarn__is_meta(device) ? device.backend - TARN__BACKENDS : device.backend;
    if (slot == TARN__CPU_SLOT && device.index == 0)
        snprintf(buffer, size, "cpu");
    else if (slot >= 0 && slot < TARN__BACKENDS && slots[slot].name[0])
        snprintf(buffer, size, "%s:%d", slots[slot].name, device.index);
    else
        snprintf(buffer, size, "?");
    return buffer;
}

bool tarn_device_equal(tarn_device a, tarn_device b)
{
    return tarn__same_device(a, b);
}

int tarn_device_count(const char *name)
{
    const tarn__backend *backend = tarn__backend_named(name);
    return backend ? backend->device_count() : 0;
}

/* The result is valid until this thread's next call. */
const char *tarn_backend_missing(const char *name)
{
    static _Thread_local char text[600];
    int slot = slot_named(name);
    if (slot < 0)
        snprintf(text, sizeof(text), "unknown backend '%s'", name ? name : "NULL");
    else if (!tarn__backend_at(slot))
        snprintf(text, sizeof(text), "%s", slots[slot].why);
    else
        text[0] = 0;
    return text;
}

bool tarn_device_query(tarn_device device, tarn_device_info *info)
{
    if (!info)
        return tarn__raise(TARN_ERROR_ARGUMENT, "device_query: info is NULL");
    memset(info, 0, sizeof(*info));
    const tarn__backend *backend = tarn__backend_of(device, "device_query");
    if (!backend)
        return false;
    tarn_device_name(device, info->name, sizeof(info->name));
    info->has_tf32 = backend->has_tf32;
    return backend->device_query(device.index, info) ||
           tarn__raise(TARN_ERROR_DEVICE, "device_query: %s does not respond: %s", info->name, backend->failure());
}

void *tarn_native_stream(tarn_device device)
{
    const tarn__backend *backend = tarn__backend_of(device, "native_stream");
    return backend && backend->stream ? backend->stream(device.index) : NULL;
}

bool tarn__fault_check(const tarn__fault *fault)
{
    return !fault->raised ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: index %lld is outside the axis, which has %lld elements",
                       fault->function, (long long)fault->value, (long long)fault->limit);
}

bool tarn__device_poll(tarn_device device, const char *function)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    tarn__fault fault = {0};
    char name[32];
    if (!backend->poll(device.index, &fault))
        return tarn__raise(TARN_ERROR_DEVICE, "%s: %s failed: %s", function,
                           tarn_device_name(device, name, sizeof(name)), backend->failure());
    return tarn__fault_check(&fault);
}

/* Waits for the device, then polls it: faults of earlier kernels are raised here at the latest. */
bool tarn_synchronize(tarn_device device)
{
    const tarn__backend *backend = tarn__backend_of(device, "synchronize");
    char name[32];
    if (!backend)
        return false;
    tarn__timing timing = {0};
    if (tarn__is_profiling())
        tarn__timing_begin(&timing, TARN_PROFILE_WAIT, "synchronize", NULL, device);
    bool good = backend->synchronize(device.index);
    tarn__timing_end(&timing);
    if (!good)
        return tarn__raise(TARN_ERROR_DEVICE, "synchronize: %s failed: %s",
                           tarn_device_name(device, name, sizeof(name)), backend->failure());
    return !backend->poll || tarn__device_poll(device, "synchronize");
}

/* ---- peak FLOP/s ------------------------------------------------------------------------------------------------- */

/* By the backend: the reference for MFU. 0 for unknown devices: MFU is then not reported. No error for a CPU. */
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
