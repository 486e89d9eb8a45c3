/* test_fuzz.c: valid files with random damage: bytes changed, removed, repeated, truncated. A reader must accept or
 * reject each without a crash, without excessive memory, and with an error that names the file. TARN_TEST_LONG=1 runs
 * two hundred times as many. */
#include "base/memory.h"
#include "support/fuzz.h"
#include "tarn_features.h"

/* Reads up to 1,000 records of an accepted file. */
static void use(tarn_dataset *dataset)
{
    static unsigned char memory[TARN_MAX_FIELDS][1 << 20];
    void *places[TARN_MAX_FIELDS];
    for (int k = 0; k < TARN_MAX_FIELDS; k++)
        places[k] = memory[k];
    int64_t count = tarn_dataset_count(dataset);
    for (int64_t i = 0; i < count && i < 1000; i++)
        assert_true(tarn_dataset_read(dataset, i, places));
    tarn_dataset_free(dataset);
}

static void fuzz(const bytes *good, tarn_dataset *(*open)(const char *path))
{
    static bytes b;
    uint64_t random = test_seed(20240611);
    int accepted = 0, rounds = fuzz_rounds();
    assert_true(tarn_set_allocator(&fuzz_allocator));
    for (int i = 0; i < rounds; i++) {
        memcpy(b.data, good->data, good->count);
        b.count = good->count;
        fuzz_damage(&b, &random);
        fuzz_largest = 0;
        tarn_dataset *dataset = open(write_file("fuzz", b.data, b.count));
        assert_true(dataset ? !tarn_failed() : tarn_failed());
        bool packed = b.count > 1 && b.data[0] == 0x1F && b.data[1] == 0x8B;
        size_t max_bytes = (b.count + 64) * 8 * (packed ? 1032 : 1) + ((size_t)256 << 10);
        if (fuzz_largest > max_bytes || (!dataset && !strstr(tarn_error(), "/fuzz")) ||
            tarn_error_code() == TARN_ERROR_INTERNAL)
            print_error("round %d: %zu bytes asked for a file of %zu: %s\n", i, fuzz_largest, b.count, tarn_error());
        assert_true(fuzz_largest <= max_bytes && (dataset || strstr(tarn_error(), "/fuzz")) &&
                    tarn_error_code() != TARN_ERROR_INTERNAL);
        tarn_clear_error();
        accepted += dataset != NULL;
        if (dataset)
            use(dataset);
        assert_int_equal(tarn__memory_in_use(), 0);
    }
    assert_true(tarn_set_allocator(NULL));
    print_message("%d of %d damaged files were still good\n", accepted, rounds);
    assert_true(accepted < rounds); /* the damage is real */
}

static tarn_dataset *open_idx(const char *path)
{
    return tarn_dataset_idx(path, NULL);
}

static tarn_dataset *open_cifar(const char *path)
{
    return tarn_dataset_cifar10(&path, 1);
}

static tarn_dataset *open_csv(const char *path)
{
    return tarn_dataset_csv(path, &(tarn_csv_options){.label = "-1", .label_is_real = true});
}

static tarn_dataset *open_npy(const char *path)
{
    return tarn_dataset_npy((const char *const[]){"x"}, &path, 1);
}

static bytes good_file;

static bytes *start(void)
{
    good_file.count = 0;
    return &good_file;
}

static void idx(void **state)
{
    (void)state;
    bytes *b = start();
    put(b, "\0\0\x0B\x03\0\0\0\x04\0\0\0\x05\0\0\0\x06", 16);
    for (int i = 0; i < 240; i++)
        put(b, &(unsigned char){(unsigned char)i}, 1);
    fuzz(b, open_idx);
}

static void gzip(void **state)
{
    (void)state;
    if (!TARN__HAVE_ZLIB)
        skip();
    static bytes plain;
    plain.count = 0;
    put(&plain, "\0\0\x08\x01\0\0\0\x40", 8);
    for (int i = 0; i < 64; i++)
        put(&plain, &(unsigned char){(unsigned char)i}, 1);
    bytes *b = start();
    put_gzip(b, plain.data, plain.count);
    fuzz(b, open_idx);
}

static void cifar10(void **state)
{
    (void)state;
    bytes *b = start();
    for (int i = 0; i < 2 * 3073; i++)
        put(b, &(unsigned char){(unsigned char)(i % 9)}, 1);
    fuzz(b, open_cifar);
}

static void csv(void **state)
{
    (void)state;
    bytes *b = start();
    put_text(b, "a,\"b \"\"x\"\"\",label\r\n1.5,-2e-3,7\n\"4\", 5 ,6\n7,8,9\n1,2,3\n\n");
    fuzz(b, open_csv);
}

static void npy(void **state)
{
    (void)state;
    bytes *b = start();
    const char *head = "{'descr': '>f8', 'fortran_order': True, 'shape': (2, 3, 4), }\n";
    put(b, "\x93NUMPY\x02\0", 8);
    put(b, (const unsigned char[]){(unsigned char)strlen(head), 0, 0, 0}, 4);
    put_text(b, head);
    for (int i = 0; i < 192; i++)
        put(b, &(unsigned char){(unsigned char)(i * 7)}, 1);
    fuzz(b, open_npy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(idx), cmocka_unit_test(gzip), cmocka_unit_test(cifar10),
                                       cmocka_unit_test(csv), cmocka_unit_test(npy)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
