/* attention_paged.cl: attention over a paged KV cache, a work-group per row and query head. It walks the pages of the
 * row's sequence in order with an online softmax: scores of a page, its maximum, weights, weighted values. Work-item i
 * has keys i, i + WIDTH, … of a page, and columns i, i + WIDTH, … of the result. All sums run in a fixed order, so that
 * a row's bits depend on its own keys alone.
 *
 * Options: REAL; T, dtype of q and y; T_KV of the pages, with QUANTIZED u8 with scales; DEPTH, D; PAGE; WIDTH,
 * work-items of a group; SOFTCAP. */

#define OPERAND(name) const __global void *name, long name##_at
#define GROUP 32
#define ZERO 128
#define INFINITE ((REAL)INFINITY)
#define COLUMNS ((DEPTH + WIDTH - 1) / WIDTH)

/* paged of attention_paged.c, passed by value: sizes and strides. */
typedef struct paged {
    long heads, group, tokens, sequences, table_pages, pages, window;
    long q[3], y[3], k[4], v[4], k_scale[4], v_scale[4];
    long table[2], starts, lengths;
} paged;

/* Element d of a row of keys or values that begins at `at`; its scales begin at `scale_at`. */
#ifdef QUANTIZED
#define ELEMENT(x, at, stride, scale, scale_at, scale_stride, d) \
    ((REAL)(LOAD(u8, x, at + (d)*stride) - ZERO) * (REAL)LOAD(f16, scale, scale_at + (d) / GROUP * scale_stride))
#else
#define ELEMENT(x, at, stride, scale, scale_at, scale_stride, d) ((REAL)LOAD(T_KV, x, at + (d)*stride))
#endif

__attribute__((reqd_work_group_size(WIDTH, 1, 1))) __kernel void
attention_paged(OPERAND(q), OPERAND(k), OPERAND(v), OPERAND(table), OPERAND(starts), OPERAND(lengths), OPERAND(k_scale),
                OPERAND(v_scale), __global void *y, long y_at, paged a, real scale_, real cap_, FAULT_PARAMETERS)
{
    __local REAL query[DEPTH], weight[PAGE], item_max[WIDTH];
    const long row = get_group_id(0) / a.heads, head = get_group_id(0) % a.heads, kv_head = head / a.group;
    const int item = (int)get_local_id(0);
    const REAL scale = (REAL)scale_, cap = (REAL)cap_;
    /* the last sequence that begins at this row or before it */
    long low = 0, high = a.sequences;
    while (high - low > 1) {
        const long middle = (low + high) / 2;
        if (LOAD(i32, starts, starts_at + middle * a.starts) <= row)
            low = middle;
        else
            high = middle;
    }
    const long start = a.sequences > 0 ? LOAD(i32, starts, starts_at + low * a.starts) : 0,
               end = a.sequences > 0 ? LOAD(i32, starts, starts_at + (low + 1) * a.starts) : 0,
               length = a.sequences > 0 ? LOAD(i32, lengths, lengths_at + low * a.lengths) : 0;
    const bool is_valid = length >= 0 && length <= a.table_pages * PAGE && end <= a.tokens;
    if (!is_valid && item == 0)
        report_fault(fault, length, a.table_pages * PAGE);
    const long position = is_valid && row >= start && row < end ? length - (end - row) : -1,
               first = a.window > 0 ? max(position + 1 - a.window, 0L) : 0;
    REAL running_max = -INFINITE, total = 0, sum[COLUMNS];
    for (int c = 0; c < COLUMNS; c++)
        sum[c] = 0;
    for (int d = item; d < DEPTH; d += WIDTH)
        query[d] = (REAL)LOAD(T, q, q_at + row * a.q[0] + head * a.q[1] + d * a.q[2]) * scale;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (long at = first / PAGE; at * PAGE <= position; at++) {
        const long page = LOAD(i32, table, table_at + low * a.table[0] + at * a.table[1]);
        if (page < 0 || page >= a.pages) {
            if (item == 0)
                report_fault(fault, page, a.pages);
            break; /* the same for all work-items */
        }
        const int keys = (int)min(position + 1 - at * PAGE, (long)PAGE), skipped = (int)max(first - at * PAGE, 0L);
        const long k_row = k_at + page * a.k[0] + kv_head * a.k[2], v_row = v_at + page * a.v[0] + kv_head * a.v[2],
                   k_scales = k_scale_at + page * a.k_scale[0] + kv_head * a.k_scale[2],
                   v_scales = v_scale_at + page * a.v_scale[0] + kv_head * a.v_scale[2];
        REAL largest = running_max;
        for (int key = item; key < PAGE; key += WIDTH) {
            REAL score = 0;
            for (int d = 0; key >= skipped && key < keys && d < DEPTH; d++)
                score = fma(
                    query[d],
                    ELEMENT(k, k_row + key * a.k[1], a.k[3], k_scale, k_scales + key * a.k_scale[1], a.k_scale[3], d),
                    score);
#ifdef SOFTCAP
            score = cap * tanh(score / cap);
#endif
            weight[key] = score;
            largest = key >= skipped && key < keys ? fmax(largest, score) : largest;
        }
        item_max[item] = largest;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < WIDTH; i++)
            largest = fmax(largest, item_max[i]);
        const REAL rescale = running_max == largest     ? 1
                             : running_max == -INFINITE ? 0
                                                        : exp(running_max - largest),
                   shift = largest == -INFINITE ? 0 : largest;
        running_max = largest;
        for (int key = item; key < PAGE; key += WIDTH)
            weight[key] = key >= skipped && key < keys ? exp(weight[key] - shift) : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        total *= rescale;
        for (int key = skipped; key < keys; key++)
            total += weight[key];
        for (int c = 0; c < COLUMNS; c++) {
            const int d = c * WIDTH + item;
            REAL value = sum[c] * rescale;
            for (int key = skipped; key < keys && d < DEPTH; key++)
                value = fma(
                    weight[key],
                    ELEMENT(v, v_row + key * a.v[1], a.v[3], v_scale, v_scales + key * a.v_scale[1], a.v_scale[3], d),
                    value);
            sum[c] = value;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int c = 0; c < COLUMNS; c++) {
        const int d = c * WIDTH + item;
        if (d < DEPTH)
            STORE(T, y, y_at + row * a.y[0] + head * a.y[1] + d * a.y[2], total == 0 ? 0 : sum[c] / total);
    }
}
