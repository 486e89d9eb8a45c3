/* json_file_none.c: what stands in for documents in a build without jansson. None can be made, so nothing else is ever
 * called. */
#include "base/error.h"
#include "formats/json_file.h"

/* Is NULL. */
static tarn__json_file *missing(const char *function)
{
    tarn__raise(TARN_ERROR_UNSUPPORTED,
                "%s: this build of tarn cannot read and write JSON files: it was built without jansson; install "
                "libjansson-dev (Debian, Ubuntu) or "
                "jansson-devel (Fedora) and build again",
                function);
    return NULL;
}

/* Is false. */
static bool unreachable(void)
{
    return tarn__raise(TARN_ERROR_INTERNAL, "document: there can be none in this build");
}

tarn__json_file *tarn__json_file_new(const char *function)
{
    return missing(function);
}

tarn__json_file *tarn__json_file_open(const char *function, const char *path)
{
    (void)path;
    return missing(function);
}

tarn__json_file *tarn__json_file_parse(const char *function, const char *name, const char *text, size_t length)
{
    (void)name, (void)text, (void)length;
    return missing(function);
}

void tarn__json_file_free(tarn__json_file *document)
{
    (void)document;
}

bool tarn__json_file_save(const tarn__json_file *document, const char *path)
{
    (void)document, (void)path;
    return unreachable();
}

bool tarn__json_file_add_checksum(tarn__json_file *document)
{
    (void)document;
    return unreachable();
}

bool tarn__json_file_verify(const tarn__json_file *document, const char *advice)
{
    (void)document, (void)advice;
    return unreachable();
}

bool tarn__json_file_append(const tarn__json_file *document, const char *path)
{
    (void)document, (void)path;
    return unreachable();
}

bool tarn__json_file_set_string(tarn__json_file *document, const char *key, const char *text)
{
    (void)document, (void)key, (void)text;
    return unreachable();
}

bool tarn__json_file_set_int(tarn__json_file *document, const char *key, int64_t value)
{
    (void)document, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_set_real(tarn__json_file *document, const char *key, double value)
{
    (void)document, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_set_bool(tarn__json_file *document, const char *key, bool value)
{
    (void)document, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_add_string(tarn__json_file *document, const char *key, const char *text)
{
    (void)document, (void)key, (void)text;
    return unreachable();
}

bool tarn__json_file_add_int(tarn__json_file *document, const char *key, int64_t value)
{
    (void)document, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_add_real(tarn__json_file *document, const char *key, double value)
{
    (void)document, (void)key, (void)value;
    return unreachable();
}

tarn__member_kind tarn__json_file_kind(const tarn__json_file *document, const char *key)
{
    (void)document, (void)key;
    return TARN__MEMBER_MISSING;
}

bool tarn__json_file_has(const tarn__json_file *document, const char *key)
{
    (void)document, (void)key;
    return false;
}

const char *tarn__json_file_string(const tarn__json_file *document, const char *key)
{
    (void)document, (void)key;
    unreachable();
    return NULL;
}

const char *tarn__json_file_string_at(const tarn__json_file *document, const char *key, size_t index)
{
    (void)document, (void)key, (void)index;
    unreachable();
    return NULL;
}

bool tarn__json_file_int(const tarn__json_file *document, const char *key, int64_t low, int64_t high, int64_t *value)
{
    (void)document, (void)key, (void)low, (void)high, (void)value;
    return unreachable();
}

bool tarn__json_file_int_at(const tarn__json_file *document, const char *key, size_t index, int64_t low, int64_t high,
                            int64_t *value)
{
    (void)document, (void)key, (void)index, (void)low, (void)high, (void)value;
    return unreachable();
}

bool tarn__json_file_real(const tarn__json_file *document, const char *key, double *value)
{
    (void)document, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_real_at(const tarn__json_file *document, const char *key, size_t index, double *value)
{
    (void)document, (void)key, (void)index, (void)value;
    return unreachable();
}

bool tarn__json_file_bool(const tarn__json_file *document, const char *key, bool *value)
{
    (void)document, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_count(const tarn__json_file *document, const char *key, size_t most, size_t *count)
{
    (void)document, (void)key, (void)most, (void)count;
    return unreachable();
}

bool tarn__json_file_each(const tarn__json_file *document, const char *key, tarn__member_fn visit, void *ctx)
{
    (void)document, (void)key, (void)visit, (void)ctx;
    return unreachable();
}

bool tarn__json_file_each_name(const tarn__json_file *document, const char *key, tarn__member_name_fn visit, void *ctx)
{
    (void)document, (void)key, (void)visit, (void)ctx;
    return unreachable();
}
