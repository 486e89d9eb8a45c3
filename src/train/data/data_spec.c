/* data_spec.c: the data spec of a run: shape of a sample, classes with their names, and normalization of inputs; and
 * its form in config.json.
 *
 * Mean and std are those of the training samples along the first axis: per colour channel, or per column of a table.
 * They are computed once, when a run starts, from fewer than 2 · SCAN_TARGET samples, and stored with the model, so
 * that evaluation and prediction normalize as training did. The hash identifies the data when a run is resumed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/number_format.h"
#include "core/tensor/tensor.h"
#include "data/table/table.h"
#include "train/data/table_source.h"

/* Samples for mean, std and hash, evenly spaced over the set; the step is rounded down, so up to twice as many. */
enum { SCAN_TARGET = 2000 };

/* ---- scanning samples ------------------------------------------------------------------------------------------- */

/* One pass over samples. Buffers for one sample of all fields are owned. */
typedef struct scan {
    const char *function;
    tarn_dataset *dataset, *validation;
    tarn_field field[2]; /* input and label */
    int64_t elements;    /* of an input */
    void *memory[TARN_MAX_FIELDS];
    size_t bytes[TARN_MAX_FIELDS];
    int fields;
    double *sum, *squares; /* [channels] */
    int64_t largest;       /* label */
    uint64_t hash;         /* of the scanned samples */
    bool is_regression;    /* labels are f32 */
} scan;

static int64_t elements_of(tarn_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++)
        count *= shape.size[i];
    return count;
}

static bool is_integer(tarn_dtype dtype)
{
    return dtype == TARN_I64 || dtype == TARN_I32 || dtype == TARN_U8;
}

/* Element `index` of an array, as a double. */
static double element(const void *memory, tarn_dtype dtype, int64_t index)
{
    switch (dtype) {
    case TARN_F32: return (double)((const float *)memory)[index];
    case TARN_F64: return ((const double *)memory)[index];
    case TARN_I32: return (double)((const int32_t *)memory)[index];
    case TARN_I64: return (double)((const int64_t *)memory)[index];
    default: return (double)((const uint8_t *)memory)[index];
    }
}

static bool check_fields(scan *s)
{
    s->fields = tarn_dataset_field_count(s->dataset);
    if (s->fields < 2)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the data has no labels", s->function);
    if (!tarn_dataset_field(s->dataset, 0, &s->field[0]) || !tarn_dataset_field(s->dataset, 1, &s->field[1]))
        return false;
    int rank = s->field[0].shape.rank;
    if ((rank != 1 && rank != 3) || s->field[0].dtype == TARN_BF16 || s->field[0].dtype == TARN_F16 ||
        s->field[0].dtype == TARN_BOOL)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: inputs are %s with %d axes per sample; must be u8, i32, i64, f32 or f64 with 1 or 3",
                           s->function, tarn_dtype_name(s->field[0].dtype), rank);
    if (s->field[1].shape.rank != 0 ||
        (s->is_regression ? s->field[1].dtype != TARN_F32 : !is_integer(s->field[1].dtype)))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: labels are %s with %d axes per sample; must be one integer: i64, i32 or u8",
                           s->function, tarn_dtype_name(s->field[1].dtype), s->field[1].shape.rank);
    s->elements = elements_of(s->field[0].shape);
    return s->elements > 0 || tarn__raise(TARN_ERROR_FORMAT, "%s: inputs have no elements", s->function);
}

static bool alloc_scan(scan *s, int channels)
{
    for (int k = 0; k < s->fields; k++) {
        tarn_field field;
        if (!tarn_dataset_field(s->dataset, k, &field))
            return false;
        s->bytes[k] = (size_t)elements_of(field.shape) * tarn_dtype_size(field.dtype);
        if (!(s->memory[k] = tarn__alloc(s->bytes[k])))
            return false;
    }
    s->sum = tarn__alloc(sizeof(double) * (size_t)channels);
    s->squares = tarn__alloc(sizeof(double) * (size_t)channels);
    return s->sum && s->squares;
}

static void free_scan(scan *s, int channels)
{
    for (int k = 0; k < s->fields && k < TARN_MAX_FIELDS; k++)
        tarn__release(s->memory[k], s->bytes[k]);
    tarn__release(s->sum, sizeof(double) * (size_t)channels);
    tarn__release(s->squares, sizeof(double) * (size_t)channels);
}

/* The error names no sample: a random split has lost its position in the file. */
static bool scan_label(scan *s)
{
    double label = element(s->memory[1], s->field[1].dtype, 0);
    if (label < 0 || label >= TARN__MAX_CLASSES)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: a sample has the label %.0f; must be a class from 0 to %d",
                           s->function, label, TARN__MAX_CLASSES - 1);
    s->largest = (int64_t)label > s->largest ? (int64_t)label : s->largest;
    return true;
}

/* All labels of a dataset whose classes are unknown: a class may occur in one split alone. */
static bool scan_labels(scan *s, tarn_dataset *dataset)
{
    for (int64_t i = 0; i < tarn_dataset_count(dataset); i++)
        if (!tarn_dataset_read(dataset, i, s->memory) || !scan_label(s))
            return false;
    return true;
}

/* FNV-1a over all fields of a sample. */
static void add_to_hash(scan *s)
{
    s->hash = s->hash ? s->hash : 0xcbf29ce484222325u;
    for (int k = 0; k < s->fields; k++)
        for (size_t i = 0; i < s->bytes[k]; i++)
            s->hash = (s->hash ^ ((const uint8_t *)s->memory[k])[i]) * 0x100000001b3u;
}

/* Sums and squares per channel over the scanned training samples. */
static bool scan_samples(scan *s, int channels, double scale, int64_t *scanned)
{
    int64_t count = tarn_dataset_count(s->dataset), step = count > SCAN_TARGET ? count / SCAN_TARGET : 1;
    int64_t inside = s->elements / channels; /* elements of a channel */
    *scanned = 0;
    for (int64_t i = 0; i < count; i += step) {
        if (!tarn_dataset_read(s->dataset, i, s->memory))
            return false;
        ++*scanned;
        add_to_hash(s);
        for (int64_t k = 0; k < s->elements; k++) {
            double value = element(s->memory[0], s->field[0].dtype, k) * scale;
            s->sum[k / inside] += value;
            s->squares[k / inside] += value * value;
        }
    }
    return true;
}

/* Adds validation samples to the hash. */
static bool scan_validation(scan *s)
{
    int64_t count = tarn_dataset_count(s->validation), step = count > SCAN_TARGET ? count / SCAN_TARGET : 1;
    for (int64_t i = 0; i < count; i += step) {
        if (!tarn_dataset_read(s->validation, i, s->memory))
            return false;
        add_to_hash(s);
    }
    return true;
}

/* std is 1 for a constant channel: dividing by rounding noise would blow it up. */
static void compute_std(tarn__data_spec *d, const scan *s, int64_t scanned)
{
    double n = (double)(scanned * (s->elements / d->channels));
    for (int c = 0; c < d->channels; c++) {
        double mean = s->sum[c] / n, variance = s->squares[c] / n - mean * mean;
        d->mean[c] = (float)mean;
        d->std[c] = variance > 1e-12 * (1 + mean * mean) ? (float)sqrt(variance) : 1;
    }
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

bool tarn__data_spec_alloc(tarn__data_spec *d)
{
    d->class_name = tarn__alloc(sizeof(char *) * (size_t)d->classes);
    d->mean = tarn__alloc(sizeof(float) * (size_t)d->channels);
    d->std = tarn__alloc(sizeof(float) * (size_t)d->channels);
    return d->class_name && d->mean && d->std;
}

/* Numbers as names, but for CIFAR-10. */
static bool name_classes(tarn__data_spec *d, bool is_cifar10)
{
    static const char *const cifar10[] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                          "dog",      "frog",       "horse", "ship", "truck"};
    for (int64_t i = 0; i < d->classes; i++) {
        char number[24];
        snprintf(number, sizeof(number), "%lld", (long long)i);
        d->class_name[i] = tarn__string_copy(is_cifar10 && i < 10 ? cifar10[i] : number);
        if (!d->class_name[i])
            return false;
    }
    return true;
}

/* Channels are the colours of an image, or the columns of a table. */
static void find_input(tarn__data_spec *d, const tarn_field *field)
{
    d->input = field->shape;
    d->channels = (int)field->shape.size[0];
    d->is_real = field->dtype == TARN_F32 || field->dtype == TARN_F64;
    d->scale = field->dtype == TARN_U8 ? 1.0f / 255 : 1;
}

/* Generated digits never change and take time to generate: their val set is not scanned. */
static bool is_generated(const char *name)
{
    return strncmp(name, "digits", 6) == 0;
}

static bool describe(scan *s, const char *name, tarn__data_spec *d)
{
    bool is_cifar10 = strncmp(name, "cifar10:", 8) == 0,
         is_known = is_cifar10 || is_generated(name) || strncmp(name, "mnist:", 6) == 0;
    int64_t scanned;
    if (!check_fields(s))
        return false;
    if (s->field[0].shape.size[0] > TARN__MAX_CHANNELS)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: inputs have %lld columns or channels; at most %d are supported",
                           s->function, (long long)s->field[0].shape.size[0], TARN__MAX_CHANNELS);
    find_input(d, &s->field[0]);
    bool good = alloc_scan(s, d->channels) && scan_samples(s, d->channels, (double)d->scale, &scanned) &&
                (is_generated(name) || scan_validation(s)) &&
                (is_known || (scan_labels(s, s->dataset) && scan_labels(s, s->validation)));
    d->classes = is_known ? 10 : s->largest + 1;
    d->can_be_mirrored = is_cifar10;
    d->training_samples = tarn_dataset_count(s->dataset);
    d->validation_samples = tarn_dataset_count(s->validation);
    d->hash = s->hash;
    if (good && d->classes < 2)
        good = tarn__raise(TARN_ERROR_FORMAT, "%s: all labels are 0; at least two classes are needed", s->function);
    good = good && tarn__data_spec_alloc(d) && name_classes(d, is_cifar10);
    if (good)
        compute_std(d, s, scanned);
    free_scan(s, d->channels);
    return good;
}

bool tarn__data_spec_create(const char *function, const char *name, tarn_dataset *training, tarn_dataset *validation,
                            tarn__data_spec *spec)
{
    scan s = {.function = function, .dataset = training, .validation = validation};
    *spec = (tarn__data_spec){0};
    return !tarn_failed() && describe(&s, name, spec);
}

/* Mean and std per feature: of numbers those of the encoder, of other features 0 and 1. */
static void set_features(tarn__data_spec *d, const tarn_table_encoder *e)
{
    for (int64_t i = 0; i < e->features; i++)
        d->std[i] = 1;
    for (int i = 0; i < e->input_count; i++)
        if (!e->input[i].is_category) {
            d->mean[e->input[i].first] = (float)e->input[i].mean;
            d->std[e->input[i].first] = (float)e->input[i].std;
        }
}

static bool name_table_classes(tarn__data_spec *d, const tarn_table_encoder *e)
{
    for (int64_t i = 0; i < d->classes; i++)
        if (!(d->class_name[i] = tarn__string_copy(e->is_regression ? e->target : e->classes.word[i])))
            return false;
    return true;
}

bool tarn__data_spec_create_table(const char *function, tarn_table_encoder *e, tarn_dataset *training,
                                  tarn_dataset *validation, tarn__data_spec *d)
{
    scan s = {.function = function, .dataset = training, .validation = validation, .is_regression = e->is_regression};
    int64_t scanned;
    if (e->features > TARN__MAX_CHANNELS)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the table has %lld features; at most %d are supported", function,
                           (long long)e->features, TARN__MAX_CHANNELS);
    *d = (tarn__data_spec){.table = tarn__encoder_retain(e),
                           .training_samples = tarn_dataset_count(training),
                           .validation_samples = tarn_dataset_count(validation),
                           .classes = e->is_regression ? 1 : e->classes.count};
    if (d->validation_samples < 1)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the table has no rows for validation", function);
    if (tarn_failed() || !check_fields(&s))
        return false;
    find_input(d, &s.field[0]);
    bool good = alloc_scan(&s, d->channels) && scan_samples(&s, d->channels, 1, &scanned) && scan_validation(&s);
    d->hash = s.hash;
    free_scan(&s, d->channels);
    good = good && tarn__data_spec_alloc(d) && name_table_classes(d, e);
    if (good)
        set_features(d, e);
    return good;
}

void tarn__data_spec_free(tarn__data_spec *spec)
{
    tarn_table_encoder_free(spec->table);
    for (int64_t i = 0; spec->class_name && i < spec->classes; i++)
        tarn__string_free(spec->class_name[i]);
    tarn__release(spec->class_name, sizeof(char *) * (size_t)spec->classes);
    tarn__release(spec->mean, sizeof(float) * (size_t)spec->channels);
    tarn__release(spec->std, sizeof(float) * (size_t)spec->channels);
    *spec = (tarn__data_spec){0};
}

bool tarn__data_spec_is_regression(const tarn__data_spec *d)
{
    return d->table && d->table->is_regression;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

bool tarn__data_spec_fits(const char *function, const tarn__data_spec *d, const tarn_dataset *dataset)
{
    scan s = {
        .function = function, .dataset = (tarn_dataset *)dataset, .is_regression = tarn__data_spec_is_regression(d)};
    tarn__data_spec other = {0};
    if (!check_fields(&s))
        return false;
    find_input(&other, &s.field[0]);
    bool same = other.input.rank == d->input.rank;
    for (int i = 0; same && i < d->input.rank; i++)
        same = other.input.size[i] == d->input.size[i];
    /* bytes are scaled to 0…1, other types are not scaled */
    bool was_bytes = d->scale < 1, is_bytes = other.scale < 1;
    if (same && was_bytes != is_bytes && (was_bytes ? other.is_real : d->is_real))
        return tarn__raise(
            TARN_ERROR_DTYPE,
            "%s: samples of the data are %s, but the model was trained on %s; only u8 inputs are scaled to 0…1",
            function, tarn_dtype_name(s.field[0].dtype), was_bytes ? "u8" : "f32 or f64");
    if (same)
        return true;
    return tarn__raise(TARN_ERROR_SHAPE, "%s: samples of the data are %s, but the model was trained on %s", function,
                       tarn__shape_string(other.input.size, other.input.rank, &(tarn__shape_buffer){{0}}),
                       tarn__shape_string(d->input.size, d->input.rank, &(tarn__shape_buffer){{0}}));
}

bool tarn__data_spec_matches(const char *function, const char *name, const tarn__data_spec *d, tarn_dataset *training,
                             tarn_dataset *validation)
{
    scan s = {.function = function,
              .dataset = training,
              .validation = validation,
              .is_regression = tarn__data_spec_is_regression(d)};
    int64_t scanned, samples = tarn_dataset_count(training);
    if (!tarn__data_spec_fits(function, d, training) || !tarn__data_spec_fits(function, d, validation) ||
        !check_fields(&s))
        return false;
    if (!d->training_samples)
        return true;
    int channels = (int)s.field[0].shape.size[0];
    bool good = alloc_scan(&s, channels) && scan_samples(&s, channels, 1, &scanned) &&
                (is_generated(name) || scan_validation(&s));
    free_scan(&s, channels);
    if (!good)
        return false;
    return (samples == d->training_samples && tarn_dataset_count(validation) == d->validation_samples &&
            s.hash == d->hash) ||
           tarn__raise(
               TARN_ERROR_FORMAT,
               "%s: '%.200s' is not the data that the run was started with; it had %lld training samples, and has %lld",
               function, name, (long long)d->training_samples, (long long)samples);
}

bool tarn__data_spec_has_hash(const tarn__data_spec *d)
{
    return !d->classes || d->training_samples > 0;
}

bool tarn__data_spec_check_labels(const char *function, const tarn__data_spec *d, tarn_dataset *dataset)
{
    scan s = {.function = function, .dataset = dataset};
    bool good = check_fields(&s) && alloc_scan(&s, 1) && scan_labels(&s, dataset);
    free_scan(&s, 1);
    return good && (s.largest < d->classes ||
                    tarn__raise(TARN_ERROR_FORMAT,
                                "%s: a sample has the label %lld, but the model has %lld classes, numbered from 0",
                                function, (long long)s.largest, (long long)d->classes));
}

tarn_loader_options tarn__data_spec_loader_options(const tarn__data_spec *d, int64_t batch_size, tarn_device device)
{
    if (d->table) /* its datasets are normalized */
        return (tarn_loader_options){.batch_size = batch_size, .device = device};
    return tarn__data_spec_raw_loader_options(d, batch_size, device);
}

tarn_loader_options tarn__data_spec_raw_loader_options(const tarn__data_spec *d, int64_t batch_size, tarn_device device)
{
    return (tarn_loader_options){.batch_size = batch_size,
                                 .device = device,
                                 .normalize = true,
                                 .scale = d->scale,
                                 .mean = d->mean,
                                 .std = d->std,
                                 .channels = d->channels};
}

tarn_tensor *tarn__batch_input(const tarn_module *model, tarn_tensor *input)
{
    tarn_tensor *parameter = tarn_module_parameter(model, 0);
    return parameter ? tarn_cast(input, tarn_dtype_of(parameter)) : NULL;
}

tarn_tensor *tarn__batch_label(tarn_tensor *label)
{
    return label ? tarn_cast(label, TARN_I64) : NULL;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

#define STD_KEY "data.std"
#define OLD_STD_KEY "data.deviation" /* in runs of earlier versions */

static bool write_text(const tarn__data_spec *d, tarn__json_file *document)
{
    return tarn__json_file_set_int(document, "data.training_tokens", d->training_tokens) &&
           tarn__json_file_set_int(document, "data.validation_tokens", d->validation_tokens) &&
           tarn__json_file_set_int(document, "data.hash", (int64_t)d->hash);
}

static bool read_text(tarn__data_spec *d, const tarn__json_file *document)
{
    int64_t hash;
    if (!tarn__json_file_int(document, "data.training_tokens", 0, INT64_MAX, &d->training_tokens) ||
        !tarn__json_file_int(document, "data.validation_tokens", 0, INT64_MAX, &d->validation_tokens) ||
        !tarn__json_file_int(document, "data.hash", INT64_MIN, INT64_MAX, &hash))
        return false;
    d->hash = (uint64_t)hash;
    return true;
}

/* Nothing for a run of a version without them. */
static bool write_samples(const tarn__data_spec *d, tarn__json_file *document)
{
    return !d->training_samples ||
           (tarn__json_file_set_int(document, "data.training_samples", d->training_samples) &&
            tarn__json_file_set_int(document, "data.validation_samples", d->validation_samples) &&
            tarn__json_file_set_int(document, "data.hash", (int64_t)d->hash) &&
            tarn__json_file_set_bool(document, "data.is_real", d->is_real));
}

bool tarn__data_spec_write(const tarn__data_spec *d, tarn__json_file *document)
{
    if (!d->classes)
        return write_text(d, document);
    bool good = write_samples(d, document) &&
                tarn__json_file_set_bool(document, "data.can_be_mirrored", d->can_be_mirrored) &&
                tarn__json_file_set_real(document, "data.scale", tarn__number_of_f32(d->scale));
    for (int i = 0; good && i < d->input.rank; i++)
        good = tarn__json_file_add_int(document, "data.input", d->input.size[i]);
    for (int64_t i = 0; good && i < d->classes; i++)
        good = tarn__json_file_add_string(document, "data.class_names", d->class_name[i]);
    for (int c = 0; good && c < d->channels; c++)
        good = tarn__json_file_add_real(document, "data.mean", tarn__number_of_f32(d->mean[c])) &&
               tarn__json_file_add_real(document, STD_KEY, tarn__number_of_f32(d->std[c]));
    return good && (!d->table || tarn__encoder_write(d->table, document));
}

/* Reads an f32 back, bitwise identical. */
static bool read_real(const tarn__json_file *document, const char *key, size_t index, float *value)
{
    double number;
    if (!tarn__json_file_real_at(document, key, index, &number))
        return false;
    *value = (float)number;
    return isfinite(*value) ||
           tarn__raise(TARN_ERROR_FORMAT, "config.json: \"%s\" has a number that is not finite", key);
}

/* Identity of the data for resuming, and the type of its inputs. */
static bool read_samples(tarn__data_spec *d, const tarn__json_file *document)
{
    int64_t hash;
    if (!tarn__json_file_has(document, "data.training_samples")) /* a run of an earlier version */
        return true;
    bool good = tarn__json_file_int(document, "data.training_samples", 1, INT64_MAX, &d->training_samples) &&
                tarn__json_file_int(document, "data.validation_samples", 1, INT64_MAX, &d->validation_samples) &&
                tarn__json_file_int(document, "data.hash", INT64_MIN, INT64_MAX, &hash) &&
                tarn__json_file_bool(document, "data.is_real", &d->is_real);
    d->hash = good ? (uint64_t)hash : 0;
    return good;
}

/* The model and the encoder must agree. */
static bool check_table(const tarn__data_spec *d)
{
    int64_t classes = d->table->is_regression ? 1 : d->table->classes.count;
    return (d->input.rank == 1 && d->input.size[0] == d->table->features && d->classes == classes &&
            d->channels == d->table->features) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "config.json: \"data.table\" does not fit \"data\": %lld features, %lld classes",
                       (long long)d->table->features, (long long)classes);
}

bool tarn__data_spec_read(tarn__data_spec *d, const tarn__json_file *document)
{
    size_t rank, classes, channels, stds;
    double scale;
    const char *std_key = tarn__json_file_has(document, OLD_STD_KEY) ? OLD_STD_KEY : STD_KEY;
    *d = (tarn__data_spec){0};
    if (tarn__json_file_has(document, "data.training_tokens"))
        return read_text(d, document);
    if (!tarn__json_file_count(document, "data.input", 3, &rank) ||
        !tarn__json_file_count(document, "data.class_names", TARN__MAX_CLASSES, &classes) ||
        !tarn__json_file_count(document, "data.mean", TARN__MAX_CHANNELS, &channels) ||
        !tarn__json_file_count(document, std_key, TARN__MAX_CHANNELS, &stds) ||
        !tarn__json_file_real(document, "data.scale", &scale) ||
        !tarn__json_file_bool(document, "data.can_be_mirrored", &d->can_be_mirrored) || !read_samples(d, document))
        return false;
    if (tarn__json_file_has(document, "data.table") && !(d->table = tarn__encoder_read(document)))
        return false;
    size_t min_classes = tarn__data_spec_is_regression(d) ? 1 : 2;
    if (rank < 1 || rank == 2 || classes < min_classes || channels < 1 || channels != stds || !isfinite(scale) ||
        !(scale > 0))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "config.json: \"data\" is invalid: input with %zu axes, %zu classes, %zu means, %zu stds",
                           rank, classes, channels, stds);
    d->input.rank = (int)rank;
    d->classes = (int64_t)classes;
    d->channels = (int)channels;
    d->scale = (float)scale;
    bool good = tarn__data_spec_alloc(d);
    for (size_t i = 0; good && i < rank; i++)
        good = tarn__json_file_int_at(document, "data.input", i, 1, TARN__MAX_CHANNELS, &d->input.size[i]);
    for (size_t i = 0; good && i < classes; i++) {
        const char *name = tarn__json_file_string_at(document, "data.class_names", i);
        good = name && (d->class_name[i] = tarn__string_copy(name)) != NULL;
    }
    for (size_t c = 0; good && c < channels; c++)
        good = read_real(document, "data.mean", c, &d->mean[c]) && read_real(document, std_key, c, &d->std[c]);
    return good && (!d->table || check_table(d));
}
