/* safetensors_write.c: the safetensors writer.
 *
 * Tensors are retained until tarn_safetensors_finish(), which lays the file out as the reference implementation does:
 * wide element types first, then by name, the header padded with spaces to a multiple of 8 bytes, so that all elements
 * are aligned. The write is atomic. */
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "core/tensor/tensor.h"
#include "formats/safetensors_writer.h"

typedef tarn__safetensors_item item;

/* ---- collecting -------------------------------------------------------------------------------------------------- */

/* jansson's NULL or -1 means no memory, once its input is known to be valid. Returns false. */
static bool no_memory(const char *function)
{
    return tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for the header", function);
}

tarn_safetensors_writer *tarn_safetensors_create(const char *path)
{
    if (tarn_failed())
        return NULL;
    if (!path || !path[0]) {
        tarn__raise(TARN_ERROR_ARGUMENT, "safetensors_create: path is %s", path ? "empty" : "NULL");
        return NULL;
    }
    tarn_safetensors_writer *writer = tarn__alloc(sizeof(*writer));
    if (!writer)
        return NULL;
    writer->names = json_object();
    writer->metadata = json_object();
    if ((writer->path = tarn__string_copy(path)) && writer->names && writer->metadata)
        return writer;
    no_memory("safetensors_create");
    tarn_safetensors_cancel(writer);
    return NULL;
}

void tarn_safetensors_cancel(tarn_safetensors_writer *writer)
{
    if (!writer)
        return;
    for (int i = 0; i < writer->count; i++) {
        tarn__string_free(writer->item[i].name);
        if (writer->item[i].tensor)
            tarn__tensor_release(writer->item[i].tensor);
    }
    tarn__release(writer->item, sizeof(item) * (size_t)writer->capacity);
    json_decref(writer->names);
    json_decref(writer->metadata);
    tarn__string_free(writer->path);
    tarn__release(writer, sizeof(*writer));
}

/* Checks that a string is UTF-8, by jansson's own rules. */
static bool check_text(const char *function, const char *what, const char *text)
{
    if (!text)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, what);
    json_t *copy = json_string(text);
    json_decref(copy);
    return copy || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s '%.200s' is not valid UTF-8", function, what, text);
}

/* False while an error is pending; raises one when the writer is NULL. */
static bool check_writer(const char *function, const tarn_safetensors_writer *writer)
{
    if (tarn_failed())
        return false;
    return writer || tarn__raise(TARN_ERROR_ARGUMENT, "%s: writer is NULL", function);
}

/* Checks an item and appends it under a name. */
static bool add_item(const char *function, tarn_safetensors_writer *writer, const char *name, item new)
{
    if (tarn__is_quantized(new.dtype))
        return tarn__raise(TARN_ERROR_DTYPE,
                           "%s: '%.200s' is %s, which safetensors files cannot hold; convert it with tarn_cast() "
                           "first, or write a GGUF file",
                           function, name, tarn_dtype_name(new.dtype));
    if (!name[0] || strcmp(name, "__metadata__") == 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' cannot be a tensor's name", function, name);
    if (json_object_get(writer->names, name))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: tensor '%.200s' already exists", function, name);
    if (json_object_set_new(writer->names, name, json_true()) != 0)
        return no_memory(function);
    new.name = tarn__list_reserve(&writer->item, writer->count, &writer->capacity, sizeof(item))
                   ? tarn__string_copy(name)
                   : NULL;
    if (!new.name) {
        json_object_del(writer->names, name);
        return false;
    }
    writer->item[writer->count++] = new;
    return true;
}

/* The tensor is retained, not copied: its elements are read by tarn_safetensors_finish(). */
bool tarn_safetensors_add(tarn_safetensors_writer *writer, const char *name, tarn_tensor *tensor)
{
    const char *function = "safetensors_add";
    if (!check_writer(function, writer) || !check_text(function, "name", name) ||
        !tarn__check_any(function, tensor, "the tensor"))
        return false;
    if (!add_item(function, writer, name,
                  (item){.dtype = tensor->view.dtype, .shape = tarn__shape_of(tensor), .tensor = tensor}))
        return false;
    tarn__tensor_retain(tensor);
    return true;
}

/* Elements of a rank that has none are NULL, and the writer of all ranks alone takes them. */
bool tarn__safetensors_add_part(tarn_safetensors_writer *writer, const char *name, const tarn__tensor_part *part)
{
    const char *function = "safetensors_add";
    if (!check_writer(function, writer) || !check_text(function, "name", name) ||
        !add_item(function, writer, name,
                  (item){.dtype = part->dtype,
                         .shape = part->shape,
                         .tensor = part->elements,
                         .begin = part->begin,
                         .previous = part->previous,
                         .next = part->next,
                         .is_part = !part->is_whole}))
        return false;
    if (part->elements)
        tarn__tensor_retain(part->elements);
    return true;
}

bool tarn__safetensors_add_streamed(tarn_safetensors_writer *writer, const char *name, tarn_dtype dtype,
                                    tarn_shape shape, tarn__write_fn write, void *ctx)
{
    const char *function = "safetensors_add";
    return check_writer(function, writer) && check_text(function, "name", name) &&
           add_item(function, writer, name, (item){.dtype = dtype, .shape = shape, .write = write, .ctx = ctx});
}

/* Values are strings: the format has no other type. */
bool tarn_safetensors_add_metadata(tarn_safetensors_writer *writer, const char *key, const char *value)
{
    const char *function = "safetensors_add_metadata";
    if (!check_writer(function, writer) || !check_text(function, "key", key) || !check_text(function, "value", value))
        return false;
    if (json_object_get(writer->metadata, key))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: key '%.200s' already exists", function, key);
    return json_object_set_new(writer->metadata, key, json_string(value)) == 0 || no_memory(function);
}

bool tarn_safetensors_add_checksums(tarn_safetensors_writer *writer)
{
    if (!check_writer("safetensors_add_checksums", writer))
        return false;
    writer->has_sums = true;
    return true;
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

/* The row of a dtype in tarn__safetensors_types. */
static int row_of(tarn_dtype dtype)
{
    int row = 0;
    while (tarn__safetensors_types[row].dtype != dtype)
        row++;
    return row;
}

/* The order in the file: later rows first, then by name. */
static int compare_items(const void *left, const void *right)
{
    const item *a = left, *b = right;
    int by_type = row_of(b->dtype) - row_of(a->dtype);
    return by_type ? by_type : strcmp(a->name, b->name);
}

/* Bytes of a tensor's elements. */
int64_t tarn__safetensors_item_bytes(const item *i)
{
    int64_t bytes = (int64_t)tarn__dtype_bytes(i->dtype);
    for (int axis = 0; axis < i->shape.rank; axis++)
        bytes *= i->shape.size[axis];
    return bytes;
}

/* The header's member for one tensor; NULL: no memory. The caller owns it. */
static json_t *describe(const item *one, int64_t begin)
{
    json_t *shape = json_array();
    for (int i = 0; shape && i < one->shape.rank; i++)
        if (json_array_append_new(shape, json_integer(one->shape.size[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    if (!shape)
        return NULL;
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tarn__safetensors_types[row_of(one->dtype)].name, "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + tarn__safetensors_item_bytes(one)));
}

/* The header's text; the caller frees it with free(). NULL with an error. */
static char *header_text(const tarn_safetensors_writer *writer)
{
    json_t *header = json_object();
    int64_t begin = 0;
    bool good =
        header && (!writer->has_sums || tarn__checksums_reserve(writer->metadata, writer->count)) &&
        (json_object_size(writer->metadata) == 0 || json_object_set(header, "__metadata__", writer->metadata) == 0);
    for (int i = 0; good && i < writer->count; i++) {
        good = json_object_set_new(header, writer->item[i].name, describe(&writer->item[i], begin)) == 0;
        begin += tarn__safetensors_item_bytes(&writer->item[i]);
    }
    char *text = good ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text)
        no_memory("safetensors_finish");
    return text;
}

/* Builds the header's bytes from its text and finds the checksums in them. */
static bool encode_header(const tarn_safetensors_writer *writer, const char *text, tarn__safetensors_head *to)
{
    static const char key[] = "\"" TARN__CHECKSUM_VALUES "\":\"";
    size_t length = strlen(text);
    /* Spaces are valid JSON after the object: they align the data to 8 bytes. */
    uint64_t whole = (length + 7) / 8 * 8;
    if (whole > TARN__SAFETENSORS_MAX_HEADER)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "safetensors_finish: '%s': the header would have %llu bytes; the format allows %d",
                           writer->path, (unsigned long long)whole, TARN__SAFETENSORS_MAX_HEADER);
    *to = (tarn__safetensors_head){.bytes = tarn__alloc(8 + (size_t)whole), .length = 8 + (size_t)whole};
    if (!to->bytes)
        return false;
    memset(to->bytes, ' ', to->length);
    memcpy(to->bytes, &whole, 8);
    memcpy(to->bytes + 8, text, length);
    const char *found = writer->has_sums ? strstr(text, key) : NULL;
    to->values = found ? 8 + (size_t)(found - text) + strlen(key) : 0;
    return true;
}

bool tarn__safetensors_lay_out(tarn_safetensors_writer *writer, tarn__safetensors_head *to)
{
    if (writer->count > 1)
        qsort(writer->item, (size_t)writer->count, sizeof(item), compare_items);
    char *text = header_text(writer);
    bool good = text && encode_header(writer, text, to);
    free(text);
    return good;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Writes the elements; their checksums, computed on the way, go into the header's bytes. */
static bool write_items(const tarn_safetensors_writer *writer, tarn__output *output, tarn__safetensors_head *head)
{
    tarn__xxh64 sum;
    bool good = true;
    for (int i = 0; good && i < writer->count; i++) {
        const item *one = &writer->item[i];
        if (head->values)
            tarn__output_sum_begin(output, &sum);
        good = one->tensor ? tarn__write_tensor_bytes("safetensors_finish", one->tensor, output)
                           : one->write(output, one->ctx);
        if (head->values)
            tarn__checksum_put(head->bytes + head->values, i + 1, tarn__output_sum_end(output));
    }
    return good;
}

bool tarn__safetensors_write_sums(tarn__output *output, tarn__safetensors_head *head)
{
    if (!head->values)
        return true;
    tarn__checksum_put(head->bytes + head->values, 0,
                       tarn__checksum_of_header(head->bytes, head->length, head->values));
    return tarn__output_write_at(output, 0, head->bytes, head->length);
}

/* Writes the header with zeros for checksums, the elements, then the header again with the checksums. */
static bool write_all(const tarn_safetensors_writer *writer, tarn__output *output, tarn__safetensors_head *head)
{
    if (!tarn__output_write(output, head->bytes, head->length) || !write_items(writer, output, head))
        return false;
    return tarn__safetensors_write_sums(output, head);
}

/* Lays out and writes the file; it replaces the target at the end. */
static bool write_file(tarn_safetensors_writer *writer)
{
    tarn__output output;
    tarn__safetensors_head head = {0};
    if (!tarn__safetensors_lay_out(writer, &head))
        return false;
    bool opened = tarn__output_open(&output, "safetensors_finish", writer->path),
         good = opened && write_all(writer, &output, &head);
    tarn__release(head.bytes, head.length);
    if (good)
        return tarn__output_commit(&output);
    if (opened)
        tarn__output_discard(&output);
    return false;
}

/* Frees the writer in any case. */
bool tarn_safetensors_finish(tarn_safetensors_writer *writer)
{
    bool good = check_writer("safetensors_finish", writer) && write_file(writer);
    tarn_safetensors_cancel(writer);
    return good;
}
