/* test_compare.c: rows at model sizes that `tarn bench ops` shares with ops_torch.py, and gpu_compare.py, which joins
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases/cases.h"

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

static const tarn__case *find(const char *row, int from, tarn__scale *scale)
{
    for (int i = from; i < tarn__model_count(); i++) {
        const tarn__case *one = tarn__model_at(i, scale);
        if (strcmp(one->bench, row) == 0)
            return one;
    }
    return NULL;
}

static void every_measured_row_has_sizes_in_a_model(void **state)
{
    (void)state;
    tarn__scale scale;
    for (int i = 0; i < tarn__case_count(); i++)
        if (tarn__case_at(i)->bench && !find(tarn__case_at(i)->bench, 0, &scale))
            fail_msg("'%s' is not measured at a model's sizes", tarn__case_at(i)->bench);
    for (int i = 0; i < tarn__model_count(); i++) {
        const tarn__case *letters = tarn__model_at(i, &scale);
        assert_non_null(letters);
        tarn__case one = tarn__case_resolve(letters, &scale, TARN_BF16);
        for (int k = 0; k < one.inputs; k++)
            for (int axis = 0; axis < one.input[k].shape.rank; axis++)
                if (one.input[k].shape.size[axis] < 1 || one.input[k].shape.size[axis] > 50304)
                    fail_msg("'%s' has an axis of %lld", one.bench, (long long)one.input[k].shape.size[axis]);
    }
}

/* A row at model sizes: its first input, and its bytes as a multiple of the largest operand. */
typedef struct known_row {
    const char *row;
    int64_t shape[4];
    double forward, backward;
} known_row;

static bool is_same(const tarn__case *one, const known_row *known)
{
    bool same = strcmp(one->bench, known->row) == 0 && one->input[0].shape.rank == 4;
    for (int i = 0; same && i < 4; i++)
        same = one->input[0].shape.size[i] == known->shape[i];
    return same && one->forward == known->forward && one->backward == known->backward;
}

static void rows_of_networks_have_the_sizes_that_pytorch_is_measured_at(void **state)
{
    (void)state;
    static const known_row known[] = {
        {"attention-causal", {32, 12, 1024, 64}, 0, 8},
        {"attention-causal", {8, 16, 4096, 64}, 0, 8},
        {"attention-causal", {8, 16, 4096, 128}, 0, 8},
        {"attention-causal", {2, 32, 16384, 128}, 0, 8},
        {"rope", {32, 1024, 12, 64}, 0, 2},
        {"conv2d", {64, 64, 56, 56}, 0, 4},
        {"conv2d", {64, 128, 28, 28}, 0, 4},
        {"conv2d", {128, 3, 32, 32}, 0, 4},
        {"conv2d", {64, 256, 14, 14}, 0, 4},
        {"conv2d-nhwc", {64, 64, 56, 56}, 0, 4},
        {"conv2d-nhwc", {64, 128, 28, 28}, 0, 4},
        {"conv2d-nhwc", {128, 3, 32, 32}, 0, 4},
        {"conv2d-nhwc", {64, 256, 14, 14}, 0, 4},
        {"maxpool2d", {128, 64, 64, 64}, 1.25, 1.25},
        {"batchnorm2d", {128, 64, 32, 32}, 3, 5},
        {"max_pool2d-nhwc", {64, 64, 128, 128}, 1.25, 1.25},
        {"avg_pool2d-nhwc", {64, 64, 128, 128}, 1.25, 1.25},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        int found = 0;
        for (int k = 0; k < tarn__model_count(); k++) {
            tarn__scale scale;
            const tarn__case *letters = tarn__model_at(k, &scale);
            tarn__case one = tarn__case_resolve(letters, &scale, TARN_BF16);
            found += is_same(&one, &known[i]);
        }
        if (found != 1)
            fail_msg("row %zu, '%s', is there %d times", i, known[i].row, found);
    }
}

static void words_are_indices_below_the_used_part_of_the_vocabulary_and_small_ones_are_frequent(void **state)
{
    (void)state;
    tarn__scale scale;
    const tarn__case *letters = find("embedding", 0, &scale);
    assert_non_null(letters);
    tarn__case one = tarn__case_resolve(letters, &scale, TARN_F32);
    assert_int_equal(one.input[0].shape.size[0], 50304);
    assert_int_equal(one.input[1].below, 50257);
    one.input[0].shape = TARN_SHAPE(1, 1); /* only the indices are read */
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *in[TARN__CASE_INPUTS];
    assert_true(tarn__case_random_inputs(&one, TARN_F32, tarn_device_cpu(), in));
    const int64_t *index = tarn_data(in[1]);
    int64_t count = tarn_count(in[1]), small = 0;
    assert_int_equal(count, 32768);
    for (int64_t i = 0; i < count; i++) {
        assert_in_range(index[i], 0, 50256);
        small += index[i] < 224; /* the square root of 50257: half of the log-uniform indices */
    }
    assert_in_range(small, count * 48 / 100, count * 52 / 100);
    tarn_scope_close(scope);
}

/* ---- the script -------------------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/tarn-compare-XXXXXX", output[1 << 16];

static void write_rows(const char *name, const char *rows)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(rows, file);
    assert_int_equal(fclose(file), 0);
}

/* Compares two files of rows; returns the script's exit status. */
static int compare(const char *ours, const char *theirs, const char *options)
{
    char line[1024];
    const char *source = getenv("TARN_SOURCE_DIR");
    if (!source || system("python3 -c '' 2>/dev/null") != 0)
        skip();
    write_rows("tarn.jsonl", ours);
    write_rows("torch.jsonl", theirs);
    snprintf(line, sizeof(line), "python3 '%s/bench/compare/gpu_compare.py' %s/tarn.jsonl %s/torch.jsonl %s 2>&1",
             source, folder, folder, options);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    output[fread(output, 1, sizeof(output) - 1, pipe)] = 0;
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect(const char *ours, const char *theirs, int status, const char *text)
{
    int found = compare(ours, theirs, "");
    if (found != status || !strstr(output, text))
        fail_msg("status %d instead of %d, or no '%s' in:\n%s", found, status, text, output);
}

#define EXP(times) "{\"op\": \"exp\", \"dtype\": \"bf16\", \"shape\": [8, 4], " times "}\n"
#define LINEAR(time) \
    "{\"op\": \"linear\", \"dtype\": \"bf16\", \"shape\": [8, 4, 4], \"fwd_us\": " time \
    ", \"bwd_us\": null, \"host_us\": null}\n"
#define PAD(times) "{\"op\": \"pad\", \"dtype\": \"f32\", \"shape\": [4, 4], " times "}\n"
#define SUM(times) "{\"op\": \"sum-last\", \"dtype\": \"f32\", \"shape\": [4, 4], " times "}\n"
#define LOSS(times) "{\"op\": \"cross_entropy\", \"dtype\": \"f32\", \"shape\": [4, 4], " times "}\n"

static void rows_that_reach_every_bar_pass(void **state)
{
    (void)state;
    const char *theirs = EXP("\"fwd_us\": 12, \"bwd_us\": 25")
        LINEAR("11") "a warning\n" SUM("\"fwd_us\": 9, \"bwd_us\": 3, \"bwd_bytes\": 2e7");
    expect(EXP("\"fwd_us\": 10, \"bwd_us\": 20, \"host_us\": 3.4, \"fwd_of_copy\": 0.93, \"bwd_of_copy\": 0.9")
               LINEAR("10") SUM(
                   "\"fwd_us\": 9, \"bwd_us\": 4, \"bwd_bytes\": 2e7, \"bwd_of_copy\": 8"), /* views on both sides */
           theirs, 0, "3 rows, 3 beside PyTorch's, 0 miss a bar");
    assert_int_equal(compare(LINEAR("10"), LINEAR("11"), "--markdown"), 0);
    assert_non_null(strstr(output, "| linear | bf16 | 8x4x4 | 10.0 | 11.0 | 1.10 | - |"));
}

static void what_misses_a_bar_is_marked(void **state)
{
    (void)state;
    const char *theirs = EXP("\"fwd_us\": 12, \"bwd_us\": 25");
    expect(EXP("\"fwd_us\": 10, \"fwd_of_copy\": 0.89"), theirs, 1, "fwd below 0.9");
    expect(EXP("\"fwd_us\": 10, \"bwd_us\": 26"), theirs, 1, "bwd slower");
    expect(EXP("\"fwd_us\": 10, \"host_us\": 3.6"), theirs, 1, "host above 3.5");
    expect(PAD("\"fwd_us\": 10, \"fwd_of_copy\": 0.79"), theirs, 1, "fwd below 0.8");
    expect(LINEAR("10.4"), LINEAR("10"), 1, "fwd slower");
    expect(LINEAR("10"), LINEAR("10.4"), 1, "below 1.05");
    expect(LOSS("\"fwd_us\": 10, \"bwd_us\": 1, \"both_us\": 12"), LOSS("\"fwd_us\": 5, \"bwd_us\": 6"), 1,
           "both slower");
    expect(LOSS("\"fwd_us\": 10, \"bwd_us\": 1, \"both_us\": 11"), LOSS("\"fwd_us\": 5, \"bwd_us\": 6"), 0,
           "1.00 x faster");
}

static void attention_is_held_against_the_faster_of_pytorchs_two(void **state)
{
    (void)state;
#define ATTENTION(name, times) \
    "{\"op\": \"attention-" name "\", \"dtype\": \"bf16\", \"shape\": [2, 2, 8, 64], " times "}\n"
    const char *ours = ATTENTION("causal", "\"fwd_us\": 10, \"bwd_us\": 20");
    expect(ours,
           ATTENTION("flash", "\"fwd_us\": 9, \"bwd_us\": 30") ATTENTION("cudnn", "\"fwd_us\": 11, \"bwd_us\": 21"), 0,
           "1 rows, 1 beside PyTorch's, 0 miss a bar");
    expect(ours,
           ATTENTION("cudnn", "\"fwd_us\": 9, \"bwd_us\": 21") ATTENTION("flash", "\"fwd_us\": 11, \"bwd_us\": 40"), 1,
           "fwd slower");
}

static void files_that_cannot_be_used_are_said_so(void **state)
{
    (void)state;
    expect("", EXP("\"fwd_us\": 1"), 2, "no rows with a forward time");
    expect("{\"op\": ", EXP("\"fwd_us\": 1"), 2, "not a JSON object");
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char path[256];
    (void)state;
    snprintf(path, sizeof(path), "%s/tarn.jsonl", folder);
    unlink(path);
    snprintf(path, sizeof(path), "%s/torch.jsonl", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_measured_row_has_sizes_in_a_model),
        cmocka_unit_test(rows_of_networks_have_the_sizes_that_pytorch_is_measured_at),
        cmocka_unit_test(words_are_indices_below_the_used_part_of_the_vocabulary_and_small_ones_are_frequent),
        cmocka_unit_test(rows_that_reach_every_bar_pass),
        cmocka_unit_test(what_misses_a_bar_is_marked),
        cmocka_unit_test(attention_is_held_against_the_faster_of_pytorchs_two),
        cmocka_unit_test(files_that_cannot_be_used_are_said_so),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
