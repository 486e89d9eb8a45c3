/* base64.c: base64 (RFC 4648): three bytes are four characters of six bits each, "Man" is "TWFu"; a group that is not
 * full ends with one or two =. */
#include "text/files/pipeline/base64.h"

static int value_of(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* One character alone is left over from no number of bytes: 2 are one byte, 3 are two. */
int64_t tarn__base64_decode(char *bytes, const char *text, size_t length)
{
    int64_t count = 0;
    uint32_t bits = 0;
    for (int padding = 0; padding < 2 && length > 0 && text[length - 1] == '='; padding++)
        length--;
    if (length % 4 == 1)
        return -1;
    for (size_t i = 0; i < length; i++) {
        int value = value_of(text[i]);
        if (value < 0)
            return -1;
        bits = bits << 6 | (uint32_t)value;
        /* Character i completes byte i - 1 of its group; the low bits stay for the next. */
        if (i % 4 > 0)
            bytes[count++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    return count;
}

bool tarn__base64_encode(tarn__buffer *out, const char *bytes, size_t length)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < length; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (i + k < length ? (unsigned char)bytes[i + k] : 0u);
        char text[4];
        for (size_t k = 0; k < 4; k++)
            /* Character k needs the bits of byte k - 1, so it is padding from one past the end on. */
            text[k] = i + k > length ? '=' : digits[bits >> (18 - 6 * k) & 63];
        if (!tarn__buffer_add(out, text, 4, 1))
            return false;
    }
    return true;
}
