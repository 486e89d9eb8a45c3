/* targets_api.c: bodies of API requests: an answer, prompts for the engine, or an error with its reason. */
#include <stdlib.h>
#include <string.h>
#include <tarn/base.h>

#include "fuzz/targets.h"
#include "tarn_features.h"

#if TARN__HAVE_EVENT && TARN__HAVE_JANSSON

#include "serve/api/job.h"

/* A tokenizer of bytes with a chat template; no engine. */
static void open_model(tarn__api_model *m)
{
    *m = (tarn__api_model){.name = "m", .info = {.vocab_size = 258, .eos_count = 1, .eos = {257}}, .context = 256};
    m->tokenizer = tarn_tokenizer_bytes();
    tarn_tokenizer_add_tokens(m->tokenizer, "<|im_start|>,<|im_end|>");
    m->has_template = tarn_tokenizer_set_chat(m->tokenizer, "chatml");
    m->eot = 257;
    m->vocab = tarn_grammar_vocab_new(m->tokenizer, &(tarn_grammar_vocab_options){.vocab_size = 258});
    fuzz_must(m->vocab && m->has_template && !tarn_failed(), "the model is there");
}

/* What a prepared job has: an error, an answer, or prompts that fit. */
static bool check(const tarn__api_job *job, const tarn__api_model *model)
{
    char *text = job->error.status ? tarn__api_error_text(&job->error) : NULL;
    fuzz_must(!job->error.status || (job->error.status >= 400 && job->error.message[0] && text), "an error has words");
    free(text);
    if (job->error.status || job->answer)
        return !job->error.status;
    fuzz_must(job->prompt_count > 0 && job->n >= 1 && job->n <= TARN__API_N_MAX, "there are prompts");
    for (int i = 0; i < job->prompt_count; i++) {
        const tarn__api_prompt *p = &job->prompts[i];
        fuzz_must(p->count > 0 && p->count + job->options.max_tokens <= model->context, "prompts fit");
        for (int64_t k = 0; k < p->count; k++)
            fuzz_must(p->tokens[k] >= 0 && p->tokens[k] < model->info.vocab_size, "tokens are in the vocabulary");
    }
    return true;
}

static bool take_body(const void *from, size_t count)
{
    bool is_taken = false;
    tarn__api_model model;
    open_model(&model);
    for (int route = 0; route <= TARN__API_EMBEDDINGS; route++) {
        tarn__api_job *job = tarn__api_job_new((tarn__api_route)route, from, count);
        fuzz_must(job != NULL, "there is memory");
        tarn__api_prepare(job, &model);
        fuzz_must(!tarn_failed(), "no error is left pending");
        is_taken = check(job, &model) || is_taken;
        tarn__api_job_free(job);
    }
    tarn_grammar_vocab_free(model.vocab);
    tarn_tokenizer_free(model.tokenizer);
    /* an API answers with a status; a target that refuses has an error */
    return is_taken || tarn_set_error(TARN_ERROR_FORMAT, "the body is refused");
}

static void seed_bodies(fuzz_seed_fn use, void *ctx)
{
    static const char *const good[] = {
        "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{"
        "\"type\":"
        "\"text\",\"text\":\"h\\u00e9\"}]}],\"max_tokens\":8,\"temperature\":0.5,\"top_p\":0.9,\"seed\":-1,\"stop\":["
        "\"x\"],\"logprobs\":true,\"top_logprobs\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
        "{\"prompt\":[\"a\",[1,2,3]],\"n\":2,\"logit_bias\":{\"65\":-100},\"max_tokens\":4,\"frequency_penalty\":1,"
        "\"grammar\":\"root ::= [a-z]+\"}",
        "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{"
        "\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}}}}",
        "{\"content\":\"<|im_end|>\",\"add_special\":true,\"parse_special\":false}",
        "{\"tokens\":[104,195,169,257]}",
        "{\"input\":[\"a\",[1,2,3]],\"encoding_format\":\"base64\",\"user\":\"u\"}"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        use(good[i], strlen(good[i]), ctx);
}

const fuzz_target fuzz_api_targets[] = {{"api_body", NULL, seed_bodies, take_body}, {0}};

#else

const fuzz_target fuzz_api_targets[] = {{0}};

#endif
