/* test_mixture.c: mixtures of types by llama.cpp's names: the type of each tensor, by its name and layer, and
 * general.file_type. */
#include "support/check.h"
#include "support/files.h"

#define CPU tarn_device_cpu()
#define LAYERS 16

/* A file of 16 layers with 8 heads and kv_heads of them for keys and values; rows of `row` elements. */
static const char *write_model(uint32_t kv_heads, int64_t row, bool has_head)
{
    static const char *const names[] = {"attn_q", "attn_v", "attn_output", "ffn_down", "ffn_up", "attn_qkv"};
    const char *path = scratch("model.gguf");
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *weight = good(tarn_normal(TARN_SHAPE(1, row), 0, 1, TARN_F32, CPU));
    tarn_gguf_writer *w = tarn_gguf_create(path);
    assert_true(tarn_gguf_add_string(w, "general.architecture", "any", 3) &&
                tarn_gguf_add_value(w, "any.block_count", TARN_GGUF_U32, &(uint32_t){LAYERS}) &&
                tarn_gguf_add_value(w, "any.attention.head_count", TARN_GGUF_U32, &(uint32_t){8}) &&
                tarn_gguf_add_value(w, "any.attention.head_count_kv", TARN_GGUF_U32, &kv_heads));
    for (int i = 0; i < LAYERS; i++)
        for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
            char name[64];
            snprintf(name, sizeof(name), "blk.%d.%s.weight", i, names[k]);
            assert_true(tarn_gguf_add(w, name, weight));
        }
    assert_true(tarn_gguf_add(w, "token_embd.weight", weight) &&
                (!has_head || tarn_gguf_add(w, "output.weight", weight)) && tarn_gguf_finish(w));
    tarn_scope_close(scope);
    return path;
}

static tarn_gguf *converted(const char *from, const char *mixture)
{
    const char *to = scratch("mixed.gguf");
    assert_true(tarn_model_convert(from, to, NULL,
                                   &(tarn_convert_options){.quantize = true, .replace = true, .mixture = mixture}));
    tarn_gguf *file = tarn_gguf_open(to);
    int64_t type;
    assert_non_null(file);
    assert_true(tarn_gguf_int(file, "general.file_type", 0, 99, &type));
    assert_string_equal(tarn_gguf_file_type_name(type), mixture);
    return file;
}

static const char *type_in(const tarn_gguf *file, const char *name)
{
    tarn_gguf_entry e;
    assert_true(tarn_gguf_info(file, tarn_gguf_find(file, name), &e));
    return e.dtype_name;
}

/* One matrix over the layers, by a letter per type: its bits, of Q4_K and Q5_K lower case. */
static void expect_layers(const tarn_gguf *file, const char *matrix, const char *letters)
{
    char found[LAYERS + 1] = "";
    for (int i = 0; i < LAYERS; i++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%d.%s.weight", i, matrix);
        const char *type = type_in(file, name);
        found[i] = strcmp(type, "IQ4_NL") == 0 ? 'N' : strcmp(type, "IQ4_XS") == 0 ? 'X' : type[1];
    }
    assert_string_equal(found, letters);
}

static void sensitive_matrices_get_more_bits(void **state)
{
    (void)state;
    static const struct {
        const char *mixture, *head, *embedding, *v, *output, *down, *qkv, *up;
    } rows[] = {
        {"Q2_K", "Q6_K", "Q2_K", "3333333333333333", "3333333333333333", "3333333333333333", "2222222222222222",
         "2222222222222222"},
        {"Q3_K_S", "Q6_K", "Q3_K", "3333333333333333", "3333333333333333", "3333333333333333", "3333333333333333",
         "3333333333333333"},
        {"Q3_K_M", "Q6_K", "Q3_K", "5544444444444444", "4444444444444444", "5444444444444444", "4444444444444444",
         "3333333333333333"},
        {"Q3_K_L", "Q6_K", "Q3_K", "5555555555555555", "5555555555555555", "5555555555555555", "4444444444444444",
         "3333333333333333"},
        {"Q4_K_S", "Q6_K", "Q4_K", "5555444444444444", "4444444444444444", "5544444444444444", "4444444444444444",
         "4444444444444444"},
        {"Q4_K_M", "Q6_K", "Q4_K", "6644644644644666", "4444444444444444", "6644644644644666", "5555555555555555",
         "4444444444444444"},
        {"Q5_K_M", "Q6_K", "Q5_K", "6655655655655666", "5555555555555555", "6655655655655666", "6666666666666666",
         "5555555555555555"},
        {"Q8_0", "Q8_0", "Q8_0", "8888888888888888", "8888888888888888", "8888888888888888", "8888888888888888",
         "8888888888888888"},
        {"IQ4_XS", "Q6_K", "IQ4_XS", "XXXXXXXXXXXXXXXX", "XXXXXXXXXXXXXXXX", "55XXXXXXXXXXXXXX", "XXXXXXXXXXXXXXXX",
         "XXXXXXXXXXXXXXXX"},
    };
    const char *from = write_model(4, 256, true);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn_gguf *file = converted(from, rows[i].mixture);
        assert_string_equal(type_in(file, "output.weight"), rows[i].head);
        assert_string_equal(type_in(file, "token_embd.weight"), rows[i].embedding);
        expect_layers(file, "attn_v", rows[i].v);
        expect_layers(file, "attn_output", rows[i].output);
        expect_layers(file, "ffn_down", rows[i].down);
        expect_layers(file, "attn_qkv", rows[i].qkv);
        expect_layers(file, "attn_q", rows[i].up);
        expect_layers(file, "ffn_up", rows[i].up);
        tarn_gguf_close(file);
    }
}

static void values_of_many_heads_and_tied_embeddings_get_more(void **state)
{
    (void)state;
    const char *from = write_model(2, 256, false);
    tarn_gguf *file = converted(from, "Q2_K");
    expect_layers(file, "attn_v", "4444444444444444");
    assert_string_equal(type_in(file, "token_embd.weight"), "Q6_K");
    tarn_gguf_close(file);
    file = converted(from, "IQ4_NL");
    expect_layers(file, "attn_v", "5555555555555555");
    tarn_gguf_close(file);
}

static void short_rows_fall_back_to_small_blocks(void **state)
{
    (void)state;
    static const char *const rows[][4] = {
        {"Q4_K_M", "Q8_0", "Q5_0", "Q8_0"}, {"Q5_K_S", "Q8_0", "Q5_1", "Q5_1"}, {"Q3_K_S", "Q8_0", "IQ4_NL", "IQ4_NL"}};
    const char *from = write_model(4, 96, true);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn_gguf *file = converted(from, rows[i][0]);
        assert_string_equal(type_in(file, "output.weight"), rows[i][1]);
        assert_string_equal(type_in(file, "blk.3.ffn_up.weight"), rows[i][2]);
        assert_string_equal(type_in(file, "blk.0.ffn_down.weight"), rows[i][3]);
        tarn_gguf_close(file);
    }
}

static void unknown_mixtures_are_refused(void **state)
{
    (void)state;
    const char *from = write_model(4, 256, true);
    tarn_model_convert(from, scratch("no.gguf"), NULL, &(tarn_convert_options){.quantize = true, .mixture = "Q9_K"});
    assert_error_about(TARN_ERROR_ARGUMENT, "unknown .mixture 'Q9_K'", "Q4_K_M");
    tarn_model_convert(from, scratch("no"), NULL, &(tarn_convert_options){.mixture = "Q4_K_M"});
    assert_error(TARN_ERROR_ARGUMENT, ".mixture is Q4_K_M, but .quantize is not set");
    assert_null(tarn_gguf_file_type_name(4));
    assert_null(tarn_gguf_file_type_name(-1));
    assert_null(tarn_gguf_file_type_name(99));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sensitive_matrices_get_more_bits),
        cmocka_unit_test(values_of_many_heads_and_tied_embeddings_get_more),
        cmocka_unit_test(short_rows_fall_back_to_small_blocks),
        cmocka_unit_test(unknown_mixtures_are_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
