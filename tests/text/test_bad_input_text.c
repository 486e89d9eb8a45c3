/* test_bad_input_text.c: invalid arguments to the functions of text.h. */
#include "support/files.h"
#include "support/refuse.h"
#include "support/small_model.h"
#include "tarn_features.h"

static void tokenizers(void **state)
{
    (void)state;
    int64_t count;
    size_t length;
    const int32_t ids[] = {65, 256, -1};
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    REFUSE(tarn_tokenizer_open, tarn_tokenizer_open(NULL));
    REFUSE(tarn_tokenizer_open, tarn_tokenizer_open(""));
    REFUSE(tarn_tokenizer_open, tarn_tokenizer_open("/nonexistent-folder/x"));
    REFUSE(tarn_tokenizer_open, tarn_tokenizer_open("/"));
    ACCEPT(tarn_tokenizer_free(tarn_tokenizer_bytes()), true);
    ACCEPT(tarn_tokenizer_free(NULL), true);
    REFUSE(tarn_tokenizer_characters, tarn_tokenizer_characters(NULL, 3));
    REFUSE(tarn_tokenizer_characters, tarn_tokenizer_characters("", 0));
    REFUSE(tarn_tokenizer_characters, tarn_tokenizer_characters("\x80", 1));
    const char *empty = write_text("empty.txt", ""), *nowhere = "/nonexistent-folder/x", *none = NULL;
    REFUSE(tarn_tokenizer_characters_files, tarn_tokenizer_characters_files(NULL, 1, NULL, false));
    REFUSE(tarn_tokenizer_characters_files, tarn_tokenizer_characters_files(&empty, 0, NULL, false));
    REFUSE(tarn_tokenizer_characters_files, tarn_tokenizer_characters_files(&empty, 1, NULL, false));
    REFUSE(tarn_tokenizer_characters_files, tarn_tokenizer_characters_files(&empty, 1, NULL, true));
    REFUSE(tarn_tokenizer_characters_files, tarn_tokenizer_characters_files(&nowhere, 1, NULL, false));
    REFUSE(tarn_tokenizer_characters_files, tarn_tokenizer_characters_files(&none, 1, NULL, false));
    REFUSE(tarn_tokenizer_save, tarn_tokenizer_save(NULL, "x"));
    REFUSE(tarn_tokenizer_save, tarn_tokenizer_save(t, NULL));
    REFUSE(tarn_tokenizer_save, tarn_tokenizer_save(t, ""));
    REFUSE(tarn_tokenizer_save, tarn_tokenizer_save(t, "/proc/nonexistent/x"));
    REFUSE(tarn_tokenizer_kind, tarn_tokenizer_kind(NULL));
    REFUSE(tarn_tokenizer_count, tarn_tokenizer_count(NULL));
    REFUSE(tarn_tokenizer_hash, tarn_tokenizer_hash(NULL));
    REFUSE(tarn_tokenizer_piece, tarn_tokenizer_piece(NULL, 0, NULL));
    REFUSE(tarn_tokenizer_piece, tarn_tokenizer_piece(t, -1, NULL));
    REFUSE(tarn_tokenizer_piece, tarn_tokenizer_piece(t, 256, &length));
    ACCEPT(tarn_tokenizer_piece(t, 255, NULL));
    REFUSE(tarn_tokenizer_find, tarn_tokenizer_find(NULL, "a", 1));
    REFUSE(tarn_tokenizer_find, tarn_tokenizer_find(t, NULL, 1));
    ACCEPT(tarn_tokenizer_find(t, "ab", 2));
    REFUSE(tarn_tokenizer_is_special, tarn_tokenizer_is_special(NULL, 0));
    REFUSE(tarn_tokenizer_is_special, tarn_tokenizer_is_special(t, 256));
    REFUSE(tarn_tokenizer_end_of_text, tarn_tokenizer_end_of_text(NULL));
    REFUSE(tarn_tokenizer_encode, tarn_tokenizer_encode_sized(NULL, "a", 1, NULL, 0, &count));
    REFUSE(tarn_tokenizer_encode, tarn_tokenizer_encode(t, NULL, 1, NULL, &count));
    REFUSE(tarn_tokenizer_encode, tarn_tokenizer_encode(t, "a", 1, NULL, NULL));
    REFUSE(tarn_tokenizer_decode, tarn_tokenizer_decode(NULL, ids, 1, &length));
    REFUSE(tarn_tokenizer_decode, tarn_tokenizer_decode(t, NULL, 1, &length));
    REFUSE(tarn_tokenizer_decode, tarn_tokenizer_decode(t, ids, -1, &length));
    REFUSE(tarn_tokenizer_decode, tarn_tokenizer_decode(t, ids, 1, NULL));
    REFUSE(tarn_tokenizer_decode, tarn_tokenizer_decode(t, ids, 2, &length));
    REFUSE(tarn_tokenizer_decode, tarn_tokenizer_decode(t, ids + 2, 1, &length));
    ACCEPT(tarn_tokenizer_release(NULL), true);
    tarn_tokenizer_free(t);
}

static void streams(void **state)
{
    (void)state;
    size_t length;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_text_stream *stream = tarn_text_stream_new(t, NULL);
    REFUSE(tarn_tokenizer_bos, tarn_tokenizer_bos(NULL));
    REFUSE(tarn_tokenizer_eos, tarn_tokenizer_eos(NULL));
    ACCEPT(tarn_tokenizer_bos(t));
    ACCEPT(tarn_tokenizer_eos(t));
    REFUSE(tarn_text_stream_new, tarn_text_stream_new_sized(NULL, NULL, 0));
    REFUSE(tarn_text_stream_push, tarn_text_stream_push(NULL, 65, &length));
    REFUSE(tarn_text_stream_push, tarn_text_stream_push(stream, 65, NULL));
    REFUSE(tarn_text_stream_push, tarn_text_stream_push(stream, 256, &length));
    REFUSE(tarn_text_stream_push, tarn_text_stream_push(stream, -1, &length));
    REFUSE(tarn_text_stream_end, tarn_text_stream_end(NULL, &length));
    REFUSE(tarn_text_stream_end, tarn_text_stream_end(stream, NULL));
    ACCEPT(tarn_text_stream_push(stream, 65, &length));
    ACCEPT(tarn_text_stream_end(stream, &length));
    ACCEPT(tarn_text_stream_free(stream), true);
    ACCEPT(tarn_text_stream_free(NULL), true);
    tarn_tokenizer_free(t);
}

static void chats(void **state)
{
    (void)state;
    size_t length;
    int64_t count;
    const tarn_chat_message messages[] = {{"user", "a"}, {NULL, "a"}, {"user", NULL}, {"", "a"}};
    tarn_tokenizer *plain = tarn_tokenizer_bytes();
    REFUSE(tarn_chat_name, tarn_chat_name(NULL));
    REFUSE(tarn_chat_name, tarn_chat_name(plain));
    REFUSE(tarn_chat_eot, tarn_chat_eot(NULL));
    REFUSE(tarn_chat_eot, tarn_chat_eot(plain));
    REFUSE(tarn_chat_render, tarn_chat_render(NULL, messages, 1, true, &length));
    REFUSE(tarn_chat_encode, tarn_chat_encode(NULL, messages, 1, true, &count));
    REFUSE(tarn_chat_render, tarn_chat_render(plain, messages, 1, true, &length));
    REFUSE(tarn_chat_encode, tarn_chat_encode(plain, messages, 1, true, &count));
    static const char json[] = "[{\"role\": \"user\", \"content\": \"a\"}]";
    REFUSE(tarn_chat_render_json, tarn_chat_render_json_sized(NULL, json, strlen(json), NULL, 0, &length));
    REFUSE(tarn_chat_render_json, tarn_chat_render_json(plain, json, strlen(json), NULL, &length));
    REFUSE(tarn_chat_encode_json, tarn_chat_encode_json_sized(NULL, json, strlen(json), NULL, 0, NULL, &count));
    REFUSE(tarn_chat_encode_json, tarn_chat_encode_json(plain, json, strlen(json), NULL, NULL, &count));
    REFUSE(tarn_tokenizer_add_tokens, tarn_tokenizer_add_tokens(NULL, "<x>") >= 0);
    REFUSE(tarn_tokenizer_add_tokens, tarn_tokenizer_add_tokens(plain, NULL) >= 0);
    REFUSE(tarn_tokenizer_add_tokens, tarn_tokenizer_add_tokens(plain, "") >= 0);
    REFUSE(tarn_tokenizer_add_tokens, tarn_tokenizer_add_tokens(plain, "a,,b") >= 0);
    REFUSE(tarn_tokenizer_add_tokens, tarn_tokenizer_add_tokens(plain, "\xFF") >= 0);
    REFUSE(tarn_tokenizer_add_tokens, tarn_tokenizer_add_tokens(plain, "text:/no/such/file") >= 0);
    REFUSE(tarn_chat_check_tools, tarn_chat_check_tools(NULL));
    REFUSE(tarn_chat_check_tools, tarn_chat_check_tools("{}"));
    REFUSE(tarn_chat_check_tools, tarn_chat_check_tools("[5]"));
    ACCEPT(!tarn_chat_find_call(NULL, NULL, 0, NULL));
    ACCEPT(tarn_chat_content_length(NULL, 3) == 0);
    tarn_tokenizer_free(plain);
    if (!TARN__HAVE_JANSSON)
        return;
    char model[8192];
    write_file("tokenizer.model", model, small_model(model, &(small_model_options){0}));
    write_text("chat_template.jinja", "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                                      "message['content'] + '<|im_end|>' + '\n'}}"
                                      "{% endfor %}{{ '<|im_start|>assistant\n' }}");
    tarn_tokenizer *t = tarn_tokenizer_open(scratch("tokenizer.model"));
    ACCEPT(tarn_chat_name(t));
    REFUSE(tarn_chat_render, tarn_chat_render(t, NULL, 1, true, &length));
    REFUSE(tarn_chat_render, tarn_chat_render(t, messages, 0, true, &length));
    REFUSE(tarn_chat_render, tarn_chat_render(t, messages, -1, true, &length));
    REFUSE(tarn_chat_render, tarn_chat_render(t, messages, 1, true, NULL));
    REFUSE(tarn_chat_encode, tarn_chat_encode(t, messages, 1, true, NULL));
    for (int i = 1; i < 4; i++)
        REFUSE(tarn_chat_encode, tarn_chat_encode(t, messages + i, 1, true, &count));
    REFUSE(tarn_chat_render_json, tarn_chat_render_json(t, NULL, 0, NULL, &length));
    REFUSE(tarn_chat_render_json, tarn_chat_render_json(t, json, strlen(json), NULL, NULL));
    REFUSE(tarn_chat_render_json, tarn_chat_render_json(t, json, strlen(json) - 1, NULL, &length));
    REFUSE(tarn_chat_encode_json, tarn_chat_encode_json(t, NULL, 0, NULL, NULL, &count));
    REFUSE(tarn_chat_encode_json, tarn_chat_encode_json(t, json, strlen(json), NULL, NULL, NULL));
    tarn_tokenizer_free(t);
}

static void training(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2)
        skip(); /* then all of them refuse everything */
    const char *text = "ab ab", *nothing = NULL, *const special[] = {"", NULL};
    const char *missing = "/nonexistent-folder/x";
    const size_t length = 5;
    REFUSE(tarn_bpe_train, tarn_bpe_train_sized(NULL, &length, 1, 300, NULL, 0));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&text, NULL, 1, 300, NULL));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&nothing, &length, 1, 300, NULL));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&text, &length, 0, 300, NULL));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&text, &length, 1, 256, NULL));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&text, &length, 1, (int64_t)1 << 40, NULL));
    REFUSE(tarn_bpe_train,
           tarn_bpe_train(&text, &length, 1, 300, &(tarn_bpe_options){.special = special, .special_count = 1}));
    REFUSE(tarn_bpe_train,
           tarn_bpe_train(&text, &length, 1, 300, &(tarn_bpe_options){.special = special + 1, .special_count = 1}));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&text, &length, 1, 300, &(tarn_bpe_options){.special_count = -1}));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&text, &length, 1, 300, &(tarn_bpe_options){.min_frequency = -1}));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&text, &length, 1, 300, &(tarn_bpe_options){.ties = (tarn_bpe_ties)7}));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&text, &length, 1, 300, &(tarn_bpe_options){.pattern = "("}));
    REFUSE(tarn_bpe_train, tarn_bpe_train(&text, &length, 1, 300, &(tarn_bpe_options){.pattern = "[a&&b]"}));
    REFUSE(tarn_bpe_train_files, tarn_bpe_train_files_sized(NULL, 1, 300, NULL, 0));
    REFUSE(tarn_bpe_train_files, tarn_bpe_train_files(&nothing, 1, 300, NULL));
    REFUSE(tarn_bpe_train_files, tarn_bpe_train_files(&missing, 1, 300, NULL));
    REFUSE(tarn_bpe_train_files, tarn_bpe_train_files(&missing, 1, 3, NULL));
}

static void shards(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    const char *input = write_text("input.txt", "text"), *nothing = NULL, *missing = "/nonexistent-folder/x",
               *folder = scratch("shards");
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    int32_t id;
    REFUSE(tarn_shards_prepare, tarn_shards_prepare_sized(NULL, 1, t, folder, NULL, NULL, 0));
    REFUSE(tarn_shards_prepare, tarn_shards_prepare(&input, 0, t, folder, NULL, NULL));
    REFUSE(tarn_shards_prepare, tarn_shards_prepare(&input, 1, NULL, folder, NULL, NULL));
    REFUSE(tarn_shards_prepare, tarn_shards_prepare(&input, 1, t, NULL, NULL, NULL));
    REFUSE(tarn_shards_prepare, tarn_shards_prepare(&input, 1, t, "", NULL, NULL));
    REFUSE(tarn_shards_prepare, tarn_shards_prepare(&nothing, 1, t, folder, NULL, NULL));
    REFUSE(tarn_shards_prepare, tarn_shards_prepare(&missing, 1, t, folder, NULL, NULL));
    REFUSE(tarn_shards_prepare,
           tarn_shards_prepare(&input, 1, t, folder, NULL, &(tarn_shards_options){.val_fraction = 1}));
    REFUSE(tarn_shards_prepare,
           tarn_shards_prepare(&input, 1, t, folder, NULL, &(tarn_shards_options){.val_fraction = NAN}));
    REFUSE(tarn_shards_prepare,
           tarn_shards_prepare(&input, 1, t, folder, NULL, &(tarn_shards_options){.shard_tokens = -1}));
    REFUSE(tarn_shards_prepare,
           tarn_shards_prepare(&input, 1, t, folder, NULL, &(tarn_shards_options){.separator = "<|endoftext|>"}));
    REFUSE(tarn_shards_prepare, tarn_shards_prepare(&input, 1, t, folder, NULL,
                                                    &(tarn_shards_options){.separator = "a", .no_separator = true}));
    REFUSE(tarn_shards_prepare, tarn_shards_prepare(&input, 1, t, "/proc/nonexistent/x", NULL, NULL));
    ACCEPT(tarn_shards_prepare(&input, 1, t, folder, NULL, NULL));
    REFUSE(tarn_tokens_open, tarn_tokens_open(NULL, "train"));
    REFUSE(tarn_tokens_open, tarn_tokens_open("", "train"));
    REFUSE(tarn_tokens_open, tarn_tokens_open(missing, NULL));
    REFUSE(tarn_tokens_open, tarn_tokens_open(folder, NULL));
    REFUSE(tarn_tokens_open, tarn_tokens_open(folder, "test"));
    REFUSE(tarn_tokens_open, tarn_tokens_open(input, NULL));
    REFUSE(tarn_tokens_open, tarn_tokens_open(input, "train"));
    tarn_tokens *tokens = tarn_tokens_open(folder, "train");
    REFUSE(tarn_tokens_count, tarn_tokens_count(NULL));
    REFUSE(tarn_tokens_vocab_size, tarn_tokens_vocab_size(NULL));
    REFUSE(tarn_tokens_hash, tarn_tokens_hash(NULL));
    REFUSE(tarn_tokens_read, tarn_tokens_read(NULL, 0, 1, &id));
    REFUSE(tarn_tokens_read, tarn_tokens_read(tokens, -1, 1, &id));
    REFUSE(tarn_tokens_read, tarn_tokens_read(tokens, 0, -1, &id));
    REFUSE(tarn_tokens_read, tarn_tokens_read(tokens, 4, 1, &id));
    REFUSE(tarn_tokens_read, tarn_tokens_read(tokens, 0, INT64_MAX, &id));
    REFUSE(tarn_tokens_read, tarn_tokens_read(tokens, 0, 1, NULL));
    ACCEPT(tarn_tokens_close(tokens), true);
    ACCEPT(tarn_tokens_close(NULL), true);
    tarn_tokenizer_free(t);
}

static void nothing_happens_while_an_error_is_pending(void **state)
{
    (void)state;
    int64_t count = 1;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_set_error(TARN_ERROR_IO, "something before");
    assert_null(tarn_tokenizer_bytes());
    assert_null(tarn_tokenizer_characters("a", 1));
    assert_null(tarn_tokenizer_open("x"));
    assert_null(tarn_tokenizer_encode(t, "a", 1, NULL, &count));
    assert_int_equal(count, 0);
    assert_int_equal(tarn_tokenizer_count(t), -1);
    assert_false(tarn_tokenizer_save(t, scratch("pending")));
    assert_null(tarn_tokens_open(scratch("x"), NULL));
    assert_error(TARN_ERROR_IO, "something before");
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokenizers, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(streams, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(chats, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(training, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(shards, open_refusals, close_refusals),
        in_scope(nothing_happens_while_an_error_is_pending),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
