/* pool_lines.h: pooling for one compute type. pool.c includes it twice, with T, COMPUTE, NATIVE and NAMED as gemm.h has them, and
 * BITS, whole numbers of T's size. */

/* ---- forward ----------------------------------------------------------------------------------------------------------------- */

/* Every second of some numbers, four results at a time; the last ones alone, so that nothing is read beyond the last. */
static inline void NAMED(every_second)(const T *from, T *to, int64_t n)
{
    int64_t i = 0;
    for (; i + 4 < n; i += 4)
        for (int k = 0; k < 4; k++)
            to[i + k] = from[2 * (i + k)];
    for (; i < n; i++)
        to[i] = from[2 * i];
}

static inline void NAMED(load_run)(const char *from, tarn_dtype dtype, int64_t stride, T *to, int64_t n)
{
    if (dtype == NATIVE && stride == 2)
        NAMED(every_second)((const T *)(const void *)from, to, n);
    else
        tarn__load[dtype][COMPUTE](from, stride, to, n);
}

/* One row of a line at a tap: the elements inside the image, `outside` in place of the others. */
static void NAMED(read_row)(const pool *p, const char *plane, int64_t row, int64_t column, int64_t count, T outside, T *to)
{
    const tarn__view *x = p->image;
    int64_t low = 0, high = 0;
    if (row >= 0 && row < x->shape[2])
        columns_inside(p, column, count, &low, &high);
    for (int64_t i = 0; i < low; i++)
        to[i] = outside;
    for (int64_t i = high; i < count; i++)
        to[i] = outside;
    if (high > low)
        NAMED(load_run)(plane + (row * x->stride[2] + (column + low * p->stride[1]) * x->stride[3]) * (int64_t)tarn__dtype_bytes(x->dtype), x->dtype,
                        x->stride[3] * p->stride[1], to + low, high - low);
}

/* The elements of a line at tap (a, b): in `held`, or where they lie. NULL where all of them are outside the image. */
static const T *NAMED(read_tap)(const pool *p, const line *l, int64_t a, int64_t b, T *held)
{
    const tarn__view *x = p->image;
    int64_t row = l->row * p->stride[0] + a * p->dilation[0] - p->padding[0], size = (int64_t)tarn__dtype_bytes(x->dtype);
    int64_t column = l->column * p->stride[1] + b * p->dilation[1] - p->padding[1];
    const char *plane = (const char *)tarn__view_at(x) + (l->image * x->stride[0] + l->channel * x->stride[1]) * size;
    if (!p->by_channel) {
        for (int64_t r = 0; r < l->rows; r++)
            NAMED(read_row)(p, plane, row + r * p->stride[0], column, l->count, p->largest ? -(T)INFINITY : 0, held + r * l->count);
        return held;
    }
    if (row < 0 || row >= x->shape[2] || column < 0 || column >= x->shape[3])
        return NULL;
    const char *from = plane + (row * x->stride[2] + column * x->stride[3]) * size;
    if (x->dtype == NATIVE && x->stride[1] == 1)
        return (const T *)(const void *)from;
    tarn__load[x->dtype][COMPUTE](from, x->stride[1], held, l->count);
    return held;
}

/* NaN is taken, and stays: nothing is larger. */
static void NAMED(take_larger)(const T *restrict value, int64_t n, int32_t tap, T *restrict best, int32_t *restrict at)
{
    for (int64_t i = 0; i < n; i++) {
        bool larger = (value[i] > best[i]) | (value[i] != value[i]);
        best[i] = larger ? value[i] : best[i];
        at[i] = larger ? tap : at[i];
    }
}

static void NAMED(sum_up)(const T *restrict value, int64_t n, T *restrict sum)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += value[i];
}

static void NAMED(divide)(const pool *p, const line *l, T *value)
{
    for (int64_t r = 0; r < l->rows; r++) {
        int64_t rows = window_length(p, 0, l->row + r);
        T shared = (T)(rows * window_length(p, 1, l->column)); /* by all channels of a pixel */
        for (int64_t i = 0; i < l->count; i++)
            value[r * l->count + i] /= p->by_channel ? shared : (T)(rows * window_length(p, 1, l->column + i));
    }
}

static void NAMED(store_line)(const pool *p, const line *l, const T *value, const int32_t *at)
{
    int64_t stride = line_stride(p, p->result);
    for (int64_t r = 0; r < l->rows; r++) {
        line one = *l;
        one.row += r;
        tarn__store[p->result->dtype][COMPUTE](value + r * l->count, line_place(p->result, &one), stride, l->count);
        if (p->places)
            store_places(p, &one, at + r * l->count);
    }
}

static void NAMED(pool_lines)(int64_t begin, int64_t end, void *ctx)
{
    const pool *p = ctx;
    _Alignas(64) T value[LINE], held[LINE];
    _Alignas(64) int32_t at[LINE];
    for (; begin < end; begin++) {
        line l = line_at(p, begin);
        int64_t n = l.rows * l.count;
        for (int64_t i = 0; i < n; i++)
            value[i] = p->largest ? -(T)INFINITY : 0;
        if (p->largest)
            first_places(p, &l, at);
        for (int64_t a = 0; a < p->kernel[0]; a++)
            for (int64_t b = 0; b < p->kernel[1]; b++) {
                const T *taps = NAMED(read_tap)(p, &l, a, b, held);
                if (taps && p->largest)
                    NAMED(take_larger)(taps, n, (int32_t)(a * p->kernel[1] + b), value, at);
                else if (taps)
                    NAMED(sum_up)(taps, n, value);
            }
        if (!p->largest)
            NAMED(divide)(p, &l, value);
        NAMED(store_line)(p, &l, value, at);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------- */

/* A band of the image is summed up in a buffer of its own and stored once: (rows, columns, wide channels). */
typedef struct NAMED(patch) {
    T *sums;
    int64_t first, count, wide; /* places first to first + count of each plane */
} NAMED(patch);

/* To places of the patch, where they lie in it. */
static void NAMED(give_to_places)(const NAMED(patch) *to, const T *g, const int32_t *at, int64_t n, int64_t lanes)
{
    const int64_t wide = to->wide;
    const uint64_t count = (uint64_t)to->count;
    T *sums = to->sums;
    for (int64_t i = 0; i < n; i++) {
        uint64_t place = (uint64_t)(int64_t)at[i];
        if (place < count)
            sums[(int64_t)place * wide + i * lanes] += g[i];
    }
}

/* Places of any dtype in planes of any size. */
static void NAMED(give_to_numbers)(const pool *p, const NAMED(patch) *to, const T *g, const line *l)
{
    const int64_t step = p->by_channel ? 0 : p->stride[1], stride = line_stride(p, p->places), begin = window_begin(p, l->row, l->column) - to->first;
    const void *at = line_place(p->places, l);
    const bool has_bytes = p->places->dtype == TARN_U8;
    for (int64_t i = 0; i < l->count; i++) {
        int64_t number = has_bytes ? ((const uint8_t *)at)[i * stride] : ((const int32_t *)at)[i * stride];
        uint64_t place = (uint64_t)(begin + i * step + distance_of(p, number));
        if (number != (has_bytes ? NONE : -1) && place < (uint64_t)to->count)
            to->sums[(int64_t)place * to->wide + (p->by_channel ? i : 0)] += g[i];
    }
}

/* g where `is_meant`, else 0, without a branch. Sums begin with 0, so that -0 becomes 0. */
static inline T NAMED(kept)(T g, bool is_meant)
{
    union {
        T number;
        BITS bits;
    } u = {g};
    u.bits &= (BITS)0 - (BITS)is_meant;
    return u.number + 0;
}

/* A line of windows of 2 x 2 side by side: each row writes all of its two rows. Numbers are first made as wide as T: vectors then have one width. */
static void NAMED(give_to_halves)(const line *l, const T *restrict g, const uint8_t *restrict at, T *restrict upper, int64_t width)
{
    const int64_t n = l->count;
    BITS number[LINE];
    for (int64_t i = 0; i < l->rows * n; i++)
        number[i] = at[i];
    for (int64_t r = 0; r < l->rows; r++)
        for (int64_t i = r * n; i < (r + 1) * n; i++) {
            T *to = upper + 2 * r * width + 2 * (i - r * n);
            to[0] = NAMED(kept)(g[i], number[i] == 0);
            to[1] = NAMED(kept)(g[i], number[i] == 1);
            to[width] = NAMED(kept)(g[i], number[i] == 2);
            to[width + 1] = NAMED(kept)(g[i], number[i] == 3);
        }
}

/* What the windows of a line give: g (rows, count). */
static void NAMED(give_to_largest)(const pool *p, const NAMED(patch) *to, const line *l, const T *g)
{
    const int64_t begin = window_begin(p, l->row, l->column) - to->first;
    const uint8_t *at = line_place(p->places, l);
    int32_t places[LINE];
    if (p->is_half) {
        NAMED(give_to_halves)(l, g, at, to->sums + begin, p->image->shape[3]);
    } else if (p->is_small) {
        find_places(p, l, at, begin, places);
        NAMED(give_to_places)(to, g, places, l->rows * l->count, p->by_channel ? 1 : 0);
    } else {
        for (int64_t r = 0; r < l->rows; r++)
            NAMED(give_to_numbers)(p, to, g + r * l->count, &(line){l->image, l->channel, l->row + r, l->column, 1, l->count});
    }
}

static void NAMED(give_to_all)(const pool *p, const NAMED(patch) *to, const line *l, T *g)
{
    int64_t width = p->image->shape[3];
    NAMED(divide)(p, l, g);
    for (int64_t a = 0; a < p->kernel[0]; a++)
        for (int64_t b = 0; b < p->kernel[1]; b++) {
            int64_t row = l->row * p->stride[0] + a - p->padding[0], column = l->column * p->stride[1] + b - p->padding[1];
            int64_t low = 0, high = l->count, start = row * width - to->first;
            if (row < 0 || row >= p->image->shape[2] || start < 0 || start >= to->count || (p->by_channel && (column < 0 || column >= width)))
                continue;
            if (!p->by_channel)
                columns_inside(p, column, l->count, &low, &high);
            T *at = to->sums + (start + column) * to->wide;
            for (int64_t i = low; i < high; i++)
                at[p->by_channel ? i : i * p->stride[1]] += g[i];
        }
}

static void NAMED(gather_line)(const pool *p, const NAMED(patch) *to, const line *l)
{
    const tarn__view *y = p->result;
    const int64_t stride = line_stride(p, y);
    const char *from = line_place(y, l);
    T g[LINE];
    if (p->largest && y->dtype == NATIVE && stride == 1 && (l->rows == 1 || y->stride[2] == l->count)) {
        NAMED(give_to_largest)(p, to, l, (const T *)(const void *)from);
        return;
    }
    for (int64_t r = 0; r < l->rows; r++)
        tarn__load[y->dtype][COMPUTE](from + r * y->stride[2] * (int64_t)tarn__dtype_bytes(y->dtype), stride, g + r * l->count, l->count);
    if (p->largest)
        NAMED(give_to_largest)(p, to, l, g);
    else
        NAMED(give_to_all)(p, to, l, g);
}

static void NAMED(store_patch)(const pool *p, const patch_at *o, const T *sums)
{
    const tarn__view *x = p->image;
    int64_t size = (int64_t)tarn__dtype_bytes(x->dtype), width = x->shape[3];
    char *to = (char *)tarn__view_at(x) + (o->image * x->stride[0] + o->channel * x->stride[1] + o->row * x->stride[2]) * size;
    for (int64_t i = 0; i < o->rows; i++, to += x->stride[2] * size)
        if (p->by_channel)
            for (int64_t j = 0; j < width; j++)
                tarn__store[x->dtype][COMPUTE](sums + (i * width + j) * o->channels, to + j * x->stride[3] * size, x->stride[1], o->channels);
        else
            tarn__store[x->dtype][COMPUTE](sums + i * width, to, x->stride[3], width);
}

/* Where a band of the image's gradient lies in memory as a patch does, it is summed up there. */
static T *NAMED(patch_in_place)(const pool *p, const patch_at *o)
{
    const tarn__view *x = p->image;
    int64_t pixel = p->by_channel ? x->stride[3] : 1;
    if (x->dtype != NATIVE || x->stride[p->by_channel ? 1 : 3] != 1 || pixel < o->channels || x->stride[2] != pixel * x->shape[3])
        return NULL;
    return (T *)tarn__view_at(x) + o->image * x->stride[0] + o->channel * x->stride[1] + o->row * x->stride[2];
}

static void NAMED(clear_patch)(const NAMED(patch) *to, int64_t channels)
{
    if (channels == to->wide)
        memset(to->sums, 0, sizeof(T) * (size_t)(to->count * to->wide));
    else
        for (int64_t i = 0; i < to->count; i++)
            memset(to->sums + i * to->wide, 0, sizeof(T) * (size_t)channels);
}

static void NAMED(spread_patches)(int64_t begin, int64_t end, void *ctx)
{
    const pool *p = ctx;
    int which;
    T *held = (T *)(void *)slot_take(&p->slots, &which, NULL);
    for (; begin < end; begin++) {
        patch_at o = patch_number(p, begin);
        int64_t width = p->image->shape[3], columns = p->result->shape[3], at_once = p->by_channel ? 1 : LINE;
        int64_t rows = p->largest && !p->by_channel ? p->rows : 1;
        T *there = NAMED(patch_in_place)(p, &o);
        NAMED(patch) to = {there ? there : held, o.row * width, o.rows * width, there && p->by_channel ? p->image->stride[3] : o.channels};
        if (!p->is_half)
            NAMED(clear_patch)(&to, o.channels);
        int64_t row = first_window(p, o.row), last = last_window(p, o.row + o.rows);
        for (; row < last; row += rows)
            for (int64_t column = 0; column < columns; column += at_once) {
                line l = {o.image, o.channel, row, column, least(last - row, rows), p->by_channel ? o.channels : least(columns - column, LINE)};
                NAMED(gather_line)(p, &to, &l);
            }
        if (!there)
            NAMED(store_patch)(p, &o, held);
    }
    slot_give(&p->slots, which);
}
