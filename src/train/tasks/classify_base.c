/* classify_base.c: a classifier that starts from the weights of a file: fine-tuning with a new head.
 *
 * Every tensor of the model is found by its name in the file, but for the head, the last layer, which is drawn anew
 * where its shape differs: it has the classes of other data. Anything else that is missing, left over or of another
 * shape is an error: a part of a network would train from noise in silence. */
#include <stdio.h>
#include <string.h>
#include <tarn/safetensors.h>

#include "base/error.h"
#include "base/os/files.h"
#include "core/device/device.h"
#include "nn/module.h"
#include "train/tasks/task.h"

/* The weights of a folder: those of a run's best evaluation, or a published model's. */
static void find_file(const char *path, tarn__path *file)
{
    static const char *const names[] = {"best.safetensors", "model.safetensors.index.json", "model.safetensors"};
    snprintf(file->text, sizeof(file->text), "%s", path);
    for (int i = 0; i < 3; i++) {
        tarn__path inside;
        if (!tarn__path_exists(tarn__path_in(path, names[i], &inside)))
            continue;
        *file = inside;
        return;
    }
}

/* Length of the head's name, "fc." of "fc.weight": it holds the last parameter. */
static size_t head_length(const tarn_module *model)
{
    const char *last = tarn_module_parameter_name(model, tarn_module_parameter_count(model) - 1),
               *dot = last ? strrchr(last, '.') : NULL;
    return dot ? (size_t)(dot - last) + 1 : 0;
}

static bool is_head(const tarn_module *model, const char *name)
{
    const char *last = tarn_module_parameter_name(model, tarn_module_parameter_count(model) - 1);
    return strncmp(name, last, head_length(model)) == 0;
}

static bool same_shape(const tarn_tensor *tensor, const tarn_shape *shape)
{
    bool same = tarn_rank(tensor) == shape->rank;
    for (int i = 0; same && i < shape->rank; i++)
        same = tarn_size(tensor, i) == shape->size[i];
    return same;
}

/* A load under way. */
typedef struct loading {
    const char *function, *path;
    const tarn_module *model;
    const tarn_safetensors *file;
    bool reads; /* false: names and shapes are only compared */
    int64_t loaded, drawn;
} loading;

static bool load_tensor(loading *l, const char *name, tarn_tensor *tensor)
{
    tarn_safetensors_entry entry = {0};
    int at = tarn_safetensors_find(l->file, name);
    bool fits = at >= 0 && tarn_safetensors_info(l->file, at, &entry) && same_shape(tensor, &entry.shape);
    const char *end = strrchr(name, '.');
    if (tarn_failed())
        return false;
    if (fits) {
        l->loaded++;
        return !l->reads || tarn_safetensors_read_into(l->file, name, tensor);
    }
    if (is_head(l->model, name)) {
        l->drawn++;
        return true;
    }
    if (at < 0 && end && strcmp(end, ".num_batches_tracked") == 0)
        return true;
    return tarn__raise(TARN_ERROR_FORMAT, "%s: finetune: '%.300s' has %s '%s' of %s; is it another network?",
                       l->function, l->path, at < 0 ? "no" : "another shape for", name, TARN__SHAPE_STRING(tensor));
}

static bool check_others(const loading *l)
{
    for (int i = 0; i < tarn_safetensors_count(l->file); i++) {
        const char *name = tarn_safetensors_name(l->file, i);
        if (!tarn_module_find(l->model, name) && !is_head(l->model, name))
            return tarn_failed() ? false
                                 : tarn__raise(TARN_ERROR_FORMAT,
                                               "%s: finetune: '%.300s' has '%.200s', which the model lacks; is it "
                                               "another network?",
                                               l->function, l->path, name);
    }
    return true;
}

static bool load_all(loading *l)
{
    bool good = true;
    for (int i = 0; good && i < tarn_module_parameter_count(l->model); i++)
        good = load_tensor(l, tarn_module_parameter_name(l->model, i), tarn_module_parameter(l->model, i));
    for (int i = 0; good && i < tarn_module_buffer_count(l->model); i++)
        good = load_tensor(l, tarn_module_buffer_name(l->model, i), tarn_module_buffer(l->model, i));
    return good && check_others(l);
}

bool tarn__classifier_load_base(const char *function, tarn_trainer *t, tarn_module *model)
{
    tarn__path path;
    find_file(t->options.finetune, &path);
    tarn_safetensors *file = tarn_safetensors_open(path.text);
    loading l = {
        .function = function, .path = path.text, .model = model, .file = file, .reads = !tarn__is_meta(t->device)};
    bool good = file && load_all(&l);
    tarn_safetensors_close(file);
    if (!good)
        return tarn__raise_within(function);
    const char *last = tarn_module_parameter_name(model, tarn_module_parameter_count(model) - 1);
    snprintf(t->chosen, sizeof(t->chosen), "%.150s: %lld tensors loaded, %s%.*s%s", t->options.finetune,
             (long long)l.loaded, l.drawn ? "the head (" : "the head too", l.drawn ? (int)head_length(model) - 1 : 0,
             last, l.drawn ? ") drawn anew" : "");
    return true;
}

/* The head alone is trained; batchnorms keep adapting their running statistics. */
bool tarn__classifier_freeze(tarn_module *model)
{
    if (!tarn_module_freeze(model, true))
        return false;
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        if (is_head(model, tarn_module_parameter_name(model, i)))
            tarn_requires_grad(tarn_module_parameter(model, i), true);
    return !tarn_failed();
}
