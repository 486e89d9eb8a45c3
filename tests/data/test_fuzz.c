/* test_fuzz.c: good files with random damage: bytes changed, cut out, doubled, cut off. A reader must take or refuse each without a crash, without
 * memory out of proportion, and with an error that names the file. TARN_TEST_LONG=1 runs two hundred times as many. */
#include "base/memory.h"
#include "support/files.h"
#include "tarn_features.h"

static size_t largest;

static void *note_alloc(size_t size, size_t alignment, void *ctx)
{
    (void)ctx;
    largest = size > largest ? size : largest;
    void *memory = NULL;
    return posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size) == 0 ? memory : NULL;
}

static void note_release(void *memory, size_t size, void *ctx)
{
    (void)size, (void)ctx;
    free(memory);
}

static int rounds(void)
{
    const char *quick = getenv("TARN_TEST_QUICK"), *many = getenv("TARN_TEST_LONG");
    return many && many[0] == '1' ? 100000 : quick && quick[0] == '1' ? 100 : 500;
}

static void damage(bytes *b, uint64_t *random)
{
    static const unsigned char favourites[] = {0, 1, 7, 8, 9, 0x7F, 0x80, 0xFF, '\n', '"', ',', '(', ')', '\'', '9', '-'};
    for (int64_t n = 1 + random_below(random, 4); n > 0 && b->count > 0; n--) {
        size_t head = b->count < 100 || random_below(random, 4) == 0 ? b->count : 100; /* where formats decide */
        size_t at = (size_t)random_below(random, (int64_t)head), length = (size_t)random_below(random, 9);
        length = at + length > b->count ? b->count - at : length;
        switch (random_below(random, 6)) {
        case 0: b->data[at] ^= (unsigned char)(1 << random_below(random, 8)); break;
        case 1: b->data[at] = favourites[random_below(random, sizeof(favourites))]; break;
        case 2: b->data[at] = (unsigned char)random_bits(random); break;
        case 3: /* cut out */
            memmove(b->data + at, b->data + at + length, b->count - at - length);
            b->count -= length;
            break;
        case 4: /* doubled */
            if (b->count + length <= sizeof(b->data)) {
                memmove(b->data + at + length, b->data + at, b->count - at);
                b->count += length;
            }
            break;
        default: b->count = at; break;
        }
    }
}

/* Reads all there is of what was accepted. */
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
    int taken = 0, all = rounds();
    assert_true(tarn_set_allocator(&(tarn_allocator){note_alloc, note_release, NULL}));
    for (int i = 0; i < all; i++) {
        memcpy(b.data, good->data, good->count);
        b.count = good->count;
        damage(&b, &random);
        largest = 0;
        tarn_dataset *dataset = open(write_file("fuzz", b.data, b.count));
        assert_true(dataset ? !tarn_failed() : tarn_failed());
        bool packed = b.count > 1 && b.data[0] == 0x1F && b.data[1] == 0x8B;
        size_t most = (b.count + 64) * 8 * (packed ? 1032 : 1) + ((size_t)256 << 10);
        if (largest > most || (!dataset && !strstr(tarn_error(), "/fuzz")) || tarn_error_code() == TARN_ERROR_INTERNAL)
            print_error("round %d: %zu bytes asked for a file of %zu: %s\n", i, largest, b.count, tarn_error());
        assert_true(largest <= most && (dataset || strstr(tarn_error(), "/fuzz")) && tarn_error_code() != TARN_ERROR_INTERNAL);
        tarn_clear_error();
        taken += dataset != NULL;
        if (dataset)
            use(dataset);
        assert_int_equal(tarn__memory_held(), 0);
    }
    assert_true(tarn_set_allocator(NULL));
    print_message("%d of %d damaged files were still good\n", taken, all);
    assert_true(taken < all); /* the damage is real */
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(idx), cmocka_unit_test(gzip), cmocka_unit_test(cifar10), cmocka_unit_test(csv),
                                       cmocka_unit_test(npy)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
