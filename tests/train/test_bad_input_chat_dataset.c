/* test_bad_input_chat_dataset.c: bad arguments of tarn_chat_dataset functions. */
#include "support/files.h"
#include "support/refuse.h"
#include "tarn_features.h"

static void opening(void **state)
{
    (void)state;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    const char *path = write_text("a.jsonl", "{\"text\": \"a\"}\n");
    REFUSE(tarn_chat_dataset_open_sized, tarn_chat_dataset_open(NULL));
    REFUSE(tarn_chat_dataset_open_sized, tarn_chat_dataset_open(&(tarn_chat_dataset_options){.tokenizer = t}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = "", .tokenizer = t}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = "chats:", .tokenizer = t}));
    REFUSE(tarn_chat_dataset_open_sized, tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = path}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = path, .tokenizer = t, .context = 1}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = path, .tokenizer = t, .context = -5}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = path, .tokenizer = t, .context = INT64_MAX}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = path, .tokenizer = t, .val_fraction = 1}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = path, .tokenizer = t, .val_fraction = -0.1}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = path, .tokenizer = t, .val_fraction = NAN}));
    REFUSE(tarn_chat_dataset_open_sized, tarn_chat_dataset_open(&(tarn_chat_dataset_options){
                                             .path = path, .tokenizer = t, .val_fraction = 0.5, .val_path = path}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = path, .tokenizer = t, .template_name = "any"}));
    REFUSE(tarn_chat_dataset_open_sized, tarn_chat_dataset_open(&(tarn_chat_dataset_options){
                                             .path = path, .tokenizer = t, .template_name = "chatml"}));
    REFUSE(tarn_chat_dataset_open_sized, tarn_chat_dataset_open(&(tarn_chat_dataset_options){
                                             .path = path, .tokenizer = t, .template_name = "llama2"}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = scratch("none.jsonl"), .tokenizer = t}));
    REFUSE(tarn_chat_dataset_open_sized,
           tarn_chat_dataset_open(&(tarn_chat_dataset_options){.path = scratch(""), .tokenizer = t}));
    REFUSE(tarn_chat_dataset_open_sized, tarn_chat_dataset_open(&(tarn_chat_dataset_options){
                                             .path = path, .tokenizer = t})); /* bytes have no token that ends a text */
    REFUSE(tarn_tokenizer_set_chat, tarn_tokenizer_set_chat(NULL, "chatml"));
    REFUSE(tarn_tokenizer_set_chat, tarn_tokenizer_set_chat(t, NULL));
    REFUSE(tarn_tokenizer_set_chat, tarn_tokenizer_set_chat(t, ""));
    REFUSE(tarn_tokenizer_set_chat, tarn_tokenizer_set_chat(t, "chatml"));
    tarn_tokenizer_free(t);
}

static void batches(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    int32_t memory[16];
    tarn_chat_dataset_counts counts;
    tarn_chat_dataset_rows rows = {memory, memory + 4, memory + 8, memory + 12};
    tarn_tokenizer *t = tarn_bpe_train((const char *const[]){"ab"}, (const size_t[]){2}, 1, 257, NULL);
    tarn_chat_dataset *c = tarn_chat_dataset_open(&(tarn_chat_dataset_options){
        .path = write_text("b.jsonl", "{\"text\": \"ab\"}\n"), .tokenizer = t, .context = 4});
    assert_ok();
    REFUSE(tarn_chat_dataset_counts_of, tarn_chat_dataset_counts_of(NULL, &counts));
    REFUSE(tarn_chat_dataset_counts_of, tarn_chat_dataset_counts_of(c, NULL));
    REFUSE(tarn_chat_dataset_batch, tarn_chat_dataset_batch(NULL, 0, 0, 1, &rows));
    REFUSE(tarn_chat_dataset_batch, tarn_chat_dataset_batch(c, 0, 0, 1, NULL));
    REFUSE(tarn_chat_dataset_batch,
           tarn_chat_dataset_batch(c, 0, 0, 1, &(tarn_chat_dataset_rows){memory, memory, memory, NULL}));
    REFUSE(tarn_chat_dataset_batch, tarn_chat_dataset_batch(c, 2, 0, 1, &rows));
    REFUSE(tarn_chat_dataset_batch, tarn_chat_dataset_batch(c, -1, 0, 1, &rows));
    REFUSE(tarn_chat_dataset_batch, tarn_chat_dataset_batch(c, 0, -1, 1, &rows));
    REFUSE(tarn_chat_dataset_batch, tarn_chat_dataset_batch(c, 0, 0, 0, &rows));
    REFUSE(tarn_chat_dataset_batch, tarn_chat_dataset_batch(c, 0, INT64_MAX, 2, &rows));
    REFUSE(tarn_chat_dataset_batch, tarn_chat_dataset_batch(c, 0, 0, INT64_MAX, &rows));
    ACCEPT(tarn_chat_dataset_batch(c, 0, INT64_MAX / 2, 1, &rows));
    ACCEPT(tarn_chat_dataset_close(c));
    ACCEPT(tarn_chat_dataset_close(NULL));
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(opening, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(batches, open_refusals, close_refusals),
    };
    return cmocka_run_group_tests_name("bad input/chats", tests, make_scratch, remove_scratch);
}
