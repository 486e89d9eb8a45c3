/* error.c: the per-thread error record, the log callback, and the version.
 *
 * Invariants: the library never prints, exits or aborts; a message is raised once and kept until tarn_clear_error().
 * Names that come from files are part of messages, so control characters are escaped here, in one place, before a
 * terminal can interpret them. */
#include "base/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local tarn__error_record pending;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
/* Guarded by log_lock. */
static tarn_log_fn log_fn = tarn_log_stderr;
static void *log_ctx;

/* Two steps, so that the macros of the version are expanded before they become text. */
#define STRING_OF(number) STRING_OF_(number)
#define STRING_OF_(number) #number

const char *tarn_version(void)
{
    return STRING_OF(TARN_VERSION_MAJOR) "." STRING_OF(TARN_VERSION_MINOR) "." STRING_OF(TARN_VERSION_PATCH);
}

bool tarn_failed(void)
{
    return pending.code != TARN_OK;
}

const char *tarn_error(void)
{
    return pending.code == TARN_OK ? "" : pending.text;
}

tarn_code tarn_error_code(void)
{
    return pending.code;
}

const char *tarn_code_name(tarn_code code)
{
    static const char *const names[] = {"ok",     "argument", "shape",  "dtype",       "device",
                                        "memory", "io",       "format", "unsupported", "internal"};
    return (unsigned)code < sizeof(names) / sizeof(names[0]) ? names[code] : "?";
}

void tarn_clear_error(void)
{
    pending.code = TARN_OK;
    pending.text[0] = 0;
}

/* Formats and stores the message unless an error is pending. `keep_lines` keeps newlines: where the format itself
 * has some they are intended, anywhere else they come from a name and are escaped. */
static void raise_list(tarn_code code, bool keep_lines, const char *format, va_list list)
{
    char text[sizeof(pending.text)];
    if (pending.code != TARN_OK)
        return;
    pending.code = code > TARN_OK && code <= TARN_ERROR_INTERNAL ? code : TARN_ERROR_INTERNAL;
    int used = snprintf(text, sizeof(text), "tarn: ");
    if (vsnprintf(text + used, sizeof(text) - (size_t)used, format, list) <= 0)
        snprintf(text, sizeof(text), "tarn: an error of kind '%s' was raised without a message", tarn_code_name(code));
    tarn_string_escape(pending.text, sizeof(pending.text), text, strlen(text), keep_lines);
}

bool tarn__raise_text(tarn_code code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    raise_list(code, strchr(format, '\n') != NULL, format, list);
    va_end(list);
    return false;
}

static bool raise_lines(tarn_code code, const char *format, ...) TARN_PRINTF(2, 3);
/* tarn__raise() for a text that was escaped before: its newlines are its own. */
static bool raise_lines(tarn_code code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    raise_list(code, true, format, list);
    va_end(list);
    return false;
}

/* For callbacks of the user: any code outside the enum becomes TARN_ERROR_INTERNAL. */
bool tarn_set_error(tarn_code code, const char *format, ...)
{
    if (!format)
        return tarn__raise(TARN_ERROR_ARGUMENT, "set_error: the format is NULL");
    va_list list;
    va_start(list, format);
    raise_list(code, true, format, list);
    va_end(list);
    return false;
}

/* Replaces the pending error by one with the prefix; the message is escaped already, so its newlines are kept. */
bool tarn__raise_within(const char *function)
{
    /* The message is copied: raising the new one overwrites it. */
    tarn__error_record inner;
    size_t length = strlen(function);
    tarn__error_save(&inner);
    const char *text = inner.text + strlen("tarn: ");
    if (length && (strncmp(text, function, length) != 0 || text[length] != ':'))
        return raise_lines(inner.code, "%s: %s", function, text);
    tarn__error_restore(&inner);
    return false;
}

void tarn__error_save(tarn__error_record *saved)
{
    *saved = pending;
    tarn_clear_error();
}

/* An error that is pending by now is overwritten, unless nothing was saved. */
void tarn__error_restore(const tarn__error_record *saved)
{
    if (saved->code != TARN_OK)
        pending = *saved;
}

void tarn_log_stderr(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level >= TARN_LOG_WARNING && text)
        fprintf(stderr, "tarn: %s\n", text);
}

void tarn_set_log(tarn_log_fn log, void *ctx)
{
    pthread_mutex_lock(&log_lock);
    log_fn = log;
    log_ctx = ctx;
    pthread_mutex_unlock(&log_lock);
}

/* The callback is called without the lock: it may log, or replace itself. */
void tarn__log(tarn_log_level level, const char *format, ...)
{
    char raw[1024], text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(raw, sizeof(raw), format, list);
    va_end(list);
    tarn_string_escape(text, sizeof(text), raw, strlen(raw), strchr(format, '\n') != NULL);
    pthread_mutex_lock(&log_lock);
    tarn_log_fn call = log_fn;
    void *ctx = log_ctx;
    pthread_mutex_unlock(&log_lock);
    if (call)
        call(level, text, ctx);
}
