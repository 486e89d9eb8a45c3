/* trie.c: the tokens of a vocabulary by their bytes, as a trie in depth-first order: a mask is one pass over an array,
 * which skips the subtree of a prefix that no text can begin with. Tokens without bytes (special ones, unknown) are
 * never in a mask; those that end a text are listed apart. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_TOKEN_BYTES UINT16_MAX /* depths are stored in 16 bits */

/* ---- the bytes of tokens ----------------------------------------------------------------------------------------- */

/* Appends what a token adds to a text that continues another. A pipeline's token has fixed bytes if decoding it twice
 * gives them twice. False with an error. index 1: tokens at the beginning of a text may lose a space, which would not
 * be their usual bytes. */
static bool add_decoded(const tarn_tokenizer *t, int32_t id, tarn__buffer *bytes)
{
    tarn__decode_state state = {.index = 1};
    size_t begin = bytes->count;
    bool good = tarn__pipeline_decode(t, &state, id, bytes);
    size_t middle = bytes->count;
    good = good && tarn__pipeline_decode(t, &state, id, bytes);
    if (good && (bytes->count - middle != middle - begin ||
                 (middle > begin && memcmp(bytes->data + begin, bytes->data + middle, middle - begin) != 0)))
        good =
            tarn__raise(TARN_ERROR_FORMAT,
                        "the text of token %d depends on its neighbours; grammars need a tokenizer whose tokens have "
                        "fixed bytes",
                        (int)id);
    bytes->count = middle;
    tarn__decode_state_free(&state);
    return good;
}

/* Special tokens have a text that a message must not produce; an unknown token stands for no text. */
static bool is_text(const tarn_tokenizer *t, int32_t id)
{
    return tarn__vocab_has(&t->vocab, id) && !tarn_tokenizer_is_special(t, id) && id != t->unknown &&
           id != t->bpe.unknown && id != t->unigram.unknown;
}

/* A vocabulary that is larger than the tokenizer's, as models pad theirs, has tokens without bytes at its end. */
static bool add_tokens(tarn_grammar_vocab *v, const tarn_tokenizer *t)
{
    int64_t count = tarn_tokenizer_count(t) < v->size ? tarn_tokenizer_count(t) : v->size;
    bool is_pieces = tarn__decodes_pieces(t), good = true;
    for (int64_t id = 0; id < v->size; id++) {
        if (good && id < count && is_text(t, (int32_t)id)) {
            size_t length;
            const char *piece = tarn__decoded_bytes(t, (int32_t)id, &length);
            good = is_pieces ? length == 0 || tarn__buffer_add(&v->bytes, piece, length, 1)
                             : add_decoded(t, (int32_t)id, &v->bytes);
        }
        if (good && v->bytes.count > UINT32_MAX)
            good = tarn__raise(TARN_ERROR_FORMAT, "the tokens have more than 4 GiB");
        v->offsets[id + 1] = (uint32_t)v->bytes.count;
    }
    return good;
}

/* ---- the trie ---------------------------------------------------------------------------------------------------- */

/* A token to sort. The first bytes are compared as a number: most pairs differ there. */
typedef struct entry {
    uint64_t prefix;
    const uint8_t *bytes;
    uint32_t length;
    int32_t token;
} entry;

/* Prefixes come before what they begin; equal texts in the order of their ids. */
static int by_bytes(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->prefix != y->prefix)
        return x->prefix < y->prefix ? -1 : 1;
    int order = memcmp(x->bytes, y->bytes, x->length < y->length ? x->length : y->length);
    if (order)
        return order;
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* Eight bytes, most significant first, so that numbers compare as bytes do; short tokens are filled with zeros, and the
 * lengths decide. */
static entry entry_of(const tarn_grammar_vocab *v, int32_t token)
{
    entry e = {.bytes = (const uint8_t *)v->bytes.data + v->offsets[token],
               .length = v->offsets[token + 1] - v->offsets[token],
               .token = token};
    for (uint32_t i = 0; i < 8; i++)
        e.prefix = e.prefix << 8 | (i < e.length ? e.bytes[i] : 0);
    return e;
}

/* Adds a token after all smaller ones; path[d] is the node of the first d bytes of the last token. */
static bool add_token(tarn_grammar_vocab *v, const entry *last, const entry *e, uint32_t *path)
{
    uint32_t shared = 0;
    while (last && shared < last->length && shared < e->length && last->bytes[shared] == e->bytes[shared])
        shared++;
    if (last && last->length == e->length && shared == e->length) {
        ((tarn__token_node *)(void *)v->nodes.data)[path[shared]].is_twin = true;
        return tarn__buffer_add(&v->twins, &(tarn__token_twin){path[shared], e->token}, 1, sizeof(tarn__token_twin));
    }
    for (uint32_t d = shared + 1; last && d <= last->length; d++)
        ((tarn__token_node *)(void *)v->nodes.data)[path[d]].end = (uint32_t)v->nodes.count;
    for (uint32_t d = shared; d < e->length; d++) {
        tarn__token_node node = {
            .token = d + 1 == e->length ? e->token : -1, .depth = (uint16_t)(d + 1), .byte = e->bytes[d]};
        path[d + 1] = (uint32_t)v->nodes.count;
        if (!tarn__buffer_add(&v->nodes, &node, 1, sizeof(node)))
            return false;
    }
    v->max_depth = e->length > v->max_depth ? e->length : v->max_depth;
    return true;
}

/* Tokens are added in their order, so nodes are appended in depth-first order and `end` is known when a branch is
 * left. */
static bool build_trie(tarn_grammar_vocab *v)
{
    size_t count = 0, path_bytes = sizeof(uint32_t) * (MAX_TOKEN_BYTES + 1), bytes = sizeof(entry) * (size_t)v->size;
    entry *entries = tarn__alloc(bytes);
    uint32_t *path = tarn__alloc(path_bytes);
    bool good =
        !tarn_failed() && tarn__buffer_add(&v->nodes, &(tarn__token_node){.token = -1}, 1, sizeof(tarn__token_node));
    for (int32_t id = 0; good && id < v->size; id++) {
        uint32_t length = v->offsets[id + 1] - v->offsets[id];
        if (length > 0 && length <= MAX_TOKEN_BYTES)
            entries[count++] = entry_of(v, id);
    }
    if (good && count)
        qsort(entries, count, sizeof(*entries), by_bytes);
    for (size_t i = 0; good && i < count; i++)
        good = add_token(v, i ? &entries[i - 1] : NULL, &entries[i], path);
    if (good) {
        tarn__token_node *nodes = (tarn__token_node *)(void *)v->nodes.data;
        for (size_t i = 0; i < v->nodes.count; i++)
            if (nodes[i].end == 0) /* on the path of the last token */
                nodes[i].end = (uint32_t)v->nodes.count;
    }
    tarn__release(entries, bytes);
    tarn__release(path, path_bytes);
    return good;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* Once each; an id outside the mask is left out, as tokenizers may have none (-1). */
static bool add_eos(tarn_grammar_vocab *v, int32_t id)
{
    if (id < 0 || id >= v->size)
        return true;
    for (size_t i = 0; i < v->eos.count; i++)
        if (((const int32_t *)(const void *)v->eos.data)[i] == id)
            return true;
    return tarn__ids_add(&v->eos, id);
}

/* Without a list the tokenizer's own: end of turn and end of text may differ. */
static bool add_all_eos(tarn_grammar_vocab *v, const tarn_tokenizer *t, const tarn_grammar_vocab_options *o)
{
    if (!o->eos)
        return add_eos(v, tarn_tokenizer_eos(t)) && add_eos(v, tarn_tokenizer_end_of_text(t));
    for (int i = 0; i < o->eos_count; i++)
        if (o->eos[i] < 0 || o->eos[i] >= v->size)
            return tarn__raise(TARN_ERROR_ARGUMENT, ".eos[%d] is %d; it must be from 0 to %lld", i, (int)o->eos[i],
                               (long long)v->size - 1);
        else if (!add_eos(v, o->eos[i]))
            return false;
    return true;
}

/* Also for a vocabulary whose construction failed: what was not made is NULL or empty. */
static void destroy(tarn_grammar_vocab *v)
{
    tarn__buffer_free(&v->nodes, sizeof(tarn__token_node));
    tarn__buffer_free(&v->twins, sizeof(tarn__token_twin));
    tarn__buffer_free(&v->bytes, 1);
    tarn__buffer_free(&v->eos, sizeof(int32_t));
    tarn__release(v->offsets, sizeof(*v->offsets) * (size_t)(v->size + 1));
    tarn__release(v, sizeof(*v));
}

/* `options_size` is that of the caller's struct, which may be older and shorter: what it lacks is 0. */
tarn_grammar_vocab *tarn_grammar_vocab_new_sized(const tarn_tokenizer *tokenizer,
                                                 const tarn_grammar_vocab_options *options, size_t options_size)
{
    const char *function = "grammar_vocab_new";
    tarn_grammar_vocab_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    if (tarn_failed())
        return NULL;
    if (!tokenizer || o.vocab_size < 0 || o.vocab_size > INT32_MAX || o.eos_count < 0) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the tokenizer is NULL, or .vocab_size or .eos_count is out of range",
                    function);
        return NULL;
    }
    tarn_grammar_vocab *v = tarn__alloc(sizeof(*v));
    if (!v)
        return NULL;
    v->size = o.vocab_size ? o.vocab_size : tarn_tokenizer_count(tokenizer);
    v->words = TARN_MASK_WORDS(v->size);
    v->references = 1;
    v->offsets = tarn__alloc(sizeof(*v->offsets) * (size_t)(v->size + 1));
    if (v->offsets && add_tokens(v, tokenizer) && build_trie(v) && add_all_eos(v, tokenizer, &o))
        return v;
    tarn__raise_within(function);
    destroy(v);
    return NULL;
}

int64_t tarn_grammar_vocab_size(const tarn_grammar_vocab *vocab)
{
    if (tarn_failed())
        return -1;
    if (!vocab)
        tarn__raise(TARN_ERROR_ARGUMENT, "grammar_vocab_size: the vocabulary is NULL");
    return vocab ? vocab->size : -1;
}

void tarn_grammar_vocab_free(tarn_grammar_vocab *vocab)
{
    if (vocab && --vocab->references == 0)
        destroy(vocab);
}
