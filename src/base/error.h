/* error.h: raising errors. The record is per thread and sticky: the first error stays until it is cleared. */
#ifndef TARN__ERROR_H
#define TARN__ERROR_H

#include <tarn/base.h>

#define TARN__FIRST_OF(first, ...) first

/* Raises an error with a sentence, `tarn__raise(TARN_ERROR_SHAPE, "concat: …", …)`, unless one is pending; an empty or
 * missing sentence does not compile. Is false. */
#define tarn__raise(code, ...) \
    ((void)sizeof(char[sizeof("" TARN__FIRST_OF(__VA_ARGS__, 0)) > 1 ? 1 : -1]), tarn__raise_text((code), __VA_ARGS__))

bool tarn__raise_text(tarn_code code, const char *format, ...) TARN_PRINTF(2, 3);

/* Puts "function: " before the pending error's sentence, unless it begins so: for errors raised by what a function
 * calls. Is false. */
bool tarn__raise_within(const char *function);

/* Sends one line to the log callback. */
void tarn__log(tarn_log_level level, const char *format, ...) TARN_PRINTF(2, 3);

/* Sets the pending error aside and puts it back: for clean-up that must run operations after a failure. */
typedef struct tarn__error_record {
    tarn_code code;
    char text[1024];
} tarn__error_record;
void tarn__error_save(tarn__error_record *saved);
void tarn__error_restore(const tarn__error_record *saved);

#endif
