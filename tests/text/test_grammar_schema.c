/* test_grammar_schema.c: JSON Schemas: values that match, keywords that are errors by their JSON pointer, masks. */
#include <tarn/grammar.h>

#include "support/files.h"

typedef struct sample {
    const char *schema, *good[8], *bad[8];
} sample;

static bool matches(tarn_grammar *g, const char *text)
{
    tarn_matcher *m = tarn_matcher_new(g);
    bool good = tarn_matcher_accept_bytes(m, text, strlen(text)) && tarn_matcher_may_end(m);
    assert_ok();
    tarn_matcher_free(m);
    return good;
}

static void check(const sample *samples, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tarn_grammar *g = tarn_grammar_json_schema(NULL, samples[i].schema, strlen(samples[i].schema));
        if (!g)
            fail_msg("%s: %s", samples[i].schema, tarn_error());
        for (int k = 0; k < 8 && samples[i].good[k]; k++)
            if (!matches(g, samples[i].good[k]))
                fail_msg("%s does not match %s", samples[i].schema, samples[i].good[k]);
        for (int k = 0; k < 8 && samples[i].bad[k]; k++)
            if (matches(g, samples[i].bad[k]))
                fail_msg("%s matches %s", samples[i].schema, samples[i].bad[k]);
        tarn_grammar_free(g);
    }
}
#define CHECK(samples) check(samples, sizeof(samples) / sizeof((samples)[0]))

static void values_are_constrained(void **state)
{
    (void)state;
    static const sample samples[] = {
        {"{\"type\":\"integer\"}", {"0", "-12", "100"}, {"-0", "01", "1.0", "1e3", "\"1\"", ""}},
        {"{\"type\":\"number\"}", {"0", "-0.5", "1e+16", "2E-5"}, {"01", ".5", "1.", "1e1234", "NaN"}},
        {"{\"type\":[\"boolean\",\"null\"]}", {"true", "false", "null"}, {"0", "True"}},
        {"{\"type\":\"string\",\"nullable\":true}",
         {"\"a\"", "null", "\"\\u00e9\\ud83d\\ude00\\n\""},
         {"\"\\ud83d\"", "\"\\q\"", "\"\n\""}},
        {"{\"type\":\"integer\",\"minimum\":-5,\"maximum\":120}",
         {"-5", "0", "99", "120"},
         {"-6", "121", "1000", "-10"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":9,\"multipleOf\":5}", {"10", "15", "1000"}, {"9", "5", "12"}},
        {"{\"type\":\"number\",\"minimum\":0.25,\"exclusiveMaximum\":1}",
         {"0.25", "0.5", "0.999", "0.250"},
         {"0.2", "0.24999", "1", "1.0", "0", "-0.5", "5e-1"}},
        {"{\"type\":\"number\",\"maximum\":-1.5}", {"-1.5", "-1.50", "-2", "-10.25"}, {"-1.4", "-1", "0", "1.5"}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"é\\n日\"", "\"\\ud83d\\ude00a\""},
         {"\"a\"", "\"abcd\"", "\"\""}},
        {"{\"type\":\"string\",\"pattern\":\"b\"}", {"\"abc\"", "\"b\""}, {"\"a\"", "\"\""}},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\w+$\",\"maxLength\":3}",
         {"\"a_1\""},
         {"\"abcd\"", "\"\"", "\"a b\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[\\\"\\\\\\\\]\\n?$\"}",
         {"\"\\\"\"", "\"\\\\\\n\""},
         {"\"\"\"", "\"\\u0022\""}},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
         {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-13-01\"", "\"2023-04-31\""}},
        {"{\"type\":\"string\",\"format\":\"date-time\"}",
         {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.5+01:30\""},
         {"\"2024-02-29 23:59:59Z\"", "\"2024-02-29T24:00:00Z\"", "\"2024-02-29T23:59:59\""}},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}",
         {"\"0.0.0.0\"", "\"255.10.199.3\""},
         {"\"256.1.1.1\"", "\"1.1.1\"", "\"01.1.1.1\""}},
        {"{\"type\":\"string\",\"format\":\"ipv6\"}",
         {"\"::\"", "\"1:2:3:4:5:6:7:8\"", "\"fe80::1\""},
         {"\":\"", "\"1:2:3\"", "\"1::2::3\""}},
        {"{\"type\":\"string\",\"format\":\"email\"}",
         {"\"a.b+c@x-y.org\""},
         {"\"a@b\"", "\"a..b@x.org\"", "\"@x.org\""}},
        {"{\"enum\":[\"a\",1,null,[1,{\"b\":2}],\"q\\\"\"]}",
         {"\"a\"", "1", "null", "[1, {\"b\": 2}]", "\"q\\\"\""},
         {"2", "\"b\"", "[1]"}},
        {"{\"const\":3,\"type\":\"integer\"}", {"3"}, {"4", "3.0"}},
        {"{\"type\":\"string\",\"enum\":[\"a\",1]}", {"\"a\""}, {"1"}},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}",
         {"5", "\"a\""},
         {"\"ab\"", "true"}},
        {"true", {"{\"a\":[1,{\"b\":null}]}", "0", "\"\"", "[ ]"}, {"", "{", "[1,]", "{a:1}"}},
        {"{}", {"[]", "1"}, {"tru"}},
    };
    CHECK(samples);
}

static void objects_and_arrays_are_constrained(void **state)
{
    (void)state;
    static const sample samples[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"},\"c\":true},"
         "\"required\":[\"b\"],\"additionalProperties\":false}",
         {"{\"b\":null}", "{\"a\": 1, \"b\": null}", "{\n  \"b\": null,\n  \"c\": [1]\n}",
          "{\"a\":1,\"b\":null,\"c\":0}"},
         {"{}", "{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"b\":null,}", "{\"b\":null,\"d\":1}", "{,\"b\":null}",
          "{\"b\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":"
         "\"null\"}}",
         {"{}", "{\"a\":1}", "{\"b\":null}", "{\"a\":1,\"ab\":null,\"\":null}", "{\"\\\"\":null}"},
         {"{\"a\":null}", "{\"b\":1}", "{\"a\":1,\"a\":null}", "{\"\\u0061\":null}"}},
        {"{\"type\":\"object\"}", {"{}", "{\"x\":{\"y\":[]}}"}, {"[]", "{\"x\"}"}},
        {"{\"type\":\"object\",\"properties\":{}, \"additionalProperties\":false}", {"{}", "{ }"}, {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"required\":[\"z\"]}", {"{\"z\":1}"}, {"{}"}},
        {"{\"type\":\"object\",\"patternProperties\":{\"^x-\":{\"type\":\"integer\"}},\"properties\":{\"x-a\":{"
         "\"const\":7}}}",
         {"{}", "{\"x-b\":1}", "{\"x-a\":7,\"x-b\":1}"},
         {"{\"x-a\":1}", "{\"y\":1}", "{\"x-b\":null}", "{\"x-b\":1,\"x-a\":7}"}},
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
         {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
         {"[1]", "[1, 2,3]", "[\n1\n]"},
         {"[]", "[1,2,3,4]", "[\"a\"]", "[1 2]"}},
        {"{\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"integer\"}],\"items\":false}",
         {"[]", "[null]", "[null,1]"},
         {"[1]", "[null,1,1]"}},
        {"{\"type\":\"array\",\"items\":[{\"const\":1}],\"additionalItems\":{\"const\":2}}",
         {"[]", "[1]", "[1,2,2]"},
         {"[2]", "[1,1]"}},
        {"{\"allOf\":[{\"$ref\":\"#/$defs/"
         "a\"},{\"type\":\"object\",\"properties\":{\"y\":{\"type\":\"null\"}},\"required\":[\"y\"]}],"
         "\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]}}}",
         {"{\"x\":1,\"y\":null}"},
         {"{\"x\":1}", "{\"y\":null}", "{}"}},
        {"{\"allOf\":[{\"type\":\"integer\",\"minimum\":3},{\"type\":\"number\",\"maximum\":5}]}",
         {"3", "5"},
         {"2", "6", "4.5"}},
        {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"l\":{\"$ref\":\"#/$defs/t\"},"
         "\"v\":{\"type\":\"integer\"}},\"required\":[\"v\"],\"additionalProperties\":false}}}",
         {"{\"v\":1}", "{\"l\":{\"l\":{\"v\":3},\"v\":2},\"v\":1}"},
         {"{\"l\":{},\"v\":1}", "{}"}},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"n\":{\"type\":\"integer\"}},"
         "\"required\":[\"k\",\"n\"]},"
         "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"]}]}",
         {"{\"k\":\"a\",\"n\":1}", "{\"k\":\"b\"}"},
         {"{\"k\":\"a\"}", "{\"k\":\"c\"}", "{\"k\":\"b\",\"n\":1}"}},
        {"{\"oneOf\":[{\"type\":\"integer\",\"maximum\":3},{\"type\":\"integer\",\"minimum\":7},{\"type\":\"null\"}]}",
         {"3", "7", "null"},
         {"5"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":true}}", {"{\"b\":1}"}, {"{\"a\":1}"}},
    };
    CHECK(samples);
}

static void what_cannot_be_enforced_is_an_error(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}",
         "#/properties/a/not: the keyword 'not' is not supported"},
        {"{\"if\":true}", "#/if: the keyword 'if' is not supported"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "#/uniqueItems: the keyword cannot be enforced"},
        {"{\"type\":\"array\",\"contains\":{}}", "#/contains"},
        {"{\"type\":\"string\",\"format\":\"duration\"}", "#/format: the format 'duration' is not supported"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}",
         "#/pattern: the regular expression, at byte 5: the back reference \\1"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "#/oneOf: oneOf is supported only where"},
        {"{\"type\":\"text\"}", "#/type: the value must be null, boolean"},
        {"{\"type\":\"integer\",\"minimum\":\"1\"}", "#/minimum: the value must be a number"},
        {"{\"type\":\"number\",\"multipleOf\":0.01}", "#/multipleOf: multipleOf is supported for integers"},
        {"{\"$ref\":\"#/$defs/none\"}", "#/$ref: $ref points to nothing"},
        {"{\"$ref\":\"other.json\"}", "#/$ref: $ref must point into the schema"},
        {"{\"$ref\":\"#\"}", "refers to itself"},
        {"{\"anyOf\":[{\"$ref\":\"#/$defs/a\"}],\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#\"}]}}}", "refers to itself"},
        {"{\"type\":\"object\",\"patternProperties\":{\"a\":{},\"b\":{}}}", "#/patternProperties: only one pattern"},
        {"{\"type\":\"object\",\"patternProperties\":{\"a\":{}},\"additionalProperties\":true}",
         "#/additionalProperties"},
        {"{\"type\":\"object\",\"minProperties\":3}", "#/minProperties"},
        {"{\"enum\":[\"a\"],\"maxLength\":3}", "#/maxLength: the keyword is not supported together with enum"},
        {"{\"type\":\"string\",\"maxLength\":1000000}", "above 100000"},
        {"{\"type\":\"string\",\"pattern\":\"^(a|b)*a(a|b){16}$\",\"maxLength\":90000}", "too complex"},
        {"{\"properties\":[]}", "#/properties: the value must be an object of schemas"},
        {"{\"a\":1,\"a\":2}", "an object has a key twice"},
        {"{\"type\":", "a value is missing"},
        {"[]", "#: a schema must be an object"},
        {"false", "no finite text"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":3}", "no finite text"},
        {"{\"type\":\"string\",\"colour\":1}", "#/colour: the keyword 'colour' is not supported"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tarn_grammar *g = tarn_grammar_json_schema(NULL, wrong[i][0], strlen(wrong[i][0]));
        if (g)
            fail_msg("%s compiles", wrong[i][0]);
        assert_contains(tarn_error(), wrong[i][1]);
        tarn_clear_error();
    }
}

/* Many choices are followed up to the limit, and an error beyond it. */
static void choices_are_limited(void **state)
{
    (void)state;
    char *text = malloc(200000);
    for (int count = 4000; count <= 4001; count++)
        for (int kind = 0; kind < 2; kind++) {
            size_t used = (size_t)sprintf(text, kind ? "{\"enum\":[" : "{\"type\":\"object\",\"properties\":{");
            for (int i = 0; i < count; i++)
                used +=
                    (size_t)sprintf(text + used, kind ? "%s\"v%d\"" : "%s\"k%d\":{\"const\":%d}", i ? "," : "", i, i);
            used += (size_t)sprintf(text + used, kind ? "]}" : "}}");
            tarn_grammar *g = tarn_grammar_json_schema(NULL, text, used);
            assert_int_equal(g != NULL, count == 4000);
            if (g)
                assert_true(kind ? matches(g, "\"v3999\"") : matches(g, "{\"k7\":7,\"k3999\":3999}"));
            else
                assert_contains(tarn_error(), "more than 4000");
            tarn_clear_error();
            tarn_grammar_free(g);
        }
    free(text);
}

static void annotations_are_ignored(void **state)
{
    (void)state;
    static const char schema[] =
        "{\"$schema\":\"x\",\"$id\":\"y\",\"title\":\"t\",\"description\":\"d\",\"default\":5,\"examples\":[1],"
        "\"x-order\":3,\"type\":\"integer\",\"deprecated\":true,\"$comment\":\"c\"}";
    tarn_grammar *g = tarn_grammar_json_schema(NULL, schema, sizeof(schema) - 1);
    assert_ok();
    assert_true(matches(g, "7") && !matches(g, "null"));
    tarn_grammar_free(g);
}

/* JSON at growing depth: masks of the same position are found again, and equal what the tokens give. */
static void masks_do_not_depend_on_depth(void **state)
{
    (void)state;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_grammar_vocab *v = tarn_grammar_vocab_new(t, NULL);
    tarn_grammar *g = tarn_grammar_json(v);
    tarn_matcher *m = tarn_matcher_new(g);
    uint32_t first[8], mask[8];
    assert_ok();
    for (int depth = 0; depth < 200; depth++) {
        assert_true(tarn_matcher_accept_bytes(m, "{\"a\":", 5));
        assert_true(tarn_matcher_mask(m, mask, 8));
        if (depth == 0)
            memcpy(first, mask, sizeof(first));
        assert_memory_equal(first, mask, sizeof(first));
    }
    assert_true(tarn_matcher_accept(m, '1'));
    for (int depth = 0; depth < 200; depth++)
        assert_true(!tarn_matcher_is_done(m) && tarn_matcher_accept(m, '}'));
    assert_true(tarn_matcher_is_done(m) && tarn_matcher_may_end(m));
    assert_ok();
    tarn_matcher_free(m);
    tarn_grammar_free(g);
    tarn_grammar_vocab_free(v);
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(values_are_constrained),
        in_scope(objects_and_arrays_are_constrained),
        in_scope(what_cannot_be_enforced_is_an_error),
        in_scope(annotations_are_ignored),
        in_scope(choices_are_limited),
        in_scope(masks_do_not_depend_on_depth),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
