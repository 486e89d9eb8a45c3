/* hf_read_none.c: stubs of the tokenizer readers and of jsonl_read.c for a build without jansson: errors that name
 * it. */
#include "base/error.h"
#include "text/files/jsonl.h"
#include "text/shards/shards.h"
#include "text/tokenizer/tokenizer.h"

/* Returns false. */
static bool missing(const char *function)
{
    return tarn__raise(
        TARN_ERROR_UNSUPPORTED,
        "%s: this build of tarn cannot read tokenizer files: it was built without jansson; install libjansson-dev "
        "(Debian, Ubuntu) or jansson-devel (Fedora) and build again",
        function);
}

/* Tokenizers of bytes and characters, and those in GGUF files, need no jansson. */
tarn_tokenizer *tarn__tokenizer_read_json(const char *path)
{
    (void)path;
    missing("tokenizer_open");
    return NULL;
}

tarn_tokenizer *tarn__tokenizer_parse_json(const char *name, const char *text, size_t length)
{
    (void)name, (void)text, (void)length;
    missing("tokenizer_open");
    return NULL;
}

tarn_tokenizer *tarn__tokenizer_read_vocab(const char *vocabulary, const char *merges, const char *config)
{
    (void)vocabulary, (void)merges, (void)config;
    missing("tokenizer_open");
    return NULL;
}

bool tarn__tokenizer_is_tiktoken(const char *path)
{
    (void)path;
    return false;
}

tarn_tokenizer *tarn__tokenizer_read_tiktoken(const char *path, const char *config)
{
    (void)path, (void)config;
    missing("tokenizer_open");
    return NULL;
}

tarn_tokenizer *tarn__tokenizer_read_bert(const char *path, const char *config)
{
    return tarn__tokenizer_read_tiktoken(path, config);
}

bool tarn__tokenizer_read_config(tarn_tokenizer *tokenizer, const char *config, const char *chat, bool is_model)
{
    (void)tokenizer, (void)config, (void)chat, (void)is_model;
    return missing("tokenizer_open");
}

/* Lines of JSON need jansson too. */
bool tarn__jsonl_sample_read(tarn__jsonl_sample *line, const char *where, const char *bytes, size_t length)
{
    (void)line, (void)bytes, (void)length;
    return missing(where);
}

void tarn__jsonl_sample_free(tarn__jsonl_sample *line)
{
    (void)line;
}

bool tarn__jsonl_text(const char *function, tarn__buffer *text, const char *line, size_t length, const char *field,
                      const char *path, int64_t number)
{
    (void)text, (void)line, (void)length, (void)field, (void)path, (void)number;
    return missing(function);
}
