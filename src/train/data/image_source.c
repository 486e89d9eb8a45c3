/* image_source.c: "images:FOLDER": image files by class, decoded while the run trains.
 *
 * FOLDER has train/ and val/ (or valid/, validation/, test/), each with a folder per class or labels.csv; or those
 * themselves, and a fraction of each class is for validation. The split is the same in every run. Mean and std are
 * those of ImageNet, whatever the images: pretrained networks expect them, and others train as well with them. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "data/readers/image_folder.h"
#include "train/data/data_source.h"

#define PREFIX "images:"
#define DEFAULT_FRACTION 0.1 /* of each class, for validation */
enum { SPLIT_SEED = 3 };     /* fixed: the same name is the same data in every run */

bool tarn__data_is_images(const char *data)
{
    return strncmp(data, PREFIX, strlen(PREFIX)) == 0 || strcmp(data, "images") == 0;
}

/* The folder of a name. NULL with an error. */
static const char *folder_of(const char *function, const char *data)
{
    const char *folder = strchr(data, ':') ? data + strlen(PREFIX) : "";
    if (folder[0])
        return folder;
    tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' has no path; must be images:FOLDER", function, data);
    return NULL;
}

/* Finds the first of the names below a folder. */
static bool find_below(const char *folder, const char *const *names, char *path, size_t size)
{
    for (; *names; names++)
        if ((size_t)snprintf(path, size, "%s/%s", folder, *names) < size && tarn__path_exists(path))
            return true;
    return false;
}

static const char *const training_names[] = {"train", "training", NULL}, *const validation_names[] = {"val", "valid",
                                                                                                      "validation",
                                                                                                      "test", NULL};

/* Options of the same samples and classes as in `like`, or found ones. The array of names must be released. The
 * classes of validation are those of training, in their order. */
static bool options_like(const tarn_train_options *o, const tarn_dataset *like, tarn_images_options *options)
{
    int64_t classes = like ? tarn_dataset_class_count(like) : 0;
    const char **names = classes ? tarn__alloc(sizeof(char *) * (size_t)classes) : NULL;
    *options = (tarn_images_options){
        .size = o->image_size, .grey = o->grey, .class_names = names, .class_count = names ? classes : 0};
    for (int64_t i = 0; names && i < classes; i++)
        names[i] = tarn_dataset_class_name(like, i);
    return !tarn_failed();
}

static tarn_dataset *open_like(const tarn_train_options *o, const char *folder, const tarn_dataset *like)
{
    tarn_images_options options;
    tarn_dataset *dataset = options_like(o, like, &options) ? tarn_dataset_images(folder, &options) : NULL;
    tarn__release((void *)options.class_names, sizeof(char *) * (size_t)options.class_count);
    return dataset;
}

static bool open_both(const char *function, const tarn_train_options *o, const char *folder, tarn_dataset **training,
                      tarn_dataset **validation)
{
    char train[1200], val[1200];
    bool has_train = find_below(folder, training_names, train, sizeof(train)),
         has_val = find_below(folder, validation_names, val, sizeof(val));
    if (has_train && has_val) {
        if (o->val_fraction > 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: val_fraction is given, but '%s' has a validation set: %s",
                               function, folder, val);
        *training = open_like(o, train, NULL);
        *validation = *training ? open_like(o, val, *training) : NULL;
        return *validation != NULL;
    }
    tarn_dataset *all = open_like(o, has_train ? train : folder, NULL);
    bool good = all && tarn__image_folder_split(function, all, o->val_fraction > 0 ? o->val_fraction : DEFAULT_FRACTION,
                                                SPLIT_SEED, training, validation);
    if (good && tarn_dataset_count(*validation) == 0)
        good = tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s' has one image per class; validation needs a class with at least two", function,
                           folder);
    tarn_dataset_free(all);
    return good;
}

bool tarn__images_open(const char *function, const tarn_train_options *o, tarn_dataset **training,
                       tarn_dataset **validation)
{
    *training = *validation = NULL;
    const char *folder = tarn_failed() ? NULL : folder_of(function, o->data);
    if (folder && open_both(function, o, folder, training, validation))
        return true;
    tarn_dataset_free(*training);
    tarn_dataset_free(*validation);
    *training = *validation = NULL;
    return tarn__raise_within(function);
}

/* A validation folder if there is one, else the folder itself; by the run's classes. */
tarn_dataset *tarn__images_open_for_evaluation(const char *function, const char *data, const tarn_train_options *o,
                                               const tarn__data_spec *d)
{
    char val[1200];
    const char *folder = folder_of(function, data);
    if (!folder)
        return NULL;
    bool has_val = find_below(folder, validation_names, val, sizeof(val));
    tarn_dataset *dataset = tarn_dataset_images(
        has_val ? val : folder, &(tarn_images_options){.size = o->image_size,
                                                       .grey = o->grey,
                                                       .class_names = (const char *const *)d->class_name,
                                                       .class_count = d->classes});
    if (!dataset)
        tarn__raise_within(function);
    return dataset;
}

const char *tarn__images_path(const tarn_dataset *dataset, int64_t index)
{
    if (!dataset->images)
        return NULL;
    return dataset->images->file[dataset->source ? dataset->source(index, dataset->ctx) : index].path;
}

/* Two subsets of one folder have its count. */
int64_t tarn__images_skipped(const tarn_dataset *training, const tarn_dataset *validation)
{
    int64_t count = tarn_dataset_skipped_count(training);
    return training->images == validation->images ? count : count + tarn_dataset_skipped_count(validation);
}

/* ---- the data spec ----------------------------------------------------------------------------------------------- */

/* Shifted, so that swapping the two parts gives another hash. */
static uint64_t hash_of(const tarn_dataset *training, const tarn_dataset *validation)
{
    return tarn__image_folder_hash(training) ^ (tarn__image_folder_hash(validation) << 1);
}

bool tarn__images_spec_create(const char *function, const tarn_train_options *o, const tarn_dataset *training,
                              const tarn_dataset *validation, tarn__data_spec *d)
{
    static const float mean[] = {0.485f, 0.456f, 0.406f}, std[] = {0.229f, 0.224f, 0.225f}, grey_mean = 0.449f,
                       grey_std = 0.226f;
    int channels = o->grey ? 1 : 3;
    *d = (tarn__data_spec){.hash = hash_of(training, validation),
                           .training_samples = tarn_dataset_count(training),
                           .validation_samples = tarn_dataset_count(validation),
                           .input = TARN_SHAPE(channels, o->image_size, o->image_size),
                           .classes = tarn_dataset_class_count(training),
                           .can_be_mirrored = true,
                           .scale = 1.0f / 255,
                           .channels = channels};
    if (d->classes < 2)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%.200s' has one class, '%.100s'; at least two are needed", function,
                           o->data, tarn_dataset_class_name(training, 0));
    if (!tarn__data_spec_alloc(d))
        return false;
    for (int c = 0; c < channels; c++) {
        d->mean[c] = o->grey ? grey_mean : mean[c];
        d->std[c] = o->grey ? grey_std : std[c];
    }
    for (int64_t i = 0; i < d->classes; i++)
        if (!(d->class_name[i] = tarn__string_copy(tarn_dataset_class_name(training, i))))
            return false;
    return true;
}

bool tarn__images_spec_matches(const char *function, const char *name, const tarn__data_spec *d,
                               const tarn_dataset *training, const tarn_dataset *validation)
{
    return (tarn_dataset_count(training) == d->training_samples &&
            tarn_dataset_count(validation) == d->validation_samples && hash_of(training, validation) == d->hash) ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%.200s' is not the data that the run was started with: files were added, removed or "
                       "changed; it had %lld training images, and has %lld",
                       function, name, (long long)d->training_samples, (long long)tarn_dataset_count(training));
}
