/* predict.c: `tarn predict`: the top classes of a run's classifier for image files.
 *
 * One line, or with --json one object, per image, in the order of the arguments. An image that cannot be read is
 * reported and skipped; the exit status is then FAILED, and the other images are still classified. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* Loads an image with the channels and size of the model's input, [C, H, W]. The caller frees `sample`, also after a
 * failure. */
static bool load(const char *path, tarn_shape input, tarn_array *sample)
{
    tarn_array image = {0}, converted = {0};
    bool good = tarn_image_load(path, &image) && tarn_image_convert(&image, input.size[0], &converted) &&
                tarn_image_resize(&converted, input.size[1], input.size[2], sample);
    tarn_array_free(&image);
    tarn_array_free(&converted);
    return good;
}

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
    tarn_shape input;
    tarn_array sample = {0};
    if (!tarn_run_input(run, &input))
        return tarn__print_error("predict");
    /* images are converted to the model's channels: grey or RGB only */
    if (input.rank != 3 || (input.size[0] != 1 && input.size[0] != 3)) {
        fprintf(stderr, "tarn predict: the model of '%s' does not take grey or RGB images\n",
                tarn__escaped(options->words[0]));
        return TARN__FAILED;
    }
    bool good = load(path, input, &sample) && tarn_run_predict(run, &sample, probability);
    if (good)
        print(options, run, path, probability);
    tarn_array_free(&sample);
    return good ? TARN__DONE : tarn__print_error("predict");
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
    for (int i = 1; probability && i < options->word_count; i++)
        if (predict(options, run, options->words[i], probability) != TARN__DONE)
            status = TARN__FAILED;
    free(probability);
    tarn_run_close(run);
    return status;
}
