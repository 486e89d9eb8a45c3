/* panels.h: lines of a matrix laid side by side, as products want them, for one compute type. Included with T, COMPUTE, NATIVE, SQUARE and NAMED(x) as gemm.h
 * says, and VECTOR_BYTES, STRIP and MAX_PANEL. */

typedef T NAMED(vector) __attribute__((vector_size(VECTOR_BYTES)));

static inline NAMED(vector) NAMED(load_vector)(const T *from)
{
    NAMED(vector) v;
    memcpy(&v, from, sizeof(v));
    return v;
}

static inline void NAMED(store_vector)(T *to, NAMED(vector) v)
{
    memcpy(to, &v, sizeof(v));
}

/* n numbers of each of `panel` lines, interleaved: to[p · panel + i] = line[i][p]. */
static inline void NAMED(turn)(const T *const *line, int panel, int64_t n, T *to)
{
    int i = 0;
    for (; i + SQUARE <= panel; i += SQUARE) {
        int64_t p = 0;
        for (; p + SQUARE <= n; p += SQUARE)
            NAMED(turn_square)(line + i, p, to + p * panel + i, panel);
        for (; p < n; p++)
            for (int k = 0; k < SQUARE; k++)
                to[p * panel + i + k] = line[i + k][p];
    }
    for (; i < panel; i++)
        for (int64_t p = 0; p < n; p++)
            to[p * panel + i] = line[i][p];
}

/* `width` lines of a matrix, element p of line i at from[i · across + p · along], as a panel: to[p · panel + i], zeros beyond the width. */
static inline void NAMED(interleave)(const char *from, tarn_dtype dtype, int64_t across, int64_t along, int width, int panel, int64_t k, T *to)
{
    tarn__load_fn load = tarn__load[dtype][COMPUTE];
    int64_t size = (int64_t)tarn__dtype_bytes(dtype);
    if (across == 1 && dtype == NATIVE && width == panel) {
        for (int64_t p = 0; p < k; p++)
            memcpy(to + p * panel, from + p * along * size, sizeof(T) * (size_t)panel);
        return;
    }
    if (across == 1) {
        if (width < panel)
            memset(to, 0, sizeof(T) * (size_t)(k * panel));
        for (int64_t p = 0; p < k; p++)
            load(from + p * along * size, 1, to + p * panel, width);
        return;
    }
    _Alignas(64) T held[MAX_PANEL][STRIP];
    const T *line[MAX_PANEL];
    bool in_place = dtype == NATIVE && along == 1;
    memset(held + width, 0, sizeof(held[0]) * (size_t)(panel - width));
    for (int64_t begin = 0; begin < k; begin += STRIP) {
        int64_t n = k - begin < STRIP ? k - begin : STRIP;
        for (int i = 0; i < panel; i++) {
            const char *at = from + (i * across + begin * along) * size;
            line[i] = in_place && i < width ? (const T *)(const void *)at : held[i];
            if (!in_place && i < width)
                load(at, along, held[i], n);
        }
        NAMED(turn)(line, panel, n, to + begin * panel);
    }
}
