/* unigram.c: the Unigram model: of all ways to write a text as pieces the one with the highest sum of scores (Viterbi).
 *
 * Ends are visited in order; at each the best piece that ends there is kept, of equals the first found, the longest. A
 * character without a piece of its own costs the lowest score less 10. Hugging Face's tokenizers and SentencePiece
 * differ in precision, in pieces that the search knows, and in what becomes of unknown characters: is_spm decides. Time
 * is O(length × longest matching piece). */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#define UNKNOWN_PENALTY 10.0

/* The best path to a position. */
typedef struct best_path {
    double score;
    uint32_t begin; /* of its last piece */
    int32_t id;     /* -2: not reached */
} best_path;

/* SentencePiece's formula: a user-defined piece outweighs any sequence of pieces of its length. */
static double score_of(const tarn__unigram *u, int32_t id, size_t length)
{
    if (u->is_spm && u->types[id] == TARN__TOKEN_USER) /* always wins */
        return (double)((float)length * (float)u->max_score) - 0.1;
    return u->scores[id];
}

/* SentencePiece's sums are f32. */
static void offer(const tarn__unigram *u, best_path *end, double score, uint32_t begin, int32_t id)
{
    score = u->is_spm ? (double)(float)score : score;
    if (end->id == -2 || score > end->score)
        *end = (best_path){score, begin, id};
}

/* Fills best[1 … length]. False with an error. */
static bool search(const tarn__unigram *u, const char *text, size_t length, best_path *best)
{
    const tarn__trie_node *nodes = (const tarn__trie_node *)(const void *)u->trie.data;
    for (size_t i = 0; i <= length; i++)
        best[i] = (best_path){0, 0, -2};
    for (size_t begin = 0, character; begin < length; begin += character) {
        uint32_t code, node = 0;
        double till = best[begin].score;
        bool has_single = false;
        character = tarn__utf8_decode(text + begin, length - begin, &code);
        character = character ? character : 1;
        for (size_t end = begin; end < length && (node = tarn__trie_next(&u->trie, node, (unsigned char)text[end]));) {
            end++;
            if (nodes[node].id < 0)
                continue;
            offer(u, &best[end], score_of(u, nodes[node].id, end - begin) + till, (uint32_t)begin, nodes[node].id);
            has_single = has_single || end - begin == character;
        }
        /* A character that is a piece can always be reached by it; any other gets the unknown's score, so that every
         * position is reached. */
        if (has_single)
            continue;
        if (u->unknown < 0 && !u->has_bytes)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "tokenizer_encode: the vocabulary has no token for '%.*s', and no unknown token",
                               (int)character, text + begin);
        offer(u, &best[begin + character], u->unknown_score + till, (uint32_t)begin, u->unknown);
    }
    return true;
}

/* Appends the ids of text without a piece: its bytes, or the unknown token. */
static bool add_unknown(const tarn__unigram *u, const char *text, size_t length, tarn__buffer *ids)
{
    for (size_t i = 0; u->has_bytes && i < length; i++)
        if (!tarn__ids_add(ids, u->byte_id[(unsigned char)text[i]]))
            return false;
    return u->has_bytes || tarn__ids_add(ids, u->unknown);
}

/* Appends the ids of a run of unknown characters, a piece of the vocabulary if it happens to be one. */
static bool add_run(const tarn_tokenizer *t, const char *text, size_t length, tarn__buffer *ids)
{
    int32_t id = t->unigram.is_spm ? -1 : tarn__vocab_find(&t->vocab, text, length);
    bool is_piece = id >= 0 && !t->vocab.piece[id].outside;
    return is_piece ? tarn__ids_add(ids, id) : add_unknown(&t->unigram, text, length, ids);
}

/* Follows the path from its end, so that `ends` has the ends of its pieces, last first; then appends ids. Adjacent
 * unknown characters are one unknown token. */
static bool add_path(const tarn_tokenizer *t, const char *text, size_t length, const best_path *best,
                     tarn__buffer *ends, tarn__buffer *ids)
{
    ends->count = 0;
    for (size_t end = length; end > 0; end = best[end].begin)
        if (!tarn__ids_add(ends, (int32_t)end))
            return false;
    /* From the last entry to the first, which is the end of the text: pieces from left to right. */
    const int32_t *end = (const int32_t *)(const void *)ends->data;
    size_t run = 0; /* beginning of the current run of unknown characters */
    bool is_run = false;
    for (size_t i = ends->count; i-- > 0;) {
        const best_path *b = &best[end[i]];
        bool is_unknown = b->id == t->unigram.unknown || b->id < 0;
        run = is_run ? run : b->begin;
        is_run = is_unknown;
        bool is_last = !is_unknown || i == 0 || (best[end[i - 1]].id != t->unigram.unknown && best[end[i - 1]].id >= 0);
        if (!is_unknown ? !tarn__ids_add(ids, b->id) : is_last && !add_run(t, text + run, (size_t)end[i] - run, ids))
            return false;
        is_run = is_unknown && !is_last;
    }
    return true;
}

static bool encode_word(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length,
                        tarn__buffer *ids)
{
    if (length >= INT32_MAX)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "tokenizer_encode: a text of %zu bytes; at most %d are supported",
                           length, INT32_MAX - 1);
    encoder->symbols.count = 0;
    encoder->paths.count = 0;
    if (!tarn__buffer_reserve(&encoder->paths, length + 1, sizeof(best_path)))
        return false;
    best_path *best = (best_path *)(void *)encoder->paths.data;
    return search(&t->unigram, text, length, best) && add_path(t, text, length, best, &encoder->ends, ids);
}

void tarn__unigram_paths_free(tarn__buffer *paths)
{
    tarn__buffer_free(paths, sizeof(best_path));
}

const tarn__tokenizer_kind tarn__kind_unigram = {"unigram", tarn__pipeline_encode, encode_word};

/* ---- setup ------------------------------------------------------------------------------------------------------- */

/* SentencePiece's search knows neither control, unknown, unused nor byte pieces; Hugging Face's knows all. */
static bool is_searched(const void *ctx, int32_t id)
{
    const tarn__unigram *u = ctx;
    return !u->is_spm || u->types[id] == TARN__TOKEN_NORMAL || u->types[id] == TARN__TOKEN_USER;
}

/* highest begins at FLT_MIN, the smallest positive float, as in SentencePiece: scores are logarithms and below it, so
 * max_score is that. */
bool tarn__unigram_finish(tarn_tokenizer *t, const char *function, const char *name)
{
    tarn__unigram *u = &t->unigram;
    double lowest = u->is_spm ? FLT_MAX : INFINITY, highest = FLT_MIN;
    u->has_bytes = u->byte_fallback;
    for (int i = 0; i < 256; i++) {
        char text[8] = {'<', '0', 'x', "0123456789ABCDEF"[i >> 4], "0123456789ABCDEF"[i & 15], '>'};
        int32_t id = tarn__vocab_find(&t->vocab, text, 6);
        u->byte_id[i] = id >= 0 && !t->vocab.piece[id].outside ? id : -1;
        if (u->byte_fallback && u->byte_id[i] < 0)
            return tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: '%s': byte fallback needs a piece for every byte; <0x%02X> is missing", function,
                               name, i);
    }
    for (size_t i = 0; i < u->count; i++) {
        bool counts = !u->is_spm || u->types[i] == TARN__TOKEN_NORMAL;
        lowest = counts && u->scores[i] < lowest ? u->scores[i] : lowest;
        highest = counts && u->scores[i] > highest ? u->scores[i] : highest;
    }
    u->max_score = highest;
    u->unknown_score = u->is_spm ? (double)((float)lowest - (float)UNKNOWN_PENALTY) : lowest - UNKNOWN_PENALTY;
    return tarn__trie_build(&u->trie, &t->vocab, is_searched, u);
}

/* The rules move into the new step. */
bool tarn__unigram_set_spm(tarn_tokenizer *t, bool prepends, bool removes_extra_spaces, const char *function,
                           const char *name)
{
    tarn__pipeline *p = &t->pipeline;
    tarn__pipeline_step step = {.type = TARN__STEP_SPM_NORMALIZER,
                                .prepend = prepends ? TARN__PREPEND_ALWAYS : TARN__PREPEND_NEVER,
                                .remove_extra_spaces = removes_extra_spaces};
    /* Only the first character map is kept. */
    for (size_t i = 0; i < p->normalizers.count; i++) {
        tarn__pipeline_step *old = (tarn__pipeline_step *)(void *)p->normalizers.data + i;
        if (old->map && !step.map) {
            step.map = old->map;
            step.map_bytes = old->map_bytes;
            old->map = NULL;
            old->map_bytes = 0;
        }
    }
    tarn__steps_free(&p->normalizers);
    tarn__steps_free(&p->pre_tokenizers);
    tarn__steps_free(&p->decoders);
    p->is_used = true;
    p->joins_by_space = false;
    t->unigram.is_spm = true;
    tarn__pipeline_step replace = {.type = TARN__STEP_REPLACE}, strip = {.type = TARN__STEP_STRIP_CONTENT, .start = 1};
    bool good =
        tarn__steps_add(&p->normalizers, step, function, name) &&
        tarn__step_copy(&replace.text, &replace.text_length, TARN__METASPACE, TARN__METASPACE_BYTES) &&
        tarn__step_copy(&replace.content, &replace.content_length, " ", 1) &&
        tarn__steps_add(&p->decoders, replace, function, name) &&
        tarn__steps_add(&p->decoders, (tarn__pipeline_step){.type = TARN__STEP_BYTE_FALLBACK}, function, name) &&
        tarn__steps_add(&p->decoders, (tarn__pipeline_step){.type = TARN__STEP_FUSE}, function, name);
    return good && (!prepends || (tarn__step_copy(&strip.text, &strip.text_length, " ", 1) &&
                                  tarn__steps_add(&p->decoders, strip, function, name)));
}

void tarn__unigram_free(tarn__unigram *u)
{
    tarn__release(u->scores, u->count * sizeof(*u->scores));
    tarn__release(u->types, u->count * sizeof(*u->types));
    tarn__buffer_free(&u->trie, sizeof(tarn__trie_node));
    *u = (tarn__unigram){0};
}
