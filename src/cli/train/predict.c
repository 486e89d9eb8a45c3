/* predict.c: `tarn predict`: the top classes of a run's classifier for image files, and for those of folders. A run on
 * a table predicts the rows of a file: cli/train/predict_table.c.
 *
 * One line, or with --json one object, per image, in the order of the arguments. An image that cannot be read is
 * reported and skipped; the exit status is then FAILED, and the other images are still classified.
 *
 * The run is opened once, with the best checkpoint or the one that --checkpoint names; each image is predicted by
 * itself, so the memory needed does not depend on their number. */
#define _XOPEN_SOURCE 700 /* scandir() */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <tarn/predict.h>

#include "cli/cli.h"
#include "cli/train/train.h"

enum { MAX_DEPTH = 16 }; /* folders below an argument */

/* Argmax over the probabilities. Classes already printed are marked by -1, so repeated calls give the top k in order;
 * O(k x classes), with k small. */
static int64_t next_best(const double *probability, int64_t classes)
{
    int64_t best = 0;
    for (int64_t i = 1; i < classes; i++)
        best = probability[i] > probability[best] ? i : best;
    return best;
}

/* Overwrites `probability`: printed classes become -1. */
static void print(const tarn__options *options, const tarn_run *run, const char *path, double *probability)
{
    tarn__json json = {stdout, false};
    int64_t classes = tarn_run_classes(run), shown = options->top < classes ? options->top : classes;
    if (options->json) {
        tarn__json_open(&json, NULL, '{');
        tarn__json_string(&json, "image", path);
        tarn__checkpoint_json(&json, options);
        tarn__json_open(&json, "classes", '[');
    } else {
        printf("%s:", tarn__escaped(path));
    }
    for (int64_t k = 0; k < shown; k++) {
        int64_t best = next_best(probability, classes);
        if (options->json) {
            tarn__json_open(&json, NULL, '{');
            tarn__json_string(&json, "name", tarn_run_class_name(run, best));
            tarn__json_real(&json, "probability", probability[best], 6);
            tarn__json_close(&json, '}');
        } else {
            printf("%s %s %.1f %%", k ? "," : "", tarn__escaped(tarn_run_class_name(run, best)),
                   100 * probability[best]);
        }
        probability[best] = -1;
    }
    if (options->json) {
        tarn__json_close(&json, ']');
        tarn__json_end(&json);
    } else {
        printf("\n");
    }
}

/* Classifies one image. `probability`, [classes], is scratch of the caller, reused for every image. */
static int predict(const tarn__options *options, tarn_run *run, const char *path, double *probability)
{
    tarn_array sample = {0};
    bool good = tarn_run_load_image(run, path, &sample) && tarn_run_predict(run, &sample, probability);
    if (good)
        print(options, run, path, probability);
    tarn_array_free(&sample);
    return good ? TARN__DONE : tarn__print_error("predict");
}

/* True for names of image files; others in a folder are ignored. Named on the command line a file of any name is
 * read: its contents decide. */
static bool is_image(const char *name)
{
    static const char *const endings[] = {"png", "jpg", "jpeg", "jpe", "jfif", "pgm", "ppm", "pnm", "npy"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof(endings) / sizeof(endings[0]); i++)
        if (strcasecmp(dot + 1, endings[i]) == 0)
            return true;
    return false;
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool is_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* Classifies the images of a folder and those below it, in the order of their names' bytes; adds their number to
 * `images`. */
static int predict_below(const tarn__options *options, tarn_run *run, const char *folder, int depth,
                         double *probability, int64_t *images)
{
    char path[4096];
    struct dirent **entries;
    int status = TARN__DONE, count = scandir(folder, &entries, NULL, by_bytes);
    /* the depth also ends a loop of symbolic links */
    if (count < 0 || depth > MAX_DEPTH) {
        fprintf(stderr, "tarn predict: '%s' cannot be listed\n", tarn__escaped(folder));
        return TARN__FAILED;
    }
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        int one = TARN__DONE;
        /* names with a dot in front are hidden, and "." and ".." are among them */
        bool fits = (size_t)snprintf(path, sizeof(path), "%s/%s", folder, name) < sizeof(path) && name[0] != '.';
        if (fits && is_folder(path))
            one = predict_below(options, run, path, depth + 1, probability, images);
        else if (fits && is_image(name)) {
            one = predict(options, run, path, probability);
            ++*images;
        }
        status = one == TARN__DONE ? status : one;
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* A folder without images is an error: nothing would be printed. */
static int predict_folder(const tarn__options *options, tarn_run *run, const char *folder, double *probability)
{
    int64_t images = 0;
    int status = predict_below(options, run, folder, 0, probability, &images);
    if (status != TARN__DONE || images > 0)
        return status;
    fprintf(stderr, "tarn predict: '%s' has no images; expected PNG, JPEG, PGM, PPM or .npy files\n",
            tarn__escaped(folder));
    return TARN__FAILED;
}

int tarn__predict(const tarn__options *options)
{
    tarn_run_weights weights;
    int status = tarn__checkpoint_use("predict", options, &weights);
    if (status != TARN__DONE)
        return status;
    tarn_run *run = tarn_run_open_with(options->words[0], options->device,
                                       &(tarn_run_open_options){.checkpoint = weights.checkpoint});
    if (!run)
        return tarn__print_error("predict");
    if (tarn_run_encoder(run)) {
        status = tarn__predict_table(options, run);
        tarn_run_close(run);
        return status;
    }
    if (options->output) {
        fprintf(stderr, "tarn predict: --output applies to runs on tables only\n");
        tarn_run_close(run);
        return TARN__MISUSED;
    }
    if (strcmp(tarn_run_task(run), "classify") != 0) {
        fprintf(stderr, "tarn predict: '%s' is a language model, not a classifier; use tarn generate\n",
                tarn__escaped(options->words[0]));
        tarn_run_close(run);
        return TARN__FAILED;
    }
    /* one buffer for all images */
    double *probability = calloc((size_t)tarn_run_classes(run), sizeof(double));
    if (!probability) {
        fprintf(stderr, "tarn predict: out of memory\n");
        status = TARN__FAILED;
    }
    for (int i = 1; probability && i < options->word_count; i++) {
        const char *path = options->words[i];
        if ((is_folder(path) ? predict_folder(options, run, path, probability)
                             : predict(options, run, path, probability)) != TARN__DONE)
            status = TARN__FAILED;
    }
    free(probability);
    tarn_run_close(run);
    return status;
}
