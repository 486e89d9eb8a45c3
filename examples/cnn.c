/* cnn.c: a small convolutional network learns to read digits.
 *
 * build/release/examples/cnn digits that tarn draws itself build/release/examples/cnn FOLDER MNIST, from a folder with
 * its four files
 *
 * The parts of every training program: data, a loader that makes batches, a model, an optimizer with a schedule, the
 * loop, and an evaluation on images that were never trained on. `tarn train` does the same with more comfort. */
#include <stdio.h>
#include <tarn/tarn.h>

#define BATCH 32
#define STEPS 120
#define MEAN 0.13f /* of the pixels, from 0 to 1, and how far they spread */
#define DEVIATION 0.31f

/* Images are u8 [1, 28, 28]; they are normalized to mean 0 and std 1. */
static tarn_loader *make_loader(tarn_dataset *dataset, bool training, tarn_device device)
{
    const float mean[] = {MEAN}, std[] = {DEVIATION};
    return tarn_loader_new(dataset, &(tarn_loader_options){.batch_size = training ? BATCH : 200,
                                                           .shuffle = training,
                                                           .drop_last = training,
                                                           .seed = 1,
                                                           .device = device,
                                                           .normalize = true,
                                                           .mean = mean,
                                                           .std = std,
                                                           .channels = 1});
}

/* Two convolutions, each with a maximum over 2 × 2, and a linear layer: [N, 1, 28, 28] → [N, 10]. */
static tarn_module *make_network(tarn_device device)
{
    const tarn_conv2d_layer_options five = {.kernel = {5, 5}, .padding = {2, 2}};
    const tarn_pool2d_options half = {.kernel = {2, 2}};
    return tarn_sequential(tarn_conv2d_layer_with(1, 8, device, &five), tarn_activation(TARN_RELU),
                           tarn_max_pool2d_layer(&half), tarn_conv2d_layer_with(8, 16, device, &five),
                           tarn_activation(TARN_RELU), tarn_max_pool2d_layer(&half), tarn_flatten(1),
                           tarn_linear(16 * 7 * 7, 10, device), NULL);
}

/* One step; its tensors are freed when the scope closes. Reading the loss waits for the device, so it is done now and
 * then only. */
static void train_step(tarn_module *net, tarn_optimizer *adam, tarn_loader *loader, int step)
{
    tarn_tensor *batch[2]; /* images and labels */
    tarn_scope *scope = tarn_scope_open();
    if (!tarn_loader_next(loader, batch) && !tarn_failed())
        tarn_loader_next(loader, batch); /* the last epoch was over: the first batch of the next */
    tarn_tensor *loss = tarn_failed() ? NULL : tarn_cross_entropy(tarn_forward(net, batch[0]), batch[1], NULL);
    tarn_backward(loss);
    tarn_optimizer_step(adam);
    if (step % 20 == 0 || step == STEPS)
        printf("step %3d of %d  loss %.4f\n", step, STEPS, tarn_item(loss));
    tarn_scope_close(scope);
}

int main(int count, char **words)
{
    tarn_device device = tarn_device_auto();
    tarn_dataset *training = count > 1 ? tarn_dataset_mnist(words[1], true) : tarn_dataset_digits(4000, 1);
    tarn_dataset *testing = count > 1 ? tarn_dataset_mnist(words[1], false) : tarn_dataset_digits(1000, 2);
    tarn_loader *loader = make_loader(training, true, device), *judge = make_loader(testing, false, device);

    tarn_seed(1);
    tarn_module *net = make_network(device);
    tarn_optimizer *adam = tarn_adamw(net, &(tarn_adamw_options){.lr = 0.003f, .weight_decay = 0.01f});
    tarn_optimizer_set_schedule(
        adam, &(tarn_schedule){.kind = TARN_SCHEDULE_COSINE, .warmup_steps = 10, .total_steps = STEPS});
    for (int step = 1; step <= STEPS && !tarn_failed(); step++)
        train_step(net, adam, loader, step);

    tarn_evaluation result = {0};
    int64_t samples[10], right[10];
    if (tarn_evaluate(net, judge, 10, &result, samples, right)) {
        for (int digit = 0; digit < 10; digit++)
            printf("  %d: %3lld of %3lld right\n", digit, (long long)right[digit], (long long)samples[digit]);
        printf("%.1f %% of %lld images right that it had never seen\n", 100 * result.accuracy,
               (long long)result.samples);
    }

    if (tarn_failed())
        fprintf(stderr, "%s\n", tarn_error());
    tarn_optimizer_free(adam);
    tarn_module_free(net);
    tarn_loader_free(loader);
    tarn_loader_free(judge);
    tarn_dataset_free(training);
    tarn_dataset_free(testing);
    return tarn_failed() || !(result.accuracy >= 0.9);
}
