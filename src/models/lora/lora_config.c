/* lora_config.c: adapter_config.json, as PEFT writes and reads it.
 *
 * It has some forty keys, and every version of PEFT adds more. Unknown keys are errors that name them, unless they are
 * off; keys without effect on a trained adapter are ignored.
 *
 *     {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"],
 *      "rank_pattern": {"layers.0.self_attn.q_proj": 4}, "modules_to_save": ["lm_head"], …} */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "models/lora/lora.h"

#define MAX_RANK 65536
/* Of any array of names in the file. */
#define MAX_NAMES 65536

/* State of one read. */
typedef struct reader {
    const char *function, *path;
    const tarn__json_file *document;
    tarn__lora_layers *list;
} reader;

/* True if a NULL-terminated list has a word. */
static bool contains(const char *const *list, const char *word)
{
    for (; *list; list++)
        if (strcmp(*list, word) == 0)
            return true;
    return false;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Raises an unknown key that is on. */
static bool check_member(const char *name, bool is_off, void *ctx)
{
    static const char *const read[] = {"peft_type",
                                       "r",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "use_rslora",
                                       "target_modules",
                                       "fan_in_fan_out",
                                       "bias",
                                       "init_lora_weights",
                                       "rank_pattern",
                                       "alpha_pattern",
                                       "exclude_modules",
                                       "layers_pattern",
                                       "layers_to_transform",
                                       "modules_to_save",
                                       "use_dora",
                                       "trainable_token_indices",
                                       NULL};
    /* Without effect on a trained adapter. */
    static const char *const ignored[] = {"task_type",
                                          "auto_mapping",
                                          "peft_version",
                                          "base_model_name_or_path",
                                          "revision",
                                          "inference_mode",
                                          "megatron_core",
                                          "qalora_group_size",
                                          "loftq_config",
                                          "eva_config",
                                          "corda_config",
                                          "lora_ga_config",
                                          "runtime_config",
                                          "ensure_weight_tying",
                                          NULL};
    const reader *r = ctx;
    return is_off || contains(read, name) || contains(ignored, name) ||
           tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': \"%.64s\" is not supported, unless it is off", r->function,
                       r->path, name);
}

/* True if a key exists and is not null. */
static bool is_there(const reader *r, const char *key)
{
    tarn__member_kind kind = tarn__json_file_kind(r->document, key);
    return kind != TARN__MEMBER_MISSING && kind != TARN__MEMBER_NULL;
}

/* Raises initializations that also change the base weights. */
static bool check_init(const reader *r)
{
    static const char *const harmless[] = {"gaussian", "orthogonal", "eva", NULL};
    const char *key = "init_lora_weights";
    if (tarn__json_file_kind(r->document, key) != TARN__MEMBER_STRING)
        return true;
    const char *how = tarn__json_file_string(r->document, key);
    return how && (contains(harmless, how) ||
                   tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: '%s': \"%s\": '%.64s' is not supported: it may change the base weights",
                               r->function, r->path, key, how));
}

/* Raises other adapter types than LoRA, and trained biases. */
static bool check_types(const reader *r)
{
    const char *type = tarn__json_file_string(r->document, "peft_type");
    if (!type)
        return false;
    if (strcmp(type, "LORA") != 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: '%s': adapters of the \"peft_type\" '%.64s' are not supported; LORA is", r->function,
                           r->path, type);
    const char *bias = is_there(r, "bias") ? tarn__json_file_string(r->document, "bias") : "none";
    if (bias && strcmp(bias, "none") != 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': \"bias\": '%.64s' is not supported; none is", r->function,
                           r->path, bias);
    return bias && check_init(r);
}

/* Rank, alpha, dropout and rslora, with PEFT's defaults. */
static bool read_settings(const reader *r, tarn__adapter *s)
{
    *s = (tarn__adapter){.alpha = 8}; /* PEFT's default */
    if (!tarn__json_file_int(r->document, "r", 1, MAX_RANK, &s->rank) ||
        (is_there(r, "lora_alpha") && !tarn__json_file_real(r->document, "lora_alpha", &s->alpha)) ||
        (is_there(r, "lora_dropout") && !tarn__json_file_real(r->document, "lora_dropout", &s->dropout)) ||
        (is_there(r, "use_rslora") && !tarn__json_file_bool(r->document, "use_rslora", &s->rslora)) ||
        (is_there(r, "use_dora") && !tarn__json_file_bool(r->document, "use_dora", &s->has_magnitude)))
        return false;
    if (!isfinite(s->alpha) || !(s->dropout >= 0 && s->dropout < 1))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': \"lora_alpha\" %g must be a number, and \"lora_dropout\" %g from 0 to below 1",
                           r->function, r->path, s->alpha, s->dropout);
    return true;
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* Raises a norm, as PEFT does, and a position embedding; through the error state, since a visit has no result. */
static void select_layer(tarn__lora_layer *layer, void *ctx)
{
    const reader *r = ctx;
    layer->is_selected = layer->kind != TARN__LORA_NO_TARGET;
    if (!layer->is_selected)
        tarn__raise(
            TARN_ERROR_UNSUPPORTED,
            "%s: '%s': \"target_modules\" matches '%s', which is neither a linear layer nor the token embedding",
            r->function, r->path, layer->path);
}

/* A function of tarn__lora_each_match(). */
static void deselect_layer(tarn__lora_layer *layer, void *ctx)
{
    (void)ctx;
    layer->is_selected = false;
}

/* True if a layer is in one of the blocks of layers_to_transform, a number or an array; *good false with an error. */
static bool is_in_blocks(const reader *r, const char *layer, bool *good)
{
    static const char *const key = "layers_to_transform", *const pattern_key = "layers_pattern";
    bool has_list = tarn__json_file_kind(r->document, pattern_key) == TARN__MEMBER_ARRAY,
         has_one = tarn__json_file_kind(r->document, pattern_key) == TARN__MEMBER_STRING;
    size_t patterns = 0, blocks = 0;
    int64_t block = -1, listed;
    *good = !has_list || tarn__json_file_count(r->document, pattern_key, MAX_NAMES, &patterns);
    for (size_t i = 0; *good && block == -1 && i < (patterns ? patterns : 1); i++) {
        const char *pattern = patterns  ? tarn__json_file_string_at(r->document, pattern_key, i)
                              : has_one ? tarn__json_file_string(r->document, pattern_key)
                                        : NULL;
        *good = pattern || (!patterns && !has_one);
        if (*good)
            block = tarn__lora_block_of(r->function, r->path, pattern && pattern[0] ? pattern : NULL, layer);
        *good = *good && block != -2;
    }
    if (!*good || block < 0)
        return false;
    if (tarn__json_file_kind(r->document, key) != TARN__MEMBER_ARRAY)
        return (*good = tarn__json_file_int(r->document, key, 0, MAX_NAMES, &listed)) && listed == block;
    *good = tarn__json_file_count(r->document, key, MAX_NAMES, &blocks);
    for (size_t i = 0; *good && i < blocks; i++)
        if ((*good = tarn__json_file_int_at(r->document, key, i, 0, MAX_NAMES, &listed)) && listed == block)
            return true;
    return blocks == 0; /* an empty list limits nothing */
}

/* Layers outside of layers_to_transform are not selected, unless target_modules has their whole path. */
static bool select_named(const reader *r, const char *name)
{
    bool is_limited = is_there(r, "layers_to_transform"), good = true;
    for (int i = 0; good && i < r->list->count; i++) {
        tarn__lora_layer *layer = &r->list->layer[i];
        if (!tarn__lora_name_matches(layer->path, name, strlen(name)))
            continue;
        bool selects = !is_limited || strcmp(layer->path, name) == 0 || is_in_blocks(r, layer->path, &good);
        if (selects && !layer->is_selected)
            select_layer(layer, (void *)r); /* only read */
    }
    return good && !tarn_failed();
}

/* Selects by an array of names, "all-linear" or a regular expression. */
static bool select_targets(const reader *r)
{
    static const char *const key = "target_modules";
    size_t count = 0;
    tarn__member_kind kind = tarn__json_file_kind(r->document, key);
    if (kind == TARN__MEMBER_STRING) {
        const char *text = tarn__json_file_string(r->document, key);
        for (int i = 0; text && strcmp(text, "all-linear") == 0 && i < r->list->count; i++)
            r->list->layer[i].is_selected = r->list->layer[i].kind == TARN__LORA_LINEAR && !r->list->layer[i].is_saved;
        return text &&
               (strcmp(text, "all-linear") == 0 || tarn__lora_each_match(r->function, r->path, text, TARN__LORA_WHOLE,
                                                                         r->list, select_layer, (void *)r)) &&
               !tarn_failed();
    }
    if (kind != TARN__MEMBER_ARRAY)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': \"%s\" must be an array of layer names, or a pattern",
                           r->function, r->path, key);
    bool good = tarn__json_file_count(r->document, key, MAX_NAMES, &count);
    for (size_t i = 0; good && i < count; i++) {
        const char *name = tarn__json_file_string_at(r->document, key, i);
        good = name && select_named(r, name);
    }
    return good;
}

/* Takes out the layers of exclude_modules: an array of names, or a regular expression. */
static bool exclude(const reader *r)
{
    static const char *const key = "exclude_modules";
    size_t count = 0;
    if (!is_there(r, key))
        return true;
    if (tarn__json_file_kind(r->document, key) == TARN__MEMBER_STRING) {
        const char *text = tarn__json_file_string(r->document, key);
        return text && (!text[0] || tarn__lora_each_match(r->function, r->path, text, TARN__LORA_WHOLE, r->list,
                                                          deselect_layer, NULL));
    }
    bool good = tarn__json_file_count(r->document, key, MAX_NAMES, &count);
    for (size_t i = 0; good && i < count; i++) {
        const char *name = tarn__json_file_string_at(r->document, key, i);
        good = name != NULL;
        for (int k = 0; good && k < r->list->count; k++)
            r->list->layer[k].is_selected &= !tarn__lora_name_matches(r->list->layer[k].path, name, strlen(name));
    }
    return good;
}

/* modules_to_save: an array of ends of paths. */
static bool select_saved(const reader *r)
{
    static const char *const key = "modules_to_save";
    size_t count = 0;
    if (!is_there(r, key))
        return true;
    bool good = tarn__json_file_count(r->document, key, MAX_NAMES, &count);
    for (size_t i = 0; good && i < count; i++) {
        const char *name = tarn__json_file_string_at(r->document, key, i);
        good = name != NULL;
        if (good && tarn__lora_select_saved(r->list, name, strlen(name)) == 0)
            good = tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': \"%s\": '%.100s' matches no module of this model",
                               r->function, r->path, key, name);
    }
    return good;
}

/* A name that matches no layer is allowed if another matches. */
static bool select_layers(const reader *r)
{
    int selected = 0;
    if (!select_saved(r) || !select_targets(r) || !exclude(r) || !tarn__lora_check_saved(r->function, r->list) ||
        !tarn__lora_read_tokens(r->function, r->document, r->path, r->list))
        return false;
    for (int i = 0; i < r->list->count; i++)
        selected += r->list->layer[i].is_selected;
    return selected || tarn__raise(TARN_ERROR_FORMAT,
                                   "%s: '%s': \"target_modules\" names no linear layer and no embedding of this model",
                                   r->function, r->path);
}

/* ---- settings of single layers ----------------------------------------------------------------------------------- */

/* One of rank_pattern and alpha_pattern. */
typedef struct pattern_reader {
    const reader *r;
    const char *key;
    bool is_rank;
    double value;
    bool *is_set; /* by layer: of several patterns the first that matches counts */
} pattern_reader;

/* The pattern's value, unless an earlier pattern has set one. */
static void set_value(tarn__lora_layer *layer, void *ctx)
{
    const pattern_reader *p = ctx;
    bool *is_set = &p->is_set[layer - p->r->list->layer];
    if (*is_set)
        return;
    *is_set = true;
    if (p->is_rank)
        layer->settings.rank = (int64_t)p->value;
    else
        layer->settings.alpha = p->value;
}

/* Sets rank or alpha of the layers that one pattern matches. */
static bool read_pattern(const char *name, const char *text, void *ctx)
{
    pattern_reader *p = ctx;
    const reader *r = p->r;
    char *end;
    p->value = strtod(text, &end);
    bool is_number = end != text && !*end && isfinite(p->value);
    if (p->is_rank ? !(is_number && p->value >= 1 && p->value <= MAX_RANK && p->value == floor(p->value)) : !is_number)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': \"%s\" has '%.32s' for '%.100s'; it must be %s", r->function,
                           r->path, p->key, text, name, p->is_rank ? "an integer from 1 to 65536" : "a number");
    return tarn__lora_each_match(r->function, r->path, name, TARN__LORA_SUFFIX, r->list, set_value, p);
}

/* Patterns in the order of the file. */
static bool read_patterns(const reader *r, const char *key, bool is_rank)
{
    if (!is_there(r, key))
        return true;
    size_t bytes = sizeof(bool) * (size_t)(r->list->count ? r->list->count : 1);
    pattern_reader p = {r, key, is_rank, 0, tarn__alloc(bytes)};
    if (p.is_set)
        memset(p.is_set, 0, bytes);
    bool good = p.is_set && tarn__json_file_each(r->document, key, read_pattern, &p);
    tarn__release(p.is_set, bytes);
    return good;
}

/* The common settings, then those of single layers, and the scales that follow. */
static bool fill_settings(const reader *r)
{
    tarn__adapter common;
    if (!read_settings(r, &common))
        return false;
    for (int i = 0; i < r->list->count; i++)
        r->list->layer[i].settings = common;
    if (!read_patterns(r, "rank_pattern", true) || !read_patterns(r, "alpha_pattern", false))
        return false;
    for (int i = 0; i < r->list->count; i++)
        r->list->layer[i].settings.scale = tarn__lora_scale(&r->list->layer[i].settings);
    for (int i = 0; i < r->list->count && common.has_magnitude; i++)
        if (r->list->layer[i].is_selected && r->list->layer[i].kind == TARN__LORA_EMBEDDING)
            return tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: '%s': \"use_dora\" is not supported for an embedding, '%s'; only for linear layers",
                               r->function, r->path, r->list->layer[i].path);
    return true;
}

/* Types first: the keys of other adapter types would otherwise be reported as unknown. */
bool tarn__lora_read_config(const char *function, const tarn__json_file *document, const char *path,
                            tarn__lora_layers *list)
{
    reader r = {function, path, document, list};
    return check_types(&r) && tarn__json_file_each_name(document, "", check_member, &r) && select_layers(&r) &&
           fill_settings(&r);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The name of a layer without its path. "q_proj" of "model.layers.0.self_attn.q_proj". */
static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* True if all layers of that name have adapters. */
static bool all_named(const tarn__lora_layers *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (!list->layer[i].is_selected && list->layer[i].kind != TARN__LORA_NO_TARGET &&
            tarn__lora_name_matches(list->layer[i].path, name, strlen(name)))
            return false;
    return true;
}

/* Layers by name if that is unambiguous, else by path. */
static bool write_targets(const tarn__lora_layers *list, tarn__json_file *document)
{
    bool good = true;
    for (int i = 0; good && i < list->count; i++) {
        const char *path = list->layer[i].path, *name = last_part(path);
        bool by_name = all_named(list, name), is_new = true;
        for (int k = 0; k < i && by_name; k++)
            is_new &= !(list->layer[k].is_selected && tarn__lora_name_matches(list->layer[k].path, name, strlen(name)));
        if (list->layer[i].is_selected && is_new)
            good = tarn__json_file_add_string(document, "target_modules", by_name ? name : path);
    }
    return good;
}

/* Saved modules. Embeddings and the head by name, which other programs expect; others by path, since PEFT compares
 * only ends. */
static bool write_saved(const tarn__lora_layers *list, tarn__json_file *document)
{
    static const char *const key = "modules_to_save";
    bool any = false, good = true;
    for (int i = 0; good && i < list->count; i++) {
        const tarn__lora_layer *layer = &list->layer[i];
        bool by_name = tarn__is_embedding(layer->module) || layer->kind == TARN__LORA_HEAD;
        if (layer->is_saved)
            good = tarn__json_file_add_string(document, key, by_name ? last_part(layer->path) : layer->path);
        any = any || layer->is_saved;
    }
    return good && (any || tarn__json_file_set_real(document, key, NAN)); /* null */
}

/* PEFT writes whole numbers as integers, which other programs expect. */
static bool write_alpha(double alpha, tarn__json_file *document)
{
    bool is_whole = alpha == floor(alpha) && fabs(alpha) < 1e15;
    return is_whole ? tarn__json_file_set_int(document, "lora_alpha", (int64_t)alpha)
                    : tarn__json_file_set_real(document, "lora_alpha", alpha);
}

/* Ranks and alphas that differ from the common ones, by path. */
static bool write_patterns(const tarn__lora_layers *list, const tarn__adapter *common, tarn__json_file *document)
{
    bool good = true;
    for (int i = 0; good && i < list->count; i++) {
        const tarn__adapter *s = list->layer[i].is_selected ? list->layer[i].module->adapter : NULL;
        if (s && s->rank != common->rank)
            good = tarn__json_file_put_number(document, "rank_pattern", list->layer[i].path, (double)s->rank);
        if (good && s && s->alpha != common->alpha)
            good = tarn__json_file_put_number(document, "alpha_pattern", list->layer[i].path, s->alpha);
    }
    return good;
}

/* The settings of the first adapter are the common ones. */
bool tarn__lora_write_config(const tarn__lora_layers *list, const char *base_model, tarn__json_file *document)
{
    /* There is one: only models with adapters are saved. */
    const tarn_module *first = NULL;
    for (int i = list->count - 1; i >= 0; i--)
        first = list->layer[i].is_selected ? list->layer[i].module : first;
    const tarn__adapter *s = first->adapter;
    static const char *const nothing[] = {"auto_mapping", "revision", "layers_to_transform", "layers_pattern", NULL};
    bool good = tarn__json_file_set_string(document, "peft_type", "LORA") &&
                tarn__json_file_set_string(document, "task_type", "CAUSAL_LM") &&
                (base_model ? tarn__json_file_set_string(document, "base_model_name_or_path", base_model)
                            : tarn__json_file_set_real(document, "base_model_name_or_path", NAN)) && /* null */
                tarn__json_file_set_int(document, "r", s->rank) &&
                write_alpha(s->alpha, document) && tarn__json_file_set_real(document, "lora_dropout", s->dropout) &&
                write_targets(list, document) && write_patterns(list, s, document) && write_saved(list, document) &&
                tarn__lora_write_tokens(list, document) &&
                tarn__json_file_set_bool(document, "use_rslora", s->rslora) &&
                tarn__json_file_set_bool(document, "use_dora", s->has_magnitude) &&
                tarn__json_file_set_bool(document, "fan_in_fan_out", list->form == TARN__LINEAR_IN_OUT) &&
                tarn__json_file_set_string(document, "bias", "none") &&
                tarn__json_file_set_bool(document, "init_lora_weights", true) &&
                tarn__json_file_set_bool(document, "inference_mode", true);
    for (const char *const *key = nothing; good && *key; key++)
        good = tarn__json_file_set_real(document, *key, NAN);
    return good;
}
