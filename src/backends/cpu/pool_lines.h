/* pool_lines.h: pooling for one compute type. pool.c includes it twice, with T, COMPUTE, NATIVE and NAMED as gemm.h has them. */

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

/* Where a larger element is found, its place is its window's first place plus the tap's. NaN is taken, and stays: nothing is larger. */
static void NAMED(take_larger)(const T *restrict value, int64_t n, const int32_t *restrict base, int32_t tap, T *restrict best, int32_t *restrict at)
{
    for (int64_t i = 0; i < n; i++) {
        bool larger = (value[i] > best[i]) | (value[i] != value[i]);
        best[i] = larger ? value[i] : best[i];
        at[i] = larger ? base[i] + tap : at[i];
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
    _Alignas(64) int32_t at[LINE], base[LINE];
    for (; begin < end; begin++) {
        line l = line_at(p, begin);
        int64_t n = l.rows * l.count;
        for (int64_t i = 0; i < n; i++)
            value[i] = p->largest ? -(T)INFINITY : 0;
        if (p->largest)
            first_places(p, &l, base, at);
        for (int64_t a = 0; a < p->kernel[0]; a++)
            for (int64_t b = 0; b < p->kernel[1]; b++) {
                const T *taps = NAMED(read_tap)(p, &l, a, b, held);
                if (taps && p->largest)
                    NAMED(take_larger)(taps, n, base, (int32_t)(a * p->dilation[0] * p->image->shape[3] + b * p->dilation[1]), value, at);
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

static void NAMED(give_to_largest)(const NAMED(patch) *to, const T *g, const int32_t *at, int64_t n, int64_t lanes)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t place = (uint64_t)((int64_t)at[i] - to->first);
        if (place < (uint64_t)to->count)
            to->sums[(int64_t)place * to->wide + i * lanes] += g[i];
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
    T g[LINE];
    int32_t at[LINE];
    tarn__load[p->result->dtype][COMPUTE](line_place(p->result, l), line_stride(p, p->result), g, l->count);
    if (!p->largest) {
        NAMED(give_to_all)(p, to, l, g);
        return;
    }
    const int32_t *places = line_place(p->places, l);
    int64_t stride = line_stride(p, p->places);
    for (int64_t i = 0; stride != 1 && i < l->count; i++)
        at[i] = places[i * stride];
    NAMED(give_to_largest)(to, g, stride == 1 ? places : at, l->count, p->by_channel ? 1 : 0);
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

/* All windows of rows begin … end - 1 at once, where they lie one behind the other. */
static void NAMED(gather_rows)(const pool *p, const NAMED(patch) *to, const patch_at *o, int64_t begin, int64_t end)
{
    line l = {.image = o->image, .channel = o->channel, .row = begin};
    NAMED(give_to_largest)(to, line_place(p->result, &l), line_place(p->places, &l), (end - begin) * p->result->shape[3], 0);
}

static void NAMED(spread_patches)(int64_t begin, int64_t end, void *ctx)
{
    const pool *p = ctx;
    int which;
    T *held = (T *)(void *)slot_take(&p->slots, &which, NULL);
    for (; begin < end; begin++) {
        patch_at o = patch_number(p, begin);
        int64_t width = p->image->shape[3], columns = p->result->shape[3], at_once = p->by_channel ? 1 : LINE;
        T *there = NAMED(patch_in_place)(p, &o);
        NAMED(patch) to = {there ? there : held, o.row * width, o.rows * width, there && p->by_channel ? p->image->stride[3] : o.channels};
        NAMED(clear_patch)(&to, o.channels);
        int64_t row = first_window(p, o.row), last = last_window(p, o.row + o.rows);
        if (p->largest && !p->by_channel && p->result->dtype == NATIVE && has_dense_rows(p->result) && has_dense_rows(p->places) && row < last) {
            NAMED(gather_rows)(p, &to, &o, row, last);
            row = last;
        }
        for (; row < last; row++)
            for (int64_t column = 0; column < columns; column += at_once) {
                line l = {o.image, o.channel, row, column, 1, p->by_channel ? o.channels : least(columns - column, LINE)};
                NAMED(gather_line)(p, &to, &l);
            }
        if (!there)
            NAMED(store_patch)(p, &o, held);
    }
    slot_give(&p->slots, which);
}
