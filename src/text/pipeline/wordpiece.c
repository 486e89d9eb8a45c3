/* wordpiece.c: WordPiece and WordLevel. WordPiece takes the longest piece that begins a word, then the longest that
 * continues it, and so on; a word that cannot be written so is unknown as a whole. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

/* ---- WordPiece --------------------------------------------------------------------------------------------------- */

/* Follows the bytes of a text from a node: the longest piece, its bytes in *size; -1: none. */
static int32_t longest(const tarn__buffer *trie, uint32_t node, const char *text, size_t length, size_t *size)
{
    const tarn__trie_node *nodes = (const tarn__trie_node *)(const void *)trie->data;
    int32_t id = -1;
    for (size_t at = 0; at < length && (node = tarn__trie_next(trie, node, (unsigned char)text[at]));) {
        at++;
        if (nodes[node].id >= 0) {
            id = nodes[node].id;
            *size = at;
        }
    }
    return id;
}

/* Characters of valid UTF-8. */
static size_t count_characters(const char *text, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

/* An error names the text, as the word cannot be left out silently. */
static bool add_unknown(const tarn_tokenizer *t, const char *text, size_t length, tarn__buffer *ids)
{
    if (t->unknown >= 0)
        return tarn__ids_add(ids, t->unknown);
    return tarn__raise(TARN_ERROR_ARGUMENT,
                       "tokenizer_encode: the vocabulary has no token for '%.*s', and no unknown token",
                       (int)(length < 60 ? length : 60), text);
}

/* "unaffable" is "un", "##aff", "##able". A longer word than max_characters is unknown without a search. Time is
 * O(length × longest piece). */
static bool encode_wordpiece(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length,
                             tarn__buffer *ids)
{
    const tarn__wordpiece *wp = &t->wordpiece;
    size_t before = ids->count, size = 0;
    (void)encoder;
    if (count_characters(text, length) > wp->max_characters)
        return add_unknown(t, text, length, ids);
    for (size_t at = 0; at < length; at += size) {
        /* No piece begins with the prefix: nothing can continue a word. */
        bool is_dead = at > 0 && wp->prefix_length > 0 && !wp->prefix_node;
        int32_t id = is_dead ? -1 : longest(&wp->trie, at ? wp->prefix_node : 0, text + at, length - at, &size);
        if (id < 0) {
            ids->count = before;
            return add_unknown(t, text, length, ids);
        }
        if (!tarn__ids_add(ids, id))
            return false;
    }
    return true;
}

const tarn__tokenizer_kind tarn__kind_wordpiece = {"wordpiece", tarn__pipeline_encode, encode_wordpiece};

/* Pieces that continue a word are in the same trie, below the prefix's node; 0: there are none. */
bool tarn__wordpiece_finish(tarn_tokenizer *t)
{
    tarn__wordpiece *wp = &t->wordpiece;
    if (!tarn__trie_build(&wp->trie, &t->vocab, NULL, NULL))
        return false;
    uint32_t node = 0;
    for (size_t i = 0; i < wp->prefix_length && (i == 0 || node); i++)
        node = tarn__trie_next(&wp->trie, node, (unsigned char)wp->prefix[i]);
    wp->prefix_node = node;
    return true;
}

void tarn__wordpiece_free(tarn__wordpiece *wp)
{
    tarn__release(wp->prefix, wp->prefix_length + 1);
    tarn__buffer_free(&wp->trie, sizeof(tarn__trie_node));
    *wp = (tarn__wordpiece){0};
}

/* ---- WordLevel --------------------------------------------------------------------------------------------------- */

/* The whole word is a piece, or unknown. */
static bool encode_words(const tarn_tokenizer *t, tarn__encoder *encoder, const char *text, size_t length,
                         tarn__buffer *ids)
{
    int32_t id = tarn__vocab_find(&t->vocab, text, length);
    (void)encoder;
    return id >= 0 && !t->vocab.piece[id].outside ? tarn__ids_add(ids, id) : add_unknown(t, text, length, ids);
}

const tarn__tokenizer_kind tarn__kind_words = {"words", tarn__pipeline_encode, encode_words};
