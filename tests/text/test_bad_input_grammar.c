/* test_bad_input_grammar.c: invalid arguments to the functions of grammar.h. */
#include <tarn/grammar.h>

#include "support/files.h"
#include "support/refuse.h"

static void grammars(void **state)
{
    (void)state;
    const int32_t outside = 256;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    REFUSE(tarn_grammar_vocab_new, tarn_grammar_vocab_new_sized(NULL, NULL, 0));
    REFUSE(tarn_grammar_vocab_new, tarn_grammar_vocab_new(t, &(tarn_grammar_vocab_options){.vocab_size = -1}));
    REFUSE(tarn_grammar_vocab_new, tarn_grammar_vocab_new(t, &(tarn_grammar_vocab_options){.eos_count = -1}));
    REFUSE(tarn_grammar_vocab_new,
           tarn_grammar_vocab_new(t, &(tarn_grammar_vocab_options){.eos = &outside, .eos_count = 1}));
    REFUSE(tarn_grammar_vocab_size, tarn_grammar_vocab_size(NULL));
    REFUSE(tarn_grammar_gbnf, tarn_grammar_gbnf(NULL, NULL, 0));
    REFUSE(tarn_grammar_gbnf, tarn_grammar_gbnf(NULL, "root ::= x", 10));
    REFUSE(tarn_grammar_gbnf, tarn_grammar_gbnf(NULL, "", (size_t)1 << 40));
    REFUSE(tarn_grammar_regex, tarn_grammar_regex(NULL, NULL, 0));
    REFUSE(tarn_grammar_regex, tarn_grammar_regex(NULL, "(", 1));
    REFUSE(tarn_grammar_json_schema, tarn_grammar_json_schema(NULL, NULL, 0));
    REFUSE(tarn_grammar_json_schema, tarn_grammar_json_schema(NULL, "{\"not\":{}}", 10));
    ACCEPT(tarn_grammar_free(tarn_grammar_json(NULL)), true);
    ACCEPT(tarn_grammar_vocab_free(NULL), true);
    ACCEPT(tarn_grammar_free(NULL), true);
    ACCEPT(tarn_matcher_free(NULL), true);
    tarn_tokenizer_free(t);
}

static void matchers(void **state)
{
    (void)state;
    uint32_t mask[9];
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_grammar_vocab *v = tarn_grammar_vocab_new(t, NULL);
    tarn_grammar *g = tarn_grammar_regex(v, "a*", 2);
    tarn_matcher *m = tarn_matcher_new(g);
    REFUSE(tarn_matcher_new, tarn_matcher_new(NULL));
    REFUSE(tarn_matcher_clone, tarn_matcher_clone(NULL));
    REFUSE(tarn_matcher_mask, tarn_matcher_mask(NULL, mask, 8));
    REFUSE(tarn_matcher_mask, tarn_matcher_mask(m, NULL, 8));
    REFUSE(tarn_matcher_mask, tarn_matcher_mask(m, mask, 9));
    REFUSE(tarn_matcher_accept, tarn_matcher_accept(NULL, 0));
    REFUSE(tarn_matcher_accept, tarn_matcher_accept(m, -1));
    REFUSE(tarn_matcher_accept, tarn_matcher_accept(m, 256));
    REFUSE(tarn_matcher_accept_bytes, tarn_matcher_accept_bytes(NULL, "a", 1));
    REFUSE(tarn_matcher_accept_bytes, tarn_matcher_accept_bytes(m, NULL, 1));
    ACCEPT(tarn_matcher_accept_bytes(m, NULL, 0));
    ACCEPT(tarn_matcher_accept(m, 'b'));
    REFUSE(tarn_matcher_may_end, tarn_matcher_may_end(NULL));
    REFUSE(tarn_matcher_is_done, tarn_matcher_is_done(NULL));
    REFUSE(tarn_matcher_rollback, tarn_matcher_rollback(NULL, 0));
    REFUSE(tarn_matcher_rollback, tarn_matcher_rollback(m, -1));
    REFUSE(tarn_matcher_rollback, tarn_matcher_rollback(m, 2));
    tarn_matcher_free(m);
    tarn_grammar_free(g);
    tarn_grammar_vocab_free(v);
    tarn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(grammars, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(matchers, open_refusals, close_refusals),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
