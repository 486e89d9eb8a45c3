/* ollama.h: the routes of Ollama's API: its requests as those of OpenAI's, and its answers.
 *
 * A request becomes one of the OpenAI side before its members are read, so that both are checked and computed alike;
 * answers are lines of JSON instead of events. */
#ifndef TARN__OLLAMA_H
#define TARN__OLLAMA_H

#include "serve/api/api_private.h"
#include "serve/api/body.h"

/* True for a path of Ollama's API, known or not. */
bool tarn__ollama_is_path(const char *path);

/* The route of a path whose request is a job. */
tarn__ollama_route tarn__ollama_route_of(const char *path);

/* ---- requests (ollama_request.c) --------------------------------------------------------------------------------- */

/* Replaces the body of /api/chat or /api/generate by that of a chat or completion, and sets the route; or makes the
 * answer of a request without a prompt, or of /api/show. `fields` are those of the old body. False with the job's
 * error. */
bool tarn__ollama_translate(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields);

/* ---- answers (ollama_answer.c) ----------------------------------------------------------------------------------- */

/* The body of an error. The caller frees it; NULL without memory. */
char *tarn__ollama_error_text(const tarn__api_error *error);

/* The whole answer, or the last line of a stream. The caller frees it; NULL without memory. */
char *tarn__ollama_whole(const tarn__api_job *job, const tarn__api_model *model);
char *tarn__ollama_end(const tarn__api_job *job, const tarn__api_model *model);

/* A line of a stream: text, thinking, or calls; takes the reference. */
char *tarn__ollama_chunk(const tarn__api_job *job, const tarn__api_model *model, const char *text, size_t length);
char *tarn__ollama_thinking(const tarn__api_job *job, const tarn__api_model *model, const char *text, size_t length);
char *tarn__ollama_calls(const tarn__api_job *job, const tarn__api_model *model, json_t *calls);

/* What a request without a prompt gets: the model is loaded. */
char *tarn__ollama_loaded(const tarn__api_job *job, const tarn__api_model *model);

/* /api/show. */
char *tarn__ollama_show(const tarn__api_model *model, bool is_adapter);

/* GET of /api/tags, /api/ps and /api/version. */
void tarn__ollama_answer_tags(tarn__api *api, tarn__http_exchange *exchange);
void tarn__ollama_answer_ps(tarn__api *api, tarn__http_exchange *exchange);
void tarn__ollama_answer_version(tarn__api *api, tarn__http_exchange *exchange);

#endif
