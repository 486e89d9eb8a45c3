/* transform.c: see transform.h. The first field passes through scratch where a step cannot work in place: raw → cropped
 * → normalised into the batch. */
#include "data/transform.h"

#include <math.h>
#include <string.h>

/* ---- normalisation ----------------------------------------------------------------------------------------------- */

/* In f64, rounded once. */
static float normal(const tarn__transform *plan, int channel, double value)
{
    const double *number = plan->numbers + 2 * channel;
    return (float)((value * plan->scale - number[0]) / number[1]);
}

static void look_up(const float *table, const uint8_t *from, float *to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = table[from[i]];
}

static double number_at(tarn_dtype dtype, const void *from, size_t i)
{
    switch (dtype) {
    case TARN_F32: return (double)((const float *)from)[i];
    case TARN_F64: return ((const double *)from)[i];
    case TARN_I32: return (double)((const int32_t *)from)[i];
    default: return (double)((const int64_t *)from)[i];
    }
}

static void normalize(const tarn__transform *plan, const void *from, float *to)
{
    tarn_dtype dtype = plan->dataset->field[0].dtype;
    size_t each = plan->bytes[0] / sizeof(float) / (size_t)plan->channels;
    for (int c = 0; c < plan->channels; c++) {
        size_t first = (size_t)c * each;
        if (plan->table)
            look_up(plan->table + 256 * c, (const uint8_t *)from + first, to + first, each);
        for (size_t i = first; !plan->table && i < first + each; i++)
            to[i] = normal(plan, c, number_at(dtype, from, i));
    }
}

static bool fill_numbers(tarn__transform *plan, const tarn_loader_options *o)
{
    for (int c = 0; c < plan->channels; c++) {
        double mean = o->mean ? (double)o->mean[c] : 0, std = o->std ? (double)o->std[c] : 1;
        if (!isfinite(mean) || !isfinite(std) || std == 0)
            return tarn__raise(
                TARN_ERROR_ARGUMENT,
                "loader_new: channel %d has mean %g and deviation %g; both must be finite, and the deviation not 0", c,
                mean, std);
        plan->numbers[2 * c] = mean;
        plan->numbers[2 * c + 1] = std;
        for (int value = 0; plan->table && value < 256; value++)
            plan->table[256 * c + value] = normal(plan, c, value);
    }
    return true;
}

static bool check_normalize(const tarn_field *field, const tarn_loader_options *o)
{
    const uint32_t taken =
        TARN__BIT(TARN_U8) | TARN__BIT(TARN_I32) | TARN__BIT(TARN_I64) | TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64);
    int64_t first = field->shape.rank > 0 ? field->shape.size[0] : 1;
    if (!(taken >> field->dtype & 1))
        return tarn__raise(TARN_ERROR_DTYPE, "loader_new: .normalize takes u8, i32, i64, f32 and f64; '%s' is %s",
                           field->name, tarn_dtype_name(field->dtype));
    if (!isfinite(o->scale))
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: .scale is %g", (double)o->scale);
    if (!o->mean && !o->std)
        return o->channels == 0 ||
               tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: .channels is %d, but .mean and .deviation are NULL",
                           o->channels);
    return o->channels == 1 || (o->channels > 0 && o->channels == first) ||
           tarn__raise(TARN_ERROR_SHAPE,
                       "loader_new: .channels is %d, but '%s' has %lld along its first axis; .mean and .deviation hold "
                       "that many numbers, or 1",
                       o->channels, field->name, (long long)first);
}

static bool make_normalize(tarn__transform *plan, const tarn_loader_options *o)
{
    const tarn_field *field = &plan->dataset->field[0];
    if (!o->normalize)
        return (!o->mean && !o->std && o->scale == 0 && o->channels == 0) ||
               tarn__raise(TARN_ERROR_ARGUMENT,
                           "loader_new: .scale, .mean, .deviation and .channels are for .normalize, which is false");
    if (!check_normalize(field, o))
        return false;
    plan->normalizes = true;
    plan->channels = o->channels ? o->channels : 1;
    plan->scale = o->scale != 0 ? (double)o->scale : field->dtype == TARN_U8 ? 1.0 / 255 : 1;
    plan->numbers = tarn__alloc(sizeof(double) * 2 * (size_t)plan->channels);
    if (field->dtype == TARN_U8)
        plan->table = tarn__alloc(sizeof(float) * 256 * (size_t)plan->channels);
    if (!plan->numbers || (field->dtype == TARN_U8 && !plan->table) || !fill_numbers(plan, o))
        return false;
    plan->dtype[0] = TARN_F32;
    plan->bytes[0] = plan->bytes[0] / tarn__dtype_bytes(field->dtype) * sizeof(float);
    return true;
}

/* ---- crop and flip ----------------------------------------------------------------------------------------------- */

static bool check_image(const tarn_field *field, const tarn_loader_options *o)
{
    if (o->crop_padding == 0 && !o->flip)
        return true;
    if (o->crop_padding < 0 || o->crop_padding > (1 << 20))
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: .crop_padding is %d; it is 0 to %d", o->crop_padding,
                           1 << 20);
    return field->shape.rank == 3 ||
           tarn__raise(TARN_ERROR_SHAPE,
                       "loader_new: .crop_padding and .flip want a first field [C, H, W]; '%s' has %d axes",
                       field->name, field->shape.rank);
}

/* Elements in the opposite order; of a size that the compiler knows, where that is usual. */
static void mirror_line(const char *from, char *to, int64_t count, size_t size)
{
    for (int64_t x = 0; size == 1 && x < count; x++)
        to[count - 1 - x] = from[x];
    for (int64_t x = 0; size == 4 && x < count; x++)
        memcpy(to + 4 * (count - 1 - x), from + 4 * x, 4);
    for (int64_t x = 0; size != 1 && size != 4 && x < count; x++)
        memcpy(to + (size_t)(count - 1 - x) * size, from + (size_t)x * size, size);
}

/* One line of `width` elements, moved right by `shift`, zeros where nothing is. */
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

static void crop_and_flip(const tarn__transform *plan, tarn_random_state *random, const char *from, char *to)
{
    const tarn_field *field = &plan->dataset->field[0];
    int64_t height = field->shape.size[1], width = field->shape.size[2], p = plan->padding;
    int64_t down = p ? p - tarn_random_below(random, 2 * p + 1) : 0,
            right = p ? p - tarn_random_below(random, 2 * p + 1) : 0;
    bool mirror = plan->flip && tarn_random_below(random, 2) == 1;
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

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

bool tarn__transform_init(tarn__transform *plan, tarn_dataset *dataset, const tarn_loader_options *options)
{
    *plan = (tarn__transform){.dataset = tarn__dataset_retain(dataset),
                              .padding = options->crop_padding,
                              .flip = options->flip,
                              .augment = options->augment,
                              .augment_ctx = options->augment_ctx};
    for (int k = 0; k < dataset->field_count; k++) {
        plan->dtype[k] = dataset->field[k].dtype;
        plan->bytes[k] = dataset->bytes[k];
    }
    return check_image(&dataset->field[0], options) && make_normalize(plan, options);
}

void tarn__transform_free(tarn__transform *plan)
{
    tarn__release(plan->numbers, sizeof(double) * 2 * (size_t)plan->channels);
    tarn__release(plan->table, sizeof(float) * 256 * (size_t)plan->channels);
    tarn_dataset_free(plan->dataset);
}

static bool moves(const tarn__transform *plan)
{
    return plan->padding > 0 || plan->flip;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

size_t tarn__transform_scratch(const tarn__transform *plan)
{
    return rounded(plan->dataset->bytes[0]) * (size_t)(moves(plan) + plan->normalizes);
}

bool tarn__transform_run(const tarn__transform *plan, int64_t index, tarn_random_state random, void *const *place,
                         char *scratch)
{
    void *memory[TARN_MAX_FIELDS];
    memcpy(memory, place, sizeof(memory[0]) * (size_t)plan->dataset->field_count);
    /* the first field, cropped and changed by the caller's function */
    void *changed = plan->normalizes ? scratch : place[0];
    void *raw = moves(plan) ? scratch + (plan->normalizes ? rounded(plan->dataset->bytes[0]) : 0) : changed;
    memory[0] = raw;
    if (!tarn__dataset_get(plan->dataset, index, memory))
        return false;
    if (moves(plan))
        crop_and_flip(plan, &random, raw, changed);
    memory[0] = changed;
    if (plan->augment) {
        bool good = plan->augment(index, &random, memory, plan->augment_ctx);
        if (!good || tarn_failed())
            return tarn__raise(TARN_ERROR_ARGUMENT, "the augment function returned false without an error");
    }
    if (plan->normalizes)
        normalize(plan, changed, place[0]);
    return true;
}
