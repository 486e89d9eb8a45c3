/* prediction_pass.h: a classifier's prediction for every sample of a dataset. */
#ifndef TARN__PREDICTION_PASS_H
#define TARN__PREDICTION_PASS_H

#include <tarn/predict.h>

typedef struct tarn__prediction_pass {
    tarn_module *model; /* outside training mode */
    const tarn_dataset *dataset;
    tarn_loader *loader; /* over all samples of the dataset in their order */
    int64_t classes, batch_size;
    tarn_prediction_fn receive; /* false ends the pass, which is no error */
    void *ctx;
} tarn__prediction_pass;

/* Gives the predictions to the receiver in the order of the data. Borrows everything. False with an error. */
bool tarn__predict_each(const tarn__prediction_pass *pass);

#endif
