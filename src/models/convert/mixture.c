/* mixture.c: mixtures by llama.cpp's names (Q4_K_M): the type of each tensor of a quantized file.
 *
 * A mixture has a base type. The head, or the token embedding that is tied to it, gets Q6_K (Q8_0 in Q8_0 files);
 * value projections, output projections and ffn_down, the sensitive matrices, get more bits in some or all layers. The
 * rules are llama.cpp's, so that a file of a name has the size that people know. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/dtype.h"
#include "models/convert/convert.h"

/* general.file_type numbers. */
enum {
    F16 = 1,
    Q4_0,
    Q4_1,
    Q8_0 = 7,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
    Q6_K,
    IQ4_NL = 25,
    IQ4_XS = 30,
    BF16 = 32
};

static const tarn__mixture mixtures[] = {
    {"Q2_K", Q2_K, TARN_Q2_K},       {"Q3_K_S", Q3_K_S, TARN_Q3_K}, {"Q3_K_M", Q3_K_M, TARN_Q3_K},
    {"Q3_K_L", Q3_K_L, TARN_Q3_K},   {"Q4_0", Q4_0, TARN_Q4_0},     {"Q4_1", Q4_1, TARN_Q4_1},
    {"Q4_K_S", Q4_K_S, TARN_Q4_K},   {"Q4_K_M", Q4_K_M, TARN_Q4_K}, {"Q5_0", Q5_0, TARN_Q5_0},
    {"Q5_1", Q5_1, TARN_Q5_1},       {"Q5_K_S", Q5_K_S, TARN_Q5_K}, {"Q5_K_M", Q5_K_M, TARN_Q5_K},
    {"Q6_K", Q6_K, TARN_Q6_K},       {"Q8_0", Q8_0, TARN_Q8_0},     {"IQ4_NL", IQ4_NL, TARN_IQ4_NL},
    {"IQ4_XS", IQ4_XS, TARN_IQ4_XS},
};
#define MIXTURES (int)(sizeof(mixtures) / sizeof(mixtures[0]))

const char *tarn_convert_mixture_at(int index)
{
    return index >= 0 && index < MIXTURES ? mixtures[index].name : NULL;
}

const tarn__mixture *tarn__mixture_named(const char *name)
{
    for (int i = 0; i < MIXTURES; i++)
        if (strcasecmp(mixtures[i].name, name) == 0)
            return &mixtures[i];
    return NULL;
}

/* A file whose matrices mostly have a type. Of the types with several mixtures it is the smallest. */
uint32_t tarn__file_type_of(tarn_dtype dtype)
{
    for (int i = 0; i < MIXTURES; i++)
        if (mixtures[i].base == dtype)
            return mixtures[i].file_type;
    return dtype == TARN_F16 ? F16 : dtype == TARN_BF16 ? BF16 : 0;
}

/* The first and last eighth of the layers, and every third one between. */
static bool has_more_bits(int64_t layer, int64_t layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static bool is_iq4(const tarn__mixture *m)
{
    return m->file_type == IQ4_NL || m->file_type == IQ4_XS;
}

/* Values are small where several heads share them, so more bits cost little there. */
static tarn_dtype type_of_value(const tarn__mixture *m, int64_t layer, const tarn_lm_config *t)
{
    bool is_grouped = t->kv_heads > 0 && t->heads / t->kv_heads >= 4; /* few values, read by many heads */
    switch (m->file_type) {
    case Q2_K: return is_grouped ? TARN_Q4_K : TARN_Q3_K;
    case Q3_K_M: return layer < 2 ? TARN_Q5_K : TARN_Q4_K;
    case Q3_K_L: return TARN_Q5_K;
    case Q4_K_S: return layer < 4 ? TARN_Q5_K : m->base;
    case Q4_K_M:
    case Q5_K_M: return has_more_bits(layer, t->layers) ? TARN_Q6_K : m->base;
    default: return is_iq4(m) && is_grouped ? TARN_Q5_K : m->base;
    }
}

static tarn_dtype type_of_down(const tarn__mixture *m, int64_t layer, int64_t layers, bool has_importance)
{
    bool is_first = layer < layers / 8;
    switch (m->file_type) {
    case Q2_K: return TARN_Q3_K;
    case Q3_K_M: return layer < layers / 16 ? TARN_Q5_K : TARN_Q4_K;
    case Q3_K_L: return TARN_Q5_K;
    case Q4_K_S: return is_first ? TARN_Q5_K : m->base;
    case Q4_K_M:
    case Q5_K_M: return has_more_bits(layer, layers) ? TARN_Q6_K : m->base;
    case Q4_0: return is_first && has_importance ? TARN_Q4_1 : m->base;
    case Q5_0: return is_first && has_importance ? TARN_Q5_1 : m->base;
    default: return is_iq4(m) && is_first && !has_importance ? TARN_Q5_K : m->base;
    }
}

static tarn_dtype type_of_output(const tarn__mixture *m)
{
    return m->file_type == Q2_K     ? TARN_Q3_K
           : m->file_type == Q3_K_M ? TARN_Q4_K
           : m->file_type == Q3_K_L ? TARN_Q5_K
                                    : m->base;
}

static tarn_dtype type_of_qkv(const tarn__mixture *m)
{
    return m->file_type == Q3_K_M || m->file_type == Q3_K_L ? TARN_Q4_K
           : m->file_type == Q4_K_M                         ? TARN_Q5_K
           : m->file_type == Q5_K_M                         ? TARN_Q6_K
                                                            : m->base;
}

tarn_dtype tarn__mixture_type(const tarn__mixture *m, const tarn_lm_config *t, const char *name, bool is_head,
                              bool has_importance)
{
    if (is_head)
        return m->base == TARN_Q8_0 ? TARN_Q8_0 : TARN_Q6_K;
    int64_t layer = strncmp(name, "blk.", 4) == 0 ? strtoll(name + 4, NULL, 10) : 0;
    if (strstr(name, "attn_v.weight"))
        return type_of_value(m, layer, t);
    if (strstr(name, "ffn_down"))
        return type_of_down(m, layer, t->layers, has_importance);
    if (strstr(name, "attn_output.weight"))
        return type_of_output(m);
    return strstr(name, "attn_qkv.weight") ? type_of_qkv(m) : m->base;
}

tarn_dtype tarn__mixture_fallback(tarn_dtype dtype, int64_t row)
{
    if (row % tarn__dtypes[dtype].block_elements == 0)
        return dtype;
    return dtype == TARN_Q4_K   ? TARN_Q5_0
           : dtype == TARN_Q5_K ? TARN_Q5_1
           : dtype == TARN_Q6_K ? TARN_Q8_0
                                : TARN_IQ4_NL;
}
