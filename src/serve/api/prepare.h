/* prepare.h: the parts of tarn__api_prepare(), a file each. All return false with the job's error. */
#ifndef TARN__PREPARE_H
#define TARN__PREPARE_H

#include "serve/api/body.h"

/* tarn__api_prepare() with the members of the body, of which the test of the document wants those that were read
 * (prepare.c). */
void tarn__api_prepare_body(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields);

/* The model must be the one that is loaded; without a name it is (prepare.c). */
bool tarn__api_check_model(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields);

/* Sampling, limits, stream and structured output (params.c). */
bool tarn__api_read_params(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields);

/* The tools of a chat and its choice of them (tools.c). */
bool tarn__api_read_tools(tarn__api_job *job, tarn__body *fields);

/* tool_choice: whether the tools are hidden, or a call of one of them is demanded (tool_choice.c). */
bool tarn__api_read_choice(tarn__api_job *job, tarn__body *fields, const json_t *tools, bool *is_none);

/* Constrains the answer of a chat to a call, if one is demanded; `variables` are those of its template, or NULL
 * (tool_choice.c). */
bool tarn__api_force_call(tarn__api_job *job, const tarn__api_model *model, const char *variables);

/* Calls in message `i`: arguments that are JSON in a string become the object that templates expect (tools.c). */
bool tarn__api_read_calls(tarn__api_job *job, json_t *message, size_t i);

/* The conversation of a chat and the prompts of a completion, as tokens (prompt.c). */
bool tarn__api_read_messages(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields);
bool tarn__api_read_prompts(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields);

/* The inputs of an embeddings request, as prompts (prompt.c). */
bool tarn__api_read_inputs(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields);

/* The members of an embeddings request; and its answer, once it is computed (embeddings.c). */
bool tarn__api_read_embeddings(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields);
bool tarn__api_write_embeddings(tarn__api_job *job, const tarn__api_model *model);

/* The messages of a body, checked, as JSON text; the caller frees it. NULL with the error (prompt.c). */
char *tarn__api_messages_text(tarn__api_job *job, tarn__body *fields);

/* Answers /tokenize, /detokenize and /apply-template (text_routes.c). */
bool tarn__api_answer_text(tarn__api_job *job, const tarn__api_model *model, tarn__body *fields);

#endif
