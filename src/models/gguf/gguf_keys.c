/* gguf_keys.c: metadata common to all architectures in GGUF files.
 *
 * Keys are those of llama.cpp. Tokens without such a key, several EOS tokens above all, have keys of tarn's own,
 * which begin with "tarn.". */
#include "models/gguf/gguf_arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf.h"
#include "text/files/gguf_tokenizer.h"

#define BOS_KEY "tarn.begin_token_ids"
#define EOS_KEY "tarn.end_token_ids"
#define BOS_ID "tokenizer.ggml.bos_token_id"
#define EOS_ID "tokenizer.ggml.eos_token_id"
#define EOT_ID "tokenizer.ggml.eot_token_id" /* end of turn */

/* "llama" and "block_count" are "llama.block_count". */
const char *tarn__gguf_key_of(const char *architecture, const char *rest, tarn__gguf_path *to)
{
    snprintf(to->text, sizeof(to->text), "%s.%s", architecture, rest);
    return to->text;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool put_token(tarn_gguf_writer *writer, const char *key, int64_t value)
{
    return tarn_gguf_add_value(writer, key, TARN_GGUF_U32, &(uint32_t){(uint32_t)value});
}

bool tarn__gguf_put_int(tarn_gguf_writer *writer, const char *architecture, const char *rest, int64_t value)
{
    tarn__gguf_path to;
    return tarn_gguf_add_value(writer, tarn__gguf_key_of(architecture, rest, &to), TARN_GGUF_U32,
                               &(uint32_t){(uint32_t)value});
}

bool tarn__gguf_put_real(tarn_gguf_writer *writer, const char *architecture, const char *rest, double value)
{
    tarn__gguf_path to;
    return tarn_gguf_add_value(writer, tarn__gguf_key_of(architecture, rest, &to), TARN_GGUF_F32,
                               &(float){(float)value});
}

bool tarn__gguf_put_string(tarn_gguf_writer *writer, const char *key, const char *text)
{
    return tarn_gguf_add_string(writer, key, text, strlen(text));
}

tarn__gguf_bos_eos tarn__gguf_bos_eos_of(const tarn_lm_config *c)
{
    tarn__gguf_bos_eos tokens = {.has_bos = c->has_bos, .bos = c->bos, .eos_count = c->eos_count};
    memcpy(tokens.eos, c->eos, sizeof(tokens.eos));
    return tokens;
}

/* The standard keys belong to the tokenizer, if there is one, which may have other tokens than the configuration;
 * those of the configuration then get keys of tarn's own. A missing tokenizer must be declared: llama.cpp rejects
 * files that do not. */
bool tarn__gguf_put_bos_eos(const tarn__gguf_bos_eos *t, bool has_tokenizer, tarn_gguf_writer *writer)
{
    uint32_t begin = (uint32_t)t->bos, eos[TARN_MODEL_MAX_EOS] = {0};
    for (int i = 0; i < t->eos_count; i++)
        eos[i] = (uint32_t)t->eos[i];
    if (has_tokenizer)
        return tarn_gguf_add_array(writer, BOS_KEY, TARN_GGUF_U32, &begin, t->has_bos) &&
               tarn_gguf_add_array(writer, EOS_KEY, TARN_GGUF_U32, eos, t->eos_count);
    return tarn__gguf_put_string(writer, TARN__GGUF_TOKENIZER, TARN__GGUF_NO_TOKENIZER) &&
           (!t->has_bos || put_token(writer, BOS_ID, t->bos)) &&
           (!t->eos_count || put_token(writer, EOS_ID, t->eos[0])) &&
           (t->eos_count < 2 || tarn_gguf_add_array(writer, EOS_KEY, TARN_GGUF_U32, eos, t->eos_count));
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

bool tarn__gguf_unsupported(const tarn__gguf_reader *r, const char *what)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': %s is not supported", r->function, r->file->path, what);
}

bool tarn__gguf_has_key(const tarn__gguf_reader *r, const char *rest)
{
    tarn__gguf_path to;
    return tarn_gguf_has(r->file, tarn__gguf_key_of(r->architecture, rest, &to), NULL);
}

/* A default of 0 makes the key required. */
bool tarn__gguf_get_int(const tarn__gguf_reader *r, const char *rest, int64_t default_value, int64_t *value)
{
    tarn__gguf_path to;
    *value = default_value;
    tarn__gguf_key_of(r->architecture, rest, &to);
    if (default_value && !tarn_gguf_has(r->file, to.text, NULL))
        return !tarn_failed();
    return tarn_gguf_int(r->file, to.text, 1, TARN__GGUF_MAX_INT, value) || tarn__raise_within(r->function);
}

/* The shortest decimal number with the same f32 value: 1e-5 instead of its f32 approximation. */
static double shortest(double value)
{
    char text[32];
    for (int digits = 1; digits < 10; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if ((float)strtod(text, NULL) == (float)value)
            return strtod(text, NULL);
    }
    return value;
}

bool tarn__gguf_get_real(const tarn__gguf_reader *r, const char *rest, double default_value, double *value)
{
    tarn__gguf_path to;
    *value = default_value;
    tarn__gguf_key_of(r->architecture, rest, &to);
    if (default_value > 0 && !tarn_gguf_has(r->file, to.text, NULL))
        return !tarn_failed();
    if (!tarn_gguf_real(r->file, to.text, value))
        return tarn__raise_within(r->function);
    *value = shortest(*value);
    return (*value > 0 && isfinite(*value)) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%s' is %g; it must be a number above 0", r->function,
                       r->file->path, to.text, *value);
}

bool tarn__gguf_get_vocab(const tarn__gguf_reader *r, int64_t *vocab_size)
{
    tarn_gguf_entry table;
    int tokens = tarn_gguf_find(r->file, "token_embd.weight");
    if (tokens < 0 || !tarn_gguf_info(r->file, tokens, &table) || table.shape.rank != 2)
        return tarn__raise(
            TARN_ERROR_FORMAT,
            "%s: '%s' has no tensor 'token_embd.weight' of two axes; it must hold the weights of a model", r->function,
            r->file->path);
    return tarn__gguf_get_int(r, "vocab_size", table.shape.size[0], vocab_size) &&
           (*vocab_size == table.shape.size[0] ||
            tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': vocab_size is %lld, but 'token_embd.weight' has %lld rows",
                        r->function, r->file->path, (long long)*vocab_size, (long long)table.shape.size[0]));
}

/* Tokens under tarn's own key, or else under the standard keys; *count is 0 if there are none. */
static bool get_list(const tarn__gguf_reader *r, int64_t vocab_size, const char *ours, const char *const *others,
                     int64_t *list, int *count)
{
    tarn_gguf_value value;
    *count = 0;
    if (tarn_gguf_has(r->file, ours, &value)) {
        bool good = value.count <= TARN_MODEL_MAX_EOS && tarn_gguf_ints(r->file, ours, list, value.count);
        *count = good ? (int)value.count : 0;
        return good || tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%s' must be an array of at most %d tokens",
                                   r->function, r->file->path, ours, TARN_MODEL_MAX_EOS);
    }
    for (; *others; others++) {
        if (!tarn_gguf_has(r->file, *others, NULL))
            continue;
        if (!tarn_gguf_int(r->file, *others, 0, vocab_size - 1, &list[*count]))
            return tarn__raise_within(r->function);
        /* EOT is often EOS, and is listed once */
        *count += *count == 0 || list[0] != list[*count];
    }
    return !tarn_failed();
}

bool tarn__gguf_get_bos_eos(const tarn__gguf_reader *r, int64_t vocab_size, tarn__gguf_bos_eos *t)
{
    static const char *const bos_keys[] = {BOS_ID, NULL}, *const eos_keys[] = {EOS_ID, EOT_ID, NULL};
    int64_t bos[TARN_MODEL_MAX_EOS] = {0};
    int count;
    *t = (tarn__gguf_bos_eos){0};
    if (!get_list(r, vocab_size, BOS_KEY, bos_keys, bos, &count))
        return false;
    t->has_bos = count > 0;
    t->bos = bos[0];
    return get_list(r, vocab_size, EOS_KEY, eos_keys, t->eos, &t->eos_count);
}
