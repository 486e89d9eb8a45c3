/* shards.c: encodes texts into token files, in parallel.
 *
 * Inputs are mapped and cut into blocks by size alone. A batch of blocks is encoded by all threads, each with an
 * encoder of its own, and written in order: the files do not depend on the number of threads. A text file is cut only
 * where encoding the parts gives the same ids as encoding the whole. */
#include "text/shards/shards.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "base/os/thread.h"
#include "base/utf8.h"
#include "formats/json_file.h"
#include "text/files/gguf_tokenizer.h"

#define BLOCK_BYTES ((size_t)1 << 20)
#define BATCH_BLOCKS 32
#define DEFAULT_SHARD_TOKENS 100000000

/* A part of an input: of a text, or some lines of JSON. */
typedef struct block {
    const char *text;
    size_t length;
    const char *path;
    bool is_jsonl;
    bool is_valid;      /* text: part of the validation set */
    bool continues;     /* text: continues the block before it */
    bool ends_document; /* text */
    int64_t first_line, first_document;
    int64_t documents;        /* ending in it */
    tarn__buffer ids[2];      /* int32_t: train and validation */
    tarn__error_record error; /* of the encoding thread; code TARN_OK: none */
} block;

/* The state of tarn_shards_prepare(). */
typedef struct job {
    const tarn_tokenizer *tokenizer;
    tarn_shards_options options;
    const char *folder, *field;
    int32_t separator; /* -1: none */
    bool whole_texts;  /* texts must not be cut */
    tarn__shard_writer writer[2];
    block *batch; /* [BATCH_BLOCKS] */
    int count;
    int64_t documents, bytes, total_bytes;
    pthread_mutex_t lock; /* guards `idle` */
    tarn__buffer idle;    /* tarn__encoder *, owned: encoders not in use, with their word caches */
} job;

/* ---- one block --------------------------------------------------------------------------------------------------- */

/* An idle encoder, or a new one. There are never more than threads. NULL with an error. */
static tarn__encoder *take_encoder(job *j)
{
    tarn__encoder *encoder = NULL;
    pthread_mutex_lock(&j->lock);
    if (j->idle.count > 0)
        encoder = ((tarn__encoder **)(void *)j->idle.data)[--j->idle.count];
    pthread_mutex_unlock(&j->lock);
    return encoder ? encoder : tarn__alloc(sizeof(*encoder));
}

/* Returns an encoder for the next block; frees it if the list cannot grow. */
static void return_encoder(job *j, tarn__encoder *encoder)
{
    if (!encoder)
        return;
    pthread_mutex_lock(&j->lock);
    bool is_stored = tarn__buffer_add(&j->idle, &encoder, 1, sizeof(encoder));
    pthread_mutex_unlock(&j->lock);
    if (!is_stored) {
        tarn__encoder_free(encoder);
        tarn__release(encoder, sizeof(*encoder));
    }
}

/* True if document n is for validation. The fraction is met evenly over the list, and by every prefix of it. */
static bool is_valid_document(const job *j, int64_t n)
{
    return (int64_t)((double)(n + 1) * j->options.val_fraction) > (int64_t)((double)n * j->options.val_fraction);
}

/* Appends the ids of a text and, at a document's end, the separator. */
static bool encode_text(const job *j, tarn__encoder *encoder, const char *text, size_t length, bool ends,
                        tarn__buffer *ids)
{
    const tarn_encode_options options = {.special_as_text = !j->options.parse_special};
    return tarn__tokenizer_append(j->tokenizer, encoder, text, length, &options, ids) &&
           (!ends || j->separator < 0 || tarn__ids_add(ids, j->separator));
}

static bool encode_text_block(const job *j, tarn__encoder *encoder, block *b)
{
    encoder->continues = b->continues;
    bool good = encode_text(j, encoder, b->text, b->length, b->ends_document, &b->ids[b->is_valid]);
    encoder->continues = false;
    return good;
}

/* Encodes the documents of a block of JSON lines, each into its split. */
static bool encode_lines(const job *j, tarn__encoder *encoder, block *b)
{
    tarn__buffer text = {0};
    int64_t line = b->first_line, document = b->first_document;
    bool good = true;
    for (size_t at = 0, length; good && at < b->length; at += length + 1, line++) {
        length = tarn__line_length(b->text + at, b->length - at);
        if (tarn__is_blank_line(b->text + at, length))
            continue;
        text.count = 0;
        good = tarn__jsonl_text("shards_prepare", &text, b->text + at, length, j->field, b->path, line) &&
               encode_text(j, encoder, text.data ? text.data : "", text.count, true,
                           &b->ids[is_valid_document(j, document)]);
        document++;
    }
    tarn__buffer_free(&text, 1);
    return good;
}

/* Body of a parallel loop: encodes blocks; errors are stored in the block and raised by the caller's thread, in
 * order. */
static void encode_blocks(int64_t begin, int64_t end, void *ctx)
{
    job *j = ctx;
    for (int64_t i = begin; i < end; i++) {
        block *b = &j->batch[i];
        tarn__encoder *encoder = take_encoder(j);
        if (encoder && b->is_jsonl)
            encode_lines(j, encoder, b);
        else if (encoder)
            encode_text_block(j, encoder, b);
        return_encoder(j, encoder);
        tarn__error_save(&b->error);
        tarn_clear_error();
    }
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static void clear_batch(job *j)
{
    for (int i = 0; i < j->count; i++)
        for (int k = 0; k < 2; k++)
            tarn__buffer_free(&j->batch[i].ids[k], sizeof(int32_t));
    j->count = 0;
}

/* Writes the ids of a block, or raises its error. */
static bool write_block(job *j, block *b)
{
    if (b->error.code != TARN_OK) {
        tarn__error_restore(&b->error);
        return false;
    }
    for (int k = 0; k < 2; k++)
        if (!tarn__shard_write(&j->writer[k], (const int32_t *)(const void *)b->ids[k].data, b->ids[k].count))
            return false;
    j->bytes += (int64_t)b->length;
    return true;
}

/* Encodes and writes the batch, and reports progress. */
static bool flush(job *j)
{
    bool good = true;
    if (j->count == 0)
        return true;
    tarn__parallel_for(j->count, 1, encode_blocks, j);
    for (int i = 0; good && i < j->count; i++)
        good = write_block(j, &j->batch[i]);
    clear_batch(j);
    if (good && j->options.progress && !j->options.progress(j->bytes, j->total_bytes, j->options.progress_ctx))
        good = tarn__raise(TARN_ERROR_ARGUMENT, "shards_prepare: stopped by its caller");
    return good;
}

static bool add_block(job *j, const block *b)
{
    j->batch[j->count++] = *b;
    return j->count < BATCH_BLOCKS || flush(j);
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

/* True if SentencePiece could merge across the end of a line, or treats the ends of a text specially. */
static bool joins_lines(const tarn_tokenizer *t)
{
    bool joins = t->spm.remove_extra_spaces || !t->spm.has_bytes;
    for (int32_t id = 0; id < t->vocab.count && !joins; id++) {
        const tarn__vocab_piece *piece = &t->vocab.piece[id];
        joins = piece->used && !piece->literal && piece->length > 1 &&
                memchr(t->vocab.bytes.data + piece->begin, '\n', piece->length);
    }
    return joins;
}

/* True if no cut is safe: words may go on after the end of a line; added tokens may contain a newline or absorb
 * adjacent whitespace. */
static bool needs_whole_texts(const job *j)
{
    const tarn_tokenizer *t = j->tokenizer;
    const tarn__added_token *added = (const tarn__added_token *)(const void *)t->added.tokens.data;
    if (t->pipeline.is_used || (t->kind == &tarn__kind_bpe && !tarn__pre_tokenizer_ends_words(t)) ||
        (t->kind == &tarn__kind_spm && joins_lines(t)))
        return true;
    for (size_t i = 0; i < t->added.tokens.count; i++) {
        bool is_found = !added[i].special || j->options.parse_special;
        if ((is_found && (added[i].strip_left || added[i].strip_right || added[i].single_word)) ||
            memchr(added[i].text, '\n', added[i].length))
            return true;
    }
    return false;
}

/* True if the character that ends at `at` is whitespace. */
static bool is_space_before(const char *text, size_t at)
{
    uint32_t code = 0;
    size_t begin = at > 0 ? at - 1 : 0;
    while (begin > 0 && at - begin < 4 && ((unsigned char)text[begin] & 0xC0) == 0x80)
        begin--;
    return tarn__utf8_decode(text + begin, at - begin, &code) == at - begin && tarn__is_space(code);
}

/* The next safe cut at or after `from`: at the end of a line that is followed neither by whitespace nor by a slash
 * (which some patterns join to punctuation before the newline). GPT-2's pattern makes the last of several whitespace
 * characters a word of its own, here the newline: the cut is before it. Other patterns join the newline to the text
 * before it: the cut is after it, and no whitespace may precede it, since at the end of a text a run of whitespace
 * would be one word. */
static size_t next_cut(const tarn_tokenizer *t, const char *text, size_t length, size_t from)
{
    bool is_before = t->kind != &tarn__kind_bpe || (t->bpe.uses_regex && t->bpe.regex_count == 1);
    for (size_t at = from; at < length;) {
        const char *end = memchr(text + at, '\n', length - at);
        if (!end)
            return length;
        size_t line = (size_t)(end - text);
        at = line + 1;
        uint32_t code = 0;
        if (at == length || !tarn__utf8_decode(text + at, length - at, &code) || tarn__is_space(code) || code == '/')
            continue;
        if (is_before || !is_space_before(text, line))
            return is_before ? line : at;
    }
    return length;
}

/* Cuts a text into blocks. Only the first one is a beginning: later ones continue it. */
static bool add_text(job *j, const char *path, const char *text, size_t length, bool is_valid)
{
    for (size_t at = 0; at < length;) {
        size_t end = length - at <= BLOCK_BYTES || j->whole_texts
                         ? length
                         : next_cut(j->tokenizer, text, length, at + BLOCK_BYTES);
        const block b = {.text = text + at,
                         .length = end - at,
                         .path = path,
                         .is_valid = is_valid,
                         .continues = at > 0,
                         .ends_document = end == length};
        if (!add_block(j, &b))
            return false;
        at = end;
    }
    return true;
}

/* Adds a text file: the validation set is the last fraction of its bytes, cut between characters. */
static bool add_text_file(job *j, const char *path, const char *text, size_t length)
{
    size_t train_bytes = (size_t)((double)length * (1 - j->options.val_fraction));
    train_bytes = train_bytes > length ? length : train_bytes;
    while (train_bytes > 0 && train_bytes < length && ((unsigned char)text[train_bytes] & 0xC0) == 0x80)
        train_bytes--;
    j->documents++;
    return add_text(j, path, text, train_bytes, false) &&
           add_text(j, path, text + train_bytes, length - train_bytes, true);
}

/* Adds JSON lines, in blocks of whole lines. */
static bool add_lines(job *j, const char *path, const char *text, size_t length)
{
    int64_t line = 1;
    for (size_t at = 0; at < length;) {
        block b = {
            .text = text + at, .path = path, .is_jsonl = true, .first_line = line, .first_document = j->documents};
        while (at < length && b.length < BLOCK_BYTES) {
            size_t one = tarn__line_length(text + at, length - at), step = one + (at + one < length);
            j->documents += !tarn__is_blank_line(text + at, one);
            b.length += step;
            at += step;
            line++;
        }
        if (!add_block(j, &b))
            return false;
    }
    return true;
}

/* Adds an input file. The batch is flushed before the map is closed: blocks borrow its bytes. */
static bool add_input(job *j, const char *path)
{
    tarn__map map;
    if (!tarn__map_open(&map, "shards_prepare", path))
        return false;
    bool good =
        map.bytes == 0 ||
        ((tarn__is_jsonl(path, j->options.json_lines) ? add_lines : add_text_file)(j, path, map.memory, map.bytes) &&
         flush(j));
    if (!good)
        clear_batch(j);
    tarn__map_close(&map);
    return good;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

/* Adds the files of a split to the index. */
static bool list_files(tarn__json_file *index, const tarn__shard_writer *writer)
{
    char key[64], name[64];
    bool good = true;
    snprintf(key, sizeof(key), "%s.tokens", writer->split);
    good = tarn__json_file_set_int(index, key, writer->total);
    for (size_t i = 0; good && i < writer->counts.count; i++) {
        tarn__shard_name(name, sizeof(name), NULL, writer->split, (int)i);
        snprintf(key, sizeof(key), "%s.files", writer->split);
        good = tarn__json_file_add_string(index, key, name);
        snprintf(key, sizeof(key), "%s.counts", writer->split);
        good = good && tarn__json_file_add_int(index, key, ((const int64_t *)(const void *)writer->counts.data)[i]);
    }
    return good;
}

/* Writes index.json. */
static bool write_index(const job *j)
{
    char path[4096], hash[32];
    tarn__json_file *index = tarn__json_file_new("shards_prepare");
    snprintf(path, sizeof(path), "%s/" TARN__SHARD_INDEX, j->folder);
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)j->tokenizer->hash);
    bool good = index && tarn__json_file_set_string(index, "format", "tarn tokens") &&
                tarn__json_file_set_int(index, "version", TARN__SHARD_VERSION) &&
                tarn__json_file_set_string(index, "dtype", j->writer[0].header.width == 2 ? "u16" : "u32") &&
                tarn__json_file_set_int(index, "vocabulary", j->tokenizer->vocab.count) &&
                tarn__json_file_set_string(index, "tokenizer", j->tokenizer->kind->name) &&
                tarn__json_file_set_string(index, "tokenizer_hash", hash) &&
                tarn__json_file_set_int(index, "documents", j->documents) && list_files(index, &j->writer[0]) &&
                list_files(index, &j->writer[1]) && tarn__json_file_save(index, path);
    tarn__json_file_free(index);
    return good;
}

/* Creates the output folder; one with an index is an error, so that no finished data is overwritten. */
static bool open_folder(job *j)
{
    char path[4096];
    tarn__json_file *trial =
        tarn__json_file_new("shards_prepare"); /* fails early in a build without JSON: the index could not be written */
    tarn__json_file_free(trial);
    if (!trial)
        return false;
    if (!tarn__path_exists(j->folder) && !tarn__folder_make("shards_prepare", j->folder))
        return false;
    snprintf(path, sizeof(path), "%s/" TARN__SHARD_INDEX, j->folder);
    return !tarn__path_exists(path) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "shards_prepare: '%s' already exists; remove the folder or choose another",
                       path);
}

/* ---- entry point ------------------------------------------------------------------------------------------------- */

/* The id that ends a document: the option's, the tokenizer's end of text, or none. */
static bool find_separator(job *j)
{
    const tarn_shards_options *o = &j->options;
    j->separator = o->no_separator ? -1
                   : o->separator  ? tarn_tokenizer_find(j->tokenizer, o->separator, strlen(o->separator))
                                   : tarn_tokenizer_end_of_text(j->tokenizer);
    if (o->separator && o->no_separator)
        return tarn__raise(TARN_ERROR_ARGUMENT, "shards_prepare: a separator and no_separator exclude each other");
    return !o->separator || j->separator >= 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT, "shards_prepare: the separator '%.100s' is not a token of this tokenizer",
                       o->separator);
}

/* Checks the options and inputs, and sums up the inputs' bytes for progress reports. */
static bool check(job *j, const char *const *inputs, int count)
{
    const tarn_shards_options *o = &j->options;
    if (!inputs || count < 1 || !j->tokenizer || !j->folder || !j->folder[0] || strlen(j->folder) > 4000)
        return tarn__raise(TARN_ERROR_ARGUMENT, "shards_prepare: inputs, a tokenizer and a folder are required");
    if (!(o->val_fraction >= 0 && o->val_fraction < 1))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "shards_prepare: the validation fraction is %g; it must be from 0 to below 1",
                           o->val_fraction);
    if (o->shard_tokens < 0 || (o->shard_tokens > 0 && o->shard_tokens < 1024))
        return tarn__raise(TARN_ERROR_ARGUMENT, "shards_prepare: files of %lld tokens; at least 1024 are required",
                           (long long)o->shard_tokens);
    for (int i = 0; i < count; i++) {
        tarn__map map;
        if (!inputs[i] || !inputs[i][0])
            return tarn__raise(TARN_ERROR_ARGUMENT, "shards_prepare: input %d is NULL or empty", i);
        if (!tarn__map_open(&map, "shards_prepare", inputs[i]))
            return false;
        j->total_bytes += (int64_t)map.bytes;
        tarn__map_close(&map);
    }
    return find_separator(j) && open_folder(j);
}

/* Encodes all inputs, then writes the tokenizer and, last, the index: a folder without one is incomplete. */
static bool prepare(job *j, const char *const *inputs, int count)
{
    for (int k = 0; k < 2; k++)
        j->writer[k] =
            (tarn__shard_writer){.folder = j->folder,
                                 .split = k ? "valid" : "train",
                                 .max_ids = j->options.shard_tokens ? j->options.shard_tokens : DEFAULT_SHARD_TOKENS,
                                 .header = {TARN__SHARD_VERSION, j->tokenizer->vocab.count <= 65536 ? 2 : 4, 0,
                                            (uint64_t)j->tokenizer->vocab.count, j->tokenizer->hash}};
    j->whole_texts = needs_whole_texts(j);
    j->batch = tarn__alloc(BATCH_BLOCKS * sizeof(*j->batch));
    bool good = j->batch != NULL;
    for (int i = 0; good && i < count; i++)
        good = add_input(j, inputs[i]);
    good = good && tarn__shard_finish(&j->writer[0]) && tarn__shard_finish(&j->writer[1]);
    if (good && j->writer[0].total == 0)
        good = tarn__raise(TARN_ERROR_ARGUMENT, "shards_prepare: the inputs have no text to train on");
    return good && tarn_tokenizer_save(j->tokenizer, j->folder) && write_index(j);
}

/* Frees everything; after a failure the files that were written are removed. */
static void clean_up(job *j, bool good)
{
    tarn__encoder **idle = (tarn__encoder **)(void *)j->idle.data;
    for (size_t i = 0; i < j->idle.count; i++) {
        tarn__encoder_free(idle[i]);
        tarn__release(idle[i], sizeof(*idle[i]));
    }
    tarn__buffer_free(&j->idle, sizeof(tarn__encoder *));
    for (int k = 0; k < 2; k++)
        tarn__shard_writer_free(&j->writer[k], !good);
    tarn__release(j->batch, BATCH_BLOCKS * sizeof(*j->batch));
    pthread_mutex_destroy(&j->lock);
}

bool tarn_shards_prepare_sized(const char *const *inputs, int count, const tarn_tokenizer *tokenizer,
                               const char *folder, tarn_shards_summary *summary, const tarn_shards_options *options,
                               size_t options_size)
{
    if (tarn_failed())
        return false;
    job j = {.tokenizer = tokenizer, .folder = folder, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (options)
        memcpy(&j.options, options, options_size < sizeof(j.options) ? options_size : sizeof(j.options));
    j.field = j.options.field ? j.options.field : "text";
    bool good = check(&j, inputs, count) && prepare(&j, inputs, count);
    if (good && summary)
        *summary = (tarn_shards_summary){j.documents,
                                         j.bytes,
                                         j.writer[0].total,
                                         j.writer[1].total,
                                         (int)j.writer[0].counts.count,
                                         (int)j.writer[1].counts.count};
    clean_up(&j, good);
    return good;
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

/* Iterates over the documents of a file. Files are mapped: a text file is passed on without a copy. */

bool tarn__is_jsonl(const char *path, bool all)
{
    size_t length = strlen(path);
    return all || (length > 6 && strcmp(path + length - 6, ".jsonl") == 0);
}

size_t tarn__line_length(const char *text, size_t length)
{
    const char *end = memchr(text, '\n', length);
    return end ? (size_t)(end - text) : length;
}

/* Lines of Windows files end in \r\n: a \r alone is blank. */
bool tarn__is_blank_line(const char *line, size_t length)
{
    while (length > 0 && (*line == ' ' || *line == '\t' || *line == '\r'))
        line++, length--;
    return length == 0;
}

/* Documents of JSON lines; blank lines are skipped but counted. */
static bool each_line(const char *function, const char *path, const char *field, const tarn__map *map,
                      tarn__document_fn take, void *ctx)
{
    tarn__buffer text = {0};
    const char *lines = map->memory;
    int64_t number = 1;
    bool good = true;
    for (size_t at = 0, length; good && at < map->bytes; at += length + 1, number++) {
        length = tarn__line_length(lines + at, map->bytes - at);
        if (tarn__is_blank_line(lines + at, length))
            continue;
        text.count = 0;
        good = tarn__jsonl_text(function, &text, lines + at, length, field, path, number) &&
               take(ctx, text.data ? text.data : "", text.count);
    }
    tarn__buffer_free(&text, 1);
    return good;
}

bool tarn__each_document(const char *function, const char *path, const char *field, bool all_lines,
                         tarn__document_fn take, void *ctx)
{
    tarn__map map;
    if (!tarn__map_open(&map, function, path))
        return false;
    bool good = tarn__is_jsonl(path, all_lines) ? each_line(function, path, field ? field : "text", &map, take, ctx)
                                                : take(ctx, map.bytes ? map.memory : "", map.bytes);
    tarn__map_close(&map);
    return good;
}
