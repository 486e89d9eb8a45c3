/* attention_paged.c: attention over a paged KV cache, and writing rows to its pages. Not recorded: the cache serves
 * generation alone.
 *
 * Keys and values of all sequences are in pages of TARN__KV_PAGE rows. Row r of a sequence is row r % TARN__KV_PAGE of
 * the page that its line of the table has at r / TARN__KV_PAGE. Queries of all sequences are packed: those of sequence
 * i are rows row_starts[i] to row_starts[i + 1] of q, and the last of its lengths[i] keys. */
#include <math.h>

#include "ops/internal.h"

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* In the order of the kernel's inputs; scales are NULL for pages of floats. */
enum { Q, K, V, TABLE, STARTS, LENGTHS, K_SCALE, V_SCALE, OPERANDS };

/* Pages [P, TARN__KV_PAGE, KV, D], u8 if and only if there are scales. */
static bool check_pages(const char *name, const tarn_tensor *rows, const tarn_tensor *scale, const tarn_tensor *q)
{
    const tarn__view *p = &rows->view;
    if (p->rank != 4 || p->shape[1] != TARN__KV_PAGE || p->shape[2] < 1 || p->shape[3] != q->view.shape[2] ||
        q->view.shape[1] < 1 || q->view.shape[1] % p->shape[2] != 0)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "attention_paged: %s %s do not fit q %s: expected [pages, %d, KV, D], where KV divides the "
                           "heads of q",
                           name, TARN__SHAPE_STRING(rows), TARN__SHAPE_STRING(q), TARN__KV_PAGE);
    if (!tarn__check_dtype("attention_paged", rows, scale ? TARN__BIT(TARN_U8) : TARN__FLOATS, name))
        return false;
    const tarn__view *s = scale ? &scale->view : NULL;
    return !scale ||
           (s->dtype == TARN_F16 && s->rank == 4 && s->shape[0] == p->shape[0] && s->shape[1] == p->shape[1] &&
            s->shape[2] == p->shape[2] && s->shape[3] == tarn__kv_q8_scales(p->shape[3])) ||
           tarn__raise(TARN_ERROR_SHAPE, "attention_paged: scales %s do not fit %s %s", TARN__SHAPE_STRING(scale), name,
                       TARN__SHAPE_STRING(rows));
}

/* The page table [N, M], N + 1 row starts and N lengths. */
static bool check_sequences(tarn_tensor *const *in)
{
    const tarn__view *table = &in[TABLE]->view, *starts = &in[STARTS]->view, *lengths = &in[LENGTHS]->view;
    /* The kernels read indices of 32 bits. */
    for (int i = TABLE; i <= LENGTHS; i++)
        if (!tarn__check_dtype("attention_paged", in[i], TARN__INDEXES, i == TABLE ? "table" : "rows and lengths"))
            return false;
    bool fits = table->rank == 2 && starts->rank == 1 && lengths->rank == 1 &&
                starts->shape[0] == table->shape[0] + 1 && lengths->shape[0] == table->shape[0];
    return fits ||
           tarn__raise(TARN_ERROR_SHAPE,
                       "attention_paged: table %s, row starts %s and lengths %s do not fit: expected [N, pages], [N + "
                       "1] and [N]",
                       TARN__SHAPE_STRING(in[TABLE]), TARN__SHAPE_STRING(in[STARTS]), TARN__SHAPE_STRING(in[LENGTHS]));
}

/* There are no attention options of training here: no dropout, no document starts, and causal always. */
static bool check_options(const tarn__paged_options *o)
{
    if (!isfinite(o->scale))
        return tarn__raise(TARN_ERROR_ARGUMENT, "attention_paged: scale %g is not finite", o->scale);
    if (o->window < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "attention_paged: window is %lld; expected at least 0",
                           (long long)o->window);
    return (o->softcap >= 0 && isfinite(o->softcap)) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "attention_paged: softcap is %g; expected a finite number, at least 0",
                       o->softcap);
}

/* Shapes that depend on each other are checked after dtypes and ranks. */
static bool check_operands(tarn_tensor *const *in)
{
    static const char *const names[OPERANDS] = {"q", "k", "v", "table", "row_starts", "lengths"};
    for (int i = 0; i < K_SCALE; i++)
        if (!tarn__check("attention_paged", in[i], names[i]))
            return false;
    if (!tarn__check_dtype("attention_paged", in[Q], TARN__FLOATS, "q"))
        return false;
    if (in[Q]->view.rank != 3 || in[Q]->view.shape[2] < 1)
        return tarn__raise(TARN_ERROR_SHAPE, "attention_paged: q %s is not [tokens, heads, D]",
                           TARN__SHAPE_STRING(in[Q]));
    if (!check_pages("k", in[K], in[K_SCALE], in[Q]) || !check_pages("v", in[V], in[V_SCALE], in[Q]))
        return false;
    return (tarn__same_shape(&in[K]->view, &in[V]->view) && in[K]->view.dtype == in[V]->view.dtype) ||
           tarn__raise(TARN_ERROR_SHAPE, "attention_paged: k %s and v %s differ in shape or dtype",
                       TARN__SHAPE_STRING(in[K]), TARN__SHAPE_STRING(in[V]));
}

tarn_tensor *tarn__attention_paged(tarn_tensor *q, const tarn__kv_page_rows *keys, const tarn__kv_page_rows *values,
                                   const tarn__packed_sequences *s, const tarn__paged_options *o)
{
    tarn_tensor *in[OPERANDS] = {q,          keys->rows,  values->rows, s->table, s->row_starts,
                                 s->lengths, keys->scale, values->scale};
    if (!check_operands(in) || !tarn__unify_devices("attention_paged", in, OPERANDS) || !check_sequences(in) ||
        !check_options(o))
        return NULL;
    for (int i = TABLE; i <= LENGTHS; i++)
        if (!(in[i] = tarn_cast(in[i], TARN_I32)))
            return NULL;
    const tarn__view *view = &in[Q]->view;
    tarn__attention params = {.scale = o->scale != 0 ? o->scale : 1 / sqrt((double)view->shape[2]),
                              .causal = true,
                              .window = o->window,
                              .softcap = o->softcap};
    tarn_tensor *y = tarn__tensor_new("attention_paged", tarn__shape_of(in[Q]), view->dtype, tarn__device(in[Q]));
    bool good = y && tarn__kernel_call(
                         TARN__K_attention_paged, "attention_paged", params,
                         TARN__IN(in[Q], in[K], in[V], in[TABLE], in[STARTS], in[LENGTHS], in[K_SCALE], in[V_SCALE]),
                         TARN__OUT(y));
    return good ? y : NULL;
}

/* Operands in the order of `in` above. */
bool tarn__apply_attention_paged(const tarn__invocation *v, tarn_tensor **out)
{
    const tarn__paged_options o = {.scale = tarn__attribute_real(v, "scale", 0),
                                   .window = tarn__attribute_int(v, "window", 0),
                                   .softcap = tarn__attribute_real(v, "softcap", 0)};
    const tarn__packed_sequences s = {v->in[3], v->in[4], v->in[5]};
    const tarn__kv_page_rows keys = {v->in[1], v->in[6]}, values = {v->in[2], v->in[7]};
    return (out[0] = tarn__attention_paged(v->in[0], &keys, &values, &s, &o)) != NULL;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Pages [P, TARN__KV_PAGE, …] as a batch of equal slot lists, [tokens, P · TARN__KV_PAGE, …] with stride 0 along the
 * tokens: write_rows then puts row i of x [tokens, 1, …] at an index of its own. */
static bool write_slots(tarn_tensor *pages, tarn_tensor *slots, tarn_tensor *x)
{
    int64_t tokens = x->view.shape[0];
    tarn_tensor *flat = tarn__tensor_view(pages);
    if (!flat)
        return false;
    tarn__view *view = &flat->view;
    const tarn__view from = pages->view;
    view->shape[0] = tokens, view->stride[0] = 0;
    view->shape[1] = from.shape[0] * from.shape[1], view->stride[1] = from.stride[1];
    tarn_tensor *rows = tarn_unsqueeze(x, 1);
    return rows && tarn__write_rows("write_pages", flat, 1, slots, rows);
}

/* slots[i] is the row of all pages, counted from the first, that row i of x goes to; quantized pages get u8 rows and
 * their scales. False with an error. */
bool tarn__write_pages(const tarn__kv_page_rows *pages, tarn_tensor *slots, tarn_tensor *x)
{
    if (!tarn__check("write_pages", pages->rows, "pages") || !tarn__check("write_pages", x, "x") ||
        !tarn__check("write_pages", slots, "slots"))
        return false;
    const tarn__view *p = &pages->rows->view, *v = &x->view;
    bool fits = p->rank == 4 && v->rank == 3 && v->shape[1] == p->shape[2] && v->shape[2] == p->shape[3] &&
                slots->view.rank == 1 && slots->view.shape[0] == v->shape[0] &&
                (p->shape[0] <= 1 || p->stride[0] == p->shape[1] * p->stride[1]);
    if (!fits)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "write_pages: x %s and slots %s do not fit pages %s: expected [tokens, KV, D], [tokens] and "
                           "[pages, rows, KV, D], pages adjacent",
                           TARN__SHAPE_STRING(x), TARN__SHAPE_STRING(slots), TARN__SHAPE_STRING(pages->rows));
    if (!pages->scale) {
        tarn_tensor *stored = tarn_cast(x, p->dtype);
        return stored && write_slots(pages->rows, slots, stored);
    }
    tarn_tensor *scale = NULL, *quantized = tarn__quantize_kv(tarn_unsqueeze(x, 0), &scale);
    return quantized && write_slots(pages->rows, slots, tarn_squeeze(quantized, 0)) &&
           write_slots(pages->scale, slots, tarn_squeeze(scale, 0));
}
