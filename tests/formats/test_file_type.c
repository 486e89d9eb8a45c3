/* test_file_type.c: a file of another type than expected is named, wherever it is given. */
#include "support/check.h"
#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

typedef struct sample {
    const char *bytes;
    size_t count;
    const char *what;
} sample;

#define SAMPLE(text, what) \
    { \
        text, sizeof(text) - 1, what \
    }

static const sample samples[] = {
    SAMPLE("", "an empty file"),
    SAMPLE("PK\003\004\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0archive/data.pklFB", "torch.save()"),
    SAMPLE("PK\003\004some other archive", "a zip archive"),
    SAMPLE("\x80\x02}q\0(X", "a Python pickle"),
    SAMPLE("IQ== 0\nIg== 1\nIw== 2\n", "a tiktoken vocabulary"),
    SAMPLE("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
    SAMPLE("<!DOCTYPE html>\n<html></html>\n", "an HTML page"),
    SAMPLE("  <HTML>", "an HTML page"),
    SAMPLE("\x1f\x8b\x08\0\0\0\0\0", "a gzip file"),
    SAMPLE("\x89PNG\r\n\x1a\n", "a PNG image"),
    SAMPLE("\x7f"
           "ELF\x02\x01\x01",
           "ELF"),
    SAMPLE("\x93NUMPY\x01\0", "a NumPy array"),
};
#define SAMPLES (sizeof(samples) / sizeof(samples[0]))

static void check(const sample *s, const char *path, tarn_code code)
{
    char there[512];
    snprintf(there, sizeof(there), "%s", path);
    assert_error_about(code, there, s->what);
}

static void the_error_names_the_type_of_a_wrong_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < SAMPLES; i++) {
        const sample *s = &samples[i];
        const char *path = write_file("model.bin", s->bytes, s->count);
        assert_null(tarn_model_open(path, CPU, NULL));
        check(s, path, TARN_ERROR_FORMAT);
        assert_null(tarn_gguf_open(write_file("model.gguf", s->bytes, s->count)));
        check(s, "not a GGUF file", TARN_ERROR_FORMAT);
        assert_null(tarn_safetensors_open(write_file("model.safetensors", s->bytes, s->count)));
        check(s, "not a safetensors file", TARN_ERROR_FORMAT);
        tarn_tokenizer *t = tarn_tokenizer_open(write_file("tokenizer.model", s->bytes, s->count));
        if (strstr(s->what, "tiktoken")) /* which is one of the forms of that file */
            assert_non_null(t);
        else
            assert_null(t);
        if (!t)
            check(s, "not a SentencePiece model", TARN_ERROR_FORMAT);
        tarn_tokenizer_free(t);
        assert_null(tarn_tokenizer_open(write_file("tokenizer.json", s->bytes, s->count)));
        check(s, "not a JSON file", TARN_ERROR_FORMAT);
    }
}

static void weights_and_gguf_files_under_other_names_are_named(void **state)
{
    (void)state;
    const char head[] = "\x10\0\0\0\0\0\0\0{\"a\": 1}        ";
    assert_null(tarn_model_open(write_file("weights.safetensors", head, sizeof(head) - 1), CPU, NULL));
    assert_error_about(TARN_ERROR_FORMAT, "a safetensors file", "give its folder");
    assert_null(tarn_model_open(write_text("blob", "GGUF\3\0\0\0"), CPU, NULL));
    assert_error_about(TARN_ERROR_FORMAT, "a GGUF file", "ends in .gguf");
    assert_null(tarn_model_open(write_text("notes.txt", "some words\n"), CPU, NULL));
    assert_error(TARN_ERROR_FORMAT, "a model's folder or .gguf file is expected");
}

/* What is damaged further on is refused where it is damaged. */
static void a_damaged_file_of_the_expected_type_is_not_another(void **state)
{
    (void)state;
    assert_null(tarn_tokenizer_open(write_text("tokenizer.json", "{\"model\": }")));
    assert_error(TARN_ERROR_FORMAT, "line 1, column");
    assert_null(tarn_tokenizer_open(write_text("tokenizer.model", "\n\016\n\005<unk>\x15\0\0\0\0")));
    assert_error(TARN_ERROR_FORMAT, "the file is");
    assert_null(tarn_gguf_open(write_text("model.gguf", "nothing that is known")));
    assert_error(TARN_ERROR_FORMAT, "does not begin with \"GGUF\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_error_names_the_type_of_a_wrong_file),
        cmocka_unit_test(weights_and_gguf_files_under_other_names_are_named),
        cmocka_unit_test(a_damaged_file_of_the_expected_type_is_not_another),
    };
    if (!TARN__HAVE_JANSSON) {
        printf("JSON files need jansson: nothing to test\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
