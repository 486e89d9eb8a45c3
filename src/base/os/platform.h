/* platform.h: what is asked of the operating system, in one place. */
#ifndef TARN__PLATFORM_H
#define TARN__PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Opens a shared object and finds its symbol; NULL with the loader's reason in `why`. It stays open for good. */
void *tarn__platform_symbol(const char *path, const char *symbol, char *why, size_t why_size);

/* True when a file can be read. */
bool tarn__platform_readable(const char *path);

/* Bytes of a plain file; -1 with errno when it cannot be asked, -2 when it is something else (a folder, a pipe). */
int64_t tarn__platform_file_bytes(const char *path);

/* The folder that this library (or the program it is linked into) lies in, without a final slash. */
bool tarn__platform_own_folder(char *path, size_t size);

/* $XDG_CACHE_HOME/tarn, or ~/.cache/tarn, and a folder below it unless that is NULL; made where they are missing. False
 * when there is no place for them. */
bool tarn__platform_cache_folder(const char *below, char *path, size_t size);

/* Physical memory, in bytes; 0 when unknown. Free is what this process can still have: limits of its control groups, of
 * its address space and of its data count. */
int64_t tarn__platform_memory_total(void);
int64_t tarn__platform_memory_free(void);

/* The bytes that the control groups in a file like /proc/self/cgroup leave, by what lies below a folder like
 * /sys/fs/cgroup; INT64_MAX: all. */
int64_t tarn__platform_cgroup_memory(const char *mounted, const char *groups);

/* Memory of at least this many bytes is worth large pages: reading through 64 MiB of small ones costs 16,000 look-ups
 * of where they lie. */
#define TARN__LARGE_MEMORY ((size_t)8 << 20)

/* Memory for that case, with large pages where the system has them; released with free(). NULL when there is none. */
void *tarn__platform_large_memory(size_t bytes);

/* True when so much memory could be mapped in one piece just now: within the limits of the process and of the system.
 */
bool tarn__platform_can_map(size_t bytes);

/* The processor's name, "" when unknown. */
void tarn__platform_cpu_name(char *name, size_t size);

/* That of the first processor in a text such as /proc/cpuinfo. */
void tarn__platform_parse_cpu_name(FILE *cpuinfo, char *name, size_t size);

/* This machine's name, with '_' for what has no place in a file's name; "localhost" when unknown. */
void tarn__platform_host_name(char *name, size_t size);

/* Seconds on a clock that only goes forward, from an arbitrary beginning. */
double tarn__platform_seconds(void);

/* Seconds since 1970. */
double tarn__platform_wall_clock(void);

/* Date and time now, in universal time: "2026-11-15T13:25:00Z"; "unknown" when they are. */
void tarn__platform_date(char *text, size_t size);

#endif
