/* gguf_open.c: models from GGUF files.
 *
 * Every tensor of the file must be used, and every parameter must be found: weights are never dropped silently. */
#include <string.h>

#include "base/dtype.h"
#include "formats/gguf.h"
#include "models/gguf/gguf_arch.h"

/* State of one load. */
typedef struct opener {
    const char *function;
    const tarn_gguf *file;
    const tarn__arch *arch;
    tarn_lm_config config;
    tarn_dtype dtype; /* of weights that are not quantized */
    int loaded;       /* tensors loaded so far */
    int dequantized;  /* those of types without a dtype, and one of their names */
    const char *dequantized_type;
} opener;

static bool same_shape(const tarn_shape *a, const tarn_shape *b)
{
    return a->rank == b->rank && memcmp(a->size, b->size, sizeof(int64_t) * (size_t)a->rank) == 0;
}

static tarn_shape transposed(tarn_shape shape)
{
    return TARN_SHAPE(shape.size[1], shape.size[0]);
}

/* Finds the tensor of a parameter; raises if it is missing or has another shape. */
static int find(const opener *o, const char *name, tarn_shape shape, char *stored, tarn_gguf_entry *e)
{
    int index = tarn__gguf_name_of(o->arch, name, stored) ? tarn_gguf_find(o->file, stored) : -1;
    tarn_shape wanted = tarn__gguf_layout_of(o->arch, stored) == TARN__GGUF_TRANSPOSED ? transposed(shape) : shape;
    if (index < 0 || !tarn_gguf_info(o->file, index, e))
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no tensor '%s' (%s)", o->function, o->file->path, stored, name);
    else if (!same_shape(&e->shape, &wanted))
        tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': tensor '%s' is %s, but a model of this configuration has %s",
                    o->function, o->file->path, stored,
                    tarn__shape_string(e->shape.size, e->shape.rank, &(tarn__shape_buffer){{0}}),
                    tarn__shape_string(wanted.size, wanted.rank, &(tarn__shape_buffer){{0}}));
    return tarn_failed() ? -1 : index;
}

/* Loads the parameter `name`. Weights that need neither conversion nor reordering are views of the mapped file on
 * the CPU. */
static tarn_tensor *load_tensor(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    opener *o = ctx;
    char stored[TARN__GGUF_NAME_CAPACITY] = "";
    tarn_gguf_entry e;
    int index = find(o, name, shape, stored, &e);
    if (index < 0)
        return NULL;
    o->loaded++;
    tarn__gguf_layout layout = tarn__gguf_layout_of(o->arch, stored);
    tarn__iquant iquant = tarn__gguf_iquant(o->file, index);
    if (iquant) {
        o->dequantized++;
        o->dequantized_type = e.dtype_name;
    }
    bool is_known = e.dtype != TARN_DTYPE_COUNT || iquant, is_table = shape.rank > 1 && layout != TARN__GGUF_F32_TABLE;
    bool is_quantized =
        is_known && !iquant && is_table && tarn__is_quantized(e.dtype); /* norms, biases and positions are not */
    if (is_quantized && o->dtype == TARN_F64) {
        tarn__raise(
            TARN_ERROR_DTYPE,
            "%s: '%s': tensor '%s' is %s, and f64 is not supported with quantized weights; use f32, bf16 or f16",
            o->function, o->file->path, stored, e.dtype_name);
        return NULL;
    }
    tarn__weight_rows rows = {.function = o->function,
                              .path = o->file->path,
                              .name = stored,
                              .elements = tarn__gguf_elements(o->file, index),
                              .shape = e.shape,
                              .from = e.dtype,
                              .to = is_quantized ? e.dtype : o->dtype,
                              .iquant = iquant};
    bool keeps_layout =
        is_quantized && layout == TARN__GGUF_TRANSPOSED; /* quantized rows are outputs in both layouts */
    if (!keeps_layout && !tarn__gguf_set_layout(&o->config, stored, stored, false, &rows))
        return NULL;
    /* tarn_gguf_tensor() raises the error for an unknown type */
    if (!is_known || (rows.to == e.dtype && rows.order == TARN__ROWS_UNCHANGED && rows.shift == 0))
        return tarn_gguf_tensor(o->file, index, device);
    return tarn__weight_rows_tensor(&rows, device);
}

/* Raises if the file has tensors that the model lacks. */
static bool check_all_loaded(const opener *o)
{
    char name[TARN__GGUF_NAME_CAPACITY];
    int known = o->loaded, count = tarn_gguf_count(o->file);
    for (int i = 0; i < count; i++)
        known += tarn__gguf_is_derived(tarn_gguf_name(o->file, i));
    for (int i = 0; i < count && known < count; i++) {
        const char *stored = tarn_gguf_name(o->file, i);
        if (!tarn__gguf_is_derived(stored) && !tarn__gguf_folder_name_of(o->arch, stored, name))
            return tarn__raise(
                TARN_ERROR_FORMAT,
                "%s: '%s' has an unknown tensor '%.200s'; a %s of this configuration has none of that name",
                o->function, o->file->path, stored, o->config.arch);
    }
    return known == count ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has %d tensors; a %s of this configuration has %d", o->function,
                       o->file->path, count, o->config.arch, known);
}

tarn_module *tarn__model_from_gguf(const char *function, const tarn_gguf *file, tarn_dtype dtype,
                                   const tarn__device_map *map)
{
    opener o = {.function = function, .file = file, .dtype = dtype};
    if (!tarn__model_get_gguf(function, file, dtype, &o.config))
        return NULL;
    o.arch = tarn__arch_of_config(&o.config);
    tarn_module *model = tarn__model_make(function, &o.config, map, false, &(tarn__model_source){load_tensor, &o});
    if (o.dequantized > 0 && model)
        tarn__log(TARN_LOG_NOTICE, "'%s': %d tensors are dequantized to %s: %s has no products of its own", file->path,
                  o.dequantized, tarn_dtype_name(dtype), o.dequantized_type);
    if (model && check_all_loaded(&o))
        return model;
    tarn_module_free(model);
    return NULL;
}
