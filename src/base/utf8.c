/* utf8.c: which bytes are a letter. */
#include "base/utf8.h"

#include <stdint.h>

size_t tarn__utf8_code_point(const char *text)
{
    static const uint32_t lowest[] = {0, 1, 0x80, 0x800, 0x10000}; /* what needs that many bytes */
    const unsigned char *byte = (const unsigned char *)text;
    size_t bytes = byte[0] == 0         ? 0
                   : byte[0] < 0x80     ? 1
                   : byte[0] >> 5 == 6  ? 2
                   : byte[0] >> 4 == 14 ? 3
                   : byte[0] >> 3 == 30 ? 4
                                        : 0;
    uint32_t code = bytes < 2 ? byte[0] : byte[0] & (0x7Fu >> bytes);
    for (size_t i = 1; i < bytes; i++) { /* stops at a cut letter's 0 */
        if (byte[i] >> 6 != 2)
            return 0;
        code = code << 6 | (byte[i] & 0x3F);
    }
    bool is_surrogate = code >= 0xD800 && code < 0xE000;
    return bytes && code >= lowest[bytes] && code <= 0x10FFFF && !is_surrogate ? bytes : 0;
}

bool tarn__utf8_valid(const char *text)
{
    for (size_t bytes = 1; *text && bytes; text += bytes)
        bytes = tarn__utf8_code_point(text);
    return *text == 0;
}
