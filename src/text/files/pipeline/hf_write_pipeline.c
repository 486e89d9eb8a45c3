/* hf_write_pipeline.c: pipelines in tokenizer.json: their steps, and the models Unigram, WordPiece, WordLevel and BPE
 * on characters. What hf_read_pipeline.c has read is written again with the same meaning. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/number_format.h"
#include "text/files/hf_write.h"
#include "text/files/pipeline/base64.h"

/* As JSON writes it. */
static const char *bool_text(bool value)
{
    return value ? "true" : "false";
}

/* A string member after others: , "key": "text". */
static bool put_member(tarn__buffer *out, const char *key, const char *text, size_t length)
{
    return tarn__hf_put(out, ", \"%s\": ", key) && tarn__hf_put_string(out, text ? text : "", length);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* The beginning of a step; members follow, and the caller closes the brace. */
static bool put_type(tarn__buffer *out, const char *type)
{
    return tarn__hf_put(out, "{\"type\": \"%s\"", type);
}

/* {"String": …} or {"Regex": …}: what the step's text is. */
static bool put_pattern(tarn__buffer *out, const tarn__pipeline_step *s)
{
    return tarn__hf_put(out, ", \"pattern\": {\"%s\": ", s->is_regex ? "Regex" : "String") &&
           tarn__hf_put_string(out, s->text, s->text_length) && tarn__hf_put(out, "}");
}

/* The map's bytes as they were read. */
static bool put_map(tarn__buffer *out, const tarn__pipeline_step *s)
{
    return put_type(out, "Precompiled") && tarn__hf_put(out, ", \"precompiled_charsmap\": \"") &&
           tarn__base64_encode(out, s->map, s->map_bytes) && tarn__hf_put(out, "\"");
}

/* SentencePiece's normalizer in the steps that Hugging Face's conversion gives it; tarn reads "tarn" instead. */
static bool put_spm(tarn__buffer *out, const tarn__pipeline_step *s)
{
    bool good = put_type(out, "Sequence") && tarn__hf_put(out, ", \"normalizers\": [");
    if (s->map)
        good = good && put_map(out, s) && tarn__hf_put(out, "}, ");
    if (s->remove_extra_spaces)
        good =
            good && tarn__hf_put(out, "{\"type\": \"Strip\", \"strip_left\": true, \"strip_right\": true}, {\"type\": "
                                      "\"Replace\", \"pattern\": {\"Regex\": \" {2,}\"}, \"content\": \" \"}, ");
    if (s->prepend == TARN__PREPEND_ALWAYS)
        good = good && tarn__hf_put(out, "{\"type\": \"Prepend\", \"prepend\": \"" TARN__METASPACE "\"}, ");
    return good && tarn__hf_put(out, "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": "
                                     "\"" TARN__METASPACE "\"}]");
}

/* strip_accents is null where the file left it to lowercase. */
static bool put_bert(tarn__buffer *out, const tarn__pipeline_step *s)
{
    return put_type(out, "BertNormalizer") &&
           tarn__hf_put(out,
                        ", \"clean_text\": %s, \"handle_chinese_chars\": %s, \"strip_accents\": %s, \"lowercase\": %s",
                        bool_text(s->clean_text), bool_text(s->chinese),
                        s->has_strip_accents ? bool_text(s->strip_accents) : "null", bool_text(s->lowercase));
}

/* add_prefix_space, of older files, is not written: the scheme says it. */
static bool put_metaspace(tarn__buffer *out, const tarn__pipeline_step *s)
{
    static const char *const schemes[] = {"never", "first", "always"};
    return put_type(out, "Metaspace") && put_member(out, "replacement", s->text, s->text_length) &&
           tarn__hf_put(out, ", \"prepend_scheme\": \"%s\", \"split\": %s", schemes[s->prepend], bool_text(s->splits));
}

/* The names are in the order of tarn__split_behavior. */
static bool put_split(tarn__buffer *out, const tarn__pipeline_step *s)
{
    static const char *const behaviors[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                            "Contiguous"};
    if (s->type == TARN__STEP_PUNCTUATION)
        return put_type(out, "Punctuation") && tarn__hf_put(out, ", \"behavior\": \"%s\"", behaviors[s->behavior]);
    return put_type(out, "Split") && put_pattern(out, s) &&
           tarn__hf_put(out, ", \"behavior\": \"%s\", \"invert\": %s", behaviors[s->behavior], bool_text(s->invert));
}

/* The members of a step, without the closing brace. */
static bool put_step(tarn__buffer *out, const tarn__pipeline_step *s)
{
    switch (s->type) {
    case TARN__STEP_NFC: return put_type(out, "NFC");
    case TARN__STEP_NFD: return put_type(out, "NFD");
    case TARN__STEP_NFKC: return put_type(out, "NFKC");
    case TARN__STEP_NFKD: return put_type(out, "NFKD");
    case TARN__STEP_LOWERCASE: return put_type(out, "Lowercase");
    case TARN__STEP_STRIP_ACCENTS: return put_type(out, "StripAccents");
    case TARN__STEP_STRIP:
        return put_type(out, "Strip") &&
               tarn__hf_put(out, ", \"strip_left\": %s, \"strip_right\": %s", bool_text(s->left), bool_text(s->right));
    case TARN__STEP_REPLACE:
        return put_type(out, "Replace") && put_pattern(out, s) &&
               put_member(out, "content", s->content, s->content_length);
    case TARN__STEP_PREPEND:
        return put_type(out, "Prepend") && put_member(out, "prepend", s->content, s->content_length);
    case TARN__STEP_PRECOMPILED: return put_map(out, s);
    case TARN__STEP_SPM_NORMALIZER: return put_spm(out, s);
    case TARN__STEP_BERT_NORMALIZER: return put_bert(out, s);
    case TARN__STEP_SPLIT:
    case TARN__STEP_PUNCTUATION: return put_split(out, s);
    case TARN__STEP_DIGITS:
        return put_type(out, "Digits") && tarn__hf_put(out, ", \"individual_digits\": %s", bool_text(s->single));
    case TARN__STEP_WHITESPACE: return put_type(out, "Whitespace");
    case TARN__STEP_WHITESPACE_SPLIT: return put_type(out, "WhitespaceSplit");
    case TARN__STEP_BERT_PRE_TOKENIZER: return put_type(out, "BertPreTokenizer");
    case TARN__STEP_CHAR_DELIMITER_SPLIT:
        return put_type(out, "CharDelimiterSplit") && put_member(out, "delimiter", s->text, s->text_length);
    case TARN__STEP_METASPACE: return put_metaspace(out, s);
    case TARN__STEP_BYTE_LEVEL:
        return put_type(out, "ByteLevel") &&
               tarn__hf_put(out, ", \"add_prefix_space\": %s, \"trim_offsets\": true, \"use_regex\": %s",
                            bool_text(s->prefix_space), bool_text(s->use_regex));
    case TARN__STEP_BYTE_FALLBACK: return put_type(out, "ByteFallback");
    case TARN__STEP_FUSE: return put_type(out, "Fuse");
    case TARN__STEP_STRIP_CONTENT:
        return put_type(out, "Strip") && put_member(out, "content", s->text, s->text_length) &&
               tarn__hf_put(out, ", \"start\": %zu, \"stop\": %zu", s->start, s->stop);
    case TARN__STEP_WORDPIECE_DECODER:
        return put_type(out, "WordPiece") && put_member(out, "prefix", s->text, s->text_length) &&
               tarn__hf_put(out, ", \"cleanup\": %s", bool_text(s->cleanup));
    case TARN__STEP_BPE_DECODER:
        return put_type(out, "BPEDecoder") && put_member(out, "suffix", s->text, s->text_length);
    }
    /* A type without a case above is a warning of the compiler. */
    return tarn__raise(TARN_ERROR_INTERNAL, "tokenizer_save: an unknown step");
}

/* "key": null, one step, or a sequence. */
static bool put_steps(tarn__buffer *out, const char *key, const char *list, const tarn__buffer *steps)
{
    bool good = tarn__hf_put(out, "  \"%s\": ", key), is_list = steps->count > 1;
    if (steps->count == 0)
        return good && tarn__hf_put(out, "null,\n");
    if (is_list)
        good = good && tarn__hf_put(out, "{\"type\": \"Sequence\", \"%s\": [", list);
    for (size_t i = 0; good && i < steps->count; i++)
        good = tarn__hf_put(out, i ? ", " : "") && put_step(out, tarn__steps_at(steps, i)) && tarn__hf_put(out, "}");
    return good && tarn__hf_put(out, is_list ? "]},\n" : ",\n");
}

/* Members of the root, each on its line with a comma after it. */
bool tarn__hf_put_pipeline_steps(tarn__buffer *out, const tarn_tokenizer *t)
{
    return put_steps(out, "normalizer", "normalizers", &t->pipeline.normalizers) &&
           put_steps(out, "pre_tokenizer", "pretokenizers", &t->pipeline.pre_tokenizers);
}

bool tarn__hf_put_pipeline_decoder(tarn__buffer *out, const tarn_tokenizer *t)
{
    return put_steps(out, "decoder", "decoders", &t->pipeline.decoders);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* Scores as shortest decimals: they read back as the same f64. */
static bool put_scores(tarn__buffer *out, const tarn_tokenizer *t)
{
    char text[TARN__NUMBER_SIZE];
    bool good = tarn__hf_put(out, "    \"vocab\": [");
    for (size_t i = 0; good && i < t->unigram.count; i++)
        good = tarn__hf_put(out, i ? ",\n      [" : "\n      [") && tarn__hf_put_piece(out, t, (int32_t)i) &&
               tarn__hf_put(out, ", %s]", tarn__number_format(t->unigram.scores[i], text));
    return good && tarn__hf_put(out, "\n    ]");
}

/* What SentencePiece's encoding needs and Hugging Face's file has no member for. */
static bool put_own(tarn__buffer *out, const tarn_tokenizer *t)
{
    const tarn__pipeline_step *s = tarn__steps_at(&t->pipeline.normalizers, 0);
    bool good =
        tarn__hf_put(out, ",\n    \"tarn\": {\"add_dummy_prefix\": %s, \"remove_extra_whitespaces\": %s, \"types\": [",
                     bool_text(s->prepend == TARN__PREPEND_ALWAYS), bool_text(s->remove_extra_spaces));
    for (size_t i = 0; good && i < t->unigram.count; i++)
        good = tarn__hf_put(out, "%s%d", i ? ", " : "", t->unigram.types[i]);
    return good && tarn__hf_put(out, "]}");
}

/* types are written only for tokenizers that encode as SentencePiece. */
static bool put_unigram(tarn__buffer *out, const tarn_tokenizer *t)
{
    char unknown[16] = "null";
    if (t->unigram.unknown >= 0)
        snprintf(unknown, sizeof(unknown), "%d", (int)t->unigram.unknown);
    return tarn__hf_put(out, "    \"type\": \"Unigram\",\n    \"unk_id\": %s,\n    \"byte_fallback\": %s,\n", unknown,
                        bool_text(t->unigram.byte_fallback)) &&
           put_scores(out, t) && (!t->unigram.is_spm || put_own(out, t));
}

/* WordPiece and WordLevel want a name even if the vocabulary has none of it; BPE takes null. */
static bool put_unknown(tarn__buffer *out, const tarn_tokenizer *t, int32_t id, const char *missing)
{
    return tarn__hf_put(out, "    \"unk_token\": ") &&
           (id >= 0 ? tarn__hf_put_piece(out, t, id) : tarn__hf_put(out, "%s", missing)) && tarn__hf_put(out, ",\n");
}

/* Members in the order of Hugging Face's files, for comparison by eye. */
static bool put_wordpiece(tarn__buffer *out, const tarn_tokenizer *t)
{
    return tarn__hf_put(out, "    \"type\": \"WordPiece\",\n    \"max_input_chars_per_word\": %zu,\n",
                        t->wordpiece.max_characters) &&
           tarn__hf_put(out, "    \"continuing_subword_prefix\": ") &&
           tarn__hf_put_string(out, t->wordpiece.prefix ? t->wordpiece.prefix : "", t->wordpiece.prefix_length) &&
           tarn__hf_put(out, ",\n") && put_unknown(out, t, t->unknown, "\"[UNK]\"") && tarn__hf_put_vocabulary(out, t);
}

/* A string, or null. */
static bool put_optional(tarn__buffer *out, const char *key, const char *text, size_t length)
{
    return tarn__hf_put(out, "    \"%s\": ", key) &&
           (text ? tarn__hf_put_string(out, text, length) : tarn__hf_put(out, "null")) && tarn__hf_put(out, ",\n");
}

/* Dropout is null: it is refused when a file is read. */
static bool put_bpe(tarn__buffer *out, const tarn_tokenizer *t)
{
    const tarn__bpe_chars *c = &t->bpe_chars;
    return tarn__hf_put(out, "    \"type\": \"BPE\",\n    \"dropout\": null,\n") &&
           put_optional(out, "continuing_subword_prefix", c->prefix, c->prefix_length) &&
           put_optional(out, "end_of_word_suffix", c->suffix, c->suffix_length) &&
           tarn__hf_put(out, "    \"fuse_unk\": %s,\n    \"byte_fallback\": %s,\n    \"ignore_merges\": %s,\n",
                        bool_text(c->fuse_unknown), bool_text(c->byte_fallback), bool_text(t->bpe.ignore_merges)) &&
           put_unknown(out, t, t->bpe.unknown, "null") && tarn__hf_put_vocabulary(out, t) &&
           tarn__hf_put_merges(out, t);
}

/* The last member: it closes the root too. */
bool tarn__hf_put_pipeline_model(tarn__buffer *out, const tarn_tokenizer *t)
{
    bool good = tarn__hf_put(out, "  \"model\": {\n");
    if (t->kind == &tarn__kind_unigram)
        good = good && put_unigram(out, t);
    else if (t->kind == &tarn__kind_wordpiece)
        good = good && put_wordpiece(out, t);
    else if (t->kind == &tarn__kind_words)
        good = good && tarn__hf_put(out, "    \"type\": \"WordLevel\",\n") &&
               put_unknown(out, t, t->unknown, "\"<unk>\"") && tarn__hf_put_vocabulary(out, t);
    else
        good = good && put_bpe(out, t);
    return good && tarn__hf_put(out, "\n  }\n}\n");
}
