/* blocks_vnni.h: chunks of blocks on AVX-512 with its products of bytes. Included after blocks_avx2.h, where NAMED(x) ends in _vnni; ENGINE
 * carries the target. */

typedef struct NAMED(chunk) {
    __m512i q[4];
    __m512 scale, least;
} NAMED(chunk);

typedef struct NAMED(sums) {
    __m512 lane;
} NAMED(sums);

/* Rows of a to d are elements 0 to 63, 64 to 127 …; lanes as turned() has them. */
static inline ENGINE void NAMED(turn)(NAMED(chunk) *to, __m512i a, __m512i b, __m512i c, __m512i d)
{
    __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    to->q[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
    to->q[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    to->q[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    to->q[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

/* Numbers of 16 groups, or of 8 pairs of them, in the lanes' order. */
static inline ENGINE __m512 NAMED(lanes_of_16)(__m512 groups)
{
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), groups);
}

static inline ENGINE __m512 NAMED(lanes_of_8)(__m256 pairs)
{
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7), _mm512_castps256_ps512(pairs));
}

static inline ENGINE __m512i NAMED(two)(const void *low, const void *high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(low)), _mm256_loadu_si256(high), 1);
}

static inline ENGINE void NAMED(unpack_q8_0)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q8_0 *b = (const void *)blocks;
    __m512i top = _mm512_set1_epi8(-128); /* the bytes must not be negative: 128 more, which x begins without */
    NAMED(turn)(to, _mm512_xor_si512(NAMED(two)(b[0].q, b[1].q), top), _mm512_xor_si512(NAMED(two)(b[2].q, b[3].q), top),
                _mm512_xor_si512(NAMED(two)(b[4].q, b[5].q), top), _mm512_xor_si512(NAMED(two)(b[6].q, b[7].q), top));
    to->scale = NAMED(lanes_of_8)(SCALES_OF_8(b));
    to->least = _mm512_setzero_ps();
}

/* Two blocks' nibbles: low ones, high ones, and those of the next block. */
static inline ENGINE __m512i NAMED(nibbles)(const tarn__q4_0 *b)
{
    __m512i twice = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)b[0].q)), 0xff00, _mm_loadu_si128((const void *)b[1].q));
    __m512i shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    return _mm512_and_si512(_mm512_srlv_epi64(twice, shift), _mm512_set1_epi8(15));
}

static inline ENGINE void NAMED(unpack_q4_0)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q4_0 *b = (const void *)blocks;
    NAMED(turn)(to, NAMED(nibbles)(b), NAMED(nibbles)(b + 2), NAMED(nibbles)(b + 4), NAMED(nibbles)(b + 6));
    to->scale = NAMED(lanes_of_8)(SCALES_OF_8(b));
    to->least = _mm512_setzero_ps();
}

/* 32 bytes hold 32 elements in their low halves and the next 32 in their high ones. */
static inline ENGINE __m512i NAMED(halves)(const uint8_t *q)
{
    __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)q)), shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    return _mm512_and_si512(_mm512_srlv_epi64(twice, shift), _mm512_set1_epi8(15));
}

static inline ENGINE void NAMED(unpack_q4_k)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q4_k *b = (const void *)blocks;
    NAMED(turn)(to, NAMED(halves)(b->q), NAMED(halves)(b->q + 32), NAMED(halves)(b->q + 64), NAMED(halves)(b->q + 96));
    uint32_t both; /* the scale of scales, and that of leasts */
    memcpy(&both, b, sizeof(both));
    __m512 factors = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128((int)both)));
    factors = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), factors);
    __m512 numbers = _mm512_mul_ps(factors, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(q4_k_codes(b))));
    to->scale = NAMED(lanes_of_8)(_mm512_castps512_ps256(numbers));
    to->least = _mm512_permutexvar_ps(_mm512_setr_epi32(8, 10, 12, 14, 8, 10, 12, 14, 9, 11, 13, 15, 9, 11, 13, 15), numbers);
}

/* 64 elements of half `h`: the first or the second 64. */
static inline ENGINE __m512i NAMED(six_bits)(const tarn__q6_k *b, int h, bool second)
{
    __m512i low = _mm512_loadu_si512(b->low + h * 64), high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(b->high + h * 32)));
    __m512i upper = second ? _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2))
                           : _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
    low = second ? _mm512_srli_epi16(low, 4) : low;
    return _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), _mm512_and_si512(upper, _mm512_set1_epi8(48)));
}

static inline ENGINE void NAMED(unpack_q6_k)(const char *blocks, NAMED(chunk) *to)
{
    const tarn__q6_k *b = (const void *)blocks;
    NAMED(turn)(to, NAMED(six_bits)(b, 0, false), NAMED(six_bits)(b, 0, true), NAMED(six_bits)(b, 1, false), NAMED(six_bits)(b, 1, true));
    __m512 numbers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)b->scales)));
    to->scale = _mm512_mul_ps(_mm512_broadcastss_ps(f16_alone(b->scale)), NAMED(lanes_of_16)(numbers));
    to->least = _mm512_setzero_ps();
}

static inline ENGINE void NAMED(save)(const NAMED(chunk) *from, w_chunk *to)
{
    for (int t = 0; t < 4; t++)
        _mm512_store_si512(to->q + 64 * t, from->q[t]);
    _mm512_store_ps(to->scale, from->scale);
    _mm512_store_ps(to->least, from->least);
}

static inline ENGINE void NAMED(load)(const w_chunk *from, NAMED(chunk) *to)
{
    for (int t = 0; t < 4; t++)
        to->q[t] = _mm512_load_si512(from->q + 64 * t);
    to->scale = _mm512_load_ps(from->scale);
    to->least = _mm512_load_ps(from->least);
}

static inline ENGINE void NAMED(add)(NAMED(sums) *sums, const NAMED(chunk) *w, const x_chunk *x, bool has_least)
{
    __m512i sum = _mm512_load_si512(x->start);
    for (int t = 0; t < 4; t++)
        sum = _mm512_dpbusd_epi32(sum, w->q[t], _mm512_load_si512(x->q + 64 * t));
    sums->lane = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(w->scale, _mm512_load_ps(x->scale)), sums->lane);
    if (has_least)
        sums->lane = _mm512_fnmadd_ps(w->least, _mm512_load_ps(x->sum), sums->lane);
}

static inline ENGINE float NAMED(total)(const NAMED(sums) *sums)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sums->lane), _mm512_extractf32x8_ps(sums->lane, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
