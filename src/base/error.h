/* error.h: raising errors. The record is per thread and sticky: the first error stays until it is cleared, and
 * functions return early while one is pending, so a caller may check once after a chain of calls. */
#ifndef TARN__ERROR_H
#define TARN__ERROR_H

#include <tarn/base.h>

#define TARN__FIRST_OF(first, ...) first

/* Raises an error unless one is pending: `tarn__raise(TARN_ERROR_SHAPE, "concat: …", …)`. The message has the form
 * `function: what is wrong: what was given; what is expected`. An empty or missing message does not compile. Is
 * false, so that a check can return it. */
#define tarn__raise(code, ...) \
    ((void)sizeof(char[sizeof("" TARN__FIRST_OF(__VA_ARGS__, 0)) > 1 ? 1 : -1]), tarn__raise_text((code), __VA_ARGS__))

bool tarn__raise_text(tarn_code code, const char *format, ...) TARN_PRINTF(2, 3);

/* Prefixes the pending error with "function: " unless it starts with it, or that is empty: for errors raised by a
 * callee. Returns false. */
bool tarn__raise_within(const char *function);

/* Formats one line and passes it to the log callback. Any thread may call it. */
void tarn__log(tarn_log_level level, const char *format, ...) TARN_PRINTF(2, 3);

/* Saves and clears the pending error, and restores it: for clean-up that must run operations after a failure.
 * Restoring a record without an error leaves the pending one alone. */
typedef struct tarn__error_record {
    tarn_code code;
    char text[1024];
} tarn__error_record;
void tarn__error_save(tarn__error_record *saved);
void tarn__error_restore(const tarn__error_record *saved);

#endif
