/* job.c: jobs and errors. */
#include "serve/api/job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* OpenAI's types, for people and logs: its clients go by the status. */
static const char *error_type(int status)
{
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

bool tarn__api_refuse(tarn__api_error *e, int status, const char *code, const char *param, const char *format, ...)
{
    va_list arguments;
    /* The first error is the cause, those after it are consequences */
    if (e->status)
        return false;
    e->status = status;
    e->type = error_type(status);
    e->code = code;
    snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
    va_start(arguments, format);
    vsnprintf(e->message, sizeof(e->message), format, arguments);
    va_end(arguments);
    return false;
}

/* The sentence without the names of C functions before it ("tarn: grammar_gbnf: "). "tarn: grammar_gbnf: line 1: …"
 * is "line 1: …": what has other characters, such as a space, is no name. */
static const char *user_sentence(const char *message)
{
    for (const char *colon; (colon = strstr(message, ": ")) != NULL;) {
        size_t length = (size_t)(colon - message);
        if (!length || strspn(message, "abcdefghijklmnopqrstuvwxyz0123456789_") < length)
            break;
        message = colon + 2;
    }
    return message;
}

bool tarn__api_refuse_by_library(tarn__api_error *e, int status, const char *param)
{
    bool is_memory = tarn_error_code() == TARN_ERROR_MEMORY;
    tarn__api_refuse(e, is_memory ? 503 : status, NULL, param, "%s",
                     tarn_failed() ? user_sentence(tarn_error()) : "no memory");
    tarn_clear_error();
    return false;
}

json_t *tarn__api_string(const char *bytes, size_t length)
{
    json_t *text = json_stringn(bytes ? bytes : "", bytes ? length : 0);
    if (text)
        return text;
    char *copy = malloc(length + 1);
    for (size_t i = 0; copy && i < length; i++)
        copy[i] = (unsigned char)bytes[i] < 0x80 ? bytes[i] : '?';
    text = copy ? json_stringn(copy, length) : NULL;
    free(copy);
    return text;
}

char *tarn__api_error_text(const tarn__api_error *e)
{
    /* a parameter's name may end within a character */
    json_t *param = e->param[0] ? tarn__api_string(e->param, strlen(e->param)) : json_null();
    json_t *root =
        json_pack("{s:{s:o,s:s,s:o,s:s?}}", "error", "message", tarn__api_string(e->message, strlen(e->message)),
                  "type", e->type, "param", param, "code", e->code);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

tarn__api_job *tarn__api_job_new(tarn__api_route route, const char *body, size_t size)
{
    tarn__api_job *job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    job->route = route;
    job->body = malloc(size + 1);
    job->body_size = size;
    atomic_init(&job->is_cancelled, false);
    if (!job->body) {
        free(job);
        return NULL;
    }
    if (size)
        memcpy(job->body, body, size);
    job->body[size] = 0;
    return job;
}

/* On the loop's thread, or when the threads have ended. */
void tarn__api_job_free(tarn__api_job *job)
{
    if (!job)
        return;
    for (int i = 0; i < job->choice_count; i++) {
        free(job->choices[i].text);
        tarn__reasoning_close(&job->choices[i].reasoning);
        json_decref(job->choices[i].logprobs);
    }
    for (int i = 0; i < job->prompt_count; i++)
        free(job->prompts[i].tokens);
    free(job->choices);
    free(job->prompts);
    free(job->biases);
    free(job->embeddings);
    free(job->answer);
    free(job->tools);
    free(job->body);
    tarn_grammar_free(job->grammar);
    json_decref(job->root);
    free(job);
}
