/* text_routes.c: /tokenize, /detokenize and /apply-template.
 *
 * These need the tokenizer alone, so the pool answers them while the engine computes. Names and defaults are those
 * of llama.cpp's server. */
#include <stdlib.h>
#include <string.h>

#include "serve/api/prepare.h"

/* Takes the reference of the root. */
static bool set_answer(tarn__api_job *job, json_t *root)
{
    job->answer = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return job->answer != NULL;
}

/* {"content": "text", "add_special": false, "parse_special": true} */
static bool tokenize(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    const char *text = NULL;
    size_t length = 0;
    bool adds = false, parses = true;
    int64_t count = 0;
    if (!tarn__body_string(f, "content", &text, &length) || !tarn__body_bool(f, "add_special", &adds) ||
        !tarn__body_bool(f, "parse_special", &parses) || !tarn__body_end(f))
        return false;
    if (!text)
        return tarn__api_refuse(&job->error, 400, NULL, "content", "content is missing; it must be a string");
    const tarn_encode_options how = {.special_as_text = !parses, .add_special = adds};
    int32_t *ids = tarn_tokenizer_encode(model->tokenizer, text, length, &how, &count);
    if (!ids)
        return tarn__api_refuse_by_library(&job->error, 400, "content");
    json_t *tokens = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(tokens, json_integer(ids[i]));
    tarn_tokenizer_release(ids);
    bool is_whole = (int64_t)json_array_size(tokens) == count;
    json_t *root = json_pack("{s:o}", "tokens", tokens);
    if (!is_whole) {
        json_decref(root);
        return false;
    }
    return set_answer(job, root);
}

/* {"tokens": [1, 2]}; bytes that are not UTF-8 become U+FFFD. */
static bool detokenize(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    json_t *tokens = tarn__body_member(f, "tokens"), *id;
    size_t i, length;
    if (!json_is_array(tokens))
        return tarn__api_refuse(&job->error, 400, NULL, "tokens", "tokens must be an array of token ids");
    if (!tarn__body_end(f))
        return false;
    tarn_text_stream *stream = tarn_text_stream_new(model->tokenizer, NULL);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    bool good = stream && out;
    json_array_foreach(tokens, i, id)
    {
        json_int_t value = json_integer_value(id);
        bool is_id = json_is_integer(id) && value >= 0 && value < tarn_tokenizer_count(model->tokenizer);
        if (good && !is_id)
            good = tarn__api_refuse(&job->error, 400, NULL, "tokens", "tokens[%zu] must be an integer from 0 to %lld",
                                    i, (long long)tarn_tokenizer_count(model->tokenizer) - 1);
        const char *part = good ? tarn_text_stream_push(stream, (int32_t)value, &length) : NULL;
        if (good && !part)
            good = tarn__api_refuse_by_library(&job->error, 400, "tokens");
        if (good)
            fwrite(part, 1, length, out);
    }
    const char *end = good ? tarn_text_stream_end(stream, &length) : NULL;
    if (end)
        fwrite(end, 1, length, out);
    if (out)
        good = fclose(out) == 0 && good;
    tarn_text_stream_free(stream);
    good = good && set_answer(job, json_pack("{s:o}", "content", tarn__api_string(text, size)));
    free(text);
    return good;
}

/* {"messages": […], "add_generation_prompt": true, "chat_template_kwargs": {}} */
static bool apply_template(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    size_t length = 0;
    bool adds = true;
    char *variables = NULL, *messages = tarn__api_messages_text(job, f), *text = NULL;
    json_t *given = tarn__body_member(f, "chat_template_kwargs");
    if (given && !json_is_object(given))
        tarn__api_refuse(&job->error, 400, NULL, "chat_template_kwargs", "chat_template_kwargs must be an object");
    bool good = messages && tarn__body_bool(f, "add_generation_prompt", &adds) && tarn__body_end(f) &&
                !job->error.status && (!given || (variables = json_dumps(given, JSON_COMPACT)));
    if (good && !model->has_template)
        good = tarn__api_refuse(&job->error, 400, NULL, "messages", "the model has no chat template");
    const tarn_chat_options options = {.add_generation_prompt = adds, .variables = variables};
    if (good)
        text = tarn_chat_render_json(model->tokenizer, messages, strlen(messages), &options, &length);
    if (good && !text)
        good = tarn__api_refuse_by_library(&job->error, 400, "messages");
    good = good && set_answer(job, json_pack("{s:o}", "prompt", tarn__api_string(text, length)));
    tarn_tokenizer_release(text);
    free(variables);
    free(messages);
    return good;
}

bool tarn__api_answer_text(tarn__api_job *job, const tarn__api_model *model, tarn__body *f)
{
    return job->route == TARN__API_TOKENIZE     ? tokenize(job, model, f)
           : job->route == TARN__API_DETOKENIZE ? detokenize(job, model, f)
                                                : apply_template(job, model, f);
}
