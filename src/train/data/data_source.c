/* data_source.c: classification data by its name: a kind, a colon, and a path.
 *
 * Splits and generated digits use fixed seeds, independent of the run's: the same name is the same data in every run,
 * and a validation sample is never trained on. The caller owns all datasets. */
#include "train/data/data_source.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "base/os/platform.h"
#include "train/data/corpus.h"

/* generated digits for training; a fifth as many for validation */
enum { DIGITS = 10000, MAX_DIGITS = 10000000 };
enum { DIGITS_SEED = 1, VALIDATION_SEED = 2, SPLIT_SEED = 3 }; /* fixed: see above */

typedef enum subset { TRAINING, TESTING, ALL } subset;

/* The two paths of "IMAGES,LABELS"; the second points into the first. */
typedef struct pair {
    char first[1024];
    const char *second;
} pair;

static bool split_pair(const char *function, const char *kind, const char *path, pair *paths)
{
    snprintf(paths->first, sizeof(paths->first), "%s", path);
    char *comma = strchr(paths->first, ',');
    if (!comma || comma == paths->first || !comma[1])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s:%s' needs two files: %s:INPUTS,LABELS", function, kind, path,
                           kind);
    *comma = 0;
    paths->second = comma + 1;
    return true;
}

static tarn_dataset *open_digits(const char *function, const char *number, subset which)
{
    char *end = NULL;
    long long count = number[0] ? strtoll(number, &end, 10) : DIGITS;
    if ((end && *end) || count < 10 || count > MAX_DIGITS) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: 'digits:%s': must be digits:N, with N from 10 to %d", function, number,
                    MAX_DIGITS);
        return NULL;
    }
    return which == TRAINING ? tarn_dataset_digits(count, DIGITS_SEED)
                             : tarn_dataset_digits(count / 5, VALIDATION_SEED);
}

/* A folder with the files of the CIFAR-10 archive, or one such file. */
static tarn_dataset *open_cifar10(const char *path, subset which)
{
    if (which == ALL && tarn__platform_file_bytes(path) >= 0)
        return tarn_dataset_cifar10((const char *const[]){path}, 1);
    return tarn_dataset_cifar10_folder(path, which == TRAINING);
}

/* ---- images without a channel axis ------------------------------------------------------------------------------- */

static bool read_inner(int64_t index, void *const *memory, void *ctx)
{
    return tarn_dataset_read(ctx, index, memory);
}

static void free_inner(void *ctx)
{
    tarn_dataset_free(ctx);
}

/* Views images [H, W] as [1, H, W]. Takes ownership of the dataset, after a failure too; other shapes are returned as
 * they are. */
static tarn_dataset *with_channel(tarn_dataset *dataset)
{
    tarn_field field[TARN_MAX_FIELDS];
    int count = dataset ? tarn_dataset_field_count(dataset) : 0;
    for (int k = 0; k < count; k++)
        tarn_dataset_field(dataset, k, &field[k]);
    if (count == 0 || tarn_failed() || field[0].shape.rank != 2)
        return dataset;
    field[0].shape = TARN_SHAPE(1, field[0].shape.size[0], field[0].shape.size[1]);
    return tarn_dataset_new(field, count, tarn_dataset_count(dataset), read_inner, dataset, free_inner);
}

/* ---- non-finite values ------------------------------------------------------------------------------------------- */

/* Index of the first non-finite element; -1: none. */
static int64_t first_not_finite(const void *memory, tarn_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(dtype == TARN_F64 ? ((const double *)memory)[i] : (double)((const float *)memory)[i]))
            return i;
    return -1;
}

static bool check_samples(const char *function, const char *path, tarn_dataset *dataset, const tarn_field *input,
                          void *const *memory)
{
    int64_t elements = 1;
    for (int i = 0; i < input->shape.rank; i++)
        elements *= input->shape.size[i];
    for (int64_t i = 0; i < tarn_dataset_count(dataset); i++) {
        if (!tarn_dataset_read(dataset, i, memory))
            return false;
        int64_t at = first_not_finite(memory[0], input->dtype, elements);
        if (at >= 0)
            return tarn__raise(TARN_ERROR_FORMAT,
                               "%s: %s: sample %lld, element %lld is not finite; remove NaN and infinity from the file",
                               function, path, (long long)i, (long long)at);
    }
    return true;
}

/* Reads all samples once: a single NaN would ruin every weight. Takes ownership of the dataset and returns it, or NULL
 * with an error. Integer data needs no check. */
static tarn_dataset *check_finite(const char *function, const char *path, tarn_dataset *dataset)
{
    tarn_field field[TARN_MAX_FIELDS];
    void *memory[TARN_MAX_FIELDS] = {0};
    size_t bytes[TARN_MAX_FIELDS] = {0};
    int count = dataset ? tarn_dataset_field_count(dataset) : 0;
    bool good = count > 0 && tarn_dataset_field(dataset, 0, &field[0]);
    if (!good || (field[0].dtype != TARN_F32 && field[0].dtype != TARN_F64))
        return dataset;
    for (int k = 0; good && k < count; k++) {
        good = tarn_dataset_field(dataset, k, &field[k]);
        bytes[k] = tarn_dtype_size(field[k].dtype);
        for (int i = 0; good && i < field[k].shape.rank; i++)
            bytes[k] *= (size_t)field[k].shape.size[i];
        good = good && (memory[k] = tarn__alloc(bytes[k])) != NULL;
    }
    good = good && check_samples(function, path, dataset, &field[0], memory);
    for (int k = 0; k < count; k++)
        tarn__release(memory[k], bytes[k]);
    if (!good)
        tarn_dataset_free(dataset);
    return good ? dataset : NULL;
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */

static tarn_dataset *open_subset(const char *function, const char *kind, const char *path, subset which)
{
    pair paths;
    if (strcmp(kind, "digits") == 0)
        return open_digits(function, path, which);
    if (strcmp(kind, "mnist") == 0)
        return tarn_dataset_mnist(path, which == TRAINING);
    if (strcmp(kind, "cifar10") == 0)
        return open_cifar10(path, which);
    if (strcmp(kind, "csv") == 0)
        return tarn_dataset_csv(path, &(tarn_csv_options){.label = "-1"});
    if (!split_pair(function, kind, path, &paths))
        return NULL;
    if (strcmp(kind, "idx") == 0)
        return check_finite(function, paths.first, tarn_dataset_idx(paths.first, paths.second));
    tarn_dataset *arrays =
        tarn_dataset_npy((const char *const[]){"x", "label"}, (const char *const[]){paths.first, paths.second}, 2);
    return with_channel(check_finite(function, paths.first, arrays));
}

static bool raise_unknown_kind(const char *function, const char *name, const char *kind)
{
    static const char *const all[] = {"digits", "images", "mnist", "cifar10", "idx",
                                      "csv",    "npy",    "text",  "shards",  "chats"};
    const char *near = tarn_suggest(kind, all, (int)(sizeof(all) / sizeof(all[0])));
    if (tarn__path_exists(name) && tarn__platform_file_bytes(name) < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: '%.200s' is a folder; of images: images:%.200s, of MNIST, CIFAR-10 or shards: "
                           "mnist:, cifar10: or shards: before its path",
                           function, name, name);
    return tarn__raise(
        TARN_ERROR_ARGUMENT,
        "%s: unknown data '%.200s'; must be digits, images:FOLDER, mnist:FOLDER, cifar10:FOLDER, idx:IMAGES,LABELS, "
        "csv:FILE, npy:INPUTS,LABELS, text:FILE, shards:FOLDER or FILE.jsonl%s%s%s",
        function, name, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* Splits a name into kind and path. False with an error for an unknown kind, or one that is text. */
static bool read_name(const char *function, const char *name, char *kind, size_t size, const char **path)
{
    static const char *const kinds[] = {"digits", "mnist", "cifar10", "idx", "csv", "npy"};
    const char *colon = strchr(name, ':');
    snprintf(kind, size, "%.*s", (int)(colon ? colon - name : (ptrdiff_t)strlen(name)), name);
    *path = colon ? colon + 1 : "";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kind, kinds[i]) == 0)
            return i == 0 || (*path)[0] ||
                   tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' has no path; must be %s:PATH", function, name, kind);
    if (tarn__data_is_corpus(name))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%.200s' is text; a classifier needs samples with labels",
                           function, name);
    return raise_unknown_kind(function, name, kind);
}

/* True when the data comes with a test split. */
static bool has_test_split(const char *kind, const char *path)
{
    return strcmp(kind, "digits") == 0 || strcmp(kind, "mnist") == 0 ||
           (strcmp(kind, "cifar10") == 0 && tarn__platform_file_bytes(path) < 0);
}

static bool split(const char *function, const char *name, tarn_dataset *all, tarn_dataset **training,
                  tarn_dataset **validation)
{
    int64_t count = tarn_dataset_count(all), val_count = count / 10 > 0 ? count / 10 : 1;
    if (count < 2)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%.200s' has %lld samples; training needs at least 2", function,
                           name, (long long)count);
    return tarn_dataset_split(all, count - val_count, SPLIT_SEED, training, validation);
}

bool tarn__data_open(const char *function, const char *name, tarn_dataset **training, tarn_dataset **validation)
{
    char kind[16];
    const char *path;
    *training = *validation = NULL;
    if (tarn_failed() || !read_name(function, name, kind, sizeof(kind), &path))
        return false;
    if (has_test_split(kind, path)) {
        *training = open_subset(function, kind, path, TRAINING);
        *validation = *training ? open_subset(function, kind, path, TESTING) : NULL;
    } else {
        tarn_dataset *all = open_subset(function, kind, path, ALL);
        if (all)
            split(function, name, all, training, validation);
        tarn_dataset_free(all);
    }
    if (!tarn_failed())
        return true;
    tarn_dataset_free(*training);
    tarn_dataset_free(*validation);
    *training = *validation = NULL;
    return tarn__raise_within(function);
}

tarn_dataset *tarn__data_open_for_evaluation(const char *function, const char *name)
{
    char kind[16];
    const char *path;
    if (tarn_failed() || !read_name(function, name, kind, sizeof(kind), &path))
        return NULL;
    tarn_dataset *dataset = open_subset(function, kind, path, has_test_split(kind, path) ? TESTING : ALL);
    if (!dataset)
        tarn__raise_within(function);
    return dataset;
}
