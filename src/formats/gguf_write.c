/* gguf_write.c: the GGUF writer.
 *
 * Metadata is encoded as it is added. Tensors are retained, laid out and written by tarn_gguf_finish(), in the order
 * they were added, each at a multiple of the alignment, as the gguf package does. The write is atomic. */
#include <string.h>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "core/tensor/tensor.h"
#include "formats/gguf.h"
#include "formats/tensor_bytes.h"

#define MAX_AXES 4

/* A tensor to be written: one that exists, or a callback that writes its elements. */
typedef struct item {
    char *name; /* owned */
    int type;   /* row of tarn__gguf_dtypes */
    tarn_shape shape;
    int64_t bytes;        /* of its elements, without padding */
    tarn_tensor *tensor;  /* retained; or NULL: */
    tarn__write_fn write; /* writes the elements */
    void *ctx;            /* of write; borrowed */
} item;

struct tarn_gguf_writer {
    char *path;
    tarn__buffer metadata, names; /* bytes; names: of keys, each terminated */
    uint64_t keys;
    uint32_t alignment; /* of the data, from general.alignment */
    item *item;         /* [count], in file order */
    int count, capacity;
};

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Integers are appended as they are in memory: gguf_types.c asserts a little-endian machine. */
static bool put(tarn__buffer *to, const void *from, size_t count)
{
    return tarn__buffer_add(to, from, count, 1);
}

static bool put_u32(tarn__buffer *to, uint32_t value)
{
    return put(to, &value, sizeof(value));
}

static bool put_u64(tarn__buffer *to, uint64_t value)
{
    return put(to, &value, sizeof(value));
}

static bool put_string(tarn__buffer *to, const char *text, size_t length)
{
    return put_u64(to, length) && put(to, text, length);
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

tarn_gguf_writer *tarn_gguf_create(const char *path)
{
    if (tarn_failed())
        return NULL;
    if (!path || !path[0]) {
        tarn__raise(TARN_ERROR_ARGUMENT, "gguf_create: path is %s", path ? "empty" : "NULL");
        return NULL;
    }
    tarn_gguf_writer *writer = tarn__alloc(sizeof(*writer));
    if (!writer)
        return NULL;
    writer->alignment = TARN__GGUF_ALIGNMENT;
    if ((writer->path = tarn__string_copy(path)))
        return writer;
    tarn_gguf_cancel(writer);
    return NULL;
}

void tarn_gguf_cancel(tarn_gguf_writer *writer)
{
    if (!writer)
        return;
    for (int i = 0; i < writer->count; i++) {
        tarn__string_free(writer->item[i].name);
        tarn__tensor_release(writer->item[i].tensor);
    }
    tarn__release(writer->item, sizeof(item) * (size_t)writer->capacity);
    tarn__buffer_free(&writer->metadata, 1);
    tarn__buffer_free(&writer->names, 1);
    tarn__string_free(writer->path);
    tarn__release(writer, sizeof(*writer));
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* False while an error is pending; raises one when the writer is NULL. */
static bool check_writer(const char *function, const tarn_gguf_writer *writer)
{
    if (tarn_failed())
        return false;
    return writer || tarn__raise(TARN_ERROR_ARGUMENT, "%s: writer is NULL", function);
}

/* Checks the length and encoding of a key or a tensor's name. */
static bool check_name(const char *function, const char *what, const char *name)
{
    if (!name)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, what);
    size_t length = strlen(name);
    if (length == 0 || length > TARN__GGUF_MAX_NAME)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s has %zu bytes; from 1 to %d are possible", function, what,
                           length, TARN__GGUF_MAX_NAME);
    return tarn__utf8_valid(name) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s '%.200s' is not valid UTF-8", function, what, name);
}

/* A linear search: files have dozens of keys. */
static bool has_key(const tarn_gguf_writer *writer, const char *key)
{
    for (size_t at = 0; at < writer->names.count; at += strlen(writer->names.data + at) + 1)
        if (strcmp(writer->names.data + at, key) == 0)
            return true;
    return false;
}

/* Checks a key and appends its name; the value follows. */
static bool begin_key(const char *function, tarn_gguf_writer *writer, const char *key)
{
    if (!check_writer(function, writer) || !check_name(function, "key", key))
        return false;
    if (has_key(writer, key))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: key '%.*s' already exists", function, TARN__GGUF_SHOWN_BYTES, key);
    return put_string(&writer->metadata, key, strlen(key));
}

/* Ends a key begun at offset `from`: on failure its bytes are removed, so that a caller may continue without it. */
static bool end_key(tarn_gguf_writer *writer, const char *key, size_t from, bool good)
{
    if (good && put(&writer->names, key, strlen(key) + 1)) {
        writer->keys++;
        return true;
    }
    if (writer)
        writer->metadata.count = from;
    return false;
}

/* Where the next key begins; the writer is checked later. */
static size_t metadata_bytes(const tarn_gguf_writer *writer)
{
    return writer ? writer->metadata.count : 0;
}

/* Checks type, count and values of an array of numbers or bools. */
static bool check_number(const char *function, tarn_gguf_type type, const void *values, int64_t count)
{
    if ((unsigned)type >= TARN_GGUF_TYPE_COUNT || type == TARN_GGUF_STRING || type == TARN_GGUF_ARRAY)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s (%d) is not a type of numbers or bools", function,
                           tarn_gguf_type_name(type), (int)type);
    if (count < 0 || count > INT64_MAX / 8)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: count is %lld; it cannot be negative or that large", function,
                           (long long)count);
    if (!values && count > 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: values is NULL", function);
    for (int64_t i = 0; type == TARN_GGUF_BOOL && i < count; i++)
        if (((const uint8_t *)values)[i] > 1)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: value %lld is %d, not a bool", function, (long long)i,
                               ((const uint8_t *)values)[i]);
    return true;
}

/* Takes over general.alignment, by which tensors are laid out. */
static bool apply_alignment(const char *function, tarn_gguf_writer *writer, const char *key, tarn_gguf_type type,
                            const void *value)
{
    uint32_t alignment = 0;
    if (strcmp(key, "general.alignment") != 0)
        return true;
    if (type == TARN_GGUF_U32)
        memcpy(&alignment, value, sizeof(alignment));
    if (alignment < 8 || alignment > TARN__GGUF_MAX_ALIGNMENT || (alignment & (alignment - 1)))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: general.alignment must be a u32 that is a power of two from 8 to %d", function,
                           TARN__GGUF_MAX_ALIGNMENT);
    writer->alignment = alignment;
    return true;
}

/* All add functions follow one pattern: remember the size, begin the key, append, and undo everything if a step
 * fails. */
bool tarn_gguf_add_value(tarn_gguf_writer *writer, const char *key, tarn_gguf_type type, const void *value)
{
    const char *function = "gguf_add_value";
    size_t from = metadata_bytes(writer);
    bool good = begin_key(function, writer, key) && check_number(function, type, value, 1) &&
                apply_alignment(function, writer, key, type, value) && put_u32(&writer->metadata, type) &&
                put(&writer->metadata, value, (size_t)tarn__gguf_type_bytes(type));
    return end_key(writer, key, from, good);
}

/* general.alignment as a string or array would leave the layout unclear to readers. */
static bool check_no_alignment(const char *function, const char *key)
{
    return strcmp(key, "general.alignment") != 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: general.alignment must be a u32", function);
}

bool tarn_gguf_add_string(tarn_gguf_writer *writer, const char *key, const char *text, size_t length)
{
    const char *function = "gguf_add_string";
    size_t from = metadata_bytes(writer);
    bool good = begin_key(function, writer, key) && check_no_alignment(function, key);
    good = good && (text || length == 0 || tarn__raise(TARN_ERROR_ARGUMENT, "%s: text is NULL", function));
    good = good && put_u32(&writer->metadata, TARN_GGUF_STRING) && put_string(&writer->metadata, text, length);
    return end_key(writer, key, from, good);
}

bool tarn_gguf_add_array(tarn_gguf_writer *writer, const char *key, tarn_gguf_type type, const void *values,
                         int64_t count)
{
    const char *function = "gguf_add_array";
    size_t from = metadata_bytes(writer);
    bool good = begin_key(function, writer, key) && check_no_alignment(function, key) &&
                check_number(function, type, values, count) && put_u32(&writer->metadata, TARN_GGUF_ARRAY) &&
                put_u32(&writer->metadata, type) && put_u64(&writer->metadata, (uint64_t)count) &&
                put(&writer->metadata, values, (size_t)count * (size_t)tarn__gguf_type_bytes(type));
    return end_key(writer, key, from, good);
}

/* Strings are written with their lengths; `lengths` NULL: they are terminated. */
bool tarn_gguf_add_strings(tarn_gguf_writer *writer, const char *key, const char *const *texts, const size_t *lengths,
                           int64_t count)
{
    const char *function = "gguf_add_strings";
    size_t from = metadata_bytes(writer);
    bool good = begin_key(function, writer, key) && check_no_alignment(function, key);
    if (good && (count < 0 || (!texts && count > 0)))
        good = tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function, texts ? "count is negative" : "texts is NULL");
    good = good && put_u32(&writer->metadata, TARN_GGUF_ARRAY) && put_u32(&writer->metadata, TARN_GGUF_STRING) &&
           put_u64(&writer->metadata, (uint64_t)count);
    for (int64_t i = 0; good && i < count; i++)
        good = (texts[i] || tarn__raise(TARN_ERROR_ARGUMENT, "%s: text %lld is NULL", function, (long long)i)) &&
               put_string(&writer->metadata, texts[i], lengths ? lengths[i] : strlen(texts[i]));
    return end_key(writer, key, from, good);
}

/* Copies the bytes of a value as they are: types that tarn does not interpret survive. */
bool tarn_gguf_add_from(tarn_gguf_writer *writer, const tarn_gguf *file, int index)
{
    const char *function = "gguf_add_from";
    tarn_gguf_value value;
    if (!check_writer(function, writer))
        return false;
    if (!tarn_gguf_metadata_at(file, index, &value))
        return tarn__raise_within(function);
    const tarn__gguf_key *key = &file->key[index];
    if (tarn__gguf_is_split_key(file, key->name)) /* the new file is no shard */
        return true;
    size_t from = metadata_bytes(writer);
    bool good = begin_key(function, writer, key->name) && put_u32(&writer->metadata, key->type);
    good = good && (key->type != TARN_GGUF_ARRAY ||
                    (put_u32(&writer->metadata, key->element) && put_u64(&writer->metadata, (uint64_t)key->count)));
    good = good && put(&writer->metadata, file->memory + key->begin, (size_t)(key->end - key->begin)) &&
           apply_alignment(function, writer, key->name, key->type, file->memory + key->begin);
    return end_key(writer, key->name, from, good);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Checks a tensor and appends its item; name and dtype complete `new`. */
static bool add_item(const char *function, tarn_gguf_writer *writer, const char *name, tarn_dtype dtype, item new)
{
    if (!check_name(function, "name", name))
        return false;
    for (int i = 0; i < writer->count; i++)
        if (strcmp(writer->item[i].name, name) == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: tensor '%.*s' already exists", function,
                               TARN__GGUF_SHOWN_BYTES, name);
    new.type = tarn__gguf_dtype_of(dtype);
    if (new.type < 0)
        return tarn__raise(
            TARN_ERROR_DTYPE,
            "%s: tensor '%.*s' is %s, which cannot be written to GGUF; supported are f32 f16 bf16 q8_0 q4_0 q4_k q6_k",
            function, TARN__GGUF_SHOWN_BYTES, name, tarn_dtype_name(dtype));
    if (new.shape.rank > MAX_AXES)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: tensor '%.*s' has %d axes; the format has at most %d", function,
                           TARN__GGUF_SHOWN_BYTES, name, new.shape.rank, MAX_AXES);
    if (!tarn__check_shape(function, new.shape, dtype) ||
        !tarn__list_reserve(&writer->item, writer->count, &writer->capacity, sizeof(item)) ||
        !(new.name = tarn__string_copy(name)))
        return false;
    int64_t count = 1;
    for (int i = 0; i < new.shape.rank; i++)
        count *= new.shape.size[i];
    new.bytes = tarn__bytes_of(dtype, count);
    writer->item[writer->count++] = new;
    return true;
}

/* The tensor is retained, not copied: its elements are read by tarn_gguf_finish(). */
bool tarn_gguf_add(tarn_gguf_writer *writer, const char *name, tarn_tensor *tensor)
{
    const char *function = "gguf_add";
    if (!check_writer(function, writer) || !tarn__check_any(function, tensor, "the tensor"))
        return false;
    if (!add_item(function, writer, name, tensor->view.dtype,
                  (item){.shape = tarn__shape_of(tensor), .tensor = tensor}))
        return false;
    tarn__tensor_retain(tensor);
    return true;
}

bool tarn__gguf_add_streamed(tarn_gguf_writer *writer, const char *name, tarn_dtype dtype, tarn_shape shape,
                             tarn__write_fn write, void *ctx)
{
    return check_writer("gguf_add", writer) &&
           add_item("gguf_add", writer, name, dtype, (item){.shape = shape, .write = write, .ctx = ctx});
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Rounds up to a multiple of the alignment. */
static int64_t align(const tarn_gguf_writer *writer, int64_t at)
{
    return (at + writer->alignment - 1) / writer->alignment * writer->alignment;
}

/* Encodes the header. Offsets count from the start of the data. */
static bool put_header(const tarn_gguf_writer *writer, tarn__buffer *to)
{
    int64_t offset = 0;
    bool good = put(to, "GGUF", 4) && put_u32(to, 3) && put_u64(to, (uint64_t)writer->count) &&
                put_u64(to, writer->keys) && put(to, writer->metadata.data, writer->metadata.count);
    for (int i = 0; good && i < writer->count; i++) {
        const item *one = &writer->item[i];
        good = put_string(to, one->name, strlen(one->name)) && put_u32(to, (uint32_t)one->shape.rank);
        for (int k = one->shape.rank - 1; good && k >= 0; k--)
            good = put_u64(to, (uint64_t)one->shape.size[k]);
        good = good && put_u32(to, (uint32_t)one->type) && put_u64(to, (uint64_t)offset);
        offset = align(writer, offset + one->bytes);
    }
    return good;
}

/* Pads the output to the alignment. */
static bool write_padding(const tarn_gguf_writer *writer, tarn__output *output)
{
    static const char zeros[256];
    for (int64_t left = align(writer, output->bytes) - output->bytes; left > 0; left -= (int64_t)sizeof(zeros))
        if (!tarn__output_write(output, zeros, left < (int64_t)sizeof(zeros) ? (size_t)left : sizeof(zeros)))
            return false;
    return true;
}

/* Writes the elements of a tensor and pads to the alignment. The byte count was promised in the header: a callback that
 * writes another number would shift all tensors after it. */
static bool write_item(const tarn_gguf_writer *writer, const item *one, tarn__output *output)
{
    int64_t begin = output->bytes;
    if (!(one->tensor ? tarn__write_tensor_bytes("gguf_finish", one->tensor, output) : one->write(output, one->ctx)))
        return false;
    if (output->bytes - begin != one->bytes)
        return tarn__raise(TARN_ERROR_INTERNAL, "gguf_finish: '%s': tensor '%.*s' has %lld bytes, not %lld",
                           writer->path, TARN__GGUF_SHOWN_BYTES, one->name, (long long)(output->bytes - begin),
                           (long long)one->bytes);
    return write_padding(writer, output);
}

/* Writes header and data into a temporary file that replaces the target at the end. */
static bool write_file(const tarn_gguf_writer *writer)
{
    tarn__output output;
    tarn__buffer header = {0};
    if (!tarn__output_open(&output, "gguf_finish", writer->path))
        return false;
    bool good = put_header(writer, &header) && tarn__output_write(&output, header.data, header.count) &&
                write_padding(writer, &output);
    tarn__buffer_free(&header, 1);
    for (int i = 0; good && i < writer->count; i++)
        good = write_item(writer, &writer->item[i], &output);
    if (good)
        return tarn__output_commit(&output);
    tarn__output_discard(&output);
    return false;
}

/* Frees the writer in any case: after a failure nothing of it can be used again. */
bool tarn_gguf_finish(tarn_gguf_writer *writer)
{
    bool good = check_writer("gguf_finish", writer) && write_file(writer);
    tarn_gguf_cancel(writer);
    return good;
}
