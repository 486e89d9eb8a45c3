/* test_malformed.c: tokenizer files with one defect each: the error names the file and the defect. */
#include "support/files.h"
#include "support/small_tokenizer.h"
#include "tarn_features.h"

typedef struct fault {
    const char *from, *to; /* what is replaced in a good file, once */
    tarn_code code;
    const char *problem; /* part of the error */
} fault;

static void expect_fault(const fault *f, const char *path, const char *name)
{
    tarn_tokenizer *t = tarn_tokenizer_open(path);
    if (t)
        fail_msg("'%s' instead of '%s' was taken", f->to, f->from);
    if (tarn_error_code() != f->code || !strstr(tarn_error(), f->problem) || !strstr(tarn_error(), name))
        fail_msg("'%s': %s (%s), not '%s'", f->to, tarn_error(), tarn_code_name(tarn_error_code()), f->problem);
    tarn_clear_error();
}

#define FORMAT TARN_ERROR_FORMAT
#define UNSUPPORTED TARN_ERROR_UNSUPPORTED
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static void wrong_tokenizer_files(void **state)
{
    (void)state;
    static const fault faults[] = {
        {"{\"added", "[\"added", FORMAT, "line 1"},
        {"{\"added", "{\"version\": \"2.0\", \"added", UNSUPPORTED, "version '2.0'"},
        {"{\"added", "{\"version\": 1.0, \"added", FORMAT, "\"version\" is not a string"},
        {"\"model\": {", "\"model\": 5, \"x\": {", FORMAT, "no \"model\""},
        {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", FORMAT, "not an array"},
        {"\"vocab\": {", "\"vocab\": 1, \"x\": {", FORMAT, "vocabulary is missing"},
        {"\"he\": 256", "\"he\": 255", FORMAT, "duplicate id 255"},
        {"\"he\": 256", "\"he\": -1", FORMAT, "'he' has no id"},
        {"\"he\": 256", "\"he\": 1.5", FORMAT, "'he' has no id"},
        {"\"he\": 256", "\"he\": \"256\"", FORMAT, "'he' has no id"},
        {"\"he\": 256", "\"he\": 70000", FORMAT, "70000"},
        {"\"he\": 256", "\"he\": 99999999999999999", FORMAT, "99999999999999999"},
        {"\"he\": 256", "\"he\": 256, \"\": 300", FORMAT, "0 bytes"},
        {"\"he\": 256", "\"he\": 256, \"he\": 300", FORMAT, "duplicate"},
        {"\"he\": 256", "\"hx\": 256", FORMAT, "merge 1"},
        {"[\"l\", \"l\"]", "[\"l\", \"zz\"]", FORMAT, "merge 2, 'l' and 'zz': the second"},
        {"[\"l\", \"l\"]", "[\"l\"]", FORMAT, "merge 2"},
        {"[\"l\", \"l\"]", "[\"l\", 1]", FORMAT, "merge 2"},
        {"\"ll o\"", "\"llo\"", FORMAT, "merge 3"},
        {"\"ll o\"", "\"ll o o\"", FORMAT, "merge 3"},
        {"\"merges\": [", "\"merges\": {}, \"x\": [", FORMAT, "\"merges\""},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"dropout\": 0.1", UNSUPPORTED, "dropout"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"byte_fallback\": 1", FORMAT, "byte_fallback"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"end_of_word_suffix\": 5", FORMAT, "end_of_word_suffix"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"ignore_merges\": 1", FORMAT, "ignore_merges"},
        {"\"id\": 260", "\"id\": 259", FORMAT, "another token"},
        {"\"id\": 260", "\"id\": -5", FORMAT, "no \"id\""},
        {"\"id\": 260", "\"id\": 2000000", FORMAT, "far from"},
        {"\"id\": 260", "\"id\": 2147483647", FORMAT, "far from"},
        {"\"id\": 260", "\"id\": 65000, \"content\": \"<far>\"}, {\"id\": 130000", FORMAT,
         "130000, far from the 261 tokens"},
        {"\"<tag>\"", "\"he\"", FORMAT, "256 in the vocabulary"},
        {"\"<tag>\"", "\"<pad>\"", FORMAT, "261 in the vocabulary"},
        {"\"<tag>\"", "\"\"", FORMAT, "0 bytes"},
        {"\"<tag>\"", "5", FORMAT, "no \"content\""},
        {"\"lstrip\": true", "\"lstrip\": 1", FORMAT, "lstrip"},
        {"\"lstrip\": true", "\"single_word\": 1", FORMAT, "single_word"},
        {"{\"type\": \"ByteLevel\", \"add", "{\"type\": \"Metaspace\", \"add", FORMAT, "replacement"},
        {"{\"type\": \"ByteLevel\", \"add", "{\"kind\": \"ByteLevel\", \"add", FORMAT, "\"type\""},
        {"{\"type\": \"ByteLevel\", \"add", "{\"type\": \"UnicodeScripts\", \"add", UNSUPPORTED, "UnicodeScripts"},
        {"{\"type\": \"ByteLevel\", \"add",
         "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\", \"add", FORMAT,
         "pattern '('"},
        {"{\"type\": \"ByteLevel\", \"add",
         "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Other\", \"add", UNSUPPORTED, "Other"},
        {"{\"type\": \"ByteLevel\", \"add",
         "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[^\\\\S]\"}, \"behavior\": \"Isolated\", \"add", UNSUPPORTED,
         "brackets"},
        {"{\"type\": \"ByteLevel\", \"add",
         "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\\\\C\"}, \"behavior\": \"Isolated\", \"add", FORMAT,
         "pattern 'a\\C' is not valid"},
        {"\"type\": \"BPE\"", "\"type\": \"Other\"", UNSUPPORTED, "the model 'Other'"},
        {"\"use_regex\": true", "\"use_regex\": 7", FORMAT, "use_regex"},
        {"\"<tag>\"",
         "\"zz\", \"normalized\": true}], \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"z\"}, "
         "\"content\": \"\"}, \"x\": [{\"y\": 1",
         UNSUPPORTED, "leaves nothing"},
        {"\"added_tokens\"", "\"normalizer\": {\"type\": \"Nmt\"}, \"added_tokens\"", UNSUPPORTED, "Nmt"},
        {"\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": {\"type\": \"CTC\"}", UNSUPPORTED, "CTC"},
        {"\"ids\": [260]", "\"ids\": [400]", FORMAT, "no token"},
        {"\"ids\": [260]", "\"ids\": 260", FORMAT, "no ids"},
        {"TemplateProcessing", "Other", UNSUPPORTED, "Other"},
        {"{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}", "{}", FORMAT, "neither"},
    };
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    for (size_t i = 0; i < COUNT(faults); i++) {
        char *text = replaced(small_tokenizer_text(), faults[i].from, faults[i].to);
        expect_fault(&faults[i], write_text("wrong.json", text), "wrong.json");
        free(text);
    }
}

static void wrong_vocabularies_and_merges(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{\"a\": 0, \"b\": 1, \"ab\": 2}", "#version: 0.2\na b\n",
        "{\"tokenizer_class\": \"GPT2Tokenizer\", \"added_tokens_decoder\": {\"3\": {\"content\": \"<e>\"}}}"};
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer_config.json"};
    static const struct {
        int file;
        fault fault;
    } faults[] = {
        {0, {"{\"a\": 0, \"b\": 1, \"ab\": 2}", "[]", FORMAT, "not an object"}},
        {0, {"{\"a\": 0, \"b\": 1, \"ab\": 2}", "", FORMAT, "is an empty file"}},
        {0, {"{\"a\": 0, \"b\": 1, \"ab\": 2}", "{\"a\xFF\": 0}", FORMAT, "line 1, column 3"}},
        {0, {"\"b\": 1", "\"b\": 0", FORMAT, "duplicate id"}},
        {1, {"a b", "a", FORMAT, "line 2"}},
        {1, {"a b", "a b c", FORMAT, "line 2"}},
        {1, {"a b\n", "a b\n\n", FORMAT, "line 3"}},
        {1, {"a b", "b a", FORMAT, "merge 2, 'b' and 'a': their merge"}},
        {2, {"GPT2Tokenizer", "BertTokenizer", UNSUPPORTED, "BertTokenizer"}},
        {2, {"\"3\"", "\"three\"", FORMAT, "no \"id\""}},
        {2, {"\"3\"", "\"1\"", FORMAT, "another token"}},
        {2, {"<e>", "a", FORMAT, "0 in the vocabulary"}},
    };
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    for (size_t i = 0; i < COUNT(faults); i++) {
        for (int k = 0; k < 3; k++)
            write_text(names[k], good[k]);
        tarn_tokenizer *t = tarn_tokenizer_open(scratch("vocab.json"));
        assert_ok();
        tarn_tokenizer_free(t);
        char *text = replaced(good[faults[i].file], faults[i].fault.from, faults[i].fault.to);
        write_text(names[faults[i].file], text);
        expect_fault(&faults[i].fault, scratch("vocab.json"), names[faults[i].file]);
        free(text);
    }
    remove(scratch("merges.txt"));
    assert_null(tarn_tokenizer_open(scratch("vocab.json")));
    assert_error_about(TARN_ERROR_FORMAT, "vocab.json", "give the folder");
}

static void a_missing_byte_is_named(void **state)
{
    (void)state;
    int64_t count;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    write_text("vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2}");
    write_text("merges.txt", "a b\n");
    remove(scratch("tokenizer_config.json"));
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("merges.txt"));
    assert_ok();
    assert_null(tarn_tokenizer_encode(t, "abc", 3, NULL, &count));
    assert_error_about(TARN_ERROR_ARGUMENT, "0x63", "no token");
    tarn_tokenizer_free(t);
}

static void a_build_without_its_packages_says_so(void **state)
{
    (void)state;
    if (TARN__HAVE_PCRE2 && TARN__HAVE_JANSSON)
        skip();
    assert_null(tarn_tokenizer_open(write_text("tokenizer.json", small_tokenizer_text())));
    assert_error(TARN_ERROR_UNSUPPORTED, TARN__HAVE_JANSSON ? "libpcre2-dev" : "libjansson-dev");
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(wrong_tokenizer_files), in_scope(wrong_vocabularies_and_merges),
                                       in_scope(a_missing_byte_is_named),
                                       in_scope(a_build_without_its_packages_says_so)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
