/* summary.c: tarn_module_summary(): a table of a module tree with output shapes, parameters and memory.
 *
 * Shapes come from one forward pass over zeros with an observer, in evaluation mode and without a tape. Training flags
 * and the random generator are restored, so that running statistics and later draws are unaffected. */
#include <stdarg.h>
#include <string.h>

#include "base/memory.h"
#include "core/tensor/random.h"
#include "nn/module.h"

#define MIN_COLUMN 24 /* characters of the first two columns */

/* One module of the table. */
typedef struct row {
    tarn_module *module;
    char *label; /* "  0.body  sequential", owned */
    bool was_training;
    bool ran;
    tarn_shape shape; /* of the first output, where a module is called several times */
    int64_t parameters, bytes, output_bytes;
} row;

/* The table under construction; rows in the order of a visit. */
typedef struct table {
    tarn__observer observer; /* first, so that the observer's callback can cast to the table */
    tarn_module *top;
    row *row;
    int count, capacity;
    int64_t trained, frozen, trained_bytes, frozen_bytes, buffer_bytes;
} table;

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static bool count_module(tarn_module *module, const char *path, void *ctx)
{
    (void)module, (void)path;
    ++*(int *)ctx;
    return true;
}

/* Depth in the tree, by the dots of a path. */
static int depth_of(const char *path)
{
    int depth = path[0] != 0;
    for (; *path; path++)
        depth += *path == '.';
    return depth;
}

/* The name indented by depth, then the kind. Owned by the row. */
static char *label_of(const tarn_module *module, const char *path)
{
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    int indent = 2 * depth_of(path),
        length = snprintf(NULL, 0, "%*s%s%s%s", indent, "", name, name[0] ? " " : "", module->kind);
    char *label = tarn__alloc((size_t)length + 1);
    if (label)
        snprintf(label, (size_t)length + 1, "%*s%s%s%s", indent, "", name, name[0] ? " " : "", module->kind);
    return label;
}

/* A tied tensor counts in the row of its first entry alone. */
static void count_tensor(table *t, row *r, const tarn__parameter *parameter)
{
    const tarn_tensor *tensor = parameter->tensor;
    int64_t count = tarn__view_count(&tensor->view), bytes = tarn_bytes(tensor);
    r->bytes += bytes;
    if (parameter->is_buffer) {
        t->buffer_bytes += bytes;
        return;
    }
    r->parameters += count;
    *(tensor->requires_grad ? &t->trained : &t->frozen) += count;
    *(tensor->requires_grad ? &t->trained_bytes : &t->frozen_bytes) += bytes;
}

/* One row per module in the order of a visit: parents before children. */
static bool add_row(tarn_module *module, const char *path, void *ctx)
{
    table *t = ctx;
    row *r = &t->row[t->count];
    *r = (row){.module = module, .label = label_of(module, path), .was_training = module->training};
    if (!r->label)
        return false;
    t->count++;
    for (int i = 0; i < module->parameters; i++)
        if (tarn__module_first(t->top, module->parameter[i].tensor) == &module->parameter[i])
            count_tensor(t, r, &module->parameter[i]);
    return true;
}

/* Two visits: one to size the array, one to fill it. */
static bool list_rows(table *t)
{
    if (!tarn_module_visit(t->top, count_module, &t->capacity))
        return false;
    t->row = tarn__alloc(sizeof(row) * (size_t)t->capacity);
    return t->row && tarn_module_visit(t->top, add_row, t);
}

static void release_rows(table *t)
{
    for (int i = 0; i < t->count; i++)
        tarn__string_free(t->row[i].label);
    tarn__release(t->row, sizeof(row) * (size_t)t->capacity);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* The first call of a module gives its shape; all calls add to its bytes. Linear in the number of modules. */
static void on_output(tarn__observer *observer, tarn_module *module, const tarn_tensor *y)
{
    table *t = (table *)observer;
    for (int i = 0; i < t->count; i++) {
        row *r = &t->row[i];
        if (r->module != module)
            continue;
        if (!r->ran)
            r->shape = tarn__shape_of(y);
        r->ran = true;
        r->output_bytes += tarn_bytes(y);
        return;
    }
}

/* The device of the first tensor that the module has. */
static bool take_device(const tarn__parameter *parameter, void *device)
{
    *(tarn_device *)device = tarn__device(parameter->tensor);
    return false;
}

/* An error of the forward pass is the summary's. The input goes to the device of the first parameter. */
static bool find_shapes(table *t, tarn_shape input, tarn_dtype dtype)
{
    tarn_device device = tarn_device_cpu();
    tarn__module_walk_over(t->top, TARN__MODULE_STATE, take_device, &device);
    tarn__rng_state generator = tarn__random_save();
    tarn_scope *scope = tarn_scope_open();
    if (!scope)
        return false;
    tarn_module_train(t->top, false);
    tarn_no_grad_open();
    t->observer.on_output = on_output;
    tarn__observer *before = tarn__observe_forward(&t->observer);
    tarn_forward(t->top, tarn_zeros(input, dtype, device));
    tarn__observe_forward(before);
    tarn_no_grad_close();
    for (int i = 0; i < t->count; i++)
        t->row[i].module->training = t->row[i].was_training;
    tarn_scope_close(scope);
    tarn__random_restore(&generator);
    return !tarn_failed();
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

typedef struct writing {
    char *text; /* NULL: only measure the length */
    size_t used, capacity;
} writing;

static void put(writing *w, const char *format, ...) TARN_PRINTF(2, 3);
/* Appends; without a buffer only the length is counted. */
static void put(writing *w, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vsnprintf(w->text ? w->text + w->used : NULL, w->text ? w->capacity - w->used : 0, format, list);
    va_end(list);
    w->used += length > 0 ? (size_t)length : 0;
}

/* "1.5 MiB" */
static const char *bytes_text(int64_t bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

/* Columns are as wide as their longest entry. */
static void put_table(writing *w, const table *t, tarn_shape input, tarn_dtype dtype)
{
    int label = MIN_COLUMN, shape = MIN_COLUMN;
    int64_t outputs = 0;
    char bytes[32];
    for (int i = 0; i < t->count; i++) {
        const row *r = &t->row[i];
        int label_width = (int)strlen(r->label),
            shape_width = (int)strlen(tarn__shape_string(r->shape.size, r->shape.rank, &(tarn__shape_buffer){{0}}));
        label = label_width > label ? label_width : label;
        shape = shape_width > shape ? shape_width : shape;
        outputs += r->module->children ? 0 : r->output_bytes; /* containers pass on the outputs of their children */
    }
    put(w, "%-*s  %-*s  %12s  %10s\n", label, "layer", shape, "output", "parameters", "memory");
    for (int i = 0; i < t->count; i++) {
        const row *r = &t->row[i];
        const char *sizes =
            r->ran ? tarn__shape_string(r->shape.size, r->shape.rank, &(tarn__shape_buffer){{0}}) : "not used";
        put(w, "%-*s  %-*s  %12lld  %10s\n", label, r->label, shape, sizes, (long long)r->parameters,
            bytes_text(r->bytes, bytes));
    }
    put(w, "trained  %lld parameters, %s\n", (long long)t->trained, bytes_text(t->trained_bytes, bytes));
    put(w, "frozen   %lld parameters, %s\n", (long long)t->frozen, bytes_text(t->frozen_bytes, bytes));
    put(w, "buffers  %s\n", bytes_text(t->buffer_bytes, bytes));
    put(w, "results  %s for an input %s of %s\n", bytes_text(outputs, bytes),
        tarn__shape_string(input.size, input.rank, &(tarn__shape_buffer){{0}}), tarn_dtype_name(dtype));
}

/* Prints the table twice: to measure it, and into a string of that size, which the caller frees. NULL with an error. */
static char *make_text(const char *function, tarn_module *module, tarn_shape input, tarn_dtype dtype)
{
    if (tarn_failed() || !tarn__check_module(function, module))
        return NULL;
    table t = {.top = module};
    writing w = {0};
    if (list_rows(&t) && find_shapes(&t, input, dtype)) {
        put_table(&w, &t, input, dtype);
        w = (writing){.text = tarn__alloc(w.used + 1), .capacity = w.used + 1};
        if (w.text)
            put_table(&w, &t, input, dtype);
    }
    release_rows(&t);
    if (!w.text)
        tarn__raise_within(function);
    return w.text;
}

char *tarn_module_summary_string(tarn_module *module, tarn_shape input, tarn_dtype dtype)
{
    return make_text("module_summary_string", module, input, dtype);
}

bool tarn_module_summary(tarn_module *module, tarn_shape input, tarn_dtype dtype, FILE *file)
{
    if (!tarn_failed() && !file)
        return tarn__raise(TARN_ERROR_ARGUMENT, "module_summary: the file is NULL");
    char *text = make_text("module_summary", module, input, dtype);
    bool good = text && fputs(text, file) >= 0;
    if (text && !good)
        tarn__raise(TARN_ERROR_IO, "module_summary: the file could not be written");
    tarn_string_free(text);
    return good;
}

void tarn_string_free(char *text)
{
    tarn__string_free(text);
}
