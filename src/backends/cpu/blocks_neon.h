/* blocks_neon.h: chunks of blocks on AArch64 with its products of bytes. Included where NAMED(x) ends in _neon; ENGINE carries the target.
 *
 * A group is one vector of 16 bytes; they are unpacked one by one, and four at a time are turned into the lanes' order. */

typedef struct NAMED(chunk) {
    int8x16_t q[4][4]; /* [t][lanes 4 j to 4 j + 3] */
    float32x4_t scale[4], least[4];
} NAMED(chunk);

typedef struct NAMED(sums) {
    float32x4_t lane[4];
} NAMED(sums);

/* Sixteen groups and their numbers, in order, to lanes. */
static inline ENGINE void NAMED(turn)(NAMED(chunk) *to, const uint8x16_t *group, const float *scale, const float *least)
{
    for (int j = 0; j < 4; j++) {
        int32x4_t a = vreinterpretq_s32_u8(group[j]), b = vreinterpretq_s32_u8(group[4 + j]), c = vreinterpretq_s32_u8(group[8 + j]),
                  d = vreinterpretq_s32_u8(group[12 + j]);
        int64x2_t ab_even = vreinterpretq_s64_s32(vtrn1q_s32(a, b)), ab_odd = vreinterpretq_s64_s32(vtrn2q_s32(a, b));
        int64x2_t cd_even = vreinterpretq_s64_s32(vtrn1q_s32(c, d)), cd_odd = vreinterpretq_s64_s32(vtrn2q_s32(c, d));
        to->q[0][j] = vreinterpretq_s8_s64(vtrn1q_s64(ab_even, cd_even));
        to->q[1][j] = vreinterpretq_s8_s64(vtrn1q_s64(ab_odd, cd_odd));
        to->q[2][j] = vreinterpretq_s8_s64(vtrn2q_s64(ab_even, cd_even));
        to->q[3][j] = vreinterpretq_s8_s64(vtrn2q_s64(ab_odd, cd_odd));
        to->scale[j] = (float32x4_t){scale[j], scale[4 + j], scale[8 + j], scale[12 + j]};
        to->least[j] = (float32x4_t){least[j], least[4 + j], least[8 + j], least[12 + j]};
    }
}

static inline ENGINE void NAMED(unpack_q8_0)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q8_0 *b = (const void *)blocks;
    uint8x16_t group[GROUPS];
    float scale[GROUPS], least[GROUPS] = {0};
    for (int g = 0; g < GROUPS; g++) {
        group[g] = vreinterpretq_u8_s8(vld1q_s8(b[g / 2].q + g % 2 * 16));
        scale[g] = tarn__f16_to_f32(b[g / 2].scale);
    }
    NAMED(turn)(to, group, scale, least);
}

static inline ENGINE uint8x16_t NAMED(nibbles)(const uint8_t *q, bool high)
{
    uint8x16_t both = vld1q_u8(q);
    return high ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
}

static inline ENGINE void NAMED(unpack_q4_0)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q4_0 *b = (const void *)blocks;
    uint8x16_t group[GROUPS];
    float scale[GROUPS], least[GROUPS] = {0};
    for (int g = 0; g < GROUPS; g++) {
        group[g] = NAMED(nibbles)(b[g / 2].q, g % 2);
        scale[g] = tarn__f16_to_f32(b[g / 2].scale);
    }
    NAMED(turn)(to, group, scale, least);
}

static inline ENGINE void NAMED(unpack_q4_k)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q4_k *b = (const void *)blocks;
    uint8x16_t group[GROUPS];
    float of_scales = tarn__f16_to_f32(b->scale), of_leasts = tarn__f16_to_f32(b->least), scale[GROUPS], least[GROUPS];
    uint8_t codes[16];
    codes_plain(b, codes);
    for (int g = 0; g < GROUPS; g++) {
        group[g] = NAMED(nibbles)(b->q + g / 4 * 32 + g % 2 * 16, g / 2 % 2);
        scale[g] = of_scales * (float)codes[g / 2];
        least[g] = of_leasts * (float)codes[8 + g / 2];
    }
    NAMED(turn)(to, group, scale, least);
}

static inline ENGINE void NAMED(unpack_q6_k)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q6_k *b = (const void *)blocks;
    uint8x16_t group[GROUPS];
    float of_scales = tarn__f16_to_f32(b->scale), scale[GROUPS], least[GROUPS] = {0};
    for (int g = 0; g < GROUPS; g++) {
        int half = g / 8, part = g % 8 / 2, at = g % 2 * 16;
        int8x16_t shift = vdupq_n_s8((int8_t)(4 - 2 * part)); /* the two bits go to where 16 and 32 are */
        uint8x16_t high = vandq_u8(vshlq_u8(vld1q_u8(b->high + half * 32 + at), shift), vdupq_n_u8(48));
        group[g] = vorrq_u8(NAMED(nibbles)(b->low + half * 64 + part % 2 * 32 + at, part / 2), high);
        scale[g] = of_scales * (float)b->scales[g];
    }
    NAMED(turn)(to, group, scale, least);
}

static inline ENGINE void NAMED(save)(const NAMED(chunk) *from, w_chunk *to)
{
    for (int j = 0; j < 4; j++) {
        for (int t = 0; t < 4; t++)
            vst1q_s8((int8_t *)to->q + 64 * t + 16 * j, from->q[t][j]);
        vst1q_f32(to->scale + 4 * j, from->scale[j]);
        vst1q_f32(to->least + 4 * j, from->least[j]);
    }
}

static inline ENGINE void NAMED(load)(const w_chunk *from, NAMED(chunk) *to)
{
    for (int j = 0; j < 4; j++) {
        for (int t = 0; t < 4; t++)
            to->q[t][j] = vld1q_s8((const int8_t *)from->q + 64 * t + 16 * j);
        to->scale[j] = vld1q_f32(from->scale + 4 * j);
        to->least[j] = vld1q_f32(from->least + 4 * j);
    }
}

static inline ENGINE void NAMED(add)(NAMED(sums) *sums, const NAMED(chunk) *w, const x_chunk *x, bool has_least)
{
    for (int j = 0; j < 4; j++) {
        int32x4_t sum = vld1q_s32(x->start + 4 * j);
        for (int t = 0; t < 4; t++)
            sum = vdotq_s32(sum, w->q[t][j], vld1q_s8(x->q + 64 * t + 16 * j));
        sums->lane[j] = vfmaq_f32(sums->lane[j], vcvtq_f32_s32(sum), vmulq_f32(w->scale[j], vld1q_f32(x->scale + 4 * j)));
        if (has_least)
            sums->lane[j] = vfmsq_f32(sums->lane[j], w->least[j], vld1q_f32(x->sum + 4 * j));
    }
}

static inline ENGINE float NAMED(total)(const NAMED(sums) *sums)
{
    float32x4_t four = vaddq_f32(vaddq_f32(sums->lane[0], sums->lane[2]), vaddq_f32(sums->lane[1], sums->lane[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
