/* lora_config.c: adapter_config.json, as PEFT writes and reads it.
 *
 * It has some forty keys, and every version of PEFT adds more. Unknown keys are errors that name them, unless they
 * are off; keys without effect on a trained adapter are ignored. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "models/lora/lora.h"

#define MAX_RANK 65536
#define MAX_NAMES 65536

/* State of one read. */
typedef struct reader {
    const char *function, *path;
    const tarn__json_file *document;
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
    static const char *const read[] = {"peft_type",         "r",
                                       "lora_alpha",        "lora_dropout",
                                       "use_rslora",        "target_modules",
                                       "fan_in_fan_out",    "bias",
                                       "init_lora_weights", NULL};
    /* Without effect on a trained adapter. */
    static const char *const ignored[] = {
        "task_type",      "auto_mapping",  "peft_version",      "base_model_name_or_path", "revision",
        "inference_mode", "megatron_core", "qalora_group_size", "layers_pattern",          "loftq_config",
        "eva_config",     "corda_config",  "lora_ga_config",    "runtime_config",          NULL};
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
        (is_there(r, "use_rslora") && !tarn__json_file_bool(r->document, "use_rslora", &s->rslora)))
        return false;
    if (!isfinite(s->alpha) || !(s->dropout >= 0 && s->dropout < 1))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': \"lora_alpha\" %g must be a number, and \"lora_dropout\" %g from 0 to below 1",
                           r->function, r->path, s->alpha, s->dropout);
    s->scale = tarn__lora_scale(s);
    return true;
}

/* Selects the layers of target_modules. A name that matches no layer is allowed if another matches. */
static bool select_layers(const reader *r, tarn__lora_layers *list)
{
    const char *key = "target_modules";
    size_t count = 0;
    int selected = 0;
    tarn__member_kind kind = tarn__json_file_kind(r->document, key);
    if (kind == TARN__MEMBER_STRING) {
        const char *text = tarn__json_file_string(r->document, key);
        if (text && strcmp(text, "all-linear") != 0)
            return tarn__raise(
                TARN_ERROR_UNSUPPORTED,
                "%s: '%s': \"%s\" is the regex '%.100s'; an array of names and \"all-linear\" are supported",
                r->function, r->path, key, text);
        for (int i = 0; text && i < list->count; i++)
            list->layer[i].is_selected = true;
        return text != NULL;
    }
    if (kind != TARN__MEMBER_ARRAY)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': \"%s\" must be an array of layer names", r->function, r->path,
                           key);
    if (!tarn__json_file_count(r->document, key, MAX_NAMES, &count))
        return false;
    for (size_t i = 0; i < count; i++) {
        const char *name = tarn__json_file_string_at(r->document, key, i);
        if (!name)
            return false;
        selected += tarn__lora_select(list, name, strlen(name));
    }
    return selected || tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': \"%s\" names no linear layer of this model",
                                   r->function, r->path, key);
}

/* Types first: the keys of other adapter types would otherwise be reported as unknown. */
bool tarn__lora_read_config(const char *function, const tarn__json_file *document, const char *path,
                            tarn__adapter *settings, tarn__lora_layers *list)
{
    reader r = {function, path, document};
    return check_types(&r) && tarn__json_file_each_name(document, "", check_member, &r) &&
           read_settings(&r, settings) && select_layers(&r, list);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The name of a layer without its path. */
static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* True if all layers of that name have adapters. */
static bool all_named(const tarn__lora_layers *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (!list->layer[i].is_selected && tarn__lora_name_matches(list->layer[i].path, name, strlen(name)))
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

/* PEFT writes whole numbers as integers, which other programs expect. */
static bool write_alpha(double alpha, tarn__json_file *document)
{
    bool is_whole = alpha == floor(alpha) && fabs(alpha) < 1e15;
    return is_whole ? tarn__json_file_set_int(document, "lora_alpha", (int64_t)alpha)
                    : tarn__json_file_set_real(document, "lora_alpha", alpha);
}

/* All adapters of a model share their settings: those of the first are written. */
bool tarn__lora_write_config(const tarn__lora_layers *list, const char *base_model, tarn__json_file *document)
{
    const tarn_module *first = NULL;
    for (int i = list->count - 1; i >= 0; i--)
        first = list->layer[i].is_selected ? list->layer[i].module : first;
    const tarn__adapter *s = first->adapter;
    static const char *const nothing[] = {"auto_mapping",        "revision",       "modules_to_save",
                                          "layers_to_transform", "layers_pattern", NULL};
    bool good = tarn__json_file_set_string(document, "peft_type", "LORA") &&
                tarn__json_file_set_string(document, "task_type", "CAUSAL_LM") &&
                (base_model ? tarn__json_file_set_string(document, "base_model_name_or_path", base_model)
                            : tarn__json_file_set_real(document, "base_model_name_or_path", NAN)) && /* null */
                tarn__json_file_set_int(document, "r", s->rank) &&
                write_alpha(s->alpha, document) && tarn__json_file_set_real(document, "lora_dropout", s->dropout) &&
                write_targets(list, document) && tarn__json_file_set_bool(document, "use_rslora", s->rslora) &&
                tarn__json_file_set_bool(document, "use_dora", false) &&
                tarn__json_file_set_bool(document, "fan_in_fan_out", list->form == TARN__LINEAR_IN_OUT) &&
                tarn__json_file_set_string(document, "bias", "none") &&
                tarn__json_file_set_bool(document, "init_lora_weights", true) &&
                tarn__json_file_set_bool(document, "inference_mode", true);
    for (const char *const *key = nothing; good && *key; key++)
        good = tarn__json_file_set_real(document, *key, NAN);
    return good;
}
