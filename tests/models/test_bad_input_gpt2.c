/* test_bad_input_gpt2.c: invalid arguments and configurations of GPT-2, and invalid model folders. */
#include "support/files.h"
#include "support/refuse.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static const tarn_device nowhere = {6, 0};
static const tarn_gpt2_config small = {.vocab_size = 7, .context = 5, .layers = 1, .heads = 2, .hidden_size = 4};

static void configurations(void **state)
{
    (void)state;
    tarn_gpt2_config c;
    REFUSE(tarn_gpt2_config_named, tarn_gpt2_config_named(NULL, &c));
    REFUSE(tarn_gpt2_config_named, tarn_gpt2_config_named("gpt2", NULL));
    REFUSE(tarn_gpt2_config_named, tarn_gpt2_config_named("gpt3", &c));
    REFUSE(tarn_gpt2_config_named, tarn_gpt2_config_named("", &c));
    REFUSE(tarn_gpt2_config_named, tarn_gpt2_config_named_sized("GPT2", &c, sizeof(c)));
    REFUSE(tarn_model_gpt2, tarn_model_gpt2(NULL, CPU, 1));
    REFUSE(tarn_model_gpt2, tarn_model_gpt2(&(tarn_gpt2_config){0}, CPU, 1));
    REFUSE(tarn_model_gpt2, tarn_model_gpt2_sized(&small, 0, CPU, 1)); /* a header from before all fields */
    REFUSE(tarn_model_gpt2, tarn_model_gpt2(&small, nowhere, 1));
    for (int i = 0; i < 26; i++) {
        c = small;
        switch (i) {
        case 0: c.vocab_size = 0; break;
        case 1: c.vocab_size = -1; break;
        case 2: c.vocab_size = INT64_MAX; break;
        case 3: c.context = 0; break;
        case 4: c.context = INT64_MIN; break;
        case 5: c.layers = 0; break;
        case 6: c.layers = 1025; break;
        case 7: c.heads = 0; break;
        case 8: c.heads = 3; break;
        case 9: c.heads = -2; break;
        case 10: c.hidden_size = 0; break;
        case 11: c.hidden_size = INT64_MAX - 1; break;
        case 12: c.ffn_size = -1; break;
        case 13: c.ffn_size = INT64_MAX; break;
        case 14: c.dropout = -0.1; break;
        case 15: c.dropout = 1; break;
        case 16: c.dropout = NAN; break;
        case 17: c.attention_dropout = 1; break;
        case 18: c.embedding_dropout = NAN; break;
        case 19: c.epsilon = -1; break;
        case 20: c.epsilon = INFINITY; break;
        case 21: c.dtype = TARN_I32; break;
        case 22: c.has_eos = true, c.eos = 7; break;
        case 23: c.recompute = (tarn_recompute)3; break;
        case 24: c.recompute = (tarn_recompute)-1; break;
        default: c.has_eos = true, c.eos = -1;
        }
        REFUSE(tarn_model_gpt2, tarn_model_gpt2(&c, CPU, (uint64_t)i));
    }
}

static void models(void **state)
{
    (void)state;
    tarn_gpt2_config c;
    tarn_module *model = tarn_model_gpt2(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    const int32_t ids[] = {0, 1, 2, 3, 4, 5}, outside[] = {0, 7}, negative[] = {-1, 0};
    tarn_tensor *two = tarn_from_i32(ids, TARN_SHAPE(1, 2), CPU), *six = tarn_from_i32(ids, TARN_SHAPE(1, 6), CPU);
    REFUSE(tarn_gpt2, tarn_forward(model, six)); /* more than the context */
    REFUSE(tarn_gpt2, tarn_forward(model, tarn_reshape(two, TARN_SHAPE(2))));
    REFUSE(tarn_gpt2, tarn_forward(model, tarn_reshape(two, TARN_SHAPE(1, 1, 2))));
    REFUSE(tarn_gpt2, tarn_forward(model, tarn_zeros(TARN_SHAPE(1, 0), TARN_I32, CPU)));
    REFUSE(tarn_gpt2, tarn_forward(model, tarn_zeros(TARN_SHAPE(0, 2), TARN_I32, CPU)));
    REFUSE(tarn_embedding, tarn_forward(model, tarn_cast(two, TARN_F32)));
    REFUSE(tarn_embedding, tarn_forward(model, tarn_from_i32(outside, TARN_SHAPE(1, 2), CPU)));
    REFUSE(tarn_embedding, tarn_forward(model, tarn_from_i32(negative, TARN_SHAPE(1, 2), CPU)));
    REFUSE(tarn_gpt2_loss, tarn_gpt2_loss(NULL, two, two));
    REFUSE(tarn_gpt2_loss, tarn_gpt2_loss(other, two, two));
    REFUSE(tarn_gpt2_loss, tarn_gpt2_loss(model, NULL, two));
    REFUSE(tarn_gpt2_loss, tarn_gpt2_loss(model, two, NULL));
    REFUSE(tarn_gpt2_loss, tarn_gpt2_loss(model, six, six));
    REFUSE(tarn_gpt2_loss, tarn_gpt2_loss(model, two, six));
    REFUSE(tarn_gpt2_loss, tarn_gpt2_loss(model, two, tarn_cast(two, TARN_F32)));
    REFUSE(tarn_gpt2_loss, tarn_gpt2_loss(model, two, tarn_from_i32(outside, TARN_SHAPE(1, 2), CPU)));
    REFUSE(tarn_gpt2_config_of, tarn_gpt2_config_of(NULL, &c));
    REFUSE(tarn_gpt2_config_of, tarn_gpt2_config_of(other, &c));
    REFUSE(tarn_gpt2_config_of, tarn_gpt2_config_of_sized(model, NULL, sizeof(c)));
    tarn_module_free(model);
    tarn_module_free(other);
}

static void folders(void **state)
{
    (void)state;
    static char longer[5000];
    memset(longer, 'x', sizeof(longer) - 1);
    tarn_module *model = tarn_model_gpt2(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    REFUSE(tarn_model_open, tarn_model_open(NULL, CPU, NULL));
    REFUSE(tarn_model_open, tarn_model_open("", CPU, NULL));
    REFUSE(tarn_model_open, tarn_model_open(longer, CPU, NULL));
    REFUSE(tarn_model_open, tarn_model_open(scratch("nosuch"), CPU, NULL));
    REFUSE(tarn_model_open, tarn_model_open_sized(write_text("a-file", "x"), CPU, NULL, 0));
    REFUSE(tarn_model_open, tarn_model_open(scratch("."), CPU, &(tarn_model_open_options){.dtype = TARN_I64}));
    REFUSE(tarn_model_write, tarn_model_write(NULL, scratch("out")));
    REFUSE(tarn_model_write, tarn_model_write(other, scratch("out")));
    REFUSE(tarn_model_write, tarn_model_write(model, NULL));
    REFUSE(tarn_model_write, tarn_model_write(model, ""));
    REFUSE(tarn_model_write, tarn_model_write(model, longer));
    REFUSE(tarn_model_write, tarn_model_write(model, write_text("a-file", "x")));
    if (TARN__HAVE_JANSSON) {
        ACCEPT(tarn_model_write(model, scratch("out")));
        REFUSE(tarn_model_open, tarn_model_open(scratch("out"), nowhere, NULL));
    } else {
        REFUSE(tarn_model_write, tarn_model_write(model, scratch("out")));
    }
    tarn_module_free(model);
    tarn_module_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(configurations, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(models, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(folders, open_refusals, close_refusals)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
