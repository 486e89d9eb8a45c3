/* open.c: finds the files of a tokenizer from a path: a folder, or one of the files. Order of preference in a folder:
 * tokenizer.json, vocab.json with merges.txt, tokenizer.model (SentencePiece's, or tiktoken's), vocab.txt. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "base/os/platform.h"
#include "formats/file_type.h"
#include "text/files/gguf_tokenizer.h"

#define MAX_PATH 4096

/* File names of a vocabulary and its merges: Hugging Face's, and those of OpenAI's GPT-2. */
static const char *const pairs[][2] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
#define PAIRS ((int)(sizeof(pairs) / sizeof(pairs[0])))

/* tarn__platform_file_bytes() gives -2 for anything that is not a regular file. */
static bool is_folder(const char *path)
{
    return tarn__platform_file_bytes(path) == -2 && tarn__path_exists(path);
}

/* True if a string has this suffix. */
static bool ends_in(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

/* Writes "folder/name"; the folder is the first `length` bytes, and may be empty. Returns the text. */
static const char *join_path(char *text, const char *folder, size_t length, const char *name)
{
    snprintf(text, MAX_PATH, "%.*s%s%s", (int)length, folder, length && folder[length - 1] != '/' ? "/" : "", name);
    return text;
}

/* Reads a vocabulary and its merges from a folder, with tokenizer_config.json if there is one. */
static tarn_tokenizer *read_pair(const char *folder, size_t length, const char *vocabulary, const char *merges)
{
    char first[MAX_PATH], second[MAX_PATH], config[MAX_PATH];
    join_path(config, folder, length, "tokenizer_config.json");
    return tarn__tokenizer_read_vocab(join_path(first, folder, length, vocabulary),
                                      join_path(second, folder, length, merges),
                                      tarn__path_exists(config) ? config : NULL);
}

/* The names in additional_chat_templates. */
typedef struct template_names {
    tarn__buffer names; /* char *; owned */
    bool good;
} template_names;

/* A function of tarn__folder_names(): false ends the listing. */
static bool list_template(const char *name, void *ctx)
{
    template_names *list = ctx;
    char *copy = ends_in(name, ".jinja") ? tarn__string_copy(name) : NULL;
    if (copy && !tarn__buffer_add(&list->names, &copy, 1, sizeof(copy))) {
        tarn__string_free(copy);
        list->good = false;
    }
    list->good = list->good && !tarn_failed();
    return list->good;
}

/* By bytes, so that the order does not depend on the file system. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Reads the templates that transformers saves next to the default one, in the order of their names. False with an
 * error. */
static bool read_more_templates(tarn_tokenizer *tokenizer, const char *folder, size_t length)
{
    char path[MAX_PATH], file[MAX_PATH];
    template_names list = {.good = true};
    join_path(path, folder, length, "additional_chat_templates");
    tarn__folder_names(path, list_template, &list);
    char **names = (char **)(void *)list.names.data;
    if (list.names.count)
        qsort(names, list.names.count, sizeof(*names), by_name);
    for (size_t i = 0; list.good && i < list.names.count; i++)
        list.good = tarn__tokenizer_read_config(tokenizer, NULL, join_path(file, path, strlen(path), names[i]), false);
    for (size_t i = 0; i < list.names.count; i++)
        tarn__string_free(names[i]);
    tarn__buffer_free(&list.names, sizeof(*names));
    return list.good;
}

/* Applies tokenizer_config.json and chat_template.jinja or .json of the folder. Takes the tokenizer, and frees it on
 * failure. A tokenizer.model without a config adds BOS, as transformers does. */
static tarn_tokenizer *with_config(tarn_tokenizer *tokenizer, const char *folder, size_t length, bool is_model)
{
    char config[MAX_PATH], chat[MAX_PATH];
    bool has_config = tarn__path_exists(join_path(config, folder, length, "tokenizer_config.json"));
    static const char *const templates[] = {"chat_template.jinja", "chat_template.json"};
    bool has_chat = false;
    for (int i = 0; i < 2 && !has_chat; i++)
        has_chat = tarn__path_exists(join_path(chat, folder, length, templates[i]));
    if (tokenizer && is_model && !has_config && !tarn__tokenizer_set_add_bos_eos(tokenizer, true, false)) {
        tarn_tokenizer_free(tokenizer);
        return NULL;
    }
    if (tokenizer &&
        ((!has_config && !has_chat) ||
         tarn__tokenizer_read_config(tokenizer, has_config ? config : NULL, has_chat ? chat : NULL, is_model)) &&
        read_more_templates(tokenizer, folder, length))
        return tokenizer;
    tarn_tokenizer_free(tokenizer);
    return NULL;
}

/* Reads a tokenizer.model: tiktoken's has lines of text, SentencePiece's is a protobuf message. */
static tarn_tokenizer *read_model(const char *path, const char *folder, size_t length)
{
    char config[MAX_PATH];
    if (!tarn__tokenizer_is_tiktoken(path))
        return tarn_failed() ? NULL : with_config(tarn__tokenizer_read_spm(path), folder, length, true);
    bool has_config = tarn__path_exists(join_path(config, folder, length, "tokenizer_config.json"));
    return with_config(tarn__tokenizer_read_tiktoken(path, has_config ? config : NULL), folder, length, false);
}

/* Reads BERT's vocab.txt. */
static tarn_tokenizer *read_bert(const char *path, const char *folder, size_t length)
{
    char config[MAX_PATH];
    bool has_config = tarn__path_exists(join_path(config, folder, length, "tokenizer_config.json"));
    return with_config(tarn__tokenizer_read_bert(path, has_config ? config : NULL), folder, length, false);
}

/* Opens a folder without tokenizer.json. */
static tarn_tokenizer *open_other(const char *folder)
{
    char path[MAX_PATH];
    size_t length = strlen(folder);
    for (int i = 0; i < PAIRS; i++)
        if (tarn__path_exists(join_path(path, folder, length, pairs[i][0])))
            return with_config(read_pair(folder, length, pairs[i][0], pairs[i][1]), folder, length, false);
    if (tarn__path_exists(join_path(path, folder, length, "tokenizer.model")))
        return read_model(path, folder, length);
    if (tarn__path_exists(join_path(path, folder, length, "vocab.txt")))
        return read_bert(path, folder, length);
    tarn__raise(TARN_ERROR_IO,
                "tokenizer_open: '%s' has neither tokenizer.json, nor vocab.json and merges.txt, nor encoder.json and "
                "vocab.bpe, nor tokenizer.model, nor vocab.txt",
                folder);
    return NULL;
}

/* tokenizer.json says most: it is preferred over the older files next to it. */
static tarn_tokenizer *open_folder(const char *folder)
{
    char path[MAX_PATH];
    bool has_json = tarn__path_exists(join_path(path, folder, strlen(folder), "tokenizer.json"));
    return has_json ? with_config(tarn__tokenizer_read_json(path), folder, strlen(folder), false) : open_other(folder);
}

/* Opens the file for its metadata only: weights stay untouched. */
static tarn_tokenizer *read_gguf(const char *path)
{
    tarn_gguf *file = tarn_gguf_open(path);
    tarn_tokenizer *tokenizer = file ? tarn__tokenizer_from_gguf("tokenizer_open", path, file) : NULL;
    tarn_gguf_close(file);
    return tokenizer;
}

/* Opens a file by its name: vocab.json or merges.txt if the other one is next to it, *.model, *.tiktoken, vocab.txt,
 * *.gguf, else a tokenizer.json under any name. */
static tarn_tokenizer *open_file(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = (size_t)(name - path);
    char other[MAX_PATH];
    for (int i = 0; i < PAIRS; i++)
        for (int k = 0; k < 2; k++)
            if (strcmp(name, pairs[i][k]) == 0 && tarn__path_exists(join_path(other, path, length, pairs[i][1 - k])))
                return with_config(read_pair(path, length, pairs[i][0], pairs[i][1]), path, length, false);
    if (ends_in(name, ".model") || ends_in(name, ".tiktoken"))
        return read_model(path, path, length);
    if (strcmp(name, "vocab.txt") == 0)
        return read_bert(path, path, length);
    if (ends_in(name, ".gguf"))
        return read_gguf(path);
    tarn_tokenizer *tokenizer = tarn__tokenizer_read_json(path);
    return strcmp(name, "tokenizer.json") == 0 ? with_config(tokenizer, path, length, false) : tokenizer;
}

/* A path that does not exist gets the error of model paths, which knows hub names and URLs. */
tarn_tokenizer *tarn_tokenizer_open(const char *path)
{
    if (tarn_failed())
        return NULL;
    if (!path || !path[0] || strlen(path) > MAX_PATH - 64) {
        tarn__raise(TARN_ERROR_ARGUMENT,
                    "tokenizer_open: the path of a file or folder is required, of at most %d bytes", MAX_PATH - 64);
        return NULL;
    }
    if (is_folder(path))
        return open_folder(path);
    return tarn__path_exists(path) ||
                   tarn__check_model_path("tokenizer_open", path, "a model folder, a .gguf file or a tokenizer file")
               ? open_file(path)
               : NULL;
}
