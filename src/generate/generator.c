/* generator.c: writers and their prompts. */
#include "generate/generator.h"

#include <string.h>

#include "base/memory.h"

/* ---- making one -------------------------------------------------------------------------------------------------- */

static tarn_generator *make(const char *function, tarn_module *model, const tarn_tokenizer *tokenizer,
                            const tarn_generator_options *o)
{
    tarn_generator *writer = tarn__alloc(sizeof(*writer));
    if (!writer)
        return NULL;
    writer->model = model;
    writer->tokenizer = tokenizer;
    writer->decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = o->sequences,
                                                                      .context = o->context,
                                                                      .kv_type = o->kv_type,
                                                                      .prefill_chunk = o->prefill_chunk,
                                                                      .no_capture = o->no_capture});
    if (writer->decoder) {
        writer->count = writer->decoder->batch;
        writer->sequence = tarn__alloc(sizeof(*writer->sequence) * (size_t)writer->count);
        writer->ids = tarn__alloc(sizeof(*writer->ids) * (size_t)writer->count);
        writer->parts = tarn__alloc(sizeof(*writer->parts) * (size_t)writer->count);
    }
    if (writer->decoder && writer->sequence && writer->ids && writer->parts)
        return writer;
    tarn_generator_free(writer);
    tarn__raise_within(function);
    return NULL;
}

static tarn_generator_options options_of(const tarn_generator_options *options, size_t size)
{
    tarn_generator_options o = {0};
    if (options)
        memcpy(&o, options, size < sizeof(o) ? size : sizeof(o));
    return o;
}

static bool check_sequences(const char *function, const tarn_generator_options *o)
{
    return (o->sequences >= 0 && o->sequences <= 65536) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .sequences is %lld; there may be from 1 to 65536 texts", function,
                       (long long)o->sequences);
}

tarn_generator *tarn_generator_new_sized(tarn_module *model, const tarn_tokenizer *tokenizer,
                                         const tarn_generator_options *options, size_t options_size)
{
    const char *function = "generator_new";
    tarn_generator_options o = options_of(options, options_size);
    if (tarn_failed() || !check_sequences(function, &o) || !tarn__arch_of(function, model))
        return NULL;
    return make(function, model, tokenizer, &o);
}

tarn_generator *tarn_generator_open_sized(const char *path, tarn_device device, const tarn_generator_options *options,
                                          size_t options_size)
{
    const char *function = "generator_open";
    tarn_generator_options o = options_of(options, options_size);
    if (tarn_failed() || !check_sequences(function, &o))
        return NULL;
    const tarn_model_open_options how = {.dtype = o.dtype, .device_layers = o.device_layers, .as_stored = o.as_stored};
    tarn_tokenizer *tokenizer = tarn_tokenizer_open(path);
    tarn_module *model = tokenizer ? tarn_model_open(path, device, &how) : NULL;
    tarn_generator *writer = model ? make(function, model, tokenizer, &o) : NULL;
    if (writer) {
        writer->own_model = model;
        writer->own_tokenizer = tokenizer;
        return writer;
    }
    if (!model)
        tarn__raise_within(function);
    tarn_module_free(model);
    tarn_tokenizer_free(tokenizer);
    return NULL;
}

/* What a prompt has set. */
static void close_prompt(tarn__sequence *s)
{
    tarn__sequence_end(s);
    tarn__release(s->stop, sizeof(*s->stop) * (size_t)s->options.stop_count);
    tarn_sampler_free(s->sampler);
    tarn_text_stream_free(s->stream);
    tarn__stop_buffer_close(&s->held);
    s->stop = NULL;
    s->sampler = NULL;
    s->stream = NULL;
    s->options = (tarn_generate_options){0};
}

void tarn_generator_free(tarn_generator *writer)
{
    if (!writer)
        return;
    for (int64_t i = 0; writer->sequence && i < writer->count; i++) {
        close_prompt(&writer->sequence[i]);
        tarn__release(writer->sequence[i].tokens, sizeof(int32_t) * (size_t)writer->sequence[i].capacity);
    }
    tarn__release(writer->sequence, sizeof(*writer->sequence) * (size_t)writer->count);
    tarn__release(writer->ids, sizeof(*writer->ids) * (size_t)writer->count);
    tarn__release(writer->parts, sizeof(*writer->parts) * (size_t)writer->count);
    tarn__generator_drop_prompt(writer);
    tarn_decoder_free(writer->decoder);
    tarn_module_free(writer->own_model);
    tarn_tokenizer_free(writer->own_tokenizer);
    tarn__release(writer, sizeof(*writer));
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static bool check_writer(const char *function, const tarn_generator *writer)
{
    if (tarn_failed())
        return false;
    return writer || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the writer is NULL", function);
}

static tarn__sequence *find(const char *function, const tarn_generator *writer, int64_t sequence)
{
    if (!check_writer(function, writer))
        return NULL;
    if (sequence >= 0 && sequence < writer->count)
        return &writer->sequence[sequence];
    tarn__raise(TARN_ERROR_ARGUMENT, "%s: there is no sequence %lld; there are %lld, from 0", function,
                (long long)sequence, (long long)writer->count);
    return NULL;
}

tarn_module *tarn_generator_model(const tarn_generator *writer)
{
    return check_writer("generator_model", writer) ? writer->model : NULL;
}

const tarn_tokenizer *tarn_generator_tokenizer(const tarn_generator *writer)
{
    return check_writer("generator_tokenizer", writer) ? writer->tokenizer : NULL;
}

const int32_t *tarn_generator_tokens(const tarn_generator *writer, int64_t sequence, int64_t *count)
{
    static const int32_t none;
    const tarn__sequence *s = find("generator_tokens", writer, sequence);
    if (!s)
        return NULL;
    if (!count) {
        tarn__raise(TARN_ERROR_ARGUMENT, "generator_tokens: there is no place for the count");
        return NULL;
    }
    *count = s->count;
    return s->tokens ? s->tokens : &none;
}

bool tarn_generator_stop(tarn_generator *writer, int64_t sequence)
{
    tarn__sequence *s = find("generator_stop", writer, sequence);
    if (!s)
        return false;
    tarn__sequence_end(s);
    return true;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static bool check_prompt(const tarn_generator *w, const int32_t *tokens, int64_t count, bool slides)
{
    const tarn__model_info *info = &w->decoder->info;
    int64_t capacity = w->decoder->cache.shape.capacity;
    if (!tokens || count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "the prompt %s; it must have at least one token",
                           tokens ? "is empty" : "is NULL");
    if (count >= capacity && !slides)
        return tarn__raise(TARN_ERROR_SHAPE, "a prompt of %lld tokens leaves no room in the context of %lld",
                           (long long)count, (long long)capacity);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= info->vocab_size)
            return tarn__raise(TARN_ERROR_ARGUMENT, "token %lld of the prompt is %d; the model's go from 0 to %lld",
                               (long long)i, (int)tokens[i], (long long)info->vocab_size - 1);
    return true;
}

static bool check_stop_texts(const tarn_generator *w, const tarn_generate_options *o)
{
    if (o->stop_string_count < 0 || (o->stop_string_count > 0 && !o->stop_strings))
        return tarn__raise(TARN_ERROR_ARGUMENT, ".stop_text_count is %d%s", o->stop_string_count,
                           o->stop_strings ? "" : ", but .stop_texts is NULL");
    if (o->stop_string_count > 0 && !w->tokenizer)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "there are stop texts, but no tokenizer; stop at tokens instead (.stop)");
    for (int i = 0; i < o->stop_string_count; i++)
        if (!o->stop_strings[i] || !o->stop_strings[i][0])
            return tarn__raise(TARN_ERROR_ARGUMENT, "stop text %d is %s", i, o->stop_strings[i] ? "empty" : "NULL");
    return true;
}

static bool check_options(const tarn_generator *w, int64_t count, const tarn_generate_options *o)
{
    int64_t capacity = w->decoder->cache.shape.capacity;
    if (o->max_tokens < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".max_tokens is %lld; it must be at least 0", (long long)o->max_tokens);
    if (o->keep > 0 && !o->slide)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".keep is %lld, which needs .slide", (long long)o->keep);
    if (o->keep < 0 || o->keep > (capacity - 1) / 2)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".keep is %lld; it must be from 0 to %lld, half of the context",
                           (long long)o->keep, (long long)((capacity - 1) / 2));
    if (o->slide && capacity < 2)
        return tarn__raise(TARN_ERROR_ARGUMENT, ".slide needs a context of at least 2 tokens, and it is %lld",
                           (long long)capacity);
    if (o->max_tokens > capacity - count && !o->slide)
        return tarn__raise(
            TARN_ERROR_SHAPE,
            "a prompt of %lld tokens and %lld more do not fit into the context of %lld; ask for %lld at most",
            (long long)count, (long long)o->max_tokens, (long long)capacity, (long long)(capacity - count));
    if (o->stop_count < 0 || (o->stop_count > 0 && !o->stop))
        return tarn__raise(TARN_ERROR_ARGUMENT, ".stop_count is %d%s", o->stop_count,
                           o->stop ? "" : ", but .stop is NULL");
    if (o->top_logprobs < 0 || o->top_logprobs > TARN__MAX_TOP_LOGPROBS ||
        o->top_logprobs > w->decoder->info.vocab_size)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            ".likeliest is %d; it must be from 0 to %d, and no more than the %lld tokens of the vocabulary",
            o->top_logprobs, TARN__MAX_TOP_LOGPROBS, (long long)w->decoder->info.vocab_size);
    return check_stop_texts(w, o);
}

/* What the prompt's options need; the old ones are gone. */
static bool open_prompt(const tarn_generator *w, tarn__sequence *s, const tarn_generate_options *o, int64_t most)
{
    close_prompt(s);
    s->made = 0;
    s->slid = false;
    s->most = o->max_tokens ? o->max_tokens : most;
    s->sampler = tarn_sampler_new(&(tarn_sampler_options){.temperature = o->temperature,
                                                          .top_k = o->top_k,
                                                          .top_p = o->top_p,
                                                          .seed = o->seed,
                                                          .min_p = o->min_p,
                                                          .repeat_penalty = o->repeat_penalty,
                                                          .repeat_last_n = o->repeat_last_n});
    if (w->tokenizer)
        s->stream = tarn_text_stream_new(w->tokenizer, &(tarn_stream_options){.continues = true});
    if (tarn_failed() || !tarn__stop_buffer_open(&s->held, o->stop_strings, o->stop_string_count))
        return false;
    if (o->stop_count > 0 && !(s->stop = tarn__alloc(sizeof(*s->stop) * (size_t)o->stop_count)))
        return false;
    s->options = *o;
    if (o->stop_count > 0)
        memcpy(s->stop, o->stop, sizeof(*s->stop) * (size_t)o->stop_count);
    return true;
}

/* How many tokens the decoder has seen that the new text has too; at least one is left to feed. */
static int64_t shared(const tarn__sequence *s, int64_t seen, const int32_t *tokens, int64_t count)
{
    int64_t same = 0, most = seen < count - 1 ? seen : count - 1;
    most = s->count < most ? s->count : most;
    while (same < most && s->tokens[same] == tokens[same])
        same++;
    return same;
}

void tarn__generator_drop_prompt(tarn_generator *w)
{
    tarn_free(w->fed.logits);
    w->fed = (tarn__computed_prompt){0};
}

/* True when the last prompt that was computed is this one, and its sequence still has it. */
static bool is_fed(const tarn_generator *w, const int32_t *tokens, int64_t count)
{
    const tarn__computed_prompt *fed = &w->fed;
    return fed->logits && fed->count == count && w->decoder->cache.length[fed->sequence] >= count &&
           memcmp(w->sequence[fed->sequence].tokens, tokens, sizeof(*tokens) * (size_t)count) == 0;
}

/* Logits of what follows the prompt `all`, of which the sequence has the first `same` tokens; they are remembered. */
static tarn_tensor *feed(tarn_generator *w, int64_t sequence, tarn_tensor *all, int64_t same)
{
    int64_t count = tarn_size(all, 1);
    tarn_tensor *logits = tarn_decoder_feed_one(w->decoder, sequence, tarn_slice(all, 1, same, count));
    if (logits && w->count > 1)
        w->fed = (tarn__computed_prompt){tarn__scope_take(logits), sequence, count};
    return logits;
}

/* Lets the decoder see the text, and draws what follows. A prompt that another sequence has just had is taken from
 * there. */
static bool begin(tarn_generator *w, int64_t sequence, const int32_t *tokens, int64_t count)
{
    tarn__sequence *s = &w->sequence[sequence];
    int64_t same = shared(s, w->decoder->cache.length[sequence], tokens, count);
    bool is_copy = is_fed(w, tokens, count);
    if (!is_copy)
        tarn__generator_drop_prompt(w);
    if (!(is_copy ? tarn__kv_cache_copy_prefix(&w->decoder->cache, w->fed.sequence, sequence, count)
                  : tarn_decoder_rewind_one(w->decoder, sequence, same)))
        return false;
    s->count = 0;
    for (int64_t i = 0; i < count; i++)
        if (!tarn__sequence_add(s, tokens[i]))
            return false;
    tarn_tensor *all = tarn_from_i32(tokens, TARN_SHAPE(1, count), w->decoder->info.device);
    if (!all || (s->options.repeat_penalty != 0 && !tarn_sampler_accept(s->sampler, all)))
        return false;
    tarn_tensor *logits = is_copy ? w->fed.logits : feed(w, sequence, all, same);
    s->is_active = logits && tarn__sequence_sample(s, logits);
    return s->is_active;
}

/* A prompt that leaves room for a token, and its options. */
static bool set_prompt(tarn_generator *w, int64_t sequence, const int32_t *tokens, int64_t count,
                       const tarn_generate_options *o)
{
    tarn__sequence *s = &w->sequence[sequence];
    tarn__sequence_end(s);
    if (tarn__generator_has_output(w))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "another text's piece of this step is not taken yet; call tarn_generator_next() first");
    if (w->is_read && !tarn__generator_step(w)) /* so that all texts stand at a token that was drawn and not read */
        return false;
    tarn_scope *scope = tarn_scope_open();
    bool good =
        scope && open_prompt(w, s, o, w->decoder->cache.shape.capacity - count) && begin(w, sequence, tokens, count);
    tarn_scope_close(scope);
    if (good)
        return true;
    int64_t seen = w->decoder->cache.length[sequence];
    s->count = seen < s->count ? seen : s->count;
    close_prompt(s);
    return false;
}

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

static tarn_generate_options generate_options_of(const tarn_generate_options *options, size_t size)
{
    tarn_generate_options o = {0};
    if (options)
        memcpy(&o, options, size < sizeof(o) ? size : sizeof(o));
    return o;
}

bool tarn_generator_prompt_sized(tarn_generator *writer, int64_t sequence, const int32_t *tokens, int64_t count,
                                 const tarn_generate_options *options, size_t options_size)
{
    const char *function = "generator_prompt";
    tarn_generate_options o = generate_options_of(options, options_size);
    return find(function, writer, sequence) &&
           (tarn__generator_prompt(writer, sequence, tokens, count, &o) || tarn__raise_within(function));
}

bool tarn_generator_prompt_text_sized(tarn_generator *writer, int64_t sequence, const char *text, size_t length,
                                      const tarn_generate_options *options, size_t options_size)
{
    const char *function = "generator_prompt_text";
    tarn_generate_options o = generate_options_of(options, options_size);
    int64_t count = 0;
    if (!find(function, writer, sequence))
        return false;
    if (!text || !writer->tokenizer)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           text ? "the writer has no tokenizer" : "the text is NULL");
    int32_t *tokens =
        tarn_tokenizer_encode(writer->tokenizer, text, length, &(tarn_encode_options){.add_special = true}, &count);
    if (!tokens)
        return tarn__raise_within(function);
    bool good = tarn__generator_prompt(writer, sequence, tokens, count, &o);
    tarn_tokenizer_release(tokens);
    return good || tarn__raise_within(function);
}
