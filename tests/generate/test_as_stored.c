/* test_as_stored.c: memory of a model folder with 16-bit weights that is opened .as_stored, on the CPU. */
#include <sys/stat.h>

#include "support/check.h"
#include "support/scratch.h"

#define CPU tarn_device_cpu()

static const tarn_llama_config shape = {
    .vocab_size = 512, .context = 128, .layers = 16, .heads = 4, .kv_heads = 2, .hidden_size = 256, .ffn_size = 704};

static void write_model(tarn_dtype dtype)
{
    tarn_llama_config config = shape;
    config.dtype = dtype;
    tarn_module *model = tarn_model_llama(&config, CPU, 3);
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
}

static int64_t stored_bytes(void)
{
    struct stat found;
    char path[512];
    snprintf(path, sizeof(path), "%s/model.safetensors", scratch("model"));
    assert_int_equal(stat(path, &found), 0);
    return (int64_t)found.st_size;
}

/* Opening, a prompt in chunks and tokens after it: never more than what the file has, keys and values, and 5 %. */
static void memory_is_that_of_the_file_and_little_more(void **state)
{
    (void)state;
    static const tarn_dtype dtypes[] = {TARN_BF16, TARN_F16};
    for (int i = 0; i < 2; i++) {
        write_model(dtypes[i]);
        int64_t before = tarn_memory_of(CPU).used,
                cache = 2 * shape.layers * shape.context * (shape.hidden_size / 2) * 2;
        tarn_stats_reset();
        tarn_module *model = tarn_model_open(scratch("model"), CPU, &(tarn_model_open_options){.as_stored = true});
        assert_ok();
        assert_true((double)(tarn_memory_of(CPU).peak_used - before) <= 1.05 * (double)stored_bytes());
        tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.prefill_chunk = 16});
        tarn_sampler *sampler = tarn_sampler_new(NULL);
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *token =
            tarn_sampler_sample(sampler, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1, 64), TARN_I64, CPU)));
        for (int made = 0; made < 20; made++)
            token = good(tarn_sampler_sample(sampler, tarn_decoder_feed(decoder, token)));
        tarn_scope_close(scope);
        assert_true((double)(tarn_memory_of(CPU).peak_used - before) <= 1.05 * (double)(stored_bytes() + cache));
        tarn_sampler_free(sampler);
        tarn_decoder_free(decoder);
        tarn_module_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(memory_is_that_of_the_file_and_little_more)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
