/* config_rope.c: RoPE in config.json files.
 *
 * transformers 5 writes "rope_parameters", for some architectures by the type of layers; older versions write
 * "rope_theta" and "rope_scaling". Both are read; the older form, which version 5 reads too, is written.
 *
 * A factor that is missing, or a key that is not known, is an error: RoPE that is scaled in another way gives text
 * that looks right for a while and then does not. */
#include <math.h>
#include <string.h>

#include "models/lm/config_json.h"

#define MAX_SIZE INT32_MAX

/* The member of an object: "rope_scaling.factor". */
typedef struct key {
    char text[128];
} key;

/* Valid until the next use of `to`. */
static const char *inside(key *to, const char *object, const char *member)
{
    snprintf(to->text, sizeof(to->text), "%s.%s", object, member);
    return to->text;
}

/* Keys outside of the parameters. */
static const char *base_key(const tarn__arch *arch)
{
    return arch->keys->rope_base ? arch->keys->rope_base : "rope_theta";
}

static const char *rotary_key(const tarn__arch *arch)
{
    return arch->keys->rotary_factor ? arch->keys->rotary_factor : "partial_rotary_factor";
}

/* Names of scalings. */
static const struct {
    const char *name;
    tarn_rope_scaling scaling;
} scalings[] = {{"default", TARN_ROPE_DEFAULT}, {"linear", TARN_ROPE_LINEAR}, {"llama3", TARN_ROPE_LLAMA3},
                {"dynamic", TARN_ROPE_DYNAMIC}, {"yarn", TARN_ROPE_YARN},     {"longrope", TARN_ROPE_LONGROPE}};
#define SCALING_COUNT (sizeof(scalings) / sizeof(scalings[0]))

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Raises an unknown key: ignoring it would silently change the model. */
static bool check_member(const char *name, bool is_off, void *ctx)
{
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor",
                                        "attention_factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "mscale",
                                        "mscale_all_dim",
                                        "truncate",
                                        "short_factor",
                                        "long_factor"};
    const tarn__config_reader *r = ctx;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    return is_off || tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: config.json: RoPE with \"%.64s\" is not supported",
                                 r->function, name);
}

/* A positive number that may be missing: then 0. */
static bool read_optional(const tarn__config_reader *r, const char *object, const char *member, double *value)
{
    key to;
    *value = 0;
    return !tarn__config_has(r, inside(&to, object, member)) || tarn__config_real(r, to.text, 0, value);
}

/* Parameters of llama3's scaling, which are all required. */
static bool read_llama3(tarn__config_reader *r, const char *object)
{
    key to;
    tarn_rope_options *rope = &r->c.rope;
    if (!tarn__json_file_real(r->json, inside(&to, object, "low_freq_factor"), &rope->low_freq_factor) ||
        !tarn__json_file_real(r->json, inside(&to, object, "high_freq_factor"), &rope->high_freq_factor) ||
        !tarn__json_file_int(r->json, inside(&to, object, "original_max_position_embeddings"), 1, INT64_MAX,
                             &rope->original_context))
        return false;
    return (rope->low_freq_factor > 0 && rope->high_freq_factor > rope->low_freq_factor &&
            isfinite(rope->high_freq_factor)) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: config.json: \"%s\": low_freq_factor is %g and high_freq_factor %g; both must be above 0, "
                       "the first below the second",
                       r->function, object, rope->low_freq_factor, rope->high_freq_factor);
}

/* All are optional: 0 stands for the paper's defaults, which the operation has. */
static bool read_yarn(tarn__config_reader *r, const char *object)
{
    key to;
    tarn_rope_options *rope = &r->c.rope;
    bool truncate = true;
    if (!read_optional(r, object, "attention_factor", &rope->attention_factor) ||
        !read_optional(r, object, "beta_fast", &rope->beta_fast) ||
        !read_optional(r, object, "beta_slow", &rope->beta_slow) ||
        !read_optional(r, object, "mscale", &rope->mscale) ||
        !read_optional(r, object, "mscale_all_dim", &rope->mscale_all_dim))
        return false;
    if (tarn__config_has(r, inside(&to, object, "truncate")) && !tarn__json_file_bool(r->json, to.text, &truncate))
        return false;
    rope->untruncated = !truncate;
    return true;
}

/* One list of longrope's divisors. */
static bool read_factors(const tarn__config_reader *r, const char *object, const char *member, float *factors)
{
    key to;
    size_t count = 0, wanted = (size_t)r->c.rope.dims / 2;
    inside(&to, object, member);
    if (!tarn__json_file_count(r->json, to.text, TARN_LM_MAX_PAIRS, &count))
        return false;
    if (count != wanted)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: config.json: \"%s\" has %zu elements; it must have %zu, one per pair", r->function,
                           to.text, count, wanted);
    for (size_t i = 0; i < count; i++) {
        double value;
        if (!tarn__json_file_real_at(r->json, to.text, i, &value))
            return false;
        if (!(value > 0 && isfinite(value)))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" has %g; it must have numbers above 0",
                               r->function, to.text, value);
        factors[i] = (float)value;
    }
    return true;
}

static bool read_longrope(tarn__config_reader *r, const char *object)
{
    tarn_rope_options *rope = &r->c.rope;
    if (!rope->factor)
        rope->factor = (double)r->c.context / (double)rope->original_context;
    return read_optional(r, object, "attention_factor", &rope->attention_factor) &&
           read_factors(r, object, "short_factor", r->c.rope_factors[0]) &&
           read_factors(r, object, "long_factor", r->c.rope_factors[1]);
}

/* Context of training: a key of its own, outside in some architectures; by default the model's. */
static bool read_original_context(tarn__config_reader *r, const char *object)
{
    key to;
    const char *outside = "original_max_position_embeddings";
    r->c.rope.original_context = r->c.context;
    if (r->c.rope.scaling == TARN_ROPE_DYNAMIC)
        return true;
    if (tarn__config_has(r, outside))
        return tarn__json_file_int(r->json, outside, 2, MAX_SIZE, &r->c.rope.original_context);
    return !tarn__config_has(r, inside(&to, object, outside)) ||
           tarn__json_file_int(r->json, to.text, 2, MAX_SIZE, &r->c.rope.original_context);
}

/* The scaling by its name. */
static bool find_scaling(tarn__config_reader *r, const char *type)
{
    /* Phi-3's first files say su, or yarn, and mean longrope */
    bool is_longrope = r->arch->has_longrope && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0);
    for (size_t i = 0; i < SCALING_COUNT; i++)
        if (strcmp(is_longrope ? "longrope" : type, scalings[i].name) == 0) {
            r->c.rope.scaling = scalings[i].scaling;
            return true;
        }
    return tarn__raise(
        TARN_ERROR_UNSUPPORTED,
        "%s: config.json: RoPE scaling '%.64s' is not supported; default, linear, dynamic, llama3, yarn and longrope "
        "are",
        r->function, type);
}

/* The parameters of a scaling, an object. */
static bool read_scaling(tarn__config_reader *r, const char *object)
{
    key to;
    tarn_rope_options *rope = &r->c.rope;
    if (tarn__json_file_kind(r->json, object) != TARN__MEMBER_OBJECT)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" is not an object", r->function, object);
    bool is_old = !tarn__json_file_has(r->json, inside(&to, object, "rope_type")) &&
                  tarn__json_file_has(r->json, inside(&to, object, "type"));
    inside(&to, object, is_old ? "type" : "rope_type");
    const char *type = tarn__config_has(r, to.text) ? tarn__json_file_string(r->json, to.text) : "default";
    /* before its keys, which depend on it */
    if (!type || !find_scaling(r, type) || !tarn__json_file_each_name(r->json, object, check_member, r))
        return false;
    if (rope->scaling == TARN_ROPE_DEFAULT)
        return true;
    bool has_factor = tarn__config_has(r, inside(&to, object, "factor"));
    if (!has_factor && rope->scaling != TARN_ROPE_LONGROPE)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" has no factor", r->function, object);
    if ((has_factor && !tarn__config_real(r, to.text, NAN, &rope->factor)) || !read_original_context(r, object))
        return false;
    switch (rope->scaling) {
    case TARN_ROPE_LLAMA3: return read_llama3(r, object);
    case TARN_ROPE_YARN: return read_yarn(r, object);
    case TARN_ROPE_LONGROPE: return read_longrope(r, object);
    default: return true;
    }
}

/* Elements of a head that are rotated: a part of it in some architectures. */
static bool read_dims(tarn__config_reader *r, const char *object)
{
    key to;
    const char *legacy = rotary_key(r->arch);
    double part = r->arch->rotary_factor > 0 ? r->arch->rotary_factor : 1;
    if (!tarn__config_real(r, legacy, part, &part) ||
        !tarn__config_real(r, inside(&to, object, "partial_rotary_factor"), part, &part))
        return false;
    int64_t head = r->c.head_dim ? r->c.head_dim : r->c.hidden_size / r->c.heads;
    r->c.rope.dims = (int64_t)((double)head * part);
    return (part <= 1 && r->c.rope.dims >= 2) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: RoPE of %g of head_dim, %lld, is not possible", r->function,
                       part, (long long)head);
}

/* The base, inside of the parameters or outside. */
static bool read_base(tarn__config_reader *r, const char *object, bool has_new)
{
    key to;
    const char *legacy = base_key(r->arch);
    double base, *result = &r->c.rope.base;
    if (!tarn__config_real(r, legacy, r->arch->rope_base, &base) ||
        !tarn__config_real(r, inside(&to, object, "rope_theta"), base, result))
        return false;
    return !tarn__config_has(r, legacy) || *result == base || (has_new && r->arch->has_local_rope) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: config.json: \"%s\" is %g, but that of \"%s\" %g", r->function, legacy,
                       base, object, *result);
}

/* RoPE of layers with a window: a base of its own. */
static bool read_local(tarn__config_reader *r, bool is_nested)
{
    key to;
    const char *object = "rope_parameters.sliding_attention";
    const char *type = is_nested && tarn__config_has(r, inside(&to, object, "rope_type"))
                           ? tarn__json_file_string(r->json, to.text)
                           : "default";
    if (!type)
        return false;
    if (strcmp(type, "default") != 0)
        return tarn__config_unsupported(r, to.text, type);
    double base;
    return tarn__config_real(r, "rope_local_base_freq", r->arch->rope_local_base, &base) &&
           tarn__config_real(r, inside(&to, object, "rope_theta"), base, &r->c.rope_local_base);
}

bool tarn__config_read_rope(tarn__config_reader *r)
{
    bool has_new = tarn__config_has(r, "rope_parameters"), has_old = tarn__config_has(r, "rope_scaling");
    bool is_nested = r->arch->has_local_rope && has_new &&
                     tarn__json_file_kind(r->json, "rope_parameters.full_attention") == TARN__MEMBER_OBJECT;
    const char *object = is_nested ? "rope_parameters.full_attention" : has_old ? "rope_scaling" : "rope_parameters";
    if (has_new && has_old)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: config.json has both \"rope_parameters\" and \"rope_scaling\"; only one is expected",
                           r->function);
    return read_base(r, object, has_new) && read_dims(r, object) &&
           (!(has_new || has_old) || read_scaling(r, object)) && (!r->arch->has_local_rope || read_local(r, is_nested));
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* A number that is not written where it is 0. */
static bool write_optional(tarn__json_file *json, const char *member, double value)
{
    key to;
    return !(value > 0) || tarn__json_file_set_real(json, inside(&to, "rope_scaling", member), value);
}

static bool write_factors(tarn__json_file *json, const char *member, const float *factors, int64_t count)
{
    key to;
    bool good = true;
    inside(&to, "rope_scaling", member);
    for (int64_t i = 0; good && i < count; i++)
        good = tarn__json_file_add_real(json, to.text, (double)factors[i]);
    return good;
}

static bool write_scaling(const tarn_lm_config *c, const tarn__arch *arch, tarn__json_file *json)
{
    const tarn_rope_options *rope = &c->rope;
    if (rope->scaling == TARN_ROPE_DEFAULT)
        return tarn__json_file_set_real(json, "rope_scaling", NAN); /* null */
    bool has_original = rope->scaling == TARN_ROPE_LLAMA3 || rope->scaling > TARN_ROPE_DYNAMIC;
    if (!tarn__json_file_set_string(json, "rope_scaling.rope_type", scalings[rope->scaling].name) ||
        (!(rope->scaling == TARN_ROPE_LONGROPE && arch->has_longrope) &&
         !tarn__json_file_set_real(json, "rope_scaling.factor", rope->factor)) ||
        (has_original && !tarn__json_file_set_int(json,
                                                  arch->has_longrope ? "original_max_position_embeddings"
                                                                     : "rope_scaling.original_max_position_embeddings",
                                                  rope->original_context)))
        return false;
    switch (rope->scaling) {
    case TARN_ROPE_LLAMA3:
        return write_optional(json, "low_freq_factor", rope->low_freq_factor) &&
               write_optional(json, "high_freq_factor", rope->high_freq_factor);
    case TARN_ROPE_YARN:
        return write_optional(json, "attention_factor", rope->attention_factor) &&
               write_optional(json, "beta_fast", rope->beta_fast) &&
               write_optional(json, "beta_slow", rope->beta_slow) && write_optional(json, "mscale", rope->mscale) &&
               write_optional(json, "mscale_all_dim", rope->mscale_all_dim) &&
               (!rope->untruncated || tarn__json_file_set_bool(json, "rope_scaling.truncate", false));
    case TARN_ROPE_LONGROPE:
        return write_optional(json, "attention_factor", rope->attention_factor) &&
               write_factors(json, "short_factor", c->rope_factors[0], rope->dims / 2) &&
               write_factors(json, "long_factor", c->rope_factors[1], rope->dims / 2);
    default: return true;
    }
}

bool tarn__config_write_rope(const tarn_lm_config *c, tarn__json_file *json)
{
    const tarn__arch *arch = tarn__arch_of_config(c);
    double part = (double)c->rope.dims / (double)c->head_dim;
    if ((int64_t)((double)c->head_dim * part) < c->rope.dims)
        part = nextafter(part, 1); /* readers truncate the product: 30 of 44 would be 29 */
    return tarn__json_file_set_real(json, base_key(arch), c->rope.base) &&
           (!arch->has_local_rope || tarn__json_file_set_real(json, "rope_local_base_freq", c->rope_local_base)) &&
           (!(arch->rotary_factor > 0 || part != 1) || tarn__json_file_set_real(json, rotary_key(arch), part)) &&
           write_scaling(c, arch, json);
}
