/* charsmap.c: the precompiled character map of SentencePiece's normalizer: four bytes with the size of a trie, the
 * trie, and replacements that each end in a 0.
 *
 * The trie is a double array of 32-bit units (Darts). A unit has a label in its low byte, bit 8 if a value follows, and
 * from bit 10 the offset to its children, in units of 256 if bit 9 is set; a value unit has bit 31 and the offset of a
 * replacement. Maps come from files that are not trusted: every index is checked. */
#include <string.h>

#include "text/tokenizer/tokenizer.h"

#define HEAD 4 /* bytes of the size */

/* Files are little-endian. */
static uint32_t read_u32(const char *at)
{
    const unsigned char *byte = (const unsigned char *)at;
    return (uint32_t)byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 | (uint32_t)byte[3] << 24;
}

/* The last byte must be 0, so that every replacement in the map ends within it. */
bool tarn__charsmap_valid(const char *map, size_t bytes)
{
    size_t trie = bytes > HEAD ? read_u32(map) : 0;
    return bytes > HEAD && trie >= 4 && trie % 4 == 0 && trie < bytes - HEAD && map[bytes - 1] == 0;
}

/* The children of a unit, as an offset that is combined with the unit's own index by xor. */
static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* A NUL in the text ends the search: it is the label of values. */
size_t tarn__charsmap_find(const char *map, size_t bytes, const char *text, size_t length, bool longest,
                           const char **replacement, size_t *count)
{
    size_t trie = read_u32(map), units = trie / 4, found = 0, value = 0, strings = bytes - HEAD - trie;
    uint32_t at = offset_of(read_u32(map + HEAD));
    for (size_t i = 0; i < length && text[i]; i++) {
        unsigned char byte = (unsigned char)text[i];
        at ^= byte;
        uint32_t unit = at < units ? read_u32(map + HEAD + 4 * (size_t)at) : 0;
        if (at >= units || (unit & (1u << 31 | 0xFF)) != byte)
            break;
        at ^= offset_of(unit);
        if (unit >> 8 & 1) {
            value = at < units ? read_u32(map + HEAD + 4 * (size_t)at) & 0x7FFFFFFF : SIZE_MAX;
            found = value < strings ? i + 1 : found;
            if (found && !longest)
                break;
        }
    }
    if (!found || value >= strings) /* a damaged map: its last value lies outside */
        return 0;
    *replacement = map + HEAD + trie + value;
    *count = strlen(*replacement); /* the map ends in a 0 */
    return found;
}
