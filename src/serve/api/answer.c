/* answer.c: the JSON of answers: whole ones, the events of streams, log probabilities, usage.
 *
 * Members and their order are OpenAI's; those of our own come last: timings, reasoning_content (as DeepSeek's and
 * vLLM's servers name it). jansson's functions take NULL in place of a value and fail, so memory that is missing
 * shows as a NULL at the end, or as an array that is too short: no step between looks at it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/ollama/ollama.h"

static bool is_chat(const tarn__api_job *job)
{
    return job->route == TARN__API_CHAT;
}

/* OpenAI's words; NULL: not ended. The limit goes before calls, since an answer that was cut may hold half a call
 * more. */
static const char *finish_name(const tarn__api_choice *choice)
{
    return !choice->has_ended                            ? NULL
           : choice->finish_reason == TARN_FINISH_LENGTH ? "length"
           : choice->has_calls                           ? "tool_calls"
                                                         : "stop";
}

/* ---- log probabilities ------------------------------------------------------------------------------------------- */

/* Text of a token alone; bytes that are not a whole character become U+FFFD. Ids that no token has, of a model whose
 * vocabulary is larger than the tokenizer's, have none. One stream serves all tokens: its end puts it back to the
 * beginning. `continues` keeps the space that a first word would lose. */
static json_t *token_text(tarn__api *a, int32_t token)
{
    size_t length = 0;
    const tarn_tokenizer *tokenizer = a->model.tokenizer;
    if (token >= tarn_tokenizer_count(tokenizer) || !tarn_tokenizer_piece(tokenizer, token, NULL))
        return json_string("");
    if (!a->token_stream)
        a->token_stream = tarn_text_stream_new(tokenizer, &(tarn_stream_options){.continues = true});
    const char *text = a->token_stream ? tarn_text_stream_push(a->token_stream, token, &length) : NULL;
    json_t *string = text ? tarn__api_string(text, length) : NULL;
    const char *rest = string ? tarn_text_stream_end(a->token_stream, &length) : NULL;
    if (rest && length) {
        json_t *whole = json_pack("s%+%", json_string_value(string), json_string_length(string), rest, length);
        json_decref(string);
        string = whole;
    }
    tarn_clear_error();
    return string;
}

/* As OpenAI's, -9999 stands for no probability; null for a token without one, such as the first of a prompt. */
static json_t *logprob_value(double logprob)
{
    return isnan(logprob) ? json_null() : json_real(isfinite(logprob) ? logprob : -9999.0);
}

/* {"token": "a", "logprob": -1.5, "bytes": [97]}; completions have no bytes. */
static json_t *candidate_entry(tarn__api *a, const tarn__api_job *job, int32_t token, double logprob)
{
    size_t length = 0;
    json_t *entry = json_pack("{s:o,s:o}", "token", token_text(a, token), "logprob", logprob_value(logprob));
    if (!is_chat(job))
        return entry;
    const char *piece = tarn_tokenizer_piece(a->model.tokenizer, token, &length);
    json_t *bytes = json_array();
    for (size_t i = 0; piece && i < length; i++)
        json_array_append_new(bytes, json_integer((unsigned char)piece[i]));
    tarn_clear_error();
    json_object_set_new(entry, "bytes", bytes);
    return entry;
}

/* Decoded by a stream, as the answer after it is: the bytes of a character may be in two tokens. */
char *tarn__api_prompt_text(const tarn__api_model *model, const tarn__api_prompt *prompt, size_t *length)
{
    size_t part = 0;
    char *text = NULL;
    int64_t count = tarn_tokenizer_count(model->tokenizer); /* the model may have more */
    tarn_text_stream *stream = tarn_text_stream_new(model->tokenizer, NULL);
    FILE *out = stream ? open_memstream(&text, length) : NULL;
    for (int64_t i = 0; out && i < prompt->count; i++) {
        int32_t token = prompt->tokens[i];
        bool has_text = token < count && tarn_tokenizer_piece(model->tokenizer, token, NULL);
        const char *bytes = has_text ? tarn_text_stream_push(stream, token, &part) : NULL;
        if (bytes)
            fwrite(bytes, 1, part, out);
    }
    const char *rest = out ? tarn_text_stream_end(stream, &part) : NULL;
    if (rest)
        fwrite(rest, 1, part, out);
    bool good = out && fclose(out) == 0 && !tarn_failed();
    tarn_text_stream_free(stream);
    tarn_clear_error();
    if (good)
        return text;
    free(text);
    return NULL;
}

/* A token that ended the answer (EOS) is none of its text, and has an entry where the caller asks for one. */
json_t *tarn__api_logprob(tarn__api *a, const tarn__api_job *job, const tarn_engine_output *o, size_t text_offset)
{
    json_t *entry = candidate_entry(a, job, o->token >= 0 ? o->token : o->end_token, o->logprob), *top = json_array();
    for (int i = 0; i < o->top_logprob_count; i++)
        json_array_append_new(top, candidate_entry(a, job, o->top_logprobs[i].token, o->top_logprobs[i].logprob));
    json_object_set_new(entry, "top_logprobs", top);
    if (!is_chat(job))
        json_object_set_new(entry, "text_offset", json_integer((json_int_t)text_offset));
    return entry;
}

/* The form of completions: one array per member, and the top ones as objects by their text. {"tokens": ["a"],
 * "token_logprobs": [-1.5], "top_logprobs": [{"a": -1.5}], "text_offset": [0]}. Two tokens of the same text share a
 * member: the first, more likely one stays. */
static json_t *completion_logprobs(const json_t *entries)
{
    json_t *tokens = json_array(), *logprobs = json_array(), *top = json_array(), *offsets = json_array(), *entry,
           *candidate;
    size_t i, k;
    json_array_foreach(entries, i, entry)
    {
        json_t *logprob = json_object_get(entry, "logprob"), *by_text = json_object();
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, candidate)
        {
            const char *text = json_string_value(json_object_get(candidate, "token"));
            if (text && !json_object_get(by_text, text))
                json_object_set(by_text, text, json_object_get(candidate, "logprob"));
        }
        const char *own = json_string_value(json_object_get(entry, "token"));
        if (own && !json_object_get(by_text, own)) /* the token itself always is among them */
            json_object_set(by_text, own, logprob);
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(logprobs, logprob);
        json_array_append(top, json_is_null(logprob) ? logprob : by_text);
        json_decref(by_text);
        json_array_append(offsets, json_object_get(entry, "text_offset"));
    }
    return json_pack("{s:o,s:o,s:o,s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs", top,
                     "text_offset", offsets);
}

/* A new reference; null where none were asked for. */
static json_t *choice_logprobs(const tarn__api_job *job, const tarn__api_choice *choice)
{
    if (!job->has_logprobs)
        return json_null();
    return is_chat(job) ? json_pack("{s:O,s:n}", "content", choice->logprobs, "refusal")
                        : completion_logprobs(choice->logprobs);
}

/* ---- usage ------------------------------------------------------------------------------------------------------- */

/* A prompt counts once, whatever n is. cached_tokens are those found in the KV cache, by the first of a prompt's
 * answers: the others share its pages in any case. */
static json_t *usage(const tarn__api_job *job)
{
    json_int_t prompt = 0, completion = 0, cached = 0, reasoning = 0;
    for (int i = 0; i < job->prompt_count; i++) {
        prompt += job->prompts[i].count;
        cached += job->choices[i * job->n].shared;
    }
    for (int i = 0; i < job->choice_count; i++) {
        completion += job->choices[i].tokens;
        reasoning += job->choices[i].reasoning_tokens;
    }
    return json_pack("{s:I,s:I,s:I,s:{s:I},s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", completion,
                     "total_tokens", prompt + completion, "prompt_tokens_details", "cached_tokens", cached,
                     "completion_tokens_details", "reasoning_tokens", reasoning);
}

/* Milliseconds of the first choice: until its first step, its first token, its last one. The rate leaves the first
 * token out, whose time is the prompt's. With speculation, tokens that were proposed and accepted. */
static json_t *timings(const tarn__api_job *job)
{
    const tarn__api_choice *c = &job->choices[0];
    double seconds = c->decode_ms / 1e3;
    return json_pack("{s:f,s:f,s:f,s:f,s:I,s:I}", "wait_ms", c->wait_ms, "prompt_ms", c->prompt_ms, "decode_ms",
                     c->decode_ms, "tokens_per_second",
                     seconds > 0 && c->tokens > 1 ? (double)(c->tokens - 1) / seconds : 0.0, "proposed_tokens",
                     (json_int_t)c->proposed, "accepted_tokens", (json_int_t)c->accepted);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* The members before the choices. */
static json_t *head(const tarn__api_job *job, const tarn__api_model *model, const char *object)
{
    return json_pack("{s:s,s:s,s:I,s:s}", "id", job->id, "object", object, "created", (json_int_t)job->created, "model",
                     tarn__api_name(job, model));
}

static char *dump(json_t *root)
{
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* {"role": "assistant", "content": "…", "refusal": null}, with the thinking and the calls, if any. Takes the
 * references. */
static json_t *whole_message(const tarn__api_choice *c, json_t *content, json_t *calls)
{
    const tarn__reasoning *r = &c->reasoning;
    json_t *message = json_pack("{s:s,s:o,s:n}", "role", "assistant", "content", content, "refusal");
    if (r->end > r->begin)
        json_object_set_new(message, "reasoning_content", tarn__api_string(r->text + r->begin, r->end - r->begin));
    if (calls)
        json_object_set_new(message, "tool_calls", calls);
    return message;
}

static json_t *whole_choice(const tarn__api_job *job, tarn__api_choice *c)
{
    size_t length = c->length;
    json_t *calls = tarn__api_calls(job, c, &length), *logprobs = choice_logprobs(job, c);
    tarn__api_limit_calls(job, calls);
    json_t *text = calls && !length ? json_null() : tarn__api_string(c->text, length);
    c->has_calls = calls != NULL;
    const char *reason = finish_name(c);
    if (is_chat(job))
        return json_pack("{s:i,s:o,s:o,s:s?}", "index", c->index, "message", whole_message(c, text, calls), "logprobs",
                         logprobs, "finish_reason", reason);
    return json_pack("{s:i,s:o,s:o,s:s?}", "index", c->index, "text", text, "logprobs", logprobs, "finish_reason",
                     reason);
}

char *tarn__api_whole(const tarn__api_job *job, const tarn__api_model *model)
{
    if (job->ollama)
        return tarn__ollama_whole(job, model);
    json_t *root = head(job, model, is_chat(job) ? "chat.completion" : "text_completion"), *choices = json_array();
    for (int i = 0; i < job->choice_count; i++)
        json_array_append_new(choices, whole_choice(job, &job->choices[i]));
    bool is_whole = json_array_size(choices) == (size_t)job->choice_count;
    json_object_set_new(root, "choices", choices);
    json_object_set_new(root, "usage", usage(job));
    json_object_set_new(root, "timings", timings(job));
    if (is_whole)
        return dump(root);
    json_decref(root);
    return NULL;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static const char *chunk_object(const tarn__api_job *job)
{
    return is_chat(job) ? "chat.completion.chunk" : "text_completion";
}

/* The first event of a chat has the role, those after it text; the last one has the finish reason, and text if some
 * was left. */
static json_t *chunk_delta(const char *text, size_t length, bool has_ended)
{
    if (!text)
        return json_pack("{s:s,s:s}", "role", "assistant", "content", "");
    return length || !has_ended ? json_pack("{s:o}", "content", tarn__api_string(text, length)) : json_object();
}

/* An event with `value` as the choice's delta or text, whose reference it takes. `has_text`: and with the log
 * probabilities so far. Log probabilities that were sent are dropped from the choice, so that the next event has the
 * next ones. */
static char *choice_chunk(const tarn__api_job *job, const tarn__api_model *model, tarn__api_choice *c, json_t *value,
                          bool has_text, bool has_ended)
{
    json_t *root = head(job, model, chunk_object(job));
    json_t *logprobs = has_text && c->logprobs && json_array_size(c->logprobs) ? choice_logprobs(job, c) : json_null();
    json_t *choice =
        json_pack("{s:i,s:o,s:o}", "index", c->index, is_chat(job) ? "delta" : "text", value, "logprobs", logprobs);
    json_object_set_new(choice, "finish_reason", has_ended ? json_string(finish_name(c)) : json_null());
    json_object_set_new(root, "choices", json_pack("[o]", choice));
    if (job->includes_usage)
        json_object_set_new(root, "usage", json_null());
    char *event = dump(root);
    if (has_text && c->logprobs)
        json_array_clear(c->logprobs); /* of a chat the event had this very array */
    return event;
}

char *tarn__api_chunk(const tarn__api_job *job, const tarn__api_model *model, tarn__api_choice *c, const char *text,
                      size_t length)
{
    if (job->ollama)
        return tarn__ollama_chunk(job, model, text, length);
    json_t *value = is_chat(job) ? chunk_delta(text, length, c->has_ended) : tarn__api_string(text, text ? length : 0);
    return choice_chunk(job, model, c, value, text != NULL, c->has_ended);
}

char *tarn__api_reasoning_chunk(const tarn__api_job *job, const tarn__api_model *model, tarn__api_choice *c,
                                const char *text, size_t length)
{
    if (job->ollama)
        return tarn__ollama_thinking(job, model, text, length);
    return choice_chunk(job, model, c, json_pack("{s:o}", "reasoning_content", tarn__api_string(text, length)), true,
                        false);
}

/* The calls come whole, in one event: clients join parts of arguments by "index", and one part is one too. */
char *tarn__api_calls_chunk(const tarn__api_job *job, const tarn__api_model *model, const tarn__api_choice *c,
                            json_t *calls)
{
    if (job->ollama)
        return tarn__ollama_calls(job, model, calls);
    json_t *root = head(job, model, chunk_object(job)), *call;
    size_t i;
    json_array_foreach(calls, i, call) json_object_set_new(call, "index", json_integer((json_int_t)i));
    json_object_set_new(root, "choices",
                        json_pack("[{s:i,s:{s:o},s:n,s:n}]", "index", c->index, "delta", "tool_calls", calls,
                                  "logprobs", "finish_reason"));
    if (job->includes_usage)
        json_object_set_new(root, "usage", json_null());
    return dump(root);
}

/* With include_usage OpenAI's streams have "usage": null in every event but this one, whose choices are empty. */
char *tarn__api_usage_chunk(const tarn__api_job *job, const tarn__api_model *model)
{
    if (job->ollama)
        return tarn__ollama_end(job, model);
    json_t *root = head(job, model, chunk_object(job));
    json_object_set_new(root, "choices", json_array());
    json_object_set_new(root, "usage", usage(job));
    json_object_set_new(root, "timings", timings(job));
    return dump(root);
}
