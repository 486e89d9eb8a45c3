/* predict.h: predictions of a run's classifier, besides tarn_run_predict() of train.h: image files, and whole data. */
#ifndef TARN_PREDICT_H
#define TARN_PREDICT_H

#include <tarn/train.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads an image file as the run's model takes it, u8 [C, H, W], which the caller releases with tarn_array_free():
 * resized and cropped as in training for images:FOLDER, resized to the model's input for other data. */
TARN_API bool tarn_run_load_image(const tarn_run *run, const char *path, tarn_array *sample);

/* The classification of one sample. */
typedef struct tarn_prediction {
    int64_t index;            /* of the sample in the data */
    int64_t label, predicted; /* its class, and the most probable one */
    double probability;       /* of the predicted class */
    double label_probability; /* of its own class */
    const char *path;         /* image file, relative to the folder of the data, valid during the call; NULL: none */
} tarn_prediction;

/* Receives a prediction. False ends the pass. */
typedef bool (*tarn_prediction_fn)(const tarn_prediction *prediction, void *ctx);

/* Classifies every sample of the run's validation set, or of `data`, as tarn_run_evaluate(), and gives the predictions
 * to `receive` in the order of the data: for a confusion matrix, or to find the worst mistakes. */
TARN_API bool tarn_run_predict_data(tarn_run *run, const char *data, int64_t batch_size, tarn_prediction_fn receive,
                                    void *ctx);

#ifdef __cplusplus
}
#endif
#endif
