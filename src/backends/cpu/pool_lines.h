/* pool_lines.h: pooling for one compute type. pool.c includes it twice, with T, COMPUTE, NATIVE and NAMED as gemm.h has them. */

/* ---- forward ----------------------------------------------------------------------------------------------------------------- */

/* Element i of a line at one tap, for the elements that lie inside the image: values, and where they lie in their plane. */
typedef struct NAMED(tap) {
    const T *values;
    int64_t stride, count;
    int32_t place, step;
} NAMED(tap);

/* A NaN is taken, and then stays: nothing is larger. The first element of a window is taken whatever it is. */
static inline void NAMED(take_larger)(const T *values, int64_t stride, int64_t n, int32_t place, int32_t step, T *restrict best, int32_t *restrict at)
{
    for (int64_t i = 0; i < n; i++) {
        T value = values[i * stride];
        bool larger = (value > best[i]) | (value != value) | (at[i] < 0);
        best[i] = larger ? value : best[i];
        at[i] = larger ? place + (int32_t)i * step : at[i];
    }
}

static inline void NAMED(sum_up)(const T *values, int64_t stride, int64_t n, T *restrict sum)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += values[i * stride];
}

/* Strides of 1 and 2 are written out, so that the loops become vectors. */
static void NAMED(take_tap)(const pool *p, const NAMED(tap) *tap, T *value, int32_t *at)
{
    if (p->largest && tap->stride == 1)
        NAMED(take_larger)(tap->values, 1, tap->count, tap->place, tap->step, value, at);
    else if (p->largest && tap->stride == 2)
        NAMED(take_larger)(tap->values, 2, tap->count, tap->place, tap->step, value, at);
    else if (p->largest)
        NAMED(take_larger)(tap->values, tap->stride, tap->count, tap->place, tap->step, value, at);
    else if (tap->stride == 1)
        NAMED(sum_up)(tap->values, 1, tap->count, value);
    else if (tap->stride == 2)
        NAMED(sum_up)(tap->values, 2, tap->count, value);
    else
        NAMED(sum_up)(tap->values, tap->stride, tap->count, value);
}

/* The values of a line at the tap (a, b); `low` is the first element inside the image. */
static bool NAMED(read_tap)(const pool *p, const line *l, int64_t a, int64_t b, T *held, NAMED(tap) *tap, int64_t *low)
{
    const tarn__view *x = p->image;
    int64_t row = l->row * p->stride[0] + a * p->dilation[0] - p->padding[0];
    int64_t column = l->column * p->stride[1] + b * p->dilation[1] - p->padding[1], high;
    if (row < 0 || row >= x->shape[2])
        return false;
    if (p->by_channel) {
        if (column < 0 || column >= x->shape[3])
            return false;
        *low = 0, high = l->count;
    } else {
        columns_inside(p, column, l->count, low, &high);
        column += *low * p->stride[1];
    }
    int64_t stride = p->by_channel ? x->stride[1] : x->stride[3] * p->stride[1];
    const char *from = (const char *)tarn__view_at(x) +
                       (l->image * x->stride[0] + l->channel * x->stride[1] + row * x->stride[2] + column * x->stride[3]) *
                           (int64_t)tarn__dtype_bytes(x->dtype);
    *tap = (NAMED(tap)){(const T *)(const void *)from, stride, high - *low, (int32_t)(row * x->shape[3] + column), p->by_channel ? 0 : (int32_t)p->stride[1]};
    if (x->dtype != NATIVE && high > *low) {
        tarn__load[x->dtype][COMPUTE](from, stride, held, high - *low);
        tap->values = held;
        tap->stride = 1;
    }
    return high > *low;
}

static void NAMED(pool_lines)(int64_t begin, int64_t end, void *ctx)
{
    const pool *p = ctx;
    T value[LINE], held[LINE];
    int32_t at[LINE];
    for (; begin < end; begin++) {
        line l = line_at(p, begin);
        for (int64_t i = 0; i < l.count; i++) {
            value[i] = p->largest ? -(T)INFINITY : 0;
            at[i] = -1;
        }
        for (int64_t a = 0; a < p->kernel[0]; a++)
            for (int64_t b = 0; b < p->kernel[1]; b++) {
                NAMED(tap) tap;
                int64_t low;
                if (NAMED(read_tap)(p, &l, a, b, held, &tap, &low))
                    NAMED(take_tap)(p, &tap, value + low, at + low);
            }
        for (int64_t i = 0; !p->largest && i < l.count; i++)
            value[i] /= (T)window_count(p, l.row, l.column + (p->by_channel ? 0 : i));
        tarn__store[p->result->dtype][COMPUTE](value, line_place(p, p->result, &l), line_stride(p, p->result), l.count);
        if (p->places)
            store_places(p, &l, at);
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
    for (int64_t i = 0; i < l->count; i++)
        g[i] /= (T)window_count(p, l->row, l->column + (p->by_channel ? 0 : i));
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
    tarn__load[p->result->dtype][COMPUTE](line_place(p, p->result, l), line_stride(p, p->result), g, l->count);
    if (!p->largest) {
        NAMED(give_to_all)(p, to, l, g);
        return;
    }
    const int32_t *places = line_place(p, p->places, l);
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

static void NAMED(spread_patches)(int64_t begin, int64_t end, void *ctx)
{
    const pool *p = ctx;
    int which;
    T *sums = (T *)(void *)slot_take(&p->slots, &which, NULL);
    for (; begin < end; begin++) {
        patch_at o = patch_number(p, begin);
        int64_t width = p->image->shape[3];
        NAMED(patch) to = {sums, o.row * width, o.rows * width, o.channels};
        memset(sums, 0, sizeof(T) * (size_t)(to.count * to.wide));
        int64_t columns = p->result->shape[3], at_once = p->by_channel ? 1 : LINE;
        for (int64_t row = first_window(p, o.row); row < last_window(p, o.row + o.rows); row++)
            for (int64_t column = 0; column < columns; column += at_once) {
                line l = {o.image, o.channel, row, column, p->by_channel ? o.channels : least(columns - column, LINE)};
                NAMED(gather_line)(p, &to, &l);
            }
        NAMED(store_patch)(p, &o, sums);
    }
    slot_give(&p->slots, which);
}
