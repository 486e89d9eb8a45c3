/* bpe_train.c: training a byte-level BPE.
 *
 * Only distinct words matter, with their counts. A pair of adjacent symbols has its count and the words it may be in; a
 * heap finds the most frequent pair. Merging it changes those words, and the counts of the pairs next to it. Heap
 * entries go stale when a count changes: one popped with an old count is pushed again with the new one.
 *
 * Deterministic: equal counts are decided by ids or bytes (tarn_bpe_ties), never by the order of hash tables or
 * heaps. */
#include <limits.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/shards/shards.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_TOKENS (1 << 24)
#define END_OF_TEXT "<|endoftext|>"

/* Two adjacent symbols. */
typedef struct pair {
    int32_t left, right;
    int64_t count;
    tarn__buffer words; /* uint32_t: words it is or was in, perhaps twice */
    uint32_t touched;   /* the last merge that raised its count */
} pair;

/* An entry of the heap: a pair, and its count when it was pushed. */
typedef struct candidate {
    int64_t count;
    size_t pair; /* index in trainer.pairs */
} candidate;

/* A distinct word: its current symbols and how often it occurs. */
typedef struct word {
    size_t begin; /* offset of its symbols */
    uint32_t length;
    uint32_t seen; /* the last merge that visited it */
    int64_t count;
} word;

typedef struct trainer {
    const char *function; /* for errors */
    tarn_tokenizer *tokenizer;
    tarn_bpe_options options;
    tarn__encoder encoder;
    tarn__vocab spelling; /* distinct words by index */
    tarn__buffer words;   /* word */
    tarn__buffer symbols; /* int32_t: of all words */
    tarn__buffer pairs;   /* pair */
    size_t *slot;         /* hash table of pair index + 1, by tokens; 0: free */
    size_t slots;
    tarn__buffer heap;    /* candidate */
    tarn__buffer touched; /* size_t: pairs whose counts the current merge raised */
} trainer;

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* Counts a word (tarn__word_fn). */
static bool count_word(const char *text, size_t length, void *ctx)
{
    trainer *t = ctx;
    int32_t number = tarn__vocab_find(&t->spelling, text, length);
    if (number >= 0) {
        ((word *)(void *)t->words.data)[number].count++;
        return true;
    }
    if (length > UINT32_MAX || t->words.count >= INT32_MAX)
        return tarn__raise(TARN_ERROR_UNSUPPORTED, "bpe_train: too many distinct words, or one too long");
    const word added = {.length = (uint32_t)length, .count = 1};
    return tarn__vocab_add(&t->spelling, (int32_t)t->words.count, text, length, false) &&
           tarn__buffer_add(&t->words, &added, 1, sizeof(added));
}

/* Counts the words of a text (tarn__document_fn). Special tokens separate words and are not trained on. */
static bool count_text(void *ctx, const char *text, size_t length)
{
    trainer *t = ctx;
    size_t done = 0, at;
    const tarn__added_token *token;
    while ((token = tarn__added_next(&t->tokenizer->added, false, true, text, length, done, &at)) != NULL) {
        if (!tarn__bpe_pretokenize(t->tokenizer, &t->encoder, text + done, at - done, count_word, t))
            return false;
        done = at + token->length;
    }
    return tarn__bpe_pretokenize(t->tokenizer, &t->encoder, text + done, length - done, count_word, t);
}

/* Writes the initial symbols of every word: its bytes. */
static bool spell_words(trainer *t)
{
    word *words = (word *)(void *)t->words.data;
    for (size_t i = 0; i < t->words.count; i++) {
        size_t length;
        const char *bytes = tarn__vocab_bytes(&t->spelling, (int32_t)i, &length);
        words[i].begin = t->symbols.count;
        if (!tarn__buffer_reserve(&t->symbols, length, sizeof(int32_t)))
            return false;
        for (size_t k = 0; k < length; k++)
            tarn__ids_add(&t->symbols, t->tokenizer->bpe.byte_id[(unsigned char)bytes[k]]);
    }
    return true;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

/* Valid until the next pair is added. */
static pair *pair_at(const trainer *t, size_t index)
{
    return &((pair *)(void *)t->pairs.data)[index];
}

/* The slot of a pair, or the free slot where it belongs. */
static size_t slot_of(const trainer *t, const size_t *slot, size_t slots, int32_t left, int32_t right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15);
    size_t at = (size_t)(hash >> 32 ^ hash) & (slots - 1);
    while (slot[at] && (pair_at(t, slot[at] - 1)->left != left || pair_at(t, slot[at] - 1)->right != right))
        at = (at + 1) & (slots - 1);
    return at;
}

/* At most half full; every pair is entered again, as the table has numbers only. */
static bool grow_slots(trainer *t)
{
    if (2 * (t->pairs.count + 1) <= t->slots)
        return true;
    size_t slots = t->slots ? 2 * t->slots : 4096, *slot = tarn__alloc(slots * sizeof(*slot));
    if (!slot)
        return false;
    for (size_t i = 0; i < t->pairs.count; i++)
        slot[slot_of(t, slot, slots, pair_at(t, i)->left, pair_at(t, i)->right)] = i + 1;
    tarn__release(t->slot, t->slots * sizeof(*slot));
    t->slot = slot;
    t->slots = slots;
    return true;
}

/* Changes the count of a pair. A raised count records the word `in` and marks the pair as touched by this merge; a
 * lowered one records nothing, since stale heap entries are detected when popped. */
static bool change_count(trainer *t, int32_t left, int32_t right, int64_t by, uint32_t in, uint32_t merge)
{
    if (!grow_slots(t))
        return false;
    size_t at = slot_of(t, t->slot, t->slots, left, right);
    if (!t->slot[at]) {
        const pair added = {.left = left, .right = right};
        if (!tarn__buffer_add(&t->pairs, &added, 1, sizeof(added)))
            return false;
        t->slot[at] = t->pairs.count;
    }
    size_t index = t->slot[at] - 1;
    pair *p = pair_at(t, index);
    p->count += by;
    if (by < 0)
        return true;
    if (p->touched != merge && !tarn__buffer_add(&t->touched, &index, 1, sizeof(index)))
        return false;
    p->touched = merge;
    const uint32_t *words = (const uint32_t *)(const void *)p->words.data;
    return (p->words.count > 0 && words[p->words.count - 1] == in) || tarn__buffer_add(&p->words, &in, 1, sizeof(in));
}

/* ---- the heap ---------------------------------------------------------------------------------------------------- */

/* Compares two tokens as byte strings; a prefix comes first. */
static int compare_bytes(const trainer *t, int32_t a, int32_t b)
{
    size_t first, second;
    const char *one = tarn__vocab_bytes(&t->tokenizer->vocab, a, &first),
               *other = tarn__vocab_bytes(&t->tokenizer->vocab, b, &second);
    int order = memcmp(one, other, first < second ? first : second);
    return order ? order : (first > second) - (first < second);
}

/* The order of merging: highest count, then the rule for ties. */
static bool is_before(const trainer *t, candidate a, candidate b)
{
    const pair *one = pair_at(t, a.pair), *other = pair_at(t, b.pair);
    if (a.count != b.count)
        return a.count > b.count;
    if (t->options.ties == TARN_BPE_LOWER_IDS)
        return one->left != other->left ? one->left < other->left : one->right < other->right;
    int order = compare_bytes(t, one->left, other->left);
    return (order ? order : compare_bytes(t, one->right, other->right)) > 0;
}

/* A binary heap in an array. */
static bool push(trainer *t, candidate added)
{
    if (!tarn__buffer_reserve(&t->heap, 1, sizeof(added)))
        return false;
    candidate *all = (candidate *)(void *)t->heap.data;
    size_t at = t->heap.count++;
    for (; at > 0 && is_before(t, added, all[(at - 1) / 2]); at = (at - 1) / 2)
        all[at] = all[(at - 1) / 2];
    all[at] = added;
    return true;
}

/* Removes the first candidate; the heap is not empty. */
static candidate pop(trainer *t)
{
    candidate *all = (candidate *)(void *)t->heap.data, first = all[0], last = all[--t->heap.count];
    size_t at = 0, child;
    for (; (child = 2 * at + 1) < t->heap.count; at = child) {
        child += child + 1 < t->heap.count && is_before(t, all[child + 1], all[child]);
        if (!is_before(t, all[child], last))
            break;
        all[at] = all[child];
    }
    all[at] = last;
    return first;
}

/* Pushes every pair touched by the last merge, with its new count. */
static bool push_touched(trainer *t)
{
    const size_t *touched = (const size_t *)(const void *)t->touched.data;
    for (size_t i = 0; i < t->touched.count; i++)
        if (pair_at(t, touched[i])->count > 0 && !push(t, (candidate){pair_at(t, touched[i])->count, touched[i]}))
            return false;
    t->touched.count = 0;
    return true;
}

/* Pops the most frequent pair. False: none reaches min_frequency, or an error. */
static bool take_best(trainer *t, size_t *best)
{
    int64_t min_count = t->options.min_frequency > 1 ? t->options.min_frequency : 1;
    while (t->heap.count > 0 && !tarn_failed()) {
        candidate c = pop(t);
        int64_t now = pair_at(t, c.pair)->count;
        *best = c.pair;
        if (c.count == now)
            return now >= min_count;
        if (now > 0 && !push(t, (candidate){now, c.pair}))
            return false;
    }
    return false;
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Merges all occurrences of a pair in a word, in place, and adjusts the counts of the pairs to the left and right of
 * each. */
static bool merge_in_word(trainer *t, uint32_t number, int32_t left, int32_t right, int32_t merged, uint32_t merge)
{
    word *w = &((word *)(void *)t->words.data)[number];
    int32_t *symbol = (int32_t *)(void *)t->symbols.data + w->begin;
    uint32_t length = 0, at = 0;
    bool good = true;
    for (; good && at < w->length; length++) {
        bool is_match = at + 1 < w->length && symbol[at] == left && symbol[at + 1] == right;
        if (is_match && length > 0)
            good = change_count(t, symbol[length - 1], left, -w->count, number, merge) &&
                   change_count(t, symbol[length - 1], merged, w->count, number, merge);
        if (is_match && at + 2 < w->length)
            good = good && change_count(t, right, symbol[at + 2], -w->count, number, merge) &&
                   change_count(t, merged, symbol[at + 2], w->count, number, merge);
        symbol[length] = is_match ? merged : symbol[at];
        at += is_match ? 2 : 1;
    }
    w->length = length;
    return good;
}

/* Merges a pair in all words it may be in. A word is visited once per merge, though it may be listed twice. */
static bool merge_everywhere(trainer *t, size_t index, int32_t merged, uint32_t merge)
{
    pair p = *pair_at(t, index); /* a copy: the array may be reallocated */
    pair_at(t, index)->words = (tarn__buffer){0};
    const uint32_t *in = (const uint32_t *)(const void *)p.words.data;
    word *words = (word *)(void *)t->words.data;
    bool good = true;
    for (size_t i = 0; good && i < p.words.count; i++)
        if (words[in[i]].seen != merge) {
            words[in[i]].seen = merge;
            good = merge_in_word(t, in[i], p.left, p.right, merged, merge);
        }
    tarn__buffer_free(&p.words, sizeof(uint32_t));
    pair_at(t, index)->count = 0; /* no occurrence remains */
    return good && push_touched(t);
}

/* The id of a merged pair: an existing token if another pair has already given the same bytes. -1 with an error. */
static int32_t add_token(trainer *t, const pair *p)
{
    tarn__vocab *vocab = &t->tokenizer->vocab;
    size_t left, right;
    const char *first = tarn__vocab_bytes(vocab, p->left, &left), *second = tarn__vocab_bytes(vocab, p->right, &right);
    char *both = tarn__alloc(left + right);
    if (!both)
        return -1;
    memcpy(both, first, left);
    memcpy(both + left, second, right);
    int32_t id = tarn__vocab_find(vocab, both, left + right);
    if (id < 0 || vocab->piece[id].literal) {
        id = vocab->count;
        id = tarn__vocab_add(vocab, id, both, left + right, false) ? id : -1;
    }
    tarn__release(both, left + right);
    return id;
}

/* Counts the initial pairs (merge 1), then merges the most frequent pair until the vocabulary is full. */
static bool train(trainer *t, int64_t vocabulary)
{
    const word *words = (const word *)(const void *)t->words.data;
    const int32_t *symbols = (const int32_t *)(const void *)t->symbols.data;
    for (size_t i = 0; i < t->words.count; i++)
        for (uint32_t k = 0; k + 1 < words[i].length; k++)
            if (!change_count(t, symbols[words[i].begin + k], symbols[words[i].begin + k + 1], words[i].count,
                              (uint32_t)i, 1))
                return false;
    if (!push_touched(t))
        return false;
    size_t best;
    for (uint32_t merge = 2; t->tokenizer->vocab.count < vocabulary && take_best(t, &best); merge++) {
        pair p = *pair_at(t, best);
        int32_t merged = add_token(t, &p);
        bool known = tarn__bpe_find(&t->tokenizer->bpe, p.left, p.right) != NULL;
        if (merged < 0 || (!known && !tarn__bpe_add(&t->tokenizer->bpe, (tarn__merge){p.left, p.right, merged})) ||
            !merge_everywhere(t, best, merged, merge))
            return false;
    }
    return !tarn_failed();
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* True if the escaped form of a text is the text itself: visible ASCII. */
static bool is_visible(const char *text)
{
    while (*text >= '!' && *text <= '~')
        text++;
    return *text == 0;
}

/* Raises an error for a special token whose text is also the escaped form of ordinary bytes: a reader of the file could
 * not tell them apart. */
static bool check_special(const trainer *t, int number, const char *text, size_t length)
{
    size_t count = 0;
    if (tarn__utf8_prefix(text, length) != length)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: special token %d is not valid UTF-8", t->function, number);
    char *bytes = tarn__alloc(length);
    if (!bytes)
        return false;
    bool is_escaped = tarn__unicode_to_bytes(bytes, &count, text, length);
    tarn__release(bytes, length);
    return !is_escaped || (count > 1 && count == length) ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: special token %d, '%.100s', is how a tokenizer's file writes %s; choose another, such as "
                       "<|%.100s|>",
                       t->function, number, text, count == 1 ? "a single byte" : "ordinary bytes", text);
}

/* <|endoftext|> unless the options say otherwise; special tokens have the first ids, the bytes the next. */
static bool add_special(trainer *t)
{
    static const char *const usual[] = {END_OF_TEXT};
    const char *const *special = t->options.special ? t->options.special : usual;
    int count = t->options.no_special ? 0 : t->options.special ? t->options.special_count : 1;
    for (int i = 0; i < count; i++) {
        if (!special[i] || !special[i][0])
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: special token %d is NULL or empty", t->function, i);
        char *text = (char *)(uintptr_t)special[i]; /* copied, not changed */
        const tarn__added_token token = {.text = text, .length = strlen(text), .id = i, .special = true};
        if (!check_special(t, i, text, token.length) ||
            !tarn__vocab_add(&t->tokenizer->vocab, i, text, token.length, !is_visible(text)) ||
            !tarn__added_add(t->tokenizer, t->function, "special", &token))
            return false;
    }
    return true;
}

/* Creates the tokenizer with its special tokens and the 256 bytes, and compiles the pattern. */
static bool init(trainer *t)
{
    t->tokenizer = tarn__tokenizer_new(&tarn__kind_bpe);
    if (!t->tokenizer || !add_special(t))
        return false;
    tarn__vocab *vocab = &t->tokenizer->vocab;
    for (int rank = 0; rank < 256; rank++)
        if (!tarn__vocab_add(vocab, vocab->count, &(char){(char)tarn__byte_of_rank(rank)}, 1, false))
            return false;
    tarn__bpe *bpe = &t->tokenizer->bpe;
    bpe->regex[0] = tarn__regex_new(t->function, "options", t->options.pattern ? t->options.pattern : TARN__REGEX_GPT2);
    bpe->regex_count = bpe->regex[0] != NULL;
    bpe->uses_regex = bpe->regex[0] && strcmp(tarn__regex_source(bpe->regex[0]), TARN__REGEX_GPT2) == 0;
    return bpe->regex[0] && tarn__tokenizer_finish(t->tokenizer, t->function, "special");
}

/* Frees everything but the tokenizer, which is the result. NULL with an error. */
static tarn_tokenizer *finish(trainer *t, bool good)
{
    for (size_t i = 0; i < t->pairs.count; i++)
        tarn__buffer_free(&pair_at(t, i)->words, sizeof(uint32_t));
    tarn__buffer_free(&t->pairs, sizeof(pair));
    tarn__buffer_free(&t->words, sizeof(word));
    tarn__buffer_free(&t->symbols, sizeof(int32_t));
    tarn__buffer_free(&t->heap, sizeof(candidate));
    tarn__buffer_free(&t->touched, sizeof(size_t));
    tarn__release(t->slot, t->slots * sizeof(*t->slot));
    tarn__vocab_free(&t->spelling);
    tarn__encoder_free(&t->encoder);
    if (good && tarn__tokenizer_finish(t->tokenizer, t->function, "special"))
        return t->tokenizer;
    tarn_tokenizer_free(t->tokenizer);
    return NULL;
}

/* Copies and checks the options; the vocabulary must at least hold the bytes and special tokens. */
static bool check(trainer *t, int count, int64_t vocabulary, const tarn_bpe_options *options, size_t options_size)
{
    if (tarn_failed())
        return false;
    if (options)
        memcpy(&t->options, options, options_size < sizeof(t->options) ? options_size : sizeof(t->options));
    const tarn_bpe_options *o = &t->options;
    if (count < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %d texts; at least one is required", t->function, count);
    if (o->special_count < 0 || o->special_count > 65535 || (!o->special && o->special_count) || o->min_frequency < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: special_count and min_frequency are 0 or more, and special tokens are not NULL",
                           t->function);
    if (o->ties != TARN_BPE_LOWER_IDS && o->ties != TARN_BPE_GREATER_BYTES)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: ties is %d; it must be TARN_BPE_LOWER_IDS or TARN_BPE_GREATER_BYTES", t->function,
                           (int)o->ties);
    int64_t min_count = 256 + (o->no_special ? 0 : o->special ? o->special_count : 1);
    if (vocabulary < min_count || vocabulary > MAX_TOKENS)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: a vocabulary of %lld tokens; it must be from %lld (bytes and special tokens) to %d",
                           t->function, (long long)vocabulary, (long long)min_count, MAX_TOKENS);
    return true;
}

tarn_tokenizer *tarn_bpe_train_sized(const char *const *texts, const size_t *lengths, int count, int64_t vocabulary,
                                     const tarn_bpe_options *options, size_t options_size)
{
    trainer t = {.function = "bpe_train"};
    if (!check(&t, count, vocabulary, options, options_size))
        return NULL;
    if (!texts || !lengths) {
        tarn__raise(TARN_ERROR_ARGUMENT, "bpe_train: texts or lengths is NULL");
        return NULL;
    }
    bool good = init(&t);
    for (int i = 0; good && i < count; i++)
        good = texts[i] || lengths[i] == 0 ? count_text(&t, texts[i] ? texts[i] : "", lengths[i])
                                           : tarn__raise(TARN_ERROR_ARGUMENT, "bpe_train: text %d is NULL", i);
    return finish(&t, good && spell_words(&t) && train(&t, vocabulary));
}

/* Only distinct words stay in memory: files may be larger than it. */
tarn_tokenizer *tarn_bpe_train_files_sized(const char *const *paths, int count, int64_t vocabulary,
                                           const tarn_bpe_options *options, size_t options_size)
{
    trainer t = {.function = "bpe_train_files"};
    if (!check(&t, count, vocabulary, options, options_size))
        return NULL;
    if (!paths) {
        tarn__raise(TARN_ERROR_ARGUMENT, "bpe_train_files: paths is NULL");
        return NULL;
    }
    bool good = init(&t);
    for (int i = 0; good && i < count; i++)
        good = paths[i] && paths[i][0]
                   ? tarn__each_document(t.function, paths[i], t.options.field, t.options.json_lines, count_text, &t)
                   : tarn__raise(TARN_ERROR_ARGUMENT, "bpe_train_files: path %d is NULL or empty", i);
    return finish(&t, good && spell_words(&t) && train(&t, vocabulary));
}
