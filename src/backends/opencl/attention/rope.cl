/* rope.cl: rotary positions. Sines and cosines are made once for each position and pair, and then serve all heads. */

#define OPERAND(name) __global void *name, long name##_at

typedef COMPUTE(T_X) C;

#ifdef ANGLES
#define PIECE 64 /* pairs of a launch: their frequencies are an argument */

/* The sine and cosine of position · frequency, each rounded once from an angle that has more digits than f32. */
#ifdef HAS_F64
typedef struct frequencies {
    double at[PIECE];
} frequencies;

void turn_of(long position, double frequency, C *cosine, C *sine)
{
    const double angle = (double)position * frequency;
    *cosine = (C)cos(angle);
    *sine = (C)sin(angle);
}
#else
typedef struct frequencies {
    float2 at[PIECE]; /* each a sum of two */
} frequencies;

/* The angle is a sum of two floats, too; whole turns are taken off in three parts of 2 pi. */
void turn_of(long position, float2 frequency, C *cosine, C *sine)
{
    const float p = (float)position, high = p * frequency.x, low = fma(p, frequency.x, -high) + p * frequency.y;
    const float turns = rint(high * 0x1.45f306p-3f);
    float angle = fma(-turns, 0x1.921fb6p+2f, high);
    angle = fma(-turns, -0x1.777a5cp-23f, angle);
    angle = fma(-turns, -0x1.ee59dap-48f, angle) + low;
    *cosine = (C)cos(angle);
    *sine = (C)sin(angle);
}
#endif

/* One pair of one position for each work-item; `table` is (rows, pairs, 2). Rows are positions 0, 1, 2 … where none are
 * given. */
__kernel void angles(frequencies given, long first, long count, long rows, long length, long pairs, OPERAND(positions),
                     long batch_step, long step, int is_back, OPERAND(table))
{
    const long row = get_global_id(0) / count, i = get_global_id(0) % count;
    if (row >= rows)
        return;
    const long position =
        positions ? LOAD(T_POSITION, positions, positions_at + row / length * batch_step + row % length * step) : row;
    C cosine, sine;
    turn_of(position, given.at[i], &cosine, &sine);
    __global C *to = (__global C *)((__global char *)table + table_at) + 2 * (row * pairs + first + i);
    to[0] = cosine;
    to[1] = is_back ? -sine : sine;
}
#endif

#ifdef TURN
typedef struct shape {
    long batches, length, heads, depth, pairs;
    long x[4], y[4]; /* strides along batch, position, head, element */
} shape;

/* One pair of one head, or one element behind the turned ones, for each work-item. Bytes: x read and y written. */
__kernel void rope(shape s, OPERAND(x), OPERAND(y), OPERAND(table), int is_shared, int is_interleaved)
{
    const INDEX units = (INDEX)(s.depth - s.pairs), heads = (INDEX)s.heads, length = (INDEX)s.length;
    const INDEX number = (INDEX)get_global_id(0), row = number / units, unit = number - row * units;
    const INDEX place = row / heads, head = row - place * heads, batch = place / length, t = place - batch * length;
    if (batch >= s.batches)
        return;
    const long from = x_at + batch * s.x[0] + t * s.x[1] + head * s.x[2],
               to = y_at + batch * s.y[0] + t * s.y[1] + head * s.y[2];
    if (unit >= s.pairs) {
        const long at = s.pairs + unit;
        STORE(T_Y, y, to + at * s.y[3], LOAD(T_X, x, from + at * s.x[3]));
        return;
    }
    const __global C *turn =
        (const __global C *)((const __global char *)table + table_at) + 2 * ((is_shared ? t : place) * s.pairs + unit);
    const long one = is_interleaved ? 2 * unit : unit, other = is_interleaved ? one + 1 : one + s.pairs;
    const C a = LOAD(T_X, x, from + one * s.x[3]), b = LOAD(T_X, x, from + other * s.x[3]), cosine = turn[0],
            sine = turn[1];
    STORE(T_Y, y, to + one * s.y[3], a * cosine - b * sine);
    STORE(T_Y, y, to + other * s.y[3], b * cosine + a * sine);
}
#endif
