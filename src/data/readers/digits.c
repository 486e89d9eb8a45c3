/* digits.c: synthetic digits, for training without a download.
 *
 * A digit is a list of strokes in a unit box, y pointing down. A sample picks one of the digit's shapes, bends it,
 * applies a random affine map, and draws it with a pen of random width: a pixel's ink falls off with its distance to
 * the nearest stroke. Sample i depends on (seed, i) alone: its random numbers are drawn in one fixed order, and threads
 * change nothing. */
#include <math.h>
#include <string.h>

#include "data/dataset.h"
#include "data/random.h"

#define SIZE 28     /* pixels per side */
#define BOX 21.0    /* pixels per side of the unit box, before the random scale */
#define SEGMENTS 20 /* straight segments per stroke */
#define PI 3.14159265358979323846
#define SQRT3 1.73205080756887729353

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

typedef struct stroke {
    enum { NONE, LINE, ARC } kind;
    double a, b, c, d; /* line: from (a, b) to (c, d); arc: centre (a, b), radii (c, d) */
    double from, to;   /* arc: degrees, clockwise from the right */
} stroke;

#define MAX_STROKES 4
#define MAX_SHAPES 3

typedef struct digit {
    int shapes;
    stroke stroke[MAX_SHAPES][MAX_STROKES]; /* NONE terminates a shape */
} digit;

/* clang-format off */
static const digit digits[10] = {
    {2, {{{ARC, .50, .50, .25, .39, 0, 360}},
         {{ARC, .50, .50, .17, .38, 0, 360}}}},
    {3, {{{LINE, .50, .10, .50, .90, 0, 0}},
         {{LINE, .52, .10, .52, .90, 0, 0}, {LINE, .52, .10, .33, .28, 0, 0}},
         {{LINE, .50, .10, .50, .90, 0, 0}, {LINE, .50, .10, .34, .25, 0, 0}, {LINE, .31, .90, .69, .90, 0, 0}}}},
    {2, {{{ARC, .50, .32, .23, .22, 195, 400}, {LINE, .676, .461, .27, .90, 0, 0}, {LINE, .27, .90, .76, .90, 0, 0}},
         {{ARC, .48, .32, .23, .22, 200, 400}, {LINE, .656, .461, .40, .80, 0, 0},
          {ARC, .335, .80, .065, .09, 0, 360}, {LINE, .37, .87, .76, .90, 0, 0}}}},
    {2, {{{ARC, .47, .30, .23, .20, 205, 450}, {ARC, .47, .70, .26, .20, 270, 515}},
         {{LINE, .28, .10, .71, .10, 0, 0}, {LINE, .71, .10, .46, .42, 0, 0}, {ARC, .46, .66, .26, .24, 270, 515}}}},
    {2, {{{LINE, .60, .10, .24, .63, 0, 0}, {LINE, .24, .63, .80, .63, 0, 0}, {LINE, .60, .10, .60, .90, 0, 0}},
         {{LINE, .33, .12, .28, .55, 0, 0}, {LINE, .28, .55, .76, .55, 0, 0}, {LINE, .68, .12, .66, .90, 0, 0}}}},
    {2, {{{LINE, .72, .10, .33, .10, 0, 0}, {LINE, .33, .10, .30, .46, 0, 0}, {ARC, .47, .65, .27, .25, 225, 500}},
         {{LINE, .70, .12, .36, .12, 0, 0}, {LINE, .36, .12, .32, .43, 0, 0}, {ARC, .43, .65, .28, .24, 245, 480}}}},
    {2, {{{ARC, .72, .60, .45, .50, 180, 262}, {ARC, .50, .66, .23, .23, 0, 360}},
         {{LINE, .58, .10, .30, .60, 0, 0}, {ARC, .50, .68, .22, .21, 0, 360}}}},
    {3, {{{LINE, .25, .12, .75, .12, 0, 0}, {LINE, .75, .12, .42, .90, 0, 0}},
         {{LINE, .25, .12, .75, .12, 0, 0}, {LINE, .75, .12, .44, .90, 0, 0}, {LINE, .40, .52, .73, .52, 0, 0}},
         {{LINE, .27, .22, .27, .12, 0, 0}, {LINE, .27, .12, .74, .12, 0, 0}, {ARC, .88, .90, .40, .78, 180, 250}}}},
    {2, {{{ARC, .50, .30, .19, .19, 0, 360}, {ARC, .50, .69, .24, .21, 0, 360}},
         {{ARC, .50, .29, .17, .18, 0, 360}, {ARC, .50, .68, .19, .22, 0, 360}}}},
    {2, {{{ARC, .50, .34, .23, .23, 0, 360}, {ARC, .28, .40, .45, .50, 0, 82}},
         {{ARC, .48, .33, .21, .22, 0, 360}, {LINE, .69, .33, .66, .90, 0, 0}}}},
};
/* clang-format on */

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

/* The map from the unit box to pixels. */
typedef struct mapping {
    double bend_x, bend_y, phase_x, phase_y; /* sine waves along the other axis: bent strokes stay joined */
    double xx, xy, yx, yy, x, y;             /* affine map about the box's centre */
} mapping;

/* The canvas: distances instead of ink, so that crossing strokes do not add up. */
typedef struct pen {
    double radius;                 /* pixels */
    double distance2[SIZE * SIZE]; /* squared distance to the nearest stroke, exact near strokes only */
} pen;

/* Uniform in [low, high). */
static double between(tarn_random_state *random, double low, double high)
{
    return low + (high - low) * tarn_random_unit(random);
}

/* Draws a random map: bend, rotation, shear, scale, shift. */
static mapping draw_mapping(tarn_random_state *random)
{
    mapping m; /* one statement per draw: the order within an initializer list is unspecified */
    m.bend_x = between(random, -.055, .055);
    m.bend_y = between(random, -.04, .04);
    m.phase_x = between(random, 0, 2 * PI);
    m.phase_y = between(random, 0, 2 * PI);
    double angle = between(random, -.26, .26), shear = between(random, -.28, .28);
    double width = BOX * between(random, .75, 1.15), height = BOX * between(random, .80, 1.10);
    double c = cos(angle), s = sin(angle);
    m.xx = width * c; /* rotation · shear · scale */
    m.xy = height * (c * shear - s);
    m.yx = width * s;
    m.yy = height * (s * shear + c);
    m.x = SIZE / 2.0 + between(random, -2, 2);
    m.y = SIZE / 2.0 + between(random, -2, 2);
    return m;
}

/* Maps a point of the unit box to pixels. */
static void map_point(const mapping *m, double x, double y, double *to)
{
    double u = x - .5 + m->bend_x * sin(2 * PI * y + m->phase_x), v = y - .5 + m->bend_y * sin(2 * PI * x + m->phase_y);
    to[0] = m->xx * u + m->xy * v + m->x;
    to[1] = m->yx * u + m->yy * v + m->y;
}

/* Squared distance of a point to a line segment. */
static double squared_distance(double x, double y, const double *from, const double *to)
{
    double dx = to[0] - from[0], dy = to[1] - from[1], length2 = dx * dx + dy * dy;
    double along = length2 > 0 ? ((x - from[0]) * dx + (y - from[1]) * dy) / length2 : 0;
    along = along < 0 ? 0 : along > 1 ? 1 : along;
    double ex = x - from[0] - along * dx, ey = y - from[1] - along * dy;
    return ex * ex + ey * ey;
}

/* The pixels, first to last, within `reach` of the interval between a and b; first > last if there are none. */
static void pixels_near(double a, double b, double reach, int *first, int *last)
{
    double low = floor((a < b ? a : b) - reach), high = ceil((a < b ? b : a) + reach);
    *first = low < 0 ? 0 : low > SIZE ? SIZE : (int)low;
    *last = high < -1 ? -1 : high > SIZE - 1 ? SIZE - 1 : (int)high;
}

/* Draws a segment, in pixels; pixel (x, y) has its centre at (x + 0.5, y + 0.5). */
static void draw_segment(pen *p, const double *from, const double *to)
{
    int left, right, top, bottom;
    pixels_near(from[0], to[0], p->radius + 1.5, &left, &right);
    pixels_near(from[1], to[1], p->radius + 1.5, &top, &bottom);
    for (int y = top; y <= bottom; y++)
        for (int x = left; x <= right; x++) {
            double *nearest = &p->distance2[y * SIZE + x], found = squared_distance(x + .5, y + .5, from, to);
            if (found < *nearest)
                *nearest = found;
        }
}

/* Draws a stroke as segments; lines are divided too, since the map may bend them. */
static void draw_stroke(pen *p, const stroke *s, const mapping *m)
{
    double from[2] = {0}, to[2];
    for (int i = 0; i <= SEGMENTS; i++) {
        double t = (double)i / SEGMENTS, angle = (s->from + t * (s->to - s->from)) * PI / 180;
        if (s->kind == LINE)
            map_point(m, s->a + t * (s->c - s->a), s->b + t * (s->d - s->b), to);
        else
            map_point(m, s->a + s->c * cos(angle), s->b + s->d * sin(angle), to);
        if (i > 0)
            draw_segment(p, from, to);
        memcpy(from, to, sizeof(from));
    }
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* Ink where the pen was, with an antialiased edge one pixel wide, plus noise: per pixel the sum of four uniform
 * numbers, nearly normal. */
static void fill_pixels(const pen *p, tarn_random_state *random, uint8_t *pixel)
{
    double ink = between(random, 165, 255), noise = between(random, 0, 22);
    for (int i = 0; i < SIZE * SIZE; i++) {
        double cover = p->radius + .5 - sqrt(p->distance2[i]);
        uint64_t bits = (uint64_t)(tarn_random_unit(random) * 0x1p48);
        double sum = (double)((bits & 0xFFF) + (bits >> 12 & 0xFFF) + (bits >> 24 & 0xFFF) + (bits >> 36)) / 4095;
        /* the sum's std is 1/√3 */
        double value = ink * (cover < 0 ? 0 : cover > 1 ? 1 : cover) + noise * (sum - 2) * SQRT3 + .5;
        pixel[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

/* Draws sample `index` (tarn_get_fn): label, shape, map, pen and noise are drawn from the sample's own random state, in
 * this order. */
static bool get(int64_t index, void *const *memory, void *ctx)
{
    tarn__epoch_keys keys = tarn__epoch_keys_of(*(const uint64_t *)ctx, 0);
    tarn_random_state random = tarn__sample_random(&keys, index);
    int64_t label = tarn_random_below(&random, 10);
    const stroke *shape = digits[label].stroke[tarn_random_below(&random, digits[label].shapes)];
    mapping m = draw_mapping(&random);
    pen p = {.radius = between(&random, .75, 1.9)};
    for (int i = 0; i < SIZE * SIZE; i++)
        p.distance2[i] = 1e9;
    for (int i = 0; i < MAX_STROKES && shape[i].kind != NONE; i++)
        draw_stroke(&p, &shape[i], &m);
    fill_pixels(&p, &random, memory[0]);
    memcpy(memory[1], &label, sizeof(label));
    return true;
}

static void release(void *ctx)
{
    tarn__release(ctx, sizeof(uint64_t));
}

tarn_dataset *tarn_dataset_digits(int64_t count, uint64_t seed)
{
    static const tarn_field fields[] = {{"image", TARN_U8, {3, {1, SIZE, SIZE}}}, {"label", TARN_I64, {0, {0}}}};
    if (tarn_failed())
        return NULL;
    uint64_t *ctx = tarn__alloc(sizeof(*ctx));
    if (!ctx)
        return NULL;
    *ctx = seed;
    return tarn__dataset_new("dataset_digits", fields, 2, count, get, ctx, release);
}
