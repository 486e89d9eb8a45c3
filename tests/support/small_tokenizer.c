/* small_tokenizer.c: a tokenizer that is small enough to be written in a test. */
#include "support/small_tokenizer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"

const char *small_tokenizer_text(void)
{
    static char text[1 << 16];
    size_t used = (size_t)snprintf(
        text, sizeof(text),
        "{\"added_tokens\": [{\"id\": 260, \"content\": \"<|endoftext|>\", \"special\": true}, "
        "{\"id\": 261, \"content\": \"<pad>\", \"special\": true, \"lstrip\": true, \"rstrip\": true}, "
        "{\"id\": 262, \"content\": \"<tag>\", \"special\": false}],"
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true},"
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
        "\"<|endoftext|>\", "
        "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": "
        "{\"<|endoftext|>\": {\"id\": \"<|endoftext|>\", \"ids\": [260], \"tokens\": [\"<|endoftext|>\"]}}},"
        "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {");
    int hidden = 0;
    for (int i = 0; i < 256; i++) {
        bool seen = (i > 32 && i < 127) || (i > 160 && i != 173);
        used += (size_t)snprintf(text + used, sizeof(text) - used, "\"\\u%04x\": %d, ", seen ? i : 256 + hidden, i);
        hidden += !seen;
    }
    snprintf(text + used, sizeof(text) - used,
             "\"he\": 256, \"ll\": 257, \"llo\": 258, \"\\u0120w\": 259}, \"merges\": [\"h e\", [\"l\", \"l\"], \"ll "
             "o\", \"\\u0120 w\"]}}");
    return text;
}

char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("the text has no '%s'", from);
    size_t before = (size_t)(at - text);
    char *result = malloc(strlen(text) + strlen(to) + 1);
    memcpy(result, text, before);
    strcpy(result + before, to);
    strcat(result, at + strlen(from));
    return result;
}

/* ---- pipelines --------------------------------------------------------------------------------------------------- */

const char *small_pipeline_text(int kind)
{
    static const char *const texts[SMALL_PIPELINES] = {
        "{\"added_tokens\":[{\"id\":9,\"content\":\"<e>\",\"single_word\":true,\"lstrip\":true,\"rstrip\":tru"
        "e,\"normalized\":true,\"special\":false}],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\""
        "type\":\"Prepend\",\"prepend\":\"x\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"cont"
        "ent\":\" \"},{\"type\":\"NFKC\"}]},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"▁\","
        "\"prepend_scheme\":\"always\",\"split\":true},\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\""
        "▁\",\"prepend_scheme\":\"always\",\"split\":true},\"post_processor\":null,\"model\":{\"type\":\"Unig"
        "ram\",\"unk_id\":0,\"byte_fallback\":false,\"vocab\":[[\"<unk>\",0],[\"▁\",-2.5],[\"▁he\",-3],[\"llo"
        "\",-3.5],[\"l\",-4],[\"o\",-4],[\"h\",-5],[\"e\",-4.5],[\"fi\",-6]]}}",
        "{\"added_tokens\":[{\"id\":8,\"content\":\"<e>\",\"single_word\":true,\"lstrip\":true,\"rstrip\":tru"
        "e,\"normalized\":true,\"special\":false}],\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\""
        ":true,\"handle_chinese_chars\":true,\"strip_accents\":null,\"lowercase\":true},\"pre_tokenizer\":{\""
        "type\":\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}"
        ",\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"[SEP]\",2],\"cls\":[\"[CLS]\",1]},\"mode"
        "l\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\",\"max_input"
        "_chars_per_word\":100,\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"he\":3,\"##llo\":4,\"##l\":5,"
        "\".\":6,\"w\":7}}}",
        "{\"added_tokens\":[{\"id\":8,\"content\":\"<e>\",\"single_word\":true,\"lstrip\":true,\"rstrip\":tru"
        "e,\"normalized\":true,\"special\":false}],\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":"
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Split\",\"patte"
        "rn\":{\"String\":\"-\"},\"behavior\":\"MergedWithNext\",\"invert\":false},{\"type\":\"Digits\",\"ind"
        "ividual_digits\":true},{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}]},\"decoder\":{\"type"
        "\":\"BPEDecoder\",\"suffix\":\"</w>\"},\"post_processor\":null,\"model\":{\"type\":\"BPE\",\"unk_tok"
        "en\":\"<unk>\",\"end_of_word_suffix\":\"</w>\",\"fuse_unk\":true,\"vocab\":{\"<unk>\":0,\"h\":1,\"e"
        "\":2,\"l\":3,\"o</w>\":4,\"he\":5,\"ll\":6,\"llo</w>\":7},\"merges\":[[\"h\",\"e\"],[\"l\",\"l\"],["
        "\"ll\",\"o</w>\"]]}}"};
    return texts[kind];
}
