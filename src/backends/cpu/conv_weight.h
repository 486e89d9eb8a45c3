/* conv_weight.h: the gradient of a convolution's weights, for one compute type; included after conv_tile.h.
 *
 * gw[o, c, tap] is the sum over images and outputs of g[o] · x[c] at the tap. x is loaded into planes as for the forward, g with its channels
 * next to each other: a register tile is MR rows (channel and tap) by up to three vectors of output channels, and runs over the outputs of a
 * few rows, that g stays in the first-level cache. Images are cut into shares by their number alone; each share has sums of its own, which
 * are added up in order. */

#define PIXELS 128 /* outputs that a tile runs over before the next */

/* The rows of a tile, where they read x at output 0; and the outputs: `rows` rows of `columns`, x's rows `width` apart. */
typedef struct NAMED(strip) {
    const T *x[MR];
    const T *g; /* (rows · columns, ld) */
    int64_t rows, columns, width, ld;
} NAMED(strip);

#define POINTER(i) const T *x##i = s->x[i];
#define NEXT_ROW(i) x##i += s->width;

/* sums (MR, ld) += x · g over the strip. */
#define LEFT(i) l##i += left * x##i[j];
#define MIDDLE(i) m##i += middle * x##i[j];
#define RIGHT(i) r##i += right * x##i[j];
#define ADD(i, v, at) NAMED(store_vector)(sums + i * s->ld + (at), v##i + NAMED(load_vector)(sums + i * s->ld + (at)));
#define ADD_LEFT(i) ADD(i, l, 0)
#define ADD_MIDDLE(i) ADD(i, m, LANES)
#define ADD_RIGHT(i) ADD(i, r, 2 * LANES)

static void NAMED(strip_of_3)(const NAMED(strip) *s, const T *restrict g, T *restrict sums)
{
#define SUMS(i) NAMED(vector) l##i = {0}, m##i = {0}, r##i = {0};
    EACH_ROW(SUMS)
    EACH_ROW(POINTER)
    for (int64_t row = 0; row < s->rows; row++) {
        for (int64_t j = 0; j < s->columns; j++, g += s->ld) {
            NAMED(vector) left = NAMED(load_vector)(g), middle = NAMED(load_vector)(g + LANES), right = NAMED(load_vector)(g + 2 * LANES);
#define MULTIPLY(i) LEFT(i) MIDDLE(i) RIGHT(i)
            EACH_ROW(MULTIPLY)
        }
        EACH_ROW(NEXT_ROW)
    }
    EACH_ROW(ADD_LEFT) EACH_ROW(ADD_MIDDLE) EACH_ROW(ADD_RIGHT)
#undef SUMS
#undef MULTIPLY
}

static void NAMED(strip_of_2)(const NAMED(strip) *s, const T *restrict g, T *restrict sums)
{
#define SUMS(i) NAMED(vector) l##i = {0}, m##i = {0};
    EACH_ROW(SUMS)
    EACH_ROW(POINTER)
    for (int64_t row = 0; row < s->rows; row++) {
        for (int64_t j = 0; j < s->columns; j++, g += s->ld) {
            NAMED(vector) left = NAMED(load_vector)(g), middle = NAMED(load_vector)(g + LANES);
#define MULTIPLY(i) LEFT(i) MIDDLE(i)
            EACH_ROW(MULTIPLY)
        }
        EACH_ROW(NEXT_ROW)
    }
    EACH_ROW(ADD_LEFT) EACH_ROW(ADD_MIDDLE)
#undef SUMS
#undef MULTIPLY
}

static void NAMED(strip_of_1)(const NAMED(strip) *s, const T *restrict g, T *restrict sums)
{
#define SUMS(i) NAMED(vector) l##i = {0};
    EACH_ROW(SUMS)
    EACH_ROW(POINTER)
    for (int64_t row = 0; row < s->rows; row++) {
        for (int64_t j = 0; j < s->columns; j++, g += s->ld) {
            NAMED(vector) left = NAMED(load_vector)(g);
            EACH_ROW(LEFT)
        }
        EACH_ROW(NEXT_ROW)
    }
    EACH_ROW(ADD_LEFT)
#undef SUMS
}

#undef POINTER
#undef NEXT_ROW
#undef LEFT
#undef MIDDLE
#undef RIGHT
#undef ADD
#undef ADD_LEFT
#undef ADD_MIDDLE
#undef ADD_RIGHT

/* ---- few output channels: a sum along each row ----------------------------------------------------------------------------------- */

static T NAMED(row_product)(const T *a, const T *b, int64_t n)
{
    NAMED(vector) s = {0};
    T sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        s += NAMED(load_vector)(a + i) * NAMED(load_vector)(b + i);
    for (int lane = 0; lane < LANES; lane++)
        sum += s[lane];
    for (; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* ---- the gradient of the result ---------------------------------------------------------------------------------------------------- */

/* Channels of one group over `rows` rows, next to each other: to[(i · columns + j) · ld + o]; zeros up to ld. With few channels each on its
 * own: to[(o · rows + i) · columns + j]. */
static void NAMED(load_gradient)(const weight_plan *w, int64_t image, int64_t group, int64_t row, int64_t rows, T *to)
{
    const tarn__view *g = w->g;
    int64_t size = (int64_t)tarn__dtype_bytes(g->dtype), out = w->s.out, columns = g->shape[3];
    const char *from = (const char *)tarn__view_at(g) + (image * g->stride[0] + group * out * g->stride[1] + row * g->stride[2]) * size;
    if (w->direct) {
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < rows; i++)
                NAMED(load_line)(from + (o * g->stride[1] + i * g->stride[2]) * size, g->dtype, g->stride[3], to + (o * rows + i) * columns, columns);
        return;
    }
    if (w->ld > out)
        NAMED(zero_line)(to, rows * columns * w->ld);
    for (int64_t i = 0; i < rows; i++, from += g->stride[2] * size) {
        if (g->stride[1] != 1 && g->stride[3] == 1) {
            NAMED(load_turned)(from, g->dtype, g->stride[1], columns, to + i * columns * w->ld, w->ld, out);
            continue;
        }
        for (int64_t j = 0; j < columns; j++)
            NAMED(load_line)(from + j * g->stride[3] * size, g->dtype, g->stride[1], to + (i * columns + j) * w->ld, out);
    }
}

/* The sums of one share for a block of a group's channels: (block · taps + MR, ld), the last MR lines a place for what nobody reads. */
static inline T *NAMED(sums_of)(const weight_plan *w, int64_t share, int64_t group, int64_t block)
{
    return (T *)w->sums + ((share * w->s.groups + group) * w->blocks + block) * (w->block * tap_count(&w->s) + MR) * w->ld;
}

/* ---- a share ----------------------------------------------------------------------------------------------------------------------- */

/* sums (channels · taps, ld) of one group and band. */
static void NAMED(add_band)(const weight_plan *w, const T *planes, const T *g, int64_t channels, int64_t rows, T *sums)
{
    const plan *s = &w->s;
    const phase *f = s->phases;
    int64_t columns = f->size[1], lines = channels * f->taps, some = most(1, PIXELS / columns);
    for (int64_t row = 0; row < rows; row += some)
        for (int64_t o = 0, wide; o < w->ld; o += wide) {
            int64_t left = (w->ld - o) / LANES;
            wide = (left == 4 ? 2 : least(left, 3)) * LANES;
            for (int64_t k = 0; k < lines; k += MR) {
                NAMED(strip) strip = {.rows = least(rows - row, some), .columns = columns, .width = s->width, .ld = w->ld};
                for (int64_t i = 0; i < MR; i++) { /* beyond the last line: it once more, into sums that nobody reads */
                    int64_t line = least(k + i, lines - 1);
                    strip.x[i] = planes + line / f->taps * s->channel + f->offset[line % f->taps] + row * s->width;
                }
                (wide == 3 * LANES ? NAMED(strip_of_3) : wide == 2 * LANES ? NAMED(strip_of_2) : NAMED(strip_of_1))(
                    &strip, g + row * columns * w->ld + o, sums + k * w->ld + o);
            }
        }
}

static void NAMED(add_band_directly)(const weight_plan *w, const T *planes, const T *g, int64_t channels, int64_t rows, T *sums)
{
    const plan *s = &w->s;
    const phase *f = s->phases;
    int64_t columns = f->size[1];
    for (int64_t line = 0; line < channels * f->taps; line++)
        for (int64_t o = 0; o < s->out; o++) {
            const T *x = planes + line / f->taps * s->channel + f->offset[line % f->taps], *at = g + o * rows * columns;
            T sum = 0;
            for (int64_t i = 0; i < rows; i++)
                sum += NAMED(row_product)(x + i * s->width, at + i * columns, columns);
            sums[line * w->ld + o] += sum;
        }
}

/* One share of the bands of all images, for a block of the channels of the groups that are loaded together. */
static void NAMED(run_share)(const weight_plan *w, int64_t share, int64_t group, int64_t block, bool *used, T *planes)
{
    const plan *s = &w->s;
    int64_t groups = least(s->groups - group, s->together), first = block * w->block, channels = least(s->in - first, w->block);
    int64_t taps = tap_count(s), bands = s->images * s->bands;
    T *g = planes + NAMED(planes_bytes)(s, s->together * w->block) / sizeof(T);
    for (int64_t k = 0; k < groups; k++)
        NAMED(zero_line)(NAMED(sums_of)(w, share, group + k, block), (channels * taps + MR) * w->ld);
    for (int64_t at = share * w->per_share; at < least(bands, (share + 1) * w->per_share); at++) {
        int64_t image = at / s->bands, band = at % s->bands, rows = least(s->rows - band * s->band, s->band);
        NAMED(load_planes)(s, image, group * s->in + first, groups * channels, band, *used && s->in % w->block == 0, planes);
        *used = true;
        for (int64_t k = 0; k < groups; k++) {
            NAMED(load_gradient)(w, image, group + k, band * s->band, rows, g);
            (w->direct ? NAMED(add_band_directly) : NAMED(add_band))(w, planes + k * s->in * s->channel, g, channels, rows,
                                                                     NAMED(sums_of)(w, share, group + k, block));
        }
    }
}

static void NAMED(run_shares)(int64_t begin, int64_t end, void *ctx)
{
    const weight_plan *w = ctx;
    int64_t sets = ceiling(w->s.groups, w->s.together);
    int which;
    bool used;
    T *planes = (T *)(void *)slot_take(&w->places, &which, &used);
    for (; begin < end; begin++)
        NAMED(run_share)(w, begin / w->blocks / sets, begin / w->blocks % sets * w->s.together, begin % w->blocks, &used, planes);
    slot_give(&w->places, which);
}

/* ---- all of it --------------------------------------------------------------------------------------------------------------------- */

#define LINES 64

/* Sums of `lines` lines from `line` on for `wide` output channels, all shares in order, turned: to[o · LINES + k]. */
static void NAMED(add_up)(const weight_plan *w, int64_t group, int64_t block, int64_t line, int64_t lines, int64_t first, int64_t wide, T *to)
{
    T row[LINES];
    for (int64_t k = 0; k < lines; k++) {
        NAMED(zero_line)(row, wide);
        for (int64_t share = 0; share < w->shares; share++) {
            const T *from = NAMED(sums_of)(w, share, group, block) + (line + k) * w->ld + first;
            for (int64_t o = 0; o < wide; o++)
                row[o] += from[o];
        }
        for (int64_t o = 0; o < wide; o++)
            to[o * LINES + k] = row[o];
    }
}

/* n gradients from `line` on, counted over channels and taps, of one output channel: on top of beta times what is there. */
static void NAMED(store_gradients)(const weight_plan *w, int64_t channel, int64_t line, const T *sums, int64_t n)
{
    const tarn__view *to = w->to;
    int64_t taps = tap_count(&w->s), columns = w->s.kernel[1], size = (int64_t)tarn__dtype_bytes(to->dtype), run;
    bool dense = to->stride[3] == 1 && to->stride[2] == columns && to->stride[1] == taps;
    T value[LINES];
    for (int64_t end = line + n; line < end; line += run, sums += run) {
        int64_t c = line / taps, t = line % taps;
        run = dense ? end - line : 1;
        char *at = (char *)tarn__view_at(to) + (channel * to->stride[0] + c * to->stride[1] + t / columns * to->stride[2] +
                                                t % columns * to->stride[3]) * size;
        memset(value, 0, sizeof(value));
        if (w->beta != 0)
            tarn__load[to->dtype][COMPUTE](at, 1, value, run);
        for (int64_t i = 0; i < run; i++)
            value[i] = sums[i] + (T)w->beta * value[i];
        tarn__store[to->dtype][COMPUTE](value, at, 1, run);
    }
}

/* A piece is up to LINES lines of a block for up to LINES output channels of a group. */
static void NAMED(add_shares)(int64_t begin, int64_t end, void *ctx)
{
    const weight_plan *w = ctx;
    const plan *s = &w->s;
    T sums[LINES * LINES];
    int64_t taps = tap_count(s), down = ceiling(w->block * taps, LINES), across = ceiling(s->out, LINES);
    for (; begin < end; begin++) {
        int64_t group = begin / across / down / w->blocks, block = begin / across / down % w->blocks;
        int64_t line = begin / across % down * LINES, first = begin % across * LINES;
        int64_t lines = least(least(s->in - block * w->block, w->block) * taps - line, LINES), wide = least(s->out - first, LINES);
        if (lines <= 0)
            continue;
        NAMED(add_up)(w, group, block, line, lines, first, wide, sums);
        for (int64_t o = 0; o < wide; o++)
            NAMED(store_gradients)(w, group * s->out + first + o, block * w->block * taps + line, sums + o * LINES, lines);
    }
}

static void NAMED(lay_out_weight)(weight_plan *w, carver *c)
{
    plan *s = &w->s;
    size_t planes = NAMED(planes_bytes)(s, s->together * w->block), gradient = sizeof(T) * (size_t)(s->band * w->g->shape[3] * w->ld + NR);
    lay_out_tables(s, c);
    w->sums = carve(c, sizeof(T) * (size_t)(w->shares * s->groups * w->blocks * (w->block * tap_count(s) + MR) * w->ld));
    w->places = carve_slots(c, planes + gradient, slot_count(shares_of(w)));
}

static void NAMED(run_weight_plan)(weight_plan *w, carver *c)
{
    NAMED(lay_out_weight)(w, c);
    fill_tables(&w->s);
    int64_t lines = w->block * tap_count(&w->s), pieces = w->s.groups * w->blocks * ceiling(lines, LINES) * ceiling(w->s.out, LINES);
    int64_t work = w->per_share * w->s.band * w->s.width * lines * w->s.together * w->ld;
    tarn__parallel_for(shares_of(w), ceiling(UNIT_WORK, work + 1), NAMED(run_shares), w);
    tarn__parallel_for(pieces, ceiling(4096, least(lines, LINES) * least(w->s.out, LINES)), NAMED(add_shares), w);
}

#undef LINES
#undef PIXELS
