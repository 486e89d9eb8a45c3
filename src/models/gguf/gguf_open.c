/* gguf_open.c: the models of GGUF files. */
#include <string.h>

#include "base/dtype.h"
#include "formats/gguf.h"
#include "models/gguf/gguf_keys.h"

const tarn__gguf_arch *tarn__gguf_arch_of(const char *function, const tarn_gguf *file)
{
    const char *architecture = tarn_gguf_string(file, TARN__GGUF_ARCHITECTURE, NULL);
    if (!architecture)
        tarn__raise_within(function);
    const tarn__arch *kind = architecture ? tarn__arch_in_gguf(function, file->path, architecture) : NULL;
    return kind ? kind->gguf : NULL;
}

typedef struct opening {
    const char *function;
    const tarn_gguf *file;
    const tarn__gguf_arch *kind;
    tarn__gguf_traits traits;
    tarn_dtype dtype; /* of what is not in blocks */
    int given;        /* tensors that have found their place */
} opening;

static bool same_shape(const tarn_shape *a, const tarn_shape *b)
{
    return a->rank == b->rank && memcmp(a->size, b->size, sizeof(int64_t) * (size_t)a->rank) == 0;
}

static tarn_shape transposed(tarn_shape shape)
{
    return TARN_SHAPE(shape.size[1], shape.size[0]);
}

/* Finds the tensor of a parameter, and raises unless it is there and has the shape that it has in a model. */
static int find(const opening *o, const char *name, tarn_shape shape, char *stored, tarn_gguf_entry *e)
{
    int index = tarn__gguf_name_of(o->kind, name, stored) ? tarn_gguf_find(o->file, stored) : -1;
    tarn_shape wanted = tarn__gguf_layout_of(o->kind, stored) == TARN__GGUF_TRANSPOSED ? transposed(shape) : shape;
    if (index < 0 || !tarn_gguf_info(o->file, index, e))
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no tensor '%s' (%s)", o->function, o->file->path, stored, name);
    else if (!same_shape(&e->shape, &wanted))
        tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': tensor '%s' is %s, but a model of this configuration has %s",
                    o->function, o->file->path, stored,
                    tarn__shape_string(e->shape.size, e->shape.rank, &(tarn__shape_buffer){{0}}),
                    tarn__shape_string(wanted.size, wanted.rank, &(tarn__shape_buffer){{0}}));
    return tarn_failed() ? -1 : index;
}

static tarn_tensor *give(void *ctx, const char *name, tarn_shape shape, tarn_device device)
{
    opening *o = ctx;
    char stored[TARN__GGUF_NAME_CAPACITY] = "";
    tarn_gguf_entry e;
    int index = find(o, name, shape, stored, &e);
    if (index < 0)
        return NULL;
    o->given++;
    tarn__gguf_layout layout = tarn__gguf_layout_of(o->kind, stored);
    bool is_known = e.dtype != TARN_DTYPE_COUNT, is_table = shape.rank > 1 && layout != TARN__GGUF_F32_TABLE;
    bool is_blocks = is_known && is_table && tarn__is_quantized(e.dtype); /* norms, biases and positions are numbers */
    if (is_blocks && o->dtype == TARN_F64) {
        tarn__raise(TARN_ERROR_DTYPE,
                    "%s: '%s': tensor '%s' is %s, and nothing is computed in f64 beside blocks; take f32, bf16 or f16",
                    o->function, o->file->path, stored, e.dtype_name);
        return NULL;
    }
    tarn__weight_rows rows = {.function = o->function,
                              .path = o->file->path,
                              .name = stored,
                              .elements = o->file->memory + e.position,
                              .shape = e.shape,
                              .from = e.dtype,
                              .to = is_blocks ? e.dtype : o->dtype};
    bool stays = is_blocks && layout == TARN__GGUF_TRANSPOSED; /* rows of blocks are outputs, here as there */
    if (!stays && !tarn__gguf_set_layout(o->kind, &o->traits, stored, stored, false, &rows))
        return NULL;
    /* the reader refuses what it cannot load, with a sentence */
    if (!is_known || (rows.to == e.dtype && rows.order == TARN__ROWS_UNCHANGED))
        return tarn_gguf_tensor(o->file, index, device);
    return tarn__weight_rows_tensor(&rows, device);
}

/* What does not belong into the model would be lost in silence. */
static bool check_all_given(const opening *o)
{
    char name[TARN__GGUF_NAME_CAPACITY];
    int known = o->given + (o->kind->derived && tarn_gguf_find(o->file, o->kind->derived) >= 0),
        count = tarn_gguf_count(o->file);
    for (int i = 0; i < count && known < count; i++) {
        const char *stored = tarn_gguf_name(o->file, i);
        if (!tarn__gguf_is_derived(o->kind, stored) && !tarn__gguf_folder_name_of(o->kind, stored, name))
            return tarn__raise(TARN_ERROR_FORMAT,
                               "%s: '%s' holds '%.200s', which a %s of this configuration does not have", o->function,
                               o->file->path, stored, o->traits.arch);
    }
    return known == count ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds %d tensors, but a %s of this configuration has %d",
                       o->function, o->file->path, count, o->traits.arch, known);
}

tarn_module *tarn__model_from_gguf(const char *function, const tarn_gguf *file, tarn_dtype dtype,
                                   const tarn__device_map *where)
{
    tarn__any_config config = {0};
    opening o = {.function = function, .file = file, .kind = tarn__gguf_arch_of(function, file), .dtype = dtype};
    if (!o.kind || !o.kind->get(function, file, dtype, &config))
        return NULL;
    o.kind->traits(&config, &o.traits);
    tarn_module *model = o.kind->make(function, &config, where, &(tarn__model_source){give, &o});
    if (model && check_all_given(&o))
        return model;
    tarn_module_free(model);
    return NULL;
}
