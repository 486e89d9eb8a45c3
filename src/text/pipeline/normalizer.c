/* normalizer.c: the normalizer steps of a pipeline. Each reads a text and appends another to a buffer; two buffers take
 * turns. A byte that is not UTF-8 becomes U+FFFD, but stays for byte-level vocabularies.
 *
 * Two facts about the first character are carried along for the Metaspace pre-tokenizer, which prepends a space at the
 * beginning of the input only: has_moved, that the beginning of the text was removed, and first_bytes, how many bytes
 * of the result stem from it. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#include "text/pipeline/lowercase_table.inc"

#define REPLACEMENT "\xEF\xBF\xBD"

/* One step on one text. */
typedef struct normalizing {
    const tarn__pipeline_step *step;
    tarn__encoder *encoder;
    const char *text;
    size_t length;
    tarn__buffer *out;
    bool *moved; /* the first character of the result is not the first of the original */
} normalizing;

static bool add(const normalizing *n, const char *bytes, size_t count)
{
    return tarn__buffer_add(n->out, bytes, count, 1);
}

/* ---- simple steps ------------------------------------------------------------------------------------------------ */

/* The lower case of a code point; U+0130, which becomes two, is the caller's. */
static uint32_t lower(uint32_t code)
{
    size_t low = 0, high = sizeof(lowercases) / sizeof(lowercases[0]);
    if (code < 0x80)
        return code >= 'A' && code <= 'Z' ? code + 32 : code;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (lowercases[middle].code == code)
            return lowercases[middle].lower;
        *(lowercases[middle].code < code ? &low : &high) = lowercases[middle].code < code ? middle + 1 : middle;
    }
    return code;
}

/* Unicode's simple case mapping, as Rust's to_lowercase() without its one conditional rule, the final sigma. */
static bool lowercase(const normalizing *n)
{
    bool good = tarn__buffer_reserve(n->out, n->length, 1);
    for (size_t at = 0, bytes; good && at < n->length; at += bytes) {
        uint32_t code = 0;
        char text[4];
        bytes = tarn__utf8_decode(n->text + at, n->length - at, &code);
        good = code == 0x130 ? add(n, "i\xCC\x87", 3) : add(n, text, tarn__utf8_encode(text, lower(code)));
        bytes = bytes ? bytes : 1;
    }
    return good;
}

/* Unicode's whitespace. */
static bool strip(const normalizing *n)
{
    size_t begin = 0, end = n->length, last = 0;
    uint32_t code;
    for (size_t bytes;
         n->step->left && (bytes = tarn__utf8_decode(n->text + begin, end - begin, &code)) && tarn__is_space(code);)
        begin += bytes;
    last = begin;
    for (size_t at = begin, bytes; n->step->right && at < end; at += bytes) {
        bytes = tarn__utf8_decode(n->text + at, end - at, &code);
        bytes = bytes ? bytes : 1;
        /* The end of the last character that is no whitespace: trailing space is found going forward, as UTF-8 is
         * decoded. */
        last = tarn__is_space(code) ? last : at + bytes;
    }
    *n->moved = *n->moved || begin > 0;
    return add(n, n->text + begin, (n->step->right ? last : end) - begin);
}

/* Replaces the matches of a regex. */
static bool replace_regex(const normalizing *n, const tarn__regex *regex, const char *content, size_t count)
{
    size_t at = 0, begin, end;
    int found;
    while ((found = tarn__regex_next(regex, n->encoder->matcher, n->text, n->length, at, &begin, &end)) == 1) {
        if (!add(n, n->text + at, begin - at) || !add(n, content, count))
            return false;
        *n->moved = *n->moved || (begin == 0 && count == 0);
        at = end;
    }
    return found == 0 && add(n, n->text + at, n->length - at);
}

/* The first occurrence of a string at or after `from`; `length` if there is none. */
static size_t find_string(const normalizing *n, size_t from)
{
    const char *text = n->step->text;
    size_t count = n->step->text_length;
    for (const char *at; from + count <= n->length; from++) {
        if (!(at = memchr(n->text + from, text[0], n->length - count + 1 - from)))
            break;
        from = (size_t)(at - n->text);
        if (memcmp(at, text, count) == 0)
            return from;
    }
    return n->length;
}

/* All occurrences, from the left. */
static bool replace_string(const normalizing *n)
{
    size_t at = 0;
    for (size_t begin; at < n->length && (begin = find_string(n, at)) < n->length; at = begin + n->step->text_length) {
        if (!add(n, n->text + at, begin - at) || !add(n, n->step->content, n->step->content_length))
            return false;
        *n->moved = *n->moved || (begin == 0 && n->step->content_length == 0);
    }
    return add(n, n->text + at, n->length - at);
}

/* ---- character maps ---------------------------------------------------------------------------------------------- */

/* The bytes of the key that was found; 0: none, or a step without a map. */
static size_t map_find(const tarn__pipeline_step *step, const char *text, size_t length, bool longest, const char **to,
                       size_t *count)
{
    return step->map ? tarn__charsmap_find(step->map, step->map_bytes, text, length, longest, to, count) : 0;
}

/* A grapheme of less than six bytes is replaced as a whole by the first key that it begins with; else each of its
 * characters. This is what Hugging Face's tokenizers do, and differs from SentencePiece. Six bytes are the limit in
 * their code. */
static bool map_grapheme(const normalizing *n, size_t begin, size_t end)
{
    const char *to;
    size_t count;
    if (end - begin < 6 && map_find(n->step, n->text + begin, end - begin, false, &to, &count)) {
        *n->moved = *n->moved || (begin == 0 && count == 0);
        return add(n, to, count);
    }
    bool good = true;
    for (size_t at = begin, bytes; good && at < end; at += bytes) {
        uint32_t code;
        bytes = tarn__utf8_decode(n->text + at, end - at, &code);
        bytes = bytes ? bytes : 1;
        bool is_mapped = map_find(n->step, n->text + at, bytes, false, &to, &count) > 0;
        *n->moved = *n->moved || (at == 0 && is_mapped && count == 0);
        good = is_mapped ? add(n, to, count) : add(n, n->text + at, bytes);
    }
    return good;
}

/* Two ASCII characters in a row are never one grapheme, but for CR LF. */
static bool map_graphemes(const normalizing *n)
{
    for (size_t at = 0, begin, end; at < n->length; at = end) {
        unsigned char now = (unsigned char)n->text[at], next = at + 1 < n->length ? (unsigned char)n->text[at + 1] : 0;
        begin = at;
        end = at + 1;
        if ((now >= 0x80 || next >= 0x80 || (now == '\r' && next == '\n')) &&
            tarn__regex_next(n->step->regex, n->encoder->matcher, n->text, n->length, at, &begin, &end) != 1)
            return !tarn_failed() && add(n, n->text + at, n->length - at);
        if (!map_grapheme(n, at, end))
            return false;
    }
    return true;
}

/* SentencePiece's normalization of the beginning of a text: *to with *count bytes replace the bytes returned. */
static size_t map_prefix(const normalizing *n, size_t at, const char **to, size_t *count)
{
    uint32_t code;
    size_t bytes = map_find(n->step, n->text + at, n->length - at, true, to, count);
    if (bytes)
        return bytes;
    bytes = tarn__utf8_decode(n->text + at, n->length - at, &code);
    *to = bytes ? n->text + at : REPLACEMENT;
    *count = bytes ? bytes : strlen(REPLACEMENT);
    return bytes ? bytes : 1;
}

/* Appends a text with spaces as U+2581. */
static bool add_escaped(const normalizing *n, const char *text, size_t count)
{
    bool good = true;
    for (size_t i = 0; good && i < count; i++)
        good = text[i] == ' ' ? add(n, TARN__METASPACE, TARN__METASPACE_BYTES) : add(n, text + i, 1);
    return good;
}

/* SentencePiece's normalizer: the map, then spaces removed at both ends and in runs, one prepended, all as U+2581. */
static bool normalize_spm(const normalizing *n)
{
    bool removes = n->step->remove_extra_spaces, after_space = removes, good = true;
    const char *to;
    size_t at = 0, count, first = n->out->count;
    /* Leading spaces, which the map may have made. A text of nothing else is empty, without a prefix. */
    for (size_t bytes; removes && at < n->length; at += bytes) {
        bytes = map_prefix(n, at, &to, &count);
        if (count != 1 || to[0] != ' ')
            break;
    }
    if (at == n->length)
        return true;
    if (n->step->prepend == TARN__PREPEND_ALWAYS && !n->encoder->continues)
        good = add(n, TARN__METASPACE, TARN__METASPACE_BYTES);
    for (; good && at < n->length;) {
        at += map_prefix(n, at, &to, &count);
        /* Spaces of the replacement count as those of the text: a map may turn U+3000 into one. */
        for (; after_space && count > 0 && to[0] == ' '; to++)
            count--;
        good = add_escaped(n, to, count);
        after_space = removes && (count > 0 ? to[count - 1] == ' ' : after_space);
    }
    while (good && removes && n->out->count - first >= TARN__METASPACE_BYTES &&
           memcmp(n->out->data + n->out->count - TARN__METASPACE_BYTES, TARN__METASPACE, TARN__METASPACE_BYTES) == 0)
        n->out->count -= TARN__METASPACE_BYTES;
    return good;
}

/* ---- BERT -------------------------------------------------------------------------------------------------------- */

/* The blocks of CJK ideographs, as BERT lists them. */
static bool is_chinese(uint32_t code)
{
    return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
           (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B73F) ||
           (code >= 0x2B740 && code <= 0x2B81F) || (code >= 0x2B920 && code <= 0x2CEAF) ||
           (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
}

/* Whitespace becomes a space (clean_text), ideographs get spaces around them, which belong to them. first_bytes is 3 +
 * 2 for an ideograph at the beginning: its spaces stem from it too. */
static bool space_out(const normalizing *n)
{
    bool good = true;
    size_t first = 1;
    for (size_t at = 0, bytes; good && at < n->length; at += bytes) {
        uint32_t code = 0;
        bytes = tarn__utf8_decode(n->text + at, n->length - at, &code);
        bytes = bytes ? bytes : 1;
        bool is_apart = n->step->chinese && is_chinese(code);
        first = at == 0 && is_apart ? bytes + 2 : first;
        good = (!is_apart || add(n, " ", 1)) &&
               (n->step->clean_text && tarn__is_space(code) ? add(n, " ", 1) : add(n, n->text + at, bytes)) &&
               (!is_apart || add(n, " ", 1));
    }
    n->encoder->first_bytes = first;
    return good;
}

static bool bert_control(const normalizing *n)
{
    return n->step->clean_text ? replace_regex(n, n->step->regex, "", 0) : add(n, n->text, n->length);
}

/* Accents are separate characters in NFD, of category Mn, which bert_accents() removes. */
static bool bert_nfd(const normalizing *n)
{
    return n->step->strip_accents ? tarn__normal_form(n->out, n->text, n->length, TARN__FORM_NFD)
                                  : add(n, n->text, n->length);
}

static bool bert_accents(const normalizing *n)
{
    return n->step->strip_accents ? replace_regex(n, n->step->other, "", 0) : add(n, n->text, n->length);
}

static bool bert_lowercase(const normalizing *n)
{
    return n->step->lowercase ? lowercase(n) : add(n, n->text, n->length);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* A step of one part. BertNormalizer is a sequence of five. */
static bool run_simple(const normalizing *n)
{
    const tarn__pipeline_step *s = n->step;
    switch (s->type) {
    case TARN__STEP_NFC: return tarn__nfc(n->out, n->text, n->length);
    case TARN__STEP_NFD: return tarn__normal_form(n->out, n->text, n->length, TARN__FORM_NFD);
    case TARN__STEP_NFKC: return tarn__normal_form(n->out, n->text, n->length, TARN__FORM_NFKC);
    case TARN__STEP_NFKD: return tarn__normal_form(n->out, n->text, n->length, TARN__FORM_NFKD);
    case TARN__STEP_LOWERCASE: return lowercase(n);
    case TARN__STEP_STRIP: return strip(n);
    case TARN__STEP_STRIP_ACCENTS: return replace_regex(n, s->regex, "", 0);
    case TARN__STEP_REPLACE:
        return s->regex ? replace_regex(n, s->regex, s->content, s->content_length) : replace_string(n);
    case TARN__STEP_PREPEND:
        return n->length == 0 ||
               ((n->encoder->continues || add(n, s->content, s->content_length)) && add(n, n->text, n->length));
    case TARN__STEP_PRECOMPILED: return map_graphemes(n);
    case TARN__STEP_SPM_NORMALIZER: return normalize_spm(n);
    default: return tarn__raise(TARN_ERROR_INTERNAL, "tokenizer_encode: a step that is not a normalizer");
    }
}

/* Runs a function from encoder->step[*now] into the other buffer. */
static bool turn(normalizing *n, int *now, bool (*run)(const normalizing *))
{
    tarn__buffer *from = &n->encoder->step[*now];
    n->out = &n->encoder->step[!*now];
    n->out->count = 0;
    n->text = from->data ? from->data : "";
    n->length = from->count;
    *now = !*now;
    if (!run(n))
        return false;
    /* Any step that changes those bytes makes them one unknown: 1 means only that the first byte stems from the first
     * character. */
    size_t *first = &n->encoder->first_bytes;
    if (run != space_out &&
        (n->out->count < *first || n->length < *first || memcmp(n->out->data, n->text, *first) != 0))
        *first = 1;
    return true;
}

static bool run_step(normalizing *n, int *now)
{
    if (n->step->type != TARN__STEP_BERT_NORMALIZER)
        return turn(n, now, run_simple);
    return turn(n, now, bert_control) && turn(n, now, space_out) && turn(n, now, bert_nfd) &&
           turn(n, now, bert_accents) && turn(n, now, bert_lowercase);
}

/* Normalizes valid UTF-8 into encoder->step[result]; -1 with an error. */
static int normalize_valid(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length)
{
    int now = 0;
    encoder->step[0].count = 0;
    if (!tarn__buffer_add(&encoder->step[0], text, length, 1))
        return -1;
    for (size_t i = 0; i < t->pipeline.normalizers.count; i++) {
        normalizing n = {
            .step = tarn__steps_at(&t->pipeline.normalizers, i), .encoder = encoder, .moved = &encoder->has_moved};
        if (!run_step(&n, &now))
            return -1;
    }
    return now;
}

bool tarn__pipeline_normalize(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length,
                              tarn__buffer *out)
{
    encoder->has_moved = false;
    encoder->first_bytes = 1;
    if (!tarn__pipeline_matcher(t, encoder))
        return false;
    size_t at = 0, first = 1;
    do {
        /* Runs of valid UTF-8 are normalized apart, since the regexes need it. */
        size_t valid = tarn__utf8_prefix(text + at, length - at);
        int done = normalize_valid(t, encoder, text + at, valid);
        first = at == 0 ? encoder->first_bytes : first;
        at += valid;
        bool is_bad = at < length, is_byte = t->kind == &tarn__kind_bpe;
        if (done < 0 || !tarn__buffer_add(out, encoder->step[done].data, encoder->step[done].count, 1) ||
            (is_bad && !tarn__buffer_add(out, is_byte ? text + at : REPLACEMENT, is_byte ? 1 : 3, 1)))
            return false;
        at += is_bad;
    } while (at < length);
    encoder->first_bytes = first;
    return true;
}
