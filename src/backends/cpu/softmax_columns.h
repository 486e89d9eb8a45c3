/* softmax_columns.h: where another axis lies along memory: a tile of neighbouring columns is taken down the axis together. softmax.c includes it. */

/* A tile of columns: where each operand begins, and how far it is from column to column. */
typedef struct columns {
    const job *j;
    int64_t n;
    char *base[3];
    int64_t stride[3];
    bool native[3];
} columns;

static columns columns_at(const job *j, int64_t tile, int operands)
{
    const row_set *r = &j->r;
    int last = r->nest.rank - 1;
    int64_t inner = r->nest.shape[last], tiles = (inner + j->columns - 1) / j->columns, first = tile % tiles * j->columns;
    columns c = {.j = j, .n = inner - first < j->columns ? inner - first : j->columns};
    for (int k = 0; k < operands; k++) {
        c.base[k] = row_at(r, k, tile / tiles * inner + first);
        c.stride[k] = r->nest.stride[k][last];
        c.native[k] = c.stride[k] == 1 && r->operand[k].size == j->maths->size;
    }
    return c;
}

static const void *columns_fetch(const columns *c, int k, int64_t at, void *buffer)
{
    const operand *o = &c->j->r.operand[k];
    const char *from = c->base[k] + at * o->along * o->size;
    if (c->native[k])
        return from;
    tarn__load[o->dtype][c->j->r.compute](from, c->stride[k], buffer, c->n);
    return buffer;
}

static void *columns_place(const columns *c, int64_t at, void *buffer)
{
    return c->native[0] ? c->base[0] + at * c->j->r.operand[0].along * c->j->r.operand[0].size : buffer;
}

static void columns_put_back(const columns *c, int64_t at, const void *buffer)
{
    const operand *o = &c->j->r.operand[0];
    if (!c->native[0])
        tarn__store[o->dtype][c->j->r.compute](buffer, c->base[0] + at * o->along * o->size, c->stride[0], c->n);
}

typedef struct column_sums {
    _Alignas(64) char most[MAX_COLUMNS * 8];
    _Alignas(64) char risen[MAX_COLUMNS * 8];
    _Alignas(64) char shift[MAX_COLUMNS * 8];
    _Alignas(64) char part[MAX_COLUMNS * 8];
    _Alignas(64) char buffer[MAX_COLUMNS * 8];
    double sum[MAX_COLUMNS];
} column_sums;

/* The maximum of each column and its sum of exponentials, some lines at a time. */
static void sum_columns(const columns *c, column_sums *s)
{
    const maths *m = c->j->maths;
    int64_t length = c->j->r.length;
    memset(s->sum, 0, sizeof(s->sum));
    for (int64_t begin = 0; begin < length; begin += COLUMN_LINES) {
        int64_t end = begin + COLUMN_LINES < length ? begin + COLUMN_LINES : length;
        memcpy(s->risen, begin == 0 ? columns_fetch(c, 1, 0, s->buffer) : s->most, (size_t)(c->n * m->size));
        if (begin == 0)
            memcpy(s->most, s->risen, (size_t)(c->n * m->size));
        for (int64_t i = begin; i < end; i++)
            m->column_most(columns_fetch(c, 1, i, s->buffer), s->risen, c->n);
        m->column_shift(s->sum, s->most, s->risen, s->shift, c->n);
        memset(s->part, 0, sizeof(s->part));
        for (int64_t i = begin; i < end; i++)
            m->column_exps(columns_fetch(c, 1, i, s->buffer), s->part, s->shift, c->n);
        m->column_add(s->sum, s->part, c->n);
    }
}

/* The sums become what the result is made with. */
static void turn_sums(const columns *c, column_sums *s)
{
    for (int64_t i = 0; i < c->n; i++)
        s->sum[i] = c->j->log ? log(s->sum[i]) : 1 / s->sum[i];
}

/* Line i of the result from x. */
static void make_line(const columns *c, int64_t i, const column_sums *s, void *buffer, void *to)
{
    const maths *m = c->j->maths;
    (c->j->log ? m->column_logs : m->column_softmax)(columns_fetch(c, 1, i, buffer), to, s->most, s->sum, c->n);
}

static void softmax_columns(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    column_sums s;
    for (; begin < end; begin++) {
        columns c = columns_at(j, begin, 2);
        sum_columns(&c, &s);
        turn_sums(&c, &s);
        for (int64_t i = 0; i < j->r.length; i++) {
            void *to = columns_place(&c, i, s.buffer);
            make_line(&c, i, &s, s.buffer, to);
            columns_put_back(&c, i, to);
        }
    }
}

/* Line i of y, which is operand 1 or made again from it. */
static const void *result_line(const columns *c, int64_t i, const column_sums *s, void *buffer)
{
    if (!c->j->from_x)
        return columns_fetch(c, 1, i, buffer);
    make_line(c, i, s, buffer, buffer);
    return buffer;
}

static void grad_columns(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    const maths *m = j->maths;
    _Alignas(64) char y_buffer[MAX_COLUMNS * 8], g_buffer[MAX_COLUMNS * 8];
    double sum[MAX_COLUMNS];
    column_sums s;
    for (; begin < end; begin++) {
        columns c = columns_at(j, begin, 3);
        memset(sum, 0, sizeof(sum));
        if (j->from_x) {
            sum_columns(&c, &s);
            turn_sums(&c, &s);
        }
        for (int64_t i = 0; i < j->r.length; i++)
            (j->log ? m->column_sum : m->column_dot)(result_line(&c, i, &s, y_buffer), columns_fetch(&c, 2, i, g_buffer), sum, c.n);
        for (int64_t i = 0; i < j->r.length; i++) {
            const void *y = result_line(&c, i, &s, y_buffer);
            void *to = columns_place(&c, i, y_buffer);
            (j->log ? m->column_log_grad : m->column_grad)(y, columns_fetch(&c, 2, i, g_buffer), to, sum, c.n);
            columns_put_back(&c, i, to);
        }
    }
}
