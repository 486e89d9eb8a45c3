/* job.h: one request of the API from its body to its answer.
 *
 * The loop's thread creates a job and owns it. A thread of the pool prepares it (prepare.c): it parses the body, checks
 * every field, and makes either a whole answer or prompts and options for the engine. The loop's thread then adds them
 * to the engine and collects the outputs (completion.c). A job whose client has gone stays until the pool and the
 * engine are done with it. */
#ifndef TARN__JOB_H
#define TARN__JOB_H

#include <jansson.h>
#include <stdatomic.h>
#include <tarn/engine.h>

#include "serve/api/reasoning.h"
#include "serve/http/server.h"

/* Limits of a request. */
enum {
    TARN__API_N_MAX = 8,           /* answers per prompt */
    TARN__API_PROMPTS_MAX = 64,    /* prompts of a completion */
    TARN__API_CHOICES_MAX = 128,   /* answers of a request */
    TARN__API_STOPS_MAX = 16,      /* stop strings */
    TARN__API_TOP_MAX = 20,        /* top_logprobs */
    TARN__API_ECHO_MAX = 1 << 19,  /* log probabilities of prompts, top ones included */
    TARN__API_BIASES_MAX = 1024,   /* members of logit_bias */
    TARN__API_NESTING_MAX = 64,    /* of arrays and objects in a body */
    TARN__API_MESSAGES_MAX = 4096, /* of a conversation */
    TARN__API_INPUTS_MAX = 2048,   /* inputs of an embeddings request, as OpenAI's */
    TARN__API_VALUES_MAX = 1 << 22 /* elements of all its embeddings */
};

typedef enum tarn__api_route {
    TARN__API_CHAT = 0,
    TARN__API_COMPLETION,
    TARN__API_TOKENIZE,
    TARN__API_DETOKENIZE,
    TARN__API_TEMPLATE,
    TARN__API_EMBEDDINGS,
    TARN__API_LOAD
} tarn__api_route;

/* True if the engine's thread computes the answers of a route. */
static inline bool tarn__api_is_computed(tarn__api_route route)
{
    return route <= TARN__API_COMPLETION || route == TARN__API_EMBEDDINGS;
}

/* The route of Ollama's API that a request came by; its job has a route of the others. */
typedef enum tarn__ollama_route {
    TARN__OLLAMA_NONE = 0,
    TARN__OLLAMA_CHAT,
    TARN__OLLAMA_GENERATE,
    TARN__OLLAMA_SHOW
} tarn__ollama_route;

/* An error of OpenAI's form. `status` 0: none. */
typedef struct tarn__api_error {
    int status;
    const char *type, *code; /* literals; code may be NULL */
    char param[80];          /* "": null */
    char message[600];
} tarn__api_error;

/* Sets an error and returns false. `param` and `code` may be NULL. */
bool tarn__api_refuse(tarn__api_error *error, int status, const char *code, const char *param, const char *format, ...)
    TARN_PRINTF(5, 6);

/* Sets an error from the library's pending one, which is cleared; returns false. */
bool tarn__api_refuse_by_library(tarn__api_error *error, int status, const char *param);

/* The body of an error. The caller frees it; NULL without memory. */
char *tarn__api_error_text(const tarn__api_error *error);

/* A JSON string of any bytes: what is not UTF-8 becomes '?'. A new reference. */
json_t *tarn__api_string(const char *bytes, size_t length);

/* What requests are checked against; immutable while the model is loaded. */
typedef struct tarn__api_model {
    const char *name;
    const char *const *names; /* of all models of the server */
    int name_count;
    tarn_module *module; /* NULL: no engine (a fuzz target) */
    tarn_tokenizer *tokenizer;
    tarn_grammar_vocab *vocab; /* NULL: `vocab_error` says why grammars cannot be used */
    char vocab_error[256];
    tarn_model_info info;
    int64_t context; /* tokens of a request */
    int32_t eot;     /* ends an answer of the chat template; -1: none */
    bool has_template;
    const char *const *adapters; /* names, which requests choose as models of their own */
    int adapter_count;
} tarn__api_model;

typedef struct tarn__api_job tarn__api_job;

/* One answer of a job. Belongs to the loop's thread. */
typedef struct tarn__api_choice tarn__api_choice;
struct tarn__api_choice {
    tarn__api_job *job;
    tarn__api_choice *next; /* of its bucket in the table of requests */
    int64_t request;        /* the engine's number; 0: not added */
    int index, prompt;
    char *text; /* so far; NULL: none */
    size_t length, capacity;
    json_t *logprobs; /* array; NULL: not asked for */
    tarn__reasoning reasoning;
    int64_t tokens, shared, reasoning_tokens;
    int64_t proposed, accepted; /* tokens of speculative decoding */
    size_t offset;              /* in the text, in characters, of the next token with log probabilities */
    size_t sent;                /* bytes of the text, of a stream with tools */
    bool has_calls, has_echoed;
    tarn_finish_reason finish_reason;
    double wait_ms, prompt_ms, decode_ms;
    bool has_ended;
};

typedef struct tarn__api_prompt {
    int32_t *tokens; /* of malloc() */
    int64_t count;
} tarn__api_prompt;

struct tarn__api_job {
    int64_t number;
    tarn__api_route route;
    tarn__ollama_route ollama;
    char *body; /* until it is prepared */
    size_t body_size;
    tarn__api_job *previous, *next; /* all jobs, on the loop's thread */
    tarn__api_job *queued;          /* the next one in the queue of the pool */
    void *owner;
    atomic_bool is_cancelled; /* the client has gone; set by the loop's thread */

    /* prepared */
    json_t *root; /* the parsed body, until the engine has the request; strings of the options point into it */
    tarn__api_error error;
    char *answer; /* whole, with status 200 */
    tarn__api_prompt *prompts;
    int prompt_count;
    int n;
    tarn_generate_options options;
    const char *stops[TARN__API_STOPS_MAX];
    tarn_logit_bias *biases;
    tarn_grammar *grammar;
    char *tools; /* JSON of the functions that may be called; NULL: none */
    bool streams, includes_usage, has_logprobs;
    bool echoes;            /* the answers of a completion begin with their prompt */
    bool has_default_limit; /* of new tokens: less where the context ends before */
    bool forces_call;       /* the answer must be a call, */
    char forced_tool[65];   /* of the tool with this name; "": of any */
    bool is_single;         /* at most one call */
    bool opens_reasoning;   /* the prompt of a chat ends with <think> */
    bool is_base64;         /* the form of embeddings */
    int wanted_model;       /* the index of its name, of a request to load it */

    /* embeddings: computed by the engine's thread, which has the job in between, then written by the pool */
    float *embeddings; /* [prompt_count, hidden_size]; NULL: not yet computed */
    int embedded;      /* inputs so far */

    /* answering, on the loop's thread */
    tarn__http_exchange *exchange; /* NULL: the client has gone, or the answer is complete */
    tarn__api_choice *choices;
    int choice_count, ended_count;
    char id[48];
    int64_t created;  /* Unix time */
    double last_sent; /* seconds; of a stream */
    bool is_prepared, has_begun;
};

/* A new job with a copy of the body; NULL without memory. Frees everything. */
tarn__api_job *tarn__api_job_new(tarn__api_route route, const char *body, size_t size);
void tarn__api_job_free(tarn__api_job *job);

/* The name of the model that a job has chosen: an adapter's, or the model's own. */
const char *tarn__api_name(const tarn__api_job *job, const tarn__api_model *model);

/* Parses and checks the body and makes prompts and options, or an answer, or an error. */
void tarn__api_prepare(tarn__api_job *job, const tarn__api_model *model);

#endif
