/* weight_rows.c: conversion of a weight: reordered or transposed rows, and another type (weight_rows.h).
 *
 * Rows are converted in chunks, so that no weight need be in memory as a whole. Threads share the rows of a chunk; a
 * row depends on its own elements only, so results do not depend on the number of threads. */
#include "models/convert/weight_rows.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/half.h"
#include "base/memory.h"
#include "base/os/thread.h"
#include "base/quant/quant.h"
#include "core/device/device.h"

/* Elements per chunk, or one row; and columns per tile of a transposition: a multiple of every block size. */
#define CHUNK ((int64_t)1 << 20)
#define TILE 256

/* One chunk: rows `begin` and on, to `out`. */
typedef struct chunk {
    const tarn__weight_rows *rows;
    int64_t begin, count, columns;
    size_t from_bytes, to_bytes; /* per row */
    float *values;               /* f32 values of all rows, unless the types are equal */
    char *out;
    _Atomic int64_t bad_element; /* first element out of range; -1: none */
} chunk;

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* Source row of result row `row` where rows are queries, keys and values, as many of each. */
static int64_t source_of_qkv(const tarn__weight_rows *rows, int64_t row)
{
    bool to_blocks = rows->order == TARN__ROWS_QKV_BLOCKS;
    int64_t depth = rows->shape.size[0] / (3 * rows->heads), group = row / depth, heads = rows->heads;
    int64_t part = to_blocks ? group / heads : group % 3, head = to_blocks ? group % heads : group / 3;
    return (to_blocks ? head * 3 + part : part * heads + head) * depth + row % depth;
}

/* Source row of result row `row`. */
static int64_t source_of(const tarn__weight_rows *rows, int64_t row)
{
    if (rows->order == TARN__ROWS_UNCHANGED)
        return row;
    if (rows->order == TARN__ROWS_QKV_BLOCKS || rows->order == TARN__ROWS_QKV_BY_HEAD)
        return source_of_qkv(rows, row);
    int64_t in_head = rows->shape.size[0] / rows->heads, half = in_head / 2, at = row % in_head;
    int64_t from = rows->order == TARN__ROWS_INTERLEAVED ? at % 2 * half + at / 2 : at % half * 2 + at / half;
    return row - at + from;
}

/* True if values stay as they are. */
static bool is_copy(const tarn__weight_rows *rows)
{
    return rows->from == rows->to && rows->shift == 0;
}

/* Elements of a safetensors file need not be aligned. */
static inline uint16_t half_at(const char *from, int64_t index)
{
    uint16_t half;
    memcpy(&half, from + 2 * index, sizeof(half));
    return half;
}

int64_t tarn__weight_rows_source_bytes(const tarn__weight_rows *rows, int64_t count)
{
    return rows->iquant ? tarn__iquant_bytes(rows->iquant, count) : tarn__bytes_of(rows->from, count);
}

static int64_t source_block(const tarn__weight_rows *rows)
{
    return rows->iquant ? tarn__iquant_elements(rows->iquant) : tarn__dtypes[rows->from].block_elements;
}

/* Row of any type to f32. */
static void to_f32(const tarn__weight_rows *rows, const char *from, int64_t count, float *to)
{
    if (rows->iquant) {
        tarn__dequantize_iquant(rows->iquant, from, count, to);
        return;
    }
    switch (rows->from) {
    case TARN_F32: memcpy(to, from, sizeof(float) * (size_t)count); break;
    case TARN_F16:
        for (int64_t i = 0; i < count; i++)
            to[i] = tarn__f16_to_f32(half_at(from, i));
        break;
    case TARN_BF16:
        for (int64_t i = 0; i < count; i++)
            to[i] = tarn__bf16_to_f32(half_at(from, i));
        break;
    default: tarn__dequantize_blocks(rows->from, from, count, to);
    }
}

/* f32 row to any type; quantizes. Q8_0 is fine enough without importance. */
static void from_f32(tarn_dtype dtype, const float *from, const float *importance, int64_t count, char *to)
{
    if (importance && tarn__is_quantized(dtype) && dtype != TARN_Q8_0) {
        tarn__quantize_searched(dtype, from, importance, count, to);
        return;
    }
    uint16_t *half = (uint16_t *)(void *)to;
    switch (dtype) {
    case TARN_F32: memcpy(to, from, sizeof(float) * (size_t)count); break;
    case TARN_F16:
        for (int64_t i = 0; i < count; i++)
            half[i] = tarn__f32_to_f16(from[i]);
        break;
    case TARN_BF16:
        for (int64_t i = 0; i < count; i++)
            half[i] = tarn__f32_to_bf16(from[i]);
        break;
    case TARN_F64:
        for (int64_t i = 0; i < count; i++)
            ((double *)(void *)to)[i] = (double)from[i];
        break;
    default: tarn__quantize_blocks(dtype, from, count, to);
    }
}

/* Largest magnitude of a type: scales are f16, up to 65504. */
static float max_of(tarn_dtype dtype)
{
    switch (dtype) {
    case TARN_F16: return 65504;
    case TARN_Q8_0: return 127 * 65504.f;
    case TARN_Q4_0: return 8 * 65504.f;
    case TARN_Q4_K: return 63 * 65504.f;
    case TARN_Q6_K: return 31 * 127 * 65504.f;
    case TARN_Q4_1:
    case TARN_Q5_1: return 65504; /* their min */
    case TARN_Q5_0: return 16 * 65504.f;
    case TARN_Q2_K: return 15 * 65504.f;
    case TARN_Q3_K: return 3 * 31 * 65504.f;
    case TARN_Q5_K: return 63 * 65504.f;
    case TARN_IQ4_NL: return 113 * 65504.f;
    case TARN_IQ4_XS: return 31 * 113 * 65504.f;
    default: return 0x1.fep127f; /* bf16's */
    }
}

/* First element out of range, NaN included; -1: none. */
static int64_t first_out_of_range(tarn_dtype dtype, const float *values, int64_t count)
{
    float max = max_of(dtype);
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(values[i]) <= max))
            return i;
    return -1;
}

/* Keeps the lowest index, whichever thread finds its element first: the error message is deterministic. */
static void record_error(chunk *p, int64_t element)
{
    int64_t before = atomic_load(&p->bad_element);
    while ((before < 0 || element < before) && !atomic_compare_exchange_weak(&p->bad_element, &before, element))
        continue;
}

/* Converts a row of f32 values to the result type. */
static void finish_row(chunk *p, int64_t i)
{
    tarn_dtype to = p->rows->to;
    const float *values = p->values + i * p->columns;
    bool is_lossless = to == TARN_F32 || to == TARN_F64;
    int64_t bad_element = is_lossless ? -1 : first_out_of_range(to, values, p->columns);
    if (bad_element < 0)
        from_f32(to, values, p->rows->importance, p->columns, p->out + (size_t)i * p->to_bytes);
    else
        record_error(p, (p->begin + i) * p->columns + bad_element);
}

/* Rows begin to end of a chunk. */
static void convert_rows(int64_t begin, int64_t end, void *ctx)
{
    chunk *p = ctx;
    const tarn__weight_rows *rows = p->rows;
    for (int64_t i = begin; i < end; i++) {
        const char *from = (const char *)rows->elements + (size_t)source_of(rows, p->begin + i) * p->from_bytes;
        float *values = p->values + i * p->columns;
        if (is_copy(rows)) {
            memcpy(p->out + (size_t)i * p->to_bytes, from, p->to_bytes);
            continue;
        }
        to_f32(rows, from, p->columns, values);
        for (int64_t k = 0; rows->shift != 0 && k < p->columns; k++)
            values[k] += rows->shift;
        finish_row(p, i);
    }
}

/* ---- transposition ----------------------------------------------------------------------------------------------- */

/* Rows `first` to `last` of a transposed chunk, without conversion. */
static void copy_columns(const chunk *p, int64_t first, int64_t last)
{
    size_t size = p->to_bytes / (size_t)p->columns;
    for (int64_t column = 0; column < p->columns; column++) {
        const char *from =
            (const char *)p->rows->elements + (size_t)column * p->from_bytes + (size_t)(p->begin + first) * size;
        for (int64_t i = first; i < last; i++, from += size)
            memcpy(p->out + (size_t)i * p->to_bytes + (size_t)column * size, from, size);
    }
}

/* Tiles of TILE columns become rows: each source row is read in contiguous runs of TILE elements. */
static void convert_columns(int64_t begin, int64_t end, void *ctx)
{
    chunk *p = ctx;
    const tarn__weight_rows *rows = p->rows;
    float part[TILE];
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t first = tile * TILE, last = first + TILE < p->count ? first + TILE : p->count;
        if (rows->from == rows->to) {
            copy_columns(p, first, last);
            continue;
        }
        size_t skipped = (size_t)tarn__weight_rows_source_bytes(rows, p->begin + first);
        for (int64_t column = 0; column < p->columns; column++) {
            to_f32(rows, (const char *)rows->elements + (size_t)column * p->from_bytes + skipped, last - first, part);
            for (int64_t i = first; i < last; i++)
                p->values[i * p->columns + column] = part[i - first];
        }
        for (int64_t i = first; i < last; i++)
            finish_row(p, i);
    }
}

/* ---- whole weights ----------------------------------------------------------------------------------------------- */

/* Converts one chunk in parallel, and raises its first element out of range. */
static bool convert_chunk(chunk *p)
{
    atomic_store(&p->bad_element, -1);
    int64_t grain = 65536 / (p->columns + 1);
    if (p->rows->order == TARN__ROWS_TRANSPOSED)
        tarn__parallel_for((p->count + TILE - 1) / TILE, 1, convert_columns, p);
    else
        tarn__parallel_for(p->count, grain > 0 ? grain : 1, convert_rows, p);
    int64_t bad_element = atomic_load(&p->bad_element);
    if (bad_element < 0)
        return true;
    double value = (double)p->values[bad_element - p->begin * p->columns];
    return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': tensor '%.200s', element %lld is %g, which %s cannot represent",
                       p->rows->function, p->rows->path, p->rows->name, (long long)bad_element, value,
                       tarn_dtype_name(p->rows->to));
}

/* Converts all rows in chunks, each to the file or to its place in `whole`. */
static bool convert_all(const tarn__weight_rows *rows, tarn__output *output, char *whole)
{
    /* quant blocks run along the last axis: a vector is one row */
    bool is_one = rows->shape.rank < 2 && rows->order == TARN__ROWS_UNCHANGED;
    int64_t count = is_one ? 1 : rows->shape.size[0], columns = 1;
    for (int i = is_one ? 0 : 1; i < rows->shape.rank; i++)
        columns *= rows->shape.size[i];
    bool is_transposed = rows->order == TARN__ROWS_TRANSPOSED;
    int64_t before = is_transposed ? count : columns; /* elements of a row of the source */
    if (before % source_block(rows) || columns % tarn__dtypes[rows->to].block_elements)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': tensor '%.200s' of %s cannot become %s: rows of %lld elements are not a multiple "
                           "of the block size",
                           rows->function, rows->path, rows->name,
                           rows->iquant ? "its type" : tarn_dtype_name(rows->from), tarn_dtype_name(rows->to),
                           (long long)(before % source_block(rows) ? before : columns));
    if (columns == 0) /* a file may name 2⁶⁰ empty rows */
        return true;
    int64_t min_step = is_transposed ? TILE : 1, step = CHUNK / (columns + 1) / min_step * min_step;
    step = step > 0 ? step : min_step;
    step = step < count ? step : count;
    chunk p = {.rows = rows,
               .columns = columns,
               .from_bytes = (size_t)tarn__weight_rows_source_bytes(rows, before),
               .to_bytes = (size_t)tarn__bytes_of(rows->to, columns)};
    size_t value_bytes = is_copy(rows) ? 0 : sizeof(float) * (size_t)(step * columns),
           out_bytes = whole ? 0 : (size_t)step * p.to_bytes;
    char *out = whole ? NULL : tarn__alloc(out_bytes);
    p.values = tarn__alloc(value_bytes);
    bool good = p.values && (whole || out);
    for (p.begin = 0; good && p.begin < count; p.begin += step) {
        p.count = count - p.begin < step ? count - p.begin : step;
        p.out = whole ? whole + (size_t)p.begin * p.to_bytes : out;
        good = convert_chunk(&p) && (whole || tarn__output_write(output, out, (size_t)p.count * p.to_bytes));
    }
    tarn__release(p.values, value_bytes);
    tarn__release(out, out_bytes);
    return good;
}

bool tarn__weight_rows_write(tarn__output *output, const tarn__weight_rows *rows)
{
    return convert_all(rows, output, NULL);
}

tarn_tensor *tarn__weight_rows_tensor(const tarn__weight_rows *rows, tarn_device device)
{
    if (tarn__is_meta(device)) /* meta tensors have no elements */
        return tarn_empty(rows->shape, rows->to, device);
    tarn_scope *scope = tarn_scope_open(); /* frees the host copy of a tensor on another device */
    tarn_tensor *host = scope ? tarn_empty(rows->shape, rows->to, tarn_device_cpu()) : NULL, *result = NULL;
    if (host && (tarn_bytes(host) == 0 || convert_all(rows, NULL, tarn_data(host))))
        result = tarn_device_equal(device, tarn_device_cpu())
                     ? host
                     : tarn_from(tarn_data(host), rows->shape, rows->to, device);
    result = result ? tarn_scope_return(scope, result) : NULL;
    tarn_scope_close(scope);
    return result;
}
