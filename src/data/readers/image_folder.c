/* image_folder.c: lists image files and their classes, and reads one as a sample (image_folder.h).
 *
 * Opening a folder reads the first bytes of every file, decoding none. A file that cannot be decoded later is logged,
 * counted and replaced by the next good one of its class and part: which one depends on the files alone, so that
 * batches stay the same with any number of threads. */
#include "data/readers/image_folder.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/os/files.h"
#include "base/os/platform.h"
#include "base/xxh64.h"
#include "data/random.h"

enum { MAX_DEPTH = 16 };     /* folders below that of a class */
enum { MAX_LOGGED = 10 };    /* broken files that are named in the log; all are counted */
enum { CROP_ATTEMPTS = 10 }; /* of a random crop that fits into the image */
#define MAX_RATIO (4.0 / 3)  /* of a random crop's sides */

/* Room for the folder and a path below it, on the stack of each caller: files are read by several threads. */
typedef struct path_buffer {
    char text[4096 + 1024];
} path_buffer;

/* The path below the folder, or the path itself if it is absolute, as labels.csv may have. The text is good until the
 * buffer is used again. */
static const char *path_in(const tarn__image_folder *f, const char *path, path_buffer *buffer)
{
    snprintf(buffer->text, sizeof(buffer->text), path[0] == '/' ? "%.0s%s" : "%s/%s", f->root, path);
    return buffer->text;
}

/* ---- skipped files ----------------------------------------------------------------------------------------------- */

/* Adds "PATH: why" to the skipped files and logs the first ones. Without memory for it, it is only logged. */
static void skip_file(tarn__image_folder *f, const char *path, const char *why)
{
    char text[1024];
    snprintf(text, sizeof(text), "%.500s: %.500s", path, why);
    tarn__error_record none;
    pthread_mutex_lock(&f->lock);
    char *copy = tarn__array_reserve(&f->skipped, f->skipped_count, &f->skipped_capacity, 1, sizeof(char *), 16)
                     ? tarn__string_copy(text)
                     : NULL;
    if (copy)
        f->skipped[f->skipped_count++] = copy;
    size_t count = f->skipped_count;
    pthread_mutex_unlock(&f->lock);
    tarn__error_save(&none);
    if (count <= MAX_LOGGED)
        tarn__log(TARN_LOG_WARNING, "images: skipped %s%s", text,
                  count == MAX_LOGGED ? "; others are only counted" : "");
}

int64_t tarn_dataset_skipped_count(const tarn_dataset *dataset)
{
    if (!tarn__check_dataset("dataset_skipped_count", dataset))
        return -1;
    if (!dataset->images)
        return 0;
    pthread_mutex_lock(&dataset->images->lock);
    int64_t count = (int64_t)dataset->images->skipped_count;
    pthread_mutex_unlock(&dataset->images->lock);
    return count;
}

/* The string stays until the dataset is freed: skipped files are never removed from the list. */
const char *tarn_dataset_skipped(const tarn_dataset *dataset, int64_t index)
{
    if (!tarn__check_dataset("dataset_skipped", dataset))
        return NULL;
    int64_t count = tarn_dataset_skipped_count(dataset);
    if (index < 0 || index >= count) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dataset_skipped: file %lld is out of range; %lld were skipped",
                    (long long)index, (long long)count);
        return NULL;
    }
    pthread_mutex_lock(&dataset->images->lock);
    const char *text = dataset->images->skipped[index];
    pthread_mutex_unlock(&dataset->images->lock);
    return text;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

int64_t tarn_dataset_class_count(const tarn_dataset *dataset)
{
    if (!tarn__check_dataset("dataset_class_count", dataset))
        return -1;
    return dataset->images ? (int64_t)dataset->images->classes : 0;
}

const char *tarn_dataset_class_name(const tarn_dataset *dataset, int64_t index)
{
    if (!tarn__check_dataset("dataset_class_name", dataset))
        return NULL;
    int64_t count = tarn_dataset_class_count(dataset);
    if (index < 0 || index >= count) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dataset_class_name: class %lld is out of range; the dataset has %lld",
                    (long long)index, (long long)count);
        return NULL;
    }
    return dataset->images->class_name[index];
}

/* The name is copied; its index is the label. */
static bool add_class(tarn__image_folder *f, const char *name)
{
    if (f->classes >= TARN__MAX_IMAGE_CLASSES)
        return tarn__raise(TARN_ERROR_FORMAT, "dataset_images: '%s' has more than %d classes", f->root,
                           TARN__MAX_IMAGE_CLASSES);
    char *copy = tarn__array_reserve(&f->class_name, f->classes, &f->class_capacity, 1, sizeof(char *), 16)
                     ? tarn__string_copy(name)
                     : NULL;
    if (copy)
        f->class_name[f->classes++] = copy;
    return copy != NULL;
}

/* ---- listing ----------------------------------------------------------------------------------------------------- */

bool tarn__image_folder_add(tarn__image_folder *f, const char *path, const char *class)
{
    if (!tarn__array_reserve(&f->file, f->count, &f->capacity, 1, sizeof(tarn__image_file), 256))
        return false;
    tarn__image_file *file = &f->file[f->count];
    file->path = tarn__string_copy(path);
    file->class = file->path ? tarn__string_copy(class) : NULL;
    f->count += file->path != NULL;
    return file->class != NULL;
}

/* Without regard to case; a name without a dot has no ending. */
static bool has_ending(const char *name, const char *const *endings)
{
    const char *dot = strrchr(name, '.');
    for (; dot && *endings; endings++)
        if (strcasecmp(dot + 1, *endings) == 0)
            return true;
    return false;
}

static const char *const supported[] = {"png", "jpg", "jpeg", "jpe", "jfif", "pgm", "ppm", "pnm", NULL};
static const char *const unsupported[] = {"gif", "bmp", "webp", "tif", "tiff", "heic", "avif", "svg", NULL};

/* The listing of one folder of a class. */
typedef struct listing {
    tarn__image_folder *folder;
    const char *class, *path; /* path from the root */
    int depth;
} listing;

static bool list_folder(tarn__image_folder *f, const char *class, const char *path, int depth);

/* Hidden files and folders, whose names begin with a dot, are no images. */
static bool visit_entry(const char *name, bool is_folder, void *ctx)
{
    const listing *l = ctx;
    char path[4096];
    if (name[0] == '.')
        return true;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", l->path, name) >= sizeof(path))
        return tarn__raise(TARN_ERROR_IO, "dataset_images: a path below '%s' is too long", l->path);
    if (is_folder)
        return list_folder(l->folder, l->class, path, l->depth + 1);
    if (has_ending(name, unsupported))
        skip_file(l->folder, path, "PNG, JPEG, PGM and PPM are supported");
    return !has_ending(name, supported) || tarn__image_folder_add(l->folder, path, l->class);
}

static bool list_folder(tarn__image_folder *f, const char *class, const char *path, int depth)
{
    path_buffer full;
    if (depth > MAX_DEPTH)
        return tarn__raise(TARN_ERROR_IO, "dataset_images: '%s' is more than %d folders deep", path, MAX_DEPTH);
    return tarn__folder_each("dataset_images", path_in(f, path, &full), visit_entry,
                             &(listing){.folder = f, .class = class, .path = path, .depth = depth});
}

/* A folder, or a link to one, is a class. */
static bool visit_class(const char *name, bool is_folder, void *ctx)
{
    tarn__image_folder *f = ctx;
    path_buffer full;
    tarn__error_record none;
    if (name[0] == '.')
        return true;
    if (is_folder)
        return list_folder(f, name, name, 0);
    if (tarn__platform_file_bytes(path_in(f, name, &full)) >= 0)
        return true;
    bool good = list_folder(f, name, name, 0);
    if (!good && tarn_error_code() == TARN_ERROR_IO) /* neither a file nor a folder */
        tarn__error_save(&none);
    return good || !tarn_failed();
}

/* True when the file begins as one of the supported formats; otherwise it is skipped. */
static bool begins_well(tarn__image_folder *f, const char *path)
{
    unsigned char magic[2] = {0};
    path_buffer full;
    FILE *file = tarn__file_open(path_in(f, path, &full));
    size_t got = file ? fread(magic, 1, 2, file) : 0;
    if (file)
        fclose(file);
    bool is_image = (magic[0] == 0x89 && magic[1] == 'P') || (magic[0] == 0xFF && magic[1] == 0xD8) ||
                    (magic[0] == 'P' && magic[1] >= '2' && magic[1] <= '6') || (magic[0] == 0x1F && magic[1] == 0x8B);
    if (!is_image)
        skip_file(f, path,
                  !file     ? "the file cannot be opened"
                  : got < 2 ? "the file is empty"
                            : "not a PNG, JPEG, PGM or PPM image");
    return is_image;
}

/* The class is NULL once the labels are set. */
static void free_file(tarn__image_file *file)
{
    tarn__string_free(file->path);
    tarn__string_free(file->class);
}

/* Removes files that are no images. */
static void drop_others(tarn__image_folder *f)
{
    size_t kept = 0;
    for (size_t i = 0; i < f->count; i++) {
        if (!begins_well(f, f->file[i].path)) {
            free_file(&f->file[i]);
            continue;
        }
        tarn__image_file *to = &f->file[kept++];
        if (to != &f->file[i])
            memcpy(to, &f->file[i], sizeof(*to));
    }
    f->count = kept;
}

/* By class, then by path, so that samples do not depend on the order in which the system lists files. */
static int compare_files(const void *a, const void *b)
{
    const tarn__image_file *x = a, *y = b;
    int order = strcmp(x->class, y->class);
    return order ? order : strcmp(x->path, y->path);
}

/* Index of a class name; -1: unknown. Found names are sorted, given ones are searched in their order. */
static int64_t find_class(const tarn__image_folder *f, const char *name)
{
    for (size_t i = 0; i < f->classes; i++)
        if (strcmp(f->class_name[i], name) == 0)
            return (int64_t)i;
    return -1;
}

/* Sorts the files and sets their labels. Without given names the classes are those of the files, in order. */
static bool set_labels(tarn__image_folder *f, bool are_given)
{
    qsort(f->file, f->count, sizeof(*f->file), compare_files);
    int64_t label = -1;
    for (size_t i = 0; i < f->count; i++) {
        tarn__image_file *file = &f->file[i];
        bool is_new = i == 0 || strcmp(file->class, f->file[i - 1].class) != 0;
        if (is_new && !are_given && !add_class(f, file->class))
            return false;
        if (is_new)
            label = are_given ? find_class(f, file->class) : (int64_t)f->classes - 1;
        if (label < 0)
            return tarn__raise(TARN_ERROR_FORMAT, "dataset_images: '%s' has the class '%s', which the other data lacks",
                               f->root, file->class);
        file->label = label;
    }
    for (size_t i = 0; i < f->count; i++) {
        tarn__string_free(f->file[i].class);
        f->file[i].class = NULL;
    }
    return true;
}

/* A labels.csv in the folder says which files there are; folders are then only places. */
static bool list_files(tarn__image_folder *f)
{
    path_buffer labels;
    if (tarn__path_exists(path_in(f, "labels.csv", &labels)))
        return tarn__image_labels_read(f, labels.text);
    return tarn__folder_each("dataset_images", f->root, visit_class, f);
}

/* Given class names come first, so that their order decides labels; unknown classes are errors. */
static bool open_files(tarn__image_folder *f, const tarn_images_options *o)
{
    for (int64_t i = 0; i < o->class_count; i++)
        if (!o->class_names || !o->class_names[i] || !add_class(f, o->class_names[i]))
            return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_images: .class_names has no name %lld", (long long)i);
    if (!list_files(f))
        return false;
    size_t listed = f->count;
    drop_others(f);
    if (f->count == 0 && (listed || f->skipped_count))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "dataset_images: none of the files in '%s' is a PNG, JPEG, PGM or PPM image", f->root);
    if (f->count == 0)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "dataset_images: '%s' has no folders with images; it needs a folder of images per class, "
                           "or labels.csv with lines of file,label",
                           f->root);
    return set_labels(f, o->class_count > 0);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* A random part of the image: an area of at least min_scale of it, with sides of a ratio from 3/4 to 4/3, as
 * torchvision's RandomResizedCrop. After ten attempts that do not fit, its centre. */
static tarn__image_box random_crop(int64_t height, int64_t width, double min_scale, tarn_random_state *random)
{
    for (int i = 0; i < CROP_ATTEMPTS; i++) {
        double area = (double)(height * width) * (min_scale + (1 - min_scale) * tarn_random_unit(random));
        double ratio = exp(log(MAX_RATIO) * (2 * tarn_random_unit(random) - 1));
        int64_t w = (int64_t)nearbyint(sqrt(area * ratio)), h = (int64_t)nearbyint(sqrt(area / ratio));
        if (w < 1 || h < 1 || w > width || h > height)
            continue;
        int64_t top = tarn_random_below(random, height - h + 1), left = tarn_random_below(random, width - w + 1);
        return (tarn__image_box){top, left, h, w};
    }
    double ratio = (double)width / (double)height;
    int64_t w = ratio > MAX_RATIO ? (int64_t)((double)height * MAX_RATIO) : width,
            h = ratio < 1 / MAX_RATIO ? (int64_t)((double)width * MAX_RATIO) : height;
    return (tarn__image_box){(height - h) / 2, (width - w) / 2, h, w};
}

/* Decodes a file into u8 (channels, size, size): a random crop, or the centre where random is NULL. */
static bool decode(const char *path, int64_t channels, int64_t size, tarn_random_state *random, double min_scale,
                   uint8_t *to)
{
    tarn_array loaded = {0}, converted = {0};
    bool good = tarn_image_load(path, &loaded);
    bool converts = good && loaded.shape.size[0] != channels;
    good = good && (!converts || tarn_image_convert(&loaded, channels, &converted));
    const tarn_array *image = converts ? &converted : &loaded;
    if (good) {
        int64_t height = image->shape.size[1], width = image->shape.size[2], resized_height = size,
                resized_width = size;
        tarn__image_box crop = {0, 0, height, width}, kept = {0, 0, size, size};
        if (random)
            crop = random_crop(height, width, min_scale, random);
        else
            tarn__image_fit(height, width, size, &resized_height, &resized_width, &kept);
        good = tarn__image_resample(image, &crop, resized_height, resized_width, &kept, to);
    }
    tarn_array_free(&converted);
    tarn_array_free(&loaded);
    return good;
}

/* Decodes a file that is not known to be broken; marks it if it is. False: broken, or with an error of memory. */
static bool try_file(tarn__image_folder *f, tarn__image_file *file, tarn_random_state *random, double min_scale,
                     uint8_t *to)
{
    path_buffer full;
    tarn__error_record why;
    if (atomic_load(&file->broken))
        return false;
    if (decode(path_in(f, file->path, &full), f->channels, f->size, random, min_scale, to))
        return true;
    if (tarn_error_code() == TARN_ERROR_MEMORY)
        return false;
    tarn__error_save(&why);
    /* "tarn: image_load: PATH: why" */
    const char *text = strstr(why.text, full.text);
    text = text ? text + strlen(full.text) : why.text;
    text += strspn(text, ": ");
    if (!atomic_exchange(&file->broken, true))
        skip_file(f, file->path, text);
    return false;
}

/* Draws start anew for a replacement: the sample's state is a function of its index. */
static bool read_sample(tarn__image_folder *f, int64_t index, tarn_random_state *random, double min_scale,
                        void *const *memory)
{
    const tarn__image_file *wanted = &f->file[index];
    int64_t count = (int64_t)f->count;
    *(int64_t *)memory[1] = wanted->label;
    for (int64_t i = 0; i < count; i++) {
        tarn__image_file *file = &f->file[(index + i) % count];
        tarn_random_state own = random ? *random : (tarn_random_state){0};
        if (file->label != wanted->label || file->part != wanted->part)
            continue;
        if (try_file(f, file, random ? &own : NULL, min_scale, memory[0])) {
            if (random)
                *random = own;
            return true;
        }
        if (tarn_failed())
            return false;
    }
    return tarn__raise(TARN_ERROR_FORMAT, "images: no file of class '%s' in '%s' can be read",
                       f->class_name[wanted->label], f->root);
}

static bool get(int64_t index, void *const *memory, void *ctx)
{
    return read_sample(ctx, index, NULL, 1, memory);
}

static bool get_crop(int64_t index, tarn_random_state *random, double min_scale, void *const *memory, void *ctx)
{
    return read_sample(ctx, index, random, min_scale, memory);
}

/* ---- the dataset ------------------------------------------------------------------------------------------------- */

static void release_folder(void *ctx)
{
    tarn__image_folder *f = ctx;
    for (size_t i = 0; i < f->count; i++)
        free_file(&f->file[i]);
    for (size_t i = 0; i < f->classes; i++)
        tarn__string_free(f->class_name[i]);
    for (size_t i = 0; i < f->skipped_count; i++)
        tarn__string_free(f->skipped[i]);
    tarn__release(f->file, f->capacity * sizeof(*f->file));
    tarn__release(f->class_name, f->class_capacity * sizeof(char *));
    tarn__release(f->skipped, f->skipped_capacity * sizeof(char *));
    tarn__string_free(f->root);
    pthread_mutex_destroy(&f->lock);
    tarn__release(f, sizeof(*f));
}

static bool check_options(const char *folder, const tarn_images_options *o)
{
    if (tarn_failed())
        return false;
    if (!folder || !folder[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_images: the folder is %s", folder ? "empty" : "NULL");
    if (o->class_count < 0 || o->class_count > TARN__MAX_IMAGE_CLASSES)
        return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_images: .class_count is %lld; it must be 0 to %d",
                           (long long)o->class_count, TARN__MAX_IMAGE_CLASSES);
    return (o->size >= TARN__MIN_IMAGE_SIZE && o->size <= TARN__MAX_IMAGE_SIZE) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "dataset_images: .size is %lld; it is required and must be %d to %d",
                       (long long)o->size, TARN__MIN_IMAGE_SIZE, TARN__MAX_IMAGE_SIZE);
}

tarn_dataset *tarn_dataset_images_sized(const char *folder, const tarn_images_options *options, size_t options_size)
{
    tarn_images_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    if (!check_options(folder, &o))
        return NULL;
    tarn__image_folder *f = tarn__alloc(sizeof(*f));
    if (!f)
        return NULL;
    pthread_mutex_init(&f->lock, NULL);
    f->size = o.size;
    f->channels = o.grey ? 1 : 3;
    f->root = tarn__string_copy(folder);
    if (!f->root || !open_files(f, &o)) {
        release_folder(f);
        return NULL;
    }
    const tarn_field fields[] = {{"image", TARN_U8, TARN_SHAPE(f->channels, f->size, f->size)},
                                 {"label", TARN_I64, TARN_SCALAR}};
    tarn_dataset *dataset = tarn__dataset_new("dataset_images", fields, 2, (int64_t)f->count, get, f, release_folder);
    if (dataset) {
        dataset->images = f;
        dataset->get_crop = get_crop;
    }
    return dataset;
}

bool tarn_image_load_square(const char *path, int64_t size, int64_t channels, tarn_array *image)
{
    if (tarn_failed())
        return false;
    if (!image)
        return tarn__raise(TARN_ERROR_ARGUMENT, "image_load_square: image is NULL");
    *image = (tarn_array){0};
    if (size < 1 || size > TARN__MAX_IMAGE_SIZE || (channels != 1 && channels != 3))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "image_load_square: %lld pixels and %lld channels; must be 1 to %d, and 1 or 3",
                           (long long)size, (long long)channels, TARN__MAX_IMAGE_SIZE);
    if (!tarn__image_alloc(image, channels, size, size))
        return false;
    if (decode(path, channels, size, NULL, 1, image->data))
        return true;
    tarn_array_free(image);
    return tarn__raise_within("image_load_square");
}

/* ---- splits ------------------------------------------------------------------------------------------------------ */

/* Of the files of a class, which are adjacent, the first ones of a shuffled order go to the second part. */
static void split_class(tarn__image_folder *f, size_t begin, size_t end, double fraction, uint64_t key, int64_t *order)
{
    int64_t count = (int64_t)(end - begin), second = (int64_t)nearbyint((double)count * fraction);
    second = second < 1 && count > 1 ? 1 : second >= count && count > 1 ? count - 1 : second;
    tarn__shuffled(key + (uint64_t)f->file[begin].label, order, count);
    for (int64_t i = 0; i < count; i++)
        f->file[begin + (size_t)order[i]].part = i < second;
}

static tarn_dataset *select_part(tarn_dataset *dataset, int part, int64_t *index)
{
    int64_t count = 0;
    for (int64_t i = 0; i < dataset->count; i++)
        if (dataset->images->file[i].part == part)
            index[count++] = i;
    return tarn_dataset_subset(dataset, index, count);
}

bool tarn__image_folder_split(const char *function, tarn_dataset *dataset, double fraction, uint64_t seed,
                              tarn_dataset **first, tarn_dataset **second)
{
    tarn__image_folder *f = dataset->images;
    size_t bytes = sizeof(int64_t) * f->count;
    int64_t *index = tarn__alloc(bytes);
    *first = *second = NULL;
    for (size_t begin = 0, end = 0; index && begin < f->count; begin = end) {
        while (end < f->count && f->file[end].label == f->file[begin].label)
            end++;
        split_class(f, begin, end, fraction, tarn__epoch_keys_of(seed, -1).order, index);
    }
    *first = index ? select_part(dataset, 0, index) : NULL;
    *second = *first ? select_part(dataset, 1, index) : NULL;
    tarn__release(index, index ? bytes : 0);
    if (*second)
        return true;
    tarn_dataset_free(*first);
    *first = NULL;
    return tarn__raise_within(function);
}

uint64_t tarn__image_folder_hash(const tarn_dataset *dataset)
{
    const tarn__image_folder *f = dataset->images;
    tarn__xxh64 sum;
    path_buffer full;
    tarn__xxh64_begin(&sum);
    for (int64_t i = 0; i < dataset->count; i++) {
        const tarn__image_file *file = &f->file[dataset->source ? dataset->source(i, dataset->ctx) : i];
        int64_t about[] = {file->label, tarn__platform_file_bytes(path_in(f, file->path, &full))};
        tarn__xxh64_add(&sum, file->path, strlen(file->path));
        tarn__xxh64_add(&sum, about, sizeof(about));
    }
    return tarn__xxh64_end(&sum);
}
