/* template_named.c: chat templates by name, for models without one: plain forms of the most common families, as Jinja
 * that transformers can run too. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/chat/chat.h"

static const struct {
    const char *name, *text;
} named[] = {
    {"chatml", "{% for message in messages %}"
               "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
               "{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"llama2", "{% if messages[0]['role'] == 'system' %}"
               "{% set turns = messages[1:] %}{% set system_message = messages[0]['content'] %}"
               "{% else %}"
               "{% set turns = messages %}{% set system_message = false %}"
               "{% endif %}"
               "{% for message in turns %}"
               "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
               "{{ raise_exception('user and assistant must take turns') }}"
               "{% endif %}"
               "{% if loop.index0 == 0 and system_message != false %}"
               "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
               "{% else %}"
               "{% set content = message['content'] %}"
               "{% endif %}"
               "{% if message['role'] == 'user' %}"
               "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
               "{% else %}"
               "{{ ' ' + content.strip() + ' ' + eos_token }}"
               "{% endif %}"
               "{% endfor %}"},
    {"llama3", "{{ bos_token }}"
               "{% for message in messages %}"
               "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
               "'<|eot_id|>' }}"
               "{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
    {"mistral", "{% if messages[0]['role'] == 'system' %}"
                "{% set turns = messages[1:] %}{% set system_message = messages[0]['content'] %}"
                "{% else %}"
                "{% set turns = messages %}"
                "{% endif %}"
                "{{ bos_token }}"
                "{% for message in turns %}"
                "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
                "{{ raise_exception('user and assistant must take turns') }}"
                "{% endif %}"
                "{% if message['role'] == 'user' %}"
                "{% if loop.first and system_message is defined %}"
                "{{ '[INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}"
                "{% else %}"
                "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
                "{% endif %}"
                "{% else %}"
                "{{ ' ' + message['content'] | trim + eos_token }}"
                "{% endif %}"
                "{% endfor %}"},
};

/* NULL: none of that name. */
static const char *find(const char *name)
{
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
        if (strcmp(named[i].name, name) == 0)
            return named[i].text;
    return NULL;
}

/* By the source: the tokenizer keeps no names of templates that were set. */
const char *tarn__chat_template_name(const char *source)
{
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
        if (strcmp(named[i].text, source) == 0)
            return named[i].name;
    return "model";
}

/* Checks that the tokenizer has the template's tokens: as text they would end no completion. */
static bool check_tokens(const char *function, const tarn_tokenizer *tokenizer, const char *name)
{
    static const char *const needed[][4] = {{"chatml", "<|im_start|>", "<|im_end|>", NULL},
                                            {"llama3", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}};
    for (int i = 0; i < 2; i++)
        for (int k = 1; k < 4 && strcmp(name, needed[i][0]) == 0; k++)
            if (needed[i][k] && tarn_tokenizer_find(tokenizer, needed[i][k], strlen(needed[i][k])) < 0)
                return tarn__raise(TARN_ERROR_ARGUMENT,
                                   "%s: the template %s has the token '%s', which the tokenizer lacks; llama2 and "
                                   "mistral need BOS and EOS only, and fine-tuning adds tokens (--add-tokens)",
                                   function, name, needed[i][k]);
    if (strcmp(name, "chatml") == 0 || tarn_tokenizer_bos(tokenizer) >= 0)
        return true;
    return tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: the template %s has the BOS token, but the tokenizer's files name none", function, name);
}

const char *tarn__chat_template_named(const char *function, const tarn_tokenizer *tokenizer, const char *name)
{
    const char *text = find(name);
    if (!text)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: template '%.60s' not found; it must be chatml, llama2, llama3 or mistral",
                    function, name);
    return text && check_tokens(function, tokenizer, name) ? text : NULL;
}

/* The chosen template is the only one then: the others were for other choices. */
bool tarn_tokenizer_set_chat(tarn_tokenizer *tokenizer, const char *name)
{
    const char *function = "tokenizer_set_chat";
    if (tarn_failed())
        return false;
    if (!tokenizer || !name)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: tokenizer or name is NULL", function);
    const tarn__chat_source *own = tarn__tokenizer_chat(tokenizer, name);
    const char *text = own ? own->text : tarn__chat_template_named(function, tokenizer, name);
    char *copy = text ? tarn__string_copy(text) : NULL;
    if (!copy)
        return false;
    tarn__tokenizer_clear_chats(tokenizer);
    bool good = tarn__tokenizer_add_chat(tokenizer, "default", copy, strlen(copy));
    tarn__string_free(copy);
    return good;
}
