/* image_jpeg.c: JPEG images by libjpeg-turbo: grey, colour and CMYK, baseline and progressive.
 *
 * libjpeg reports errors through a function that must not return: it jumps back to decode(), whose state is in a
 * struct, since locals changed after setjmp() are lost. Damage that libjpeg would hide behind grey blocks is an error
 * here; warnings about harmless oddities are ignored. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "data/readers/image.h"

enum { BUFFER = 4096 };
enum { MAX_SCANS = 500 };           /* of a progressive image: each costs a pass over all of it */
enum { MAX_PIXELS_PER_BYTE = 512 }; /* a block of 64 pixels takes at least one bit */

typedef struct jpeg {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    tarn__data_input *input;
    tarn_array *image;
    unsigned char *row; /* [width, components], owned */
    size_t row_bytes;
    int orientation;
    unsigned char buffer[BUFFER];
} jpeg;

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Raises libjpeg's message as an error and leaves libjpeg. A failure of the input has an error of its own. */
static void fail(j_common_ptr common)
{
    jpeg *j = common->client_data;
    char text[JMSG_LENGTH_MAX];
    common->err->format_message(common, text);
    if (!tarn_failed())
        tarn__data_input_bad(j->input, j->input->at - (int64_t)j->source.bytes_in_buffer,
                             "the JPEG image is damaged or not supported: %s", text);
    longjmp(j->back, 1);
}

/* Warnings about missing or wrong pixels end the decoding. After those listed, such as bytes between two markers, the
 * image is complete. */
static void warn(j_common_ptr common, int level)
{
    if (level >= 0)
        return;
    common->err->num_warnings++;
    switch (common->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR: break;
    default: fail(common);
    }
}

/* libjpeg must not print. */
static void no_output(j_common_ptr common)
{
    (void)common;
}

static void check_scans(j_common_ptr common)
{
    jpeg *j = common->client_data;
    if (j->info.input_scan_number <= MAX_SCANS)
        return;
    tarn__data_input_bad(j->input, j->input->at, "the progressive JPEG image has more than %d scans", MAX_SCANS);
    longjmp(j->back, 1);
}

/* ---- input ------------------------------------------------------------------------------------------------------- */

static void nothing(j_decompress_ptr info)
{
    (void)info;
}

static boolean refill(j_decompress_ptr info)
{
    jpeg *j = info->client_data;
    int64_t got = tarn__data_input_read_some(j->input, j->buffer, BUFFER);
    if (got == 0)
        tarn__data_input_bad(j->input, j->input->at, "the file ends here, inside the JPEG image");
    if (got <= 0)
        longjmp(j->back, 1);
    j->source.next_input_byte = j->buffer;
    j->source.bytes_in_buffer = (size_t)got;
    return TRUE;
}

static void skip(j_decompress_ptr info, long count)
{
    jpeg *j = info->client_data;
    while (count > 0 && (size_t)count > j->source.bytes_in_buffer) {
        count -= (long)j->source.bytes_in_buffer;
        refill(info);
    }
    if (count <= 0)
        return;
    j->source.next_input_byte += count;
    j->source.bytes_in_buffer -= (size_t)count;
}

/* The caller has read the first two bytes: libjpeg gets them again. */
static void set_up(jpeg *j)
{
    j->info.err = jpeg_std_error(&j->errors);
    j->errors.error_exit = fail;
    j->errors.emit_message = warn;
    j->errors.output_message = no_output;
    j->info.client_data = j;
    j->buffer[0] = 0xFF;
    j->buffer[1] = 0xD8;
    j->source = (struct jpeg_source_mgr){.next_input_byte = j->buffer,
                                         .bytes_in_buffer = 2,
                                         .init_source = nothing,
                                         .fill_input_buffer = refill,
                                         .skip_input_data = skip,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = nothing};
    j->progress.progress_monitor = check_scans;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* Chooses the output: grey, RGB, or CMYK, which put_row() converts. Leaves libjpeg with an error for others. */
static void choose_colours(jpeg *j)
{
    struct jpeg_decompress_struct *info = &j->info;
    switch (info->jpeg_color_space) {
    case JCS_GRAYSCALE: info->out_color_space = JCS_GRAYSCALE; return;
    case JCS_YCbCr:
    case JCS_RGB: info->out_color_space = JCS_RGB; return;
    case JCS_CMYK:
    case JCS_YCCK: info->out_color_space = JCS_CMYK; return;
    default: break;
    }
    tarn__data_input_bad(j->input, j->input->at,
                         "the JPEG image has %d components; grey, RGB, YCbCr, CMYK and YCCK are supported",
                         info->num_components);
    longjmp(j->back, 1);
}

/* Sizes are checked before anything is allocated by them. Arithmetic coding can store a block in less than a bit. */
static void check_size(jpeg *j)
{
    const struct jpeg_decompress_struct *info = &j->info;
    uint64_t pixels = (uint64_t)info->image_width * info->image_height,
             left = (uint64_t)tarn__data_input_remaining(j->input) + j->source.bytes_in_buffer;
    bool good = tarn__image_check_size(j->input, 2, info->image_height, info->image_width);
    if (good && !info->arith_code && pixels / MAX_PIXELS_PER_BYTE > left)
        good = tarn__data_input_bad(j->input, j->input->at, "%u x %u pixels are more than %llu bytes can hold",
                                    info->image_width, info->image_height, (unsigned long long)left);
    if (!good)
        longjmp(j->back, 1);
}

static void find_orientation(jpeg *j)
{
    j->orientation = 1;
    for (jpeg_saved_marker_ptr m = j->info.marker_list; m && j->orientation == 1; m = m->next)
        j->orientation = tarn__exif_orientation(m->data, m->data_length);
}

/* a · b / 255, rounded, for 0 … 255. */
static int times(int a, int b)
{
    int product = a * b + 128;
    return ((product >> 8) + product) >> 8;
}

/* A row of pixels into the planes of the image. CMYK is stored inverted, as Adobe does: 255 is no ink. */
static void put_row(const jpeg *j, int64_t y)
{
    int64_t width = j->image->shape.size[2], plane = width * j->image->shape.size[1];
    int channels = (int)j->image->shape.size[0], components = j->info.output_components;
    uint8_t *to = (uint8_t *)j->image->data + y * width;
    const unsigned char *from = j->row;
    for (int64_t x = 0; x < width; x++, from += components)
        for (int c = 0; c < channels; c++)
            to[c * plane + x] = (uint8_t)(components == 4 ? from[3] - times(255 - from[c], from[3]) : from[c]);
}

/* Decodes the file; everything that it changes is in *j. False with an error. */
static bool decode(jpeg *j)
{
    if (setjmp(j->back))
        return false;
    jpeg_create_decompress(&j->info);
    j->info.src = &j->source;
    j->info.progress = &j->progress;
    jpeg_save_markers(&j->info, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(&j->info, TRUE);
    check_size(j);
    choose_colours(j);
    find_orientation(j);
    jpeg_start_decompress(&j->info);
    j->row_bytes = (size_t)j->info.output_width * (size_t)j->info.output_components;
    j->row = tarn__alloc(j->row_bytes);
    if (!j->row || !tarn__image_alloc(j->image, j->info.output_components == 1 ? 1 : 3, j->info.output_height,
                                      j->info.output_width))
        return false;
    while (j->info.output_scanline < j->info.output_height) {
        int64_t y = j->info.output_scanline;
        jpeg_read_scanlines(&j->info, &j->row, 1);
        put_row(j, y);
    }
    jpeg_finish_decompress(&j->info);
    return true;
}

bool tarn__image_read_jpeg(tarn__data_input *input, tarn_array *image)
{
    jpeg *j = tarn__alloc(sizeof(*j));
    if (!j)
        return false;
    j->input = input;
    j->image = image;
    set_up(j);
    bool good = decode(j);
    tarn__release(j->row, j->row_bytes);
    jpeg_destroy_decompress(&j->info);
    int orientation = j->orientation;
    tarn__release(j, sizeof(*j));
    return good && tarn__image_orient(image, orientation);
}
