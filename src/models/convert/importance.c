/* importance.c: the importance of a weight's input columns: the mean square of the activations that they multiply. The
 * search for scales weighs elements by it (base/quant/search.c).
 *
 * It comes from a text, over which the model of the source runs, or from a file of llama.cpp, in its GGUF form or the
 * older one. Names are those of GGUF files.
 *
 * Only ratios between the columns of one matrix matter, so values are relative to their mean. The observer is the
 * thread's own, on which the model runs; it is off while the sums themselves are computed. */
#include "models/convert/importance.h"

#include <stdio.h>
#include <string.h>
#include <tarn/autograd.h>
#include <tarn/model.h>
#include <tarn/ops.h>
#include <tarn/text.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "core/launch/launch.h"
#include "formats/gguf.h"
#include "models/gguf/gguf_arch.h"
#include "models/lm/arch.h"
#include "nn/module.h"

#define TEXT "text:"
#define CHUNK 512     /* tokens per forward pass */
#define FLOOR 1e-4    /* of the mean: no column counts for nothing */
#define MAX_NAME 4096 /* bytes of a name in a file */

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Adds a row of zeros. NULL with an error. */
static tarn__importance_row *add_row(tarn__importance *m, const char *name, int64_t columns)
{
    size_t bytes = sizeof(double) * (size_t)columns;
    if (!tarn__list_reserve(&m->row, m->rows, &m->capacity, sizeof(*m->row)))
        return NULL;
    tarn__importance_row *row = &m->row[m->rows];
    *row = (tarn__importance_row){.name = tarn__string_copy(name), .columns = columns, .sum = tarn__alloc(bytes)};
    if (!row->name || !row->sum) {
        tarn__string_free(row->name);
        tarn__release(row->sum, bytes);
        return NULL;
    }
    m->rows++;
    return row;
}

void tarn__importance_free(tarn__importance *m)
{
    for (int i = 0; i < m->rows; i++) {
        tarn__string_free(m->row[i].name);
        tarn__release(m->row[i].sum, sizeof(double) * (size_t)m->row[i].columns);
        tarn__release(m->row[i].values, sizeof(float) * (size_t)m->row[i].columns);
    }
    tarn__release(m->row, sizeof(*m->row) * (size_t)m->capacity);
    *m = (tarn__importance){0};
}

/* Means of the sums, relative to their mean over all columns. A row of zeros says nothing and has no values. */
static bool finish_row(tarn__importance_row *row)
{
    double mean = 0;
    for (int64_t i = 0; i < row->columns; i++)
        mean += row->sum[i] / (double)row->columns;
    if (!(mean > 0) || !(mean < 1e300))
        return true;
    if (!(row->values = tarn__alloc(sizeof(float) * (size_t)row->columns)))
        return false;
    for (int64_t i = 0; i < row->columns; i++)
        row->values[i] = (float)(row->sum[i] / mean > FLOOR ? row->sum[i] / mean : FLOOR);
    return true;
}

/* ---- from a text ------------------------------------------------------------------------------------------------- */

/* The observer of kernels: the models' parameters and the row of each. */
typedef struct watch {
    tarn__importance *table;
    const tarn__arch *arch;
    const tarn_module *model;
} watch;

/* Adds a row for a matrix that has a name in GGUF files. Its columns are known at its first product. */
static bool add_matrix(const tarn__parameter *parameter, void *ctx)
{
    const watch *w = ctx;
    char name[TARN__GGUF_NAME_CAPACITY];
    if (parameter->tensor->view.rank != 2 || !tarn__gguf_name_of(w->arch, tarn__name_from(w->model, parameter), name))
        return !tarn_failed();
    bool is_in_out = tarn__gguf_layout_of(w->arch, name) == TARN__GGUF_TRANSPOSED &&
                     !tarn__is_quantized(parameter->tensor->view.dtype);
    tarn__importance_row *row = add_row(w->table, name, parameter->tensor->view.shape[is_in_out ? 0 : 1]);
    if (row)
        row->storage = parameter->tensor->storage;
    return row != NULL;
}

/* Σ x² over all axes but the last, added to the row of the weight. */
static void add_squares(tarn__importance_row *row, tarn_tensor *x)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *rows = tarn_reshape(tarn_cast(tarn_detach(x), TARN_F32), TARN_SHAPE(-1, row->columns)),
                *sums = rows ? tarn_sum(tarn_mul(rows, rows), TARN_AXES(0), false) : NULL;
    float *values = sums ? tarn__alloc(sizeof(float) * (size_t)row->columns) : NULL;
    if (values && tarn_read_f32(sums, values, row->columns))
        for (int64_t i = 0; i < row->columns; i++)
            row->sum[i] += (double)values[i];
    tarn__release(values, values ? sizeof(float) * (size_t)row->columns : 0);
    tarn_scope_close(scope);
}

/* Products of activations with a parameter. Kernels of the sums themselves are not observed. */
static void observe(const tarn__launch *launch, void *ctx)
{
    const watch *w = ctx;
    bool is_product = launch->kernel == TARN__K_matmul || launch->kernel == TARN__K_matmul_gelu ||
                      launch->kernel == TARN__K_matmul_quant;
    tarn_tensor *x = launch->in[0], *weight = is_product && launch->inputs > 1 ? launch->in[1] : NULL;
    for (int i = 0; weight && i < w->table->rows; i++) {
        tarn__importance_row *row = &w->table->row[i];
        if (row->storage == weight->storage && x->view.rank > 0 && x->view.shape[x->view.rank - 1] == row->columns) {
            tarn__launch_observe(NULL, NULL);
            add_squares(row, x);
            tarn__launch_observe(observe, ctx);
            return;
        }
    }
}

static bool run_chunk(tarn_module *model, const int32_t *ids, int64_t count)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *tokens = scope ? tarn_from(ids, TARN_SHAPE(1, count), TARN_I32, tarn_device_cpu()) : NULL;
    bool good = tokens && tarn_forward(model, tokens) != NULL;
    tarn_scope_close(scope);
    return good && !tarn_failed();
}

/* Chunks that fit the context; a last one of one token says little and is left out. */
static bool run_text(const char *function, tarn_module *model, const int32_t *ids, int64_t count)
{
    tarn_model_info info = {0};
    bool good = tarn_model_query(model, &info);
    int64_t step = good && info.context < CHUNK ? info.context : CHUNK;
    tarn__log(TARN_LOG_NOTICE, "%s: importance of the weights' columns from %lld tokens", function, (long long)count);
    tarn_no_grad_open();
    for (int64_t at = 0; good && at < count; at += step) {
        int64_t left = count - at < step ? count - at : step;
        good = (left == 1 && count > 1) || run_chunk(model, ids + at, left);
    }
    tarn_no_grad_close();
    return good;
}

/* The weights as they are stored, on the CPU: what the observer sees is what the conversion will quantize. */
static bool from_ids(const char *function, const char *path, const int32_t *ids, int64_t count, tarn__importance *m)
{
    tarn_module *model = tarn_model_open(path, tarn_device_cpu(), &(tarn_model_open_options){.as_stored = true});
    watch w = {.table = m, .model = model};
    if (model) {
        w.arch = tarn__arch_of(function, model);
        tarn__module_walk_over(model, TARN__MODULE_STATE, add_matrix, &w);
        tarn__launch_observe(observe, &w);
        run_text(function, model, ids, count);
        tarn__launch_observe(NULL, NULL);
    }
    tarn_module_free(model);
    return !tarn_failed();
}

static bool from_text(const char *function, const char *path, const char *text, tarn__importance *m)
{
    tarn__map map;
    if (!tarn__map_open(&map, function, text))
        return false;
    int64_t count = 0;
    tarn_tokenizer *tokenizer = tarn_tokenizer_open(path);
    int32_t *ids =
        tokenizer ? tarn_tokenizer_encode(tokenizer, map.memory ? map.memory : "", map.bytes, NULL, &count) : NULL;
    bool good = ids && (count > 0 || tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' has no text", function, text)) &&
                from_ids(function, path, ids, count, m);
    tarn_tokenizer_release(ids);
    tarn_tokenizer_free(tokenizer);
    tarn__map_close(&map);
    return good;
}

/* ---- from llama.cpp's files -------------------------------------------------------------------------------------- */

/* "blk.0.attn_q.weight.in_sum2" and "….counts", f32. */
static bool from_gguf(const char *function, const char *path, tarn__importance *m)
{
    static const char suffix[] = ".in_sum2";
    tarn_gguf *file = tarn_gguf_open(path);
    tarn_gguf_entry sums, counts;
    char name[MAX_NAME], other[MAX_NAME + 16];
    for (int i = 0; file && i < tarn_gguf_count(file) && tarn_gguf_info(file, i, &sums); i++) {
        size_t length = strlen(sums.name), tail = sizeof(suffix) - 1;
        if (length <= tail || length >= MAX_NAME || strcmp(sums.name + length - tail, suffix) != 0)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(length - tail), sums.name);
        snprintf(other, sizeof(other), "%s.counts", name);
        int index = tarn_gguf_find(file, other);
        bool good = sums.dtype == TARN_F32 && index >= 0 && tarn_gguf_info(file, index, &counts) &&
                    counts.dtype == TARN_F32 && counts.bytes == (int64_t)sizeof(float) && sums.bytes > 0;
        tarn__importance_row *row = good ? add_row(m, name, sums.bytes / (int64_t)sizeof(float)) : NULL;
        float count = 0;
        if (good)
            memcpy(&count, tarn__gguf_elements(file, index), sizeof(count));
        for (int64_t k = 0; row && k < row->columns; k++) {
            float sum;
            memcpy(&sum, tarn__gguf_elements(file, i) + k * (int64_t)sizeof(float), sizeof(sum));
            row->sum[k] = count > 0 ? (double)sum / (double)count : 0;
        }
    }
    tarn_gguf_close(file);
    return !tarn_failed() &&
           (m->rows > 0 || tarn__raise(TARN_ERROR_FORMAT,
                                       "%s: '%s' has no tensors '….in_sum2' with one count in f32; is it "
                                       "an importance matrix?",
                                       function, path));
}

/* Reads `bytes` bytes at *at. False at the end of the file. */
static bool take(const tarn__map *map, size_t *at, void *to, size_t bytes)
{
    if (map->bytes - *at < bytes)
        return false;
    memcpy(to, map->memory + *at, bytes);
    *at += bytes;
    return true;
}

/* Count; then each entry: length and bytes of the name, calls, number of values, values in f32, sums over the calls. */
static bool take_entry(const tarn__map *map, size_t *at, tarn__importance *m)
{
    int32_t length, calls, columns;
    char name[MAX_NAME];
    if (!take(map, at, &length, sizeof(length)) || length < 1 || length >= MAX_NAME ||
        !take(map, at, name, (size_t)length) || !take(map, at, &calls, sizeof(calls)) ||
        !take(map, at, &columns, sizeof(columns)) || columns < 1 ||
        (map->bytes - *at) / sizeof(float) < (size_t)columns)
        return false;
    name[length] = 0;
    tarn__importance_row *row = add_row(m, name, columns);
    for (int32_t i = 0; row && i < columns; i++) {
        float sum = 0;
        take(map, at, &sum, sizeof(sum));
        row->sum[i] = (double)sum / (double)(calls > 0 ? calls : 1);
    }
    return row != NULL;
}

static bool from_legacy(const char *function, const char *path, tarn__importance *m)
{
    tarn__map map;
    size_t at = 0;
    int32_t count = 0;
    if (!tarn__map_open(&map, function, path))
        return false;
    bool good = take(&map, &at, &count, sizeof(count)) && count > 0;
    for (int32_t i = 0; good && i < count; i++)
        good = take_entry(&map, &at, m);
    tarn__map_close(&map);
    return good ||
           (!tarn_failed() && tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' is no importance matrix: wrong at byte %llu",
                                          function, path, (unsigned long long)at));
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* "text:FILE", or a file, which is GGUF by its first four bytes, else the older form. */
bool tarn__importance_open(const char *function, const char *model, const char *source, tarn__importance *m)
{
    char magic[4] = "";
    bool is_text = strncmp(source, TEXT, strlen(TEXT)) == 0;
    FILE *file = is_text ? NULL : tarn__file_open(source);
    bool is_gguf = file && fread(magic, 1, 4, file) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (file)
        fclose(file);
    bool good = is_text   ? from_text(function, model, source + strlen(TEXT), m)
                : is_gguf ? from_gguf(function, source, m)
                          : from_legacy(function, source, m);
    for (int i = 0; good && i < m->rows; i++)
        good = finish_row(&m->row[i]);
    if (!good)
        tarn__importance_free(m);
    return good;
}

/* NULL: all columns count alike. */
const float *tarn__importance_of(const tarn__importance *m, const char *name, int64_t columns)
{
    for (int i = 0; i < m->rows; i++)
        if (m->row[i].columns == columns && strcmp(m->row[i].name, name) == 0)
            return m->row[i].values;
    return NULL;
}
