/* transform.c: crop, flip, jitter, augment and normalize (transform.h).
 *
 * The first field passes through scratch where a step cannot work in place: raw → cropped → normalized into the batch.
 * Other fields are read straight into the batch. Random numbers are drawn in a fixed order (the crop of the file, down,
 * right, mirror, jitter, then the augment function), which resumed runs depend on. */
#include "data/transform.h"

#include <math.h>
#include <string.h>

/* ---- normalization ----------------------------------------------------------------------------------------------- */

/* Computed in f64 and rounded once, so that the table of u8 and direct conversion agree. */
static float normalized(const tarn__transform *transform, int channel, double value)
{
    const double *number = transform->mean_std + 2 * channel;
    return (float)((value * transform->scale - number[0]) / number[1]);
}

static void look_up(const float *table, const uint8_t *from, float *to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = table[from[i]];
}

/* Element i of a field as a double; i64 above 2^53 rounds. */
static double value_at(tarn_dtype dtype, const void *from, size_t i)
{
    switch (dtype) {
    case TARN_F32: return (double)((const float *)from)[i];
    case TARN_F64: return ((const double *)from)[i];
    case TARN_I32: return (double)((const int32_t *)from)[i];
    default: return (double)((const int64_t *)from)[i];
    }
}

/* Normalizes the first field into f32, channel by channel; channels == 1 covers the whole field. */
static void normalize(const tarn__transform *transform, const void *from, float *to)
{
    tarn_dtype dtype = transform->dataset->field[0].dtype;
    size_t each = transform->bytes[0] / sizeof(float) / (size_t)transform->channels;
    for (int c = 0; c < transform->channels; c++) {
        size_t first = (size_t)c * each;
        if (transform->table)
            look_up(transform->table + 256 * c, (const uint8_t *)from + first, to + first, each);
        for (size_t i = first; !transform->table && i < first + each; i++)
            to[i] = normalized(transform, c, value_at(dtype, from, i));
    }
}

/* Fills in mean and std per channel and, for u8, the table of all 256 results. */
static bool fill_mean_std(tarn__transform *transform, const tarn_loader_options *o)
{
    for (int c = 0; c < transform->channels; c++) {
        double mean = o->mean ? (double)o->mean[c] : 0, std = o->std ? (double)o->std[c] : 1;
        if (!isfinite(mean) || !isfinite(std) || std == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "loader_new: channel %d has mean %g and std %g; both must be finite, and std not 0", c,
                               mean, std);
        transform->mean_std[2 * c] = mean;
        transform->mean_std[2 * c + 1] = std;
        for (int value = 0; transform->table && value < 256; value++)
            transform->table[256 * c + value] = normalized(transform, c, value);
    }
    return true;
}

/* Checks dtype and options of normalization. .mean and .std have one value per channel, or one for all. */
static bool check_normalize(const tarn_field *field, const tarn_loader_options *o)
{
    const uint32_t supported =
        TARN__BIT(TARN_U8) | TARN__BIT(TARN_I32) | TARN__BIT(TARN_I64) | TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64);
    int64_t first = field->shape.rank > 0 ? field->shape.size[0] : 1;
    if (!(supported >> field->dtype & 1))
        return tarn__raise(TARN_ERROR_DTYPE, "loader_new: .normalize supports u8, i32, i64, f32 and f64; '%s' is %s",
                           field->name, tarn_dtype_name(field->dtype));
    if (!isfinite(o->scale))
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: .scale is %g", (double)o->scale);
    if (!o->mean && !o->std)
        return o->channels == 0 || tarn__raise(TARN_ERROR_ARGUMENT,
                                               "loader_new: .channels is %d, but .mean and .std are NULL", o->channels);
    return o->channels == 1 || (o->channels > 0 && o->channels == first) ||
           tarn__raise(TARN_ERROR_SHAPE,
                       "loader_new: .channels is %d, but '%s' has %lld along its first axis; .mean and .std hold "
                       "that many numbers, or 1",
                       o->channels, field->name, (long long)first);
}

/* Checks the options of normalization and sets them up. The first field becomes f32 in the batch. */
static bool init_normalize(tarn__transform *transform, const tarn_loader_options *o)
{
    const tarn_field *field = &transform->dataset->field[0];
    if (!o->normalize)
        return (!o->mean && !o->std && o->scale == 0 && o->channels == 0) ||
               tarn__raise(TARN_ERROR_ARGUMENT,
                           "loader_new: .scale, .mean, .std and .channels are for .normalize, which is false");
    if (!check_normalize(field, o))
        return false;
    transform->normalizes = true;
    transform->channels = o->channels ? o->channels : 1;
    transform->scale = o->scale != 0 ? (double)o->scale : field->dtype == TARN_U8 ? 1.0 / 255 : 1;
    transform->mean_std = tarn__alloc(sizeof(double) * 2 * (size_t)transform->channels);
    if (field->dtype == TARN_U8)
        transform->table = tarn__alloc(sizeof(float) * 256 * (size_t)transform->channels);
    if (!transform->mean_std || (field->dtype == TARN_U8 && !transform->table) || !fill_mean_std(transform, o))
        return false;
    transform->dtype[0] = TARN_F32;
    transform->bytes[0] = transform->bytes[0] / tarn__dtype_bytes(field->dtype) * sizeof(float);
    return true;
}

/* ---- crop and flip ----------------------------------------------------------------------------------------------- */

/* Crop and flip need a field (C, H, W). */
static bool check_image(const tarn_field *field, const tarn_loader_options *o)
{
    if (o->crop_padding == 0 && !o->flip)
        return true;
    if (o->crop_padding < 0 || o->crop_padding > (1 << 20))
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: .crop_padding is %d; it must be 0 to %d", o->crop_padding,
                           1 << 20);
    return field->shape.rank == 3 ||
           tarn__raise(TARN_ERROR_SHAPE,
                       "loader_new: .crop_padding and .flip need a first field [C, H, W]; '%s' has %d axes",
                       field->name, field->shape.rank);
}

/* A random crop needs files, jitter u8 of one or three channels. */
static bool check_augment(const tarn_dataset *dataset, const tarn_loader_options *o)
{
    const tarn_field *field = &dataset->field[0];
    if (!(o->crop_scale >= 0 && o->crop_scale <= 1) || !(o->jitter >= 0 && o->jitter <= 1))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "loader_new: .crop_scale is %g and .jitter is %g; both must be from 0 to 1",
                           (double)o->crop_scale, (double)o->jitter);
    if (o->crop_scale > 0 && !dataset->get_crop)
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: .crop_scale needs a dataset of image files");
    bool has_colours =
        field->dtype == TARN_U8 && field->shape.rank == 3 && (field->shape.size[0] == 1 || field->shape.size[0] == 3);
    return !(o->jitter > 0) || has_colours ||
           tarn__raise(TARN_ERROR_SHAPE, "loader_new: .jitter needs a first field u8 [1 or 3, H, W]; '%s' is another",
                       field->name);
}

/* Reverses a line. The usual element sizes, u8 and f32, get loops with a size known to the compiler. */
static void mirror_line(const char *from, char *to, int64_t count, size_t size)
{
    for (int64_t x = 0; size == 1 && x < count; x++)
        to[count - 1 - x] = from[x];
    for (int64_t x = 0; size == 4 && x < count; x++)
        memcpy(to + 4 * (count - 1 - x), from + 4 * x, 4);
    for (int64_t x = 0; size != 1 && size != 4 && x < count; x++)
        memcpy(to + (size_t)(count - 1 - x) * size, from + (size_t)x * size, size);
}

/* One line of `width` elements shifted right, zeros shifted in, then mirrored if asked. */
static void move_line(const char *from, char *to, int64_t width, int64_t shift, bool mirror, size_t size)
{
    int64_t begin = shift > 0 ? shift : 0, end = shift < 0 ? width + shift : width;
    if (begin >= end) {
        memset(to, 0, (size_t)width * size);
        return;
    }
    if (!mirror) {
        memset(to, 0, (size_t)begin * size);
        memcpy(to + (size_t)begin * size, from + (size_t)(begin - shift) * size, (size_t)(end - begin) * size);
        memset(to + (size_t)end * size, 0, (size_t)(width - end) * size);
        return;
    }
    memset(to, 0, (size_t)(width - end) * size);
    mirror_line(from + (size_t)(begin - shift) * size, to + (size_t)(width - end) * size, end - begin, size);
    memset(to + (size_t)(width - begin) * size, 0, (size_t)begin * size);
}

/* Pads by zeros on all sides and crops the original size at a random position: a shift by -p … p along both axes. */
static void crop_and_flip(const tarn__transform *transform, tarn_random_state *random, const char *from, char *to)
{
    const tarn_field *field = &transform->dataset->field[0];
    int64_t height = field->shape.size[1], width = field->shape.size[2], p = transform->padding;
    int64_t down = p ? p - tarn_random_below(random, 2 * p + 1) : 0,
            right = p ? p - tarn_random_below(random, 2 * p + 1) : 0;
    bool mirror = transform->flip && tarn_random_below(random, 2) == 1;
    size_t size = tarn__dtype_bytes(field->dtype), line = (size_t)width * size;
    for (int64_t c = 0; c < field->shape.size[0]; c++)
        for (int64_t y = 0; y < height; y++) {
            char *target = to + (size_t)(c * height + y) * line;
            if (y - down < 0 || y - down >= height)
                memset(target, 0, line);
            else
                move_line(from + (size_t)(c * height + y - down) * line, target, width, right, mirror, size);
        }
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

bool tarn__transform_init(tarn__transform *transform, tarn_dataset *dataset, const tarn_loader_options *options)
{
    *transform = (tarn__transform){.dataset = tarn__dataset_retain(dataset),
                                   .padding = options->crop_padding,
                                   .flip = options->flip,
                                   .crop_scale = (double)options->crop_scale,
                                   .jitter = options->jitter,
                                   .augment = options->augment,
                                   .augment_ctx = options->augment_ctx};
    for (int k = 0; k < dataset->field_count; k++) {
        transform->dtype[k] = dataset->field[k].dtype;
        transform->bytes[k] = dataset->bytes[k];
    }
    return check_image(&dataset->field[0], options) && check_augment(dataset, options) &&
           init_normalize(transform, options);
}

void tarn__transform_free(tarn__transform *transform)
{
    tarn__release(transform->mean_std, sizeof(double) * 2 * (size_t)transform->channels);
    tarn__release(transform->table, sizeof(float) * 256 * (size_t)transform->channels);
    tarn_dataset_free(transform->dataset);
}

/* True if the first field needs a second buffer: crop and flip cannot work in place. */
static bool moves(const tarn__transform *transform)
{
    return transform->padding > 0 || transform->flip;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

size_t tarn__transform_scratch(const tarn__transform *transform)
{
    return rounded(transform->dataset->bytes[0]) * (size_t)(moves(transform) + transform->normalizes);
}

static bool read_sample(const tarn__transform *transform, int64_t index, tarn_random_state *random, void *const *memory)
{
    tarn_dataset *dataset = transform->dataset;
    if (!(transform->crop_scale > 0))
        return tarn__dataset_get(dataset, index, memory);
    return dataset->get_crop(index, random, transform->crop_scale, memory, dataset->ctx);
}

bool tarn__transform_run(const tarn__transform *transform, int64_t index, tarn_random_state random, void *const *out,
                         char *scratch)
{
    void *memory[TARN_MAX_FIELDS];
    memcpy(memory, out, sizeof(memory[0]) * (size_t)transform->dataset->field_count);
    /* the first field after crop, flip and augment */
    void *changed = transform->normalizes ? scratch : out[0];
    void *raw =
        moves(transform) ? scratch + (transform->normalizes ? rounded(transform->dataset->bytes[0]) : 0) : changed;
    memory[0] = raw;
    if (!read_sample(transform, index, &random, memory))
        return false;
    if (moves(transform))
        crop_and_flip(transform, &random, raw, changed);
    memory[0] = changed;
    if (transform->jitter > 0) {
        const tarn_shape *shape = &transform->dataset->field[0].shape;
        tarn__jitter(changed, (int)shape->size[0], shape->size[1] * shape->size[2], transform->jitter, &random);
    }
    if (transform->augment) {
        bool good = transform->augment(index, &random, memory, transform->augment_ctx);
        if (!good || tarn_failed())
            return tarn__raise(TARN_ERROR_ARGUMENT, "the augment function returned false without an error");
    }
    if (transform->normalizes)
        normalize(transform, changed, out[0]);
    return true;
}
