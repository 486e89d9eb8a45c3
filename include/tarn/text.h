/* text.h: text as numbers: tokenizers, a trainer for them, and files of tokens to train on.
 *
 * Tokenizers work on bytes and their lengths, so that no text is too strange: byte-level BPE and bytes take any bytes
 * and give exactly these back; on valid UTF-8, BPE gives the ids that Hugging Face's tokenizers gives. A tokenizer does
 * not change once it is made: any number of threads may use one at a time. Files are not trusted: what is wrong in one
 * is an error that names the file and the place.
 *
 * BPE needs PCRE2 (Debian's libpcre2-dev) and files need jansson (libjansson-dev) when tarn is built; what is missing
 * says so. */
#ifndef TARN_TEXT_H
#define TARN_TEXT_H

#include <tarn/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tokenizers -------------------------------------------------------------------------------------------------- */

typedef struct tarn_tokenizer tarn_tokenizer;

/* Opens a tokenizer: a folder of Hugging Face, a tokenizer.json, SentencePiece's tokenizer.model (BPE), a GGUF file, or
 * a vocab.json with merges.txt beside it (also as encoder.json and vocab.bpe; then tokenizer_config.json, where it is
 * there, names the pattern and the special tokens, and GPT-2's are used otherwise). Padding and truncation in the file
 * are not applied. What tarn would do differently from the file is refused by its name. The caller owns it. */
TARN_API tarn_tokenizer *tarn_tokenizer_open(const char *path);

/* A tokenizer whose 256 ids are the bytes. The caller owns it. */
TARN_API tarn_tokenizer *tarn_tokenizer_bytes(void);

/* A tokenizer whose ids are the distinct characters of a text in the order of Unicode, from 0. The text must be valid
 * UTF-8. The caller owns it. */
TARN_API tarn_tokenizer *tarn_tokenizer_characters(const char *text, size_t length);

/* The same of all the documents of files: a text file is one, and of a file whose name ends in .jsonl, or of any with
 * `json_lines`, the text under `field` in each line (NULL: "text"). */
TARN_API tarn_tokenizer *tarn_tokenizer_characters_files(const char *const *paths, int count, const char *field,
                                                         bool json_lines);

/* Frees a tokenizer. NULL is allowed; works while an error is pending. */
TARN_API void tarn_tokenizer_free(tarn_tokenizer *tokenizer);

/* Writes tokenizer.json into a folder, which is made if it is not there, and tokenizer_config.json where the tokens
 * that begin and end a text or a chat template are known; each file appears whole or not at all. Hugging Face's
 * tokenizers opens it with the same results, for characters and bytes too; tarn_tokenizer_open() does. */
TARN_API bool tarn_tokenizer_save(const tarn_tokenizer *tokenizer, const char *folder);

/* "bpe", "spm" (SentencePiece's BPE), "characters" or "bytes". The text lives as long as the program. */
TARN_API const char *tarn_tokenizer_kind(const tarn_tokenizer *tokenizer);

/* The size of the vocabulary: every id is below it. */
TARN_API int64_t tarn_tokenizer_count(const tarn_tokenizer *tokenizer);

/* A number that is the same for tokenizers that give the same ids; files of tokens carry it. */
TARN_API uint64_t tarn_tokenizer_hash(const tarn_tokenizer *tokenizer);

/* The bytes of a token and, if `length` is not NULL, how many; a 0 follows them. NULL, which is no error, for a number
 * below tarn_tokenizer_count() that has no token. Borrowed from the tokenizer. */
TARN_API const char *tarn_tokenizer_piece(const tarn_tokenizer *tokenizer, int32_t id, size_t *length);

/* The id of the token that has exactly these bytes (special tokens first); -1, which is no error, when there is none.
 */
TARN_API int32_t tarn_tokenizer_find(const tarn_tokenizer *tokenizer, const char *piece, size_t length);

/* True for a special token, such as <|endoftext|>. */
TARN_API bool tarn_tokenizer_is_special(const tarn_tokenizer *tokenizer, int32_t id);

/* The id of the token that ends a document: <|endoftext|>, <|end_of_text|>, </s> or <eos>; -1, which is no error, when
 * there is none. */
TARN_API int32_t tarn_tokenizer_end_of_text(const tarn_tokenizer *tokenizer);

/* The id of the token that begins a text, as the file says, or by its name: <s>, <|begin_of_text|> or <bos>; -1, which
 * is no error, when there is none. */
TARN_API int32_t tarn_tokenizer_bos(const tarn_tokenizer *tokenizer);

/* The id of the token by which a model ends what it says, as the file says; else tarn_tokenizer_end_of_text(). In chat
 * models the two differ. */
TARN_API int32_t tarn_tokenizer_eos(const tarn_tokenizer *tokenizer);

/* How to encode; zero is every field's default. */
typedef struct tarn_encode_options {
    bool special_as_text; /* a special token's text in the input is text like any other; else it becomes that token */
    bool add_special;     /* adds what the tokenizer's file says comes before and after a text */
} tarn_encode_options;

/* The ids of a text; *count says how many. `options` may be NULL. BPE and bytes take any bytes. A character that a
 * tokenizer of characters does not have is an error that names it, as is a byte without a token. The caller frees the
 * result with tarn_tokenizer_release(). */
TARN_API int32_t *tarn_tokenizer_encode_sized(const tarn_tokenizer *tokenizer, const char *text, size_t length,
                                              const tarn_encode_options *options, size_t options_size, int64_t *count);
#define tarn_tokenizer_encode(tokenizer, text, length, options, count) \
    tarn_tokenizer_encode_sized(tokenizer, text, length, options, sizeof(tarn_encode_options), count)

/* The bytes of many tokens, special ones as their text, and a 0 after them that *length does not count. Ids of part of
 * a text may give part of a character. The space that SentencePiece puts before a text is left out at the beginning.
 * The caller frees the result with tarn_tokenizer_release(). */
TARN_API char *tarn_tokenizer_decode(const tarn_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                     size_t *length);

/* Frees what tarn_tokenizer_encode() or tarn_tokenizer_decode() gave. NULL is allowed; works while an error is pending.
 */
TARN_API void tarn_tokenizer_release(void *result);

/* ---- conversations ----------------------------------------------------------------------------------------------- */

/* What someone said: "system", "user" or "assistant", and what, in UTF-8. */
typedef struct tarn_chat_message {
    const char *role, *content;
} tarn_chat_message;

/* Which of the common chat templates the model has: "chatml", "llama2", "llama3" or "mistral". It is found by reading
 * the template in the model's tokenizer_config.json, chat_template.jinja or GGUF file, which must consist of what is
 * published for that family; any other is an error that says so, as is none at all. The text lives as long as the
 * program. */
TARN_API const char *tarn_chat_name(const tarn_tokenizer *tokenizer);

/* Messages as the model's chat template puts them together; with `add_generation_prompt` up to where an answer begins.
 * The text has the template's tokens in it (also the one that begins a text), so that what people wrote can look like
 * them: for a model take tarn_chat_encode(). Roles that the template does not have, or in an order that it does not,
 * are errors. The caller frees the result with tarn_tokenizer_release(). */
TARN_API char *tarn_chat_render(const tarn_tokenizer *tokenizer, const tarn_chat_message *messages, int count,
                                bool add_generation_prompt, size_t *length);

/* The ids of the same: those of tarn_chat_render()'s text, but what looks like a special token in a message stays text.
 * *id_count says how many. The caller frees the result with tarn_tokenizer_release(). */
TARN_API int32_t *tarn_chat_encode(const tarn_tokenizer *tokenizer, const tarn_chat_message *messages, int count,
                                   bool add_generation_prompt, int64_t *id_count);

/* Gives a tokenizer the plain form of a chat template, by the name that tarn_chat_name() has for it, in place of what
 * it has; tarn_tokenizer_save() writes it. A template whose tokens the tokenizer lacks is an error. Nobody may use the
 * tokenizer meanwhile. */
TARN_API bool tarn_tokenizer_set_chat(tarn_tokenizer *tokenizer, const char *name);

/* The id of the token that ends an answer in such a conversation; -1, which is no error, when there is none. */
TARN_API int32_t tarn_chat_eot(const tarn_tokenizer *tokenizer);

/* ---- text as its ids come ---------------------------------------------------------------------------------------- */

typedef struct tarn_text_stream tarn_text_stream;

/* How to stream; zero is every field's default. */
typedef struct tarn_stream_options {
    /* the ids go on where others ended: a space at the beginning is one, and not what SentencePiece puts there */
    bool continues;
    bool skip_special; /* special tokens give no text */
} tarn_stream_options;

/* Text from ids, one at a time, in whole characters: what comes out is valid UTF-8. Bytes that cannot become a
 * character come out as U+FFFD, once for as many as could have begun one; tarn_tokenizer_decode() gives them as they
 * are. `options` may be NULL. Borrows the tokenizer, which must outlive it. One thread at a time. The caller owns it.
 */
TARN_API tarn_text_stream *tarn_text_stream_new_sized(const tarn_tokenizer *tokenizer,
                                                      const tarn_stream_options *options, size_t options_size);
#define tarn_text_stream_new(tokenizer, ...) \
    tarn_text_stream_new_sized(tokenizer, __VA_ARGS__, sizeof(tarn_stream_options))

/* Takes an id; gives the text that is ready, which may be empty, its length, and a 0 behind it. Borrowed until the
 * stream is next used. */
TARN_API const char *tarn_text_stream_push(tarn_text_stream *stream, int32_t id, size_t *length);

/* Gives what is left: U+FFFD for a character that did not come to its end. The stream then begins anew. */
TARN_API const char *tarn_text_stream_end(tarn_text_stream *stream, size_t *length);

/* Frees a stream. NULL is allowed; works while an error is pending. */
TARN_API void tarn_text_stream_free(tarn_text_stream *stream);

/* ---- training a tokenizer ---------------------------------------------------------------------------------------- */

/* Which of several pairs that are equally frequent is merged first. */
typedef enum tarn_bpe_ties {
    TARN_BPE_LOWER_IDS =
        0, /* the one with the lower ids, of the first token and then of the second, as Hugging Face's trainer does */
    TARN_BPE_GREATER_BYTES /* the one with the greater bytes, of the first token and then of the second */
} tarn_bpe_ties;

/* How to train; zero is every field's default. */
typedef struct tarn_bpe_options {
    const char *const *special; /* special tokens: they get the first ids, and are not learnt from; NULL: <|endoftext|>.
                                 * None may be what a file writes for ordinary bytes, such as a single letter */
    int special_count;
    const char *pattern;   /* how text falls into words, as in a tokenizer.json; NULL: GPT-2's */
    int64_t min_frequency; /* pairs that are rarer are not merged; 0: any */
    tarn_bpe_ties ties;
    bool no_special;   /* no special tokens at all */
    bool json_lines;   /* all files are JSON lines; else those whose names end in .jsonl are */
    const char *field; /* where the text stands in JSON lines; NULL: "text" */
} tarn_bpe_options;

/* Learns a byte-level BPE of at most `vocabulary` tokens from texts: the special tokens, the 256 bytes, and one merge
 * after the other of the pair that is most frequent. It has fewer when the texts have no more pairs. The same texts
 * give the same tokenizer. `options` may be NULL. The caller owns it. */
TARN_API tarn_tokenizer *tarn_bpe_train_sized(const char *const *texts, const size_t *lengths, int count,
                                              int64_t vocabulary, const tarn_bpe_options *options, size_t options_size);
#define tarn_bpe_train(texts, lengths, count, vocabulary, ...) \
    tarn_bpe_train_sized(texts, lengths, count, vocabulary, __VA_ARGS__, sizeof(tarn_bpe_options))

/* The same from files: a text file is one text, and so is each line of JSON lines. */
TARN_API tarn_tokenizer *tarn_bpe_train_files_sized(const char *const *paths, int count, int64_t vocabulary,
                                                    const tarn_bpe_options *options, size_t options_size);
#define tarn_bpe_train_files(paths, count, vocabulary, ...) \
    tarn_bpe_train_files_sized(paths, count, vocabulary, __VA_ARGS__, sizeof(tarn_bpe_options))

/* ---- files of tokens --------------------------------------------------------------------------------------------- */

/* Called now and then while files are prepared: bytes of the inputs that are done, of how many. False stops, as an
 * error. */
typedef bool (*tarn_shards_progress_fn)(int64_t done, int64_t all, void *ctx);

/* How to prepare; zero is every field's default. */
typedef struct tarn_shards_options {
    /* the share kept for validation, from 0 to below 1: the end of a text file, a line of JSON now and then */
    double validation;
    int64_t shard_tokens;  /* most tokens of a file; 0: 100 million */
    const char *field;     /* where the text stands in JSON lines; NULL: "text" */
    const char *separator; /* the token behind each document; NULL: tarn_tokenizer_end_of_text(), where there is one */
    bool no_separator;     /* no token behind a document */
    bool json_lines;       /* all inputs are JSON lines; else those whose names end in .jsonl are */
    bool parse_special;    /* a special token's text in a document becomes that token; else it is text like any other */
    void *progress_ctx;
    tarn_shards_progress_fn progress; /* NULL: none */
} tarn_shards_options;

/* What was prepared. */
typedef struct tarn_shards_summary {
    int64_t documents, bytes; /* read */
    int64_t train_tokens, valid_tokens;
    int train_files, valid_files;
} tarn_shards_summary;

/* Turns texts into files of tokens to train on: train-00000.bin …, valid-00000.bin …, index.json and tokenizer.json in
 * a folder that has no index.json yet. Every file appears whole or not at all, and index.json last. Uses tarn_threads()
 * threads; the files are the same with any number. A text file is one document; it is encoded in blocks of at least 1
 * MiB that end behind a line, or whole where the tokenizer has something that reaches across lines (docs/guide/text.md).
 * `options` and `summary` may be NULL. */
TARN_API bool tarn_shards_prepare_sized(const char *const *inputs, int count, const tarn_tokenizer *tokenizer,
                                        const char *folder, tarn_shards_summary *summary,
                                        const tarn_shards_options *options, size_t options_size);
#define tarn_shards_prepare(inputs, count, tokenizer, folder, summary, ...) \
    tarn_shards_prepare_sized(inputs, count, tokenizer, folder, summary, __VA_ARGS__, sizeof(tarn_shards_options))

typedef struct tarn_tokens tarn_tokens;

/* Opens prepared tokens: a folder and "train" or "valid", or one file and NULL. They are mapped, not read; every length
 * is checked. The caller owns them. A file must not be made shorter while it is open. */
TARN_API tarn_tokens *tarn_tokens_open(const char *path, const char *split);

/* Closes tokens. NULL is allowed; works while an error is pending. */
TARN_API void tarn_tokens_close(tarn_tokens *tokens);

/* How many tokens there are, the size of their vocabulary, and tarn_tokenizer_hash() of their tokenizer. */
TARN_API int64_t tarn_tokens_count(const tarn_tokens *tokens);
TARN_API int64_t tarn_tokens_vocab_size(const tarn_tokens *tokens);
TARN_API uint64_t tarn_tokens_hash(const tarn_tokens *tokens);

/* Copies `count` ids from a place on. Any number of threads may read at a time. */
TARN_API bool tarn_tokens_read(const tarn_tokens *tokens, int64_t position, int64_t count, int32_t *ids);

#ifdef __cplusplus
}
#endif
#endif
