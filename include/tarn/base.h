/* base.h: what every other header stands on: the export macro, version, errors, log, allocator, threads.
 *
 * Errors are sticky per thread. The first failure is kept with a code and a sentence; until tarn_clear_error() every
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

/* The version of the library that is running, as "0.1.0". The text lives as long as the program. */
TARN_API const char *tarn_version(void);

/* What went wrong, by kind. TARN_OK is zero. */
typedef enum tarn_code {
    TARN_OK = 0,
    TARN_ERROR_ARGUMENT,    /* a value or pointer that the function does not take */
    TARN_ERROR_SHAPE,       /* sizes that do not fit each other */
    TARN_ERROR_DTYPE,       /* an element type that does not fit */
    TARN_ERROR_DEVICE,      /* a device that is missing, or operands on different devices */
    TARN_ERROR_MEMORY,      /* no memory on the host or on a device */
    TARN_ERROR_IO,          /* the operating system refused a file */
    TARN_ERROR_FORMAT,      /* a file or text that is not what it says */
    TARN_ERROR_UNSUPPORTED, /* right, but not built or not possible here */
    TARN_ERROR_INTERNAL     /* a defect of tarn itself */
} tarn_code;

/* True while this thread has an error pending. */
TARN_API bool tarn_failed(void);

/* The pending error's sentence, or "" when there is none. Valid until the error is cleared on this thread. */
TARN_API const char *tarn_error(void);

/* The pending error's code, TARN_OK when there is none. */
TARN_API tarn_code tarn_error_code(void);

/* The name of a code, such as "shape". The text lives as long as the program. */
TARN_API const char *tarn_code_name(tarn_code code);

/* Forgets this thread's pending error; operations work again. */
TARN_API void tarn_clear_error(void);

/* Raises an error from a caller's own code, for callbacks (layers, functions, loaders) that must report one. An error
 * that is already pending is kept. Always returns false. */
TARN_API bool tarn_set_error(tarn_code code, const char *format, ...) TARN_PRINTF(2, 3);

/* The entry of `names` that somebody most likely meant who typed `typed`, which is none of them: the same word but for
 * case, dashes and underscores; a synonym ("learning_rate" for "lr"); or the nearest by its letters. NULL when none is
 * near, or with NULL for either. For messages such as "did you mean …?": nothing should be done by a guess. Works while
 * an error is pending. */
TARN_API const char *tarn_suggest(const char *typed, const char *const *names, int count);

/* Writes `length` bytes of a text from outside, such as the name of a tensor or a file, as they may be shown on a
 * terminal: control characters (C0, DEL, C1), bytes that are no UTF-8, line and paragraph separators and marks of
 * writing direction become \n, \t, \r, \x1b or \u202e, all else stays; with keep_lines so do newlines and tabs. At most
 * `size` bytes with the final 0, never a part of a character. Returns the bytes that all of it takes without the 0. The
 * sentences of errors and of the log are escaped already. Works while an error is pending. */
TARN_API size_t tarn_string_escape(char *to, size_t size, const char *text, size_t length, bool keep_lines);

/* How important a log line is. A notice tells somebody who waits what for. */
typedef enum tarn_log_level { TARN_LOG_INFO = 0, TARN_LOG_NOTICE = 1, TARN_LOG_WARNING = 2 } tarn_log_level;

/* A log callback: `text` is one line without its newline, valid during the call only. */
typedef void (*tarn_log_fn)(tarn_log_level level, const char *text, void *ctx);

/* Sends log lines to `log`, which may be called from any thread; NULL silences. At first warnings go to standard error.
 */
TARN_API void tarn_set_log(tarn_log_fn log, void *ctx);

/* The default log callback: writes warnings to standard error and drops the rest. */
TARN_API void tarn_log_stderr(tarn_log_level level, const char *text, void *ctx);

/* Where host memory comes from. `alloc` returns memory aligned to `alignment` (a power of two) or NULL; `release` gets
 * the same size back. Both may be called from any thread, and from several at once: a run's checkpoints, for one, are
 * written by a thread of their own. */
typedef struct tarn_allocator {
    void *(*alloc)(size_t bytes, size_t alignment, void *ctx);
    void (*release)(void *memory, size_t bytes, void *ctx);
    void *ctx;
} tarn_allocator;

/* Takes all host memory from `allocator` from now on (NULL: the C library's again). False, with an error, while tarn
 * still holds memory of the one before: free tensors and call tarn_empty_cache() first. */
TARN_API bool tarn_set_allocator(const tarn_allocator *allocator);

/* Sets how many threads the CPU kernels may use, from 1 to 256; 0 means one for each core. Results have the same bits
 * with any number. The host program's own OpenMP settings are not touched. TARN_THREADS in the environment sets it at
 * the start. */
TARN_API bool tarn_set_threads(int count);

/* How many threads the CPU kernels may use. */
TARN_API int tarn_threads(void);

#ifdef __cplusplus
}
#endif
#endif
