/* conv_tile.h: convolving planes, for one compute type; included like conv_planes.h.
 *
 * Weights are packed in panels of MR output channels, side by side for every input channel and tap. A register tile is MR channels by up to
 * three vectors of outputs. */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))
#define NR (3 * LANES)

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

/* What a tile sums over: taps of some channels, one after the other; the first ones begin it, later ones are added. */
typedef struct NAMED(sum) {
    int64_t terms;
    const int64_t *place;
    bool first;
} NAMED(sum);

/* `at` is where a term reads. AArch64 knows it two terms before: arithmetic would wait for an address that waits for its place. */
#if defined(__aarch64__)
#define FIRST_TERM const T *at = b + s->place[0], *next = b + s->place[1];
#define THIS_TERM(k) const T *after = b + s->place[(k) + 2];
#define NEXT_TERM at = next, next = after;
#else
#define FIRST_TERM
#define THIS_TERM(k) const T *at = b + s->place[k];
#define NEXT_TERM
#endif

/* tile (MR, NR) = or += a panel of weights times the outputs that begin at b. The sums have names of their own so that they stay in registers. */
#define LEFT(i, of, at) BY_WEIGHT(l##i, left, of, at)
#define MIDDLE(i, of, at) BY_WEIGHT(m##i, middle, of, at)
#define RIGHT(i, of, at) BY_WEIGHT(r##i, right, of, at)
#define ADD_LEFT(i) l##i += NAMED(load_vector)(tile + i * NR);
#define ADD_MIDDLE(i) m##i += NAMED(load_vector)(tile + i * NR + LANES);
#define ADD_RIGHT(i) r##i += NAMED(load_vector)(tile + i * NR + 2 * LANES);
#define STORE_LEFT(i) NAMED(store_vector)(tile + i * NR, l##i);
#define STORE_MIDDLE(i) NAMED(store_vector)(tile + i * NR + LANES, m##i);
#define STORE_RIGHT(i) NAMED(store_vector)(tile + i * NR + 2 * LANES, r##i);

static void NAMED(tile_of_3)(const NAMED(sum) *s, const T *restrict a, const T *restrict b, T *restrict tile)
{
#define SUMS(i) NAMED(vector) l##i = {0}, m##i = {0}, r##i = {0};
    EACH_ROW(SUMS)
    FIRST_TERM
    for (int64_t k = 0; k < s->terms; k++, a += MR) {
        THIS_TERM(k)
        NAMED(vector) left = NAMED(load_vector)(at), middle = NAMED(load_vector)(at + LANES), right = NAMED(load_vector)(at + 2 * LANES);
        LOAD_WEIGHTS(a)
#define MULTIPLY(i, of, at) LEFT(i, of, at) MIDDLE(i, of, at) RIGHT(i, of, at)
        EACH_WEIGHT(MULTIPLY)
        NEXT_TERM
    }
    if (!s->first) {
        EACH_ROW(ADD_LEFT) EACH_ROW(ADD_MIDDLE) EACH_ROW(ADD_RIGHT)
    }
    EACH_ROW(STORE_LEFT) EACH_ROW(STORE_MIDDLE) EACH_ROW(STORE_RIGHT)
#undef SUMS
#undef MULTIPLY
}

static void NAMED(tile_of_2)(const NAMED(sum) *s, const T *restrict a, const T *restrict b, T *restrict tile)
{
#define SUMS(i) NAMED(vector) l##i = {0}, m##i = {0};
    EACH_ROW(SUMS)
    FIRST_TERM
    for (int64_t k = 0; k < s->terms; k++, a += MR) {
        THIS_TERM(k)
        NAMED(vector) left = NAMED(load_vector)(at), middle = NAMED(load_vector)(at + LANES);
        LOAD_WEIGHTS(a)
#define MULTIPLY(i, of, at) LEFT(i, of, at) MIDDLE(i, of, at)
        EACH_WEIGHT(MULTIPLY)
        NEXT_TERM
    }
    if (!s->first) {
        EACH_ROW(ADD_LEFT) EACH_ROW(ADD_MIDDLE)
    }
    EACH_ROW(STORE_LEFT) EACH_ROW(STORE_MIDDLE)
#undef SUMS
#undef MULTIPLY
}

static void NAMED(tile_of_1)(const NAMED(sum) *s, const T *restrict a, const T *restrict b, T *restrict tile)
{
#define SUMS(i) NAMED(vector) l##i = {0};
    EACH_ROW(SUMS)
    FIRST_TERM
    for (int64_t k = 0; k < s->terms; k++, a += MR) {
        THIS_TERM(k)
        NAMED(vector) left = NAMED(load_vector)(at);
        LOAD_WEIGHTS(a)
        EACH_WEIGHT(LEFT)
        NEXT_TERM
    }
    if (!s->first) {
        EACH_ROW(ADD_LEFT)
    }
    EACH_ROW(STORE_LEFT)
#undef SUMS
}

/* One channel alone: what a depthwise convolution is made of. */
static void NAMED(single)(const NAMED(sum) *s, const T *restrict a, const T *restrict b, T *restrict tile)
{
    NAMED(vector) l0 = {0}, m0 = {0}, r0 = {0};
    FIRST_TERM
    for (int64_t k = 0; k < s->terms; k++, a++) {
        THIS_TERM(k)
        NAMED(vector) left = NAMED(load_vector)(at), middle = NAMED(load_vector)(at + LANES), right = NAMED(load_vector)(at + 2 * LANES);
        l0 += left * *a, m0 += middle * *a, r0 += right * *a;
        NEXT_TERM
    }
    if (!s->first) {
        ADD_LEFT(0) ADD_MIDDLE(0) ADD_RIGHT(0)
    }
    STORE_LEFT(0) STORE_MIDDLE(0) STORE_RIGHT(0)
}

#undef LEFT
#undef MIDDLE
#undef RIGHT
#undef ADD_LEFT
#undef ADD_MIDDLE
#undef ADD_RIGHT
#undef STORE_LEFT
#undef STORE_MIDDLE
#undef STORE_RIGHT
#undef FIRST_TERM
#undef THIS_TERM
#undef NEXT_TERM

/* ---- weights ----------------------------------------------------------------------------------------------------------------- */

/* Where the weight of an output row, a source channel and a tap lies in the packed ones of its group. */
static inline int64_t NAMED(weight_place)(const plan *s, int64_t row, int64_t channel, int64_t tap)
{
    const phase *f = &s->phases[s->tap_phase[tap]];
    int64_t whole = whole_rows(s->out), length = s->in * f->taps, k = channel * f->taps + s->tap_place[tap];
    int64_t base = f->earlier * s->in * packed_rows(s->out);
    return row < whole ? base + (row / MR * length + k) * MR + row % MR : base + whole * length + (row - whole) * length + k;
}

/* Packs the weights of one index of the weight's first axis: an output channel, or the source channel of a gradient. */
static void NAMED(pack_weights)(int64_t begin, int64_t end, void *ctx)
{
    const plan *s = ctx;
    const tarn__view *w = s->weight;
    enum { RUN = 64 };
    T run[RUN];
    int64_t taps = tap_count(s), size = (int64_t)tarn__dtype_bytes(w->dtype), first = w->shape[0] / s->groups, second = w->shape[1];
    bool dense = w->stride[3] == 1 && w->stride[2] == s->kernel[1];
    for (; begin < end; begin++) {
        T *to = (T *)s->weights + begin / first * packed_rows(s->out) * s->in * taps;
        for (int64_t c = 0; c < second; c++)
            for (int64_t t = 0, n; t < taps; t += n) {
                int64_t kh = t / s->kernel[1], kw = t % s->kernel[1];
                n = least(dense ? taps - t : s->kernel[1] - kw, RUN);
                const char *from = (const char *)tarn__view_at(w) +
                                   (begin * w->stride[0] + c * w->stride[1] + kh * w->stride[2] + kw * w->stride[3]) * size;
                tarn__load[w->dtype][COMPUTE](from, w->stride[3], run, n);
                for (int64_t i = 0; i < n; i++) {
                    int64_t tap = t + i;
                    if (s->tap_phase[tap] < 0)
                        continue;
                    to[s->gradient ? NAMED(weight_place)(s, c, begin % first, tap) : NAMED(weight_place)(s, begin % first, c, tap)] = run[i];
                }
            }
    }
}

/* ---- storing ----------------------------------------------------------------------------------------------------------------- */

/* Like copy_line(), with a number added. */
static inline void NAMED(add_to_line)(const T *restrict from, T number, T *restrict to, int64_t n)
{
    enum { SHORT = 16 / sizeof(T) };
    if (n >= LANES) {
        for (int64_t i = 0; i < n; i += LANES) {
            int64_t at = i + LANES <= n ? i : n - LANES;
            NAMED(store_vector)(to + at, NAMED(load_vector)(from + at) + number);
        }
    } else if (n >= SHORT) {
        for (int64_t i = 0; i < n; i += SHORT) {
            NAMED(short_vector) w;
            int64_t at = i + SHORT <= n ? i : n - SHORT;
            memcpy(&w, from + at, sizeof(w));
            w += number;
            memcpy(to + at, &w, sizeof(w));
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i] + number;
    }
}

/* n outputs of neighbouring columns, of some channels of a tile, with their biases. `to` is the first one's place. */
static void NAMED(store_run)(const plan *s, char *to, const T *tile, const T *bias, int64_t channels, int64_t n)
{
    const tarn__view *y = s->to;
    int64_t size = (int64_t)tarn__dtype_bytes(y->dtype), across = y->stride[3] * s->spread[1];
    bool native = y->dtype == NATIVE;
    T line[NR];
    if (y->stride[1] == 1 && across != 1 && channels > 1) {
        for (int64_t j = 0; j < n; j++) {
            T *pixel = native ? (T *)(void *)(to + j * across * size) : line;
            for (int64_t c = 0; c < channels; c++)
                pixel[c] = tile[c * NR + j] + bias[c];
            if (!native)
                tarn__store[y->dtype][COMPUTE](line, to + j * across * size, 1, channels);
        }
        return;
    }
    for (int64_t c = 0; c < channels; c++) {
        char *at = to + c * y->stride[1] * size;
        T *row = native && across == 1 ? (T *)(void *)at : line;
        NAMED(add_to_line)(tile + c * NR, bias[c], row, n);
        if (row == line)
            tarn__store[y->dtype][COMPUTE](line, at, across, n);
    }
}

/* A piece of the output: the phase, the image, the first of the channels, and the band's first row. */
typedef struct NAMED(piece) {
    const plan *s;
    const phase *f;
    int64_t image, group, row;
} NAMED(piece);

/* The part of a tile that lies inside the output: n places from p on, counted along the planes' rows. */
static void NAMED(store_tile)(const NAMED(piece) *o, int64_t channel, int64_t channels, int64_t p, int64_t n, const T *tile)
{
    const plan *s = o->s;
    const tarn__view *y = s->to;
    const T *bias = (const T *)s->biases + o->group * s->out + channel;
    int64_t size = (int64_t)tarn__dtype_bytes(y->dtype);
    char *to = (char *)tarn__view_at(y) + (o->image * y->stride[0] + (o->group * s->out + channel) * y->stride[1]) * size;
    for (int64_t end = p + n, run; p < end; p += run, tile += run) {
        int64_t i = p / s->width, j = p % s->width, inside = least(o->f->size[1] - j, end - p);
        run = least(s->width - j, end - p);
        int64_t row = o->f->at[0] + (o->row + i) * s->spread[0], column = o->f->at[1] + j * s->spread[1];
        if (inside > 0)
            NAMED(store_run)(s, to + (row * y->stride[2] + column * y->stride[3]) * size, tile, bias, channels, inside);
    }
}

/* ---- a band ------------------------------------------------------------------------------------------------------------------ */

/* Tiles of `rows` output channels from `row` on, `n` outputs from p on. Source channels are taken a few at a time, so that what they are read
 * for stays in the first-level cache for all of the rows. */
static void NAMED(make_tiles)(const NAMED(piece) *o, const T *planes, int64_t row, int64_t rows, int64_t n, T *tiles)
{
    const plan *s = o->s;
    const phase *f = o->f;
    int64_t length = s->in * f->taps, whole = whole_rows(s->out), some = channels_at_once(s, f);
    const T *weights = (const T *)s->weights + (o->group * tap_count(s) + f->earlier) * s->in * packed_rows(s->out);
    for (int64_t c = 0; c < s->in; c += some) {
        NAMED(sum) sum = {least(s->in - c, some) * f->taps, f->place, c == 0};
        const T *from = planes + c * s->channel;
        int64_t r = row;
        for (; r < least(row + rows, whole); r += MR)
            (n > 2 * LANES ? NAMED(tile_of_3) : n > LANES ? NAMED(tile_of_2) : NAMED(tile_of_1))(
                &sum, weights + r * length + c * f->taps * MR, from, tiles + (r - row) * NR);
        for (; r < row + rows; r++)
            NAMED(single)(&sum, weights + r * length + c * f->taps, from, tiles + (r - row) * NR);
    }
}

static void NAMED(convolve)(const NAMED(piece) *o, const T *planes, int64_t rows)
{
    const plan *s = o->s;
    _Alignas(64) T tiles[TILE_ROWS * NR];
    int64_t last = (rows - 1) * s->width + o->f->size[1];
    for (int64_t p = 0; p < last; p += NR)
        for (int64_t row = 0; row < s->out; row += TILE_ROWS) {
            int64_t n = least(last - p, NR), some = least(s->out - row, TILE_ROWS);
            NAMED(make_tiles)(o, planes + p, row, some, n, tiles);
            for (int64_t r = 0; r < some; r += MR)
                NAMED(store_tile)(o, row + r, least(some - r, MR), p, n, tiles + r * NR);
        }
}

typedef struct NAMED(work) {
    const plan *s;
    slots places;
} NAMED(work);

/* A unit is a band of one image, for the groups that are loaded together. */
static void NAMED(run_units)(int64_t begin, int64_t end, void *ctx)
{
    const NAMED(work) *w = ctx;
    const plan *s = w->s;
    int which;
    bool used;
    T *planes = (T *)(void *)slot_take(&w->places, &which, &used);
    int64_t blocks = ceiling(s->groups, s->together), phases = s->phase_count[0] * s->phase_count[1];
    for (; begin < end; begin++) {
        int64_t image = begin / s->bands / blocks, band = begin % s->bands, group = begin / s->bands % blocks * s->together;
        int64_t groups = least(s->groups - group, s->together);
        NAMED(load_planes)(s, image, group * s->in, groups * s->in, band, used, planes);
        used = true;
        for (int64_t g = 0; g < groups; g++)
            for (int64_t k = 0; k < phases; k++) {
                NAMED(piece) piece = {s, &s->phases[k], image, group + g, band * s->band};
                int64_t rows = least(piece.f->size[0] - piece.row, s->band);
                if (rows > 0)
                    NAMED(convolve)(&piece, planes + g * s->in * s->channel, rows);
            }
    }
    slot_give(&w->places, which);
}

/* Carves the scratch up; without memory it only counts it. */
static NAMED(work) NAMED(lay_out)(plan *s, carver *c)
{
    int64_t taps = tap_count(s), outputs = s->groups * s->out;
    lay_out_tables(s, c);
    s->biases = carve(c, sizeof(T) * (size_t)outputs);
    s->weights = carve(c, sizeof(T) * (size_t)(s->groups * packed_rows(s->out) * s->in * taps));
    return (NAMED(work)){s, carve_slots(c, NAMED(planes_bytes)(s, s->together * s->in), slot_count(units_of(s)))};
}

static void NAMED(run_plan)(plan *s, carver *c)
{
    NAMED(work) w = NAMED(lay_out)(s, c);
    fill_tables(s);
    int64_t outputs = s->groups * s->out, taps = tap_count(s), packed = packed_rows(s->out) * s->in * taps;
    NAMED(zero_line)(s->biases, outputs);
    if (s->bias)
        tarn__load[s->bias->dtype][COMPUTE](tarn__view_at(s->bias), s->bias->stride[0], s->biases, outputs);
    if (packed_rows(s->out) > s->out)
        NAMED(zero_line)(s->weights, s->groups * packed);
    tarn__parallel_for(s->weight->shape[0], ceiling(4096, s->weight->shape[1] * taps), NAMED(pack_weights), s);
    int64_t work = s->together * s->out * s->in * taps * s->band * s->width;
    tarn__parallel_for(units_of(s), ceiling(UNIT_WORK, work + 1), NAMED(run_units), &w);
}
