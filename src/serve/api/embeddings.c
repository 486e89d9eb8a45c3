/* embeddings.c: /v1/embeddings: its members, the computation and the answer.
 *
 * The engine's thread computes one chunk of one job between two steps of the engine: neither stops the other. A KV
 * cache for the longest input exists while a job is computed. The pool writes the answer, which may be large.
 *
 * The engine's thread alone touches `embedded` and `embeddings` while a job is in its queue; the lock of the queues
 * hands both over. A job whose client has gone leaves the queue at its next turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api/api_private.h"
#include "serve/api/prepare.h"

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* OpenAI's Python client asks for base64 unless told otherwise, and decodes it itself. */
static bool read_format(tarn__api_job *job, tarn__body *f)
{
    const char *format = NULL;
    size_t length = 0;
    if (!tarn__body_string(f, "encoding_format", &format, &length))
        return false;
    job->is_base64 = format && strcmp(format, "base64") == 0;
    return !format || job->is_base64 || strcmp(format, "float") == 0 ||
           tarn__api_refuse(&job->error, 400, NULL, "encoding_format",
                            "encoding_format '%.40s' must be float or base64", format);
}

/* Inputs are never cut: an embedding of a part would look like one of the whole. */
static bool check_inputs(tarn__api_job *job, const tarn__api_model *model)
{
    int64_t values = job->prompt_count * model->info.hidden_size;
    for (int i = 0; i < job->prompt_count; i++)
        if (job->prompts[i].count > model->context)
            return tarn__api_refuse(&job->error, 400, "context_length_exceeded", "input",
                                    "the context has %lld tokens, and input %d %lld", (long long)model->context, i,
                                    (long long)job->prompts[i].count);
    return values <= TARN__API_VALUES_MAX ||
           tarn__api_refuse(&job->error, 400, NULL, "input",
                            "%d inputs with %lld elements each are more than %d elements", job->prompt_count,
                            (long long)model->info.hidden_size, TARN__API_VALUES_MAX);
}

bool tarn__api_read_embeddings(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    int64_t size = model->info.hidden_size, dimensions = size;
    if (!read_format(job, f) || !tarn__body_int(f, "dimensions", 1, INT32_MAX, &dimensions))
        return false;
    if (dimensions != size)
        return tarn__api_refuse(&job->error, 400, "unsupported_parameter", "dimensions",
                                "dimensions is %lld; embeddings of this model have %lld", (long long)dimensions,
                                (long long)size);
    tarn__body_skip(f, "user");
    job->n = 1;
    return tarn__api_read_inputs(job, model, f) && tarn__body_end(f) && check_inputs(job, model);
}

/* ---- the computation --------------------------------------------------------------------------------------------- */

static bool begin_job(const tarn__api *a, tarn__api_job *job, tarn_embedder **embedder)
{
    int64_t longest = 0;
    for (int i = 0; i < job->prompt_count; i++)
        longest = job->prompts[i].count > longest ? job->prompts[i].count : longest;
    job->embeddings = calloc((size_t)(job->prompt_count * a->model.info.hidden_size), sizeof(*job->embeddings));
    if (!job->embeddings)
        return tarn__api_refuse(&job->error, 503, NULL, NULL, "no memory for the embeddings");
    *embedder =
        tarn_embedder_new(a->model.module, &(tarn_embedder_options){.context = longest,
                                                                    .kv_type = a->engine_options.kv_type,
                                                                    .prefill_chunk = a->engine_options.prompt_tokens});
    return *embedder != NULL && tarn_embedder_begin(*embedder, job->prompts[0].tokens, job->prompts[0].count);
}

/* One chunk of the present input; after its last one the next input begins. tarn_embedder_step() returns the tokens
 * that are left, below 0 with an error. */
static bool step_job(const tarn__api *a, tarn__api_job *job, tarn_embedder *embedder)
{
    int64_t size = a->model.info.hidden_size, left = tarn_embedder_step(embedder);
    if (left != 0)
        return left > 0;
    if (!tarn_embedder_read(embedder, job->embeddings + job->embedded * size, size))
        return false;
    if (++job->embedded == job->prompt_count)
        return true;
    const tarn__api_prompt *next = &job->prompts[job->embedded];
    return tarn_embedder_begin(embedder, next->tokens, next->count);
}

bool tarn__api_embed(tarn__api *a, tarn_embedder **embedder)
{
    tarn__api_job *job = tarn__api_front(a);
    if (!job)
        return false;
    bool is_cancelled = atomic_load(&job->is_cancelled);
    bool good = is_cancelled || ((*embedder || begin_job(a, job, embedder)) && step_job(a, job, *embedder));
    if (!good)
        tarn__api_refuse_by_library(&job->error, 500, NULL);
    tarn_clear_error();
    if (!good || is_cancelled || job->embedded == job->prompt_count) {
        tarn_embedder_free(*embedder);
        *embedder = NULL;
        tarn__api_finish_front(a);
    }
    return true;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* The bytes of f32 elements, little-endian. Three bytes are four digits of 6 bits: 1.0f, the bytes 00 00 80 3F, is
 * "AACAPw==". */
static void put_base64(FILE *out, const float *values, size_t count)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t group = 0;
    for (size_t i = 0; i < 4 * count || i % 3 != 0; i++) {
        uint32_t word = 0;
        if (i < 4 * count)
            memcpy(&word, values + i / 4, sizeof(word));
        group = group << 8 | (word >> 8 * (i % 4) & 0xff);
        if (i % 3 != 2)
            continue;
        for (size_t k = 0; k < 4; k++) /* a group's digits of bytes past the end are '=' */
            fputc(k && i - 3 + k >= 4 * count ? '=' : digits[group >> (18 - 6 * k) & 63], out);
        group = 0;
    }
}

/* Nine digits bring every f32 back. */
static void put_floats(FILE *out, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fprintf(out, "%s%.9g", i ? "," : "", (double)values[i]);
}

bool tarn__api_write_embeddings(tarn__api_job *job, const tarn__api_model *model)
{
    size_t length = 0, size = (size_t)model->info.hidden_size;
    long long tokens = 0;
    json_t *name = json_string(model->name);
    char *quoted = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
    FILE *out = quoted ? open_memstream(&job->answer, &length) : NULL;
    json_decref(name);
    if (out)
        fprintf(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; out && i < job->prompt_count; i++) {
        fprintf(out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":%s", i ? "," : "", i,
                job->is_base64 ? "\"" : "[");
        (job->is_base64 ? put_base64 : put_floats)(out, job->embeddings + (size_t)i * size, size);
        fprintf(out, job->is_base64 ? "\"}" : "]}");
        tokens += job->prompts[i].count;
    }
    if (out)
        fprintf(out, "],\"model\":%s,\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}", quoted, tokens,
                tokens);
    free(quoted);
    if (out && fclose(out) == 0)
        return true;
    free(job->answer);
    job->answer = NULL;
    return false;
}
