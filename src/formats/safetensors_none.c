/* safetensors_none.c: stubs of the safetensors reader and writer for a build without jansson: errors that name it. */
#include "base/error.h"
#include "formats/safetensors.h"

/* Raises the error of a build without jansson. Returns false. */
static bool missing(const char *function)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED,
                       "%s: this build of tarn cannot read and write safetensors files: it was built without jansson; "
                       "install libjansson-dev "
                       "(Debian, Ubuntu) or jansson-devel (Fedora) and build again",
                       function);
}

/* Files cannot be opened or created here, so the other functions only ever get NULL. */
tarn_safetensors *tarn_safetensors_open(const char *path)
{
    (void)path;
    missing("safetensors_open");
    return NULL;
}

void tarn_safetensors_close(tarn_safetensors *file)
{
    (void)file;
}

int tarn_safetensors_count(const tarn_safetensors *file)
{
    (void)file;
    return missing("safetensors_count") ? 0 : -1;
}

const char *tarn_safetensors_name(const tarn_safetensors *file, int index)
{
    (void)file, (void)index;
    missing("safetensors_name");
    return NULL;
}

bool tarn_safetensors_info(const tarn_safetensors *file, int index, tarn_safetensors_entry *entry)
{
    (void)file, (void)index, (void)entry;
    return missing("safetensors_info");
}

int tarn_safetensors_find(const tarn_safetensors *file, const char *name)
{
    (void)file, (void)name;
    return missing("safetensors_find") ? 0 : -1;
}

tarn_tensor *tarn_safetensors_read(const tarn_safetensors *file, const char *name, tarn_device device)
{
    (void)file, (void)name, (void)device;
    missing("safetensors_read");
    return NULL;
}

bool tarn_safetensors_read_into(const tarn_safetensors *file, const char *name, tarn_tensor *tensor)
{
    (void)file, (void)name, (void)tensor;
    return missing("safetensors_read_into");
}

const char *tarn_safetensors_metadata(const tarn_safetensors *file, const char *key)
{
    (void)file, (void)key;
    missing("safetensors_metadata");
    return NULL;
}

int tarn_safetensors_metadata_count(const tarn_safetensors *file)
{
    (void)file;
    return missing("safetensors_metadata_count") ? 0 : -1;
}

bool tarn_safetensors_metadata_at(const tarn_safetensors *file, int index, const char **key, const char **value)
{
    (void)file, (void)index, (void)key, (void)value;
    return missing("safetensors_metadata_at");
}

tarn_safetensors_writer *tarn_safetensors_create(const char *path)
{
    (void)path;
    missing("safetensors_create");
    return NULL;
}

bool tarn_safetensors_add(tarn_safetensors_writer *writer, const char *name, tarn_tensor *tensor)
{
    (void)writer, (void)name, (void)tensor;
    return missing("safetensors_add");
}

bool tarn__safetensors_add_streamed(tarn_safetensors_writer *writer, const char *name, tarn_dtype dtype,
                                    tarn_shape shape, tarn__write_fn write, void *ctx)
{
    (void)writer, (void)name, (void)dtype, (void)shape, (void)write, (void)ctx;
    return missing("safetensors_add");
}

bool tarn__safetensors_add_part(tarn_safetensors_writer *writer, const char *name, const tarn__tensor_part *part)
{
    (void)writer, (void)name, (void)part;
    return missing("safetensors_add");
}

bool tarn__safetensors_finish_ranks(tarn_safetensors_writer *writer, const tarn__file_ranks *ranks)
{
    (void)writer, (void)ranks;
    return missing("safetensors_finish");
}

bool tarn__safetensors_read_part(const tarn_safetensors *file, const char *name, const tarn__tensor_part *part)
{
    (void)file, (void)name, (void)part;
    return missing("safetensors_read_part");
}

bool tarn_safetensors_add_metadata(tarn_safetensors_writer *writer, const char *key, const char *value)
{
    (void)writer, (void)key, (void)value;
    return missing("safetensors_add_metadata");
}

bool tarn_safetensors_finish(tarn_safetensors_writer *writer)
{
    (void)writer;
    return missing("safetensors_finish");
}

void tarn_safetensors_cancel(tarn_safetensors_writer *writer)
{
    (void)writer;
}

bool tarn__safetensors_verify(const char *function, const tarn_safetensors *file)
{
    (void)file;
    return missing(function);
}

bool tarn_safetensors_add_checksums(tarn_safetensors_writer *writer)
{
    (void)writer;
    return missing("safetensors_add_checksums");
}

const void *tarn__safetensors_data(const tarn_safetensors *file, int index)
{
    (void)file, (void)index;
    return NULL;
}
