/* image_exif.c: the orientation that cameras store with a photo, and images turned by it.
 *
 * EXIF is a TIFF file inside a JPEG marker: "II" or "MM" for the byte order, 42, and the offset of a directory of
 * 12-byte entries. Nothing in it is trusted, and nothing in it is worth an error: what cannot be read means upright. */
#include <string.h>

#include "data/readers/image.h"

enum { TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, ENTRY_BYTES = 12 };

static unsigned read16(const unsigned char *at, bool is_big)
{
    return is_big ? (unsigned)(at[0] << 8 | at[1]) : (unsigned)(at[1] << 8 | at[0]);
}

static size_t read32(const unsigned char *at, bool is_big)
{
    return is_big ? (size_t)read16(at, true) << 16 | read16(at + 2, true)
                  : (size_t)read16(at + 2, false) << 16 | read16(at, false);
}

int tarn__exif_orientation(const unsigned char *exif, size_t count)
{
    if (count < 14 || memcmp(exif, "Exif\0\0", 6) != 0)
        return 1;
    const unsigned char *tiff = exif + 6;
    bool is_big = tiff[0] == 'M';
    size_t bytes = count - 6, at = read32(tiff + 4, is_big);
    if (memcmp(tiff, is_big ? "MM" : "II", 2) != 0 || read16(tiff + 2, is_big) != 42 || at > bytes - 2)
        return 1;
    size_t entries = read16(tiff + at, is_big), most = (bytes - at - 2) / ENTRY_BYTES;
    for (size_t i = 0; i < entries && i < most; i++) {
        const unsigned char *entry = tiff + at + 2 + i * ENTRY_BYTES;
        if (read16(entry, is_big) != TAG_ORIENTATION || read16(entry + 2, is_big) != TYPE_SHORT)
            continue;
        unsigned value = read16(entry + 8, is_big);
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

/* Orientations 5 to 8 exchange rows and columns. Of the others, and after the exchange, 2 mirrors, 3 rotates by half a
 * turn, 4 flips. */
bool tarn__image_orient(tarn_array *image, int orientation)
{
    static const struct {
        bool transposed, from_right, from_below; /* where a row of the result begins in the stored image */
    } turns[] = {
        [1] = {false, false, false}, [2] = {false, true, false}, [3] = {false, true, true}, [4] = {false, false, true},
        [5] = {true, false, false},  [6] = {true, false, true},  [7] = {true, true, true},  [8] = {true, true, false}};
    int64_t channels = image->shape.size[0], rows = image->shape.size[1], columns = image->shape.size[2];
    tarn_array turned;
    if (orientation <= 1 || orientation > 8)
        return true;
    bool is_transposed = turns[orientation].transposed;
    int64_t height = is_transposed ? columns : rows, width = is_transposed ? rows : columns;
    if (!tarn__image_alloc(&turned, channels, height, width))
        return false;
    const uint8_t *from = image->data;
    uint8_t *to = turned.data;
    for (int64_t c = 0; c < channels; c++, from += rows * columns)
        for (int64_t y = 0; y < height; y++)
            for (int64_t x = 0; x < width; x++) {
                int64_t row = is_transposed ? x : y, column = is_transposed ? y : x;
                row = turns[orientation].from_below ? rows - 1 - row : row;
                column = turns[orientation].from_right ? columns - 1 - column : column;
                *to++ = from[row * columns + column];
            }
    tarn_array_free(image);
    *image = turned;
    return true;
}
