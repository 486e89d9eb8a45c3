/* test_grammar.c: grammars of GBNF and regular expressions: texts that match, errors by name, masks equal to a check of
 * every token, clones and rollback. */
#include <pthread.h>
#include <tarn/grammar.h>

#include "support/files.h"
#include "text/grammar/grammar.h"

static tarn_grammar *gbnf(const char *text)
{
    tarn_grammar *g = tarn_grammar_gbnf(NULL, text, strlen(text));
    assert_ok();
    return g;
}

/* Whether a whole text matches; byte by byte, and all at once. */
static bool matches(tarn_grammar *g, const char *text, size_t length)
{
    tarn_matcher *whole = tarn_matcher_new(g), *piecewise = tarn_matcher_new(g);
    bool good = tarn_matcher_accept_bytes(whole, text, length) && tarn_matcher_may_end(whole), by_bytes = true;
    for (size_t i = 0; by_bytes && i < length; i++)
        by_bytes = tarn_matcher_accept_bytes(piecewise, text + i, 1);
    by_bytes = by_bytes && tarn_matcher_may_end(piecewise);
    assert_ok();
    assert_int_equal(good, by_bytes);
    tarn_matcher_free(whole);
    tarn_matcher_free(piecewise);
    return good;
}
#define MATCHES(g, text) matches(g, text, strlen(text))

typedef struct sample {
    const char *grammar, *good[8], *bad[8];
} sample;

static void check_samples(const sample *samples, size_t count,
                          tarn_grammar *(*compile)(tarn_grammar_vocab *, const char *, size_t))
{
    for (size_t i = 0; i < count; i++) {
        tarn_grammar *g = compile(NULL, samples[i].grammar, strlen(samples[i].grammar));
        assert_ok();
        for (int k = 0; k < 8 && samples[i].good[k]; k++)
            if (!MATCHES(g, samples[i].good[k]))
                fail_msg("%s does not match '%s'", samples[i].grammar, samples[i].good[k]);
        for (int k = 0; k < 8 && samples[i].bad[k]; k++)
            if (MATCHES(g, samples[i].bad[k]))
                fail_msg("%s matches '%s'", samples[i].grammar, samples[i].bad[k]);
        tarn_grammar_free(g);
    }
}

static void gbnf_is_followed(void **state)
{
    (void)state;
    static const sample samples[] = {
        {"root ::= \"ab\" | \"\\x41\\u00e9\\U0001F600\"", {"ab", "Aé\U0001F600"}, {"", "a", "abc", "Aé"}},
        {"root ::= [a-c]+ [^x-z\\n]", {"a!", "abcé", "cc\U0001F600"}, {"a", "ax", "a\n", "d!"}},
        {"root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2} \"d\"{,1}", {"aab", "aabbbccd", "aabd"}, {"ab", "aaab", "aabccc"}},
        {"root ::= ( \"x\" # a comment\n | y )* \"!\"\ny ::=\n \"y\" |\n\"z\"?", {"!", "xyzx!"}, {"x", "xw!"}},
        {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())", ")("}},
        {"root ::= list\nlist ::= \"a\" list | \"a\"", {"a", "aaaaaa"}, {"", "b"}},
        {"root ::= . .", {"ab", "é\n"}, {"a", "abc", "\xC3\xC3"}},
        {"root ::= ((\"a\"?)*)* \"b\"", {"b", "aab"}, {"a"}},
        {"root ::= [a\\-z] [\\]\\\\] [-b]", {"a]-", "-\\b", "z]b"}, {"b]-"}},
        {"root ::= \"a\" (\"b\" dead | \"c\")\ndead ::= \"x\" dead", {"ac"}, {"ab", "abx"}},
        {"root ::= a-1 _b2\na-1 ::= \"1\"\n_b2 ::= \"2\"", {"12"}, {"1"}},
    };
    check_samples(samples, sizeof(samples) / sizeof(samples[0]), tarn_grammar_gbnf);
}

static void regexes_match_whole_texts(void **state)
{
    (void)state;
    static const sample samples[] = {
        {"a|bc*", {"a", "b", "bccc"}, {"", "ab", "ac"}},
        {"^(?:ab)+?$", {"ab", "abab"}, {"", "aba"}},
        {"(?P<n>x)(?<m>y)(?#note)z", {"xyz"}, {"xy"}},
        {"[\\w.-]+@\\d{2,3}", {"a.b-c_@12", "Z@123"}, {"@12", "a@1", "a@1234", "é@12"}},
        {"\\s\\S\\D\\W", {" xx-", "\u00a0éa "}, {"xxx-", " x1-"}},
        {".{2}", {"ab", "é\U0001F600"}, {"a\n", "a"}},
        {"[^a-y]|\\x41|\\u0042|\\u{1F600}|\\uD83D\\uDE01", {"z", "A", "B", "\U0001F600", "\U0001F601"}, {"a", ""}},
        {"(a|b|)c{0}{x}", {"a{x}", "{x}"}, {"c", "ac"}},
        {"^a|b$|^c$", {"a", "b", "c"}, {"ab"}},
        {"(^a|^b)(c|d$)", {"ac", "bd"}, {"a"}},
    };
    check_samples(samples, sizeof(samples) / sizeof(samples[0]), tarn_grammar_regex);
}

static void wrong_grammars_are_errors(void **state)
{
    (void)state;
    static const struct {
        bool is_regex;
        const char *text, *problem;
    } wrong[] = {
        {false, "", "no rule named root"},
        {false, "root ::= \"a", "not closed"},
        {false, "root ::= x\n", "line 1 of the grammar: the rule 'x' is not defined"},
        {false, "root ::= root \"a\" | \"b\"", "left recursion is not supported: the rule 'root'"},
        {false, "root ::= a\na ::= b? a \"x\" | \"y\"\nb ::= \"b\"", "left recursion"},
        {false, "root ::= \"a\" root", "no finite text matches"},
        {false, "root ::= \"a\"\nroot ::= \"b\"", "line 2 of the grammar: the rule is already defined"},
        {false, "root ::= \"\\q\"", "the escape is unknown"},
        {false, "root ::= \"a\"{3,2}", "run backwards"},
        {false, "root ::= \"a\"{100001}", "above 100000"},
        {false, "root ::= <[1000]>", "references to tokens"},
        {false, "root ::= (\"a\"", "parenthesis is not closed"},
        {false, "root ::= [z-a]", "runs backwards"},
        {false, "root = \"a\"", "'::=' is missing"},
        {false, "root ::= ((\"a\"{1000}){1000}){1000} \"b\"{100000}", NULL},
        {true, "(a)\\1", "the back reference \\1 is not supported"},
        {true, "a(?=b)", "look-ahead, (?=…), is not supported"},
        {true, "(?<!b)a", "negative look-behind"},
        {true, "\\bword", "word boundary"},
        {true, "\\p{L}", "Unicode properties"},
        {true, "(?i)a", "flags"},
        {true, "a**", "nothing to repeat"},
        {true, "a++", "possessive"},
        {true, "(a", "not closed"},
        {true, "a)", "closes nothing"},
        {true, "[a", "not closed"},
        {true, "[]a]", "read them differently"},
        {true, "a{,3}", "read it differently"},
        {true, "a^b", "an anchor is not at the end"},
        {true, "(^a)*", "a quantifier repeats an anchor"},
        {true, "\\q", "the escape \\q is not supported"},
        {true, "\xFF", "not valid UTF-8"},
        {true, "a{5,2}", "run backwards"},
        {true, "(a?){100000}", "too ambiguous"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tarn_grammar *g =
            (wrong[i].is_regex ? tarn_grammar_regex : tarn_grammar_gbnf)(NULL, wrong[i].text, strlen(wrong[i].text));
        assert_true((g != NULL) == (wrong[i].problem == NULL));
        if (wrong[i].problem)
            assert_contains(tarn_error(), wrong[i].problem);
        tarn_clear_error();
        tarn_grammar_free(g);
    }
    tarn_grammar *g = gbnf("root ::= \"a\"");
    uint32_t word;
    tarn_matcher *m = tarn_matcher_new(g);
    assert_false(tarn_matcher_mask(m, &word, 1));
    assert_contains(tarn_error(), "without a vocabulary");
    tarn_clear_error();
    assert_false(tarn_matcher_rollback(m, 1));
    tarn_clear_error();
    tarn_matcher_free(m);
    tarn_grammar_free(g);
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* The bit of every token must say what appending its bytes to a clone gives. */
static void check_mask(tarn_matcher *m, const tarn_tokenizer *t, const tarn_grammar_vocab *v)
{
    int64_t size = tarn_grammar_vocab_size(v), words = TARN_MASK_WORDS(size);
    uint32_t *mask = malloc(sizeof(*mask) * (size_t)words);
    assert_true(tarn_matcher_mask(m, mask, words));
    for (int32_t id = 0; id < size; id++) {
        size_t length = 0;
        const char *piece = id < tarn_tokenizer_count(t) ? tarn_tokenizer_piece(t, id, &length) : NULL;
        bool is_end = id == tarn_tokenizer_eos(t) || id == tarn_tokenizer_end_of_text(t), expected = false;
        if (is_end) {
            expected = tarn_matcher_may_end(m);
        } else if (piece && length && !tarn_tokenizer_is_special(t, id)) {
            expected = tarn_matcher_accept_bytes(m, piece, length);
            if (expected)
                tarn_matcher_rollback(m, 1);
        }
        assert_ok();
        if (((mask[id / 32] >> (id % 32)) & 1) != expected)
            fail_msg("token %d '%s': the mask says %d", (int)id, piece ? piece : "", !expected);
    }
    free(mask);
}

/* Follows random tokens of the masks, and checks each mask on the way. */
static void walk_tokens(const tarn_tokenizer *t, tarn_grammar_vocab *v, tarn_grammar *g, int steps, uint64_t *random)
{
    int64_t size = tarn_grammar_vocab_size(v), words = TARN_MASK_WORDS(size);
    uint32_t *mask = malloc(sizeof(*mask) * (size_t)words);
    tarn_matcher *m = tarn_matcher_new(g);
    for (int i = 0; i < steps && !tarn_matcher_is_done(m); i++) {
        check_mask(m, t, v);
        assert_true(tarn_matcher_mask(m, mask, words));
        int32_t id = (int32_t)random_below(random, size);
        while (!((mask[id / 32] >> (id % 32)) & 1))
            id = (int32_t)((id + 1) % size);
        assert_true(tarn_matcher_accept(m, id));
    }
    tarn_matcher_free(m);
    free(mask);
}

static const char *const mask_grammars[] = {
    "root ::= \"{\" pair (\",\" pair)* \"}\"\npair ::= s \":\" (s | root)\ns ::= \"\\\"\" [^\"\\\\]* \"\\\"\"",
    "root ::= [a-zA-Z ,.]+ | [0-9]{1,4} \".\" [0-9]*",
    "root ::= v\nv ::= \"[\" (v (\",\" \" \"? v)*)? \"]\" | [0-9]+ | .{0,20} \"!\"",
};

static void check_masks(tarn_tokenizer *t, int steps)
{
    uint64_t random = test_seed(41);
    tarn_grammar_vocab *v =
        tarn_grammar_vocab_new(t, &(tarn_grammar_vocab_options){.vocab_size = tarn_tokenizer_count(t) + 37});
    assert_ok();
    for (size_t i = 0; i < sizeof(mask_grammars) / sizeof(mask_grammars[0]); i++) {
        tarn_grammar *g = tarn_grammar_gbnf(v, mask_grammars[i], strlen(mask_grammars[i]));
        assert_ok();
        walk_tokens(t, v, g, steps, &random);
        tarn_grammar_free(g);
    }
    tarn_grammar_vocab_free(v);
    tarn_tokenizer_free(t);
}

static void masks_equal_a_check_of_every_token(void **state)
{
    (void)state;
    static const char *const real[] = {"gpt2-bpe", "llama-spm/vocab.gguf", "stories260K/tok512.model", "qwen2-bpe"};
    check_masks(tarn_tokenizer_bytes(), 40);
    for (size_t i = 0; i < sizeof(real) / sizeof(real[0]); i++) {
        const char *path = real_data(real[i]);
        tarn_tokenizer *t = path ? tarn_tokenizer_open(path) : NULL;
        if (t)
            check_masks(t, tarn_tokenizer_count(t) > 60000 ? 2 : 4);
        tarn_clear_error();
    }
}

static void matchers_end_clone_and_roll_back(void **state)
{
    (void)state;
    static const char text[] = "root ::= \"a\" \"b\"* \"c\"?";
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_grammar_vocab *v =
        tarn_grammar_vocab_new(t, &(tarn_grammar_vocab_options){.eos = (int32_t[]){0}, .eos_count = 1});
    tarn_grammar *g = tarn_grammar_gbnf(v, text, sizeof(text) - 1);
    tarn_matcher *m = tarn_matcher_new(g);
    tarn_grammar_vocab_free(v);
    tarn_tokenizer_free(t);
    assert_ok();
    assert_false(tarn_matcher_accept(m, 0)); /* not yet */
    assert_false(tarn_matcher_accept(m, 'b'));
    assert_ok();
    assert_true(tarn_matcher_accept(m, 'a') && tarn_matcher_may_end(m) && !tarn_matcher_is_done(m));
    tarn_matcher *other = tarn_matcher_clone(m);
    tarn_grammar_free(g); /* its matchers keep it */
    assert_true(tarn_matcher_accept(m, 'b') && tarn_matcher_accept(m, 'c') && tarn_matcher_is_done(m));
    assert_false(tarn_matcher_accept(m, 'b'));
    assert_true(tarn_matcher_accept(other, 0) && tarn_matcher_is_done(other));
    assert_false(tarn_matcher_accept(other, 0));
    assert_true(tarn_matcher_rollback(m, 2) && !tarn_matcher_is_done(m) && tarn_matcher_accept(m, 'c'));
    assert_true(tarn_matcher_rollback(other, 2));
    assert_false(tarn_matcher_accept(other, 'c'));
    assert_ok();
    tarn_matcher_free(m);
    tarn_matcher_free(other);
}

/* Where the tables are full, sets in use are copied: nothing changes for matchers, their histories and clones. */
static void full_tables_are_collected(void **state)
{
    (void)state;
    const char *text = "{\"a\":{\"b\":\"c\",\"d\":{\"e\":\"f\"}}}";
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_grammar_vocab *v = tarn_grammar_vocab_new(t, NULL);
    tarn_grammar *g = tarn_grammar_gbnf(v, mask_grammars[0], strlen(mask_grammars[0]));
    tarn_matcher *m = tarn_matcher_new(g), *middle = NULL;
    assert_ok();
    for (size_t i = 0; i < strlen(text); i++) {
        g->sets_limit = 0; /* collects in the next call */
        check_mask(m, t, v);
        g->sets_limit = 0;
        assert_true(tarn_matcher_accept(m, text[i]));
        middle = i == 10 ? tarn_matcher_clone(m) : middle;
    }
    assert_true(tarn_matcher_is_done(m) && !tarn_matcher_is_done(middle));
    assert_true(tarn_matcher_rollback(m, (int64_t)strlen(text) - 11));
    check_mask(m, t, v);
    assert_true(tarn_matcher_accept_bytes(m, text + 11, strlen(text) - 11) && tarn_matcher_is_done(m));
    assert_true(tarn_matcher_accept_bytes(middle, text + 11, strlen(text) - 11) && tarn_matcher_is_done(middle));
    assert_ok();
    tarn_matcher_free(m);
    tarn_matcher_free(middle);
    tarn_grammar_free(g);
    tarn_grammar_vocab_free(v);
    tarn_tokenizer_free(t);
}

/* Nesting and ambiguity end in a refusal, never in unbounded memory or time. */
static void texts_beyond_the_limits_are_not_accepted(void **state)
{
    (void)state;
    tarn_grammar *g = gbnf("root ::= \"(\" root \")\" | \"x\"");
    tarn_matcher *m = tarn_matcher_new(g);
    int depth = 0;
    while (depth < 100000 && tarn_matcher_accept_bytes(m, "(", 1))
        depth++;
    assert_ok();
    assert_true(depth > 1000 && depth < 10000);
    assert_true(tarn_matcher_accept_bytes(m, "x)", 2));
    tarn_matcher_free(m);
    tarn_grammar_free(g);
    g = gbnf("root ::= \"a\" (root x | root y | \"\")\nx ::= \"x\"\ny ::= \"x\" \"x\"?");
    m = tarn_matcher_new(g);
    depth = 0;
    while (depth < 1000 && tarn_matcher_accept_bytes(m, "a", 1))
        depth++;
    assert_ok();
    assert_true(depth > 8 && depth < 1000);
    tarn_matcher_free(m);
    tarn_grammar_free(g);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void *follow(void *ctx)
{
    tarn_grammar *g = ctx;
    uint32_t mask[8];
    bool good = true;
    for (int round = 0; good && round < 20; round++) {
        tarn_matcher *m = tarn_matcher_new(g);
        for (int i = 0; good && i < 50; i++)
            good = tarn_matcher_mask(m, mask, 8) && ((mask['[' / 32] >> ('[' % 32)) & 1) && tarn_matcher_accept(m, '[');
        tarn_matcher *copy = tarn_matcher_clone(m);
        good = good && tarn_matcher_accept(m, '7') && tarn_matcher_accept(copy, ']') && !tarn_failed();
        tarn_matcher_free(copy);
        tarn_matcher_free(m);
    }
    return good ? ctx : NULL;
}

static void threads_share_a_grammar(void **state)
{
    (void)state;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_grammar_vocab *v = tarn_grammar_vocab_new(t, NULL);
    tarn_grammar *g = tarn_grammar_gbnf(v, mask_grammars[2], strlen(mask_grammars[2]));
    pthread_t thread[4];
    assert_ok();
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, follow, g), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(thread[i], &result);
        assert_non_null(result);
    }
    tarn_grammar_free(g);
    tarn_grammar_vocab_free(v);
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(gbnf_is_followed),
        in_scope(regexes_match_whole_texts),
        in_scope(wrong_grammars_are_errors),
        in_scope(masks_equal_a_check_of_every_token),
        in_scope(matchers_end_clone_and_roll_back),
        in_scope(full_tables_are_collected),
        in_scope(texts_beyond_the_limits_are_not_accepted),
        in_scope(threads_share_a_grammar),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
