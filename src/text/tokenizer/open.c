/* open.c: which files a path means. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/os/files.h"
#include "base/os/platform.h"
#include "formats/file_type.h"
#include "text/files/gguf_tokenizer.h"

#define LONGEST_PATH 4096

/* The names under which a vocabulary and its merges lie. */
static const char *const parts[][2] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
#define PARTS ((int)(sizeof(parts) / sizeof(parts[0])))

static bool is_folder(const char *path)
{
    return tarn__platform_file_bytes(path) == -2 && tarn__path_exists(path);
}

/* "folder/name" */
static const char *below(char *text, const char *folder, size_t length, const char *name)
{
    snprintf(text, LONGEST_PATH, "%.*s%s%s", (int)length, folder, length && folder[length - 1] != '/' ? "/" : "", name);
    return text;
}

/* The two files in a folder (its first `length` letters; "" is the current one), with the configuration where there is
 * one. */
static tarn_tokenizer *read_parts(const char *folder, size_t length, const char *vocabulary, const char *merges)
{
    char first[LONGEST_PATH], second[LONGEST_PATH], config[LONGEST_PATH];
    below(config, folder, length, "tokenizer_config.json");
    return tarn__tokenizer_read_vocab(below(first, folder, length, vocabulary), below(second, folder, length, merges),
                                      tarn__path_exists(config) ? config : NULL);
}

/* A tokenizer with what lies beside it in its folder. Takes the tokenizer, and frees it where that fails. */
static tarn_tokenizer *with_config(tarn_tokenizer *tokenizer, const char *folder, size_t length, bool is_model)
{
    char config[LONGEST_PATH], chat[LONGEST_PATH];
    bool has_config = tarn__path_exists(below(config, folder, length, "tokenizer_config.json"));
    bool has_chat = tarn__path_exists(below(chat, folder, length, "chat_template.jinja"));
    if (tokenizer && is_model && !has_config && !tarn__tokenizer_set_add_bos_eos(tokenizer, true, false)) {
        tarn_tokenizer_free(tokenizer);
        return NULL;
    }
    if (!tokenizer || (!has_config && !has_chat) ||
        tarn__tokenizer_read_config(tokenizer, has_config ? config : NULL, has_chat ? chat : NULL, is_model))
        return tokenizer;
    tarn_tokenizer_free(tokenizer);
    return NULL;
}

static tarn_tokenizer *open_parts(const char *folder)
{
    char path[LONGEST_PATH];
    size_t length = strlen(folder);
    for (int i = 0; i < PARTS; i++)
        if (tarn__path_exists(below(path, folder, length, parts[i][0])))
            return with_config(read_parts(folder, length, parts[i][0], parts[i][1]), folder, length, false);
    if (tarn__path_exists(below(path, folder, length, "tokenizer.model")))
        return with_config(tarn__tokenizer_read_spm(path), folder, length, true);
    tarn__raise(TARN_ERROR_IO,
                "tokenizer_open: '%s' has neither tokenizer.json, nor vocab.json and merges.txt, nor encoder.json and "
                "vocab.bpe, nor "
                "tokenizer.model",
                folder);
    return NULL;
}

static tarn_tokenizer *open_folder(const char *folder)
{
    char path[LONGEST_PATH];
    bool has_json = tarn__path_exists(below(path, folder, strlen(folder), "tokenizer.json"));
    return has_json ? with_config(tarn__tokenizer_read_json(path), folder, strlen(folder), false) : open_parts(folder);
}

static bool ends_in(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

static tarn_tokenizer *read_gguf(const char *path)
{
    tarn_gguf *file = tarn_gguf_open(path);
    tarn_tokenizer *tokenizer = file ? tarn__tokenizer_from_gguf("tokenizer_open", path, file) : NULL;
    tarn_gguf_close(file);
    return tokenizer;
}

/* A file: a vocabulary or its merges by their usual names, when the other lies beside it; a model of SentencePiece; a
 * GGUF file; else a tokenizer.json. */
static tarn_tokenizer *open_file(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = (size_t)(name - path);
    char other[LONGEST_PATH];
    for (int i = 0; i < PARTS; i++)
        for (int k = 0; k < 2; k++)
            if (strcmp(name, parts[i][k]) == 0 && tarn__path_exists(below(other, path, length, parts[i][1 - k])))
                return with_config(read_parts(path, length, parts[i][0], parts[i][1]), path, length, false);
    if (ends_in(name, ".model"))
        return with_config(tarn__tokenizer_read_spm(path), path, length, true);
    if (ends_in(name, ".gguf"))
        return read_gguf(path);
    tarn_tokenizer *tokenizer = tarn__tokenizer_read_json(path);
    return strcmp(name, "tokenizer.json") == 0 ? with_config(tokenizer, path, length, false) : tokenizer;
}

tarn_tokenizer *tarn_tokenizer_open(const char *path)
{
    if (tarn_failed())
        return NULL;
    if (!path || !path[0] || strlen(path) > LONGEST_PATH - 64) {
        tarn__raise(TARN_ERROR_ARGUMENT,
                    "tokenizer_open: the path of a file or folder is required, of at most %d bytes", LONGEST_PATH - 64);
        return NULL;
    }
    if (is_folder(path))
        return open_folder(path);
    return tarn__path_exists(path) ||
                   tarn__check_model_path("tokenizer_open", path, "a model's folder or a tokenizer's file")
               ? open_file(path)
               : NULL;
}
