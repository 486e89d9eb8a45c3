/* data_spec.c: what a model must know of its data: shape, classes and their names, and how inputs are normalised.
 *
 * Mean and deviation are those of the training samples, along the first axis: of each colour, or of each column of a
 * table. They are found once, when a run begins, and kept with the model. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/tensor/tensor.h"
#include "train/data/data_source.h"

enum { LOOKED_AT = 2000 }; /* samples that mean and deviation are found from */

/* ---- what the samples say ---------------------------------------------------------------------------------------- */

typedef struct survey {
    const char *function;
    tarn_dataset *dataset, *validation;
    tarn_field field[2]; /* input and label */
    int64_t elements;    /* of an input */
    void *memory[TARN_MAX_FIELDS];
    size_t bytes[TARN_MAX_FIELDS];
    int fields;
    double *sum, *squares; /* [channels] */
    int64_t largest;       /* label */
    uint64_t hash;         /* of the samples that were looked at */
} survey;

static int64_t elements_of(tarn_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++)
        count *= shape.size[i];
    return count;
}

static bool is_whole(tarn_dtype dtype)
{
    return dtype == TARN_I64 || dtype == TARN_I32 || dtype == TARN_U8;
}

/* Element `index` of an array, as a number. */
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

static bool check_fields(survey *s)
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
                           "%s: inputs are %s on %d axes a sample; they must be u8, i32, i64, f32 or f64 on 1 or 3",
                           s->function, tarn_dtype_name(s->field[0].dtype), rank);
    if (s->field[1].shape.rank != 0 || !is_whole(s->field[1].dtype))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: labels are %s on %d axes a sample; a label is one whole number: i64, i32 or u8",
                           s->function, tarn_dtype_name(s->field[1].dtype), s->field[1].shape.rank);
    s->elements = elements_of(s->field[0].shape);
    return s->elements > 0 || tarn__raise(TARN_ERROR_FORMAT, "%s: inputs have no elements", s->function);
}

static bool get_memory(survey *s, int channels)
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

static void give_memory_back(survey *s, int channels)
{
    for (int k = 0; k < s->fields && k < TARN_MAX_FIELDS; k++)
        tarn__release(s->memory[k], s->bytes[k]);
    tarn__release(s->sum, sizeof(double) * (size_t)channels);
    tarn__release(s->squares, sizeof(double) * (size_t)channels);
}

/* Which sample it is cannot be said: data may have been dealt out at random. */
static bool look_at_label(survey *s)
{
    double label = element(s->memory[1], s->field[1].dtype, 0);
    if (label < 0 || label >= TARN__MAX_CLASSES)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: a sample has the label %.0f; labels are classes, from 0 to %d",
                           s->function, label, TARN__MAX_CLASSES - 1);
    s->largest = (int64_t)label > s->largest ? (int64_t)label : s->largest;
    return true;
}

/* The labels of all data that a run will meet, where nobody knows them: a class may be in one part alone. */
static bool look_at_labels(survey *s, tarn_dataset *dataset)
{
    for (int64_t i = 0; i < tarn_dataset_count(dataset); i++)
        if (!tarn_dataset_read(dataset, i, s->memory) || !look_at_label(s))
            return false;
    return true;
}

/* FNV-1a over all fields of a sample. */
static void add_to_hash(survey *s)
{
    s->hash = s->hash ? s->hash : 0xcbf29ce484222325u;
    for (int k = 0; k < s->fields; k++)
        for (size_t i = 0; i < s->bytes[k]; i++)
            s->hash = (s->hash ^ ((const uint8_t *)s->memory[k])[i]) * 0x100000001b3u;
}

/* Reads as many samples as the means need. */
static bool look(survey *s, int channels, double scale, int64_t *looked_at)
{
    int64_t count = tarn_dataset_count(s->dataset), step = count > LOOKED_AT ? count / LOOKED_AT : 1;
    int64_t inside = s->elements / channels; /* elements of a channel */
    *looked_at = 0;
    for (int64_t i = 0; i < count; i += step) {
        if (!tarn_dataset_read(s->dataset, i, s->memory))
            return false;
        ++*looked_at;
        add_to_hash(s);
        for (int64_t k = 0; k < s->elements; k++) {
            double value = element(s->memory[0], s->field[0].dtype, k) * scale;
            s->sum[k / inside] += value;
            s->squares[k / inside] += value * value;
        }
    }
    return true;
}

/* The hash is of samples of both parts. */
static bool look_at_validation(survey *s)
{
    int64_t count = tarn_dataset_count(s->validation), step = count > LOOKED_AT ? count / LOOKED_AT : 1;
    for (int64_t i = 0; i < count; i += step) {
        if (!tarn_dataset_read(s->validation, i, s->memory))
            return false;
        add_to_hash(s);
    }
    return true;
}

/* A channel that never changes is left as wide as it is. */
static void find_deviation(tarn__data_spec *d, const survey *s, int64_t looked_at)
{
    double n = (double)(looked_at * (s->elements / d->channels));
    for (int c = 0; c < d->channels; c++) {
        double mean = s->sum[c] / n, variance = s->squares[c] / n - mean * mean;
        d->mean[c] = (float)mean;
        d->std[c] = variance > 1e-12 * (1 + mean * mean) ? (float)sqrt(variance) : 1;
    }
}

/* ---- describing -------------------------------------------------------------------------------------------------- */

bool tarn__data_spec_alloc(tarn__data_spec *d)
{
    d->class_name = tarn__alloc(sizeof(char *) * (size_t)d->classes);
    d->mean = tarn__alloc(sizeof(float) * (size_t)d->channels);
    d->std = tarn__alloc(sizeof(float) * (size_t)d->channels);
    return d->class_name && d->mean && d->std;
}

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

/* Colours of an image are channels, and so are a table's columns. */
static void find_input(tarn__data_spec *d, const tarn_field *field)
{
    d->input = field->shape;
    d->channels = (int)field->shape.size[0];
    d->is_real = field->dtype == TARN_F32 || field->dtype == TARN_F64;
    d->scale = field->dtype == TARN_U8 ? 1.0f / 255 : 1;
}

/* Digits are the same ever after, and take time to draw. */
static bool is_drawn(const char *name)
{
    return strncmp(name, "digits", 6) == 0;
}

static bool describe(survey *s, const char *name, tarn__data_spec *d)
{
    bool is_cifar10 = strncmp(name, "cifar10:", 8) == 0,
         is_known = is_cifar10 || is_drawn(name) || strncmp(name, "mnist:", 6) == 0;
    int64_t looked_at;
    if (!check_fields(s))
        return false;
    if (s->field[0].shape.size[0] > TARN__MAX_CHANNELS)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: inputs have %lld columns or channels; there may be %d", s->function,
                           (long long)s->field[0].shape.size[0], TARN__MAX_CHANNELS);
    find_input(d, &s->field[0]);
    bool good = get_memory(s, d->channels) && look(s, d->channels, (double)d->scale, &looked_at) &&
                (is_drawn(name) || look_at_validation(s)) &&
                (is_known || (look_at_labels(s, s->dataset) && look_at_labels(s, s->validation)));
    d->classes = is_known ? 10 : s->largest + 1;
    d->can_be_mirrored = is_cifar10;
    d->training_samples = tarn_dataset_count(s->dataset);
    d->validation_samples = tarn_dataset_count(s->validation);
    d->hash = s->hash;
    if (good && d->classes < 2)
        good = tarn__raise(TARN_ERROR_FORMAT, "%s: all labels are 0; there must be at least two classes to tell apart",
                           s->function);
    good = good && tarn__data_spec_alloc(d) && name_classes(d, is_cifar10);
    if (good)
        find_deviation(d, s, looked_at);
    give_memory_back(s, d->channels);
    return good;
}

bool tarn__data_spec_create(const char *function, const char *name, tarn_dataset *training, tarn_dataset *validation,
                            tarn__data_spec *description)
{
    survey s = {.function = function, .dataset = training, .validation = validation};
    *description = (tarn__data_spec){0};
    return !tarn_failed() && describe(&s, name, description);
}

void tarn__data_spec_free(tarn__data_spec *description)
{
    for (int64_t i = 0; description->class_name && i < description->classes; i++)
        tarn__string_free(description->class_name[i]);
    tarn__release(description->class_name, sizeof(char *) * (size_t)description->classes);
    tarn__release(description->mean, sizeof(float) * (size_t)description->channels);
    tarn__release(description->std, sizeof(float) * (size_t)description->channels);
    *description = (tarn__data_spec){0};
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

bool tarn__data_spec_fits(const char *function, const tarn__data_spec *d, const tarn_dataset *dataset)
{
    survey s = {.function = function, .dataset = (tarn_dataset *)dataset};
    tarn__data_spec other = {0};
    if (!check_fields(&s))
        return false;
    find_input(&other, &s.field[0]);
    bool same = other.input.rank == d->input.rank;
    for (int i = 0; same && i < d->input.rank; i++)
        same = other.input.size[i] == d->input.size[i];
    /* bytes stand for 0 to 1, other numbers for themselves */
    bool was_bytes = d->scale < 1, is_bytes = other.scale < 1;
    if (same && was_bytes != is_bytes && (was_bytes ? other.is_real : d->is_real))
        return tarn__raise(
            TARN_ERROR_DTYPE,
            "%s: samples of the data are %s, but the model was trained on %s; bytes from 0 to 255 are other numbers",
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
    survey s = {.function = function, .dataset = training, .validation = validation};
    int64_t looked_at, samples = tarn_dataset_count(training);
    if (!tarn__data_spec_fits(function, d, training) || !tarn__data_spec_fits(function, d, validation) ||
        !check_fields(&s))
        return false;
    if (!d->training_samples)
        return true;
    int channels = (int)s.field[0].shape.size[0];
    bool good =
        get_memory(&s, channels) && look(&s, channels, 1, &looked_at) && (is_drawn(name) || look_at_validation(&s));
    give_memory_back(&s, channels);
    if (!good)
        return false;
    return (samples == d->training_samples && tarn_dataset_count(validation) == d->validation_samples &&
            s.hash == d->hash) ||
           tarn__raise(
               TARN_ERROR_FORMAT,
               "%s: '%.200s' is other data than the run began with; it had %lld samples to train on, and has %lld",
               function, name, (long long)d->training_samples, (long long)samples);
}

bool tarn__data_spec_check_labels(const char *function, const tarn__data_spec *d, tarn_dataset *dataset)
{
    survey s = {.function = function, .dataset = dataset};
    bool good = check_fields(&s) && get_memory(&s, 1) && look_at_labels(&s, dataset);
    give_memory_back(&s, 1);
    return good &&
           (s.largest < d->classes ||
            tarn__raise(TARN_ERROR_FORMAT, "%s: a sample has the label %lld, but the model knows %lld classes, from 0",
                        function, (long long)s.largest, (long long)d->classes));
}

const char *tarn__data_spec_unit(const tarn__data_spec *d)
{
    return d->is_text ? "tokens" : d->input.rank == 3 ? "images" : "rows";
}

tarn_loader_options tarn__data_spec_loader_options(const tarn__data_spec *d, int64_t batch_size, tarn_device device)
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
