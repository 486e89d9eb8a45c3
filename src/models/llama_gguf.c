/* llama_gguf.c: the Llama family in GGUF files: the model's configuration as metadata, and opening one. What tensors are called is in llama_names.c.
 *
 * Keys are those that llama.cpp reads. What they cannot say stands under keys of our own, which begin with "tarn.": the family where it is Mistral, the numbers of
 * llama3's scaling (others see only the factors that follow from them), and all tokens that end a text. */
#include "models/llama_gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf.h"
#include "models/llama.h"
#include "models/rows.h"
#include "text/gguf_tokenizer.h"

#define LARGEST INT32_MAX
#define FAMILY "tarn.family"
#define SCALING "tarn.rope.llama3" /* factor, low, high, original context */
#define BEGINS "tarn.begin_token_ids"
#define ENDS "tarn.end_token_ids"
#define BEGIN_ID "tokenizer.ggml.bos_token_id"
#define END_ID "tokenizer.ggml.eos_token_id"
#define TURN_ID "tokenizer.ggml.eot_token_id" /* ends what is said in a conversation */

/* ---- writing metadata ------------------------------------------------------------------------------------------------------ */

typedef struct key {
    char text[96];
} path_key;

/* "llama.block_count" */
static const char *key_of(const char *architecture, const char *rest, path_key *to)
{
    snprintf(to->text, sizeof(to->text), "%s.%s", architecture, rest);
    return to->text;
}

static bool put_whole(tarn_gguf_writer *writer, const char *key, int64_t value)
{
    return tarn_gguf_add_value(writer, key, TARN_GGUF_U32, &(uint32_t){(uint32_t)value});
}

static bool put_real(tarn_gguf_writer *writer, const char *key, double value)
{
    return tarn_gguf_add_value(writer, key, TARN_GGUF_F32, &(float){(float)value});
}

static bool put_text(tarn_gguf_writer *writer, const char *key, const char *text)
{
    return tarn_gguf_add_text(writer, key, text, strlen(text));
}

/* What llama3's scaling divides the frequency of a pair by. */
static double factor_at(const tarn_llama_config *c, int64_t pair)
{
    double wavelength = 2 * 3.14159265358979323846 * pow(c->rope_theta, 2 * (double)pair / (double)c->head_width);
    double turns = (double)c->rope_context / wavelength; /* in the context that it was trained on */
    double share = (turns - c->rope_low) / (c->rope_high - c->rope_low);
    return share >= 1 ? 1 : share <= 0 ? c->rope_factor : 1 / ((1 - share) / c->rope_factor + share);
}

static bool put_llama3(const tarn_llama_config *c, tarn_gguf_writer *writer)
{
    const double numbers[] = {c->rope_factor, c->rope_low, c->rope_high, (double)c->rope_context};
    float factors[256]; /* heads have at most 512 elements */
    int64_t pairs = c->head_width / 2;
    for (int64_t i = 0; i < pairs; i++)
        factors[i] = (float)factor_at(c, i);
    tarn_tensor *tensor = tarn_from_f32(factors, TARN_SHAPE(pairs), tarn_device_cpu());
    return tarn_gguf_add_list(writer, SCALING, TARN_GGUF_F64, numbers, 4) && tensor &&
           tarn_gguf_add(writer, TARN__GGUF_FREQUENCIES, tensor);
}

static bool put_rope(const tarn_llama_config *c, const char *a, tarn_gguf_writer *writer)
{
    path_key to;
    if (!put_real(writer, key_of(a, "rope.freq_base", &to), c->rope_theta) ||
        !put_whole(writer, key_of(a, "rope.dimension_count", &to), c->head_width))
        return false;
    if (c->rope_scaling == TARN_ROPE_LINEAR)
        return put_text(writer, key_of(a, "rope.scaling.type", &to), "linear") &&
               put_real(writer, key_of(a, "rope.scaling.factor", &to), c->rope_factor);
    return c->rope_scaling == TARN_ROPE_PLAIN || put_llama3(c, writer);
}

/* The tokens that begin and end texts. The keys for them are the tokenizer's, where there is one, and it may know of others than the configuration, which stand
 * under keys of our own then. That there is none must be said: llama.cpp refuses files that do not. */
static bool put_ends(const tarn_llama_config *c, bool has_tokenizer, tarn_gguf_writer *writer)
{
    uint32_t begin = (uint32_t)c->begin, ends[TARN_MODEL_ENDS] = {(uint32_t)c->end};
    int count = c->has_end ? 1 + c->also_end_count : 0;
    for (int i = 1; i < count; i++)
        ends[i] = (uint32_t)c->also_end[i - 1];
    if (has_tokenizer)
        return tarn_gguf_add_list(writer, BEGINS, TARN_GGUF_U32, &begin, c->has_begin) &&
               tarn_gguf_add_list(writer, ENDS, TARN_GGUF_U32, ends, count);
    return put_text(writer, TARN__GGUF_TOKENIZER, TARN__GGUF_NO_TOKENIZER) && (!c->has_begin || put_whole(writer, BEGIN_ID, c->begin)) &&
           (!c->has_end || put_whole(writer, END_ID, c->end)) &&
           (count < 2 || tarn_gguf_add_list(writer, ENDS, TARN_GGUF_U32, ends, count));
}

bool tarn__llama_put_metadata(const tarn_llama_config *c, bool has_tokenizer, tarn_gguf_writer *writer)
{
    const char *a = tarn__llama_architecture(c->family);
    const struct {
        const char *rest;
        int64_t value;
    } wholes[] = {{"vocab_size", c->vocab},
                  {"context_length", c->context},
                  {"embedding_length", c->width},
                  {"block_count", c->layers},
                  {"feed_forward_length", c->inner},
                  {"attention.head_count", c->heads},
                  {"attention.head_count_kv", c->kv_heads},
                  {"attention.key_length", c->head_width},
                  {"attention.value_length", c->head_width}};
    path_key to;
    bool good = put_text(writer, "general.architecture", a) && (strcmp(a, c->family) == 0 || put_text(writer, FAMILY, c->family));
    for (size_t i = 0; good && i < sizeof(wholes) / sizeof(wholes[0]); i++)
        good = put_whole(writer, key_of(a, wholes[i].rest, &to), wholes[i].value);
    return good && put_real(writer, key_of(a, "attention.layer_norm_rms_epsilon", &to), c->epsilon) && put_rope(c, a, writer) &&
           put_ends(c, has_tokenizer, writer);
}

/* ---- reading metadata ------------------------------------------------------------------------------------------------------ */

typedef struct reading {
    const char *function, *architecture;
    const tarn_gguf *file;
    tarn_llama_config *c;
} reading;

/* Raises that a file asks for what tarn does not compute. Is false. */
static bool refuse(const reading *r, const char *what)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': %s is not supported", r->function, r->file->path, what);
}

/* A whole number from 1, or `otherwise` where the key is missing; 0: it must be there. */
static bool get_whole(const reading *r, const char *rest, int64_t otherwise, int64_t *value)
{
    path_key to;
    *value = otherwise;
    key_of(r->architecture, rest, &to);
    if (otherwise && !tarn_gguf_has(r->file, to.text, NULL))
        return !tarn_failed();
    return tarn_gguf_whole(r->file, to.text, 1, LARGEST, value) || tarn__raise_within(r->function);
}

/* The shortest decimal number that is the same f32: 1e-5, and not what f32 makes of it. */
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

static bool get_real(const reading *r, const char *rest, double otherwise, double *value)
{
    path_key to;
    *value = otherwise;
    key_of(r->architecture, rest, &to);
    if (otherwise > 0 && !tarn_gguf_has(r->file, to.text, NULL))
        return !tarn_failed();
    if (!tarn_gguf_real(r->file, to.text, value))
        return tarn__raise_within(r->function);
    *value = shortest(*value);
    return (*value > 0 && isfinite(*value)) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%s' is %g; it must be a number above 0", r->function, r->file->path, to.text, *value);
}

static bool has(const reading *r, const char *rest)
{
    path_key to;
    return tarn_gguf_has(r->file, key_of(r->architecture, rest, &to), NULL);
}

static bool get_sizes(const reading *r)
{
    tarn_llama_config *c = r->c;
    tarn_gguf_entry table;
    int64_t values = 0, turned = 0, tokens = tarn_gguf_find(r->file, "token_embd.weight");
    if (!get_whole(r, "context_length", 0, &c->context) || !get_whole(r, "embedding_length", 0, &c->width) ||
        !get_whole(r, "block_count", 0, &c->layers) || !get_whole(r, "feed_forward_length", 0, &c->inner) ||
        !get_whole(r, "attention.head_count", 0, &c->heads) || !get_whole(r, "attention.head_count_kv", c->heads, &c->kv_heads) ||
        !get_whole(r, "attention.key_length", c->width / c->heads, &c->head_width) ||
        !get_whole(r, "attention.value_length", c->head_width, &values) || !get_whole(r, "rope.dimension_count", c->head_width, &turned) ||
        !get_real(r, "attention.layer_norm_rms_epsilon", 0, &c->epsilon))
        return false;
    if (values != c->head_width || turned != c->head_width)
        return refuse(r, values != c->head_width ? "a head whose values are of another width than its keys"
                                                 : "a part of the head that is not turned");
    if (tokens < 0 || !tarn_gguf_info(r->file, (int)tokens, &table) || table.shape.rank != 2)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no tensor 'token_embd.weight' of two axes: it holds no weights", r->function,
                           r->file->path);
    return get_whole(r, "vocab_size", table.shape.size[0], &c->vocab) &&
           (c->vocab == table.shape.size[0] ||
            tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': vocab_size is %lld, but 'token_embd.weight' has %lld rows", r->function,
                        r->file->path, (long long)c->vocab, (long long)table.shape.size[0]));
}

/* True when a tensor holds the factors that follow from the configuration's numbers. */
static bool are_factors(const tarn_llama_config *c, const float *factors, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++)
        if (!(fabs(factor_at(c, i) - (double)factors[i]) <= 1e-4 * fabs((double)factors[i])))
            return false;
    return true;
}

/* Other programs leave factors alone: of Llama 3's models all numbers are known but the first. */
static bool get_llama3(const reading *r, int index)
{
    tarn_llama_config *c = r->c;
    tarn_gguf_entry entry;
    double numbers[4] = {0, 1, 4, 8192};
    float factors[256];
    if (!tarn_gguf_info(r->file, index, &entry))
        return false;
    int64_t pairs = entry.shape.size[0];
    if (entry.dtype != TARN_F32 || entry.shape.rank != 1 || pairs * 2 != c->head_width || pairs > 256)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': tensor '" TARN__GGUF_FREQUENCIES "' is not one f32 for each pair of a head",
                           r->function, r->file->path);
    memcpy(factors, r->file->memory + entry.position, (size_t)entry.bytes);
    numbers[0] = (double)factors[pairs - 1];
    if (tarn_gguf_has(r->file, SCALING, NULL) && !tarn_gguf_reals(r->file, SCALING, numbers, 4))
        return tarn__raise_within(r->function);
    c->rope_scaling = TARN_ROPE_LLAMA3;
    c->rope_factor = numbers[0];
    c->rope_low = numbers[1];
    c->rope_high = numbers[2];
    c->rope_context = numbers[3] >= 1 && numbers[3] <= LARGEST ? (int64_t)numbers[3] : 0;
    bool good = c->rope_context && c->rope_factor >= 1 && c->rope_low > 0 && c->rope_high > c->rope_low && are_factors(c, factors, pairs);
    return good || refuse(r, "a '" TARN__GGUF_FREQUENCIES "' other than of Llama 3's scaling");
}

static bool get_rope(const reading *r)
{
    tarn_llama_config *c = r->c;
    path_key to;
    int frequencies = tarn_gguf_find(r->file, TARN__GGUF_FREQUENCIES);
    if (!get_real(r, "rope.freq_base", 10000, &c->rope_theta))
        return false;
    double linear = 1; /* what files had before they named a type */
    const char *type = has(r, "rope.scaling.type") ? tarn_gguf_text(r->file, key_of(r->architecture, "rope.scaling.type", &to), NULL)
                       : has(r, "rope.scaling.factor") ? "linear" /* as llama.cpp takes it */
                                                       : "none";
    if (!type)
        return tarn__raise_within(r->function);
    if (!get_real(r, "rope.scale_linear", 1, &linear))
        return false;
    if (linear != 1)
        return refuse(r, "'rope.scale_linear', which newer files write as rope.scaling,");
    if (strcmp(type, "none") != 0 && strcmp(type, "linear") != 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: '%s': rotary positions of the type '%.64s' are not supported; linear and llama3 are", r->function,
                           r->file->path, type);
    if (strcmp(type, "linear") == 0) {
        c->rope_scaling = TARN_ROPE_LINEAR;
        return (frequencies < 0 || refuse(r, "linear scaling together with '" TARN__GGUF_FREQUENCIES "'")) &&
               get_real(r, "rope.scaling.factor", 0, &c->rope_factor);
    }
    return frequencies < 0 || get_llama3(r, frequencies);
}

/* Tokens under a key of our own, or those under keys of others; 0 of them where there are none. */
static bool get_list(const reading *r, const char *ours, const char *first, const char *second, int64_t *list, int64_t *count)
{
    const char *const others[] = {first, second};
    tarn_gguf_value value;
    *count = 0;
    if (tarn_gguf_has(r->file, ours, &value)) {
        *count = value.count;
        return (value.count <= TARN_MODEL_ENDS && tarn_gguf_wholes(r->file, ours, list, value.count)) ||
               tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%s' is no list of at most %d tokens", r->function, r->file->path, ours,
                           TARN_MODEL_ENDS);
    }
    for (int i = 0; i < 2 && others[i]; i++) {
        if (!tarn_gguf_has(r->file, others[i], NULL))
            continue;
        if (!tarn_gguf_whole(r->file, others[i], 0, r->c->vocab - 1, &list[*count]))
            return tarn__raise_within(r->function);
        *count += *count == 0 || list[0] != list[*count];
    }
    return !tarn_failed();
}

static bool get_tokens(const reading *r)
{
    tarn_llama_config *c = r->c;
    int64_t list[TARN_MODEL_ENDS], count;
    if (!get_list(r, BEGINS, BEGIN_ID, NULL, list, &count))
        return false;
    c->has_begin = count > 0;
    c->begin = count > 0 ? list[0] : 0;
    if (!get_list(r, ENDS, END_ID, TURN_ID, list, &count))
        return false;
    c->has_end = count > 0;
    c->end = count > 0 ? list[0] : 0;
    for (int64_t i = 1; i < count; i++)
        c->also_end[c->also_end_count++] = list[i];
    return true;
}

static bool get_family(reading *r)
{
    const char *type = tarn_gguf_text(r->file, "general.architecture", NULL), *family = type;
    if (!type)
        return tarn__raise_within(r->function);
    if (tarn_gguf_has(r->file, FAMILY, NULL) && !(family = tarn_gguf_text(r->file, FAMILY, NULL)))
        return tarn__raise_within(r->function);
    const tarn__llama_family *row = tarn__llama_family_of(family);
    if (!row || strcmp(tarn__llama_architecture(row->type), type) != 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the architecture '%.64s' is none that tarn knows: llama, qwen2, qwen3",
                           r->function, r->file->path, row ? type : family);
    r->architecture = type;
    r->c->family = row->type;
    return true;
}

static bool check_rest(const reading *r)
{
    int64_t window = 0;
    if (has(r, "expert_count"))
        return refuse(r, "a mixture of experts");
    if (!get_whole(r, "attention.sliding_window", LARGEST, &window))
        return false;
    return window >= r->c->context || refuse(r, "a sliding window of attention");
}

bool tarn__llama_get_metadata(const char *function, const tarn_gguf *file, tarn_llama_config *config)
{
    reading r = {function, NULL, file, config};
    if (!get_family(&r) || !get_sizes(&r) || !get_rope(&r) || !get_tokens(&r) || !check_rest(&r))
        return false;
    config->qkv_bias = tarn_gguf_find(file, "blk.0.attn_q.bias") >= 0;
    config->qk_norm = tarn_gguf_find(file, "blk.0.attn_q_norm.weight") >= 0;
    config->tied = tarn_gguf_find(file, "output.weight") < 0;
    return !tarn_failed();
}

/* ---- opening --------------------------------------------------------------------------------------------------------------- */

typedef struct opening {
    const char *function;
    const tarn_gguf *file;
    const tarn_llama_config *config;
    int given; /* tensors that have found their place */
} opening;

static bool same_shape(const tarn_shape *a, const tarn_shape *b)
{
    return a->rank == b->rank && memcmp(a->size, b->size, sizeof(int64_t) * (size_t)a->rank) == 0;
}

static tarn_tensor *give(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    opening *o = ctx;
    char stored[TARN__LLAMA_NAME];
    tarn_gguf_entry e;
    int index = tarn__llama_name_in_gguf(name, stored) ? tarn_gguf_find(o->file, stored) : -1;
    if (index < 0 || !tarn_gguf_info(o->file, index, &e)) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no tensor '%s' (%s)", o->function, o->file->path, index < 0 ? stored : name, name);
        return NULL;
    }
    if (!same_shape(&e.shape, &shape)) {
        tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': tensor '%s' is %s, but a model of this configuration has %s", o->function, o->file->path,
                    stored, tarn__shape_text(e.shape.size, e.shape.rank, &(tarn__text){{0}}),
                    tarn__shape_text(shape.size, shape.rank, &(tarn__text){{0}}));
        return NULL;
    }
    o->given++;
    int64_t heads = tarn__llama_turned_heads(o->config, stored);
    bool is_blocks = e.dtype != TARN_DTYPE_COUNT && tarn__is_blocks(e.dtype) && shape.rank > 1; /* norms and biases are numbers */
    tarn_dtype dtype = is_blocks ? e.dtype : o->config->dtype;
    if (e.dtype == TARN_DTYPE_COUNT || (dtype == e.dtype && !heads)) /* the reader refuses what it cannot load, with a sentence */
        return tarn_gguf_tensor(o->file, index, device);
    const tarn__rows rows = {o->function, o->file->path, stored, o->file->memory + e.position,
                             e.shape,     e.dtype,       dtype,  heads ? TARN__ROWS_TO_HALVES : TARN__ROWS_KEPT,
                             heads};
    return tarn__rows_tensor(&rows, device);
}

/* What does not belong into the model would be lost in silence. */
static bool check_all_given(const opening *o)
{
    char name[TARN__LLAMA_NAME];
    int known = o->given + (tarn_gguf_find(o->file, TARN__GGUF_FREQUENCIES) >= 0);
    for (int i = 0; i < tarn_gguf_count(o->file) && known < tarn_gguf_count(o->file); i++) {
        const char *stored = tarn_gguf_name(o->file, i);
        if (strcmp(stored, TARN__GGUF_FREQUENCIES) != 0 && !tarn__llama_name_in_folder(stored, name))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds '%.200s', which a %s of this configuration does not have", o->function,
                               o->file->path, stored, o->config->family);
    }
    return known == tarn_gguf_count(o->file) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds %d tensors, but a %s of this configuration has %d", o->function, o->file->path,
                       tarn_gguf_count(o->file), o->config->family, known);
}

tarn_module *tarn__llama_from_gguf(const char *function, const tarn_gguf *file, tarn_dtype dtype, const tarn__placement *where)
{
    tarn_llama_config config = {.dtype = dtype};
    if (!tarn__llama_get_metadata(function, file, &config))
        return NULL;
    opening o = {function, file, &config, 0};
    tarn_module *model = tarn__llama_make(function, &config, where, &(tarn__llama_source){give, &o});
    if (model && check_all_given(&o))
        return model;
    tarn_module_free(model);
    return NULL;
}
