/* inspect.c: `tarn inspect`: metadata and tensors of a GGUF or safetensors file, or of a folder that has one.
 *
 * Only headers are read; tensor data is not. Files come from anywhere, so every string is escaped before it is printed.
 * A table shortens long values; --json prints all of them, one object per key and per tensor, then a total. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tarn/gguf.h>
#include <tarn/safetensors.h>

#include "cli/cli.h"

enum { SHOWN = 6, TEXT_SHOWN = 72 }; /* limits of a table: values per array, bytes per string */

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* A string in quotes on one line, truncated if it is long. A byte takes at most 6 characters when escaped. */
static void print_text(const char *text, size_t length)
{
    char line[6 * TEXT_SHOWN + 8];
    size_t shown = length < TEXT_SHOWN ? length : TEXT_SHOWN;
    while (shown < length && shown > TEXT_SHOWN - 4 && ((unsigned char)text[shown] & 0xC0) == 0x80)
        shown--; /* never inside a UTF-8 sequence */
    tarn_string_escape(line, sizeof(line), text, shown, false);
    printf("\"%s", line);
    printf(shown < length ? "\"… (%zu bytes)" : "\"", length);
}

/* A name, padded to `width`. */
static void print_name(const char *name, int width)
{
    printf("%-*s", width, tarn__escaped(name));
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* A tensor, as both formats describe it. Strings are borrowed from the file. */
typedef struct row {
    const char *name, *type;
    tarn_shape shape;
    int64_t position, bytes;
} row;

/* State of the output: totals are added up row by row. */
typedef struct listing {
    bool json;
    int widest; /* bytes of the longest name: the width of the column */
    int64_t bytes, elements;
    const char *mixture; /* of a GGUF file's types, NULL: unknown */
} listing;

static void print_row(listing *l, const row *r)
{
    /* rank is bounded, so every shape fits */
    char shape[192] = "[";
    int64_t count = 1;
    for (int i = 0; i < r->shape.rank; i++) {
        size_t at = strlen(shape);
        snprintf(shape + at, sizeof(shape) - at, "%s%lld", i ? ", " : "", (long long)r->shape.size[i]);
        count *= r->shape.size[i];
    }
    l->bytes += r->bytes;
    l->elements += count;
    if (!l->json) {
        print_name(r->name, l->widest);
        printf("  %-8s %s]  %s\n", tarn__escaped(r->type), shape, tarn__bytes_text(r->bytes));
        return;
    }
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "tensor", r->name);
    tarn__json_string(&json, "type", r->type);
    tarn__json_shape(&json, "shape", r->shape);
    tarn__json_int(&json, "bytes", r->bytes);
    tarn__json_int(&json, "position", r->position);
    tarn__json_end(&json);
}

/* The last line. `bytes` is of the tensors alone, without header and padding. */
static void print_total(const listing *l, const char *path, const char *format, int tensors)
{
    if (!l->json) {
        printf("%d tensors, %lld elements, %s\n", tensors, (long long)l->elements, tarn__bytes_text(l->bytes));
        return;
    }
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "file", path);
    tarn__json_string(&json, "format", format);
    if (l->mixture)
        tarn__json_string(&json, "file_type", l->mixture);
    tarn__json_int(&json, "tensors", tensors);
    tarn__json_int(&json, "elements", l->elements);
    tarn__json_int(&json, "bytes", l->bytes);
    tarn__json_end(&json);
}

/* Metadata of safetensors: strings only. */
static void print_pair(bool as_json, const char *key, const char *value)
{
    tarn__json json = {stdout, false};
    if (as_json) {
        tarn__json_open(&json, NULL, '{');
        tarn__json_string(&json, "key", key);
        tarn__json_bytes(&json, "value", value, strlen(value));
        tarn__json_end(&json);
        return;
    }
    print_name(key, 0);
    printf(": ");
    print_text(value, strlen(value));
    printf("\n");
}

/* ---- GGUF -------------------------------------------------------------------------------------------------------- */

/* The numbers of an array, or one number. NULL for strings and nested arrays, or without memory. The caller frees them.
 * A double is exact for all types but 64-bit integers, for which see is_exact(). */
static double *numbers_of(const tarn_gguf *file, const tarn_gguf_value *v)
{
    bool is_number = v->element != TARN_GGUF_STRING && v->element != TARN_GGUF_ARRAY;
    /* one more than needed: an empty array must not be NULL */
    double *values = is_number ? malloc(sizeof(double) * (size_t)(v->count + 1)) : NULL;
    bool one = false, good = values != NULL;
    if (good && v->type == TARN_GGUF_BOOL) {
        good = tarn_gguf_bool(file, v->key, &one);
        values[0] = one;
    } else if (good) {
        good = v->type == TARN_GGUF_ARRAY ? tarn_gguf_reals(file, v->key, values, v->count)
                                          : tarn_gguf_real(file, v->key, values);
    }
    if (good)
        return values;
    free(values);
    return NULL;
}

/* Booleans count as integers; callers check them first. */
static bool is_whole(tarn_gguf_type type)
{
    return type != TARN_GGUF_F32 && type != TARN_GGUF_F64;
}

/* 7 digits are what an f32 has. */
static void print_number(tarn_gguf_type type, double value)
{
    if (type == TARN_GGUF_BOOL)
        printf(value != 0 ? "true" : "false");
    else
        printf(is_whole(type) ? "%.0f" : "%.7g", value);
}

/* Integers beyond 9e15 are not exact in a double and are printed with its 17 digits. */
static void print_number_json(tarn__json *json, const char *key, tarn_gguf_type type, double value)
{
    if (type == TARN_GGUF_BOOL)
        tarn__json_bool(json, key, value != 0);
    else if (is_whole(type) && value > -9e15 && value < 9e15)
        tarn__json_int(json, key, (int64_t)value);
    else
        tarn__json_precise(json, key, value, type == TARN_GGUF_F32 ? 9 : 17);
}

/* True for a single integer that fits 64 bits signed: it is printed with all digits. */
static bool is_exact(const tarn_gguf *file, const tarn_gguf_value *v, int64_t *whole)
{
    if (v->type == TARN_GGUF_BOOL || v->type == TARN_GGUF_STRING || v->type == TARN_GGUF_ARRAY || !is_whole(v->type))
        return false;
    bool good = tarn_gguf_int(file, v->key, INT64_MIN, INT64_MAX, whole);
    tarn_clear_error(); /* a larger u64: the double is close */
    return good;
}

/* "tokenizer.ggml.scores: 32000 of f32: 0, 0, 0 …". `numbers` may be NULL (see numbers_of()). */
static void print_value(const tarn_gguf *file, const tarn_gguf_value *v, const double *numbers)
{
    size_t length;
    const char *text;
    int64_t whole;
    print_name(v->key, 0);
    printf(": ");
    if (v->type == TARN_GGUF_ARRAY)
        printf("%lld of %s: ", (long long)v->count, tarn_gguf_type_name(v->element));
    for (int64_t i = 0; i < v->count && i < SHOWN; i++) {
        printf(i ? ", " : "");
        if (is_exact(file, v, &whole))
            printf("%lld", (long long)whole);
        else if (numbers)
            print_number(v->element, numbers[i]);
        else if (v->type == TARN_GGUF_STRING && (text = tarn_gguf_string(file, v->key, &length)))
            print_text(text, length);
        else if (v->element == TARN_GGUF_STRING && (text = tarn_gguf_string_at(file, v->key, i, &length)))
            print_text(text, length);
        else
            printf("[…]");
    }
    printf(v->count > SHOWN ? " …\n" : "\n");
}

/* All values; nested arrays become null. */
static void print_value_json(const tarn_gguf *file, const tarn_gguf_value *v, const double *numbers)
{
    size_t length;
    const char *text;
    int64_t whole;
    tarn__json json = {stdout, false};
    bool is_list = v->type == TARN_GGUF_ARRAY;
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "key", v->key);
    tarn__json_string(&json, "type", tarn_gguf_type_name(v->type));
    if (is_list) {
        tarn__json_string(&json, "element_type", tarn_gguf_type_name(v->element));
        tarn__json_open(&json, "value", '[');
    }
    for (int64_t i = 0; i < v->count; i++) {
        const char *key = is_list ? NULL : "value";
        if (is_exact(file, v, &whole))
            tarn__json_int(&json, key, whole);
        else if (numbers)
            print_number_json(&json, key, v->element, numbers[i]);
        else if (v->type == TARN_GGUF_STRING && (text = tarn_gguf_string(file, v->key, &length)))
            tarn__json_bytes(&json, key, text, length);
        else if (v->element == TARN_GGUF_STRING && (text = tarn_gguf_string_at(file, v->key, i, &length)))
            tarn__json_bytes(&json, key, text, length);
        else
            tarn__json_null(&json, key);
    }
    if (is_list)
        tarn__json_close(&json, ']');
    tarn__json_end(&json);
}

/* The mixture of types that the file names, or NULL. Its metadata may be of any type. */
static const char *mixture_of(const tarn_gguf *file)
{
    tarn_gguf_value v;
    int64_t number;
    bool is_int = tarn_gguf_has(file, "general.file_type", &v) && v.type == TARN_GGUF_U32;
    return is_int && tarn_gguf_int(file, v.key, 0, UINT32_MAX, &number) ? tarn_gguf_file_type_name(number) : NULL;
}

/* " in 3 shards", "" for one file. */
static const char *shards_of(const tarn_gguf *file)
{
    static char text[32];
    int64_t count = 0;
    if (tarn_gguf_has(file, "split.count", NULL))
        tarn_gguf_int(file, "split.count", 0, UINT16_MAX, &count);
    snprintf(text, sizeof(text), " in %lld shards", (long long)count);
    return count > 1 ? text : "";
}

/* All metadata before all tensors, as in the file. Reading stops at the first error, which the caller reports. */
static void print_gguf(const tarn_gguf *file, const char *path, listing *l)
{
    tarn_gguf_value v;
    tarn_gguf_entry e;
    int tensors = tarn_gguf_count(file);
    l->mixture = mixture_of(file);
    if (!l->json)
        tarn__heading("%s: GGUF%s%s%s, %d keys, %d tensors", tarn__escaped(path), l->mixture ? " of type " : "",
                      l->mixture ? l->mixture : "", shards_of(file), tarn_gguf_metadata_count(file), tensors);
    for (int i = 0; i < tarn_gguf_metadata_count(file) && tarn_gguf_metadata_at(file, i, &v); i++) {
        double *numbers = numbers_of(file, &v);
        (l->json ? print_value_json : print_value)(file, &v, numbers);
        free(numbers);
    }
    for (int i = 0; i < tensors; i++)
        l->widest = (int)strlen(tarn_gguf_name(file, i)) > l->widest ? (int)strlen(tarn_gguf_name(file, i)) : l->widest;
    for (int i = 0; i < tensors && tarn_gguf_info(file, i, &e); i++)
        print_row(l, &(row){e.name, e.dtype_name, e.shape, e.position, e.bytes});
    print_total(l, path, "gguf", tensors);
}

/* An error may also come from a value in the middle of the file: the rows before it are already printed. */
static int inspect_gguf(const char *path, bool json)
{
    listing l = {.json = json};
    tarn_gguf *file = tarn_gguf_open(path);
    if (file)
        print_gguf(file, path, &l);
    tarn_gguf_close(file);
    return tarn_failed() ? tarn__print_error("inspect") : TARN__DONE;
}

/* ---- safetensors ------------------------------------------------------------------------------------------------- */

/* Same order as for GGUF. An index file lists the tensors of all its shards. */
static void print_safetensors(const tarn_safetensors *file, const char *path, listing *l)
{
    tarn_safetensors_entry e;
    const char *key, *value;
    int tensors = tarn_safetensors_count(file);
    if (!l->json)
        tarn__heading("%s: safetensors, %d tensors", tarn__escaped(path), tensors);
    for (int i = 0; i < tarn_safetensors_metadata_count(file) && tarn_safetensors_metadata_at(file, i, &key, &value);
         i++)
        if (l->json || strcmp(key, "tarn.checksum.values") != 0) /* a screenful of digits */
            print_pair(l->json, key, value);
    for (int i = 0; i < tensors; i++)
        l->widest = (int)strlen(tarn_safetensors_name(file, i)) > l->widest
                        ? (int)strlen(tarn_safetensors_name(file, i))
                        : l->widest;
    for (int i = 0; i < tensors && tarn_safetensors_info(file, i, &e); i++)
        print_row(l, &(row){e.name, e.dtype_name, e.shape, e.position, e.bytes});
    print_total(l, path, "safetensors", tensors);
}

/* Same as inspect_gguf(). */
static int inspect_safetensors(const char *path, bool json)
{
    listing l = {.json = json};
    tarn_safetensors *file = tarn_safetensors_open(path);
    if (file)
        print_safetensors(file, path, &l);
    tarn_safetensors_close(file);
    return tarn_failed() ? tarn__print_error("inspect") : TARN__DONE;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* True if the path exists, as a file or a folder. */
static bool is_there(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0;
}

/* Prints a configuration file verbatim, if it exists; at most 1 MiB of it. Not a regular file, a FIFO for example:
 * ignored, since reading could block. */
static void print_config(const char *path, const char *name, bool as_json)
{
    /* static: too large for the stack */
    static char text[1 << 20];
    FILE *file = tarn__input_regular(path);
    size_t length = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (!file)
        return;
    fclose(file);
    tarn__json json = {stdout, false};
    if (as_json) {
        tarn__json_open(&json, NULL, '{');
        tarn__json_string(&json, "key", name);
        tarn__json_bytes(&json, "value", text, length);
        tarn__json_end(&json);
    } else {
        tarn__heading("%s", tarn__escaped(path));
        tarn__print_lines(text, length);
        printf(length && text[length - 1] == '\n' ? "" : "\n");
    }
}

/* Configurations first, then the first weight file found; an index stands for all of its shards. */
static int inspect_folder(const char *folder, bool json)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "adapter_model.safetensors"};
    static const char *const configs[] = {"config.json", "adapter_config.json"};
    /* a longer name is truncated, and then not found */
    char path[4096];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, configs[i]);
        print_config(path, configs[i], json);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        if (is_there(path))
            return inspect_safetensors(path, json);
    }
    fprintf(stderr,
            "tarn inspect: '%s' has no model.safetensors, no model.safetensors.index.json and no "
            "adapter_model.safetensors\n",
            tarn__escaped(folder));
    return TARN__FAILED;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* True when a file starts with the magic of GGUF, whatever its name. */
static bool begins_as_gguf(const char *path)
{
    char magic[4] = {0};
    FILE *file = tarn__input_regular(path);
    bool is = file && fread(magic, 1, 4, file) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (file)
        fclose(file);
    return is;
}

/* A folder, a GGUF file, or else a safetensors file, whose reader reports anything that it is not. */
int tarn__inspect(const tarn__options *options)
{
    const char *path = options->words[0], *end = strrchr(path, '.');
    struct stat about;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return inspect_folder(path, options->json);
    /* by content, then by name: a damaged .gguf gets the error of its own reader */
    return begins_as_gguf(path) || (end && strcmp(end, ".gguf") == 0) ? inspect_gguf(path, options->json)
                                                                      : inspect_safetensors(path, options->json);
}
