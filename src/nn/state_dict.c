/* state_dict.c: parameters and buffers of a module tree to a safetensors file and back, by name.
 *
 * Loading has two passes. The first matches names in both directions and collects every mismatch; the second, which
 * runs only if there is none, reads. Between them checksums are verified, where the file has them. Whatever can still
 * fail then (a dtype conversion, the bytes of a bool) is read into a tensor of its own before the first element of the
 * module is overwritten: a module is loaded completely or not at all. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "formats/safetensors.h"
#include "nn/module.h"

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* Context of a walk that saves. */
typedef struct saving {
    const tarn_module *module;
    tarn_safetensors_writer *writer;
} saving;

static bool save_one(const tarn__parameter *parameter, void *ctx)
{
    saving *s = ctx;
    return tarn_safetensors_add(s->writer, tarn__name_from(s->module, parameter), parameter->tensor);
}

/* Written atomically: the writer renames a temporary file when it is complete. */
bool tarn_module_save(const tarn_module *module, const char *path)
{
    if (tarn_failed() || !tarn__check_module("module_save", module))
        return false;
    saving s = {module, tarn_safetensors_create(path)};
    /* transformers refuses files without this key; names and layouts are PyTorch's. */
    if (s.writer && tarn_safetensors_add_metadata(s.writer, "format", "pt") && tarn_safetensors_add_checksums(s.writer))
        tarn__module_walk_over(module, TARN__MODULE_STATE, save_one, &s);
    bool good = !tarn_failed();
    if (good)
        good = tarn_safetensors_finish(s.writer);
    else
        tarn_safetensors_cancel(s.writer);
    return good || tarn__raise_within("module_save");
}

/* ---- what does not fit ------------------------------------------------------------------------------------------- */

/* A list of names for an error message; what exceeds the buffer is counted. */
typedef struct notes {
    char text[280];
    size_t used;
    int count, omitted;
} notes;

static void note(notes *list, const char *format, ...) TARN_PRINTF(2, 3);
static void note(notes *list, const char *format, ...)
{
    char text[240];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    list->count++;
    if (list->used + strlen(text) + 3 > sizeof(list->text)) {
        list->omitted++;
        return;
    }
    list->used += (size_t)snprintf(list->text + list->used, sizeof(list->text) - list->used, "%s%s",
                                   list->used ? ", " : "", text);
}

/* Appends "; 2 missing: 'a', 'b'". */
static void append_notes(char *text, size_t size, const char *heading, const notes *list)
{
    size_t used = strlen(text);
    if (list->count == 0)
        return;
    used +=
        (size_t)snprintf(text + used, size - used, "%s%d %s: %s", used ? "; " : "", list->count, heading, list->text);
    if (list->omitted && used < size)
        snprintf(text + used, size - used, " … and %d more", list->omitted);
}

/* ---- the first pass ---------------------------------------------------------------------------------------------- */

/* One load: both sides, the plan of the first pass, and its complaints. */
typedef struct loading {
    const tarn_module *module;
    const tarn_safetensors *file;
    tarn_module_load_options options;
    bool *seen;           /* for each tensor of the file: its name is in the module */
    int *source;          /* for each tensor of the module: index of its tensor in the file; -1: none */
    tarn_tensor **staged; /* for each tensor of the module: its values, where they must be read first */
    int at;               /* tensor of the module at which a walk is */
    int tensors, names;   /* counts in the module and in the file */
    notes missing, unexpected, mismatched;
} loading;

typedef struct alias {
    const loading *l;
    const tarn_tensor *tensor;
    int found;
} alias;

static bool look_for_alias(const tarn__parameter *alias_entry, void *ctx)
{
    alias *a = ctx;
    if (alias_entry->tensor == a->tensor)
        a->found = tarn_safetensors_find(a->l->file, tarn__name_from(a->l->module, alias_entry));
    return a->found < 0;
}

/* Index in the file of a tensor of the module, under any of its names; -1: none. Files of tied weights hold one of
 * them. */
static int find_source(const loading *l, const tarn_tensor *tensor)
{
    alias a = {l, tensor, -1};
    tarn__module_walk_over(l->module, TARN__MODULE_STATE | TARN__MODULE_ALIASES, look_for_alias, &a);
    return a.found;
}

/* Shapes must be equal; float dtypes convert to each other, all others must be equal too. */
static bool fits(const tarn_safetensors_entry *entry, const tarn_tensor *tensor)
{
    bool same = entry->shape.rank == tensor->view.rank;
    for (int i = 0; same && i < entry->shape.rank; i++)
        same = entry->shape.size[i] == tensor->view.shape[i];
    return same &&
           (entry->dtype == tensor->view.dtype ||
            (entry->dtype != TARN_DTYPE_COUNT && tarn__is_float(entry->dtype) && tarn__is_float(tensor->view.dtype)));
}

/* For every entry, tied ones too: a tensor of that name in the file must fit, and tied names must hold equal bytes. */
static bool check_alias(const tarn__parameter *alias_entry, void *ctx)
{
    loading *l = ctx;
    const char *name = tarn__name_from(l->module, alias_entry);
    int index = tarn_safetensors_find(l->file, name), source = find_source(l, alias_entry->tensor);
    tarn_safetensors_entry entry, other;
    if (index < 0 || !tarn_safetensors_info(l->file, index, &entry) || !tarn_safetensors_info(l->file, source, &other))
        return true;
    l->seen[index] = true;
    if (!fits(&entry, alias_entry->tensor))
        note(&l->mismatched, "'%.90s' is %s %s in the file and %s %s in the module", name,
             tarn__shape_string(entry.shape.size, entry.shape.rank, &(tarn__shape_buffer){{0}}), entry.dtype_name,
             TARN__SHAPE_STRING(alias_entry->tensor), tarn_dtype_name(alias_entry->tensor->view.dtype));
    else if (source != index &&
             (entry.bytes != other.bytes || memcmp(tarn__safetensors_data(l->file, index),
                                                   tarn__safetensors_data(l->file, source), (size_t)entry.bytes) != 0))
        note(&l->mismatched, "'%.90s' and '%.90s' differ, but are one tensor in the module", other.name, name);
    return true;
}

/* For every tensor once: where its values come from. */
static bool check_tensor(const tarn__parameter *parameter, void *ctx)
{
    loading *l = ctx;
    tarn_safetensors_entry entry;
    int source = find_source(l, parameter->tensor);
    if (source < 0)
        note(&l->missing, "'%.90s'", tarn__name_from(l->module, parameter));
    bool good = source >= 0 && tarn_safetensors_info(l->file, source, &entry) && fits(&entry, parameter->tensor);
    l->source[l->at++] = good ? source : -1;
    return true;
}

/* The first pass. One error lists everything that is wrong, as far as the options do not allow it. */
static bool check_names(loading *l, const char *path)
{
    tarn__module_walk_over(l->module, TARN__MODULE_STATE | TARN__MODULE_ALIASES, check_alias, l);
    tarn__module_walk_over(l->module, TARN__MODULE_STATE, check_tensor, l);
    for (int i = 0; i < l->names; i++)
        if (!l->seen[i])
            note(&l->unexpected, "'%.90s'", tarn_safetensors_name(l->file, i));
    char text[900] = "";
    if (!l->options.allow_missing)
        append_notes(text, sizeof(text), "missing", &l->missing);
    if (!l->options.allow_unexpected)
        append_notes(text, sizeof(text), "unexpected", &l->unexpected);
    if (!l->options.skip_mismatched)
        append_notes(text, sizeof(text), "that do not fit", &l->mismatched);
    return !text[0] || tarn__raise(TARN_ERROR_FORMAT, "module_load: '%.100s': %s; nothing was loaded", path, text);
}

/* ---- the second pass --------------------------------------------------------------------------------------------- */

/* Reads what may fail on the way (conversions, bools) into tensors of the open scope; the rest is read in place later.
 */
static bool stage(const tarn__parameter *parameter, void *ctx)
{
    loading *l = ctx;
    int at = l->at++;
    tarn_safetensors_entry entry;
    if (l->source[at] < 0)
        return true;
    if (!tarn_safetensors_info(l->file, l->source[at], &entry))
        return false;
    if (entry.dtype == parameter->tensor->view.dtype && entry.dtype != TARN_BOOL)
        return true;
    l->staged[at] = tarn_safetensors_read(l->file, entry.name, tarn__device(parameter->tensor));
    return l->staged[at] != NULL;
}

static bool load(const tarn__parameter *parameter, void *ctx)
{
    loading *l = ctx;
    int at = l->at++;
    if (l->source[at] < 0)
        return true;
    if (l->staged[at])
        return tarn_copy(parameter->tensor, l->staged[at]);
    return tarn_safetensors_read_into(l->file, tarn_safetensors_name(l->file, l->source[at]), parameter->tensor);
}

/* The two passes. Staged tensors belong to the scope opened between them. */
static bool load_all(loading *l, const char *path)
{
    if (!check_names(l, path) || !tarn__safetensors_verify("module_load", l->file))
        return false;
    tarn_scope *scope = tarn_scope_open();
    l->at = 0;
    if (scope)
        tarn__module_walk_over(l->module, TARN__MODULE_STATE, stage, l);
    l->at = 0;
    if (!tarn_failed())
        tarn__module_walk_over(l->module, TARN__MODULE_STATE, load, l);
    tarn_scope_close(scope);
    return !tarn_failed() || tarn__raise_within("module_load");
}

static bool load_from(loading *l, const char *path)
{
    l->tensors = tarn__module_count(l->module, TARN__MODULE_STATE);
    l->names = tarn_safetensors_count(l->file);
    size_t seen = sizeof(bool) * (size_t)l->names, source = sizeof(int) * (size_t)l->tensors,
           staged = sizeof(tarn_tensor *) * (size_t)l->tensors;
    l->seen = tarn__alloc(seen);
    l->source = tarn__alloc(source);
    l->staged = tarn__alloc(staged);
    bool good = l->seen && l->source && l->staged && load_all(l, path);
    tarn__release(l->seen, seen);
    tarn__release(l->source, source);
    tarn__release(l->staged, staged);
    return good;
}

bool tarn__module_load_file(tarn_module *module, const tarn_safetensors *file, const char *path,
                            const tarn_module_load_options *options)
{
    loading l = {.module = module, .file = file, .options = *options};
    return load_from(&l, path);
}

bool tarn_module_load_sized(tarn_module *module, const char *path, const tarn_module_load_options *options,
                            size_t options_size)
{
    tarn_module_load_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed() || !tarn__check_module("module_load", module))
        return false;
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (!file)
        return tarn__raise_within("module_load");
    bool good = tarn__module_load_file(module, file, path, &chosen);
    tarn_safetensors_close(file);
    return good;
}
