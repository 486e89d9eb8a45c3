/* chat_named.c: chat templates by name, for models that have none of their own: the plain forms of the families that chat_form.c knows, as transformers runs them. */
#include <string.h>

#include "text/marks.h"

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
               "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}"
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

const char *tarn__chat_named(const char *name)
{
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
        if (strcmp(named[i].name, name) == 0)
            return named[i].text;
    return NULL;
}
