/* blocks_avx2.h: chunks of blocks on AVX2. Included where NAMED(x) ends in _avx2.
 *
 * Two products of bytes are added in 16 bits, which holds them: one side is at most 128, the other 127. */

typedef struct NAMED(chunk) {
    __m256i q[2][4]; /* lanes 0 to 7, and 8 to 15 */
    __m256 scale[2], least[2];
} NAMED(chunk);

typedef struct NAMED(sums) {
    __m256 lane[2];
} NAMED(sums);

/* The scales of a block's eight groups, then their leasts, a byte each. The four bytes behind the scales are the block's own, too. */
static inline __m128i q4_k_codes(const tarn__q4_k *block)
{
    __m128i bytes = _mm_loadu_si128((const void *)block->scales), low = _mm_shuffle_epi32(bytes, 0x98), high = _mm_shuffle_epi32(bytes, 0x40);
    low = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)), _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    return _mm_or_si128(low, _mm_and_si128(_mm_srli_epi32(high, 2), _mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
}

/* An f16 in four lanes' first. */
static inline __m128 f16_alone(uint16_t bits)
{
    return _mm_cvtph_ps(_mm_cvtsi32_si128(bits));
}

/* a to d are the first, or the second, 32 elements of each 64. */
static inline void NAMED(turn)(__m256i *to, __m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    to[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
    to[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
    to[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
    to[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}

/* Numbers of 8 pairs of groups in the lanes' order. */
static inline void NAMED(lanes_of_8)(__m256 *to, __m256 pairs)
{
    to[0] = _mm256_permutevar8x32_ps(pairs, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    to[1] = _mm256_permutevar8x32_ps(pairs, _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7));
}

static inline void NAMED(no_least)(NAMED(chunk) *to)
{
    to->least[0] = to->least[1] = _mm256_setzero_ps();
}

/* The scales of eight blocks, gathered by the other half of the processor: vectors have enough to do. */
#define FOUR_SCALES(b) (long long)((uint64_t)(b)[0].scale | (uint64_t)(b)[1].scale << 16 | (uint64_t)(b)[2].scale << 32 | (uint64_t)(b)[3].scale << 48)
#define SCALES_OF_8(b) _mm256_cvtph_ps(_mm_set_epi64x(FOUR_SCALES((b) + 4), FOUR_SCALES(b)))

#define LOAD_32(from) _mm256_loadu_si256((const void *)(from))

static inline void NAMED(unpack_q8_0)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q8_0 *b = (const void *)blocks;
    NAMED(turn)(to->q[0], LOAD_32(b[0].q), LOAD_32(b[2].q), LOAD_32(b[4].q), LOAD_32(b[6].q));
    NAMED(turn)(to->q[1], LOAD_32(b[1].q), LOAD_32(b[3].q), LOAD_32(b[5].q), LOAD_32(b[7].q));
    NAMED(lanes_of_8)(to->scale, SCALES_OF_8(b));
    NAMED(no_least)(to);
}

/* A block's low nibbles, then its high ones. */
static inline __m256i NAMED(nibbles)(const tarn__q4_0 *b)
{
    __m128i q = _mm_loadu_si128((const void *)b->q);
    return _mm256_and_si256(_mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1), _mm256_set1_epi8(15));
}

static inline void NAMED(unpack_q4_0)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q4_0 *b = (const void *)blocks;
    NAMED(turn)(to->q[0], NAMED(nibbles)(b), NAMED(nibbles)(b + 2), NAMED(nibbles)(b + 4), NAMED(nibbles)(b + 6));
    NAMED(turn)(to->q[1], NAMED(nibbles)(b + 1), NAMED(nibbles)(b + 3), NAMED(nibbles)(b + 5), NAMED(nibbles)(b + 7));
    NAMED(lanes_of_8)(to->scale, SCALES_OF_8(b));
    NAMED(no_least)(to);
}

static inline void NAMED(unpack_q4_k)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q4_k *b = (const void *)blocks;
    __m256i low = _mm256_set1_epi8(15), a = LOAD_32(b->q), c = LOAD_32(b->q + 32), d = LOAD_32(b->q + 64), e = LOAD_32(b->q + 96);
    NAMED(turn)(to->q[0], _mm256_and_si256(a, low), _mm256_and_si256(c, low), _mm256_and_si256(d, low), _mm256_and_si256(e, low));
    NAMED(turn)(to->q[1], _mm256_and_si256(_mm256_srli_epi16(a, 4), low), _mm256_and_si256(_mm256_srli_epi16(c, 4), low),
                _mm256_and_si256(_mm256_srli_epi16(d, 4), low), _mm256_and_si256(_mm256_srli_epi16(e, 4), low));
    __m128i both = q4_k_codes(b);
    __m256 scale = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(both)), least = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(both, 8)));
    NAMED(lanes_of_8)(to->scale, _mm256_mul_ps(scale, _mm256_broadcastss_ps(f16_alone(b->scale))));
    NAMED(lanes_of_8)(to->least, _mm256_mul_ps(least, _mm256_broadcastss_ps(f16_alone(b->least))));
}

/* Elements 32 · part of half `h` on. */
static inline __m256i NAMED(six_bits)(const tarn__q6_k *b, int h, int part)
{
    __m256i low = LOAD_32(b->low + h * 64 + part % 2 * 32), high = LOAD_32(b->high + h * 32);
    low = part < 2 ? low : _mm256_srli_epi16(low, 4);
    high = part == 0 ? _mm256_slli_epi16(high, 4) : part == 1 ? _mm256_slli_epi16(high, 2) : part == 2 ? high : _mm256_srli_epi16(high, 2);
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), _mm256_and_si256(high, _mm256_set1_epi8(48)));
}

static inline void NAMED(unpack_q6_k)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q6_k *b = (const void *)blocks;
    for (int i = 0; i < 2; i++)
        NAMED(turn)(to->q[i], NAMED(six_bits)(b, 0, i), NAMED(six_bits)(b, 0, 2 + i), NAMED(six_bits)(b, 1, i), NAMED(six_bits)(b, 1, 2 + i));
    __m128i bytes = _mm_loadu_si128((const void *)b->scales); /* turned, then one number for each lane */
    bytes = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m256 scale = _mm256_broadcastss_ps(f16_alone(b->scale));
    to->scale[0] = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
    to->scale[1] = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
    NAMED(no_least)(to);
}

static inline void NAMED(save)(const NAMED(chunk) *from, w_chunk *to)
{
    for (int i = 0; i < 2; i++) {
        for (int t = 0; t < 4; t++)
            _mm256_store_si256((void *)(to->q + 64 * t + 32 * i), from->q[i][t]);
        _mm256_store_ps(to->scale + 8 * i, from->scale[i]);
        _mm256_store_ps(to->least + 8 * i, from->least[i]);
    }
}

static inline void NAMED(load)(const w_chunk *from, NAMED(chunk) *to)
{
    for (int i = 0; i < 2; i++) {
        for (int t = 0; t < 4; t++)
            to->q[i][t] = _mm256_load_si256((const void *)(from->q + 64 * t + 32 * i));
        to->scale[i] = _mm256_load_ps(from->scale + 8 * i);
        to->least[i] = _mm256_load_ps(from->least + 8 * i);
    }
}

static inline void NAMED(add)(NAMED(sums) *sums, const NAMED(chunk) *w, const x_chunk *x, bool has_least)
{
    for (int i = 0; i < 2; i++) {
        __m256i sum = _mm256_load_si256((const void *)(x->start + 8 * i));
        for (int t = 0; t < 4; t++) { /* the instruction takes one side without a sign: the weight gives its own to x */
            __m256i q = w->q[i][t], of_x = _mm256_sign_epi8(_mm256_load_si256((const void *)(x->q + 64 * t + 32 * i)), q);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(q), of_x), _mm256_set1_epi16(1)));
        }
        __m256 scale = _mm256_mul_ps(w->scale[i], _mm256_load_ps(x->scale + 8 * i));
        sums->lane[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, sums->lane[i]);
        if (has_least)
            sums->lane[i] = _mm256_fnmadd_ps(w->least[i], _mm256_load_ps(x->sum + 8 * i), sums->lane[i]);
    }
}

static inline float NAMED(total)(const NAMED(sums) *sums)
{
    __m256 eight = _mm256_add_ps(sums->lane[0], sums->lane[1]);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
