/* gguf_pre_tokenizers.c: pre-tokenizers by their names in GGUF files.
 *
 * GGUF stores no pattern. The regexes here are those of the models' own tokenizer.json, in the order in which they
 * split; where two names differ in nothing they are one row. A name that is not here is an error, never a guess: a
 * wrong split gives wrong ids without any sign. */
#include <string.h>

#include "text/files/gguf_tokenizer.h"

/* One digit at a time, then GPT-2's. */
#define ONE_DIGIT "\\p{N}", TARN__REGEX_GPT2

/* Words by case, with endings such as 's in GPT-4o and without in Mistral's Tekken. */
#define CASED_WORDS(ending) \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" ending \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" ending "|"
#define CASED_REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* DeepSeek's: line ends, words of alphabets with case, punctuation, Han and Hangul. */
#define DEEPSEEK_LETTERS \
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ" \
    "-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛ" \
    "Ὕ\u1F5F-\u1F7Dᾀ-ᾴᾶ-ᾼ\u1FBEῂ-ῄῆ-ῌῐ-\u1FD3ῖ-\u1FDBῠ-Ῥῲ-ῴῶ-ῼℂ" \
    "ℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212A-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮ" \
    "ⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓" \
    "𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
#define DEEPSEEK_HAN "[一-龥ࠀ-一가-퟿]+"

/* A match takes a space before it, and everything up to a space or one of these signs. */
#define BLOOM " ?[^(\\s|[.,!?…。，、।۔،])]+"

/* Falcon's: digits are split again after bytes have become characters, of which some are digits. */
static char three_digits[] = "[0-9][0-9][0-9]";
static const tarn__pipeline_step falcon[] = {
    {.type = TARN__STEP_PUNCTUATION, .behavior = TARN__SPLIT_CONTIGUOUS},
    {.type = TARN__STEP_BYTE_LEVEL, .use_regex = true},
    {.type = TARN__STEP_DIGITS},
    {.type = TARN__STEP_SPLIT, .is_regex = true, .text = three_digits, .text_length = sizeof(three_digits) - 1}};

const tarn__gguf_pre_tokenizer tarn__gguf_pre_tokenizers[] = {
    {.name = "gpt-2",
     .aliases = {"gpt2", "phi-2", "jais", "exaone4", "trillion", "granite-docling"},
     .regex = {TARN__REGEX_GPT2},
     .uses_regex = true},
    {.name = "olmo", .aliases = {"mpt"}, .regex = {TARN__REGEX_GPT2}, .uses_regex = true, .nfc = true},
    {.name = "llama-bpe",
     .aliases = {"llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2"},
     .regex = {TARN__REGEX_LLAMA3},
     .ignore_merges = true,
     .adds_bos = true},
    {.name = "dbrx", .aliases = {"smaug-bpe", "chatglm-bpe", "glm4"}, .regex = {TARN__REGEX_LLAMA3}},
    {.name = "qwen2", .aliases = {"deepseek-r1-qwen", "megrez"}, .regex = {TARN__REGEX_QWEN2}, .nfc = true},
    {.name = "stablelm2", .aliases = {"hunyuan", "grok-2"}, .regex = {TARN__REGEX_QWEN2}},
    {.name = "smollm",
     .aliases = {"starcoder", "refact", "codeshell", "minerva-7b", "exaone"},
     .regex = {ONE_DIGIT},
     .uses_regex = true},
    {.name = "command-r", .regex = {ONE_DIGIT}, .uses_regex = true, .nfc = true},
    {.name = "tekken", .regex = {CASED_WORDS("") "\\p{N}" CASED_REST}, .ignore_merges = true, .adds_bos = true},
    {.name = "gpt-4o",
     .aliases = {"llama4", "kanana2"},
     .regex = {CASED_WORDS("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "\\p{N}{1,3}" CASED_REST}},
    {.name = "deepseek-llm",
     .regex = {"[\r\n]", DEEPSEEK_LETTERS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", DEEPSEEK_HAN, "\\p{N}+"}},
    {.name = "deepseek-coder", .regex = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_HAN, "\\p{N}"}},
    {.name = "deepseek-v3",
     .regex = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
               "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
               "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
    {.name = "bloom", .aliases = {"poro-chat", "gpt3-finnish"}, .regex = {BLOOM}, .joins_lines = true},
    {.name = "falcon", .steps = falcon, .step_count = sizeof(falcon) / sizeof(falcon[0])},
    {.name = "viking", .regex = {BLOOM, "\\p{N}"}, .joins_lines = true},
    {0},
};

/* Whether the steps of a pipeline are those of a row. */
static bool has_steps(const tarn__pipeline *p, const tarn__gguf_pre_tokenizer *pre)
{
    if (p->normalizers.count > 0 || p->pre_tokenizers.count != (size_t)pre->step_count)
        return false;
    for (int i = 0; i < pre->step_count; i++) {
        const tarn__pipeline_step *a = tarn__steps_at(&p->pre_tokenizers, (size_t)i), *b = &pre->steps[i];
        if (a->type != b->type || a->behavior != b->behavior || a->invert != b->invert || a->single != b->single ||
            a->use_regex != b->use_regex || a->prefix_space != b->prefix_space || a->is_regex != b->is_regex ||
            a->text_length != b->text_length || (a->text_length && memcmp(a->text, b->text, a->text_length) != 0))
            return false;
    }
    return true;
}

/* Whether the regexes of a tokenizer are those of a row. */
static bool has_regexes(const tarn_tokenizer *t, const tarn__gguf_pre_tokenizer *pre)
{
    int count = 0;
    if (pre->steps || t->pipeline.is_used)
        return pre->steps && t->pipeline.is_used && has_steps(&t->pipeline, pre);
    for (; count < TARN__GGUF_PRE_REGEXES && pre->regex[count]; count++)
        if (count == t->bpe.regex_count || strcmp(pre->regex[count], tarn__regex_source(t->bpe.regex[count])) != 0)
            return false;
    return count == t->bpe.regex_count;
}

const char *tarn__gguf_pre_tokenizer_name(const tarn_tokenizer *t)
{
    for (const tarn__gguf_pre_tokenizer *pre = tarn__gguf_pre_tokenizers; pre->name && !t->bpe.prefix_space; pre++)
        if (pre->nfc == t->nfc && pre->ignore_merges == t->bpe.ignore_merges && has_regexes(t, pre))
            return pre->name;
    return NULL;
}

/* Of a pattern that is not known nothing is assumed. */
bool tarn__pre_tokenizer_ends_words(const tarn_tokenizer *t)
{
    const tarn__gguf_pre_tokenizer *pre = tarn__gguf_pre_tokenizers;
    while (pre->name && !has_regexes(t, pre))
        pre++;
    return pre->name && !pre->joins_lines;
}
