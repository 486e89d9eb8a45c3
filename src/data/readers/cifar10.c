/* cifar10.c: the binary version of CIFAR-10: records of a label byte and 3 × 32 × 32 bytes of pixels, channel by
 * channel.
 *
 * Records of all files are collected as they are and then split into images (N, 3, 32, 32) and labels (N). */
#include <string.h>

#include "base/buffer.h"
#include "data/dataset.h"
#include "data/readers/input.h"

#define IMAGE_BYTES ((size_t)3 * 32 * 32)
#define RECORD_BYTES (1 + IMAGE_BYTES)
#define CLASSES 10

/* Records to reserve next: all that follow in a plain file; for gzip, whose size is unknown, the capacity doubles. */
static size_t records_to_reserve(const tarn__data_input *input, const tarn__buffer *r)
{
    size_t left = (size_t)tarn__data_input_remaining(input) / RECORD_BYTES + 1,
           more = input->gzip ? 1024 + r->count : left;
    return more < left ? more : left;
}

/* Appends the records of a file up to its end. Raises an error for a label out of range or a cut record. */
static bool read_records(tarn__data_input *input, tarn__buffer *r)
{
    for (;;) {
        if (r->count == r->capacity && !tarn__buffer_reserve(r, records_to_reserve(input, r), RECORD_BYTES))
            return false;
        int64_t start = input->at;
        char *record = r->data + r->count * RECORD_BYTES;
        int64_t got = tarn__data_input_read_some(input, record, RECORD_BYTES);
        if (got <= 0)
            return got == 0;
        if (got < (int64_t)RECORD_BYTES)
            return tarn__data_input_bad(input, input->at,
                                        "the file ends inside record %lld: a CIFAR-10 record has %zu bytes",
                                        (long long)(start / (int64_t)RECORD_BYTES), RECORD_BYTES);
        if ((unsigned char)record[0] >= CLASSES)
            return tarn__data_input_bad(input, start, "label %d; CIFAR-10 has %d classes", (unsigned char)record[0],
                                        CLASSES);
        r->count++;
    }
}

/* Appends the records of one file; an empty file is an error. */
static bool read_file(const char *function, const char *path, tarn__buffer *r)
{
    tarn__data_input input;
    size_t before = r->count;
    bool good = tarn__data_input_open(&input, function, path) && read_records(&input, r);
    if (good && r->count == before)
        good = tarn__data_input_bad(&input, 0, "the file is empty");
    tarn__data_input_close(&input);
    return good;
}

/* Splits records into images u8 (N, 3, 32, 32) and labels i64 (N). */
static tarn_dataset *create_dataset(const char *function, const tarn__buffer *r)
{
    int64_t count = (int64_t)r->count;
    tarn_array arrays[2] = {{tarn__alloc(r->count * IMAGE_BYTES), TARN_SHAPE(count, 3, 32, 32), TARN_U8},
                            {tarn__alloc(r->count * sizeof(int64_t)), TARN_SHAPE(count), TARN_I64}};
    if (!arrays[0].data || !arrays[1].data) {
        tarn_array_free(&arrays[0]);
        tarn_array_free(&arrays[1]);
        return NULL;
    }
    for (size_t i = 0; i < r->count; i++) {
        const char *record = r->data + i * RECORD_BYTES;
        memcpy((char *)arrays[0].data + i * IMAGE_BYTES, record + 1, IMAGE_BYTES);
        ((int64_t *)arrays[1].data)[i] = (unsigned char)record[0];
    }
    return tarn__dataset_on_arrays(function, (const char *const[]){"image", "label"}, arrays, 2);
}

/* A dataset of all files, in order. NULL with an error. */
static tarn_dataset *open_files(const char *function, const char *const *paths, int count)
{
    tarn__buffer r = {0}; /* records of all files, unchanged */
    bool good = true;
    for (int i = 0; good && i < count; i++)
        good = read_file(function, paths[i], &r);
    tarn_dataset *dataset = good ? create_dataset(function, &r) : NULL;
    tarn__buffer_free(&r, RECORD_BYTES);
    return dataset;
}

tarn_dataset *tarn_dataset_cifar10(const char *const *paths, int count)
{
    if (tarn_failed())
        return NULL;
    if (!paths || count < 1) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dataset_cifar10: %s",
                    paths ? "there must be at least one file" : "paths is NULL");
        return NULL;
    }
    return open_files("dataset_cifar10", paths, count);
}

/* The file names of the published archive. */
tarn_dataset *tarn_dataset_cifar10_folder(const char *folder, bool training)
{
    char text[5][4096];
    const char *paths[5];
    int count = training ? 5 : 1;
    if (tarn_failed())
        return NULL;
    if (!folder || strlen(folder) > sizeof(text[0]) - 32) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dataset_cifar10_folder: the folder is %s",
                    folder ? "too long a name" : "NULL");
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        if (training)
            snprintf(text[i], sizeof(text[i]), "%s/data_batch_%d.bin", folder, i + 1);
        else
            snprintf(text[i], sizeof(text[i]), "%s/test_batch.bin", folder);
        paths[i] = text[i];
    }
    return open_files("dataset_cifar10_folder", paths, count);
}
