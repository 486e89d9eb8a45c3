/* weights.c: weights of models from safetensors files (weights.h). */
#include "models/hf/weights.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"

/* Also true for the whole text. */
bool tarn__ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

bool tarn__has_ending(const char *text, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (tarn__ends_with(text, *ends))
            return true;
    return false;
}

const char *tarn__model_path_in(const char *function, const char *folder, const char *name, tarn__model_path *to)
{
    if (!folder || !folder[0])
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the folder is %s", function, folder ? "empty" : "NULL");
    else if ((size_t)snprintf(to->text, sizeof(to->text), "%s/%s", folder, name) < sizeof(to->text))
        return to->text;
    else
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the folder's path is too long: %zu bytes", function, strlen(folder));
    return NULL;
}

/* True if a module has a parameter of that full name. "layers.0.norm.weight" goes down one child per dot. */
static bool has_parameter(const tarn_module *module, const char *name)
{
    const char *dot = strchr(name, '.');
    if (!dot)
        return tarn__module_own(module, name) != NULL;
    size_t length = (size_t)(dot - name);
    for (int i = 0; i < module->children; i++)
        if (strlen(module->child[i]->name) == length && memcmp(module->child[i]->name, name, length) == 0)
            return has_parameter(module->child[i], dot + 1);
    return false;
}

/* Unknown names are checked first: the generic loader would skip them. */
bool tarn__weights_load(const char *function, tarn_module *module, const tarn_safetensors *file, const char *path,
                        const char *what, const char *const *ignored)
{
    for (int i = 0; i < tarn_safetensors_count(file); i++) {
        const char *name = tarn_safetensors_name(file, i);
        if (!tarn__has_ending(name, ignored) && !has_parameter(module, name))
            return tarn__raise(
                TARN_ERROR_FORMAT,
                "%s: '%s' has an unknown tensor '%.200s'; a %s of this config.json has none of that name", function,
                path, name, what);
    }
    return (!tarn_failed() &&
            tarn__module_load_file(module, file, path, &(tarn_module_load_options){.allow_unexpected = true})) ||
           tarn__raise_within(function);
}

/* The common dtype of an open file. */
static bool dtype_in(const char *function, const tarn_safetensors *file, const char *path, const char *const *ignored,
                     tarn_dtype *dtype)
{
    tarn_safetensors_entry entry;
    *dtype = TARN_DTYPE_COUNT;
    for (int i = 0; i < tarn_safetensors_count(file); i++) {
        if (!tarn_safetensors_info(file, i, &entry))
            return tarn__raise_within(function);
        if (tarn__has_ending(entry.name, ignored))
            continue;
        if (*dtype == TARN_DTYPE_COUNT && !tarn__check_parameter_dtype(function, entry.dtype))
            return false;
        if (*dtype != TARN_DTYPE_COUNT && entry.dtype != *dtype)
            return tarn__raise(
                TARN_ERROR_DTYPE,
                "%s: '%s' has weights of several dtypes ('%.200s' is %s, others are %s); choose one to convert them to",
                function, path, entry.name, entry.dtype_name, tarn_dtype_name(*dtype));
        *dtype = entry.dtype;
    }
    return *dtype != TARN_DTYPE_COUNT || tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no weights", function, path);
}

bool tarn__weights_dtype(const char *function, const char *path, const char *const *ignored, tarn_dtype *dtype)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (!file)
        return tarn__raise_within(function);
    bool good = dtype_in(function, file, path, ignored, dtype);
    tarn_safetensors_close(file);
    return good;
}

/* The empty name stands for none. */
tarn_dtype tarn__quant_type_named(const char *name)
{
    static const tarn_dtype types[] = {TARN_Q8_0, TARN_Q4_0, TARN_Q4_K, TARN_Q6_K};
    for (size_t i = 0; name[0] && i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(tarn_dtype_name(types[i]), name) == 0)
            return types[i];
    return TARN_F32; /* none */
}

/* Weights that are quantized already stay: another format would lose precision. A row that does not divide into
 * blocks of the wanted type (256 elements for K-quants) gets Q8_0, of 32. */
tarn_dtype tarn__quant_type_for_row(int64_t row, tarn_dtype wanted, tarn_dtype from)
{
    if (row % tarn__dtypes[wanted].block_elements == 0)
        return wanted;
    return row % tarn__dtypes[TARN_Q8_0].block_elements == 0 && !tarn__is_quantized(from) ? TARN_Q8_0 : from;
}

/* The first one is kept as the example of the message. */
void tarn__fallback_add(tarn__fallback *f, int64_t row, tarn_dtype wanted, tarn_dtype chosen)
{
    f->all++;
    if (row % tarn__dtypes[wanted].block_elements == 0)
        return;
    if (f->count++ == 0) {
        f->row = row;
        f->instead = chosen;
    }
}

/* One line for all weights. */
void tarn__fallback_log(const tarn__fallback *f, tarn_dtype wanted)
{
    if (f->count > 0)
        tarn__log(TARN_LOG_NOTICE,
                  "%d of %d matrices cannot be %s: rows of %lld elements are not a multiple of %d; they are %s instead",
                  f->count, f->all, tarn_dtype_name(wanted), (long long)f->row,
                  (int)tarn__dtypes[wanted].block_elements, tarn_dtype_name(f->instead));
}
