/* lora_gguf.c: LoRA adapters as GGUF files, in llama.cpp's format.
 *
 * general.type is "adapter" and adapter.type "lora"; adapter.lora.alpha holds for all layers, and a layer's scale is
 * alpha / rank. A and B of a weight are the tensors "NAME.lora_a" and "NAME.lora_b" after its name in GGUF files. Rows
 * of B are in the order of that weight's rows there; A of the token embedding is transposed, [rows, rank]. */
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "models/gguf/gguf_arch.h"
#include "models/lora/lora.h"

#define TYPE "general.type"
#define ADAPTER_TYPE "adapter.type"
#define ALPHA "adapter.lora.alpha"

/* State of one read or write. */
typedef struct adapter_file {
    const char *function, *path;
    const tarn__arch *arch;
    tarn_lm_config config;
    tarn__lora_layers list;
    double alpha;
} adapter_file;

/* The architecture and modules of the model. The list of layers is the caller's to release, with an error too. */
static bool open_model(adapter_file *f, const tarn_module *model)
{
    const tarn__arch *arch = tarn__arch_of(f->function, model);
    if (!arch || !tarn__lora_list(f->function, model, &f->list))
        return false;
    f->arch = arch;
    f->config = *tarn__model_config(model);
    return true;
}

/* True if A of a weight, by its name in GGUF files, is transposed. */
static bool is_transposed(const char *name)
{
    return strcmp(name, "token_embd.weight") == 0;
}

/* B with the first two of its axes [first, second, rest, rank] exchanged: groups of its rows in another order. */
static tarn_tensor *exchange(tarn_tensor *b, int64_t first, int64_t second, int64_t third, int64_t fourth)
{
    int64_t rank = b->view.shape[1];
    bool is_inner = fourth == 0; /* the second and third of three */
    tarn_tensor *y =
        tarn_reshape(b, is_inner ? TARN_SHAPE(first, second, third, rank) : TARN_SHAPE(first, second, third, fourth));
    y = y ? tarn_permute(y, is_inner ? TARN_AXES(0, 2, 1, 3) : TARN_AXES(1, 0, 2, 3)) : NULL;
    y = y ? tarn_clone(y) : NULL;
    return y ? tarn_reshape(y, TARN_SHAPE(b->view.shape[0], rank)) : NULL;
}

/* B with the rows of RoPE pairs interleaved, or as halves again, or with those of one layer for queries, keys and
 * values by head; unchanged for weights that have no such rows. */
static tarn_tensor *reorder(const adapter_file *f, const char *name, tarn_tensor *b, bool to_gguf)
{
    tarn__gguf_layout layout = tarn__gguf_layout_of(f->arch, name);
    int64_t heads = layout == TARN__GGUF_QUERIES ? f->config.heads : layout == TARN__GGUF_KEYS ? f->config.kv_heads : 0;
    int64_t rows = b->view.shape[0], rank = b->view.shape[1];
    int64_t all = f->config.heads, depth = rows / (3 * all);
    if (layout == TARN__GGUF_QKV_BY_HEAD && rows == 3 * all * depth)
        return to_gguf ? exchange(b, all, 3, depth, rank) : exchange(b, 3, all, depth, rank);
    if (!heads || !f->arch->is_interleaved)
        return b;
    if (rows % (2 * heads)) {
        tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': the %lld rows of '%.200s' are not pairs of %lld heads", f->function,
                    f->path, (long long)rows, name, (long long)heads);
        return NULL;
    }
    /* Rows of a head are two halves in Hugging Face's order, pairs in Meta's. */
    int64_t half = rows / heads / 2;
    return to_gguf ? exchange(b, heads, 2, half, 0) : exchange(b, heads, half, 2, 0);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Raises what the format lacks. */
static bool check_writable(const adapter_file *f)
{
    for (int i = 0; i < f->list.count; i++) {
        const tarn__lora_layer *layer = &f->list.layer[i];
        bool is_dora = layer->is_selected && layer->module->adapter->has_magnitude;
        if (layer->is_saved || layer->has_tokens || is_dora)
            return tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: '%s': '%s' %s, which adapters in GGUF files cannot have; merge them into the model",
                               f->function, f->path, layer->path,
                               is_dora             ? "has DoRA's magnitudes"
                               : layer->has_tokens ? "has trained tokens"
                                                   : "is saved whole");
    }
    return true;
}

/* f32, f16 or bf16. */
static tarn_tensor *as_stored(tarn_tensor *x)
{
    return x && x->view.dtype == TARN_F64 ? tarn_cast(x, TARN_F32) : x;
}

/* A and B of a layer. Where its scale is not alpha / rank (rsLoRA, alphas of its own), B is scaled by the rest. */
static bool add_layer(const adapter_file *f, const tarn__lora_layer *layer, tarn_gguf_writer *writer)
{
    char path[TARN__GGUF_NAME_CAPACITY], name[TARN__GGUF_NAME_CAPACITY], stored[TARN__GGUF_NAME_CAPACITY + 8];
    const tarn__adapter *adapter = layer->module->adapter;
    bool is_named = (size_t)snprintf(path, sizeof(path), "%s.weight", layer->path) < sizeof(path);
    if (!is_named || !tarn__gguf_name_of(f->arch, path, name))
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s' has no name in a GGUF file", f->function, layer->path);
    tarn_tensor *a = as_stored(tarn__adapter_weight(layer->module, TARN__ADAPTER_A)),
                *b = as_stored(tarn__adapter_weight(layer->module, TARN__ADAPTER_B));
    double rest = adapter->scale * (double)adapter->rank / f->alpha;
    if (b && rest != 1)
        b = tarn_mul(tarn_cast(b, TARN_F32), tarn_scalar(rest));
    if (a && is_transposed(name))
        a = tarn_transpose(a, 0, 1);
    b = b ? reorder(f, name, b, true) : NULL;
    if (!a || !b)
        return false;
    snprintf(stored, sizeof(stored), "%s.lora_a", name);
    if (!tarn_gguf_add(writer, stored, a))
        return false;
    snprintf(stored, sizeof(stored), "%s.lora_b", name);
    return tarn_gguf_add(writer, stored, b);
}

/* Metadata first, then A and B of each layer, in the order of the model's tree. */
static bool put_all(const adapter_file *f, tarn_gguf_writer *writer)
{
    float alpha = (float)f->alpha;
    bool good = tarn__gguf_put_string(writer, TARN__GGUF_ARCHITECTURE, f->arch->gguf) &&
                tarn__gguf_put_string(writer, TYPE, "adapter") && tarn__gguf_put_string(writer, ADAPTER_TYPE, "lora") &&
                tarn_gguf_add_value(writer, ALPHA, TARN_GGUF_F32, &alpha);
    for (int i = 0; good && i < f->list.count; i++)
        good = !f->list.layer[i].is_selected || add_layer(f, &f->list.layer[i], writer);
    return good;
}

/* The alpha of the first adapter; of 0, which means a scale of 1 in the file, and of one that f32 rounds, B takes the
 * whole. */
static double common_alpha(const tarn__lora_layers *list)
{
    for (int i = 0; i < list->count; i++)
        if (list->layer[i].is_selected) {
            double alpha = list->layer[i].module->adapter->alpha;
            return alpha > 0 && (double)(float)alpha == alpha ? alpha : 1;
        }
    return 1;
}

/* The file appears when it is complete (tarn_gguf_finish()). */
bool tarn__lora_save_gguf(const char *function, const tarn_module *model, const char *path)
{
    adapter_file f = {.function = function, .path = path};
    bool good = open_model(&f, model) && check_writable(&f);
    tarn_scope *scope = good ? tarn_scope_open() : NULL;
    tarn_gguf_writer *writer = scope ? tarn_gguf_create(path) : NULL;
    tarn_no_grad_open();
    f.alpha = common_alpha(&f.list);
    good = writer && put_all(&f, writer);
    if (good)
        good = tarn_gguf_finish(writer);
    else
        tarn_gguf_cancel(writer);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    tarn__lora_release(&f.list);
    return good || tarn__raise_within(function);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Raises other files than LoRA adapters of the model's architecture. */
static bool check_kind(adapter_file *f, const tarn_gguf *file)
{
    bool has_type = tarn_gguf_has(file, TYPE, NULL);
    const char *type = has_type ? tarn_gguf_string(file, TYPE, NULL) : "model";
    if (!type || strcmp(type, "adapter") != 0)
        return type && tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' is of the " TYPE " '%.64s'; adapters are 'adapter'",
                                   f->function, f->path, type);
    const char *kind = tarn_gguf_string(file, ADAPTER_TYPE, NULL),
               *arch = kind ? tarn_gguf_string(file, TARN__GGUF_ARCHITECTURE, NULL) : NULL;
    if (!arch)
        return false;
    if (strcmp(kind, "lora") != 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': adapters of the type '%.64s' are not supported; lora is",
                           f->function, f->path, kind);
    if (strcmp(arch, f->arch->gguf) != 0)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has adapters of the architecture '%.64s'; the model is %s",
                           f->function, f->path, arch, f->arch->gguf);
    return !tarn_gguf_has(file, ALPHA, NULL) || tarn_gguf_real(file, ALPHA, &f->alpha);
}

/* The module that a tensor "NAME.lora_a" or "NAME.lora_b" belongs to; NULL: none. */
static tarn__lora_layer *layer_of(const adapter_file *f, const char *name)
{
    char weight[TARN__GGUF_NAME_CAPACITY], folder[TARN__GGUF_NAME_CAPACITY];
    size_t length = strlen(name), tail = strlen(".lora_a");
    bool is_matrix = tarn__ends_with(name, ".lora_a") || tarn__ends_with(name, ".lora_b");
    if (!is_matrix || length - tail >= sizeof(weight))
        return NULL;
    snprintf(weight, sizeof(weight), "%.*s", (int)(length - tail), name);
    if (!tarn__gguf_folder_name_of(f->arch, weight, folder) || !tarn__ends_with(folder, ".weight"))
        return NULL;
    folder[strlen(folder) - strlen(".weight")] = 0;
    for (int i = 0; i < f->list.count; i++)
        if (f->list.layer[i].kind != TARN__LORA_NO_TARGET && strcmp(f->list.layer[i].path, folder) == 0)
            return &f->list.layer[i];
    return NULL;
}

/* Selects the layers that the file names. Every tensor must be a matrix of one. */
static bool select_layers(adapter_file *f, const tarn_gguf *file)
{
    for (int i = 0; i < tarn_gguf_count(file); i++) {
        tarn__lora_layer *layer = layer_of(f, tarn_gguf_name(file, i));
        if (!layer)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': tensor '%.200s' is no adapter of a layer of this model",
                               f->function, f->path, tarn_gguf_name(file, i));
        layer->is_selected = true;
    }
    return tarn_gguf_count(file) > 0 ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no adapters", f->function, f->path);
}

/* Index of A or B of a layer, its shape checked against the model; -1 with an error. A sets the rank. */
static int find_matrix(const adapter_file *f, const tarn_gguf *file, tarn__lora_layer *layer, int which, char *weight)
{
    char path[TARN__GGUF_NAME_CAPACITY + 8], name[TARN__GGUF_NAME_CAPACITY + 8];
    const tarn_tensor *own = tarn__module_own(layer->module, "weight");
    bool is_embedding = layer->kind == TARN__LORA_EMBEDDING, is_a = which == TARN__ADAPTER_A;
    int64_t in = is_embedding ? own->view.shape[0] : tarn__linear_in(layer->module),
            out = is_embedding ? own->view.shape[1] : tarn__linear_out(layer->module);
    tarn_gguf_entry e;
    snprintf(path, sizeof(path), "%s.weight", layer->path);
    tarn__gguf_name_of(f->arch, path, weight); /* it was found by this name */
    snprintf(name, sizeof(name), "%s.lora_%c", weight, is_a ? 'a' : 'b');
    int index = tarn_gguf_find(file, name);
    if (index < 0) {
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no '%s', but the other matrix of that adapter", f->function,
                    f->path, name);
        return -1;
    }
    if (!tarn_gguf_info(file, index, &e))
        return -1;
    int rank_axis = is_transposed(weight) ? 1 : 0; /* of A */
    if (is_a && e.shape.rank == 2)
        layer->settings.rank = e.shape.size[rank_axis];
    int64_t rank = layer->settings.rank, rows = rank_axis ? in : rank, columns = rank_axis ? rank : in;
    if (!is_a) {
        rows = out;
        columns = rank;
    }
    bool fits = e.shape.rank == 2 && rank > 0 && e.shape.size[0] == rows && e.shape.size[1] == columns;
    if (fits)
        return index;
    tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': '%s' is %s, but must be [%lld, %lld] in this model", f->function, f->path,
                name, tarn__shape_string(e.shape.size, e.shape.rank, &(tarn__shape_buffer){{0}}), (long long)rows,
                (long long)columns);
    return -1;
}

/* A copy of a matrix in memory of its own, on the device of the layer. Quantized ones become f32. */
static tarn_tensor *read_matrix(const tarn_gguf *file, int index, tarn_device device)
{
    tarn_tensor *x = tarn_gguf_tensor(file, index, device);
    return !x || tarn__is_float(x->view.dtype) ? x : tarn_cast(x, TARN_F32);
}

/* Reads A and B. */
static bool load_layer(const adapter_file *f, const tarn_gguf *file, tarn__lora_layer *layer)
{
    char weight[TARN__GGUF_NAME_CAPACITY];
    tarn_device device = tarn__device(tarn__module_own(layer->module, "weight"));
    int at_a = find_matrix(f, file, layer, TARN__ADAPTER_A, weight),
        at_b = at_a < 0 ? -1 : find_matrix(f, file, layer, TARN__ADAPTER_B, weight);
    if (at_b < 0)
        return false;
    layer->settings.alpha = f->alpha > 0 ? f->alpha : (double)layer->settings.rank; /* without alpha the scale is 1 */
    layer->settings.scale = layer->settings.alpha / (double)layer->settings.rank;
    tarn_tensor *a = read_matrix(file, at_a, device), *b = a ? read_matrix(file, at_b, device) : NULL;
    if (b && is_transposed(weight))
        a = tarn_transpose(a, 0, 1);
    b = b ? reorder(f, weight, b, false) : NULL;
    a = a && b ? tarn_clone(tarn_cast(a, b->view.dtype)) : NULL;
    b = a ? tarn_clone(b) : NULL;
    return b && tarn__adapter_add(layer->module, &layer->settings, a, b);
}

/* Layers that were added before a failure are removed again: the model is as it was. */
static bool load_all(adapter_file *f, const tarn_gguf *file, tarn_module *model, tarn__lora_set *set)
{
    bool good = check_kind(f, file) && select_layers(f, file);
    tarn_no_grad_open();
    for (int i = 0; good && i < f->list.count; i++) {
        tarn_scope *scope = f->list.layer[i].is_selected ? tarn_scope_open() : NULL;
        good = !f->list.layer[i].is_selected || (scope && load_layer(f, file, &f->list.layer[i]));
        tarn_scope_close(scope);
    }
    tarn_no_grad_close();
    good = good && (set ? tarn__lora_take_all(&f->list, set) : tarn__lora_start(f->function, model, &f->list));
    for (int i = 0; !good && i < f->list.count; i++)
        tarn__adapter_remove(f->list.layer[i].module);
    return good;
}

/* `model` must have no adapters; with a set they go there, and it has none afterwards either. False with an error that
 * begins with `function`. */
bool tarn__lora_load_gguf(const char *function, tarn_module *model, const char *path, tarn__lora_set *set)
{
    adapter_file f = {.function = function, .path = path};
    tarn_gguf *file = tarn_gguf_open(path);
    bool good = file && open_model(&f, model) && load_all(&f, file, model, set);
    tarn_gguf_close(file);
    tarn__lora_release(&f.list);
    return good || tarn__raise_within(function);
}
