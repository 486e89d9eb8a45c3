/* conv_planes.h: loading planes, for one compute type. conv.c includes it twice, with T, COMPUTE, NATIVE, SQUARE and NAMED as gemm.h has
 * them. */

#define TURNED 64 /* channels turned at a time */

typedef T NAMED(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef T NAMED(short_vector) __attribute__((vector_size(16)));

/* Rows of images are short: they are moved in whole vectors, the last of which begins early enough to end with the row. */
static inline void NAMED(copy_line)(const T *restrict from, T *restrict to, int64_t n)
{
    enum { LONG = VECTOR_BYTES / sizeof(T), SHORT = 16 / sizeof(T) };
    NAMED(vector) v;
    NAMED(short_vector) w;
    if (n >= LONG) {
        for (int64_t i = 0; i < n; i += LONG) {
            int64_t at = i + LONG <= n ? i : n - LONG;
            memcpy(&v, from + at, sizeof(v));
            memcpy(to + at, &v, sizeof(v));
        }
    } else if (n >= SHORT) {
        for (int64_t i = 0; i < n; i += SHORT) {
            int64_t at = i + SHORT <= n ? i : n - SHORT;
            memcpy(&w, from + at, sizeof(w));
            memcpy(to + at, &w, sizeof(w));
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i];
    }
}

/* n numbers `stride` apart. */
static inline void NAMED(load_line)(const char *from, tarn_dtype dtype, int64_t stride, T *to, int64_t n)
{
    const T *native = (const T *)(const void *)from;
    if (dtype == NATIVE && stride == 1)
        NAMED(copy_line)(native, to, n);
    else if (dtype == NATIVE && stride == 2)
        for (int64_t i = 0; i < n; i++)
            to[i] = native[2 * i];
    else
        tarn__load[dtype][COMPUTE](from, stride, to, n);
}

static inline void NAMED(zero_line)(T *to, int64_t n)
{
    if (n > 0)
        memset(to, 0, sizeof(T) * (size_t)n);
}

/* Channels lie next to each other: a few pixels at a time are turned. to[c · channel + j] = from[j · across + c]. */
static void NAMED(load_turned)(const char *from, tarn_dtype dtype, int64_t across, int64_t channels, T *to, int64_t channel, int64_t n)
{
    int64_t size = (int64_t)tarn__dtype_bytes(dtype);
    T held[SQUARE][TURNED];
    const T *line[SQUARE];
    for (int64_t c = 0; c < channels; c += TURNED)
        for (int64_t j = 0, wide = least(channels - c, TURNED); j < n; j += SQUARE) {
            int pixels = (int)least(n - j, SQUARE);
            for (int i = 0; i < pixels; i++) {
                const char *pixel = from + ((j + i) * across + c) * size;
                line[i] = dtype == NATIVE ? (const T *)(const void *)pixel : held[i];
                if (dtype != NATIVE)
                    tarn__load[dtype][COMPUTE](pixel, 1, held[i], wide);
            }
            int64_t k = 0;
            for (; pixels == SQUARE && k + SQUARE <= wide; k += SQUARE)
                NAMED(turn_square)(line, k, to + (c + k) * channel + j, channel);
            for (; k < wide; k++)
                for (int i = 0; i < pixels; i++)
                    to[(c + k) * channel + j + i] = line[i][k];
        }
}

/* Row `row` of the source, of `channels` channels, into a row of their planes of one remainder. What lies outside the source stays as it is: zero. */
static void NAMED(load_row)(const plan *s, const char *from, int64_t channels, int64_t row, int64_t remainder, T *to)
{
    const tarn__view *x = s->from;
    int64_t low, high, first = remainder - s->before[1], size = (int64_t)tarn__dtype_bytes(x->dtype), across = x->stride[3] * s->step[1];
    inside_of(x->shape[3], s->step[1], first, s->width, &low, &high);
    if (low == high)
        return;
    from += (row * x->stride[2] + (low * s->step[1] + first) * x->stride[3]) * size;
    if (x->stride[1] == 1 && across != 1 && channels > 1)
        NAMED(load_turned)(from, x->dtype, across, channels, to + low, s->channel, high - low);
    else
        for (int64_t c = 0; c < channels; c++)
            NAMED(load_line)(from + c * x->stride[1] * size, x->dtype, across, to + c * s->channel + low, high - low);
}

static size_t NAMED(planes_bytes)(const plan *s, int64_t channels)
{
    return sizeof(T) * (size_t)(channels * s->channel + s->width + 3 * VECTOR_BYTES / (int64_t)sizeof(T));
}

/* The planes of a band of one image, channels `first` to first + channels. A vector may read a little beyond the last plane. Memory that held
 * the planes of another image has its zeros already, where all bands are alike. */
static void NAMED(load_planes)(const plan *s, int64_t image, int64_t first, int64_t channels, int64_t band, bool used, T *planes)
{
    const tarn__view *x = s->from;
    const char *from = (const char *)tarn__view_at(x) + (image * x->stride[0] + first * x->stride[1]) * (int64_t)tarn__dtype_bytes(x->dtype);
    if (!used || s->bands > 1 || s->groups % s->together != 0)
        memset(planes, 0, NAMED(planes_bytes)(s, channels));
    for (int64_t a = 0; a < s->remainders[0]; a++)
        for (int64_t b = 0; b < s->remainders[1]; b++)
            for (int64_t i = 0; i < s->band + s->reach; i++) {
                int64_t row = (band * s->band + i) * s->step[0] + a - s->before[0];
                if (row >= 0 && row < x->shape[2])
                    NAMED(load_row)(s, from, channels, row, b, planes + (a * s->remainders[1] + b) * s->plane + i * s->width);
            }
}

#undef TURNED
