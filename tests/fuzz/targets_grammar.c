/* targets_grammar.c: texts of grammars. */
#include <string.h>
#include <tarn/grammar.h>

#include "fuzz/targets.h"

/* Follows the tokens of the masks for some steps; frees the grammar. A vocabulary of bytes can express every text, so
 * that a mask is never empty before the text may end. */
static bool used(tarn_grammar_vocab *v, tarn_grammar *g)
{
    uint32_t mask[8], random = 1;
    tarn_grammar_vocab_free(v);
    if (!g)
        return false;
    tarn_matcher *m = tarn_matcher_new(g);
    for (int i = 0; i < 40 && !tarn_matcher_is_done(m); i++) {
        if (!tarn_matcher_mask(m, mask, 8)) {
            fuzz_must(tarn_error_code() == TARN_ERROR_FORMAT, "a mask fails only where it is too ambiguous");
            tarn_clear_error();
            break;
        }
        int32_t id = (int32_t)((random = random * 1664525u + 1013904223u) >> 24), tries = 0;
        while (tries++ < 256 && !((mask[id / 32] >> (id % 32)) & 1))
            id = (id + 1) % 256;
        if (tries > 256)
            break;
        fuzz_must(tarn_matcher_accept(m, id), "a token of the mask is accepted");
    }
    tarn_matcher_free(m);
    tarn_grammar_free(g);
    return true;
}

static tarn_grammar_vocab *vocab(void)
{
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_grammar_vocab *v = tarn_grammar_vocab_new(t, NULL);
    tarn_tokenizer_free(t);
    return v;
}

static void use_all(const char *const *texts, fuzz_seed_fn use, void *ctx)
{
    for (; *texts; texts++)
        use(*texts, strlen(*texts), ctx);
}

static bool take_gbnf(const void *from, size_t count)
{
    tarn_grammar_vocab *v = vocab();
    return used(v, tarn_grammar_gbnf(v, from, count));
}

static void gbnf_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const texts[] = {
        "# a list\nroot ::= (item \"\\n\")+\nitem ::= \"- \" [^\\n]{1,80} | (\"x\" | y)*\ny ::= [0-9a-f\\u00e9]? "
        "\"\\x41\"\n",
        "root ::= \"{\" (pair (\",\" pair)*)? \"}\"\npair ::= s \":\" (s | root)\ns ::= \"\\\"\" [^\"]* \"\\\"\"",
        NULL};
    use_all(texts, use, ctx);
}

static bool take_regex(const void *from, size_t count)
{
    tarn_grammar_vocab *v = vocab();
    return used(v, tarn_grammar_regex(v, from, count));
}

static void regex_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const texts[] = {"^(?:[a-z0-9._%+-]+)@(\\w+\\.)+[A-Z]{2,6}$|\\d{3}-\\d{4}",
                                        "(?P<year>\\d{4})-(0[1-9]|1[0-2])(T\\S+?)?[^\\s\\x00-\\u{1F}]*", NULL};
    use_all(texts, use, ctx);
}

static bool take_schema(const void *from, size_t count)
{
    tarn_grammar_vocab *v = vocab();
    return used(v, tarn_grammar_json_schema(v, from, count));
}

static void schema_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const texts[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":1e2},\"b\":{"
        "\"enum\":[1,"
        "\"x\"]},\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"maxItems\":3}},\"required\":[\"a\"]}",
        "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a+$\",\"maxLength\":9},{\"type\":\"string\",\"format\":"
        "\"date\"},{"
        "\"oneOf\":[{\"type\":\"null\"},{\"type\":\"number\",\"exclusiveMinimum\":0.5}]}],\"title\":\"t\"}",
        "{\"allOf\":[{\"$ref\":\"#/$defs/"
        "n\"},{\"additionalProperties\":{\"type\":\"boolean\"}}],\"$defs\":{\"n\":{\"type\":"
        "\"object\",\"patternProperties\":{}}}}",
        NULL};
    use_all(texts, use, ctx);
}

const fuzz_target fuzz_grammar_targets[] = {
    {"gbnf", NULL, gbnf_seeds, take_gbnf},
    {"grammar_regex", NULL, regex_seeds, take_regex},
    {"json_schema", NULL, schema_seeds, take_schema},
    {0},
};
