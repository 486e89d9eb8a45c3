/* data.h: datasets and the loader that batches them.
 *
 * A dataset has a number of samples, all with the same named fields ("image" u8 [3, 32, 32], "label" i64 []), and a
 * function that writes one sample. A loader collates samples into batches, shuffled, with prefetch workers, and
 * uploads them. Datasets are reference-counted: subsets and loaders retain the dataset they use, so that its handle
 * may be freed early. */
#ifndef TARN_DATA_H
#define TARN_DATA_H

#include <tarn/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- datasets ---------------------------------------------------------------------------------------------------- */

/* Maximum number of fields, and of axes of a field: a batch has one more axis. */
#define TARN_MAX_FIELDS 8
#define TARN_MAX_FIELD_RANK (TARN_MAX_RANK - 1)

typedef struct tarn_dataset tarn_dataset;

/* One field of a sample. */
typedef struct tarn_field {
    const char *name;
    tarn_dtype dtype;
    tarn_shape shape; /* of one sample; TARN_SCALAR for a label */
} tarn_field;

/* Writes sample `index`: the elements of field k, row-major, to memory[k]. Called by several threads at once. False,
 * after tarn_set_error(), on failure. */
typedef bool (*tarn_get_fn)(int64_t index, void *const *memory, void *ctx);

/* A custom dataset. Copies the fields. Takes ownership of `ctx`: `release` (may be NULL) is called when the dataset
 * is freed, or if this call fails. The caller owns the dataset. */
TARN_API tarn_dataset *tarn_dataset_new(const tarn_field *fields, int field_count, int64_t count, tarn_get_fn get,
                                        void *ctx, void (*release)(void *ctx));

/* A dataset of arrays in memory: sample i is row i of each; all have the same first size. Copies names and elements. */
TARN_API tarn_dataset *tarn_dataset_from_arrays(const char *const *names, const tarn_array *arrays, int count);

/* Images and labels from two files in MNIST's idx format, plain or gzip: "image", [1, H, W] where the file holds [N,
 * H, W], in the file's dtype (8- and 16-bit signed integers become i32), and "label", i64 []. `labels` may be NULL:
 * no labels. */
TARN_API tarn_dataset *tarn_dataset_idx(const char *images, const char *labels);

/* MNIST or Fashion-MNIST: finds the two files of the training or test set in a folder by their usual names, with or
 * without ".gz". */
TARN_API tarn_dataset *tarn_dataset_mnist(const char *folder, bool training);

/* CIFAR-10 from files of its binary version, concatenated: "image", u8 [3, 32, 32], and "label", i64 []. */
TARN_API tarn_dataset *tarn_dataset_cifar10(const char *const *paths, int count);

/* CIFAR-10 from a folder: data_batch_1.bin to data_batch_5.bin for training, test_batch.bin for testing. */
TARN_API tarn_dataset *tarn_dataset_cifar10_folder(const char *folder, bool training);

/* Synthetic digits, for training without a file: "image", u8 [1, 28, 28], white on black, and "label", i64 [], 0 to
 * 9 in random order. Strokes vary in shape, position, slant, width and noise. Sample i is a function of seed and i
 * alone: two seeds make a training and a test set. */
TARN_API tarn_dataset *tarn_dataset_digits(int64_t count, uint64_t seed);

/* Whether the first line of a CSV file holds column names. */
typedef enum tarn_csv_header {
    TARN_HEADER_AUTO = 0, /* yes if one of its fields is not a number */
    TARN_HEADER_YES,
    TARN_HEADER_NO
} tarn_csv_header;

/* Options of tarn_dataset_csv(); zero is every field's default. */
typedef struct tarn_csv_options {
    tarn_csv_header header;
    char delimiter;     /* default ',' */
    const char *label;  /* label column: name, or index from 0 or from the last ("-1"); default: none */
    bool label_is_real; /* the label is a number of type `dtype`; default: an integer, i64 */
    tarn_dtype dtype;   /* of the values: f32 (the default) or f64 */
} tarn_csv_options;

/* Numbers from a CSV file, plain or gzip: "x", [columns], and "label", []. Fields may be quoted. Text, missing
 * values, NaN and infinity are errors that name line and column. `...` is a const tarn_csv_options *, or NULL. */
TARN_API tarn_dataset *tarn_dataset_csv_sized(const char *path, const tarn_csv_options *options, size_t options_size);
#define tarn_dataset_csv(path, ...) tarn_dataset_csv_sized(path, __VA_ARGS__, sizeof(tarn_csv_options))

/* Arrays from NumPy's .npy files, one per field, with the same first size. */
TARN_API tarn_dataset *tarn_dataset_npy(const char *const *names, const char *const *paths, int count);

/* Reads one .npy file (versions 1.0 to 3.0, C or Fortran order, either byte order) into a row-major array, which the
 * caller releases with tarn_array_free(). Other dtypes than tarn's are an error. */
TARN_API bool tarn_npy_load(const char *path, tarn_array *array);

/* Reads an image file as u8 [C, H, W], which the caller releases with tarn_array_free(): PNG (needs zlib), JPEG (needs
 * libjpeg-turbo; upright by its EXIF orientation, CMYK as RGB), PGM or PPM (P2, P3, P5, P6), detected by their first
 * bytes, up to 32768 pixels per side and 2^27 in total; and .npy files of u8 [C, H, W] or [H, W]. C is 1 for grey, 3
 * for colour, plus 1 for alpha. Other bit depths are scaled to 0 to 255. */
TARN_API bool tarn_image_load(const char *path, tarn_array *image);

/* Resizes an image, u8 [C, H, W]: interpolates when enlarging, averages when reducing. `resized` must be another
 * array; release it with tarn_array_free(). */
TARN_API bool tarn_image_resize(const tarn_array *image, int64_t height, int64_t width, tarn_array *resized);

/* Converts an image to grey (1 channel) or colour (3); transparent pixels are blended with white. `converted` as
 * above. */
TARN_API bool tarn_image_convert(const tarn_array *image, int64_t channels, tarn_array *converted);

/* Reads an image file as a square, u8 [channels, size, size]: grey (1 channel) or colour (3), resized so that the
 * shorter side has `size` pixels, and cropped at the centre. The caller releases it with tarn_array_free(). */
TARN_API bool tarn_image_load_square(const char *path, int64_t size, int64_t channels, tarn_array *image);

/* Options of tarn_dataset_images(). `size` is required; zero is every other field's default. */
typedef struct tarn_images_options {
    int64_t size; /* side of the samples in pixels, 8 to 4096 */
    bool grey;    /* one channel; default: three, red, green and blue */
    /* names of the classes in the order of their labels, copied, such as those of the training set; default: those
     * found, in the order of their bytes */
    const char *const *class_names;
    int64_t class_count;
} tarn_images_options;

/* Image files with classes: "image", u8 [C, size, size], as tarn_image_load_square() reads them, and "label", i64 [].
 * The folder has a folder of files per class, searched recursively, or labels.csv with lines of file,label, paths
 * relative to it. Files are decoded when a sample is read, and none are retained. Their order does not depend on the
 * file system. Files that cannot be decoded are not errors: they are logged, counted, and replaced by the next file of
 * their class. `...` is a const tarn_images_options *. */
TARN_API tarn_dataset *tarn_dataset_images_sized(const char *folder, const tarn_images_options *options,
                                                 size_t options_size);
#define tarn_dataset_images(folder, ...) tarn_dataset_images_sized(folder, __VA_ARGS__, sizeof(tarn_images_options))

/* Number of class names of a dataset of image files, or of a subset of one; 0 for others; -1 on error. The name of a
 * label belongs to the dataset. */
TARN_API int64_t tarn_dataset_class_count(const tarn_dataset *dataset);
TARN_API const char *tarn_dataset_class_name(const tarn_dataset *dataset, int64_t index);

/* Number of image files that could not be decoded so far; -1 on error. "PATH: why" of one, which belongs to the
 * dataset. */
TARN_API int64_t tarn_dataset_skipped_count(const tarn_dataset *dataset);
TARN_API const char *tarn_dataset_skipped(const tarn_dataset *dataset, int64_t index);

/* Samples of a dataset in the order of `indices`, which are copied. Retains the dataset; the caller owns the result. */
TARN_API tarn_dataset *tarn_dataset_subset(tarn_dataset *dataset, const int64_t *indices, int64_t count);

/* Splits a dataset at random: `first` gets `first_count` samples, `second` the others, as a function of the seed
 * alone. Retains the dataset; the caller owns both. On failure false, with an error, and both NULL. */
TARN_API bool tarn_dataset_split(tarn_dataset *dataset, int64_t first_count, uint64_t seed, tarn_dataset **first,
                                 tarn_dataset **second);

/* Number of samples, and of fields per sample; -1 on error. */
TARN_API int64_t tarn_dataset_count(const tarn_dataset *dataset);
TARN_API int tarn_dataset_field_count(const tarn_dataset *dataset);

/* Field number `index`; its name belongs to the dataset. */
TARN_API bool tarn_dataset_field(const tarn_dataset *dataset, int index, tarn_field *field);

/* Writes one sample into the caller's memory: memory[k] has capacity for the elements of field k. */
TARN_API bool tarn_dataset_read(const tarn_dataset *dataset, int64_t index, void *const *memory);

/* Releases a dataset; it is freed when no subset or loader uses it. NULL is allowed; works while an error is
 * pending. */
TARN_API void tarn_dataset_free(tarn_dataset *dataset);

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* A CSV or TSV file in memory: columns of numbers and of words. Reference-counted, as datasets are. */
typedef struct tarn_table tarn_table;

/* How the rows of a table become inputs and labels, fitted to its training rows. */
typedef struct tarn_table_encoder tarn_table_encoder;

/* Decimal point of numbers. */
typedef enum tarn_csv_decimal {
    TARN_DECIMAL_AUTO = 0, /* a comma, if the delimiter is another and no number of the file has a point */
    TARN_DECIMAL_POINT,
    TARN_DECIMAL_COMMA
} tarn_csv_decimal;

/* Options of tarn_table_open(); zero is every field's default. */
typedef struct tarn_table_options {
    /* AUTO: yes if the first line has no number, or a word where the second line has a number */
    tarn_csv_header header;
    char delimiter; /* ',', ';' or '\t'; default: found in the first lines */
    tarn_csv_decimal decimal;
    /* columns are those of this encoder, found by name, with their types; NULL: all, with types by their values */
    const tarn_table_encoder *like;
} tarn_table_options;

/* Reads a CSV or TSV file, plain or gzip. A column is of numbers if all its values are, else of categories. Empty
 * fields, NA, NaN, null and ? are missing values. A row of another number of fields is skipped, named in a warning and
 * counted; more than one in ten, and text that is not UTF-8, are errors that name the line. The caller owns the table.
 * `...` is a const tarn_table_options *, or NULL. */
TARN_API tarn_table *tarn_table_open_sized(const char *path, const tarn_table_options *options, size_t options_size);
#define tarn_table_open(path, ...) tarn_table_open_sized(path, __VA_ARGS__, sizeof(tarn_table_options))

/* What a file was found to be. */
typedef struct tarn_table_info {
    int64_t rows, broken; /* broken: skipped */
    int columns;
    bool has_header;
    char delimiter, decimal; /* decimal: '.' or ',' */
} tarn_table_info;
TARN_API bool tarn_table_query(const tarn_table *table, tarn_table_info *info);

/* A column. Strings belong to the table. */
typedef struct tarn_column_info {
    const char *name; /* without a header its number, from 1 */
    bool is_category;
    int64_t missing;    /* values */
    int64_t categories; /* distinct words; 0 for numbers */
} tarn_column_info;
TARN_API bool tarn_table_column(const tarn_table *table, int index, tarn_column_info *column);

/* Releases a table; it is freed when no dataset uses it. NULL is allowed; works while an error is pending. */
TARN_API void tarn_table_free(tarn_table *table);

/* Whether the target is a class or a number. */
typedef enum tarn_table_task {
    TARN_TABLE_AUTO =
        0, /* numbers are a regression, unless all are integers with at most 20 distinct values, one of them twice */
    TARN_TABLE_CLASSIFY,
    TARN_TABLE_REGRESS
} tarn_table_task;

/* Options of tarn_table_encoder_new(); zero is every field's default. */
typedef struct tarn_table_encoder_options {
    const char *target; /* column: name, number from 1, or from the last ("-1"); default: the last one */
    const char *drop;   /* columns to ignore, separated by commas; default: none */
    tarn_table_task task;
    /* fraction of the rows for validation, at random, per class in classification; default 0.1, negative: none */
    double val_fraction;
    uint64_t seed; /* of the split */
} tarn_table_encoder_options;

/* Fits an encoder to the training rows. Numbers are normalized by mean and standard deviation; a missing one becomes
 * the mean. Categories become one-hot vectors with one place for all words that occur once or not at all; a missing one
 * becomes the most frequent. Columns with missing values get another input that is 1 where the value was missing.
 * Columns whose words are all different are ignored. The caller owns the encoder. `...` is a const
 * tarn_table_encoder_options *, or NULL. */
TARN_API tarn_table_encoder *
tarn_table_encoder_new_sized(const tarn_table *table, const tarn_table_encoder_options *options, size_t options_size);
#define tarn_table_encoder_new(table, ...) \
    tarn_table_encoder_new_sized(table, __VA_ARGS__, sizeof(tarn_table_encoder_options))

/* State of an encoder. Strings belong to the encoder. */
typedef struct tarn_table_encoder_info {
    int64_t features; /* length of an input */
    int inputs;       /* columns */
    const char *target;
    bool is_regression;
    int64_t classes;   /* 0 for a regression */
    double mean, std;  /* of the target of a regression: a label is (value - mean) / std */
    const char *notes; /* decisions about columns and target, one sentence per line; "" if there are none */
} tarn_table_encoder_info;
TARN_API bool tarn_table_encoder_query(const tarn_table_encoder *encoder, tarn_table_encoder_info *info);

/* Name of a class. Borrowed from the encoder. */
TARN_API const char *tarn_table_encoder_class(const tarn_table_encoder *encoder, int64_t index);

/* Releases an encoder; it is freed when no dataset uses it. NULL is allowed; works while an error is pending. */
TARN_API void tarn_table_encoder_free(tarn_table_encoder *encoder);

/* Rows of a table. */
typedef enum tarn_table_part { TARN_TABLE_ALL = 0, TARN_TABLE_TRAINING, TARN_TABLE_VALIDATION } tarn_table_part;

/* The rows of a table as samples: "x", f32 [features], and "label", i64 [] (a class) or f32 [] (a normalized number).
 * Rows without a target are skipped; a class unknown to the encoder is an error. The training part is the one that the
 * encoder was fitted to. Retains table and encoder; the caller owns the dataset. */
TARN_API tarn_dataset *tarn_dataset_table(tarn_table *table, tarn_table_encoder *encoder, tarn_table_part part);

/* ---- the loader -------------------------------------------------------------------------------------------------- */

typedef struct tarn_loader tarn_loader;

/* Random generator of one sample in one epoch: independent of the thread that uses it. */
typedef struct tarn_random_state {
    uint64_t key, drawn;
} tarn_random_state;

/* Next random number: an integer from 0 to limit - 1 (-1, with an error, for a limit below 1), or a real number in
 * [0, 1). */
TARN_API int64_t tarn_random_below(tarn_random_state *random, int64_t limit);
TARN_API double tarn_random_unit(tarn_random_state *random);

/* Augments a sample in place: memory[k] holds field k in the dataset's dtype. Called by several threads at once.
 * False, after tarn_set_error(), on failure. */
typedef bool (*tarn_augment_fn)(int64_t index, tarn_random_state *random, void *const *memory, void *ctx);

/* Options of tarn_loader_new(). `batch_size` is required; zero is every other field's default. */
typedef struct tarn_loader_options {
    int64_t batch_size;
    bool shuffle;
    bool drop_last;     /* skip a last batch that is not full */
    uint64_t seed;      /* of shuffling and augmentation */
    int workers;        /* prefetch threads, at most 64; default 0: the calling thread reads */
    int prefetch;       /* batches prepared ahead by workers, at most 64; default 2 */
    tarn_device device; /* default the CPU */

    /* Augmentation of a sample, in this order. Crop and flip need a first field [C, H, W]. */

    /* zero-pad each side by this many pixels, then crop to the original size at a random position */
    int crop_padding;
    bool flip; /* mirror horizontally with probability 1/2 */
    tarn_augment_fn augment;
    void *augment_ctx;

    /* Normalization of the first field to f32: (value · scale - mean[c]) / std[c], c along its first axis. */
    bool normalize;
    float scale;       /* default 1/255 for u8, else 1 */
    const float *mean; /* copied; NULL: 0 */
    const float *std;  /* copied; NULL: 1 */
    int channels;      /* length of mean and std: size of the field's first axis, or 1 for all */

    /* Augmentation of images. A random crop comes first: a rectangle of at least this fraction of the image file's
     * area, resized to the sample; needs tarn_dataset_images(). Jitter comes after the flip: brightness, contrast and
     * saturation change by a factor from 1 - jitter to 1 + jitter; needs a first field u8 [1 or 3, H, W]. */
    float crop_scale; /* above 0, at most 1; default: no random crop */
    float jitter;     /* at most 1; default: none */
} tarn_loader_options;

/* Creates a loader. The order is a function of seed and epoch, augmentation one of seed, epoch and sample: batches
 * are bitwise identical for any number of workers. Retains the dataset. The caller owns the loader and uses it from
 * one thread at a time. `...` is a const tarn_loader_options *. */
TARN_API tarn_loader *tarn_loader_new_sized(tarn_dataset *dataset, const tarn_loader_options *options,
                                            size_t options_size);
#define tarn_loader_new(dataset, ...) tarn_loader_new_sized(dataset, __VA_ARGS__, sizeof(tarn_loader_options))

/* The next batch: fields[k] is a tensor [B, ...] on the device, in the open scope, per field of the dataset. False
 * at the end of an epoch; the next call starts another. False with an error when a sample failed; the next call
 * retries that batch. */
TARN_API bool tarn_loader_next(tarn_loader *loader, tarn_tensor **fields);

/* Number of batches of an epoch; -1 on error. */
TARN_API int64_t tarn_loader_batches(const tarn_loader *loader);

/* Position of a loader: the epoch, from 0, and the number of batches of it already returned. */
typedef struct tarn_loader_state {
    int64_t epoch, batch;
} tarn_loader_state;

/* Gets and sets the position of a loader, to resume with the batch that would have followed. */
TARN_API bool tarn_loader_tell(const tarn_loader *loader, tarn_loader_state *state);
TARN_API bool tarn_loader_seek(tarn_loader *loader, tarn_loader_state state);

/* Frees a loader, also within an epoch; tensors it returned stay valid. NULL is allowed; works while an error is
 * pending. */
TARN_API void tarn_loader_free(tarn_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
