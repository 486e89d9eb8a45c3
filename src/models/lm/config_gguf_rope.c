/* config_gguf_rope.c: RoPE and its scalings as metadata of GGUF files.
 *
 * Keys are those of llama.cpp, with the values that make it compute the same. Settings that it only has the results of,
 * divisors of frequencies or a factor of cos and sin, also have keys of tarn's own, which begin with "tarn.rope". */
#include <math.h>
#include <string.h>

#include "formats/gguf.h"
#include "models/gguf/gguf_arch.h"
#include "ops/internal.h"

#define SCALING "tarn.rope.llama3"    /* factor, low_freq_factor, high_freq_factor, original context */
#define YARN "tarn.rope.yarn"         /* attention_factor, mscale, mscale_all_dim, 1 if not truncated; 0: default */
#define DYNAMIC "tarn.rope.dynamic"   /* factor */
#define LONGROPE "tarn.rope.longrope" /* factor */
#define FREQUENCIES TARN__GGUF_FREQUENCIES

typedef tarn__gguf_model_reader reader;

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Divisor of llama3's scaling for the frequency of a pair: 1 for short wavelengths, the factor for long ones,
 * interpolated between. */
static double factor_at(const tarn_lm_config *c, int64_t pair)
{
    const tarn_rope_options *o = &c->rope;
    double wavelength = 2 * 3.14159265358979323846 * pow(o->base, 2 * (double)pair / (double)o->dims);
    double rotations = (double)o->original_context / wavelength; /* over the context of training */
    double smooth = (rotations - o->low_freq_factor) / (o->high_freq_factor - o->low_freq_factor);
    return smooth >= 1 ? 1 : smooth <= 0 ? o->factor : 1 / ((1 - smooth) / o->factor + smooth);
}

/* Writes the parameters for tarn, and the divisors as a tensor for llama.cpp. */
static bool put_llama3(const tarn_lm_config *c, tarn_gguf_writer *writer)
{
    const tarn_rope_options *o = &c->rope;
    const double params[] = {o->factor, o->low_freq_factor, o->high_freq_factor, (double)o->original_context};
    float factors[TARN__ROPE_PAIRS];
    int64_t pairs = o->dims / 2;
    for (int64_t i = 0; i < pairs; i++)
        factors[i] = (float)factor_at(c, i);
    tarn_tensor *tensor = tarn_from_f32(factors, TARN_SHAPE(pairs), tarn_device_cpu());
    return tarn_gguf_add_array(writer, SCALING, TARN_GGUF_F64, params, 4) && tensor &&
           tarn_gguf_add(writer, FREQUENCIES, tensor);
}

/* Factor of cos and sin of yarn where a model gives no other; llama.cpp's attn_factor is relative to it. */
static double yarn_magnitude(const tarn_rope_options *o)
{
    return tarn__rope_magnitude(&(tarn_rope_options){.scaling = TARN_ROPE_YARN, .factor = o->factor});
}

/* What llama.cpp has no keys for is in an array of tarn's own. */
static bool put_yarn(const tarn_lm_config *c, const char *a, tarn_gguf_writer *writer)
{
    const tarn_rope_options *o = &c->rope;
    double relative = tarn__rope_magnitude(o) / yarn_magnitude(o);
    const double own[] = {o->attention_factor, o->mscale, o->mscale_all_dim, o->untruncated};
    return tarn__gguf_put_int(writer, a, "rope.scaling.original_context_length", o->original_context) &&
           tarn__gguf_put_real(writer, a, "rope.scaling.yarn_beta_fast", o->beta_fast > 0 ? o->beta_fast : 32) &&
           tarn__gguf_put_real(writer, a, "rope.scaling.yarn_beta_slow", o->beta_slow > 0 ? o->beta_slow : 1) &&
           (relative == 1 || tarn__gguf_put_real(writer, a, "rope.scaling.attn_factor", relative)) &&
           tarn_gguf_add_array(writer, YARN, TARN_GGUF_F64, own, 4);
}

/* Divisors as tensors, and the factor of cos and sin, as llama.cpp's converter resolves it. There is no
 * rope.scaling.factor: llama.cpp would divide all angles by it. */
static bool put_longrope(const tarn_lm_config *c, const char *a, tarn_gguf_writer *writer)
{
    static const char *const names[] = {TARN__GGUF_SHORT_FACTORS, TARN__GGUF_LONG_FACTORS};
    const tarn_rope_options *o = &c->rope;
    bool good = tarn__gguf_put_int(writer, a, "rope.scaling.original_context_length", o->original_context) &&
                tarn__gguf_put_real(writer, a, "rope.scaling.attn_factor", tarn__rope_magnitude(o)) &&
                tarn_gguf_add_value(writer, LONGROPE, TARN_GGUF_F64, &o->factor) &&
                (!(o->attention_factor > 0) ||
                 tarn_gguf_add_array(writer, YARN, TARN_GGUF_F64, (double[]){o->attention_factor, 0, 0, 0}, 4));
    for (int i = 0; good && i < 2; i++) {
        tarn_tensor *tensor = tarn_from_f32(c->rope_factors[i], TARN_SHAPE(o->dims / 2), tarn_device_cpu());
        good = tensor && tarn_gguf_add(writer, names[i], tensor);
    }
    return good;
}

bool tarn__gguf_put_rope(const tarn_lm_config *c, const tarn__arch *arch, tarn_gguf_writer *writer)
{
    tarn__gguf_path to;
    const char *a = arch->gguf, *type = tarn__gguf_key_of(a, "rope.scaling.type", &to);
    if (!tarn__gguf_put_real(writer, a, "rope.freq_base", c->rope.base) ||
        !tarn__gguf_put_int(writer, a, "rope.dimension_count", c->rope.dims) ||
        (arch->has_local_rope && !tarn__gguf_put_real(writer, a, "rope.freq_base_swa", c->rope_local_base)))
        return false;
    switch (c->rope.scaling) {
    case TARN_ROPE_LINEAR:
        return tarn__gguf_put_string(writer, type, "linear") &&
               tarn__gguf_put_real(writer, a, "rope.scaling.factor", c->rope.factor);
    case TARN_ROPE_YARN:
        return tarn__gguf_put_string(writer, type, "yarn") &&
               tarn__gguf_put_real(writer, a, "rope.scaling.factor", c->rope.factor) && put_yarn(c, a, writer);
    case TARN_ROPE_LONGROPE: return tarn__gguf_put_string(writer, type, "longrope") && put_longrope(c, a, writer);
    case TARN_ROPE_DYNAMIC: return tarn_gguf_add_value(writer, DYNAMIC, TARN_GGUF_F64, &c->rope.factor);
    case TARN_ROPE_LLAMA3: return put_llama3(c, writer);
    default: return true;
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool has_tensor(const reader *r, const char *name)
{
    return tarn_gguf_find(r->of.file, name) >= 0;
}

/* True if a tensor holds the divisors that follow from the configuration. */
static bool are_factors(const tarn_lm_config *c, const float *factors, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++)
        if (!(fabs(factor_at(c, i) - (double)factors[i]) <= 1e-4 * fabs((double)factors[i])))
            return false;
    return true;
}

/* Files of other programs have the divisors only: the other parameters are those of the published Llama 3 models,
 * and the divisors are verified against them. */
static bool get_llama3(const reader *r, int index)
{
    tarn_rope_options *o = &r->c->rope;
    tarn_gguf_entry entry;
    double params[4] = {0, 1, 4, 8192};
    float factors[TARN__ROPE_PAIRS];
    if (!tarn_gguf_info(r->of.file, index, &entry))
        return false;
    int64_t pairs = entry.shape.size[0];
    if (entry.dtype != TARN_F32 || entry.shape.rank != 1 || pairs * 2 != o->dims || pairs > TARN__ROPE_PAIRS)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': tensor '" FREQUENCIES "' must be f32 with one element per pair of a head",
                           r->of.function, r->of.file->path);
    memcpy(factors, tarn__gguf_elements(r->of.file, index), (size_t)entry.bytes);
    params[0] = (double)factors[pairs - 1];
    if (tarn_gguf_has(r->of.file, SCALING, NULL) && !tarn_gguf_reals(r->of.file, SCALING, params, 4))
        return tarn__raise_within(r->of.function);
    o->scaling = TARN_ROPE_LLAMA3;
    o->factor = params[0];
    o->low_freq_factor = params[1];
    o->high_freq_factor = params[2];
    o->original_context = params[3] >= 1 && params[3] <= TARN__GGUF_MAX_INT ? (int64_t)params[3] : 0;
    bool good = o->original_context && o->factor >= 1 && o->low_freq_factor > 0 &&
                o->high_freq_factor > o->low_freq_factor && are_factors(r->c, factors, pairs);
    return good || tarn__gguf_unsupported(&r->of, "a '" FREQUENCIES "' other than of Llama 3's scaling");
}

/* Settings of yarn and longrope that llama.cpp has no keys for. */
static bool get_own_rope(const reader *r)
{
    double own[4] = {0};
    if (!tarn_gguf_has(r->of.file, YARN, NULL))
        return true;
    if (!tarn_gguf_reals(r->of.file, YARN, own, 4))
        return tarn__raise_within(r->of.function);
    for (int i = 0; i < 4; i++)
        if (!(own[i] >= 0 && isfinite(own[i])))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '" YARN "' has %g; they must be at least 0",
                               r->of.function, r->of.file->path, own[i]);
    r->c->rope.attention_factor = own[0];
    r->c->rope.mscale = own[1];
    r->c->rope.mscale_all_dim = own[2];
    r->c->rope.untruncated = own[3] != 0;
    return true;
}

static bool get_original_context(const reader *r)
{
    return tarn__gguf_get_int(&r->of, "rope.scaling.original_context_length", r->c->context,
                              &r->c->rope.original_context);
}

/* The factor of cos and sin, relative to `unit`, where the file has another than the settings give. */
static bool get_magnitude(const reader *r, double unit)
{
    tarn_rope_options *o = &r->c->rope;
    double usual = tarn__rope_magnitude(o) / unit, found;
    if (!tarn__gguf_get_real(&r->of, "rope.scaling.attn_factor", usual, &found))
        return false;
    if (!(o->attention_factor > 0) && fabs(found - usual) > 1e-5 * usual)
        o->attention_factor = found * unit;
    return true;
}

static bool get_yarn(const reader *r)
{
    tarn_rope_options *o = &r->c->rope;
    o->scaling = TARN_ROPE_YARN;
    return tarn__gguf_get_real(&r->of, "rope.scaling.factor", 0, &o->factor) && get_original_context(r) &&
           tarn__gguf_get_real(&r->of, "rope.scaling.yarn_beta_fast", 32, &o->beta_fast) &&
           tarn__gguf_get_real(&r->of, "rope.scaling.yarn_beta_slow", 1, &o->beta_slow) && get_own_rope(r) &&
           get_magnitude(r, yarn_magnitude(o));
}

/* Divisors of longrope, from a tensor. */
static bool get_factors(const reader *r, const char *name, float *factors)
{
    tarn_gguf_entry e;
    int index = tarn_gguf_find(r->of.file, name);
    bool good = index >= 0 && tarn_gguf_info(r->of.file, index, &e) && e.dtype == TARN_F32 && e.shape.rank == 1 &&
                e.shape.size[0] * 2 == r->c->rope.dims && e.shape.size[0] <= TARN_LM_MAX_PAIRS;
    if (!good)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': tensor '%s' must be f32 with one element per pair",
                           r->of.function, r->of.file->path, name);
    memcpy(factors, tarn__gguf_elements(r->of.file, index), (size_t)e.bytes);
    return true;
}

/* The factor of cos and sin follows from the contexts where the file has no other. */
static bool get_longrope(const reader *r)
{
    tarn_rope_options *o = &r->c->rope;
    o->scaling = TARN_ROPE_LONGROPE;
    if (!get_original_context(r) || !get_factors(r, TARN__GGUF_SHORT_FACTORS, r->c->rope_factors[0]) ||
        !get_factors(r, TARN__GGUF_LONG_FACTORS, r->c->rope_factors[1]))
        return false;
    double factor = (double)r->c->context / (double)o->original_context;
    if (tarn_gguf_has(r->of.file, LONGROPE, NULL) && !tarn_gguf_real(r->of.file, LONGROPE, &factor))
        return tarn__raise_within(r->of.function);
    return tarn__gguf_get_real(&r->of, "rope.scaling.factor", factor > 0 ? factor : 1, &o->factor) && get_own_rope(r) &&
           get_magnitude(r, 1);
}

/* Bases: that of layers with a window is fixed in most programs. */
static bool get_bases(const reader *r)
{
    double base = r->arch->rope_base > 0 ? r->arch->rope_base : 10000;
    return tarn__gguf_get_real(&r->of, "rope.freq_base", r->arch->has_local_rope ? base : 10000, &r->c->rope.base) &&
           (!r->arch->has_local_rope ||
            tarn__gguf_get_real(&r->of, "rope.freq_base_swa", r->arch->rope_local_base, &r->c->rope_local_base));
}

bool tarn__gguf_get_rope(const tarn__gguf_model_reader *r)
{
    tarn_rope_options *o = &r->c->rope;
    tarn__gguf_path to;
    int frequencies = tarn_gguf_find(r->of.file, FREQUENCIES);
    if (!get_bases(r))
        return false;
    double linear = 1; /* of files before rope.scaling */
    const char *type =
        tarn__gguf_has_key(&r->of, "rope.scaling.type")
            ? tarn_gguf_string(r->of.file, tarn__gguf_key_of(r->of.architecture, "rope.scaling.type", &to), NULL)
        : has_tensor(r, TARN__GGUF_LONG_FACTORS) || has_tensor(r, TARN__GGUF_SHORT_FACTORS) ? "longrope"
        : tarn__gguf_has_key(&r->of, "rope.scaling.factor") ? "linear" /* as in llama.cpp */
                                                            : "none";
    if (!type)
        return tarn__raise_within(r->of.function);
    if (!tarn__gguf_get_real(&r->of, "rope.scale_linear", 1, &linear))
        return false;
    if (linear != 1)
        return tarn__gguf_unsupported(&r->of, "'rope.scale_linear', which newer files write as rope.scaling,");
    if (tarn_gguf_has(r->of.file, DYNAMIC, NULL)) {
        o->scaling = TARN_ROPE_DYNAMIC;
        o->original_context = r->c->context;
        return tarn_gguf_real(r->of.file, DYNAMIC, &o->factor) || tarn__raise_within(r->of.function);
    }
    bool is_none = strcmp(type, "none") == 0, is_longrope = strcmp(type, "longrope") == 0;
    if (!is_longrope && (has_tensor(r, TARN__GGUF_LONG_FACTORS) || has_tensor(r, TARN__GGUF_SHORT_FACTORS)))
        return tarn__gguf_unsupported(&r->of, "another RoPE scaling together with longrope's factors");
    if (!is_none && frequencies >= 0)
        return tarn__gguf_unsupported(&r->of, strcmp(type, "linear") == 0
                                                  ? "linear scaling together with '" FREQUENCIES "'"
                                                  : "RoPE scaling together with '" FREQUENCIES "'");
    if (is_none)
        return frequencies < 0 || get_llama3(r, frequencies);
    if (strcmp(type, "yarn") == 0)
        return get_yarn(r);
    if (is_longrope)
        return get_longrope(r);
    o->scaling = TARN_ROPE_LINEAR;
    return strcmp(type, "linear") == 0
               ? tarn__gguf_get_real(&r->of, "rope.scaling.factor", 0, &o->factor)
               : tarn__raise(TARN_ERROR_UNSUPPORTED,
                             "%s: '%s': RoPE scaling '%.64s' is not supported; linear, llama3, yarn and longrope are",
                             r->of.function, r->of.file->path, type);
}
