/* generator.c: generators: creation, prompts and sequences. The steps are in generator_step.c. */
#include "generate/generator.h"

#include <string.h>

#include "base/memory.h"

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static tarn_generator *create(const char *function, tarn_module *model, const tarn_tokenizer *tokenizer,
                              const tarn_generator_options *o)
{
    tarn_generator *generator = tarn__alloc(sizeof(*generator));
    if (!generator)
        return NULL;
    generator->model = model;
    generator->tokenizer = tokenizer;
    generator->decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = o->sequences,
                                                                         .context = o->context,
                                                                         .kv_type = o->kv_type,
                                                                         .prefill_chunk = o->prefill_chunk,
                                                                         .no_capture = o->no_capture});
    if (generator->decoder) {
        generator->count = generator->decoder->batch;
        generator->sequence = tarn__alloc(sizeof(*generator->sequence) * (size_t)generator->count);
        generator->ids = tarn__alloc(sizeof(*generator->ids) * (size_t)generator->count);
        generator->parts = tarn__alloc(sizeof(*generator->parts) * (size_t)generator->count);
    }
    if (generator->decoder && generator->sequence && generator->ids && generator->parts &&
        tarn__speculation_open(&generator->speculation, generator->decoder, tokenizer, o))
        return generator;
    tarn_generator_free(generator);
    tarn__raise_within(function);
    return NULL;
}

/* Copies the caller's options: fields that an older header lacks are zero. */
static tarn_generator_options options_of(const tarn_generator_options *options, size_t size)
{
    tarn_generator_options o = {0};
    if (options)
        memcpy(&o, options, size < sizeof(o) ? size : sizeof(o));
    return o;
}

/* Raises an invalid number of sequences. */
static bool check_sequences(const char *function, const tarn_generator_options *o)
{
    return (o->sequences >= 0 && o->sequences <= 65536) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .sequences is %lld; it must be from 1 to 65536", function,
                       (long long)o->sequences);
}

tarn_generator *tarn_generator_new_sized(tarn_module *model, const tarn_tokenizer *tokenizer,
                                         const tarn_generator_options *options, size_t options_size)
{
    const char *function = "generator_new";
    tarn_generator_options o = options_of(options, options_size);
    if (tarn_failed() || !check_sequences(function, &o) || !tarn__arch_of(function, model))
        return NULL;
    return create(function, model, tokenizer, &o);
}

/* Opens the tokenizer first: a missing one fails before the weights are read. */
tarn_generator *tarn_generator_open_sized(const char *path, tarn_device device, const tarn_generator_options *options,
                                          size_t options_size)
{
    const char *function = "generator_open";
    tarn_generator_options o = options_of(options, options_size);
    if (tarn_failed() || !check_sequences(function, &o))
        return NULL;
    const tarn_model_open_options how = {
        .dtype = o.dtype, .device_layers = o.device_layers, .as_stored = o.as_stored, .split = o.split};
    tarn_tokenizer *tokenizer = tarn_tokenizer_open(path);
    tarn_module *model = tokenizer ? tarn_model_open(path, device, &how) : NULL;
    tarn_generator *generator = model ? create(function, model, tokenizer, &o) : NULL;
    if (generator) {
        generator->own_model = model;
        generator->own_tokenizer = tokenizer;
        return generator;
    }
    if (!model)
        tarn__raise_within(function);
    tarn_module_free(model);
    tarn_tokenizer_free(tokenizer);
    return NULL;
}

/* Releases the state of the last prompt. */
static void close_prompt(tarn__sequence *s)
{
    tarn__sequence_end(s);
    tarn_sampler_free(s->sampler);
    tarn__constraint_close(&s->constraint);
    tarn_text_stream_free(s->stream);
    tarn__stop_buffer_close(&s->stop_buffer);
    s->sampler = NULL;
    s->stream = NULL;
    s->options = (tarn_generate_options){0};
}

void tarn_generator_free(tarn_generator *generator)
{
    if (!generator)
        return;
    for (int64_t i = 0; generator->sequence && i < generator->count; i++) {
        close_prompt(&generator->sequence[i]);
        tarn__release(generator->sequence[i].tokens, sizeof(int32_t) * generator->sequence[i].capacity);
    }
    tarn__release(generator->sequence, sizeof(*generator->sequence) * (size_t)generator->count);
    tarn__release(generator->ids, sizeof(*generator->ids) * (size_t)generator->count);
    tarn__release(generator->parts, sizeof(*generator->parts) * (size_t)generator->count);
    tarn__generator_drop_prompt(generator);
    tarn__speculation_close(&generator->speculation);
    tarn_decoder_free(generator->decoder);
    tarn_module_free(generator->own_model);
    tarn_tokenizer_free(generator->own_tokenizer);
    tarn__release(generator, sizeof(*generator));
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */

#define FIRST_CAPACITY 256

bool tarn__sequence_add(tarn__sequence *s, int32_t token)
{
    if (!tarn__array_reserve(&s->tokens, (size_t)s->count, &s->capacity, 1, sizeof(*s->tokens), FIRST_CAPACITY))
        return false;
    s->tokens[s->count++] = token;
    return true;
}

void tarn__sequence_end(tarn__sequence *s)
{
    tarn_free(s->sampled);
    tarn_free(s->logprobs);
    s->sampled = s->logprobs = NULL;
    s->is_active = false;
}

/* Nothing is read here: token and log probabilities stay on the device until the caller asks for the output. */
bool tarn__sequence_sample(tarn__sequence *s, tarn_tensor *logits)
{
    tarn_tensor *logprobs = NULL, *sampled = NULL;
    if (tarn__constraint_mask(&s->constraint, s->sampler))
        sampled = tarn_sampler_sample(s->sampler, logits);
    if (!sampled)
        return false;
    if (s->options.logprobs || s->options.top_logprobs) { /* clamped: a token of -1 is reported when it is read */
        logprobs = tarn_token_logprobs(logits, tarn_maximum(sampled, tarn_scalar(0)), s->options.top_logprobs);
        if (!logprobs)
            return false;
    }
    s->sampled = tarn__scope_take(sampled);
    s->logprobs = logprobs ? tarn__scope_take(logprobs) : NULL;
    return !tarn_failed();
}

/* ---- queries ------------------------------------------------------------------------------------------------------
 */

/* Raises if the generator is NULL. */
static bool check_generator(const char *function, const tarn_generator *generator)
{
    if (tarn_failed())
        return false;
    return generator || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the generator is NULL", function);
}

/* The sequence of a number, or NULL with an error. */
static tarn__sequence *find(const char *function, const tarn_generator *generator, int64_t sequence)
{
    if (!check_generator(function, generator))
        return NULL;
    if (sequence >= 0 && sequence < generator->count)
        return &generator->sequence[sequence];
    tarn__raise(TARN_ERROR_ARGUMENT, "%s: sequence is %lld; it must be from 0 to %lld", function, (long long)sequence,
                (long long)generator->count - 1);
    return NULL;
}

tarn_module *tarn_generator_model(const tarn_generator *generator)
{
    return check_generator("generator_model", generator) ? generator->model : NULL;
}

const tarn_tokenizer *tarn_generator_tokenizer(const tarn_generator *generator)
{
    return check_generator("generator_tokenizer", generator) ? generator->tokenizer : NULL;
}

const int32_t *tarn_generator_tokens(const tarn_generator *generator, int64_t sequence, int64_t *count)
{
    static const int32_t none;
    const tarn__sequence *s = find("generator_tokens", generator, sequence);
    if (!s)
        return NULL;
    if (!count) {
        tarn__raise(TARN_ERROR_ARGUMENT, "generator_tokens: count is NULL");
        return NULL;
    }
    *count = s->count;
    return s->tokens ? s->tokens : &none;
}

bool tarn_generator_stop(tarn_generator *generator, int64_t sequence)
{
    tarn__sequence *s = find("generator_stop", generator, sequence);
    if (!s || !tarn__speculation_drop(&generator->speculation, generator->decoder, s->count - 1))
        return false;
    tarn__sequence_end(s);
    return true;
}

bool tarn_generator_query_sized(const tarn_generator *generator, tarn_generator_stats *stats, size_t stats_size)
{
    const char *function = "generator_query";
    if (!check_generator(function, generator))
        return false;
    if (!stats)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: stats is NULL", function);
    const tarn_generator_stats *found = &generator->speculation.stats;
    memset(stats, 0, stats_size);
    memcpy(stats, found, stats_size < sizeof(*found) ? stats_size : sizeof(*found));
    return true;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* Raises an empty prompt, one that fills the context, and tokens outside the vocabulary. */
static bool check_prompt(const tarn_generator *w, const int32_t *tokens, int64_t count, bool slides)
{
    const tarn__model_info *info = &w->decoder->info;
    int64_t capacity = w->decoder->cache.shape.capacity;
    if (!tokens || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "the prompt %s; it must have at least one token",
                           tokens ? "is empty" : "is NULL");
    if (count >= capacity && !slides)
        return tarn__raise(TARN_ERROR_SHAPE, "the prompt has %lld tokens; it must be shorter than the context of %lld",
                           (long long)count, (long long)capacity);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= info->vocab_size)
            return tarn__raise(TARN_ERROR_ARGUMENT, "token %lld of the prompt is %d; it must be from 0 to %lld",
                               (long long)i, (int)tokens[i], (long long)info->vocab_size - 1);
    return true;
}

/* Raises options that are invalid for this generator and a prompt of `count` tokens; the caller adds the function's
 * name. */
static bool check_options(const tarn_generator *w, int64_t count, const tarn_generate_options *o)
{
    int64_t capacity = w->decoder->cache.shape.capacity;
    if (o->max_tokens < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".max_tokens is %lld; it must be at least 0", (long long)o->max_tokens);
    if (o->keep > 0 && !o->slide)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".keep is %lld; it needs .slide", (long long)o->keep);
    if (o->keep < 0 || o->keep > (capacity - 1) / 2)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".keep is %lld; it must be from 0 to %lld, half of the context",
                           (long long)o->keep, (long long)((capacity - 1) / 2));
    if (o->slide && capacity < 2)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".slide needs a context of at least 2 tokens; it is %lld",
                           (long long)capacity);
    if (o->max_tokens > capacity - count && !o->slide)
        return tarn__raise(
            TARN_ERROR_SHAPE,
            "a prompt of %lld tokens and %lld new ones exceed the context of %lld; .max_tokens must be at most %lld",
            (long long)count, (long long)o->max_tokens, (long long)capacity, (long long)(capacity - count));
    const char *of_engines = o->prompt_logprobs ? "prompt_logprobs"
                             : o->prompt_only   ? "prompt_only"
                             : o->cache_salt    ? "cache_salt"
                             : o->adapter       ? "adapter"
                                                : NULL;
    if (of_engines)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, ".%s is for engines only", of_engines);
    return tarn__speculation_check(&w->speculation, w->decoder, o) &&
           tarn__generate_options_check(o, &w->decoder->info, w->tokenizer);
}

/* Replaces the state of the last prompt by that of the new options. */
static bool open_prompt(const tarn_generator *w, tarn__sequence *s, const tarn_generate_options *o, int64_t most)
{
    close_prompt(s);
    s->generated = 0;
    s->slid = false;
    s->most = o->max_tokens ? o->max_tokens : most;
    tarn_sampler_options sampler = tarn__sampler_options_of(o);
    s->sampler = tarn_sampler_new(&sampler);
    if (w->tokenizer)
        s->stream = tarn_text_stream_new(w->tokenizer, &(tarn_stream_options){.continues = true});
    if (tarn_failed() || !tarn__stop_buffer_open(&s->stop_buffer, o->stop_strings, o->stop_string_count))
        return false;
    s->options = *o;
    return tarn__constraint_open(&s->constraint, &w->decoder->info, o, 1);
}

/* Number of leading tokens that the cache and the new prompt share; at least one token is left to feed. */
static int64_t common_prefix(const tarn__sequence *s, int64_t seen, const int32_t *tokens, int64_t count)
{
    int64_t same = 0, most = seen < count - 1 ? seen : count - 1;
    most = s->count < most ? s->count : most;
    while (same < most && s->tokens[same] == tokens[same])
        same++;
    return same;
}

void tarn__generator_drop_prompt(tarn_generator *w)
{
    tarn_free(w->computed.logits);
    w->computed = (tarn__computed_prompt){0};
}

/* True if the last computed prompt is this one, and its sequence still has it. */
static bool is_computed(const tarn_generator *w, const int32_t *tokens, int64_t count)
{
    const tarn__computed_prompt *computed = &w->computed;
    return computed->logits && computed->count == count && w->decoder->cache.length[computed->sequence] >= count &&
           memcmp(w->sequence[computed->sequence].tokens, tokens, sizeof(*tokens) * (size_t)count) == 0;
}

/* Logits after the prompt `all`, of which the sequence has the first `same` tokens. Kept for other sequences with
 * the same prompt. */
static tarn_tensor *feed(tarn_generator *w, int64_t sequence, tarn_tensor *all, int64_t same)
{
    int64_t count = tarn_size(all, 1);
    tarn_tensor *logits = tarn_decoder_feed_one(w->decoder, sequence, tarn_slice(all, 1, same, count));
    if (logits && w->count > 1)
        w->computed = (tarn__computed_prompt){tarn__scope_take(logits), sequence, count};
    return logits;
}

/* Brings the KV cache to the prompt and samples the next token. A prompt just computed for another sequence is
 * copied from there. */
static bool start(tarn_generator *w, int64_t sequence, const int32_t *tokens, int64_t count)
{
    tarn__sequence *s = &w->sequence[sequence];
    int64_t same = common_prefix(s, w->decoder->cache.length[sequence], tokens, count);
    same = tarn__longrope_reusable(w, sequence, same, count);
    bool is_copy = is_computed(w, tokens, count);
    if (!is_copy)
        tarn__generator_drop_prompt(w);
    if (!(is_copy ? tarn__kv_cache_copy_prefix(&w->decoder->cache, w->computed.sequence, sequence, count)
                  : tarn_decoder_rewind_one(w->decoder, sequence, same)))
        return false;
    s->count = 0;
    for (int64_t i = 0; i < count; i++)
        if (!tarn__sequence_add(s, tokens[i]))
            return false;
    tarn_tensor *all = tarn_from_i32(tokens, TARN_SHAPE(1, count), w->decoder->info.device);
    if (!all || !tarn__speculation_begin(&w->speculation, s) ||
        (s->options.repeat_penalty != 0 && !tarn_sampler_accept(s->sampler, all)))
        return false;
    tarn_tensor *logits = is_copy ? w->computed.logits : feed(w, sequence, all, same);
    s->is_active = logits && tarn__sequence_sample(s, logits);
    return s->is_active;
}

/* Sets a prompt that leaves capacity for a token. On failure the sequence keeps the tokens that are in the cache. */
static bool set_prompt(tarn_generator *w, int64_t sequence, const int32_t *tokens, int64_t count,
                       const tarn_generate_options *o)
{
    tarn__sequence *s = &w->sequence[sequence];
    if (!tarn__speculation_drop(&w->speculation, w->decoder, s->count - 1))
        return false;
    tarn__sequence_end(s);
    if (tarn__generator_has_output(w))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "an output of another sequence is pending; call tarn_generator_next() first");
    if (w->is_on_host &&
        !tarn__generator_step(w)) /* so that all active sequences have a sampled token that is not read yet */
        return false;
    tarn_scope *scope = tarn_scope_open();
    bool good =
        scope && open_prompt(w, s, o, w->decoder->cache.shape.capacity - count) && start(w, sequence, tokens, count);
    tarn_scope_close(scope);
    if (good)
        return true;
    int64_t seen = w->decoder->cache.length[sequence];
    s->count = seen < s->count ? seen : s->count;
    close_prompt(s);
    return false;
}

/* `keep` is resolved here once and stored with the options, so that later slides keep the same tokens. A prompt
 * longer than the context is truncated to the window; the sequence then reports that it slid. */
bool tarn__generator_prompt(tarn_generator *w, int64_t sequence, const int32_t *tokens, int64_t count,
                            const tarn_generate_options *o)
{
    tarn_generate_options own = *o;
    bool is_long = count >= w->decoder->cache.shape.capacity;
    if (!check_prompt(w, tokens, count, o->slide) || !check_options(w, count, o))
        return false;
    own.keep = o->slide ? tarn__slide_keep(w, o, tokens) : 0;
    int32_t *last = is_long ? tarn__slide_prompt(w, &own, tokens, &count) : NULL;
    bool good = (last || !is_long) && set_prompt(w, sequence, last ? last : tokens, count, &own);
    if (last)
        tarn__release(last, sizeof(*last) * (size_t)count);
    w->sequence[sequence].slid = good && is_long;
    return good;
}

bool tarn_generator_prompt_sized(tarn_generator *generator, int64_t sequence, const int32_t *tokens, int64_t count,
                                 const tarn_generate_options *options, size_t options_size)
{
    const char *function = "generator_prompt";
    tarn_generate_options o = tarn__generate_options_of(options, options_size);
    return find(function, generator, sequence) &&
           (tarn__generator_prompt(generator, sequence, tokens, count, &o) || tarn__raise_within(function));
}

bool tarn_generator_prompt_text_sized(tarn_generator *generator, int64_t sequence, const char *text, size_t length,
                                      const tarn_generate_options *options, size_t options_size)
{
    const char *function = "generator_prompt_text";
    tarn_generate_options o = tarn__generate_options_of(options, options_size);
    int64_t count = 0;
    if (!find(function, generator, sequence))
        return false;
    if (!text || !generator->tokenizer)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           text ? "the generator has no tokenizer" : "the text is NULL");
    int32_t *tokens =
        tarn_tokenizer_encode(generator->tokenizer, text, length, &(tarn_encode_options){.add_special = true}, &count);
    if (!tokens)
        return tarn__raise_within(function);
    bool good = tarn__generator_prompt(generator, sequence, tokens, count, &o);
    tarn_tokenizer_release(tokens);
    return good || tarn__raise_within(function);
}
