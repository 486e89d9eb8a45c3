/* reduce_states.cl: the state of a reduction, how an element enters it, and how two states merge: see reduce.cl. */

/* 24 bytes at most (TARN__CL_STATE_BYTES). a: the value; b: compensation, or sum of squared deviations; n: count or
 * index. */
typedef struct state {
    C a, b;
    long n;
} state;

#if defined(OP_equal) || defined(OP_dot)
#define HAS_SECOND
#endif

/* ---- elements -------------------------------------------------------------------------------------------------------
 */

/* a + x; in f32 with compensation: the rounding error is collected in b. */
static void add(state *s, C x)
{
#if defined(COMPUTES_F32)
    C sum = s->a + x, rest = fabs(s->a) >= fabs(x) ? (s->a - sum) + x : (x - sum) + s->a;
    s->a = sum;
    s->b += rest == rest ? rest : 0;
#else
    s->a += x;
#endif
}

#ifdef COMPUTES_I64
#define MIN_VALUE (-9223372036854775807L - 1)
#define MAX_VALUE 9223372036854775807L
#else
#define MIN_VALUE ((C)-INFINITY)
#define MAX_VALUE ((C)INFINITY)
#endif

/* Integers have none. */
static bool is_nan(C x)
{
#ifdef COMPUTES_I64
    return false;
#else
    return x != x;
#endif
}

#if defined(OP_max) || defined(OP_argmax)
#define BEATS(x, a) ((x) > (a))
#define IDENTITY MIN_VALUE
#else
#define BEATS(x, a) ((x) < (a))
#define IDENTITY MAX_VALUE
#endif

#define NO_INDEX 9223372036854775807L

/* The identity of merge(). */
static state empty_state(void)
{
    state s = {0, 0, 0};
#if defined(OP_prod) || defined(OP_nonzero)
    s.a = 1;
#elif defined(OP_max) || defined(OP_min)
    s.a = IDENTITY;
#elif defined(OP_argmax) || defined(OP_argmin)
    s.a = IDENTITY;
    s.n = NO_INDEX;
#endif
    return s;
}

/* NaN beats everything but NaN; the first of equal elements wins. */
static bool is_better(C x, C a)
{
    return BEATS(x, a) || (is_nan(x) && !is_nan(a));
}

/* Element x number i of an output, with z of the second operand. */
static void take(state *s, C x, C z, long i)
{
#if defined(OP_sum)
    add(s, x);
#elif defined(OP_dot)
    add(s, x * z);
#elif defined(OP_prod)
    s->a *= x;
#elif defined(OP_max) || defined(OP_min)
    s->a = BEATS(x, s->a) || is_nan(x) ? x : s->a;
#elif defined(OP_argmax) || defined(OP_argmin)
    if (is_better(x, s->a)) {
        s->a = x;
        s->n = i;
    }
#elif defined(OP_nonfinite)
    s->n += !(x - x == 0);
#elif defined(OP_equal)
    s->n += x == z;
#elif defined(OP_nonzero)
    s->a *= x == 0 ? (C)1 : x;
    s->n += x == 0;
#endif
}

/* Merges t into s. t has seen elements after those of s, or interleaved ones of the same slice. */
static void merge(state *s, const state *t)
{
#if defined(OP_sum) || defined(OP_dot)
    add(s, t->a);
    s->b += t->b;
#elif defined(OP_prod)
    s->a *= t->a;
#elif defined(OP_max) || defined(OP_min)
    take(s, t->a, 0, 0);
#elif defined(OP_argmax) || defined(OP_argmin)
    if (is_better(t->a, s->a) || (!is_better(s->a, t->a) && t->n < s->n))
        *s = *t;
#elif defined(OP_nonfinite) || defined(OP_equal)
    s->n += t->n;
#elif defined(OP_nonzero)
    s->a *= t->a;
    s->n += t->n;
#elif defined(OP_var)
    if (t->n == 0)
        return;
    C share = (C)t->n / (C)(s->n + t->n), delta = t->a - s->a;
    s->b += t->b + delta * delta * (C)s->n * share;
    s->a += delta * share;
    s->n += t->n;
#endif
}
