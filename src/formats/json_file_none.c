/* json_file_none.c: stubs of json_file.h for a build without jansson. Creation raises an error and returns NULL, so the
 * other functions are never reached. */
#include "base/error.h"
#include "formats/json_file.h"

/* Returns NULL. */
static tarn__json_file *missing(const char *function)
{
    tarn__raise(TARN_ERROR_UNSUPPORTED,
                "%s: this build of tarn cannot read and write JSON files: it was built without jansson; install "
                "libjansson-dev (Debian, Ubuntu) or "
                "jansson-devel (Fedora) and build again",
                function);
    return NULL;
}

/* Every call with a file: there is none in this build. Returns false. */
static bool unreachable(void)
{
    return tarn__raise(TARN_ERROR_INTERNAL, "json_file: not available in this build");
}

/* Creation: the only functions that can be reached. */
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

void tarn__json_file_free(tarn__json_file *file)
{
    (void)file;
}

bool tarn__json_file_save(const tarn__json_file *file, const char *path)
{
    (void)file, (void)path;
    return unreachable();
}

bool tarn__json_file_add_checksum(tarn__json_file *file)
{
    (void)file;
    return unreachable();
}

bool tarn__json_file_verify(const tarn__json_file *file, const char *advice)
{
    (void)file, (void)advice;
    return unreachable();
}

bool tarn__json_file_append(const tarn__json_file *file, const char *path)
{
    (void)file, (void)path;
    return unreachable();
}

bool tarn__json_file_set_string(tarn__json_file *file, const char *key, const char *text)
{
    (void)file, (void)key, (void)text;
    return unreachable();
}

bool tarn__json_file_set_int(tarn__json_file *file, const char *key, int64_t value)
{
    (void)file, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_set_real(tarn__json_file *file, const char *key, double value)
{
    (void)file, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_put_number(tarn__json_file *file, const char *key, const char *name, double value)
{
    (void)file, (void)key, (void)name, (void)value;
    return unreachable();
}

bool tarn__json_file_add_pair(tarn__json_file *file, const char *key, const char *name, const char *text,
                              const char *other_name, const char *other_text)
{
    (void)file, (void)key, (void)name, (void)text, (void)other_name, (void)other_text;
    return unreachable();
}

bool tarn__json_file_put_ints(tarn__json_file *file, const char *key, const char *name, const int64_t *values,
                              size_t count)
{
    (void)file, (void)key, (void)name, (void)values, (void)count;
    return unreachable();
}

bool tarn__json_file_ints(const tarn__json_file *file, const char *key, const char *name, size_t max, int64_t low,
                          int64_t high, int64_t **values, size_t *count)
{
    (void)file, (void)key, (void)name, (void)max, (void)low, (void)high, (void)values, (void)count;
    return unreachable();
}

bool tarn__json_file_set_bool(tarn__json_file *file, const char *key, bool value)
{
    (void)file, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_add_string(tarn__json_file *file, const char *key, const char *text)
{
    (void)file, (void)key, (void)text;
    return unreachable();
}

bool tarn__json_file_add_int(tarn__json_file *file, const char *key, int64_t value)
{
    (void)file, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_add_real(tarn__json_file *file, const char *key, double value)
{
    (void)file, (void)key, (void)value;
    return unreachable();
}

tarn__member_kind tarn__json_file_kind(const tarn__json_file *file, const char *key)
{
    (void)file, (void)key;
    return TARN__MEMBER_MISSING;
}

bool tarn__json_file_has(const tarn__json_file *file, const char *key)
{
    (void)file, (void)key;
    return false;
}

const char *tarn__json_file_string(const tarn__json_file *file, const char *key)
{
    (void)file, (void)key;
    unreachable();
    return NULL;
}

const char *tarn__json_file_string_at(const tarn__json_file *file, const char *key, size_t index)
{
    (void)file, (void)key, (void)index;
    unreachable();
    return NULL;
}

bool tarn__json_file_int(const tarn__json_file *file, const char *key, int64_t low, int64_t high, int64_t *value)
{
    (void)file, (void)key, (void)low, (void)high, (void)value;
    return unreachable();
}

bool tarn__json_file_int_at(const tarn__json_file *file, const char *key, size_t index, int64_t low, int64_t high,
                            int64_t *value)
{
    (void)file, (void)key, (void)index, (void)low, (void)high, (void)value;
    return unreachable();
}

bool tarn__json_file_real(const tarn__json_file *file, const char *key, double *value)
{
    (void)file, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_real_at(const tarn__json_file *file, const char *key, size_t index, double *value)
{
    (void)file, (void)key, (void)index, (void)value;
    return unreachable();
}

bool tarn__json_file_bool(const tarn__json_file *file, const char *key, bool *value)
{
    (void)file, (void)key, (void)value;
    return unreachable();
}

bool tarn__json_file_count(const tarn__json_file *file, const char *key, size_t max, size_t *count)
{
    (void)file, (void)key, (void)max, (void)count;
    return unreachable();
}

bool tarn__json_file_each(const tarn__json_file *file, const char *key, tarn__member_fn visit, void *ctx)
{
    (void)file, (void)key, (void)visit, (void)ctx;
    return unreachable();
}

bool tarn__json_file_each_name(const tarn__json_file *file, const char *key, tarn__member_name_fn visit, void *ctx)
{
    (void)file, (void)key, (void)visit, (void)ctx;
    return unreachable();
}
