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
