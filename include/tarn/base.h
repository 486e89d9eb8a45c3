/* base.h: the base of every other header: export macro, version, errors, log, allocator, threads.
 *
 * Errors are sticky per thread. The first failure is kept with a code and a message; until tarn_clear_error() every
 * operation does nothing and returns NULL (NaN, -1 or false where it returns no pointer). Freeing and closing always
 * work. */
#ifndef TARN_BASE_H
#define TARN_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TARN_API __attribute__((visibility("default")))
#define TARN_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define TARN_API
#define TARN_PRINTF(text, first)
#endif

#define TARN_VERSION_MAJOR 0
#define TARN_VERSION_MINOR 1
#define TARN_VERSION_PATCH 0

/* Version of the running library, as "0.1.0". Static storage. */
TARN_API const char *tarn_version(void);

/* Error codes. TARN_OK is zero. */
typedef enum tarn_code {
    TARN_OK = 0,
    TARN_ERROR_ARGUMENT,    /* value or pointer out of range */
    TARN_ERROR_SHAPE,       /* shapes that do not match */
    TARN_ERROR_DTYPE,       /* dtype that is not supported or does not match */
    TARN_ERROR_DEVICE,      /* device not found, or operands on different devices */
    TARN_ERROR_MEMORY,      /* out of memory, on the host or a device */
    TARN_ERROR_IO,          /* file operation that the operating system failed */
    TARN_ERROR_FORMAT,      /* malformed file or text */
    TARN_ERROR_UNSUPPORTED, /* valid, but not built in or not available here */
    TARN_ERROR_INTERNAL     /* bug in tarn */
} tarn_code;

/* True while this thread has a pending error. */
TARN_API bool tarn_failed(void);

/* Message of the pending error, or "" if there is none. Valid until this thread clears the error. */
TARN_API const char *tarn_error(void);

/* Code of the pending error; TARN_OK if there is none. */
TARN_API tarn_code tarn_error_code(void);

/* Name of a code, such as "shape". Static storage. */
TARN_API const char *tarn_code_name(tarn_code code);

/* Clears this thread's pending error; operations work again. */
TARN_API void tarn_clear_error(void);

/* Raises an error from user code, for callbacks (layers, functions, loaders) that must report one. Does not replace
 * a pending error. Always returns false. */
TARN_API bool tarn_set_error(tarn_code code, const char *format, ...) TARN_PRINTF(2, 3);

/* Returns the entry of `names` closest to `typed`: equal but for case, dashes and underscores; a synonym
 * ("learning_rate" for "lr"); or the nearest by edit distance. NULL if none is close, or if either argument is NULL.
 * Meant for "did you mean …?" messages, never for acting on a guess. Works while an error is pending. */
TARN_API const char *tarn_suggest(const char *typed, const char *const *names, int count);

/* Escapes `length` bytes of untrusted text, such as the name of a tensor or a file, for display on a terminal:
 * control characters (C0, DEL, C1), invalid UTF-8, line and paragraph separators and bidirectional marks become \n,
 * \t, \r, \x1b or \u202e. With `keep_lines` newlines and tabs stay. Writes at most `size` bytes including the
 * terminating 0, never part of a character. Returns the bytes of the whole result without the 0. Messages of errors
 * and the log are already escaped. Works while an error is pending. */
TARN_API size_t tarn_string_escape(char *to, size_t size, const char *text, size_t length, bool keep_lines);

/* Severity of a log line. A notice explains a wait, such as kernels being compiled. */
typedef enum tarn_log_level { TARN_LOG_INFO = 0, TARN_LOG_NOTICE = 1, TARN_LOG_WARNING = 2 } tarn_log_level;

/* Log callback: `text` is one line without its newline, valid during the call only. */
typedef void (*tarn_log_fn)(tarn_log_level level, const char *text, void *ctx);

/* Sends log lines to `log`, which may be called from any thread; NULL disables the log. Initially warnings go to
 * standard error. */
TARN_API void tarn_set_log(tarn_log_fn log, void *ctx);

/* The default log callback: writes warnings to standard error and drops the rest. */
TARN_API void tarn_log_stderr(tarn_log_level level, const char *text, void *ctx);

/* Host memory. `alloc` returns memory aligned to `alignment` (a power of two) or NULL; `release` gets the same size.
 * Both may be called from several threads at once: checkpoints, for one, are written by a background thread. */
typedef struct tarn_allocator {
    void *(*alloc)(size_t bytes, size_t alignment, void *ctx);
    void (*release)(void *memory, size_t bytes, void *ctx);
    void *ctx;
} tarn_allocator;

/* Takes all host memory from `allocator` from now on; NULL restores the C library's. False, with an error, while
 * tarn still holds memory of the previous one: free tensors and call tarn_empty_cache() first. */
TARN_API bool tarn_set_allocator(const tarn_allocator *allocator);

/* Sets the number of threads of CPU kernels, from 1 to 256; 0: one per core. Results are bitwise identical for any
 * number. The host program's OpenMP settings are not changed. TARN_THREADS in the environment sets the initial
 * value. */
TARN_API bool tarn_set_threads(int count);

/* Number of threads of CPU kernels. */
TARN_API int tarn_threads(void);

#ifdef __cplusplus
}
#endif
#endif
