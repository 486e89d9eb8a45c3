/* blocks_plain.h: chunks of blocks in plain C. Included where NAMED(x) ends in _plain. */

typedef w_chunk NAMED(chunk);

typedef struct NAMED(sums) {
    float lane[GROUPS];
} NAMED(sums);

/* The scales of a block's eight groups, then their leasts. */
static inline void NAMED(codes)(const tarn__q4_k *block, uint8_t *codes)
{
    uint32_t s[3], to[4];
    memcpy(s, block->scales, sizeof(s));
    to[0] = s[0] & 0x3f3f3f3fu;
    to[1] = (s[2] & 0x0f0f0f0fu) | (s[0] >> 6 & 0x03030303u) << 4;
    to[2] = s[1] & 0x3f3f3f3fu;
    to[3] = (s[2] >> 4 & 0x0f0f0f0fu) | (s[1] >> 6 & 0x03030303u) << 4;
    memcpy(codes, to, sizeof(to));
}

/* Puts a group's 16 bytes and its numbers where they belong. */
static inline void NAMED(place)(NAMED(chunk) *to, int group, const uint8_t *q, float scale, float least)
{
    int lane = turned(group);
    for (int t = 0; t < 4; t++)
        memcpy(to->q + 64 * t + 4 * lane, q + 4 * t, 4);
    to->scale[lane] = scale;
    to->least[lane] = least;
}

static inline void NAMED(unpack_q8_0)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q8_0 *block = (const void *)blocks;
    for (int group = 0; group < GROUPS; group++)
        NAMED(place)(to, group, (const uint8_t *)block[group / 2].q + group % 2 * 16, tarn__f16_to_f32(block[group / 2].scale), 0);
}

static inline void NAMED(unpack_q4_0)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q4_0 *block = (const void *)blocks;
    uint8_t q[16];
    for (int group = 0; group < GROUPS; group++) {
        for (int i = 0; i < 16; i++)
            q[i] = block[group / 2].q[i] >> group % 2 * 4 & 15;
        NAMED(place)(to, group, q, tarn__f16_to_f32(block[group / 2].scale), 0);
    }
}

static inline void NAMED(unpack_q4_k)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q4_k *block = (const void *)blocks;
    float scale = tarn__f16_to_f32(block->scale), least = tarn__f16_to_f32(block->least);
    uint8_t codes[16], q[16];
    NAMED(codes)(block, codes);
    for (int group = 0; group < GROUPS; group++) {
        for (int i = 0; i < 16; i++)
            q[i] = block->q[group / 4 * 32 + group % 2 * 16 + i] >> group / 2 % 2 * 4 & 15;
        NAMED(place)(to, group, q, scale * (float)codes[group / 2], least * (float)codes[8 + group / 2]);
    }
}

static inline void NAMED(unpack_q6_k)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q6_k *block = (const void *)blocks;
    float scale = tarn__f16_to_f32(block->scale);
    uint8_t q[16];
    for (int group = 0; group < GROUPS; group++) {
        int half = group / 8, part = group % 8 / 2, at = group % 2 * 16;
        for (int i = 0; i < 16; i++)
            q[i] = (uint8_t)((block->low[half * 64 + part % 2 * 32 + at + i] >> part / 2 * 4 & 15) |
                             (block->high[half * 32 + at + i] >> part * 2 & 3) << 4);
        NAMED(place)(to, group, q, scale * (float)block->scales[group], 0);
    }
}

static inline void NAMED(save)(const NAMED(chunk) *from, w_chunk *to)
{
    *to = *from;
}

static inline void NAMED(load)(const w_chunk *from, NAMED(chunk) *to)
{
    *to = *from;
}

static inline void NAMED(add)(NAMED(sums) *sums, const NAMED(chunk) *w, const x_chunk *x, bool has_least)
{
    for (int lane = 0; lane < GROUPS; lane++) {
        int32_t sum = x->start[lane];
        for (int t = 0; t < 4; t++)
            for (int i = 0; i < 4; i++)
                sum += (int8_t)w->q[64 * t + 4 * lane + i] * x->q[64 * t + 4 * lane + i];
        sums->lane[lane] += (float)sum * (w->scale[lane] * x->scale[lane]);
        if (has_least)
            sums->lane[lane] -= w->least[lane] * x->sum[lane];
    }
}

static inline float NAMED(total)(const NAMED(sums) *sums)
{
    float part[4];
    for (int i = 0; i < 4; i++)
        part[i] = (sums->lane[i] + sums->lane[8 + i]) + (sums->lane[4 + i] + sums->lane[12 + i]);
    return (part[0] + part[2]) + (part[1] + part[3]);
}
