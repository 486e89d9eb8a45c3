/* nfc.c: Unicode's normalisation form C: characters are taken apart, what follows one is put in order, and put together
 * again.
 *
 * Nothing below U+0300 follows another character. So a text is cut before each of those, and a part that is one
 * character of them is right already: most text costs one look at its bytes. */
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#include "text/tokenizer/nfc_table.inc"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))
#define SIMPLE 0x300 /* the first that may follow another */
#define ORDERS 256

/* Syllables of Hangul are computed: lead, vowel and tail. */
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

/* ---- the tables -------------------------------------------------------------------------------------------------- */

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

static uint32_t order_of(uint32_t code)
{
    size_t low = 0, high = code < SIMPLE ? 0 : COUNT(combinings);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code >= combinings[middle].from && code <= combinings[middle].to)
            return combinings[middle].order;
        *(combinings[middle].to < code ? &low : &high) = combinings[middle].to < code ? middle + 1 : middle;
    }
    return 0;
}

/* What two characters are together, 0: nothing. */
static uint32_t composed(uint32_t first, uint32_t second)
{
    if (first - LEAD < LEADS && second - VOWEL < VOWELS)
        return SYLLABLE + ((first - LEAD) * VOWELS + (second - VOWEL)) * TAILS;
    if (first - SYLLABLE < SYLLABLES && (first - SYLLABLE) % TAILS == 0 && second - TAIL - 1 < TAILS - 1)
        return first + (second - TAIL);
    size_t low = 0, high = second < SIMPLE ? 0 : COUNT(compositions);
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

/* ---- one part of a text ------------------------------------------------------------------------------------------ */

static bool take_apart(tarn__buffer *codes, uint32_t code)
{
    if (code - SYLLABLE < SYLLABLES) {
        uint32_t at = code - SYLLABLE;
        const uint32_t parts[] = {LEAD + at / (VOWELS * TAILS), VOWEL + at / TAILS % VOWELS, TAIL + at % TAILS};
        return tarn__buffer_add(codes, parts, at % TAILS ? 3 : 2, sizeof(code));
    }
    const struct decomposition *found = code < 0xC0 ? NULL : find_decomposition(code);
    if (!found)
        return tarn__buffer_add(codes, &code, 1, sizeof(code));
    /* Decompositions nest three deep at most; the second part is a single character. */
    return take_apart(codes, found->first) && (!found->second || take_apart(codes, found->second));
}

/* Sorts what follows a character by its order, equals as they came. Counted, so that a thousand of them do not cost a
 * million steps. */
static bool sort_run(uint32_t *code, size_t count)
{
    size_t begin[ORDERS + 1] = {0};
    uint32_t *sorted = count < 2 ? NULL : tarn__alloc(count * sizeof(*sorted));
    if (!sorted)
        return count < 2;
    for (size_t i = 0; i < count; i++)
        begin[order_of(code[i]) + 1]++;
    for (int order = 0; order < ORDERS; order++)
        begin[order + 1] += begin[order];
    for (size_t i = 0; i < count; i++)
        sorted[begin[order_of(code[i])]++] = code[i];
    memcpy(code, sorted, count * sizeof(*code));
    tarn__release(sorted, count * sizeof(*sorted));
    return true;
}

static bool sort_runs(uint32_t *code, size_t count)
{
    for (size_t at = 0, run; at < count; at += run + 1) {
        for (run = 0; at + run < count && order_of(code[at + run]) != 0;)
            run++;
        if (!sort_run(code + at, run))
            return false;
    }
    return true;
}

/* Puts characters together where nothing between them forbids it; returns how many are left. */
static size_t put_together(uint32_t *code, size_t count)
{
    size_t kept = 0, start = SIZE_MAX; /* where the last character is that others follow */
    uint32_t last = 0;                 /* the order of what was kept behind it */
    for (size_t i = 0; i < count; i++) {
        uint32_t order = order_of(code[i]);
        bool is_free = start != SIZE_MAX && (kept == start + 1 || last < order);
        uint32_t made = is_free ? composed(code[start], code[i]) : 0;
        if (made) {
            code[start] = made;
            continue;
        }
        if (order == 0)
            start = kept;
        last = order;
        code[kept++] = code[i];
    }
    return kept;
}

static bool put_part(tarn__buffer *out, tarn__buffer *codes)
{
    uint32_t *code = (uint32_t *)(void *)codes->data;
    if (!sort_runs(code, codes->count))
        return false;
    size_t count = put_together(code, codes->count);
    for (size_t i = 0; i < count; i++) {
        char bytes[4];
        if (!tarn__buffer_add(out, bytes, tarn__utf8_encode(bytes, code[i]), 1))
            return false;
    }
    return true;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Where the part that begins here ends: before the next character below SIMPLE, or where UTF-8 ends. */
static size_t part_length(const char *text, size_t length)
{
    uint32_t code;
    size_t at = tarn__utf8_decode(text, length, &code);
    for (size_t bytes;
         at < length && (bytes = tarn__utf8_decode(text + at, length - at, &code)) != 0 && code >= SIMPLE;)
        at += bytes;
    return at;
}

static bool normalise_part(tarn__buffer *out, tarn__buffer *codes, const char *text, size_t length)
{
    codes->count = 0;
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        at += tarn__utf8_decode(text + at, length - at, &code);
        if (!take_apart(codes, code))
            return false;
    }
    return put_part(out, codes);
}

/* Bytes from here on whose characters are all below SIMPLE (or no UTF-8), up to the last of them: that one may be
 * followed. */
static size_t simple_length(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length && (unsigned char)text[at] < 0xCC)
        at++;
    if (at == length)
        return at;
    /* A character continues for three bytes at most; more are no UTF-8, and going back over all of them again and again
     * would take forever. */
    for (int back = 0; back < 3 && at > 0 && ((unsigned char)text[at - 1] & 0xC0) == 0x80; back++)
        at--;
    return at > 0 ? at - 1 : 0;
}

bool tarn__nfc(tarn__buffer *out, const char *text, size_t length)
{
    tarn__buffer codes = {0};
    bool good = true;
    for (size_t at = 0; good && at < length;) {
        size_t simple = simple_length(text + at, length - at);
        good = tarn__buffer_add(out, text + at, simple, 1);
        at += simple;
        size_t part = good && at < length ? part_length(text + at, length - at) : 0;
        if (part)
            good = normalise_part(out, &codes, text + at, part);
        else if (at < length)
            good = good && tarn__buffer_add(out, text + at, 1, 1); /* no UTF-8 */
        at += part ? part : 1;
    }
    tarn__buffer_free(&codes, sizeof(uint32_t));
    return good;
}
