/* test_images.c: image files written by the test: valid ones, every defect, all truncations, and random damage
 * (TARN_TEST_LONG=1: two hundred times as much). Compressed rows are stored blocks, so that no compressor is needed;
 * tests/parity/images.py has compressed ones. */
#include "base/memory.h"
#include "support/files.h"
#include "tarn_features.h"

/* ---- writing PNG ------------------------------------------------------------------------------------------------- */

static void put_chunk(bytes *b, const char *name, const void *data, size_t count)
{
    uint32_t crc = checksum(checksum(0, name, 4), data, count);
    put_big32(b, (uint32_t)count);
    put(b, name, 4);
    put(b, data, count);
    put_big32(b, crc);
}

static void put_start(bytes *b, uint32_t width, uint32_t height, int depth, int colour, int interlaced)
{
    static bytes head;
    head.count = b->count = 0;
    put_big32(&head, width);
    put_big32(&head, height);
    put(&head, (const unsigned char[]){(unsigned char)depth, (unsigned char)colour, 0, 0, (unsigned char)interlaced},
        5);
    put(b, "\x89PNG\r\n\x1A\n", 8);
    put_chunk(b, "IHDR", head.data, head.count);
}

/* Bytes as zlib stores them. */
static void put_stored(bytes *b, const unsigned char *rows, size_t count)
{
    uint32_t low = 1, high = 0; /* Adler-32 */
    for (size_t i = 0; i < count; i++) {
        low = (low + rows[i]) % 65521;
        high = (high + low) % 65521;
    }
    put(b,
        (const unsigned char[]){0x78, 1, 1, (unsigned char)count, (unsigned char)(count >> 8), (unsigned char)~count,
                                (unsigned char)(~count >> 8)},
        7);
    put(b, rows, count);
    put_big32(b, high << 16 | low);
}

static void put_rows(bytes *b, const void *rows, size_t count)
{
    static bytes packed;
    packed.count = 0;
    put_stored(&packed, rows, count);
    put_chunk(b, "IDAT", packed.data, packed.count);
    put_chunk(b, "IEND", NULL, 0);
}

static const char *write_bytes(const bytes *b)
{
    return write_file("image", b->data, b->count);
}

static void expect_image(const bytes *b, tarn_shape shape, const void *pixels)
{
    tarn_array image;
    assert_true(tarn_image_load(write_bytes(b), &image));
    assert_ok();
    size_t count = 1;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(image.shape.size[i], shape.size[i]);
        count *= (size_t)shape.size[i];
    }
    assert_true(image.shape.rank == 3 && image.dtype == TARN_U8);
    assert_memory_equal(image.data, pixels, count);
    tarn_array_free(&image);
}

static void refuse_image(const bytes *b, const char *error)
{
    tarn_array image;
    assert_false(tarn_image_load(write_bytes(b), &image));
    assert_null(image.data);
    assert_error_about(TARN_ERROR_FORMAT, "/image: byte ", error);
}

#define needs_zlib() \
    if (!TARN__HAVE_ZLIB) \
    skip()

/* ---- good files -------------------------------------------------------------------------------------------------- */

static void png_filters_and_colours(void **state)
{
    (void)state;
    needs_zlib();
    static bytes b;
    put_start(&b, 2, 5, 8, 2, 0); /* one row for each filter: 10 20 30 40 50 60 every time */
    put_rows(&b,
             "\0\x0A\x14\x1E\x28\x32\x3C"
             "\1\x0A\x14\x1E\x1E\x1E\x1E"
             "\2\0\0\0\0\0\0"
             "\3\5\x0A\x0F\x0F\x0F\x0F"
             "\4\0\0\0\0\0\0",
             35);
    unsigned char pixels[30];
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 10; i++)
            pixels[c * 10 + i] = (unsigned char)(10 + 10 * c + 30 * (i % 2));
    expect_image(&b, TARN_SHAPE(3, 5, 2), pixels);
    put_start(&b, 3, 1, 16, 4, 0); /* grey and alpha of 16 bits */
    put_rows(&b, "\0\x12\xFF\xAB\x00\x80\x00\x01\x02\xFF\xFE\x00\xFF", 13);
    expect_image(&b, TARN_SHAPE(2, 1, 3), "\x12\x80\xFF\xAB\x01\x00");
    put_start(&b, 9, 2, 1, 0, 0);
    put_rows(&b, "\0\xA5\x80\0\x0F\x7F", 6); /* what fills a row up does not matter */
    expect_image(&b, TARN_SHAPE(1, 2, 9), "\xFF\0\xFF\0\0\xFF\0\xFF\xFF\0\0\0\0\xFF\xFF\xFF\xFF\0");
}

static void png_palettes_and_transparency(void **state)
{
    (void)state;
    needs_zlib();
    static bytes b;
    put_start(&b, 3, 1, 2, 3, 0);
    put_chunk(&b, "PLTE", "\1\2\3\4\5\6\7\x08\x09", 9);
    put_rows(&b, "\0\x18", 2); /* 0 1 2 */
    expect_image(&b, TARN_SHAPE(3, 1, 3), "\1\4\7\2\5\x08\3\6\x09");
    put_start(&b, 3, 1, 2, 3, 0);
    put_chunk(&b, "PLTE", "\1\2\3\4\5\6\7\x08\x09", 9);
    put_chunk(&b, "tRNS", "\x40\0", 2);
    put_rows(&b, "\0\x18", 2);
    expect_image(&b, TARN_SHAPE(4, 1, 3), "\1\4\7\2\5\x08\3\6\x09\x40\0\xFF");
    put_start(&b, 2, 1, 16, 0, 0); /* the colour that is transparent has 16 bits: 0102, not 0103 */
    put_chunk(&b, "tRNS", "\1\2", 2);
    put_rows(&b, "\0\1\2\1\3", 5);
    expect_image(&b, TARN_SHAPE(2, 1, 2), "\1\1\0\xFF");
}

static void png_interlaced(void **state)
{
    (void)state;
    needs_zlib();
    static bytes b;
    unsigned char rows[64 + 64], pixels[81];
    static const int left[] = {0, 4, 0, 2, 0, 1, 0}, top[] = {0, 0, 4, 0, 2, 0, 1}, across[] = {8, 8, 4, 4, 2, 2, 1},
                     down[] = {8, 8, 8, 4, 4, 2, 2};
    size_t count = 0;
    for (int i = 0; i < 81; i++)
        pixels[i] = (unsigned char)(3 * i);
    for (int pass = 0; pass < 7; pass++)
        for (int y = top[pass]; y < 9; y += down[pass]) {
            rows[count++] = 0;
            for (int x = left[pass]; x < 9; x += across[pass])
                rows[count++] = pixels[y * 9 + x];
        }
    put_start(&b, 9, 9, 8, 0, 1);
    put_rows(&b, rows, count);
    expect_image(&b, TARN_SHAPE(1, 9, 9), pixels);
    put_start(&b, 1, 1, 8, 0, 1); /* six of the seven are empty */
    put_rows(&b, "\0\x2A", 2);
    expect_image(&b, TARN_SHAPE(1, 1, 1), "\x2A");
}

static void png_rows_in_many_chunks(void **state)
{
    (void)state;
    needs_zlib();
    static bytes b, packed;
    packed.count = 0;
    put_stored(&packed, (const unsigned char *)"\0\1\2\3", 4);
    put_start(&b, 3, 1, 8, 0, 0);
    put_chunk(&b, "tEXt", "a\0b", 3);
    for (size_t i = 0; i < packed.count; i++) {
        put_chunk(&b, "IDAT", packed.data + i, 1);
        put_chunk(&b, "IDAT", NULL, 0);
    }
    put_chunk(&b, "tIME", "\0\0\0\0\0\0\0", 7);
    put_chunk(&b, "IEND", NULL, 0);
    expect_image(&b, TARN_SHAPE(1, 1, 3), "\1\2\3");
}

static void put_all(bytes *b, const void *data, size_t count)
{
    b->count = 0;
    put(b, data, count);
}

static void pgm_and_ppm(void **state)
{
    (void)state;
    static bytes b;
    put_all(&b, "P5\n# a comment\n3 2\n255\n#23456", 29);
    expect_image(&b, TARN_SHAPE(1, 2, 3), "#23456");
    put_all(&b, "P6 1\t2\r\n255 abcdef", 18);
    expect_image(&b, TARN_SHAPE(3, 2, 1), "adbecf");
    put_all(&b, "P2 2 2 15 0 5#five\n10 15\n\n", 26);
    expect_image(&b, TARN_SHAPE(1, 2, 2), "\0\x55\xAA\xFF");
    put_all(&b, "P3\n1 1\n100\n0 50 100", 19);
    expect_image(&b, TARN_SHAPE(3, 1, 1), "\0\x80\xFF");
    put_all(&b, "P5 3 1 65535 \x00\x00\x80\x00\xFF\xFF", 19);
    expect_image(&b, TARN_SHAPE(1, 1, 3), "\0\x80\xFF");
}

static void put_npy(bytes *b, const char *descr, const char *shape, size_t count)
{
    char head[128];
    snprintf(head, sizeof(head), "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
    put_all(b, "\x93NUMPY\x01\0", 8);
    put(b, (const unsigned char[]){(unsigned char)strlen(head), 0}, 2);
    put_text(b, head);
    for (size_t i = 0; i < count; i++)
        put(b, (const unsigned char[]){(unsigned char)i}, 1);
}

static void numpy_files(void **state)
{
    (void)state;
    static bytes b;
    tarn_array image;
    put_npy(&b, "|u1", "2, 3", 6);
    expect_image(&b, TARN_SHAPE(1, 2, 3), "\0\1\2\3\4\5");
    put_npy(&b, "|u1", "3, 1, 2", 6);
    expect_image(&b, TARN_SHAPE(3, 1, 2), "\0\1\2\3\4\5");
    static const char *const shapes[] = {"6,", "6, 1, 1", "1, 6, 1, 1", "0, 1, 6", ""};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        put_npy(&b, "|u1", shapes[i], i == 3 ? 0 : i == 4 ? 1 : 6);
        assert_false(tarn_image_load(write_bytes(&b), &image));
        assert_error_about(TARN_ERROR_SHAPE, "image_load: ", "is not an image [C, H, W] of 1 to 4 channels");
    }
    put_npy(&b, "<i4", "1, 1", 4);
    assert_false(tarn_image_load(write_bytes(&b), &image));
    assert_error(TARN_ERROR_DTYPE, "holds i32; an image is u8");
    put_npy(&b, "|u1", "2, 3", 5);
    assert_false(tarn_image_load(write_bytes(&b), &image));
    assert_error(TARN_ERROR_FORMAT, "image_load: npy_load: ");
}

/* ---- broken files ------------------------------------------------------------------------------------------------ */

static void put_small_png(bytes *b)
{
    put_start(b, 3, 2, 2, 3, 0);
    put_chunk(b, "PLTE", "\1\2\3\4\5\6\7\x08\x09", 9);
    put_chunk(b, "tRNS", "\x40\0", 2);
    put_rows(b, "\0\x18\1\0", 4);
}

static void refuse_beginnings(bytes *b, size_t from)
{
    size_t whole = b->count;
    for (b->count = from; b->count < whole; b->count++)
        refuse_image(b, "");
}

static void files_that_are_cut_are_refused(void **state)
{
    (void)state;
    static bytes b;
    put_all(&b, "P5 3 2 255 123456", 17);
    refuse_beginnings(&b, 0);
    put_all(&b, "P6 1 2 300 123456123456", 23);
    refuse_beginnings(&b, 0);
    put_all(&b, "P3 2 1 255 1 2 3 4 5 6", 22); /* each sample has one digit: none can be cut */
    refuse_beginnings(&b, 0);
    if (!TARN__HAVE_ZLIB)
        return;
    put_small_png(&b);
    tarn_array image;
    assert_true(tarn_image_load(write_bytes(&b), &image));
    tarn_array_free(&image);
    refuse_beginnings(&b, 0);
}

/* Every changed bit is seen: all bytes but a length or a name are under a checksum. */
static void every_bit_of_a_png_counts(void **state)
{
    (void)state;
    needs_zlib();
    static bytes b;
    put_small_png(&b);
    for (size_t i = 2; i < b.count; i++)
        for (int bit = 0; bit < 8; bit++) {
            b.data[i] ^= (unsigned char)(1 << bit);
            refuse_image(&b, "");
            b.data[i] ^= (unsigned char)(1 << bit);
        }
}

static void broken_png_files_are_refused(void **state)
{
    (void)state;
    needs_zlib();
    static bytes b;
    static const struct {
        uint32_t width, height;
        int depth, colour, interlaced;
        const char *error;
    } heads[] = {{0, 1, 8, 0, 0, "it needs at least one"},
                 {1, 0, 8, 0, 0, "it needs at least one"},
                 {32769, 1, 8, 0, 0, "at most 32768 per side"},
                 {32768, 32768, 8, 0, 0, "134217728 in all"},
                 {0xFFFFFFFF, 0xFFFFFFFF, 8, 0, 0, "at most"},
                 {1, 1, 3, 0, 0, "depth 3 with colour type 0"},
                 {1, 1, 16, 3, 0, "depth 16 with colour type 3"},
                 {1, 1, 4, 2, 0, "depth 4"},
                 {1, 1, 8, 5, 0, "colour type 5"},
                 {1, 1, 8, 1, 0, "colour type 1"},
                 {1, 1, 8, 0, 2, "interlacing 2"},
                 {8192, 8192, 8, 0, 0, "are 67117056 bytes, more than the file can hold"}};
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        put_start(&b, heads[i].width, heads[i].height, heads[i].depth, heads[i].colour, heads[i].interlaced);
        put_rows(&b, "\0\0", 2);
        refuse_image(&b, heads[i].error);
    }
    put_all(&b, "\x89PNG\n\x1A\n", 7);
    put_text(&b, "         ");
    refuse_image(&b, "was it copied as text?");
    put_start(&b, 1, 1, 8, 0, 0);
    put_rows(&b, "\5\0", 2);
    refuse_image(&b, "row 0 has filter 5");
    put_start(&b, 1, 1, 8, 0, 0);
    put_rows(&b, "\0\0\0", 3);
    refuse_image(&b, "the compressed image continues after its last row");
    put_start(&b, 2, 1, 8, 0, 0);
    put_rows(&b, "\0\0", 2);
    refuse_image(&b, "the compressed image ends before its last row");
    put_start(&b, 1, 1, 8, 0, 0);
    put_rows(&b, "\0\0", 2);
    put_text(&b, "more");
    refuse_image(&b, "the chunks end here, but more bytes follow");
}

static void chunks_out_of_place_are_refused(void **state)
{
    (void)state;
    needs_zlib();
    static bytes b;
    static const struct {
        int depth, colour;
        const char *name, *data;
        size_t count;
        const char *error;
    } rows[] = {{8, 0, "PLTE", "123", 3, "chunk PLTE is out of order"},
                {8, 3, "PLTE", "1234", 4, "bytes are not colours"},
                {1, 3, "PLTE", "123456789", 9, "chunk PLTE has 9 bytes; it must have 3 to 6"},
                {8, 3, "PLTE", "", 0, "it must have 3 to 768"},
                {8, 3, "tRNS", "1", 1, "chunk tRNS is out of order"},
                {8, 4, "tRNS", "12", 2, "chunk tRNS is out of order"},
                {8, 0, "tRNS", "1", 1, "it must have 2 to 2"},
                {8, 0, "tRNS", "\1\0", 2, "too large for 8 bits"},
                {8, 2, "tRNS", "12", 2, "it must have 6 to 6"},
                {8, 0, "IHDR", "", 0, "chunk IHDR is not allowed before the image"},
                {8, 0, "IEND", "", 0, "chunk IEND is not allowed before the image"},
                {8, 0, "ABCD", "", 0, "chunk ABCD is not allowed before the image"},
                {8, 0, "a1cd", "", 0, "is not a chunk name"},
                {8, 3, "tEXt", "", 0, "chunk PLTE is missing"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        put_start(&b, 1, 1, rows[i].depth, rows[i].colour, 0);
        put_chunk(&b, rows[i].name, rows[i].data, rows[i].count);
        put_rows(&b, "\0\0", 2);
        refuse_image(&b, rows[i].error);
    }
    put_start(&b, 1, 1, 8, 3, 0);
    put_chunk(&b, "PLTE", "123", 3);
    put_rows(&b, "\0\1", 2);
    refuse_image(&b, "row 0 has a colour outside the palette of 1");
    put_start(&b, 1, 1, 8, 0, 0);
    put_rows(&b, "\0\0", 2);
    b.count -= 12; /* without IEND */
    size_t end = b.count;
    put_chunk(&b, "IDAT", "x", 1);
    put_chunk(&b, "IEND", NULL, 0);
    refuse_image(&b, "chunk IDAT is not allowed after the image");
    b.count = end;
    put_chunk(&b, "IEND", "x", 1);
    refuse_image(&b, "chunk IEND is not allowed after the image");
    put_all(&b, "\x89PNG\r\n\x1A\n", 8);
    put_chunk(&b, "tEXt", NULL, 0);
    refuse_image(&b, "chunk tEXt comes first, not IHDR");
    b.data[8] = 0x7F;
    refuse_image(&b, "more than the file has left");
}

static void broken_pgm_files_are_refused(void **state)
{
    (void)state;
    static bytes b;
    static const struct {
        const char *text, *error;
    } rows[] = {{"P1 1 1 0", "P1 (a bitmap) is not supported"},
                {"P7\nWIDTH 1", "P7 (PAM) is not supported"},
                {"P53 1 255 abc", "whitespace is missing before the width"},
                {"P5 x 1 255 a", "the width is not an integer"},
                {"P5 0 1 255 a", "it needs at least one"},
                {"P5 -1 1 255 a", "the width is not an integer"},
                {"P5 99999999999999999999 1 255 a", "the width is above"},
                {"P5 32769 1 255 a", "at most 32768 per side"},
                {"P5 1 1 0 a", "the largest value is 0"},
                {"P5 1 1 65536 a", "the largest value is above 65535"},
                {"P5 1 1 255", "whitespace is missing after"},
                {"P5 1 1 255#a", "whitespace is missing after"},
                {"P5 2 2 255 abc", "2 x 2 pixels need 4 more bytes, but at most 3 follow"},
                {"P5 2 2 255 abcde", "the image ends here, but more bytes follow"},
                {"P5 2 1 97 ab", "a sample is 98, above the largest value 97"},
                {"P2 2 1 9 1 10", "a sample is above 9"},
                {"P2 2 1 9 1 x", "a sample is not an integer"},
                {"P2 1 1 9 1 1", "more bytes follow"},
                {"P2 20000 6000 255 1 2 3", "need 239999999 more bytes"},
                {"P5 1 # 1 255 a", "the height is missing: the file ends"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        put_all(&b, rows[i].text, strlen(rows[i].text));
        refuse_image(&b, rows[i].error);
    }
    put_all(&b, "BM1", 3);
    refuse_image(&b, "42 4d begins a BMP image; PNG, JPEG, PGM, PPM and .npy are supported");
    put_all(&b, "hello", 5);
    refuse_image(&b, "begins an unknown format");
}

/* ---- random damage ----------------------------------------------------------------------------------------------- */

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

/* Fixes up the checksums of the chunks, so that damage gets through to their contents. */
static void fix_checksums(bytes *b)
{
    for (size_t at = 8; at + 12 <= b->count;) {
        size_t length =
            (size_t)b->data[at] << 24 | (size_t)b->data[at + 1] << 16 | (size_t)b->data[at + 2] << 8 | b->data[at + 3];
        if (length > b->count - at - 12)
            return;
        uint32_t crc = checksum(0, b->data + at + 4, length + 4);
        for (int i = 0; i < 4; i++)
            b->data[at + 8 + length + (size_t)i] = (unsigned char)(crc >> (24 - 8 * i));
        at += 12 + length;
    }
}

static void damage(bytes *b, uint64_t *random)
{
    for (int64_t n = 1 + random_below(random, 3); n > 0 && b->count > 4; n--) {
        size_t at = (size_t)random_below(random, (int64_t)b->count), length = (size_t)random_below(random, 5);
        length = at + length > b->count ? b->count - at : length;
        switch (random_below(random, 5)) {
        case 0: b->data[at] ^= (unsigned char)(1 << random_below(random, 8)); break;
        case 1: b->data[at] = (unsigned char)random_bits(random); break;
        case 2: b->data[at] = (unsigned char)"\0\1\xFF 9#"[random_below(random, 6)]; break;
        case 3:
            memmove(b->data + at, b->data + at + length, b->count - at - length);
            b->count -= length;
            break;
        default: memmove(b->data + at + length, b->data + at, b->count - at); b->count += length;
        }
    }
}

static void put_some_image(bytes *b, int kind)
{
    static const char *const texts[] = {"P2 3 2 255 1 22 133 #c\n4 5 6\n", "P3 1 2 15 1 2 3 14 15 6",
                                        "P5 3 2 255 abcdef", "P6 1 1 999 abcdef"};
    unsigned char rows[600] = {0};
    if (kind < 4)
        put_all(b, texts[kind], strlen(texts[kind]));
    else if (kind == 4)
        put_small_png(b);
    else if (kind == 5 || kind == 6) {
        put_start(b, 5, 9, kind == 5 ? 8 : 4, kind == 5 ? 6 : 0, kind == 6);
        put_rows(b, rows, kind == 5 ? 9 * 21 : 2 + 2 + 0 + 3 * 2 + 2 * 3 + 5 * 2 + 4 * 4);
    } else
        put_npy(b, "|u1", "3, 1, 2", 6);
}

static void damaged_files_do_no_harm(void **state)
{
    (void)state;
    static bytes b;
    const char *quick = getenv("TARN_TEST_QUICK"), *many = getenv("TARN_TEST_LONG");
    int rounds = many && many[0] == '1' ? 600000 : quick && quick[0] == '1' ? 600 : 3000, taken = 0;
    uint64_t random = test_seed(20250311);
    assert_true(tarn_set_allocator(&(tarn_allocator){note_alloc, note_release, NULL}));
    for (int i = 0; i < rounds; i++) {
        put_some_image(&b, (int)random_below(&random, 8));
        damage(&b, &random);
        if (b.data[0] == 0x89 && random_below(&random, 4) > 0)
            fix_checksums(&b);
        tarn_array image;
        largest = 0;
        bool is_good = tarn_image_load(write_bytes(&b), &image);
        size_t most = b.count * 1032 * 32 + ((size_t)64 << 10); /* a bit can become a pixel of four channels */
        bool fine = is_good == !tarn_failed() && largest <= most && (is_good || strstr(tarn_error(), "/image")) &&
                    tarn_error_code() != TARN_ERROR_INTERNAL;
        if (!fine)
            print_error("round %d: %zu bytes asked for a file of %zu: %s\n", i, largest, b.count, tarn_error());
        assert_true(fine);
        taken += is_good;
        tarn_clear_error();
        tarn_array_free(&image);
        assert_int_equal(tarn__memory_in_use(), 0);
    }
    assert_true(tarn_set_allocator(NULL));
    print_message("%d of %d damaged files were still good\n", taken, rounds);
    assert_true(taken > 0 && taken < rounds);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Every allocation fails in turn: an error of memory, and nothing is lost. */
static void memory_runs_out(void **state)
{
    (void)state;
    static bytes b;
    put_some_image(&b, TARN__HAVE_ZLIB ? 5 : 3);
    const char *path = write_bytes(&b);
    assert_true(tarn_set_allocator(&scarce_allocator));
    bool good = false;
    for (int n = 0; !good; n++) {
        tarn_array image = {0}, grey = {0}, small = {0};
        assert_true(n < 50);
        allocations_left = n;
        good = tarn_image_load(path, &image) && tarn_image_convert(&image, 1, &grey) &&
               tarn_image_resize(&grey, 3, 3, &small);
        allocations_left = 1000;
        if (!good)
            assert_error(TARN_ERROR_MEMORY, "");
        tarn_array_free(&image);
        tarn_array_free(&grey);
        tarn_array_free(&small);
        assert_int_equal(tarn__memory_in_use(), 0);
    }
    assert_true(tarn_set_allocator(NULL));
}

/* ---- sizes and colours ------------------------------------------------------------------------------------------- */

static void images_change_their_size(void **state)
{
    (void)state;
    unsigned char pixels[] = {0, 100, 200, 40, 10, 10, 10, 10}, flat[35];
    tarn_array image = {pixels, TARN_SHAPE(2, 2, 2), TARN_U8}, made;
    assert_true(tarn_image_resize(&image, 2, 2, &made)); /* the same size: the same image */
    assert_memory_equal(made.data, pixels, 8);
    tarn_array_free(&made);
    assert_true(tarn_image_resize(&image, 1, 1, &made)); /* the mean */
    assert_memory_equal(made.data, "\x55\x0A", 2);
    tarn_array_free(&made);
    assert_true(tarn_image_resize(&image, 2, 4, &made)); /* a quarter and three quarters between */
    assert_memory_equal(made.data, "\0\x19\x4B\x64\xC8\xA0\x50\x28\x0A\x0A", 10);
    tarn_array_free(&made);
    memset(flat, 77, sizeof(flat));
    image = (tarn_array){flat, TARN_SHAPE(1, 5, 7), TARN_U8};
    for (int64_t h = 1; h < 20; h++)
        for (int64_t w = 1; w < 20; w++) {
            assert_true(tarn_image_resize(&image, h, w, &made));
            for (int64_t i = 0; i < h * w; i++)
                assert_int_equal(((uint8_t *)made.data)[i], 77);
            tarn_array_free(&made);
        }
}

static void images_change_their_colours(void **state)
{
    (void)state;
    /* red, half of green on white, nothing of blue; planes of 3 */
    unsigned char pixels[] = {255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 128, 0};
    tarn_array image = {pixels, TARN_SHAPE(4, 1, 3), TARN_U8}, made;
    assert_true(tarn_image_convert(&image, 3, &made));
    assert_memory_equal(made.data, "\xFF\x7F\xFF\0\xFF\xFF\0\x7F\xFF", 9);
    tarn_array_free(&made);
    assert_true(tarn_image_convert(&image, 1, &made));
    assert_memory_equal(made.data, "\x4C\xCA\xFF", 3);
    tarn_array_free(&made);
    image = (tarn_array){pixels, TARN_SHAPE(1, 1, 3), TARN_U8};
    assert_true(tarn_image_convert(&image, 3, &made));
    assert_memory_equal(made.data, "\xFF\0\0\xFF\0\0\xFF\0\0", 9);
    tarn_array_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(png_filters_and_colours),
                                       in_scope(png_palettes_and_transparency),
                                       in_scope(png_interlaced),
                                       in_scope(png_rows_in_many_chunks),
                                       in_scope(pgm_and_ppm),
                                       in_scope(numpy_files),
                                       in_scope(files_that_are_cut_are_refused),
                                       in_scope(every_bit_of_a_png_counts),
                                       in_scope(broken_png_files_are_refused),
                                       in_scope(chunks_out_of_place_are_refused),
                                       in_scope(broken_pgm_files_are_refused),
                                       cmocka_unit_test(damaged_files_do_no_harm),
                                       cmocka_unit_test(memory_runs_out),
                                       in_scope(images_change_their_size),
                                       in_scope(images_change_their_colours)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
