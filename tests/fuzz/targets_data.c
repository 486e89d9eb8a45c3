/* targets_data.c: dataset and image files. */
#include <tarn/data.h>

#include "fuzz/targets.h"
#include "support/files.h"
#include "support/jpeg.h"
#include "tarn_features.h"

static bytes good_file; /* a seed under way */

static bytes *start(void)
{
    good_file.count = 0;
    return &good_file;
}

static void give(fuzz_seed_fn use, void *ctx)
{
    use(good_file.data, good_file.count, ctx);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* Reads what there is; frees the dataset. */
static bool used(tarn_dataset *dataset)
{
    static unsigned char memory[TARN_MAX_FIELDS][1 << 20];
    void *places[TARN_MAX_FIELDS];
    tarn_field field;
    if (!dataset)
        return false;
    bool fits = true;
    for (int k = 0; k < TARN_MAX_FIELDS; k++)
        places[k] = memory[k];
    for (int k = 0; k < tarn_dataset_field_count(dataset); k++) {
        int64_t bytes_of = tarn_dataset_field(dataset, k, &field) ? (int64_t)tarn_dtype_size(field.dtype) : 0;
        for (int i = 0; fits && i < field.shape.rank; i++)
            fits = field.shape.size[i] <= (int64_t)sizeof(memory[0]) &&
                   (bytes_of *= field.shape.size[i]) <= (int64_t)sizeof(memory[0]);
    }
    int64_t count = tarn_dataset_count(dataset);
    for (int64_t i = 0; fits && i < count && i < 50; i++)
        fuzz_must(tarn_dataset_read(dataset, i, places), "a sample of a good file is read");
    tarn_dataset_free(dataset);
    return true;
}

static bool take_idx(const void *from, size_t count)
{
    return used(tarn_dataset_idx(fuzz_write("fuzz", from, count), NULL));
}

static bool take_cifar10(const void *from, size_t count)
{
    const char *path = fuzz_write("fuzz", from, count);
    return used(tarn_dataset_cifar10(&path, 1));
}

static bool take_csv(const void *from, size_t count)
{
    return used(
        tarn_dataset_csv(fuzz_write("fuzz", from, count), &(tarn_csv_options){.label = "-1", .label_is_real = true}));
}

/* A table with the encoder it teaches, then the same file opened like that encoder. */
static bool take_table(const void *from, size_t count)
{
    const char *path = fuzz_write("fuzz", from, count);
    tarn_table *table = tarn_table_open(path, NULL);
    tarn_table_encoder *encoder = table ? tarn_table_encoder_new(table, NULL) : NULL;
    bool is_read = encoder && used(tarn_dataset_table(table, encoder, TARN_TABLE_TRAINING));
    tarn_table *again = encoder ? tarn_table_open(path, &(tarn_table_options){.like = encoder}) : NULL;
    fuzz_must(!encoder || again, "a table is read again by its own encoder");
    is_read = is_read && used(tarn_dataset_table(again, encoder, TARN_TABLE_ALL));
    tarn_table_free(again);
    tarn_table_free(table);
    tarn_table_encoder_free(encoder);
    return is_read;
}

static bool take_npy(const void *from, size_t count)
{
    const char *path = fuzz_write("fuzz", from, count);
    return used(tarn_dataset_npy((const char *const[]){"x"}, &path, 1));
}

static void idx_seeds(fuzz_seed_fn use, void *ctx)
{
    bytes *b = start();
    put(b, "\0\0\x0B\x03\0\0\0\x04\0\0\0\x05\0\0\0\x06", 16);
    for (int i = 0; i < 240; i++)
        put(b, &(unsigned char){(unsigned char)i}, 1);
    give(use, ctx);
    put(b = start(), "\0\0\x08\x01\0\0\0\x03\1\2\3", 11);
    give(use, ctx);
}

static void gzip_seeds(fuzz_seed_fn use, void *ctx)
{
    put_gzip(start(), "\0\0\x08\x01\0\0\0\x03\1\2\3", 11);
    give(use, ctx);
    /* by a compressor: 64 equal bytes behind a head */
    static const unsigned char packed[] = {0x1F, 0x8B, 0x08, 0,    0,    0,    0,    0,    0,    0x03, 0x63,
                                           0x60, 0xE0, 0x60, 0x64, 0x60, 0x60, 0x70, 0x48, 0x24, 0x02, 0x00};
    use(packed, sizeof(packed), ctx); /* cut: its checksum is missing */
}

static void cifar10_seeds(fuzz_seed_fn use, void *ctx)
{
    bytes *b = start();
    for (int i = 0; i < 2 * 3073; i++)
        put(b, &(unsigned char){(unsigned char)(i % 9)}, 1);
    give(use, ctx);
}

static void csv_seeds(fuzz_seed_fn use, void *ctx)
{
    put_text(start(), "a,\"b \"\"x\"\"\",label\r\n1.5,-2e-3,7\n\"4\", 5 ,6\n7,8,9\n1,2,3\n\n");
    give(use, ctx);
    put_text(start(), "1;2\n3;4\n");
    give(use, ctx);
}

static void table_seeds(fuzz_seed_fn use, void *ctx)
{
    put_text(start(), "\xEF\xBB\xBFname;\"a \"\"b\"\"\";y\r\nx;1,5;u\r\ny;?;v\r\nx;-2e1;u\r\n\"p;\nq\";NA;v\r\n\n");
    give(use, ctx);
    put_text(start(), "5.1\t3\tred\n4.9\t\tblue\n4.7\t2\tred\n4.6\t1\tblue\n");
    give(use, ctx);
    put_text(start(), "a,b\n1,0.5\n2,1.5\n3,2.5\n4,3.5\n5,4\n6,5\n7,5\n8,5\n9,5\n1,5\n2\n");
    give(use, ctx);
}

static void npy_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const heads[] = {"{'descr': '>f8', 'fortran_order': True, 'shape': (2, 3, 4), }\n",
                                        "{'descr': '|u1', 'fortran_order': False, 'shape': (192,), }\n"};
    for (int k = 0; k < 2; k++) {
        bytes *b = start();
        put(b, "\x93NUMPY\x01\0", 8);
        put(b, (const unsigned char[]){(unsigned char)strlen(heads[k]), 0}, 2);
        put_text(b, heads[k]);
        for (int i = 0; i < 192; i++)
            put(b, &(unsigned char){(unsigned char)(i * 7)}, 1);
        give(use, ctx);
    }
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

static bool take_image(const char *path)
{
    tarn_array image = {0}, small = {0};
    if (!tarn_image_load(path, &image))
        return false;
    fuzz_must(tarn_image_resize(&image, 3, 5, &small), "an image can be brought to another size");
    tarn_array_free(&image);
    tarn_array_free(&small);
    return true;
}

static bool take_pnm(const void *from, size_t count)
{
    return take_image(fuzz_write("fuzz.ppm", from, count));
}

static void put_chunk(bytes *b, const char *name, const void *data, size_t count)
{
    bytes *chunk = malloc(sizeof(*chunk));
    chunk->count = 0;
    put_text(chunk, name);
    put(chunk, data, count);
    put_big32(b, (uint32_t)count);
    put(b, chunk->data, chunk->count);
    put_big32(b, checksum(0, chunk->data, chunk->count));
    free(chunk);
}

/* The same with right checksums, as far as its chunks can be told apart: else damage would get no further than them. */
static void fix_checksums(const unsigned char *from, size_t count, bytes *b)
{
    b->count = 0;
    put(b, from, count < 8 ? count : 8);
    for (size_t at = 8; at + 12 <= count;) {
        size_t length = (size_t)from[at] << 24 | (size_t)from[at + 1] << 16 | (size_t)from[at + 2] << 8 | from[at + 3];
        char name[5] = {(char)from[at + 4], (char)from[at + 5], (char)from[at + 6], (char)from[at + 7], 0};
        if (length > count - at - 12 || strlen(name) != 4)
            break;
        put_chunk(b, name, from + at + 8, length);
        at += 12 + length;
    }
}

static bool take_png(const void *from, size_t count)
{
    static bytes fixed;
    if (count <= 32768 && count > 8) {
        fix_checksums(from, count, &fixed);
        if (take_image(fuzz_write("fuzz.png", fixed.data, fixed.count)))
            return true;
        tarn_clear_error();
    }
    return take_image(fuzz_write("fuzz.png", from, count));
}

/* Rows as a zlib stream of one stored block. */
static void put_rows(bytes *b, const unsigned char *rows, size_t count)
{
    static bytes packed;
    uint32_t low = 1, high = 0;
    for (size_t i = 0; i < count; i++) {
        low = (low + rows[i]) % 65521;
        high = (high + low) % 65521;
    }
    packed.count = 0;
    put(&packed, "\x78\x01\x01", 3);
    put(&packed,
        (const unsigned char[]){(unsigned char)count, (unsigned char)(count >> 8), (unsigned char)~count,
                                (unsigned char)(~count >> 8)},
        4);
    put(&packed, rows, count);
    put_big32(&packed, high << 16 | low);
    put_chunk(b, "IDAT", packed.data, packed.count);
}

static void png_seeds(fuzz_seed_fn use, void *ctx)
{
    static const unsigned char rows[] = {0, 1, 2, 3, 4, 1, 5, 6, 7, 8, 2, 9, 9, 9, 9, 3, 1, 1, 1, 1, 4, 7, 7, 7, 7};
    bytes *b = start();
    put(b, "\x89PNG\r\n\x1A\n", 8);
    put_chunk(b, "IHDR", "\0\0\0\x04\0\0\0\x05\x08\0\0\0\0", 13); /* grey, 4 by 5, each of the filters */
    put_rows(b, rows, 25);
    put_chunk(b, "IEND", NULL, 0);
    give(use, ctx);
    put(b = start(), "\x89PNG\r\n\x1A\n", 8);
    put_chunk(b, "IHDR", "\0\0\0\x08\0\0\0\x02\x02\x03\0\0\0", 13); /* two bits of a palette */
    put_chunk(b, "PLTE", "\1\2\3\4\5\6\7\x08\x09", 9);
    put_chunk(b, "tRNS", "\x40\0", 2);
    put_rows(b, (const unsigned char *)"\0\x10\x21\0\x11\x02", 6);
    put_chunk(b, "IEND", NULL, 0);
    give(use, ctx);
}

static void pnm_seeds(fuzz_seed_fn use, void *ctx)
{
    put_text(start(), "P5 # grey\n4 3 255\nabcdefghijkl");
    give(use, ctx);
    put_text(start(), "P6 2 2 300\nabcdefghijklmnopqrstuvwx");
    give(use, ctx);
    put_text(start(), "P2\n3 2\n15\n0 1 2\n13 14 15\n");
    give(use, ctx);
    put_text(start(), "P3 1 1 9 1 2 3 ");
    give(use, ctx);
}

/* Labels of one file that is there; others are skipped. */
static bool take_labels(const void *from, size_t count)
{
    char folder[1024];
    static bool has_image;
    if (!has_image)
        fuzz_write("x.pgm", "P2 1 1 9 9", 10);
    has_image = true;
    snprintf(folder, sizeof(folder), "%s", fuzz_write("labels.csv", from, count));
    *strrchr(folder, '/') = 0;
    tarn_set_log(NULL, NULL);
    tarn_dataset *dataset = tarn_dataset_images(folder, &(tarn_images_options){.size = 8});
    tarn_set_log(tarn_log_stderr, NULL);
    return used(dataset);
}

static void labels_seeds(fuzz_seed_fn use, void *ctx)
{
    put_text(start(), "file,label\nx.pgm,x\n\"a, \"\"b.png\",\"y\",more\r\n\r\nc.png,x\n");
    give(use, ctx);
}

static bool take_jpeg(const void *from, size_t count)
{
    return take_image(fuzz_write("fuzz.jpg", from, count));
}

static void jpeg_seeds(fuzz_seed_fn use, void *ctx)
{
    for (int i = 0; i < JPEG_SAMPLES; i++)
        use(jpeg_samples[i].file, jpeg_samples[i].count, ctx);
}

static bool has_jpeg(void)
{
    return TARN__HAVE_JPEG;
}

static bool has_zlib(void)
{
    return TARN__HAVE_ZLIB;
}

const fuzz_target fuzz_data_targets[] = {
    {"idx", NULL, idx_seeds, take_idx},
    {"gzip", has_zlib, gzip_seeds, take_idx},
    {"cifar10", NULL, cifar10_seeds, take_cifar10},
    {"csv", NULL, csv_seeds, take_csv},
    {"table", NULL, table_seeds, take_table},
    {"npy", NULL, npy_seeds, take_npy},
    {"png", has_zlib, png_seeds, take_png},
    {"pnm", NULL, pnm_seeds, take_pnm},
    {"labels", NULL, labels_seeds, take_labels},
    {"jpeg", has_jpeg, jpeg_seeds, take_jpeg},
    {0},
};
