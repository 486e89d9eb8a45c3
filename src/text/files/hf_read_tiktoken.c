/* hf_read_tiktoken.c: tiktoken's file: a line per token, base64 and the rank, which is its id. Two adjacent tokens
 * merge if their bytes together are a token, the lowest rank first. The merges are listed as transformers lists them,
 * and a word that is a token is not merged. The pattern and the special tokens come from tokenizer_config.json. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "text/files/gguf_tokenizer.h"
#include "text/files/hf_read_common.h"
#include "text/files/pipeline/base64.h"

#define MAX_LINE 4096

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Reads "IQ== 0" into bytes, of which there are at most MAX_LINE, and a rank; false, without an error, for anything
 * else. */
static bool parse_line(const char *line, size_t length, char *bytes, int64_t *count, int64_t *rank)
{
    const char *space = memchr(line, ' ', length);
    if (!space || space == line || length > MAX_LINE || (size_t)(space - line) + 1 == length)
        return false;
    *rank = 0;
    for (const char *at = space + 1; at < line + length; at++) {
        if (*at < '0' || *at > '9' || *rank > INT32_MAX)
            return false;
        *rank = 10 * *rank + (*at - '0');
    }
    *count = tarn__base64_decode(bytes, line, (size_t)(space - line));
    return *count > 0 && *rank < INT32_MAX;
}

/* Ranks may have gaps, where special tokens are; far ones would cost memory. */
static bool add_token(const tarn__hf_reader *reader, const char *bytes, size_t count, int64_t rank, size_t number)
{
    tarn__vocab *vocab = &reader->tokenizer->vocab;
    if (rank >= (int64_t)vocab->used + TARN__MAX_UNUSED_IDS)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "line %zu: the rank %lld is far from the number of tokens",
                              number, (long long)rank);
    if (tarn__vocab_has(vocab, rank) || tarn__vocab_find(vocab, bytes, count) >= 0)
        return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "line %zu is a duplicate", number);
    return tarn__vocab_add(vocab, (int32_t)rank, bytes, count, false);
}

/* Lines need no order; empty ones are skipped. */
static bool read_tokens(const tarn__hf_reader *reader, const tarn__map *map)
{
    char bytes[MAX_LINE];
    size_t number = 1;
    for (size_t at = 0, next; at < map->bytes; at = next, number++) {
        int64_t count, rank;
        size_t length = tarn__hf_line_at(map, at, &next);
        if (length == 0)
            continue;
        if (!parse_line(map->memory + at, length, bytes, &count, &rank))
            return tarn__hf_raise(reader, TARN_ERROR_FORMAT, "line %zu is not a token in base64 and its rank", number);
        if (!add_token(reader, bytes, (size_t)count, rank, number))
            return false;
    }
    return true;
}

/* ---- merges ------------------------------------------------------------------------------------------------------ */

/* qsort() order of the merges of one token. */
static int by_ids(const void *a, const void *b)
{
    const tarn__merge *one = a, *other = b;
    return one->left != other->left ? (one->left > other->left) - (one->left < other->left)
                                    : (one->right > other->right) - (one->right < other->right);
}

/* Adds a merge for each split of a token into two others. */
static bool add_merges(tarn_tokenizer *t, int32_t id)
{
    tarn__merge merges[MAX_LINE];
    size_t length, count = 0;
    const char *bytes = tarn__vocab_bytes(&t->vocab, id, &length);
    for (size_t at = 1; at < length; at++) {
        int32_t left = tarn__vocab_find(&t->vocab, bytes, at),
                right = tarn__vocab_find(&t->vocab, bytes + at, length - at);
        if (left >= 0 && right >= 0)
            merges[count++] = (tarn__merge){left, right, id};
    }
    qsort(merges, count, sizeof(*merges), by_ids);
    for (size_t i = 0; i < count; i++)
        if (!tarn__bpe_add(&t->bpe, merges[i]))
            return false;
    return true;
}

/* ---- configuration ----------------------------------------------------------------------------------------------- */

/* The pattern of a name in GGUF files, if it is one regex; NULL: none. */
static const tarn__gguf_pre_tokenizer *find_named(const char *name)
{
    for (const tarn__gguf_pre_tokenizer *pre = tarn__gguf_pre_tokenizers; pre->name; pre++) {
        bool is_it = strcmp(pre->name, name) == 0;
        for (int i = 0; i < TARN__GGUF_PRE_ALIASES && pre->aliases[i]; i++)
            is_it = is_it || strcmp(pre->aliases[i], name) == 0;
        if (is_it && pre->regex[0] && !pre->regex[1])
            return pre;
    }
    return NULL;
}

/* The pattern: "pattern" of the config, a regex or a name such as gpt-4o; else by the class, Llama 3's or Qwen's. */
static const char *find_pattern(const tarn__hf_reader *reader, json_t *config)
{
    static const char *const llama[] = {"PreTrainedTokenizerFast", "PreTrainedTokenizer", "LlamaTokenizer",
                                        "LlamaTokenizerFast",      "TikTokenTokenizer",   "TokenizersBackend"};
    json_t *pattern = json_object_get(config, "pattern"), *class_name = json_object_get(config, "tokenizer_class");
    if (json_is_string(pattern)) {
        /* A name is looked up first: no regex is called gpt-4o. */
        const tarn__gguf_pre_tokenizer *named = find_named(json_string_value(pattern));
        return named ? named->regex[0] : json_string_value(pattern);
    }
    const char *name = json_is_string(class_name) ? json_string_value(class_name) : llama[0];
    if (strcmp(name, "QWenTokenizer") == 0 || strncmp(name, "Qwen2Tokenizer", 14) == 0)
        return TARN__REGEX_QWEN2;
    for (size_t i = 0; i < sizeof(llama) / sizeof(llama[0]); i++)
        if (strcmp(name, llama[i]) == 0)
            return TARN__REGEX_LLAMA3;
    tarn__hf_raise(reader, TARN_ERROR_UNSUPPORTED,
                   "the class '%.60s' has no known pattern for a tiktoken file; add \"pattern\" to "
                   "tokenizer_config.json, or use a tokenizer.json",
                   name);
    return NULL;
}

/* The file has no special tokens: added_tokens_decoder has their ids. */
static bool apply_config(const tarn__hf_reader *reader, json_t *config)
{
    tarn_tokenizer *t = reader->tokenizer;
    json_t *list = json_object_get(config, "added_tokens_decoder");
    const char *pattern = find_pattern(reader, config);
    t->bpe.ignore_merges = true;
    return pattern && tarn__hf_add_regex(reader, pattern) &&
           (!json_is_object(list) || tarn__hf_read_added_tokens_decoder(reader, list, tarn__hf_read_added_token));
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* The first line decides: a protobuf message has no such line. */
bool tarn__tokenizer_is_tiktoken(const char *path)
{
    tarn__map map;
    char bytes[MAX_LINE];
    int64_t count, rank;
    size_t next;
    if (!tarn__map_open(&map, "tokenizer_open", path))
        return false;
    bool is_it = map.bytes > 0 && parse_line(map.memory, tarn__hf_line_at(&map, 0, &next), bytes, &count, &rank);
    tarn__map_close(&map);
    return is_it;
}

/* Errors of the settings name the file that they are in. */
static bool read_all(const tarn__hf_reader *reader, const tarn__map *map, const char *config, json_t *settings)
{
    tarn_tokenizer *t = reader->tokenizer;
    bool good = read_tokens(reader, map);
    for (int32_t id = 0; good && id < t->vocab.count; id++)
        good = !tarn__vocab_has(&t->vocab, id) || add_merges(t, id);
    return good && apply_config(&(tarn__hf_reader){t, config ? config : reader->name}, settings);
}

/* `config` may be NULL: the pattern is then Llama 3's. */
tarn_tokenizer *tarn__tokenizer_read_tiktoken(const char *path, const char *config)
{
    return tarn__hf_read_lines(&tarn__kind_bpe, path, config, read_all);
}
