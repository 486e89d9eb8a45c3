/* text.h: tokenizers, their training, chat templates, and token files for training.
 *
 * Tokenizers work on bytes with a length: byte-level BPE and bytes encode any input and decode it exactly; on valid
 * UTF-8, BPE gives the ids of Hugging Face's tokenizers. A tokenizer is immutable: any number of threads may use it.
 * Files are not trusted: an error names the file and the position.
 *
 * BPE needs PCRE2 (Debian's libpcre2-dev) and files need jansson (libjansson-dev) at build time; the error for a
 * missing one says so. */
#ifndef TARN_TEXT_H
#define TARN_TEXT_H

#include <tarn/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tokenizers -------------------------------------------------------------------------------------------------- */

typedef struct tarn_tokenizer tarn_tokenizer;

/* Opens a tokenizer: a Hugging Face folder, a tokenizer.json, SentencePiece's tokenizer.model (BPE or Unigram), a GGUF
 * file, tiktoken's file, BERT's vocab.txt, or a vocab.json with merges.txt next to it (also as encoder.json and
 * vocab.bpe; then tokenizer_config.json, if any, names the regex and the special tokens, by default GPT-2's).
 * Padding and truncation of the file are ignored. Settings that tarn does not support are an error that names them.
 * The caller owns it. */
TARN_API tarn_tokenizer *tarn_tokenizer_open(const char *path);

/* A tokenizer of 256 ids, one per byte. The caller owns it. */
TARN_API tarn_tokenizer *tarn_tokenizer_bytes(void);

/* A tokenizer whose ids are the distinct characters of a text in code point order, from 0. The text must be valid
 * UTF-8. The caller owns it. */
TARN_API tarn_tokenizer *tarn_tokenizer_characters(const char *text, size_t length);

/* The same of all documents of files: a text file is one document; in a file named *.jsonl, or in any with
 * `json_lines`, each line has one under `field` (NULL: "text"). */
TARN_API tarn_tokenizer *tarn_tokenizer_characters_files(const char *const *paths, int count, const char *field,
                                                         bool json_lines);

/* Frees a tokenizer. NULL is allowed; works while an error is pending. */
TARN_API void tarn_tokenizer_free(tarn_tokenizer *tokenizer);

/* Writes tokenizer.json to a folder, created if needed, and tokenizer_config.json if BOS, EOS or a chat template are
 * known; atomic writes. Hugging Face's tokenizers opens it with the same results, for characters and bytes too; so
 * does tarn_tokenizer_open(). */
TARN_API bool tarn_tokenizer_save(const tarn_tokenizer *tokenizer, const char *folder);

/* "bpe" (byte-level), "bpe-characters", "spm" (SentencePiece BPE), "unigram", "wordpiece", "words" (WordLevel),
 * "characters" or "bytes". Static storage. */
TARN_API const char *tarn_tokenizer_kind(const tarn_tokenizer *tokenizer);

/* Vocabulary size: every id is below it. */
TARN_API int64_t tarn_tokenizer_count(const tarn_tokenizer *tokenizer);

/* Hash that is equal for tokenizers with the same ids; token files carry it. */
TARN_API uint64_t tarn_tokenizer_hash(const tarn_tokenizer *tokenizer);

/* Bytes of a token, terminated by 0, and, if `length` is not NULL, their number. NULL, without an error, for an
 * unused id below tarn_tokenizer_count(). Borrowed from the tokenizer. */
TARN_API const char *tarn_tokenizer_piece(const tarn_tokenizer *tokenizer, int32_t id, size_t *length);

/* Id of the token with exactly these bytes (special tokens first); -1, without an error, if there is none. */
TARN_API int32_t tarn_tokenizer_find(const tarn_tokenizer *tokenizer, const char *piece, size_t length);

/* True for a special token, such as <|endoftext|>. */
TARN_API bool tarn_tokenizer_is_special(const tarn_tokenizer *tokenizer, int32_t id);

/* Id of the document separator: <|endoftext|>, <|end_of_text|>, </s> or <eos>; -1, without an error, if there is
 * none. */
TARN_API int32_t tarn_tokenizer_end_of_text(const tarn_tokenizer *tokenizer);

/* Id of the BOS token, by the file or by name: <s>, <|begin_of_text|> or <bos>; -1, without an error, if there is
 * none. */
TARN_API int32_t tarn_tokenizer_bos(const tarn_tokenizer *tokenizer);

/* Id of the EOS token by the file; else tarn_tokenizer_end_of_text(). The two differ in chat models. */
TARN_API int32_t tarn_tokenizer_eos(const tarn_tokenizer *tokenizer);

/* Options of tarn_tokenizer_encode(); zero is every field's default. */
typedef struct tarn_encode_options {
    bool special_as_text; /* treat special tokens in the input as text; default: parse them */
    bool add_special;     /* add the special tokens of the tokenizer's post-processor */
} tarn_encode_options;

/* Ids of a text; *count gets their number. `options` may be NULL. BPE and bytes encode any bytes. A character
 * unknown to a character tokenizer is an error that names it, as is a byte without a token. The caller frees the
 * result with tarn_tokenizer_release(). */
TARN_API int32_t *tarn_tokenizer_encode_sized(const tarn_tokenizer *tokenizer, const char *text, size_t length,
                                              const tarn_encode_options *options, size_t options_size, int64_t *count);
#define tarn_tokenizer_encode(tokenizer, text, length, options, count) \
    tarn_tokenizer_encode_sized(tokenizer, text, length, options, sizeof(tarn_encode_options), count)

/* Bytes of a list of tokens, special ones as their text, terminated by a 0 that *length does not count. A part of a
 * sequence may give part of a character. The space that SentencePiece prepends to a text is removed. The caller
 * frees the result with tarn_tokenizer_release(). */
TARN_API char *tarn_tokenizer_decode(const tarn_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                     size_t *length);

/* Frees a result of tarn_tokenizer_encode() or tarn_tokenizer_decode(). NULL is allowed; works while an error is
 * pending. */
TARN_API void tarn_tokenizer_release(void *result);

/* ---- conversations ----------------------------------------------------------------------------------------------- */

/* A message: role "system", "developer", "user", "assistant", "tool" or what else the template knows, and content in
 * UTF-8. Messages with more than that are JSON (tarn_chat_encode_json()). */
typedef struct tarn_chat_message {
    const char *role, *content;
} tarn_chat_message;

/* Name of the chat template: "chatml", "llama2", "llama3" or "mistral" for one of tarn's own, "model" for the model's:
 * that of tokenizer_config.json, chat_template.jinja, chat_template.json or the GGUF file. Any Jinja template of
 * transformers is run; one that does not compile is an error, as is none at all. Static storage. */
TARN_API const char *tarn_chat_name(const tarn_tokenizer *tokenizer);

/* Renders messages with the model's chat template; with `add_generation_prompt` up to the beginning of an answer.
 * The text contains the template's special tokens (BOS too), which message contents can imitate: use
 * tarn_chat_encode() for a model. An error that the template raises, about roles out of order for example, is an error
 * with its words. The caller frees the result with tarn_tokenizer_release(). */
TARN_API char *tarn_chat_render(const tarn_tokenizer *tokenizer, const tarn_chat_message *messages, int count,
                                bool add_generation_prompt, size_t *length);

/* Ids of the rendered messages, as transformers' apply_chat_template() gives them, but special tokens inside message
 * contents stay text. No BOS is added to that of the template. *id_count gets their number. The caller frees the result
 * with tarn_tokenizer_release(). */
TARN_API int32_t *tarn_chat_encode(const tarn_tokenizer *tokenizer, const tarn_chat_message *messages, int count,
                                   bool add_generation_prompt, int64_t *id_count);

/* Options of conversations in JSON; zero is every field's default. Texts are terminated by 0. */
typedef struct tarn_chat_options {
    bool add_generation_prompt; /* up to the beginning of an answer */
    const char *tools;          /* JSON array of functions, as in OpenAI's API; NULL: none */
    const char *documents;      /* JSON array of {"title", "text"}; NULL: none */
    const char *variables;      /* JSON object: further variables, such as {"enable_thinking": false}; NULL: none */
} tarn_chat_options;

/* The same for messages in JSON: an array of objects with "role" and "content", a string or parts of text, and
 * "tool_calls", "tool_call_id", "name", "reasoning_content" or what else the template reads. Members that are null are
 * left out, as in transformers. `options` may be NULL. A model with a template named "tool_use" uses it for tools. */
TARN_API char *tarn_chat_render_json_sized(const tarn_tokenizer *tokenizer, const char *messages, size_t length,
                                           const tarn_chat_options *options, size_t options_size,
                                           size_t *result_length);
#define tarn_chat_render_json(tokenizer, messages, length, options, result_length) \
    tarn_chat_render_json_sized(tokenizer, messages, length, options, sizeof(tarn_chat_options), result_length)

/* Ids of messages in JSON. `loss_mask`, unless NULL, gets an array with a 1 for each id that the assistant writes: of
 * the template's generation blocks if it has them, else from the generation prompt to the token that ends the answer;
 * an answer that cannot be found is an error. It needs add_generation_prompt to be false; the date of such a rendering
 * is 26 July 2024, so that training data does not change from day to day. The caller frees both with
 * tarn_tokenizer_release(). */
TARN_API int32_t *tarn_chat_encode_json_sized(const tarn_tokenizer *tokenizer, const char *messages, size_t length,
                                              const tarn_chat_options *options, size_t options_size,
                                              uint8_t **loss_mask, int64_t *id_count);
#define tarn_chat_encode_json(tokenizer, messages, length, options, loss_mask, id_count) \
    tarn_chat_encode_json_sized(tokenizer, messages, length, options, sizeof(tarn_chat_options), loss_mask, id_count)

/* Raises unless `tools` is a JSON array of functions in OpenAI's format, with at least one:
 * [{"type": "function", "function": {"name": …, "description": …, "parameters": …}}], or the functions themselves. */
TARN_API bool tarn_chat_check_tools(const char *tools);

/* A call in a model's answer: the name and the JSON of the arguments, an object or a string, borrowed from the text,
 * and where the call begins and ends there. */
typedef struct tarn_tool_call {
    const char *name;
    size_t name_length;
    const char *arguments;
    size_t arguments_length;
    size_t begin, end;
} tarn_tool_call;

/* Finds the first call of one of the tools in an answer: a JSON object with its "name" and "arguments" or "parameters",
 * whatever is around it. False, without an error: none. */
TARN_API bool tarn_chat_find_call(const char *tools, const char *text, size_t length, tarn_tool_call *call);

/* Length of the content of an answer, given the `length` bytes before its first tool call: without trailing spaces,
 * tags that announce a call (<tool_call>, [TOOL_CALLS], <|python_tag|>, <function=…>) and the bracket of an array of
 * calls. 5 for "Sure. <tool_call>"; other tags and brackets are content. */
TARN_API size_t tarn_chat_content_length(const char *text, size_t length);

/* Sets the chat template of a tokenizer by name: one of the model's own, if it has several, else chatml, llama2, llama3
 * or mistral; tarn_tokenizer_save() writes it. A template whose tokens the tokenizer lacks is an error. No other thread
 * may use the tokenizer meanwhile. */
TARN_API bool tarn_tokenizer_set_chat(tarn_tokenizer *tokenizer, const char *name);

/* Adds special tokens to a tokenizer, with the ids after its last: "<|im_start|>,<|im_end|>", or "text:FILE" with one
 * per line. Spaces around them are not part of them. Those that it has keep their ids and become special.
 * tarn_tokenizer_save() writes them. Returns the number of new ones; -1 with an error. No other thread may use the
 * tokenizer meanwhile. */
TARN_API int tarn_tokenizer_add_tokens(tarn_tokenizer *tokenizer, const char *tokens);

/* Id of the token that ends an answer of the chat template, found by rendering one; else of EOS; -1, without an error,
 * if there is none. */
TARN_API int32_t tarn_chat_eot(const tarn_tokenizer *tokenizer);

/* ---- text as its ids come ---------------------------------------------------------------------------------------- */

typedef struct tarn_text_stream tarn_text_stream;

/* Options of tarn_text_stream_new(); zero is every field's default. */
typedef struct tarn_stream_options {
    /* the ids continue others: a leading space is text, not SentencePiece's prepended one */
    bool continues;
    bool skip_special; /* special tokens give no text */
} tarn_stream_options;

/* Incremental detokenizer: text from ids, one at a time, in complete characters of valid UTF-8. Invalid bytes become
 * U+FFFD, one per maximal prefix of a character; tarn_tokenizer_decode() returns them unchanged. `options` may be
 * NULL. Borrows the tokenizer, which must outlive it. One thread at a time. The caller owns it. */
TARN_API tarn_text_stream *tarn_text_stream_new_sized(const tarn_tokenizer *tokenizer,
                                                      const tarn_stream_options *options, size_t options_size);
#define tarn_text_stream_new(tokenizer, ...) \
    tarn_text_stream_new_sized(tokenizer, __VA_ARGS__, sizeof(tarn_stream_options))

/* Adds an id; returns the text that is complete, which may be empty, terminated by 0, and its length. Borrowed until
 * the next use of the stream. */
TARN_API const char *tarn_text_stream_push(tarn_text_stream *stream, int32_t id, size_t *length);

/* Flushes the stream: U+FFFD for an incomplete character. The stream then starts anew. */
TARN_API const char *tarn_text_stream_end(tarn_text_stream *stream, size_t *length);

/* Frees a stream. NULL is allowed; works while an error is pending. */
TARN_API void tarn_text_stream_free(tarn_text_stream *stream);

/* ---- training a tokenizer ---------------------------------------------------------------------------------------- */

/* Which of several equally frequent pairs is merged first. */
typedef enum tarn_bpe_ties {
    /* lower ids, of the first token and then of the second, as Hugging Face's trainer */
    TARN_BPE_LOWER_IDS = 0,
    TARN_BPE_GREATER_BYTES /* greater bytes, of the first token and then of the second */
} tarn_bpe_ties;

/* Options of BPE training; zero is every field's default. */
typedef struct tarn_bpe_options {
    /* special tokens: they get the first ids and are not trained on; NULL: <|endoftext|>. None may equal the escaped
     * form of ordinary bytes, such as a single letter */
    const char *const *special;
    int special_count;
    const char *pattern;   /* pre-tokenizer regex, as in a tokenizer.json; NULL: GPT-2's */
    int64_t min_frequency; /* rarer pairs are not merged; 0: any */
    tarn_bpe_ties ties;
    bool no_special;   /* no special tokens */
    bool json_lines;   /* all files are JSON lines; default: those named *.jsonl */
    const char *field; /* key of the text in JSON lines; NULL: "text" */
} tarn_bpe_options;

/* Trains a byte-level BPE of at most `vocab_size` tokens: special tokens, the 256 bytes, then merges of the most
 * frequent pair. It is smaller if the texts have no more pairs. Deterministic. `options` may be NULL. The caller
 * owns it. */
TARN_API tarn_tokenizer *tarn_bpe_train_sized(const char *const *texts, const size_t *lengths, int count,
                                              int64_t vocab_size, const tarn_bpe_options *options, size_t options_size);
#define tarn_bpe_train(texts, lengths, count, vocab_size, ...) \
    tarn_bpe_train_sized(texts, lengths, count, vocab_size, __VA_ARGS__, sizeof(tarn_bpe_options))

/* The same from files: a text file is one text, and so is each line of JSON lines. */
TARN_API tarn_tokenizer *tarn_bpe_train_files_sized(const char *const *paths, int count, int64_t vocab_size,
                                                    const tarn_bpe_options *options, size_t options_size);
#define tarn_bpe_train_files(paths, count, vocab_size, ...) \
    tarn_bpe_train_files_sized(paths, count, vocab_size, __VA_ARGS__, sizeof(tarn_bpe_options))

/* ---- files of tokens --------------------------------------------------------------------------------------------- */

/* Progress callback: input bytes done, of `all`. False stops, with an error. */
typedef bool (*tarn_shards_progress_fn)(int64_t done, int64_t all, void *ctx);

/* Options of tarn_shards_prepare(); zero is every field's default. */
typedef struct tarn_shards_options {
    /* fraction for validation, in [0, 1): the end of a text file, every n-th line of JSON lines */
    double val_fraction;
    int64_t shard_tokens;  /* maximum tokens per file; 0: 100 million */
    const char *field;     /* key of the text in JSON lines; NULL: "text" */
    const char *separator; /* token after each document; NULL: tarn_tokenizer_end_of_text(), if any */
    bool no_separator;     /* no token after a document */
    bool json_lines;       /* all inputs are JSON lines; default: those named *.jsonl */
    bool parse_special;    /* parse special tokens in documents; default: treat them as text */
    void *progress_ctx;
    tarn_shards_progress_fn progress; /* NULL: none */
} tarn_shards_options;

/* Result of tarn_shards_prepare(). */
typedef struct tarn_shards_summary {
    int64_t documents, bytes; /* read */
    int64_t train_tokens, valid_tokens;
    int train_files, valid_files;
} tarn_shards_summary;

/* Tokenizes texts into training files: train-00000.bin …, valid-00000.bin …, index.json and tokenizer.json in a
 * folder without an index.json. Atomic writes, index.json last. Uses tarn_threads() threads; the files are the same
 * for any number. A text file is one document; it is encoded in chunks of at least 1 MiB that end after a line, or
 * as a whole if the tokenizer matches across lines (docs/guide/text.md). `options` and `summary` may be NULL. */
TARN_API bool tarn_shards_prepare_sized(const char *const *inputs, int count, const tarn_tokenizer *tokenizer,
                                        const char *folder, tarn_shards_summary *summary,
                                        const tarn_shards_options *options, size_t options_size);
#define tarn_shards_prepare(inputs, count, tokenizer, folder, summary, ...) \
    tarn_shards_prepare_sized(inputs, count, tokenizer, folder, summary, __VA_ARGS__, sizeof(tarn_shards_options))

typedef struct tarn_tokens tarn_tokens;

/* Opens token files: a folder and "train" or "valid", or one file and NULL. Memory-mapped; all lengths are
 * validated. The caller owns them. A file must not be truncated while it is open. */
TARN_API tarn_tokens *tarn_tokens_open(const char *path, const char *split);

/* Closes tokens. NULL is allowed; works while an error is pending. */
TARN_API void tarn_tokens_close(tarn_tokens *tokens);

/* Number of tokens, their vocabulary size, and tarn_tokenizer_hash() of their tokenizer. */
TARN_API int64_t tarn_tokens_count(const tarn_tokens *tokens);
TARN_API int64_t tarn_tokens_vocab_size(const tarn_tokens *tokens);
TARN_API uint64_t tarn_tokens_hash(const tarn_tokens *tokens);

/* Copies `count` ids from a position. Any number of threads may read at once. */
TARN_API bool tarn_tokens_read(const tarn_tokens *tokens, int64_t position, int64_t count, int32_t *ids);

#ifdef __cplusplus
}
#endif
#endif
