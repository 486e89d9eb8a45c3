/* test_bad_input_models.c: invalid arguments of the classifiers. */
#include "support/refuse.h"

#define CPU tarn_device_cpu()

static const tarn_device nowhere = {6, 0};

static void networks(void **state)
{
    (void)state;
    const int64_t hidden[] = {4, 0};
    REFUSE(tarn_model_mlp, tarn_model_mlp(0, NULL, 0, 2, CPU));
    REFUSE(tarn_model_mlp, tarn_model_mlp(2, NULL, 0, 0, CPU));
    REFUSE(tarn_model_mlp, tarn_model_mlp(2, NULL, 1, 2, CPU));
    REFUSE(tarn_model_mlp, tarn_model_mlp(2, hidden, -1, 2, CPU));
    REFUSE(tarn_model_mlp, tarn_model_mlp(2, hidden, 65, 2, CPU));
    REFUSE(tarn_model_mlp, tarn_model_mlp(2, hidden, 2, 2, CPU));
    REFUSE(tarn_model_mlp, tarn_model_mlp(2, hidden, 1, 2, nowhere));
    REFUSE(tarn_model_mlp, tarn_model_mlp((int64_t)1 << 61, hidden, 1, 2, CPU));
    REFUSE(tarn_model_lenet, tarn_model_lenet(0, 28, 28, 10, CPU));
    REFUSE(tarn_model_lenet, tarn_model_lenet(1, 3, 28, 10, CPU));
    REFUSE(tarn_model_lenet, tarn_model_lenet(1, 28, 3, 10, CPU));
    REFUSE(tarn_model_lenet, tarn_model_lenet(1, 28, INT64_MAX, 10, CPU));
    REFUSE(tarn_model_lenet, tarn_model_lenet(1, 28, 28, -1, CPU));
    REFUSE(tarn_model_lenet, tarn_model_lenet(1, 28, 28, 10, nowhere));
    REFUSE(tarn_model_resnet20, tarn_model_resnet20(0, CPU));
    REFUSE(tarn_model_resnet20, tarn_model_resnet20(10, nowhere));
    REFUSE(tarn_model_resnet, tarn_model_resnet(18, 0, CPU, NULL));
    REFUSE(tarn_model_resnet, tarn_model_resnet(20, 10, CPU, NULL));
    REFUSE(tarn_model_resnet, tarn_model_resnet(50, 10, nowhere, NULL));
    REFUSE(tarn_model_resnet,
           tarn_model_resnet_sized(34, 10, CPU, &(tarn_resnet_options){.channels = -1}, sizeof(tarn_resnet_options)));
    REFUSE(tarn_model_resnet20, tarn_model_resnet20_with(10, CPU, &(tarn_resnet20_options){.channels = -1}));
    REFUSE(tarn_model_resnet20, tarn_model_resnet20_with_sized(-1, CPU, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(networks, open_refusals, close_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
