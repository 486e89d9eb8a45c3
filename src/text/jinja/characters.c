/* characters.c: code points as Python's str sees them. Case is mapped for Latin, Greek, Cyrillic and Armenian, one code
 * point to one; other scripts stay as they are. Strings are UTF-8 and have no table of offsets: counting and finding a
 * code point by its index read the string from its beginning. */
#include "base/utf8.h"
#include "text/jinja/value.h"

/* Never fails and never stops short of the end: a byte that is no part of valid UTF-8 is one code point. */
size_t tarn__jinja_decode(const char *text, size_t length, uint32_t *code)
{
    size_t bytes = tarn__utf8_decode(text, length, code);
    if (bytes == 0 && length > 0) {
        *code = 0xFFFD;
        return 1;
    }
    return bytes;
}

size_t tarn__jinja_count(const tarn__jinja_string *s)
{
    size_t count = 0;
    uint32_t code;
    for (size_t at = 0; at < s->length; count++)
        at += tarn__jinja_decode(s->text + at, s->length - at, &code);
    return count;
}

size_t tarn__jinja_offset(const tarn__jinja_string *s, size_t index)
{
    size_t at = 0;
    uint32_t code;
    for (; index > 0 && at < s->length; index--)
        at += tarn__jinja_decode(s->text + at, s->length - at, &code);
    return at;
}

/* Python's str.isspace(): White_Space and four control characters. */
bool tarn__jinja_is_space(uint32_t code)
{
    return tarn__is_space(code) || (code >= 0x1C && code <= 0x1F);
}

static bool is_between(uint32_t code, uint32_t first, uint32_t last)
{
    return code >= first && code <= last;
}

/* Blocks where upper and lower case alternate, upper case even. */
static bool alternates_even(uint32_t code)
{
    return is_between(code, 0x100, 0x12F) || is_between(code, 0x132, 0x137) || is_between(code, 0x14A, 0x177) ||
           is_between(code, 0x1DE, 0x1EF) || is_between(code, 0x1F8, 0x21F) || is_between(code, 0x222, 0x233) ||
           is_between(code, 0x3D8, 0x3EF) || is_between(code, 0x460, 0x481) || is_between(code, 0x48A, 0x4BF) ||
           is_between(code, 0x4D0, 0x52F) || is_between(code, 0x1E00, 0x1E95) || is_between(code, 0x1EA0, 0x1EFF);
}

/* The same with odd upper case: these blocks begin at an odd code point. */
static bool alternates_odd(uint32_t code)
{
    return is_between(code, 0x139, 0x148) || is_between(code, 0x179, 0x17E) || is_between(code, 0x1CD, 0x1DC) ||
           is_between(code, 0x4C1, 0x4CE);
}

/* Ranges at a fixed distance first: ASCII, Latin-1 (but for the multiplication sign), Greek (0x3A2 is unassigned),
 * Cyrillic and fullwidth Latin are 32 apart, the Greek letters with tonos, older Cyrillic and Armenian have distances
 * of their own. 0x178 is Y with diaeresis, whose small letter alone lies in Latin-1. */
uint32_t tarn__jinja_to_lower(uint32_t code)
{
    if (is_between(code, 'A', 'Z') || (is_between(code, 0xC0, 0xDE) && code != 0xD7) ||
        is_between(code, 0x391, 0x3A1) || is_between(code, 0x3A3, 0x3AB) || is_between(code, 0x410, 0x42F) ||
        is_between(code, 0xFF21, 0xFF3A))
        return code + 32;
    if (code == 0x386)
        return 0x3AC;
    if (is_between(code, 0x388, 0x38A))
        return code + 37;
    if (code == 0x38C)
        return 0x3CC;
    if (code == 0x38E || code == 0x38F)
        return code + 63;
    if (is_between(code, 0x400, 0x40F))
        return code + 80;
    if (is_between(code, 0x531, 0x556))
        return code + 48;
    if (code == 0x178)
        return 0xFF;
    if (alternates_even(code))
        return code | 1;
    return alternates_odd(code) && code % 2 ? code + 1 : code;
}

/* The inverse, and letters whose capital is not their inverse: the micro sign, the dotless i, the long s and the final
 * sigma. Sharp s (0xDF) has two capitals: tarn__jinja_change_case() writes them. */
uint32_t tarn__jinja_to_upper(uint32_t code)
{
    if (is_between(code, 'a', 'z') || (is_between(code, 0xE0, 0xFE) && code != 0xF7) ||
        is_between(code, 0x3B1, 0x3C1) || is_between(code, 0x3C3, 0x3CB) || is_between(code, 0x430, 0x44F) ||
        is_between(code, 0xFF41, 0xFF5A))
        return code - 32;
    if (code == 0xB5)
        return 0x39C;
    if (code == 0xFF)
        return 0x178;
    if (code == 0x131)
        return 'I';
    if (code == 0x17F)
        return 'S';
    if (code == 0x3C2)
        return 0x3A3;
    if (code == 0x3AC)
        return 0x386;
    if (is_between(code, 0x3AD, 0x3AF))
        return code - 37;
    if (code == 0x3CC)
        return 0x38C;
    if (code == 0x3CD || code == 0x3CE)
        return code - 63;
    if (is_between(code, 0x450, 0x45F))
        return code - 80;
    if (is_between(code, 0x561, 0x586))
        return code - 48;
    if (alternates_even(code))
        return code & ~1u;
    return alternates_odd(code) && code % 2 == 0 ? code - 1 : code;
}

/* A letter with a small counterpart; scripts without case have neither. */
bool tarn__jinja_is_upper(uint32_t code)
{
    return tarn__jinja_to_lower(code) != code;
}

/* Sharp s and the ordinal indicators are small letters without a capital of one code point. */
bool tarn__jinja_is_lower(uint32_t code)
{
    return tarn__jinja_to_upper(code) != code || code == 0xDF || code == 0xAA || code == 0xBA;
}

/* Above Latin-1, letters are what is neither space nor punctuation of the general blocks. */
bool tarn__jinja_is_alpha(uint32_t code)
{
    if (code < 0x80)
        return is_between(code, 'a', 'z') || is_between(code, 'A', 'Z');
    if (code < 0x100)
        return (code >= 0xC0 && code != 0xD7 && code != 0xF7) || code == 0xAA || code == 0xB5 || code == 0xBA;
    return !is_between(code, 0x2000, 0x2BFF) && !is_between(code, 0x3000, 0x3004) &&
           !is_between(code, 0x3008, 0x3030) && !is_between(code, 0xFE00, 0xFE6F) &&
           !is_between(code, 0xFF01, 0xFF20) && !is_between(code, 0x300, 0x36F) && !is_between(code, 0x1F000, 0x1FAFF);
}

/* What repr() prints as it is: everything but control and format characters, surrogates, private use, noncharacters and
 * separators other than the space. Unassigned code points count as printable, unlike in Python. */
bool tarn__jinja_is_printable(uint32_t code)
{
    if (code == ' ')
        return true;
    return !(code < 0x20 || is_between(code, 0x7F, 0xA0) || code == 0xAD || tarn__is_space(code) ||
             is_between(code, 0x600, 0x605) || code == 0x61C || code == 0x6DD || code == 0x70F || code == 0x180E ||
             is_between(code, 0x200B, 0x200F) || is_between(code, 0x202A, 0x202E) || is_between(code, 0x2060, 0x206F) ||
             is_between(code, 0xD800, 0xF8FF) || code == 0xFEFF || is_between(code, 0xFFF0, 0xFFFB) ||
             (code & 0xFFFE) == 0xFFFE || is_between(code, 0xE0000, 0xE00FF) || code >= 0xE01F0);
}
