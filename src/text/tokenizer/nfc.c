/* nfc.c: Unicode's normalization forms: decompose, sort combining marks, and in NFC and NFKC compose.
 *
 * No character below U+0300 combines with the one before it. So a text is cut before each of those, and a part that is
 * a single such character is normalized already: most text costs one scan of its bytes. */
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#include "text/tokenizer/nfc_table.inc"
#include "text/tokenizer/nfkd_table.inc"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))
#define FIRST_COMBINING 0x300 /* the first code point that may combine with the one before */
#define CLASSES 256

/* Hangul syllables decompose by arithmetic: lead, vowel, tail (Unicode 3.12). */
enum {
    LEAD = 0x1100,
    VOWEL = 0x1161,
    TAIL = 0x11A7,
    SYLLABLE = 0xAC00,
    LEADS = 19,
    VOWELS = 21,
    TAILS = 28,
    SYLLABLES = LEADS * VOWELS * TAILS
};

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* Canonical decomposition of a code point, one level; NULL: none. */
static const struct decomposition *find_decomposition(uint32_t code)
{
    size_t low = 0, high = COUNT(decompositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (decompositions[middle].code == code)
            return &decompositions[middle];
        *(decompositions[middle].code < code ? &low : &high) = decompositions[middle].code < code ? middle + 1 : middle;
    }
    return NULL;
}

/* Canonical combining class; 0: a starter. */
static uint32_t class_of(uint32_t code)
{
    size_t low = 0, high = code < FIRST_COMBINING ? 0 : COUNT(combinings);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code >= combinings[middle].from && code <= combinings[middle].to)
            return combinings[middle].order;
        *(combinings[middle].to < code ? &low : &high) = combinings[middle].to < code ? middle + 1 : middle;
    }
    return 0;
}

/* The composite of two code points; 0: none. `compositions` is sorted by second, then first. */
static uint32_t compose_pair(uint32_t first, uint32_t second)
{
    if (first - LEAD < LEADS && second - VOWEL < VOWELS)
        return SYLLABLE + ((first - LEAD) * VOWELS + (second - VOWEL)) * TAILS;
    if (first - SYLLABLE < SYLLABLES && (first - SYLLABLE) % TAILS == 0 && second - TAIL - 1 < TAILS - 1)
        return first + (second - TAIL);
    size_t low = 0, high = second < FIRST_COMBINING ? 0 : COUNT(compositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct decomposition *d = &decompositions[compositions[middle]];
        if (d->second == second && d->first == first)
            return d->code;
        bool before = d->second != second ? d->second < second : d->first < first;
        *(before ? &low : &high) = before ? middle + 1 : middle;
    }
    return 0;
}

/* ---- one part ---------------------------------------------------------------------------------------------------- */

/* Compatibility decomposition of a code point, complete; NULL: none beyond the canonical one. */
static const struct compatibility *find_compatibility(uint32_t code)
{
    size_t low = 0, high = COUNT(compatibilities);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (compatibilities[middle].code == code)
            return &compatibilities[middle];
        bool before = compatibilities[middle].code < code;
        *(before ? &low : &high) = before ? middle + 1 : middle;
    }
    return NULL;
}

/* Appends the full decomposition of a code point. */
static bool decompose(tarn__buffer *codes, uint32_t code)
{
    if (code - SYLLABLE < SYLLABLES) {
        uint32_t at = code - SYLLABLE;
        const uint32_t parts[] = {LEAD + at / (VOWELS * TAILS), VOWEL + at / TAILS % VOWELS, TAIL + at % TAILS};
        return tarn__buffer_add(codes, parts, at % TAILS ? 3 : 2, sizeof(code));
    }
    const struct decomposition *found = code < 0xC0 ? NULL : find_decomposition(code);
    if (!found)
        return tarn__buffer_add(codes, &code, 1, sizeof(code));
    /* Decompositions nest at most three deep. */
    return decompose(codes, found->first) && (!found->second || decompose(codes, found->second));
}

/* Sorts combining marks by class, stably. A counting sort: a hostile text with a thousand marks on one character must
 * not cost a million steps. */
static bool sort_run(uint32_t *code, size_t count)
{
    size_t begin[CLASSES + 1] = {0};
    uint32_t *sorted = count < 2 ? NULL : tarn__alloc(count * sizeof(*sorted));
    if (!sorted)
        return count < 2;
    for (size_t i = 0; i < count; i++)
        begin[class_of(code[i]) + 1]++;
    for (int order = 0; order < CLASSES; order++)
        begin[order + 1] += begin[order];
    for (size_t i = 0; i < count; i++)
        sorted[begin[class_of(code[i])]++] = code[i];
    memcpy(code, sorted, count * sizeof(*code));
    tarn__release(sorted, count * sizeof(*sorted));
    return true;
}

/* Sorts every run of combining marks between starters. */
static bool sort_runs(uint32_t *code, size_t count)
{
    for (size_t at = 0, run; at < count; at += run + 1) {
        for (run = 0; at + run < count && class_of(code[at + run]) != 0;)
            run++;
        if (!sort_run(code + at, run))
            return false;
    }
    return true;
}

/* Composes in place; returns the new count. A mark composes with the last starter unless a mark between them has the
 * same or a higher class (it is blocked). */
static size_t compose(uint32_t *code, size_t count)
{
    size_t length = 0, starter = SIZE_MAX; /* index of the last starter */
    uint32_t last = 0;                     /* class of the last mark after it */
    for (size_t i = 0; i < count; i++) {
        uint32_t order = class_of(code[i]);
        bool is_free = starter != SIZE_MAX && (length == starter + 1 || last < order);
        uint32_t composite = is_free ? compose_pair(code[starter], code[i]) : 0;
        if (composite) {
            code[starter] = composite;
            continue;
        }
        if (order == 0)
            starter = length;
        last = order;
        code[length++] = code[i];
    }
    return length;
}

/* Appends the full compatibility decomposition. */
static bool decompose_compatibly(tarn__buffer *codes, uint32_t code)
{
    const struct compatibility *found = code < 0xA0 ? NULL : find_compatibility(code);
    return found ? tarn__buffer_add(codes, compatibility_codes + found->begin, found->count, sizeof(code))
                 : decompose(codes, code);
}

/* Sorts, composes and appends the decomposed code points of a part. */
static bool add_part(tarn__buffer *out, tarn__buffer *codes, tarn__form form)
{
    uint32_t *code = (uint32_t *)(void *)codes->data;
    if (!sort_runs(code, codes->count))
        return false;
    bool composes = form == TARN__FORM_NFC || form == TARN__FORM_NFKC;
    size_t count = composes ? compose(code, codes->count) : codes->count;
    for (size_t i = 0; i < count; i++) {
        char bytes[4];
        if (!tarn__buffer_add(out, bytes, tarn__utf8_encode(bytes, code[i]), 1))
            return false;
    }
    return true;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Bytes of the part that begins here: up to the next character below FIRST_COMBINING, or to invalid UTF-8. */
static size_t part_length(const char *text, size_t length)
{
    uint32_t code;
    size_t at = tarn__utf8_decode(text, length, &code);
    for (size_t bytes;
         at < length && (bytes = tarn__utf8_decode(text + at, length - at, &code)) != 0 && code >= FIRST_COMBINING;)
        at += bytes;
    return at;
}

/* Decomposes, sorts and composes one part. `codes` is scratch. */
static bool normalize_part(tarn__buffer *out, tarn__buffer *codes, const char *text, size_t length, tarn__form form)
{
    bool is_compatible = form == TARN__FORM_NFKC || form == TARN__FORM_NFKD;
    codes->count = 0;
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        at += tarn__utf8_decode(text + at, length - at, &code);
        if (!(is_compatible ? decompose_compatibly(codes, code) : decompose(codes, code)))
            return false;
    }
    return add_part(out, codes, form);
}

/* Bytes that can be copied unchanged: those below `limit`, but not the last character, with which the next may combine.
 * Bytes below 0xCC cannot begin a combining character: NFC leaves characters of them as they are. */
static size_t simple_length(const char *text, size_t length, unsigned char limit)
{
    size_t at = 0;
    while (at < length && (unsigned char)text[at] < limit)
        at++;
    if (at == length)
        return at;
    /* A character has at most three continuation bytes; going back over more would be quadratic in
     * invalid text. */
    for (int back = 0; back < 3 && at > 0 && ((unsigned char)text[at - 1] & 0xC0) == 0x80; back++)
        at--;
    return at > 0 ? at - 1 : 0;
}

/* Alternates between runs that are copied and parts that are normalized. */
bool tarn__normal_form(tarn__buffer *out, const char *text, size_t length, tarn__form form)
{
    tarn__buffer codes = {0};
    unsigned char limit = form == TARN__FORM_NFC ? 0xCC : 0x80;
    bool good = true;
    for (size_t at = 0; good && at < length;) {
        size_t simple = simple_length(text + at, length - at, limit);
        good = tarn__buffer_add(out, text + at, simple, 1);
        at += simple;
        size_t part = good && at < length ? part_length(text + at, length - at) : 0;
        if (part)
            good = normalize_part(out, &codes, text + at, part, form);
        else if (at < length)
            good = good && tarn__buffer_add(out, text + at, 1, 1); /* an invalid byte */
        at += part ? part : 1;
    }
    tarn__buffer_free(&codes, sizeof(uint32_t));
    return good;
}

bool tarn__nfc(tarn__buffer *out, const char *text, size_t length)
{
    return tarn__normal_form(out, text, length, TARN__FORM_NFC);
}
