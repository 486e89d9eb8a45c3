/* write_config.c: tokenizer_config.json, as Hugging Face's transformers reads it beside a tokenizer.json: the tokens
 * that begin and end a text, and the chat template. */
#include <string.h>

#include "text/files/hf_write.h"

/* "key": a token's text, where there is one. */
static bool put_token(tarn__buffer *out, const tarn_tokenizer *t, const char *key, int32_t id)
{
    return id < 0 || (tarn__hf_put(out, ",\n  \"%s\": ", key) && tarn__hf_put_piece(out, t, id));
}

bool tarn__hf_put_config(tarn__buffer *out, const tarn_tokenizer *t)
{
    return tarn__hf_put(
               out,
               "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"clean_up_tokenization_spaces\": false") &&
           put_token(out, t, "bos_token", t->begin) && put_token(out, t, "eos_token", t->end) &&
           (!t->chat ||
            (tarn__hf_put(out, ",\n  \"chat_template\": ") && tarn__json_string(out, t->chat, strlen(t->chat)))) &&
           tarn__hf_put(out, "\n}\n");
}
