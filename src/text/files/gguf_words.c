/* gguf_words.c: the names that GGUF files have for the ways in which text falls into words. A name that is not here is
 * refused, never guessed. */
#include "text/files/gguf_tokenizer.h"

const tarn__gguf_pre_tokenizer tarn__gguf_pre_tokenizers[] = {
    {"gpt-2", {"gpt2"}, {TARN__REGEX_GPT2}, .uses_regex = true},
    {"llama-bpe", {"llama3", "llama-v3"}, {TARN__REGEX_LLAMA3}, .ignore_merges = true, .begins = true},
    {"qwen2", {"deepseek-r1-qwen"}, {TARN__REGEX_QWEN2}, .nfc = true},
    {"smollm", {0}, {"\\p{N}", TARN__REGEX_GPT2}, .uses_regex = true},
    {0},
};
