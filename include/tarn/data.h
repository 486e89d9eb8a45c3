/* data.h: datasets and the loader that makes batches of them.
 *
 * A dataset is a number of samples, each with the same named fields ("image" u8 [3, 32, 32], "label" i64 []), and a
 * function that writes one sample. A loader puts samples together to batches, in a shuffled order, with the help of
 * threads, and brings them to a device. Datasets are counted by reference: subsets and loaders keep what they stand on,
 * so one may be freed as soon as nobody else needs its handle. */
#ifndef TARN_DATA_H
#define TARN_DATA_H

#include <tarn/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- datasets ---------------------------------------------------------------------------------------------------- */

/* The largest number of fields, and of axes of a field: a batch has one more. */
#define TARN_MAX_FIELDS 8
#define TARN_MAX_FIELD_RANK (TARN_MAX_RANK - 1)

typedef struct tarn_dataset tarn_dataset;

/* One part of a sample. */
typedef struct tarn_field {
    const char *name;
    tarn_dtype dtype;
    tarn_shape shape; /* of one sample; TARN_SCALAR for a label */
} tarn_field;

/* Writes sample `index`: the elements of field k, row-major, to memory[k]. Several threads call it at the same time.
 * False, after tarn_set_error(), when the sample cannot be had. */
typedef bool (*tarn_get_fn)(int64_t index, void *const *memory, void *ctx);

/* A dataset of the caller's own. Copies the fields. Takes ctx: `release` (may be NULL) is called when the dataset is
 * gone, or if this call fails. The caller owns the dataset. */
TARN_API tarn_dataset *tarn_dataset_new(const tarn_field *fields, int field_count, int64_t count, tarn_get_fn get,
                                        void *ctx, void (*release)(void *ctx));

/* A dataset of arrays in memory: sample i is row i of each; all have the same first size. Copies names and elements. */
TARN_API tarn_dataset *tarn_dataset_from_arrays(const char *const *names, const tarn_array *arrays, int count);

/* Images and their labels from two files in the idx format of MNIST, plain or gzip: "image", [1, H, W] where the file
 * holds [N, H, W], in the file's dtype (8- and 16-bit signed integers become i32), and "label", i64 []. `labels` may be
 * NULL: no labels. */
TARN_API tarn_dataset *tarn_dataset_idx(const char *images, const char *labels);

/* MNIST or Fashion-MNIST: finds the two files for training or for testing in a folder by their usual names, with or
 * without ".gz". */
TARN_API tarn_dataset *tarn_dataset_mnist(const char *folder, bool training);

/* CIFAR-10 from files in its binary version, one after the other: "image", u8 [3, 32, 32], and "label", i64 []. */
TARN_API tarn_dataset *tarn_dataset_cifar10(const char *const *paths, int count);

/* CIFAR-10 from a folder: data_batch_1.bin to data_batch_5.bin for training, test_batch.bin for testing. */
TARN_API tarn_dataset *tarn_dataset_cifar10_folder(const char *folder, bool training);

/* Drawn digits, for training without a file: "image", u8 [1, 28, 28], white on black, and "label", i64 [], 0 to 9 in
 * random order. Strokes with a random shape, place, slant, width and noise. Sample i is a function of seed and i alone:
 * two seeds make a set to train on and one to test. */
TARN_API tarn_dataset *tarn_dataset_digits(int64_t count, uint64_t seed);

/* Whether the first line of a CSV file holds names. */
typedef enum tarn_csv_header {
    TARN_HEADER_AUTO = 0, /* it does if one of its fields is no number */
    TARN_HEADER_YES,
    TARN_HEADER_NO
} tarn_csv_header;

/* Options of tarn_dataset_csv(); zero is every field's default. */
typedef struct tarn_csv_options {
    tarn_csv_header header;
    char delimiter; /* default ',' */
    const char
        *label; /* the label's column: its name, or its number from 0, or from the last ("-1"); default: no label */
    bool label_is_real; /* the label is any number, in `dtype`; default: a whole number, i64 */
    tarn_dtype dtype;   /* of the values: f32 (the default) or f64 */
} tarn_csv_options;

/* Numbers from a CSV file, plain or gzip: "x", [columns], and "label", []. Fields may stand in quotes. Text, a missing
 * value, NaN and infinity are errors that name line and column. `...` is a const tarn_csv_options *, or NULL. */
TARN_API tarn_dataset *tarn_dataset_csv_sized(const char *path, const tarn_csv_options *options, size_t options_size);
#define tarn_dataset_csv(path, ...) tarn_dataset_csv_sized(path, __VA_ARGS__, sizeof(tarn_csv_options))

/* Arrays from NumPy's .npy files, one for each field, with the same first size. */
TARN_API tarn_dataset *tarn_dataset_npy(const char *const *names, const char *const *paths, int count);

/* Reads one .npy file (versions 1.0 to 3.0, C or Fortran order, either byte order) into an array, row-major, which the
 * caller gives back with tarn_array_free(). dtypes that tarn does not have are an error. */
TARN_API bool tarn_npy_load(const char *path, tarn_array *array);

/* Reads an image file, u8 [C, H, W], which the caller gives back with tarn_array_free(): PNG (needs zlib) and PGM or
 * PPM (P2, P3, P5, P6), known by their first bytes, of at most 32768 pixels a side and 2^27 in all; and .npy files of
 * u8 [C, H, W] or [H, W]. C is 1 for grey, 3 for colour, and one more for transparency. Fewer or more bits than 8 are
 * brought to 0 to 255. */
TARN_API bool tarn_image_load(const char *path, tarn_array *image);

/* An image, u8 [C, H, W], in another size: interpolated where it grows, averaged where it shrinks. `resized` is another
 * array than `image`, and given back with tarn_array_free(). */
TARN_API bool tarn_image_resize(const tarn_array *image, int64_t height, int64_t width, tarn_array *resized);

/* The same image in grey (1 channel) or in colour (3); what is transparent lets white through. `converted` as above. */
TARN_API bool tarn_image_convert(const tarn_array *image, int64_t channels, tarn_array *converted);

/* Some samples of a dataset, in the order of `indices`, which are copied. Keeps the dataset; the caller owns the
 * result. */
TARN_API tarn_dataset *tarn_dataset_subset(tarn_dataset *dataset, const int64_t *indices, int64_t count);

/* Cuts a dataset in two at random: `first` gets `first_count` samples, `second` the others. Which ones depends on the
 * seed alone. Keeps the dataset; the caller owns both. False with an error, and both NULL. */
TARN_API bool tarn_dataset_split(tarn_dataset *dataset, int64_t first_count, uint64_t seed, tarn_dataset **first,
                                 tarn_dataset **second);

/* How many samples there are, and fields in each; -1 on error. */
TARN_API int64_t tarn_dataset_count(const tarn_dataset *dataset);
TARN_API int tarn_dataset_field_count(const tarn_dataset *dataset);

/* Field number `index`; its name belongs to the dataset. */
TARN_API bool tarn_dataset_field(const tarn_dataset *dataset, int index, tarn_field *field);

/* Writes one sample into the caller's memory: memory[k] has room for the elements of field k. */
TARN_API bool tarn_dataset_read(const tarn_dataset *dataset, int64_t index, void *const *memory);

/* Gives a dataset back; it is gone when no subset or loader stands on it any more. NULL is allowed; works while an
 * error is pending. */
TARN_API void tarn_dataset_free(tarn_dataset *dataset);

/* ---- the loader -------------------------------------------------------------------------------------------------- */

typedef struct tarn_loader tarn_loader;

/* Random numbers of one sample in one epoch: the same whichever thread draws them. */
typedef struct tarn_random_state {
    uint64_t key, drawn;
} tarn_random_state;

/* The next random number: whole, from 0 to limit - 1 (-1, with an error, for a limit below 1), or real, in [0, 1). */
TARN_API int64_t tarn_random_below(tarn_random_state *random, int64_t limit);
TARN_API double tarn_random_unit(tarn_random_state *random);

/* Changes a sample in place: memory[k] holds field k in the dataset's dtype. Several threads call it at the same time.
 * False, after tarn_set_error(), on failure. */
typedef bool (*tarn_augment_fn)(int64_t index, tarn_random_state *random, void *const *memory, void *ctx);

/* Options of tarn_loader_new(). `batch_size` is required; zero is every other field's default. */
typedef struct tarn_loader_options {
    int64_t batch_size;
    bool shuffle;
    bool drop_last;     /* leave out a last batch that is not full */
    uint64_t seed;      /* of the order and of what is random in samples */
    int workers;        /* threads that read samples, at most 64; default 0: the calling thread does */
    int prefetch;       /* batches made ahead by workers, at most 64; default 2 */
    tarn_device device; /* default the CPU */

    /* What happens to a sample, in this order. Crop and flip want a first field [C, H, W]. */
    int crop_padding; /* pad by so many zeros on each side, then cut the size out again at a random place */
    bool flip;        /* mirror left and right, every second time */
    tarn_augment_fn augment;
    void *augment_ctx;

    /* The first field as f32: (value · scale - mean[c]) / deviation[c], c along its first axis. */
    bool normalize;
    float scale;       /* default 1/255 for u8, otherwise 1 */
    const float *mean; /* copied; NULL: 0 */
    const float *std;  /* copied; NULL: 1 */
    int channels;      /* how many numbers these hold: the size of the field's first axis, or 1 for all */
} tarn_loader_options;

/* Makes batches of a dataset. Their order is a function of seed and epoch, what is random in a sample a function of
 * seed, epoch and sample: any number of workers gives the same bits. Keeps the dataset. The caller owns the loader and
 * uses it from one thread at a time. `...` is a const tarn_loader_options *. */
TARN_API tarn_loader *tarn_loader_new_sized(tarn_dataset *dataset, const tarn_loader_options *options,
                                            size_t options_size);
#define tarn_loader_new(dataset, ...) tarn_loader_new_sized(dataset, __VA_ARGS__, sizeof(tarn_loader_options))

/* The next batch: fields[k] is a tensor [B, ...] on the device, in the open scope, for each field of the dataset. False
 * at the end of an epoch, and the next call begins another; false with an error when a sample failed, and the next call
 * tries that batch again. */
TARN_API bool tarn_loader_next(tarn_loader *loader, tarn_tensor **fields);

/* How many batches an epoch has; -1 on error. */
TARN_API int64_t tarn_loader_batches(const tarn_loader *loader);

/* Where a loader stands: the epoch, from 0, and how many of its batches were given. */
typedef struct tarn_loader_state {
    int64_t epoch, batch;
} tarn_loader_state;

/* Asks where a loader stands, and puts it there: the next batch is the one that followed. */
TARN_API bool tarn_loader_tell(const tarn_loader *loader, tarn_loader_state *place);
TARN_API bool tarn_loader_seek(tarn_loader *loader, tarn_loader_state place);

/* Frees a loader, in the middle of an epoch too; tensors that it gave live on. NULL is allowed; works while an error is
 * pending. */
TARN_API void tarn_loader_free(tarn_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
