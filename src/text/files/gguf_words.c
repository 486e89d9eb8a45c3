/* gguf_words.c: the names that GGUF files have for the ways in which text falls into words. A name that is not here is
 * refused, never guessed. */
#include "text/files/gguf_tokenizer.h"

const tarn__gguf_words tarn__gguf_words_known[] = {
    {"gpt-2", {"gpt2"}, {TARN__PATTERN_GPT2}, .uses_regex = true},
    {"llama-bpe", {"llama3", "llama-v3"}, {TARN__PATTERN_LLAMA3}, .ignore_merges = true, .begins = true},
    {"qwen2", {"deepseek-r1-qwen"}, {TARN__PATTERN_QWEN2}, .nfc = true},
    {"smollm", {0}, {"\\p{N}", TARN__PATTERN_GPT2}, .uses_regex = true},
    {0},
};
