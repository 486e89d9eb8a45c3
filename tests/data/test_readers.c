/* test_readers.c: every format, valid and broken: all truncations, wrong magic, impossible counts, damaged gzip; and
 * the real MNIST and CIFAR-10 if they are available. */
#include "support/files.h"
#include "tarn_features.h"

static void expect_sample(const tarn_dataset *dataset, int64_t index, const void *first, size_t first_bytes,
                          int64_t label)
{
    unsigned char memory[4096];
    int64_t found = -1;
    assert_true(tarn_dataset_read(dataset, index, (void *const[]){memory, &found}));
    assert_memory_equal(memory, first, first_bytes);
    assert_int_equal(found, label);
}

static void expect_field(const tarn_dataset *dataset, int index, const char *name, tarn_dtype dtype, tarn_shape shape)
{
    tarn_field field = {0};
    assert_true(tarn_dataset_field(dataset, index, &field));
    assert_string_equal(field.name, name);
    assert_int_equal(field.dtype, dtype);
    assert_int_equal(field.shape.rank, shape.rank);
    assert_memory_equal(field.shape.size, shape.size, sizeof(int64_t) * (size_t)shape.rank);
}

/* A reader must refuse every proper beginning of a good file, with an error that names the file. */
static void refuse_all_beginnings(const bytes *b, tarn_dataset *(*open)(const char *path), size_t from, size_t step)
{
    for (size_t length = from; length < b->count; length += step) {
        tarn_dataset *dataset = open(write_file("cut", b->data, length));
        if (dataset || !tarn_failed())
            print_error("the first %zu of %zu bytes were accepted\n", length, b->count);
        assert_null(dataset);
        if (tarn_error_code() != TARN_ERROR_FORMAT || !strstr(tarn_error(), "/cut: "))
            print_error("%s\n", tarn_error());
        assert_true(tarn_error_code() == TARN_ERROR_FORMAT && strstr(tarn_error(), "/cut: "));
        tarn_clear_error();
    }
}

/* ---- idx --------------------------------------------------------------------------------------------------------- */

static const unsigned char pixels[12] = {0, 1, 2, 3, 4, 5, 60, 70, 80, 90, 100, 255};

static void put_images(bytes *b)
{
    b->count = 0;
    put(b, "\0\0\x08\x03", 4);
    put_big32(b, 2);
    put_big32(b, 2);
    put_big32(b, 3);
    put(b, pixels, 12);
}

static void put_labels(bytes *b)
{
    b->count = 0;
    put(b, "\0\0\x08\x01\0\0\0\x02\x07\xFF", 10);
}

static tarn_dataset *open_images(const char *path)
{
    return tarn_dataset_idx(path, NULL);
}

static void idx_files_are_read(void **state)
{
    (void)state;
    static bytes images, labels;
    put_images(&images);
    put_labels(&labels);
    for (int compressed = 0; compressed < 1 + TARN__HAVE_ZLIB; compressed++) {
        const char *(*write)(const char *, const void *, size_t) = compressed ? write_gzip : write_file;
        const char *image_path = write("images", images.data, images.count),
                   *label_path = write("labels", labels.data, labels.count);
        tarn_dataset *dataset = tarn_dataset_idx(image_path, label_path);
        assert_ok();
        assert_int_equal(tarn_dataset_count(dataset), 2);
        expect_field(dataset, 0, "image", TARN_U8, TARN_SHAPE(1, 2, 3));
        expect_field(dataset, 1, "label", TARN_I64, TARN_SCALAR);
        expect_sample(dataset, 0, pixels, 6, 7);
        expect_sample(dataset, 1, pixels + 6, 6, 255);
        tarn_dataset_free(dataset);
    }
    assert_null(tarn_dataset_idx(scratch("images"), scratch("images")));
    assert_error(TARN_ERROR_FORMAT, "holds u8 on 3 axes; labels are integers on one axis");
    labels.data[7] = 1;
    labels.count--;
    assert_null(tarn_dataset_idx(scratch("images"), write_file("fewer", labels.data, labels.count)));
    assert_error_about(TARN_ERROR_FORMAT, "has 2 images, but ", "fewer has 1 labels");
    assert_null(tarn_dataset_idx(scratch("nosuch"), NULL));
    assert_error_about(TARN_ERROR_IO, "dataset_idx: ", "nosuch: cannot be read: No such file");
    assert_null(tarn_dataset_idx("/", NULL));
    assert_error(TARN_ERROR_IO, "dataset_idx: / is not a regular file");
}

static void idx_types_become_the_nearest_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        size_t bytes;
        tarn_dtype dtype;
        double value[2];
    } rows[] = {
        {"\0\0\x09\x01\0\0\0\x02\xFF\x05", 10, TARN_I32, {-1, 5}},
        {"\0\0\x0B\x01\0\0\0\x02\xFF\xFE\x01\x00", 12, TARN_I32, {-2, 256}},
        {"\0\0\x0C\x01\0\0\0\x02\xFF\xFF\xFF\xFD\x00\x01\x00\x00", 16, TARN_I32, {-3, 65536}},
        {"\0\0\x0D\x01\0\0\0\x02\x3F\xC0\x00\x00\xC0\x00\x00\x00", 16, TARN_F32, {1.5, -2}},
        {"\0\0\x0E\x01\0\0\0\x02\x3F\xF8\x00\x00\x00\x00\x00\x00\xC0\x00\x00\x00\x00\x00\x00\x00",
         24,
         TARN_F64,
         {1.5, -2}},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn_dataset *dataset = tarn_dataset_idx(write_file("typed", rows[i].file, rows[i].bytes), NULL);
        assert_ok();
        expect_field(dataset, 0, "image", rows[i].dtype, TARN_SCALAR);
        for (int64_t k = 0; k < 2; k++) {
            union {
                int32_t i32;
                float f32;
                double f64;
            } value;
            assert_true(tarn_dataset_read(dataset, k, (void *const[]){&value}));
            assert_true((rows[i].dtype == TARN_I32   ? value.i32
                         : rows[i].dtype == TARN_F32 ? (double)value.f32
                                                     : value.f64) == rows[i].value[k]);
        }
        tarn_dataset_free(dataset);
    }
}

static void broken_idx_files_are_refused(void **state)
{
    (void)state;
    static bytes b;
    put_images(&b);
    refuse_all_beginnings(&b, open_images, 0, 1);
    put(&b, "x", 1);
    assert_null(open_images(write_file("long", b.data, b.count)));
    assert_error(TARN_ERROR_FORMAT, "byte 28: the elements end here, but more bytes follow");
    static const struct {
        const char *head, *error;
    } heads[] = {{"\0\1\x08\x03", "byte 0: 00 01 08 03 does not begin an idx file"},
                 {"\0\0\x07\x03", "does not begin"},
                 {"\0\0\x08\x00", "does not begin"},
                 {"\0\0\x08\x09", "does not begin"},
                 {"\x93NUM", "does not begin"}};
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        put_images(&b);
        memcpy(b.data, heads[i].head, 4);
        assert_null(open_images(write_file("head", b.data, b.count)));
        assert_error(TARN_ERROR_FORMAT, heads[i].error);
    }
    for (int axis = 0; axis < 3; axis++) { /* counts that would be terabytes */
        put_images(&b);
        memset(b.data + 4 + 4 * axis, 0xFF, 4);
        assert_null(open_images(write_file("huge", b.data, b.count)));
        assert_error(TARN_ERROR_FORMAT, "more than the file can hold");
    }
}

/* ---- gzip -------------------------------------------------------------------------------------------------------- */

static void damaged_gzip_is_refused(void **state)
{
    (void)state;
    static bytes plain, packed;
    put_images(&plain);
    packed.count = 0;
    put_gzip(&packed, plain.data, plain.count);
    if (!TARN__HAVE_ZLIB) {
        assert_null(open_images(write_file("packed", packed.data, packed.count)));
        assert_error(TARN_ERROR_UNSUPPORTED, "zlib1g-dev");
        return;
    }
    refuse_all_beginnings(&packed, open_images, 2, 1);
    packed.data[packed.count - 5] ^= 1; /* the checksum */
    assert_null(open_images(write_file("packed", packed.data, packed.count)));
    assert_error(TARN_ERROR_FORMAT, "the compressed data is damaged: incorrect data check");
    packed.data[packed.count - 5] ^= 1;
    packed.data[10] = 7; /* a block type that does not exist */
    assert_null(open_images(write_file("packed", packed.data, packed.count)));
    assert_error_about(TARN_ERROR_FORMAT, "packed: byte ", "damaged: invalid block type");
    packed.count = 0;
    put_gzip(&packed, plain.data, plain.count);
    put_text(&packed, "garbage");
    assert_null(open_images(write_file("packed", packed.data, packed.count)));
    assert_error(TARN_ERROR_FORMAT, "damaged: incorrect header check");
    packed.count = 0; /* two members are one file */
    put_gzip(&packed, plain.data, 17);
    put_gzip(&packed, plain.data + 17, plain.count - 17);
    tarn_dataset *dataset = open_images(write_file("packed", packed.data, packed.count));
    assert_ok();
    tarn_dataset_free(dataset);
}

/* ---- CIFAR-10 ---------------------------------------------------------------------------------------------------- */

#define RECORD 3073

static void put_records(bytes *b, int first, int count)
{
    b->count = 0;
    for (int i = first; i < first + count; i++) {
        unsigned char record[RECORD];
        for (int k = 0; k < RECORD; k++)
            record[k] = (unsigned char)(k == 0 ? i % 10 : i * 31 + k);
        put(b, record, RECORD);
    }
}

static tarn_dataset *open_cifar(const char *path)
{
    return tarn_dataset_cifar10(&path, 1);
}

static void cifar10_files_are_read(void **state)
{
    (void)state;
    static bytes b;
    put_records(&b, 0, 3);
    const char *paths[2] = {write_file("one", b.data, b.count), NULL};
    put_records(&b, 3, 2);
    paths[1] = TARN__HAVE_ZLIB ? write_gzip("two", b.data, b.count) : write_file("two", b.data, b.count);
    tarn_dataset *dataset = tarn_dataset_cifar10(paths, 2);
    assert_ok();
    assert_int_equal(tarn_dataset_count(dataset), 5);
    expect_field(dataset, 0, "image", TARN_U8, TARN_SHAPE(3, 32, 32));
    put_records(&b, 0, 5);
    for (int i = 0; i < 5; i++)
        expect_sample(dataset, i, b.data + i * RECORD + 1, RECORD - 1, i);
    tarn_dataset_free(dataset);
}

static void cifar10_folders_have_five_files_and_one(void **state)
{
    (void)state;
    static bytes b;
    char name[32];
    for (int i = 1; i <= 5; i++) {
        put_records(&b, i, 1);
        snprintf(name, sizeof(name), "data_batch_%d.bin", i);
        write_file(name, b.data, b.count);
    }
    tarn_dataset *training = tarn_dataset_cifar10_folder(scratch("."), true);
    assert_ok();
    assert_int_equal(tarn_dataset_count(training), 5);
    expect_sample(training, 4, b.data + 1, RECORD - 1, 5);
    tarn_dataset_free(training);
    assert_null(tarn_dataset_cifar10_folder(scratch("."), false));
    assert_error_about(TARN_ERROR_IO, "dataset_cifar10_folder: ", "test_batch.bin: cannot be read");
}

static void broken_cifar10_files_are_refused(void **state)
{
    (void)state;
    static bytes b;
    put_records(&b, 0, 1);
    refuse_all_beginnings(&b, open_cifar, 0, 97);
    put_records(&b, 0, 3);
    b.data[2 * RECORD] = 10;
    assert_null(open_cifar(write_file("label", b.data, b.count)));
    assert_error(TARN_ERROR_FORMAT, "byte 6146: label 10; CIFAR-10 has 10 classes");
    put(&b, "x", 1);
    b.data[2 * RECORD] = 2;
    assert_null(open_cifar(write_file("long", b.data, b.count)));
    assert_error(TARN_ERROR_FORMAT, "byte 9220: the file ends inside record 3: a CIFAR-10 record has 3073 bytes");
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void csv_files_are_read(void **state)
{
    (void)state;
    const char *path =
        write_text("iris.csv", "\xEF\xBB\xBFlength,\"width, cm\",species\r\n1.5, -2e1 ,0\r\n\"3\",.25,2\r\n\r\n");
    tarn_dataset *dataset = tarn_dataset_csv(path, &(tarn_csv_options){.label = "species"});
    assert_ok();
    assert_int_equal(tarn_dataset_count(dataset), 2);
    expect_field(dataset, 0, "x", TARN_F32, TARN_SHAPE(2));
    expect_sample(dataset, 0, (const float[]){1.5f, -20}, 8, 0);
    expect_sample(dataset, 1, (const float[]){3, 0.25f}, 8, 2);
    tarn_dataset_free(dataset);
    dataset = tarn_dataset_csv(path, &(tarn_csv_options){.label = "0", .label_is_real = true, .dtype = TARN_F64});
    assert_ok();
    double x[2], label;
    assert_true(tarn_dataset_read(dataset, 0, (void *const[]){x, &label}));
    assert_true(x[0] == -20 && x[1] == 0 && label == 1.5);
    tarn_dataset_free(dataset);
    dataset =
        tarn_dataset_csv(write_text("plain.csv", "1;2;3\n4;5;6"), &(tarn_csv_options){.delimiter = ';', .label = "-1"});
    assert_ok();
    assert_int_equal(tarn_dataset_count(dataset), 2);
    expect_sample(dataset, 0, (const float[]){1, 2}, 8, 3);
    expect_sample(dataset, 1, (const float[]){4, 5}, 8, 6);
    tarn_dataset_free(dataset);
    dataset = tarn_dataset_csv(write_text("years.csv", "1999,2000\n1,2\n"),
                               &(tarn_csv_options){.header = TARN_HEADER_YES, .label = "2000"});
    assert_ok();
    assert_int_equal(tarn_dataset_count(dataset), 1);
    expect_sample(dataset, 0, (const float[]){1}, 4, 2);
    tarn_dataset_free(dataset);
    dataset = tarn_dataset_csv(write_text("only.csv", "7\n8\n"), NULL);
    assert_int_equal(tarn_dataset_field_count(dataset), 1);
    assert_int_equal(tarn_dataset_count(dataset), 2);
    tarn_dataset_free(dataset);
}

static void csv_mistakes_name_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"", "byte 0: the file is empty"},
        {"a,b\n1,2\n3,x\n", "line 3, column 2: 'x' is not a number"},
        {"a,b\n1,\n", "line 2, column 2: the value is missing"},
        {"a,b\n1,\" \"\n", "line 2, column 2: the value is missing"},
        {"a,b\n1\n", "line 2, column 1: the line ends after 1 fields; the first line has 2"},
        {"a,b\n1,2,3\n", "line 2, column 3: one field more than the 2 of the first line"},
        {"a,b\n1,2\n\n3,4\n", "line 3 is empty"},
        {"a\n1\n\n", NULL},
        {"a,b\n1,nan\n", "'nan' is not a number"},
        {"a,b\n1,inf\n", "'inf' is not a number"},
        {"a,b\n1,0x10\n", "'0x10' is not a number"},
        {"a,b\n1,1e\n", "'1e' is not a number"},
        {"a,b\n1,.\n", "'.' is not a number"},
        {"a,b\n1,1 2\n", "'1 2' is not a number"},
        {"a,b\n1,1e39\n", "1e39 is too large for f32"},
        {"a,b\n1,\"2\n", "line 2, column 2: the file ends inside quotes"},
        {"a,b\n1,\"2\"3\n", "line 2, column 2: text follows the closing quote"},
        {"a,b\n1,2\"\n", "line 2, column 2: a quote inside a field that does not begin with one"},
        {"\"a\nb\",c\n1,x\n", "line 3, column 2: 'x' is not a number"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn_dataset *dataset = tarn_dataset_csv(write_text("bad.csv", rows[i].text), NULL);
        if (rows[i].error)
            assert_error_about(TARN_ERROR_FORMAT, "dataset_csv: ", rows[i].error);
        else
            assert_ok();
        tarn_dataset_free(dataset);
    }
    assert_null(tarn_dataset_csv(write_file("zero.csv", "1,2\0", 4), NULL));
    assert_error(TARN_ERROR_FORMAT, "a zero byte; this is not a text file");
    assert_null(tarn_dataset_csv(write_text("bad.csv", "a,b\n1,2.5\n"), &(tarn_csv_options){.label = "b"}));
    assert_error(TARN_ERROR_FORMAT, "line 2, column 2: the label 2.5 is not an integer");
    assert_null(tarn_dataset_csv(write_text("bad.csv", "a,b\n1,2\n"), &(tarn_csv_options){.label = "c"}));
    assert_error(TARN_ERROR_ARGUMENT, "no column 'c'; the file has 2 columns");
    assert_null(tarn_dataset_csv(write_text("bad.csv", "1,2\n"), &(tarn_csv_options){.label = "b"}));
    assert_error(TARN_ERROR_ARGUMENT, "no column 'b'; the file has 2 columns and no header line");
    assert_null(tarn_dataset_csv(write_text("bad.csv", "a,a\n1,2\n"), &(tarn_csv_options){.label = "a"}));
    assert_error(TARN_ERROR_FORMAT, "two columns have the name 'a'");
    assert_null(tarn_dataset_csv(write_text("bad.csv", "a\n1\n"), &(tarn_csv_options){.label = "a"}));
    assert_error(TARN_ERROR_FORMAT, "the label is the only column");
    assert_null(tarn_dataset_csv(write_text("bad.csv", "a,b\n1,2\n"), &(tarn_csv_options){.header = TARN_HEADER_NO}));
    assert_error(TARN_ERROR_FORMAT, "line 1, column 1: 'a' is not a number");
}

/* ---- npy --------------------------------------------------------------------------------------------------------- */

static void put_npy(bytes *b, int version, const char *head, const void *data, size_t count)
{
    b->count = 0;
    put(b, "\x93NUMPY", 6);
    size_t length = strlen(head);
    unsigned char start[6] = {(unsigned char)version, 0, (unsigned char)length, (unsigned char)(length >> 8), 0, 0};
    put(b, start, version == 1 ? 4 : 6);
    put_text(b, head);
    put(b, data, count);
}

static const float six[6] = {1, 2, 3, 4, 5, 6};
#define GOOD_HEAD "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n"

static tarn_dataset *open_npy(const char *path)
{
    return tarn_dataset_npy((const char *const[]){"x"}, &path, 1);
}

static void npy_files_are_read(void **state)
{
    (void)state;
    static bytes b;
    tarn_array array;
    for (int version = 1; version <= 3; version++) {
        put_npy(&b, version, GOOD_HEAD, six, 24);
        assert_true(tarn_npy_load(write_file("a.npy", b.data, b.count), &array));
        assert_true(array.dtype == TARN_F32 && array.shape.rank == 2 && array.shape.size[0] == 2 &&
                    array.shape.size[1] == 3);
        assert_memory_equal(array.data, six, 24);
        tarn_array_free(&array);
    }
    put_npy(&b, 1, "{'shape': (2, 3), 'fortran_order': True, \"descr\": '<f4'}", (const float[]){1, 4, 2, 5, 3, 6}, 24);
    assert_true(tarn_npy_load(write_file("fortran.npy", b.data, b.count), &array));
    assert_memory_equal(array.data, six, 24);
    tarn_array_free(&array);
    put_npy(&b, 1, "{'descr': '>i4', 'fortran_order': False, 'shape': (2,), }\n", "\0\0\1\0\xFF\xFF\xFF\xFF", 8);
    assert_true(tarn_npy_load(write_file("big.npy", b.data, b.count), &array));
    assert_true(((int32_t *)array.data)[0] == 256 && ((int32_t *)array.data)[1] == -1);
    tarn_array_free(&array);
    put_npy(&b, 1, "{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n", "\1", 1);
    assert_true(tarn_npy_load(write_file("scalar.npy", b.data, b.count), &array));
    assert_true(array.dtype == TARN_BOOL && array.shape.rank == 0);
    tarn_array_free(&array);
    put_npy(&b, 1, GOOD_HEAD, six, 24);
    tarn_dataset *dataset = open_npy(write_file("a.npy", b.data, b.count));
    assert_ok();
    assert_int_equal(tarn_dataset_count(dataset), 2);
    expect_field(dataset, 0, "x", TARN_F32, TARN_SHAPE(3));
    tarn_dataset_free(dataset);
}

static void broken_npy_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *head, *error;
    } rows[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 99999999999), }",
         "more elements than the file can hold"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", "more elements than"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4), }", "a size that is too large"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3), }", "a size is expected"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6), }", "a comma is missing"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6), }", "more than 8 axes"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }", "elements of type '<c8' are not supported"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }", "arrays of records are not supported"},
        {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2, 3), }", "True or False is expected"},
        {"{'descr': '<f4', 'fortran_order': False, }", "descr, fortran_order or shape is missing"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", "given twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': 1}", "a key is unknown"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } x", "text follows the dictionary"},
        {"'descr': '<f4'", "the header is not a dictionary"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }", "more elements than the file"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", "the elements end here, but more bytes follow"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (24,), }", "a bool is 128, not 0 or 1"},
    };
    static bytes b;
    tarn_array array;
    put_npy(&b, 1, GOOD_HEAD, six, 24);
    refuse_all_beginnings(&b, open_npy, 0, 1);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        put_npy(&b, 1, rows[i].head, six, 24);
        assert_false(tarn_npy_load(write_file("bad.npy", b.data, b.count), &array));
        assert_null(array.data);
        assert_error_about(TARN_ERROR_FORMAT, "npy_load: ", rows[i].error);
    }
    put_npy(&b, 4, GOOD_HEAD, six, 24);
    assert_false(tarn_npy_load(write_file("bad.npy", b.data, b.count), &array));
    assert_error(TARN_ERROR_FORMAT, "byte 6: version 4.0");
    put_npy(&b, 2, GOOD_HEAD, six, 24);
    b.data[11] = 0xFF;
    assert_false(tarn_npy_load(write_file("bad.npy", b.data, b.count), &array));
    assert_error(TARN_ERROR_FORMAT, "byte 8: a header of 4278190");
}

/* ---- real data --------------------------------------------------------------------------------------------------- */

/* Figures from NumPy: counts of each label, and zlib's crc32 of all images and of all labels as bytes. */
static void expect_real(tarn_dataset *dataset, size_t image_bytes, const int *counts, uint32_t images, uint32_t labels)
{
    unsigned char image[4096];
    int found[10] = {0};
    uint32_t image_sum = 0, label_sum = 0;
    assert_ok();
    for (int64_t i = 0; i < tarn_dataset_count(dataset); i++) {
        int64_t label = -1;
        assert_true(tarn_dataset_read(dataset, i, (void *const[]){image, &label}));
        assert_true(label >= 0 && label < 10);
        found[label]++;
        unsigned char narrow = (unsigned char)label;
        image_sum = checksum(image_sum, image, image_bytes);
        label_sum = checksum(label_sum, &narrow, 1);
    }
    for (int i = 0; i < 10; i++)
        assert_int_equal(found[i], counts[i]);
    assert_int_equal(image_sum, images);
    assert_int_equal(label_sum, labels);
    tarn_dataset_free(dataset);
}

static void the_real_mnist_is_read(void **state)
{
    (void)state;
    const char *folder = real_data("mnist");
    if (!folder || !TARN__HAVE_ZLIB)
        skip();
    tarn_dataset *training = tarn_dataset_mnist(folder, true);
    assert_int_equal(tarn_dataset_count(training), 60000);
    expect_real(training, 784, (const int[]){5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949}, 0xf3639b56,
                0xba07e8ef);
    tarn_dataset *testing = tarn_dataset_mnist(folder, false);
    assert_int_equal(tarn_dataset_count(testing), 10000);
    expect_real(testing, 784, (const int[]){980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009}, 0xe4ca5f57,
                0xee8604d9);
}

static void the_real_cifar10_is_read(void **state)
{
    (void)state;
    const char *path = real_data("cifar10/test_first1000.bin");
    if (!path)
        skip();
    tarn_dataset *dataset = open_cifar(path);
    assert_int_equal(tarn_dataset_count(dataset), 1000);
    expect_real(dataset, 3072, (const int[]){103, 89, 100, 103, 90, 86, 112, 102, 106, 109}, 0xaa079e9d, 0xfbf5f6e0);
}

/* Of other idx files any whole number may be a label. */
static void a_label_that_mnist_does_not_have_is_refused(void **state)
{
    (void)state;
    static const char images[] = "\0\0\x08\x03\0\0\0\x03\0\0\0\x01\0\0\0\x02"
                                 "123456";
    static const char labels[] = "\0\0\x08\x01\0\0\0\x03\x09\x0a\x01";
    write_file("train-images-idx3-ubyte", images, 22);
    write_file("train-labels-idx1-ubyte", labels, 11);
    assert_null(tarn_dataset_mnist(scratch(""), true));
    assert_error_about(TARN_ERROR_FORMAT, "train-labels-idx1-ubyte", "byte 9: label 10; MNIST has 10 classes");
    tarn_dataset *any = tarn_dataset_idx(scratch("train-images-idx3-ubyte"), scratch("train-labels-idx1-ubyte"));
    assert_int_equal(tarn_dataset_count(any), 3);
    tarn_dataset_free(any);
}

static void a_folder_without_mnist_says_what_was_looked_for(void **state)
{
    (void)state;
    assert_null(tarn_dataset_mnist("/nowhere", true));
    assert_error(
        TARN_ERROR_IO,
        "dataset_mnist: neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz can be read in /nowhere");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(idx_files_are_read),
        in_scope(idx_types_become_the_nearest_dtype),
        in_scope(broken_idx_files_are_refused),
        in_scope(damaged_gzip_is_refused),
        in_scope(cifar10_files_are_read),
        in_scope(cifar10_folders_have_five_files_and_one),
        in_scope(broken_cifar10_files_are_refused),
        in_scope(csv_files_are_read),
        in_scope(csv_mistakes_name_line_and_column),
        in_scope(npy_files_are_read),
        in_scope(broken_npy_files_are_refused),
        in_scope(the_real_mnist_is_read),
        in_scope(the_real_cifar10_is_read),
        in_scope(a_label_that_mnist_does_not_have_is_refused),
        in_scope(a_folder_without_mnist_says_what_was_looked_for),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
