/* gguf_shards.h: GGUF models in shards, as llama.cpp and the gguf package write them. */
#ifndef TESTS_GGUF_SHARDS_H
#define TESTS_GGUF_SHARDS_H

#include <tarn/gguf.h>

/* Adds split.no, split.count (u16) and split.tensors.count (i32). */
bool add_split_keys(tarn_gguf_writer *writer, int no, int count, int tensors);

/* The path of shard `no`, from 0, of a model in the scratch folder; valid as long as that of scratch(). */
const char *shard_path(const char *name, int no, int count);

/* Writes a GGUF file as `count` shards into the scratch folder: the first has the metadata and no tensors, the others
 * have the tensors in order. */
void split_gguf(const char *from, const char *name, int count);

#endif
