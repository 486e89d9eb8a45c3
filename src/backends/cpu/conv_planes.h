/* conv_planes.h: loading planes, for one compute type. conv.c includes it twice, with T, COMPUTE, NATIVE, SQUARE and NAMED as gemm.h has
 * them. */

#define TURNED 64 /* channels turned at a time */

/* n numbers `stride` apart. */
static inline void NAMED(load_line)(const char *from, tarn_dtype dtype, int64_t stride, T *to, int64_t n)
{
    const T *native = (const T *)(const void *)from;
    if (dtype == NATIVE && stride == 1)
        memcpy(to, from, sizeof(T) * (size_t)n);
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

/* Row `row` of the source, of `channels` channels, into row i of their planes of one remainder; zeros where there is none. */
static void NAMED(load_row)(const plan *s, const char *from, int64_t channels, int64_t row, int64_t remainder, T *to)
{
    const tarn__view *x = s->from;
    int64_t low = 0, high = 0, first = remainder - s->before[1], size = (int64_t)tarn__dtype_bytes(x->dtype);
    if (row >= 0 && row < x->shape[2])
        inside_of(x->shape[3], s->step[1], first, s->width, &low, &high);
    for (int64_t c = 0; c < channels; c++) {
        NAMED(zero_line)(to + c * s->channel, low);
        NAMED(zero_line)(to + c * s->channel + high, s->width - high);
    }
    if (low == high)
        return;
    int64_t across = x->stride[3] * s->step[1];
    from += (row * x->stride[2] + (low * s->step[1] + first) * x->stride[3]) * size;
    if (x->stride[1] == 1 && across != 1 && channels > 1)
        NAMED(load_turned)(from, x->dtype, across, channels, to + low, s->channel, high - low);
    else
        for (int64_t c = 0; c < channels; c++)
            NAMED(load_line)(from + c * x->stride[1] * size, x->dtype, across, to + c * s->channel + low, high - low);
}

/* The planes of a band of one image, channels `first` to first + channels. A vector may read a little beyond the last plane. */
static void NAMED(load_planes)(const plan *s, int64_t image, int64_t first, int64_t channels, int64_t band, T *planes)
{
    const tarn__view *x = s->from;
    const char *from = (const char *)tarn__view_at(x) + (image * x->stride[0] + first * x->stride[1]) * (int64_t)tarn__dtype_bytes(x->dtype);
    for (int64_t a = 0; a < s->remainders[0]; a++)
        for (int64_t b = 0; b < s->remainders[1]; b++)
            for (int64_t i = 0; i < s->band + s->reach; i++) {
                int64_t row = (band * s->band + i) * s->step[0] + a - s->before[0];
                NAMED(load_row)(s, from, channels, row, b, planes + (a * s->remainders[1] + b) * s->plane + i * s->width);
            }
    NAMED(zero_line)(planes + channels * s->channel, s->width + 3 * VECTOR_BYTES / (int64_t)sizeof(T));
}

static size_t NAMED(planes_bytes)(const plan *s, int64_t channels)
{
    return sizeof(T) * (size_t)(channels * s->channel + s->width + 3 * VECTOR_BYTES / (int64_t)sizeof(T));
}

#undef TURNED
