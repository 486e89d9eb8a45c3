/* matcher.c: compiled grammars and the texts that follow them.
 *
 * A grammar is shared: its network is immutable, its tables of sets and masks grow under its lock. A matcher is a list
 * of sets, the position after each accepted token; rolling back shortens it. Matchers hold a reference to their
 * grammar, grammars to their vocabulary, and references are counted atomically, so they can be freed in any order. One
 * matcher is for one thread at a time. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar/schema.h"

/* ---- grammars ---------------------------------------------------------------------------------------------------- */

/* The last reference is gone, so nobody can hold the lock. */
static void destroy(tarn_grammar *g)
{
    tarn__masks_free(&g->masks);
    tarn__sets_close(&g->sets);
    tarn__rtn_free(&g->rtn);
    tarn_grammar_vocab_free(g->vocab);
    pthread_mutex_destroy(&g->lock);
    tarn__release(g, sizeof(*g));
}

/* The grammar takes a reference to `vocab`. An error of the front end is pending here and passes through, with the
 * function's name. */
tarn_grammar *tarn__grammar_compile(const char *function, tarn_grammar_vocab *vocab, tarn__gb *gb)
{
    tarn_grammar *g = tarn_failed() ? NULL : tarn__alloc(sizeof(*g));
    if (g) {
        pthread_mutex_init(&g->lock, NULL);
        g->references = 1;
        g->sets_limit = TARN__G_SETS_BYTES;
        g->vocab = vocab;
        if (vocab)
            vocab->references++;
        bool good = tarn__rtn_build(&g->rtn, gb, function) && tarn__sets_open(&g->sets, &g->rtn);
        if (good && g->sets.start == TARN__SET_DEAD)
            good = tarn__raise(TARN_ERROR_FORMAT, "%s: the grammar is too ambiguous: a text can begin in too many ways",
                               function);
        if (!good) {
            destroy(g);
            g = NULL;
        }
    }
    tarn__gb_close(gb);
    if (!g)
        tarn__raise_within(function);
    return g;
}

/* Checks the text of a grammar and opens a builder. */
static bool begin(const char *function, const char *text, size_t length, tarn__gb *gb)
{
    if (tarn_failed())
        return false;
    if (!text)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the text is NULL", function);
    if (length > TARN__G_MAX_TEXT)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the text has %zu bytes; it must have at most %zu", function,
                           length, TARN__G_MAX_TEXT);
    return tarn__gb_open(gb);
}

tarn_grammar *tarn_grammar_gbnf(tarn_grammar_vocab *vocab, const char *text, size_t length)
{
    const char *function = "grammar_gbnf";
    tarn__gb gb;
    if (!begin(function, text, length, &gb))
        return NULL;
    tarn__gbnf_parse(&gb, function, text, length);
    return tarn__grammar_compile(function, vocab, &gb);
}

/* The whole text must match, unlike a schema's pattern. */
tarn_grammar *tarn_grammar_regex(tarn_grammar_vocab *vocab, const char *pattern, size_t length)
{
    const char *function = "grammar_regex";
    tarn__gb gb;
    if (!begin(function, pattern, length, &gb))
        return NULL;
    gb.root = tarn__gb_rule(&gb, NULL, 0);
    tarn__gb_rule_set(&gb, gb.root, tarn__regex_parse(&gb, function, pattern, length, false, NULL));
    return tarn__grammar_compile(function, vocab, &gb);
}

tarn_grammar *tarn_grammar_json_schema(tarn_grammar_vocab *vocab, const char *schema, size_t length)
{
    const char *function = "grammar_json_schema";
    tarn__gb gb;
    if (!begin(function, schema, length, &gb))
        return NULL;
    tarn__schema_build(&gb, function, schema, length);
    return tarn__grammar_compile(function, vocab, &gb);
}

/* The root is an object, not any value: that is what response_format json_object asks for. */
tarn_grammar *tarn_grammar_json(tarn_grammar_vocab *vocab)
{
    const char *function = "grammar_json";
    tarn__gb gb;
    if (!begin(function, "", 0, &gb))
        return NULL;
    tarn__json_rules rules = {.gb = &gb};
    gb.root = tarn__gb_rule(&gb, NULL, 0);
    tarn__gb_rule_set(&gb, gb.root, tarn__json_call(&rules, TARN__RULE_OBJECT));
    return tarn__grammar_compile(function, vocab, &gb);
}

void tarn__grammar_retain(tarn_grammar *grammar)
{
    grammar->references++;
}

void tarn_grammar_free(tarn_grammar *grammar)
{
    if (grammar && --grammar->references == 0)
        destroy(grammar);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The sets of a matcher; the pointer is good until the history grows. */
static uint32_t *history(const tarn_matcher *m)
{
    return (uint32_t *)(void *)m->history.data;
}

/* Copies the sets that matchers are at, or can roll back to, into new tables, and drops all others. False with an
 * error: nothing has changed. */
static bool collect(tarn_grammar *g)
{
    tarn__sets sets;
    size_t bytes = sizeof(uint32_t) * g->sets.sets.count;
    uint32_t *moved = tarn__alloc(bytes); /* by old number: new number + 1 */
    /* Sets of the new tables have new numbers; equal ones are found by interning, and transitions are computed again
     * when taken. */
    bool good = tarn__sets_open(&sets, &g->rtn) && moved;
    for (const tarn_matcher *m = g->matchers; good && m; m = m->next)
        for (size_t i = 0; good && i < m->history.count; i++) {
            uint32_t set = history(m)[i];
            if (!moved[set])
                moved[set] = tarn__sets_copy(&sets, &g->sets, set) + 1;
            good = moved[set] != 0; /* TARN__SET_NONE + 1 */
        }
    for (tarn_matcher *m = g->matchers; good && m; m = m->next)
        for (size_t i = 0; i < m->history.count; i++)
            history(m)[i] = moved[history(m)[i]] - 1;
    tarn__release(moved, bytes);
    tarn__sets_close(good ? &g->sets : &sets);
    if (good)
        g->sets = sets;
    return good;
}

/* Locks a grammar before its tables may grow. False, unlocked, with an error. */
static bool lock(tarn_grammar *g)
{
    pthread_mutex_lock(&g->lock);
    if (tarn__sets_bytes(&g->sets) <= g->sets_limit)
        return true;
    bool good = collect(g);
    size_t used = tarn__sets_bytes(&g->sets); /* what matchers need may itself be large: no collection at every call */
    g->sets_limit = 2 * used > TARN__G_SETS_BYTES ? 2 * used : TARN__G_SETS_BYTES;
    if (!good)
        pthread_mutex_unlock(&g->lock);
    return good;
}

/* ---- matchers ---------------------------------------------------------------------------------------------------- */

/* False also while an error is pending: public functions do nothing then. */
static bool check(const char *function, const tarn_matcher *matcher)
{
    if (tarn_failed())
        return false;
    return matcher || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the matcher is NULL", function);
}

/* Enters a matcher into the grammar's list; the lock is held. */
static void enter(tarn_grammar *g, tarn_matcher *m)
{
    m->grammar = g;
    m->next = g->matchers;
    if (m->next)
        m->next->previous = m;
    g->matchers = m;
    tarn__grammar_retain(g);
}

tarn_matcher *tarn_matcher_new(tarn_grammar *grammar)
{
    if (tarn_failed())
        return NULL;
    if (!grammar) {
        tarn__raise(TARN_ERROR_ARGUMENT, "matcher_new: the grammar is NULL");
        return NULL;
    }
    tarn_matcher *m = tarn__alloc(sizeof(*m));
    if (!m)
        return NULL;
    if (!tarn__buffer_reserve(&m->history, 1, sizeof(uint32_t))) {
        tarn__release(m, sizeof(*m));
        return NULL;
    }
    pthread_mutex_lock(&grammar->lock);
    /* Under the lock, since a collection renumbers the start too. */
    history(m)[m->history.count++] = grammar->sets.start;
    enter(grammar, m);
    pthread_mutex_unlock(&grammar->lock);
    return m;
}

/* The same position with a history of its own. */
tarn_matcher *tarn_matcher_clone(const tarn_matcher *matcher)
{
    if (!check("matcher_clone", matcher))
        return NULL;
    tarn_matcher *m = tarn__alloc(sizeof(*m));
    if (!m)
        return NULL;
    pthread_mutex_lock(&matcher->grammar->lock);
    bool good = tarn__buffer_add(&m->history, matcher->history.data, matcher->history.count, sizeof(uint32_t));
    if (good)
        enter(matcher->grammar, m);
    pthread_mutex_unlock(&matcher->grammar->lock);
    if (good)
        return m;
    tarn__release(m, sizeof(*m));
    return NULL;
}

/* The grammar is released after the lock, which may go with it. */
void tarn_matcher_free(tarn_matcher *matcher)
{
    if (!matcher)
        return;
    tarn_grammar *g = matcher->grammar;
    pthread_mutex_lock(&g->lock);
    if (matcher->previous)
        matcher->previous->next = matcher->next;
    else
        g->matchers = matcher->next;
    if (matcher->next)
        matcher->next->previous = matcher->previous;
    pthread_mutex_unlock(&g->lock);
    tarn__buffer_free(&matcher->history, sizeof(uint32_t));
    tarn__release(matcher, sizeof(*matcher));
    tarn_grammar_free(g);
}

/* The current set; the lock is held. */
static uint32_t current(const tarn_matcher *m)
{
    return history(m)[m->history.count - 1];
}

bool tarn_matcher_mask(tarn_matcher *matcher, uint32_t *mask, int64_t words)
{
    const char *function = "matcher_mask";
    if (!check(function, matcher))
        return false;
    tarn_grammar *g = matcher->grammar;
    if (!g->vocab || !mask || words != g->vocab->words)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           !g->vocab ? "the grammar was compiled without a vocabulary"
                           : mask    ? "words does not match the vocabulary"
                                     : "the mask is NULL");
    if (!lock(g))
        return tarn__raise_within(function);
    const uint32_t *found = tarn__mask_of(g, current(matcher));
    if (found)
        memcpy(mask, found, sizeof(*mask) * (size_t)words);
    /* EOS tokens are not part of stored masks: whether a text may end depends on the whole stack. */
    bool may_end = tarn__sets_at(&g->sets, current(matcher))->accepts;
    pthread_mutex_unlock(&g->lock);
    for (size_t i = 0; found && may_end && i < g->vocab->eos.count; i++) {
        int32_t id = ((const int32_t *)(const void *)g->vocab->eos.data)[i];
        mask[id / 32] |= 1u << (id % 32);
    }
    return found || tarn__raise_within(function);
}

/* The set after bytes; the lock is held. TARN__SET_NONE with an error. */
static uint32_t step_bytes(tarn_grammar *g, uint32_t set, const char *bytes, size_t length)
{
    uint32_t height = UINT32_MAX;
    for (size_t i = 0; i < length && set != TARN__SET_DEAD && set != TARN__SET_NONE; i++)
        set = tarn__sets_step(&g->sets, set, g->rtn.classes[(uint8_t)bytes[i]], &height);
    return set;
}

/* Appends a set to the history unless it is dead. The lock is held, and released here. */
static bool advance(tarn_matcher *m, uint32_t set)
{
    bool good = set != TARN__SET_DEAD && set != TARN__SET_NONE && tarn__buffer_add(&m->history, &set, 1, sizeof(set));
    pthread_mutex_unlock(&m->grammar->lock);
    return good;
}

/* All or nothing: the bytes are one entry of the history, and bytes that do not fit leave the matcher as it was. */
bool tarn_matcher_accept_bytes(tarn_matcher *matcher, const char *bytes, size_t length)
{
    const char *function = "matcher_accept_bytes";
    if (!check(function, matcher))
        return false;
    if (!bytes && length)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: bytes is NULL", function);
    if (!lock(matcher->grammar))
        return tarn__raise_within(function);
    bool good = advance(matcher, step_bytes(matcher->grammar, current(matcher), bytes, length));
    return good || (tarn_failed() && tarn__raise_within(function));
}

static bool is_eos(const tarn_grammar_vocab *v, int32_t token)
{
    for (size_t i = 0; i < v->eos.count; i++)
        if (((const int32_t *)(const void *)v->eos.data)[i] == token)
            return true;
    return false;
}

bool tarn__grammar_is_eos(const tarn_grammar *grammar, int32_t token)
{
    return grammar->vocab && is_eos(grammar->vocab, token);
}

/* A token with text that is also EOS, as in vocabularies of bytes, ends the text where it may end. */
bool tarn_matcher_accept(tarn_matcher *matcher, int32_t token)
{
    const char *function = "matcher_accept";
    if (!check(function, matcher))
        return false;
    tarn_grammar *g = matcher->grammar;
    const tarn_grammar_vocab *v = g->vocab;
    if (!v || token < 0 || token >= v->size)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           v ? "the token is outside the vocabulary" : "the grammar was compiled without a vocabulary");
    if (!lock(g))
        return tarn__raise_within(function);
    uint32_t set = current(matcher);
    size_t length = v->offsets[token + 1] - v->offsets[token];
    if (is_eos(v, token) && tarn__sets_at(&g->sets, set)->accepts)
        set = TARN__SET_ENDED;
    else
        set = length ? step_bytes(g, set, v->bytes.data + v->offsets[token], length) : TARN__SET_DEAD;
    return advance(matcher, set) || (tarn_failed() && tarn__raise_within(function));
}

bool tarn_matcher_may_end(const tarn_matcher *matcher)
{
    if (!check("matcher_may_end", matcher))
        return false;
    pthread_mutex_lock(&matcher->grammar->lock);
    bool may_end = tarn__sets_at(&matcher->grammar->sets, current(matcher))->accepts;
    pthread_mutex_unlock(&matcher->grammar->lock);
    return may_end;
}

/* No configuration waits for a byte: only an EOS token can follow, or nothing. */
bool tarn_matcher_is_done(const tarn_matcher *matcher)
{
    if (!check("matcher_is_done", matcher))
        return false;
    pthread_mutex_lock(&matcher->grammar->lock);
    bool is_done = tarn__sets_at(&matcher->grammar->sets, current(matcher))->count == 0;
    pthread_mutex_unlock(&matcher->grammar->lock);
    return is_done;
}

/* `count` accepted tokens or runs of bytes; the first entry, the start, stays. */
bool tarn_matcher_rollback(tarn_matcher *matcher, int64_t count)
{
    if (!check("matcher_rollback", matcher))
        return false;
    if (count < 0 || (uint64_t)count >= matcher->history.count)
        return tarn__raise(TARN_ERROR_ARGUMENT, "matcher_rollback: count is %lld; it must be from 0 to %lld",
                           (long long)count, (long long)matcher->history.count - 1);
    pthread_mutex_lock(&matcher->grammar->lock);
    matcher->history.count -= (size_t)count;
    pthread_mutex_unlock(&matcher->grammar->lock);
    return true;
}
