/* rope.cl: rotary position embeddings: sines and cosines are computed once per position and pair, for all heads. */

#define OPERAND(name) __global void *name, long name##_at

typedef COMPUTE(T_X) C;

#ifdef ANGLES
#define PIECE 64 /* pairs per launch: their frequencies are an argument */

/* Sine and cosine of position · frequency, times `magnitude`, from an angle with more precision than f32. */
#ifdef HAS_F64
typedef struct frequencies {
    double at[PIECE];
} frequencies;

typedef double real;

void rotation_of(long position, double frequency, double magnitude, C *cosine, C *sine)
{
    const double angle = (double)position * frequency;
    *cosine = (C)(magnitude * cos(angle));
    *sine = (C)(magnitude * sin(angle));
}
#else
typedef struct frequencies {
    float2 at[PIECE]; /* each a sum of two */
} frequencies;

/* The angle is a double-float; whole periods are subtracted in three parts of 2π (Cody and Waite). */
typedef float real;

void rotation_of(long position, float2 frequency, float magnitude, C *cosine, C *sine)
{
    const float p = (float)position, high = p * frequency.x, low = fma(p, frequency.x, -high) + p * frequency.y;
    const float periods = rint(high * 0x1.45f306p-3f);
    float angle = fma(-periods, 0x1.921fb6p+2f, high);
    angle = fma(-periods, -0x1.777a5cp-23f, angle);
    angle = fma(-periods, -0x1.ee59dap-48f, angle) + low;
    *cosine = (C)(magnitude * cos(angle));
    *sine = (C)(magnitude * sin(angle));
}
#endif

/* One pair of one position per work-item; `table` is (rows, pairs, 2). Without positions row r is position r. */
__kernel void angles(frequencies given, long first, long count, long rows, long length, long pairs, OPERAND(positions),
                     long batch_step, long step, int is_back, real magnitude, OPERAND(table))
{
    const long row = get_global_id(0) / count, i = get_global_id(0) % count;
    if (row >= rows)
        return;
    const long position =
        positions ? LOAD(T_POSITION, positions, positions_at + row / length * batch_step + row % length * step) : row;
    C cosine, sine;
    rotation_of(position, given.at[i], magnitude, &cosine, &sine);
    __global C *to = (__global C *)((__global char *)table + table_at) + 2 * (row * pairs + first + i);
    to[0] = cosine;
    to[1] = is_back ? -sine : sine;
}
#endif

#ifdef ROTATE
/* Struct `shape` of rope.c, passed by value. */
typedef struct shape {
    long batches, length, heads, depth, pairs;
    long x[4], y[4]; /* strides along batch, position, head, element */
} shape;

/* One pair of one head, or one element after the rotated ones, per work-item. Bytes: x read and y written. */
__kernel void rope(shape s, OPERAND(x), OPERAND(y), OPERAND(table), int is_shared, int is_interleaved)
{
    const INDEX units = (INDEX)(s.depth - s.pairs), heads = (INDEX)s.heads, length = (INDEX)s.length;
    const INDEX number = (INDEX)get_global_id(0), row = number / units, unit = number - row * units;
    const INDEX position_index = row / heads, head = row - position_index * heads, batch = position_index / length,
                t = position_index - batch * length;
    if (batch >= s.batches)
        return;
    const long from = x_at + batch * s.x[0] + t * s.x[1] + head * s.x[2],
               to = y_at + batch * s.y[0] + t * s.y[1] + head * s.y[2];
    if (unit >= s.pairs) {
        const long at = s.pairs + unit;
        STORE(T_Y, y, to + at * s.y[3], LOAD(T_X, x, from + at * s.x[3]));
        return;
    }
    const __global C *rotation = (const __global C *)((const __global char *)table + table_at) +
                                 2 * ((is_shared ? t : position_index) * s.pairs + unit);
    const long one = is_interleaved ? 2 * unit : unit, other = is_interleaved ? one + 1 : one + s.pairs;
    const C a = LOAD(T_X, x, from + one * s.x[3]), b = LOAD(T_X, x, from + other * s.x[3]), cosine = rotation[0],
            sine = rotation[1];
    STORE(T_Y, y, to + one * s.y[3], a * cosine - b * sine);
    STORE(T_Y, y, to + other * s.y[3], b * cosine + a * sine);
}
#endif
