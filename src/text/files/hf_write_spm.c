/* hf_write_spm.c: SentencePiece's BPE in tokenizer.json. Other readers know merges only, so merges are derived from the
 * scores in the order of Hugging Face's conversion: best score first, and of the splits of one piece the longest left
 * part first. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number_format.h"
#include "base/utf8.h"
#include "text/files/hf_write.h"

/* ---- spaces ------------------------------------------------------------------------------------------------------ */

/* A step of normalizers and decoders; `kind` is String or Regex. */
static bool put_replace(tarn__buffer *out, const char *kind, const char *from, const char *to)
{
    return tarn__hf_put(out, "{\"type\": \"Replace\", \"pattern\": {\"%s\": ", kind) &&
           tarn__hf_put_string(out, from, strlen(from)) && tarn__hf_put(out, "}, \"content\": ") &&
           tarn__hf_put_string(out, to, strlen(to)) && tarn__hf_put(out, "}");
}

/* Spaces at both ends go, runs of them become one. */
static bool put_remove_extra_spaces(tarn__buffer *out)
{
    return put_replace(out, "Regex", TARN__REGEX_OUTER_SPACES, "") && tarn__hf_put(out, ", ") &&
           put_replace(out, "Regex", TARN__REGEX_EXTRA_SPACES, " ");
}

/* Spaces changed by a Metaspace pre-tokenizer. */
static bool put_metaspace(tarn__buffer *out, const tarn__spm *spm)
{
    static const char *const schemes[] = {"never", "first", "always"};
    return tarn__hf_put(out, "  \"normalizer\": ") &&
           (!spm->remove_extra_spaces || (tarn__hf_put(out, "{\"type\": \"Sequence\", \"normalizers\": [") &&
                                          put_remove_extra_spaces(out) && tarn__hf_put(out, "]}"))) &&
           tarn__hf_put(out,
                        "%s,\n  \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"" TARN__METASPACE
                        "\", \"prepend_scheme\": \"%s\", \"split\": false},\n",
                        spm->remove_extra_spaces ? "" : "null", schemes[spm->prepend]);
}

bool tarn__hf_put_spm_normalizer(tarn__buffer *out, const tarn_tokenizer *t)
{
    const tarn__spm *spm = &t->spm;
    if (spm->in_pre_tokenizer)
        return put_metaspace(out, spm);
    return tarn__hf_put(out, "  \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [") &&
           (!spm->remove_extra_spaces || (put_remove_extra_spaces(out) && tarn__hf_put(out, ", "))) &&
           (spm->prepend == TARN__PREPEND_NEVER ||
            tarn__hf_put(out, "{\"type\": \"Prepend\", \"prepend\": \"" TARN__METASPACE "\"}, ")) &&
           put_replace(out, "String", " ", TARN__METASPACE) && tarn__hf_put(out, "]},\n  \"pre_tokenizer\": null,\n");
}

/* U+2581 to spaces, byte pieces to bytes, joined; then the prepended space is dropped. */
bool tarn__hf_put_spm_decoder(tarn__buffer *out, const tarn_tokenizer *t)
{
    return tarn__hf_put(out, "  \"decoder\": {\"type\": \"Sequence\", \"decoders\": [") &&
           put_replace(out, "String", TARN__METASPACE, " ") &&
           tarn__hf_put(out, ", {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}%s]},\n",
                        t->spm.strip_prefix ? ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}"
                                            : "");
}

/* ---- merges ------------------------------------------------------------------------------------------------------ */

/* A merge derived from scores, with its sort keys. */
typedef struct derived {
    int32_t rank, left_length, left, right;
} derived;

/* The order of merges: rank, longest left part, then ids, so that the file is deterministic. */
static int by_rank(const void *a, const void *b)
{
    const derived *one = a, *other = b;
    if (one->rank != other->rank)
        return one->rank < other->rank ? -1 : 1;
    if (one->left_length != other->left_length)
        return one->left_length > other->left_length ? -1 : 1;
    return one->left != other->left ? (one->left > other->left) - (one->left < other->left)
                                    : (one->right > other->right) - (one->right < other->right);
}

/* A piece that merges may form; -1: none. */
static int32_t find_normal(const tarn__vocab *vocab, const char *bytes, size_t length)
{
    int32_t id = tarn__vocab_find(vocab, bytes, length);
    return id >= 0 && !vocab->piece[id].literal && !vocab->piece[id].outside ? id : -1;
}

/* Appends every split of a piece into two other pieces. */
static bool split_piece(const tarn_tokenizer *t, int32_t id, tarn__buffer *merges)
{
    size_t length, count = 0;
    uint32_t code;
    const char *bytes = tarn__vocab_bytes(&t->vocab, id, &length);
    for (size_t at = tarn__utf8_decode(bytes, length, &code); at > 0 && at < length;
         at += tarn__utf8_decode(bytes + at, length - at, &code)) {
        const derived merge = {t->spm.rank[id], (int32_t)++count, find_normal(&t->vocab, bytes, at),
                               find_normal(&t->vocab, bytes + at, length - at)};
        if (merge.left >= 0 && merge.right >= 0 && !tarn__buffer_add(merges, &merge, 1, sizeof(merge)))
            return false;
    }
    return true;
}

/* Collects, sorts and writes the merges. */
static bool put_derived_merges(tarn__buffer *out, const tarn_tokenizer *t, tarn__buffer *merges)
{
    for (int32_t id = 0; id < t->vocab.count; id++) {
        const tarn__vocab_piece *piece = &t->vocab.piece[id];
        if (piece->used && !piece->literal && !piece->outside && !split_piece(t, id, merges))
            return false;
    }
    derived *all = (derived *)(void *)merges->data;
    if (merges->count)
        qsort(all, merges->count, sizeof(*all), by_rank);
    bool good = tarn__hf_put(out, ",\n    \"merges\": [");
    for (size_t i = 0; good && i < merges->count; i++)
        good = tarn__hf_put(out, i ? ",\n      [" : "\n      [") && tarn__hf_put_piece(out, t, all[i].left) &&
               tarn__hf_put(out, ", ") && tarn__hf_put_piece(out, t, all[i].right) && tarn__hf_put(out, "]");
    return good && tarn__hf_put(out, "]");
}

/* The scores and types under "tarn", which other readers ignore. Scores are shortest decimals: they read back as the
 * same f32. */
static bool put_scores(tarn__buffer *out, const tarn__spm *spm)
{
    char text[TARN__NUMBER_SIZE];
    bool good = tarn__hf_put(out, ",\n    \"tarn\": {\"scores\": [");
    for (size_t i = 0; good && i < spm->count; i++)
        good = tarn__hf_put(out, "%s%s", i ? ", " : "", tarn__number_format(tarn__number_of_f32(spm->scores[i]), text));
    good = good && tarn__hf_put(out, "],\n      \"types\": [");
    for (size_t i = 0; good && i < spm->count; i++)
        good = tarn__hf_put(out, "%s%d", i ? ", " : "", spm->types[i]);
    return good && tarn__hf_put(out, "]}");
}

/* Merges for other readers, scores for tarn. */
bool tarn__hf_put_spm_merges(tarn__buffer *out, const tarn_tokenizer *t)
{
    tarn__buffer merges = {0};
    bool good = put_derived_merges(out, t, &merges) && put_scores(out, &t->spm);
    tarn__buffer_free(&merges, sizeof(derived));
    return good;
}
