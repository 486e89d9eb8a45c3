/* corpus.c: a corpus by its name: one contiguous sequence of tokens per split.
 *
 * A text file is tokenized in memory at every start; shards are mapped, so that a corpus may be larger than memory. The
 * hash identifies the tokens: a resumed run must find the same. */
#include "train/data/corpus.h"

#include <string.h>

#include "base/error.h"
#include "base/os/files.h"

enum { VAL_DIVISOR = 10 }; /* 1 / VAL_DIVISOR of the tokens of a text are for validation */

/* A parsed name; the path points into it. */
typedef struct source {
    const char *path; /* of the file or the folder */
    bool is_shards;
} source;

static const struct {
    const char *prefix;
    bool is_shards;
} kinds[] = {{"text:", false}, {"shards:", true}};

static bool parse_name(const char *name, source *from)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        size_t length = strlen(kinds[i].prefix);
        if (strncmp(name, kinds[i].prefix, length) == 0) {
            *from = (source){name + length, kinds[i].is_shards};
            return true;
        }
    }
    return false;
}

bool tarn__data_is_corpus(const char *name)
{
    source from;
    return parse_name(name, &from);
}

static bool read_name(const char *function, const char *name, source *from)
{
    if (!parse_name(name, from))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%.200s' is not text; must be text:FILE or shards:FOLDER",
                           function, name);
    return from->path[0] || tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' has no path; must be %s%s", function, name,
                                        from->is_shards ? "shards:" : "text:", from->is_shards ? "FOLDER" : "FILE");
}

/* ---- a text file ------------------------------------------------------------------------------------------------- */

/* Raises the pending error again with the file's name. Returns false. */
static bool raise_for_file(const char *function, const char *path)
{
    tarn__error_record inner;
    tarn__error_save(&inner);
    return tarn__raise(inner.code, "%s: '%s': %s", function, path, inner.text + strlen("tarn: "));
}

static bool is_character_level(const char *tokenizer)
{
    return !tokenizer[0] || strcmp(tokenizer, "characters") == 0;
}

/* A character tokenizer is saved in the run folder as tokenizer.json, which cannot represent NUL. False with an
 * error. */
static bool check_no_nul(const tarn__map *text)
{
    const char *nul = text->bytes ? memchr(text->memory, 0, text->bytes) : NULL;
    return !nul || tarn__raise(TARN_ERROR_FORMAT,
                               "byte %zu is NUL, which tokenizer.json cannot represent; use the tokenizer bytes",
                               (size_t)(nul - text->memory));
}

static tarn_tokenizer *tokenizer_for(const char *name, const tarn__map *text)
{
    if (is_character_level(name))
        return check_no_nul(text) ? tarn_tokenizer_characters(text->bytes ? text->memory : "", text->bytes) : NULL;
    return strcmp(name, "bytes") == 0 ? tarn_tokenizer_bytes() : tarn_tokenizer_open(name);
}

/* FNV-1a over the bytes of the ids. */
static uint64_t hash_of(const int32_t *ids, int64_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < count; i++)
        for (int b = 0; b < 32; b += 8)
            hash = (hash ^ (((uint32_t)ids[i] >> b) & 255)) * 0x100000001b3u;
    return hash;
}

/* Tokenizes a file with the corpus' tokenizer, or the named one. Special tokens in the text are ordinary text. */
static bool encode_file(const char *function, const char *path, const char *tokenizer, tarn__corpus *corpus,
                        int64_t *count)
{
    tarn__map text;
    if (!tarn__map_open(&text, function, path))
        return false;
    tarn__log(TARN_LOG_INFO, "tokenizing %s", path);
    if (!corpus->tokenizer)
        corpus->tokenizer = tokenizer_for(tokenizer, &text);
    if (corpus->tokenizer)
        corpus->ids = tarn_tokenizer_encode(corpus->tokenizer, text.bytes ? text.memory : "", text.bytes,
                                            &(tarn_encode_options){.special_as_text = true}, count);
    tarn__map_close(&text);
    if (!corpus->ids)
        return corpus->tokenizer || is_character_level(tokenizer) ? raise_for_file(function, path)
                                                                  : tarn__raise_within(function);
    corpus->hash = hash_of(corpus->ids, *count);
    return true;
}

static bool open_text(const char *function, const char *path, const char *tokenizer, tarn__corpus *corpus)
{
    int64_t count;
    if (!encode_file(function, path, tokenizer, corpus, &count))
        return false;
    /* count * 9 / 10 without overflow; the last part is for validation, as its text is never seen in training */
    int64_t cut = count / VAL_DIVISOR * (VAL_DIVISOR - 1) + count % VAL_DIVISOR * (VAL_DIVISOR - 1) / VAL_DIVISOR;
    corpus->training = (tarn__token_span){.ids = corpus->ids, .count = cut};
    corpus->validation = (tarn__token_span){.ids = corpus->ids + cut, .count = count - cut};
    return true;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

static bool open_split(const char *function, const char *folder, const char *split, tarn__corpus *corpus,
                       tarn_tokens **mapped, tarn__token_span *span)
{
    *mapped = tarn_tokens_open(folder, split);
    if (!*mapped)
        return tarn__raise_within(function);
    if (tarn_tokens_hash(*mapped) != tarn_tokenizer_hash(corpus->tokenizer))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: the tokens in '%s' are of another tokenizer than the model's",
                           function, folder);
    *span = (tarn__token_span){.mapped = *mapped, .count = tarn_tokens_count(*mapped)};
    corpus->hash = (corpus->hash ^ tarn_tokens_hash(*mapped) ^ (uint64_t)span->count) * 0x100000001b3u;
    return !tarn_failed();
}

static bool open_shards(const char *function, const char *folder, const char *tokenizer, tarn__corpus *corpus)
{
    if (tokenizer[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: tokenizer does not apply to shards: '%s' has its own", function,
                           folder);
    corpus->tokenizer = tarn_tokenizer_open(folder);
    if (!corpus->tokenizer)
        return tarn__raise_within(function);
    return open_split(function, folder, "train", corpus, &corpus->mapped[0], &corpus->training) &&
           open_split(function, folder, "valid", corpus, &corpus->mapped[1], &corpus->validation);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

bool tarn__corpus_open(const char *function, const char *name, const char *tokenizer, tarn__corpus *corpus)
{
    source from;
    *corpus = (tarn__corpus){0};
    return !tarn_failed() && read_name(function, name, &from) &&
           (from.is_shards ? open_shards : open_text)(function, from.path, tokenizer, corpus);
}

bool tarn__corpus_open_for_evaluation(const char *function, const char *name, tarn_tokenizer *tokenizer,
                                      tarn__corpus *corpus)
{
    source from;
    int64_t count;
    *corpus = (tarn__corpus){.tokenizer = tokenizer};
    if (tarn_failed() || !read_name(function, name, &from))
        return false;
    if (from.is_shards)
        return open_split(function, from.path, "valid", corpus, &corpus->mapped[1], &corpus->validation);
    if (!encode_file(function, from.path, "", corpus, &count))
        return false;
    corpus->validation = (tarn__token_span){.ids = corpus->ids, .count = count};
    return true;
}

void tarn__corpus_free(tarn__corpus *corpus)
{
    tarn_tokenizer_free(corpus->tokenizer);
    tarn_tokenizer_release(corpus->ids);
    tarn_tokens_close(corpus->mapped[0]);
    tarn_tokens_close(corpus->mapped[1]);
    *corpus = (tarn__corpus){0};
}
