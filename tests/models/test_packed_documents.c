/* test_packed_documents.c: documents packed into the rows of a batch give GPT-2 and the Llama family the logits,
 * losses and gradients of each document alone. */
#include "models/lm/arch.h"
#include "support/check.h"

enum { ROWS = 2, CONTEXT = 40, VOCAB = 17, DOCUMENTS = 7, UNCOUNTED = -100 };
#define CPU tarn_device_cpu()

/* Documents: row, first token, end. The second row ends with padding. */
static const struct {
    int64_t row, begin, end;
} place[DOCUMENTS] = {{0, 0, 9}, {0, 9, 10}, {0, 10, 37}, {0, 37, 40}, {1, 0, 25}, {1, 25, 33}, {1, 33, 40}};

typedef struct batch {
    int32_t ids[ROWS * CONTEXT], targets[ROWS * CONTEXT], positions[ROWS * CONTEXT], document_starts[ROWS * CONTEXT];
} batch;

/* Every third target does not count; nor do those of the last document. */
static batch fill(void)
{
    batch b;
    for (int d = 0; d < DOCUMENTS; d++)
        for (int64_t t = place[d].begin; t < place[d].end; t++) {
            int64_t at = place[d].row * CONTEXT + t;
            b.ids[at] = (int32_t)((7 * at + at * at / 3) % VOCAB);
            b.targets[at] = at % 3 == 0 || d == DOCUMENTS - 1 ? UNCOUNTED : (int32_t)((5 * at + 1) % VOCAB);
            b.positions[at] = (int32_t)(t - place[d].begin);
            b.document_starts[at] = (int32_t)place[d].begin;
        }
    return b;
}

static tarn_tensor *whole(const int32_t *values)
{
    return good(tarn_from_i32(values, TARN_SHAPE(ROWS, CONTEXT), CPU));
}

static tarn_tensor *part(const int32_t *values, int d)
{
    return good(tarn_from_i32(values + place[d].row * CONTEXT + place[d].begin,
                              TARN_SHAPE(1, place[d].end - place[d].begin), CPU));
}

static int64_t counted(const int32_t *targets, int64_t count)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++)
        found += targets[i] != UNCOUNTED;
    return found;
}

/* Weights far from zero, so that every sub-module affects the results. */
static tarn_module *with_random_weights(tarn_module *model)
{
    assert_ok();
    tarn_seed(4);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal_like(p, 0, 0.3)));
    }
    assert_ok();
    return model;
}

static void check_logits(tarn_module *model, const batch *b)
{
    tarn__documents documents = {whole(b->positions), whole(b->document_starts)};
    tarn_tensor *x = good(tarn__model_hidden(model->child[TARN__MODEL_BODY], whole(b->ids), &documents));
    tarn_tensor *logits = good(tarn_forward(model->child[TARN__MODEL_HEAD], x));
    for (int d = 0; d < DOCUMENTS; d++) {
        tarn_tensor *row = tarn_slice(logits, 0, place[d].row, place[d].row + 1);
        assert_close(good(tarn_slice(row, 1, place[d].begin, place[d].end)), good(tarn_forward(model, part(b->ids, d))),
                     1e-11);
    }
}

/* The losses of all documents alone, each as often as it has targets, by the number of all. */
static tarn_tensor *loss_alone(tarn_module *model, const batch *b)
{
    double all = (double)counted(b->targets, ROWS * CONTEXT);
    tarn_tensor *sum = good(tarn_zeros(TARN_SCALAR, TARN_F64, CPU));
    for (int d = 0; d < DOCUMENTS; d++) {
        double share =
            (double)counted(b->targets + place[d].row * CONTEXT + place[d].begin, place[d].end - place[d].begin) / all;
        if (share > 0)
            sum = good(tarn_add(
                sum, tarn_mul(tarn_model_loss(model, part(b->ids, d), part(b->targets, d)), tarn_scalar(share))));
    }
    return sum;
}

/* Two models of the same values: one sees the rows, the other each document. Takes both. */
static void documents_are_as_they_are_alone(tarn_module *together, tarn_module *alone)
{
    batch b = fill();
    tarn__documents documents = {whole(b.positions), whole(b.document_starts)};
    with_random_weights(together);
    with_random_weights(alone);
    check_logits(together, &b);
    tarn_tensor *loss = good(tarn__model_loss_of("test", together, whole(b.ids), whole(b.targets), &documents)),
                *sum = loss_alone(alone, &b);
    assert_close(loss, sum, 1e-12);
    assert_true(tarn_backward(loss) && tarn_backward(sum));
    for (int i = 0; i < tarn_module_parameter_count(together); i++)
        assert_close_for_size(tarn_grad(tarn_module_parameter(together, i)), tarn_grad(tarn_module_parameter(alone, i)),
                              1e-10);
    tarn_module_free(together);
    tarn_module_free(alone);
    assert_ok();
}

static const tarn_recompute recomputes[] = {TARN_RECOMPUTE_NONE, TARN_RECOMPUTE_FULL, TARN_RECOMPUTE_SELECTIVE};

static void gpt2_sees_each_document_alone(void **state)
{
    (void)state;
    tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2, .hidden_size = 12, .dtype = TARN_F64};
    for (int i = 0; i < 3; i++) {
        config.recompute = recomputes[i];
        documents_are_as_they_are_alone(tarn_model_gpt2(&config, CPU, 3), tarn_model_gpt2(&config, CPU, 3));
    }
}

static void the_llama_family_sees_each_document_alone(void **state)
{
    (void)state;
    tarn_llama_config config = {.vocab_size = VOCAB,
                                .context = CONTEXT,
                                .layers = 2,
                                .heads = 4,
                                .hidden_size = 12,
                                .ffn_size = 20,
                                .kv_heads = 2,
                                .head_dim = 6,
                                .dtype = TARN_F64};
    static const char *const families[] = {"llama", "qwen2", "qwen3"};
    for (int i = 0; i < 3; i++) {
        config.recompute = recomputes[i];
        config.arch = families[i];
        config.qkv_bias = i == 1;
        config.qk_norm = i == 2;
        documents_are_as_they_are_alone(tarn_model_llama(&config, CPU, 3), tarn_model_llama(&config, CPU, 3));
    }
}

/* A token of another document changes nothing, to the bit; one of the same does. */
static void no_bit_comes_from_another_document(void **state)
{
    (void)state;
    tarn_llama_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2, .hidden_size = 8, .ffn_size = 12};
    tarn_module *model = with_random_weights(tarn_model_llama(&config, CPU, 3));
    batch b = fill();
    tarn__documents documents = {whole(b.positions), whole(b.document_starts)};
    tarn_tensor *before = good(tarn__model_hidden(model->child[TARN__MODEL_BODY], whole(b.ids), &documents));
    for (int64_t t = place[2].begin; t < place[2].end; t++)
        b.ids[t] = (b.ids[t] + 1) % VOCAB;
    tarn_tensor *after = good(tarn__model_hidden(model->child[TARN__MODEL_BODY], whole(b.ids), &documents));
    for (int d = 0; d < DOCUMENTS; d++) {
        double *x = values_of(
            good(tarn_slice(tarn_slice(before, 0, place[d].row, place[d].row + 1), 1, place[d].begin, place[d].end)));
        double *y = values_of(
            good(tarn_slice(tarn_slice(after, 0, place[d].row, place[d].row + 1), 1, place[d].begin, place[d].end)));
        size_t bytes = sizeof(double) * 8 * (size_t)(place[d].end - place[d].begin);
        assert_true((memcmp(x, y, bytes) == 0) == (d != 2));
        free(x);
        free(y);
    }
    tarn_module_free(model);
}

static void mismatched_shapes_are_errors(void **state)
{
    (void)state;
    tarn_gpt2_config config = {.vocab_size = VOCAB, .context = CONTEXT, .layers = 1, .heads = 2, .hidden_size = 8};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 3);
    batch b = fill();
    tarn_tensor *ids = whole(b.ids), *targets = whole(b.targets), *document_starts = whole(b.document_starts);
    assert_null(tarn__model_loss_of("fit", model, ids, targets,
                                    &(tarn__documents){tarn_slice(document_starts, 1, 0, 9), document_starts}));
    assert_error_about(TARN_ERROR_SHAPE, "fit: positions", "must have the shape of the tokens");
    assert_null(tarn__model_loss_of("fit", model, ids, targets, &(tarn__documents){document_starts, NULL}));
    assert_error(TARN_ERROR_ARGUMENT, "starts");
    b.positions[3] = CONTEXT;
    assert_null(
        tarn__model_loss_of("fit", model, ids, targets, &(tarn__documents){whole(b.positions), document_starts}));
    assert_error(TARN_ERROR_ARGUMENT, "40");
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(gpt2_sees_each_document_alone),
        in_scope(the_llama_family_sees_each_document_alone),
        in_scope(no_bit_comes_from_another_document),
        in_scope(mismatched_shapes_are_errors),
    };
    return cmocka_run_group_tests_name("models/documents", tests, NULL, NULL);
}
