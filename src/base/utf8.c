/* utf8.c: UTF-8 (utf8.h). One decoder serves both kinds of strings. */
#include "base/utf8.h"

#include <string.h>

size_t tarn__utf8_code_point_bytes(const char *text)
{
    size_t length = 0; /* at most 4: the decoder looks no further, and the string may be long */
    uint32_t code;
    while (length < 4 && text[length])
        length++;
    return tarn__utf8_decode(text, length, &code);
}

bool tarn__utf8_valid(const char *text)
{
    for (size_t bytes = 1; *text && bytes; text += bytes)
        bytes = tarn__utf8_code_point_bytes(text);
    return *text == 0;
}

/* The first byte tells the length: 0xxxxxxx, 110xxxxx, 1110xxxx, 11110xxx, then 10xxxxxx. Overlong forms, surrogates
 * and code points beyond U+10FFFF are invalid (RFC 3629). */
size_t tarn__utf8_decode(const char *text, size_t length, uint32_t *code)
{
    static const uint32_t lowest[] = {0, 0, 0x80, 0x800,
                                      0x10000}; /* lowest code point by sequence length: rejects overlong forms */
    const unsigned char *byte = (const unsigned char *)text;
    if (length == 0)
        return 0;
    size_t bytes = byte[0] < 0x80 ? 1 : byte[0] >> 5 == 6 ? 2 : byte[0] >> 4 == 14 ? 3 : byte[0] >> 3 == 30 ? 4 : 0;
    if (bytes == 0 || bytes > length)
        return 0;
    *code = bytes == 1 ? byte[0] : byte[0] & (0x7Fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if (byte[i] >> 6 != 2)
            return 0;
        *code = *code << 6 | (byte[i] & 0x3F);
    }
    bool is_surrogate = *code >= 0xD800 && *code < 0xE000;
    return *code >= lowest[bytes] && *code <= 0x10FFFF && !is_surrogate ? bytes : 0;
}

/* `code` is a code point, not checked; `text` has capacity for 4 bytes. */
size_t tarn__utf8_encode(char *text, uint32_t code)
{
    size_t bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = bytes; i-- > 1; code >>= 6)
        text[i] = (char)(0x80 | (code & 0x3F));
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    text[0] = (char)(lead[bytes] | code);
    return bytes;
}

/* Eight bytes of ASCII at a time: no byte has its top bit set. */
size_t tarn__utf8_prefix(const char *text, size_t length)
{
    size_t at = 0;
    for (size_t bytes = 1; at < length && bytes; at += bytes) {
        uint64_t eight;
        while (length - at >= 8 && (memcpy(&eight, text + at, 8), (eight & UINT64_C(0x8080808080808080)) == 0))
            at += 8;
        uint32_t code;
        bytes = at < length ? tarn__utf8_decode(text + at, length - at, &code) : 0;
    }
    return at;
}

/* Unicode's White_Space. */
bool tarn__is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == ' ' || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}
