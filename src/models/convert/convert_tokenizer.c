/* convert_tokenizer.c: tokenizer and chat template of a folder as GGUF metadata, and back.
 *
 * text/files/to_gguf.c writes the vocabulary, merges or scores, and the name of the pre-tokenizer. The folder's
 * tokenizer.json is stored next to them under the format's key for it, so that a round trip restores it; for a file
 * without it one is generated. */
#include <stdio.h>
#include <string.h>
#include <tarn/text.h>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/json_file.h"
#include "models/convert/convert.h"
#include "models/hf/weights.h"
#include "text/files/gguf_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

#define G "tokenizer.ggml."
#define HF_JSON "tokenizer.huggingface.json"

/* True if a folder has a file of that name. */
static bool exists(const tarn__conversion *c, const char *folder, const char *name)
{
    tarn__model_path where;
    return tarn__model_path_in(c->function, folder, name, &where) && tarn__path_exists(where.text);
}

/* ---- folder to metadata ------------------------------------------------------------------------------------------ */

/* Only if the tokenizer is the adapters' own: else the file's template is copied with the metadata. */
bool tarn__convert_put_chat(const tarn__conversion *c, tarn_gguf_writer *writer, const char **key)
{
    *key = NULL;
    if (strcmp(c->text, c->from) == 0)
        return true;
    tarn_tokenizer *t = tarn_tokenizer_open(c->text);
    bool good = t && tarn__gguf_put_templates(t, writer);
    if (good && t->chats.count)
        *key = TARN__GGUF_CHAT;
    tarn_tokenizer_free(t);
    return good;
}

/* Stores tokenizer.json unchanged. */
static bool put_hf_json(const tarn__conversion *c, tarn_gguf_writer *writer)
{
    tarn__model_path where;
    tarn__map map;
    if (!exists(c, c->text, "tokenizer.json") || !tarn__model_path_in(c->function, c->text, "tokenizer.json", &where))
        return true;
    if (!tarn__map_open(&map, c->function, where.text))
        return false;
    bool good = tarn_gguf_add_string(writer, HF_JSON, map.memory, map.bytes);
    tarn__map_close(&map);
    return good;
}

bool tarn__convert_has_tokenizer(const tarn__conversion *c)
{
    return exists(c, c->text, "tokenizer.json") || exists(c, c->text, "tokenizer.model") ||
           exists(c, c->text, "vocab.json") || exists(c, c->text, "vocab.txt");
}

/* The vocabulary is padded to the model's: embeddings may have more rows than the tokenizer has tokens. */
bool tarn__convert_put_tokenizer(tarn__conversion *c, tarn_gguf_writer *writer)
{
    const tarn_lm_config *own = &c->config;
    const tarn__gguf_model model = {own->vocab_size, own->has_bos ? (int32_t)own->bos : -1,
                                    own->eos_count ? (int32_t)own->eos[0] : -1, exists(c, c->text, "tokenizer.json")};
    tarn_tokenizer *t = tarn_tokenizer_open(c->text);
    bool good = t && tarn__tokenizer_to_gguf(c->function, t, &model, writer) && put_hf_json(c, writer);
    c->summary.has_tokenizer = good;
    tarn_tokenizer_free(t);
    return good;
}

/* ---- metadata to folder ------------------------------------------------------------------------------------------ */

/* Restores tokenizer.json unchanged. */
static bool get_hf_json(const tarn__conversion *c, const tarn_gguf *file)
{
    tarn__model_path where;
    tarn__output output;
    size_t length;
    const char *text = tarn_gguf_string(file, HF_JSON, &length);
    if (!text || !tarn__model_path_in(c->function, c->to, "tokenizer.json", &where) ||
        !tarn__output_open(&output, c->function, where.text))
        return false;
    if (tarn__output_write(&output, text, length))
        return tarn__output_commit(&output);
    tarn__output_discard(&output);
    return false;
}

/* Generates tokenizer.json from the vocabulary and merges or scores. */
static bool generate_hf_json(const tarn__conversion *c)
{
    tarn_tokenizer *t = tarn_tokenizer_open(c->from);
    bool good = t && tarn_tokenizer_save(t, c->to);
    tarn_tokenizer_free(t);
    return good;
}

/* A special token by its id's text. */
static bool set_token(tarn__json_file *config, const char *member, const tarn_gguf *file, const char *key)
{
    int64_t id;
    size_t length;
    char text[512];
    tarn_gguf_value tokens;
    if (!tarn_gguf_has(file, key, NULL) || !tarn_gguf_has(file, G "tokens", &tokens))
        return !tarn_failed();
    const char *piece =
        tarn_gguf_int(file, key, 0, tokens.count - 1, &id) ? tarn_gguf_string_at(file, G "tokens", id, &length) : NULL;
    if (!piece)
        return false;
    snprintf(text, sizeof(text), "%.*s", (int)(length < sizeof(text) ? length : sizeof(text) - 1), piece);
    return tarn__json_file_set_string(config, member, text);
}

/* A bool, if the file has it. */
static bool set_switch(tarn__json_file *config, const char *member, const tarn_gguf *file, const char *key)
{
    bool value;
    if (!tarn_gguf_has(file, key, NULL))
        return !tarn_failed();
    return tarn_gguf_bool(file, key, &value) && tarn__json_file_set_bool(config, member, value);
}

/* A chat template: the only one as a string, of several each as a member of an array. */
static bool add_template(tarn__json_file *config, const tarn_gguf *file, const char *name, size_t length, bool is_only)
{
    char key[160], own[101];
    bool is_default = !name;
    snprintf(own, sizeof(own), "%.*s", is_default ? 7 : (int)length, is_default ? "default" : name);
    snprintf(key, sizeof(key), TARN__GGUF_CHAT "%s%s", is_default ? "" : ".", is_default ? "" : own);
    const char *text = tarn_gguf_has(file, key, NULL) ? tarn_gguf_string(file, key, NULL) : NULL;
    if (!text || (is_default && !text[0]))
        return !tarn_failed();
    return is_only ? tarn__json_file_set_string(config, "chat_template", text)
                   : tarn__json_file_add_pair(config, "chat_template", "name", own, "template", text);
}

/* "chat_template", as transformers reads one or several. */
static bool get_templates(tarn__json_file *config, const tarn_gguf *file)
{
    tarn_gguf_value names = {0};
    bool has_names = tarn_gguf_has(file, TARN__GGUF_CHAT_NAMES, &names) && names.type == TARN_GGUF_ARRAY &&
                     names.element == TARN_GGUF_STRING && names.count > 0;
    bool good = add_template(config, file, NULL, 0, !has_names);
    for (int64_t i = 0; good && has_names && i < names.count; i++) {
        size_t length;
        const char *name = tarn_gguf_string_at(file, TARN__GGUF_CHAT_NAMES, i, &length);
        good = name && (length > 100 || add_template(config, file, name, length, false));
    }
    return good && !tarn_failed();
}

/* tokenizer_config.json: special tokens and chat templates. */
static bool get_config(const tarn__conversion *c, const tarn_gguf *file)
{
    tarn__model_path where;
    bool is_named = tarn__model_path_in(c->function, c->to, "tokenizer_config.json", &where);
    tarn__json_file *config = is_named ? tarn__json_file_new(c->function) : NULL;
    bool good = config && tarn__json_file_set_string(config, "tokenizer_class", "PreTrainedTokenizerFast") &&
                tarn__json_file_set_bool(config, "clean_up_tokenization_spaces", false) &&
                set_token(config, "bos_token", file, G "bos_token_id") &&
                set_token(config, "eos_token", file, G "eos_token_id") &&
                set_token(config, "unk_token", file, G "unknown_token_id") &&
                set_switch(config, "add_bos_token", file, G "add_bos_token") &&
                set_switch(config, "add_eos_token", file, G "add_eos_token");
    for (const tarn__gguf_special *special = tarn__gguf_specials; good && special->name; special++)
        good = set_token(config, special->name, file, special->key);
    good = good && get_templates(config, file) && tarn__json_file_save(config, where.text);
    tarn__json_file_free(config);
    return good;
}

/* A file without a tokenizer gives a folder without one. */
bool tarn__convert_get_tokenizer(tarn__conversion *c, const tarn_gguf *file)
{
    if (!tarn_gguf_has(file, G "tokens", NULL) && !tarn_gguf_has(file, HF_JSON, NULL))
        return !tarn_failed();
    c->summary.has_tokenizer = true;
    return (tarn_gguf_has(file, HF_JSON, NULL) ? get_hf_json(c, file) : generate_hf_json(c)) && get_config(c, file);
}
