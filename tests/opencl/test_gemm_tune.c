/*
 * test_gemm_tune.c: tiles of GEMMs: none changes a bit, the fastest is measured once and cached on disk, and a damaged
 * cache entry is measured again. The program starts itself: with arguments it multiplies, writes the bits of the
 * results to a file, and exits with the number of tiles measured for that.
 * */
#include "support/opencl.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *self;
static char folder[256];

/* ---- the child --------------------------------------------------------------------------------------------------- */

static int measured;

static void listen(tarn_log_level level, const char *text, void *ctx)
{
    (void)level;
    (void)ctx;
    measured += strstr(text, "with tiles of") != NULL;
}

/* The product of (m, k) and (k, n) of small numbers, and of b turned round, appended to the file. */
static bool multiply(FILE *to, int64_t m, int64_t n, int64_t k)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_device device = tarn_device_parse("opencl");
    tarn_seed(3);
    tarn_tensor *a = tarn_to(tarn_normal(TARN_SHAPE(m, k), 0, 1, TARN_F32, tarn_device_cpu()), device);
    tarn_tensor *b = tarn_to(tarn_normal(TARN_SHAPE(k, n), 0, 1, TARN_F32, tarn_device_cpu()), device);
    tarn_tensor *turned = tarn_transpose(tarn_contiguous(tarn_transpose(b, 0, 1)), 0, 1);
    size_t bytes = (size_t)(m * n) * sizeof(float);
    void *values = malloc(bytes);
    bool good = values && tarn_read(tarn_matmul(a, b), values, bytes) && fwrite(values, 1, bytes, to) == bytes &&
                tarn_read(tarn_matmul(a, turned), values, bytes) && fwrite(values, 1, bytes, to) == bytes;
    free(values);
    tarn_scope_close(scope);
    return good;
}

/* How many tiles were measured; 100 when something went wrong. */
static int work(const char *path, bool is_large)
{
    tarn_set_log(listen, NULL);
    FILE *to = fopen(path, "wb");
    bool good =
        to && (is_large ? multiply(to, 1024, 512, 512) : multiply(to, 140, 72, 1040) && multiply(to, 77, 131, 65));
    good = to && fclose(to) == 0 && good && !tarn_failed();
    return good ? measured : 100;
}

/* ---- the parent -------------------------------------------------------------------------------------------------- */

static int run(const char *path, const char *size)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl(self, self, path, size, (char *)NULL);
        _exit(101);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void assert_same_files(const char *one, const char *other)
{
    FILE *a = fopen(one, "rb"), *b = fopen(other, "rb");
    assert_true(a && b);
    int x, y;
    do {
        x = fgetc(a), y = fgetc(b);
        assert_int_equal(x, y);
    } while (x != EOF);
    fclose(a);
    fclose(b);
}

static void no_tile_changes_a_bit(void **state)
{
    NEEDS_OPENCL();
    char first[300], other[300];
    snprintf(first, sizeof(first), "%s/first", folder);
    snprintf(other, sizeof(other), "%s/other", folder);
    for (int form = 0; form < 2; form++) {
        /* of groups those that PoCL compiles in seconds */
        static const int tiles[2][5] = {{0, 1, 2, 3, 4}, {7, 8, -1, -1, -1}};
        setenv("TARN_OPENCL_LOCAL_MEM", form == 1 ? "1" : "0", 1);
        for (int i = 0; i < 5 && tiles[form][i] >= 0; i++) {
            char number[8];
            snprintf(number, sizeof(number), "%d", tiles[form][i]);
            setenv("TARN_OPENCL_TILE", number, 1);
            assert_int_equal(run(i == 0 ? first : other, "small"), 0);
            if (i > 0)
                assert_same_files(first, other);
        }
    }
    unsetenv("TARN_OPENCL_TILE");
    unsetenv("TARN_OPENCL_LOCAL_MEM");
}

static void damage_all_files(void)
{
    char kept[300], file[600];
    snprintf(kept, sizeof(kept), "%s/tarn/opencl", folder);
    DIR *open = opendir(kept);
    assert_non_null(open);
    for (struct dirent *entry; (entry = readdir(open)) != NULL;) {
        struct stat before;
        snprintf(file, sizeof(file), "%s/%s", kept, entry->d_name);
        if (entry->d_name[0] != '.')
            assert_true(stat(file, &before) == 0 && truncate(file, before.st_size - 1) == 0);
    }
    closedir(open);
}

static void the_fastest_is_measured_once(void **state)
{
    NEEDS_OPENCL();
    char first[300], other[300];
    snprintf(first, sizeof(first), "%s/first", folder);
    snprintf(other, sizeof(other), "%s/other", folder);
    setenv("TARN_AUTOTUNE", "off", 1);
    assert_int_equal(run(first, "large"), 0);
    unsetenv("TARN_AUTOTUNE");
    int tiles = run(other, "large");
    assert_true(tiles > 1 && tiles < 100);
    assert_same_files(first, other);
    assert_int_equal(run(other, "large"), 0);
    assert_same_files(first, other);
    damage_all_files();
    assert_int_equal(run(other, "large"), tiles);
    assert_int_equal(run(other, "large"), 0);
    setenv("TARN_OPENCL_CACHE", "off", 1); /* a choice that cannot be kept is not worth measuring */
    assert_int_equal(run(other, "large"), 0);
    unsetenv("TARN_OPENCL_CACHE");
    assert_same_files(first, other);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/tarn-test-tiles-XXXXXX");
    return mkdtemp(folder) ? setenv("XDG_CACHE_HOME", folder, 1) : 1;
}

static int remove_folder(void **state)
{
    char command[300];
    (void)state;
    snprintf(command, sizeof(command), "rm -r '%s'", folder);
    return system(command);
}

int main(int count, char **arguments)
{
    if (count > 2)
        return work(arguments[1], strcmp(arguments[2], "large") == 0);
    self = arguments[0];
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_tile_changes_a_bit),
                                       cmocka_unit_test(the_fastest_is_measured_once)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
