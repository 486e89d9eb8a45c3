/* description_file.c: what a model knows of its data, to config.json and back. */
#include <math.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/number_format.h"
#include "train/data/data_source.h"

static bool write_text(const tarn__data_spec *d, tarn__json_file *document)
{
    return tarn__json_file_set_int(document, "data.training_tokens", d->training_tokens) &&
           tarn__json_file_set_int(document, "data.validation_tokens", d->validation_tokens) &&
           tarn__json_file_set_int(document, "data.hash", (int64_t)d->hash);
}

static bool read_text(tarn__data_spec *d, const tarn__json_file *document)
{
    int64_t hash;
    d->is_text = true;
    if (!tarn__json_file_int(document, "data.training_tokens", 0, INT64_MAX, &d->training_tokens) ||
        !tarn__json_file_int(document, "data.validation_tokens", 0, INT64_MAX, &d->validation_tokens) ||
        !tarn__json_file_int(document, "data.hash", INT64_MIN, INT64_MAX, &hash))
        return false;
    d->hash = (uint64_t)hash;
    return true;
}

/* Of a run that is older than these, nothing. */
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
    if (d->is_text)
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
               tarn__json_file_add_real(document, "data.deviation", tarn__number_of_f32(d->std[c]));
    return good;
}

/* f32 numbers come back with the same bits. */
static bool read_real(const tarn__json_file *document, const char *key, size_t index, float *value)
{
    double number;
    if (!tarn__json_file_real_at(document, key, index, &number))
        return false;
    *value = (float)number;
    return isfinite(*value) ||
           tarn__raise(TARN_ERROR_FORMAT, "config.json: \"%s\" holds a number that is not finite", key);
}

/* What a run goes on with, and how its numbers were meant. */
static bool read_samples(tarn__data_spec *d, const tarn__json_file *document)
{
    int64_t hash;
    if (!tarn__json_file_has(document, "data.training_samples")) /* the run is older than these */
        return true;
    bool good = tarn__json_file_int(document, "data.training_samples", 1, INT64_MAX, &d->training_samples) &&
                tarn__json_file_int(document, "data.validation_samples", 1, INT64_MAX, &d->validation_samples) &&
                tarn__json_file_int(document, "data.hash", INT64_MIN, INT64_MAX, &hash) &&
                tarn__json_file_bool(document, "data.is_real", &d->is_real);
    d->hash = good ? (uint64_t)hash : 0;
    return good;
}

bool tarn__data_spec_read(tarn__data_spec *d, const tarn__json_file *document)
{
    size_t rank, classes, channels, deviations;
    double scale;
    *d = (tarn__data_spec){0};
    if (tarn__json_file_has(document, "data.training_tokens"))
        return read_text(d, document);
    if (!tarn__json_file_count(document, "data.input", 3, &rank) ||
        !tarn__json_file_count(document, "data.class_names", TARN__MAX_CLASSES, &classes) ||
        !tarn__json_file_count(document, "data.mean", TARN__MAX_CHANNELS, &channels) ||
        !tarn__json_file_count(document, "data.deviation", TARN__MAX_CHANNELS, &deviations) ||
        !tarn__json_file_real(document, "data.scale", &scale) ||
        !tarn__json_file_bool(document, "data.can_be_mirrored", &d->can_be_mirrored) || !read_samples(d, document))
        return false;
    if (rank < 1 || rank == 2 || classes < 2 || channels < 1 || channels != deviations || !isfinite(scale) ||
        !(scale > 0))
        return tarn__raise(
            TARN_ERROR_FORMAT,
            "config.json: \"data\" describes no data: input of %zu axes, %zu classes, %zu means, %zu deviations", rank,
            classes, channels, deviations);
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
        good = read_real(document, "data.mean", c, &d->mean[c]) && read_real(document, "data.deviation", c, &d->std[c]);
    return good;
}
