/* gguf_shards.c: see gguf_shards.h. */
#include "support/gguf_shards.h"

#include "support/check.h"
#include "support/scratch.h"

bool add_split_keys(tarn_gguf_writer *writer, int no, int count, int tensors)
{
    const uint16_t split_no = (uint16_t)no, split_count = (uint16_t)count;
    const int32_t split_tensors = tensors;
    return tarn_gguf_add_value(writer, "split.no", TARN_GGUF_U16, &split_no) &&
           tarn_gguf_add_value(writer, "split.tensors.count", TARN_GGUF_I32, &split_tensors) &&
           tarn_gguf_add_value(writer, "split.count", TARN_GGUF_U16, &split_count);
}

const char *shard_path(const char *name, int no, int count)
{
    char file[200];
    snprintf(file, sizeof(file), "%s-%05d-of-%05d.gguf", name, no + 1, count);
    return scratch(file);
}

/* Tensors from index `begin` to `end`, and with them the metadata, if this is the first shard. */
static void write_one(const tarn_gguf *file, const char *name, int no, int count, int begin, int end)
{
    tarn_gguf_writer *w = tarn_gguf_create(shard_path(name, no, count));
    for (int i = 0; no == 0 && i < tarn_gguf_metadata_count(file); i++)
        assert_true(tarn_gguf_add_from(w, file, i));
    assert_true(add_split_keys(w, no, count, tarn_gguf_count(file)));
    for (int i = begin; i < end; i++)
        assert_true(tarn_gguf_add(w, tarn_gguf_name(file, i), tarn_gguf_tensor(file, i, tarn_device_cpu())));
    assert_true(tarn_gguf_finish(w));
}

void split_gguf(const char *from, const char *name, int count)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_gguf *file = tarn_gguf_open(from);
    assert_ok();
    int tensors = tarn_gguf_count(file), others = count - 1;
    write_one(file, name, 0, count, 0, 0);
    for (int i = 0; i < others; i++)
        write_one(file, name, i + 1, count, tensors * i / others, tensors * (i + 1) / others);
    tarn_gguf_close(file);
    tarn_scope_close(scope);
}
