/* platform.h: services of the operating system, all in one place, so that a port replaces a few files of this
 * folder. */
#ifndef TARN__PLATFORM_H
#define TARN__PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Opens a shared object and looks up a symbol; NULL with the loader's reason in `why`. The object is never closed. */
void *tarn__platform_symbol(const char *path, const char *symbol, char *why, size_t why_size);

/* True when a file can be read. */
bool tarn__platform_readable(const char *path);

/* Size of a regular file in bytes; -1 with errno when stat() fails, -2 when it is not a regular file. */
int64_t tarn__platform_file_bytes(const char *path);

/* The folder of this library (or of the program it is linked into), without a trailing slash. */
bool tarn__platform_own_folder(char *path, size_t size);

/* $XDG_CACHE_HOME/tarn or ~/.cache/tarn, with the sub-folder `below` unless NULL; created as needed. False when
 * there is neither variable, or a folder cannot be created. */
bool tarn__platform_cache_folder(const char *below, char *path, size_t size);

/* Physical memory in bytes; 0 when unknown. Free memory counts the limits of control groups and of the process; a share
 * is what each of some processes may take that are on this machine together. */
int64_t tarn__platform_memory_total(void);
int64_t tarn__platform_memory_free(void);
int64_t tarn__platform_memory_share(int processes);

/* Bytes left by the control groups listed in a file like /proc/self/cgroup, mounted at a folder like /sys/fs/cgroup;
 * INT64_MAX: unlimited. Parameters are for tests. */
int64_t tarn__platform_cgroup_memory(const char *mounted, const char *groups);

/* Blocks of at least this size get huge pages: walking 64 MiB of small pages costs 16,000 TLB misses. */
#define TARN__LARGE_MEMORY ((size_t)8 << 20)

/* Such a block, with huge pages where the system has them; freed with free(). NULL when there is none. */
void *tarn__platform_large_memory(size_t bytes);

/* True when this much memory can be mapped at this moment, within all limits. */
bool tarn__platform_can_map(size_t bytes);

/* The processor's name, "" when unknown. */
void tarn__platform_cpu_name(char *name, size_t size);

/* The name of the first processor in a file like /proc/cpuinfo. */
void tarn__platform_parse_cpu_name(FILE *cpuinfo, char *name, size_t size);

/* This machine's host name, with '_' for characters unfit for file names; "localhost" when unknown. */
void tarn__platform_host_name(char *name, size_t size);

/* Seconds of a monotonic clock with an arbitrary origin. */
double tarn__platform_seconds(void);

/* Seconds since 1970. */
double tarn__platform_wall_clock(void);

/* Current date and time in UTC: "2026-11-15T13:25:00Z"; "unknown" on failure. */
void tarn__platform_date(char *text, size_t size);

#endif
