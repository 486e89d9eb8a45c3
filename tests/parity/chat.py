"""Chat templates beside transformers' apply_chat_template: the same text and the same ids for random conversations. The
templates here are the published forms of each family, with what differs between models."""
import ctypes as c
import datetime
import json
import os
import random
import tempfile

from transformers import AutoTokenizer, PreTrainedTokenizerFast

import tarn
import text

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
QWEN2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful assistant.<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
QWEN25 = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% else %}"
    "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% "
    "endif %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + "
    "'\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + "
    "'[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ "
    "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% "
    "endif %}{{ content }}{% endfor %}"
)
LLAMA3_PROMPT = "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
LLAMA3_ASKED = "{% if add_generation_prompt %}" + LLAMA3_PROMPT + "{% endif %}"
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}
    DATE
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
FIXED_DATE = '{%- set date_string = "26 Jul 2024" %}'
TODAY = ('{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}'
         '{%- set date_string = "26 Jul 2024" %}{%- endif %}')
TURNS = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
         "{{ raise_exception('roles must alternate') }}{% endif %}")


def mistral(opening, closing, answer):
    return ("{{ bos_token }}{% for message in messages %}" + TURNS + "{% if message['role'] == 'user' %}{{ '" +
            opening + "' + message['content'] + '" + closing + "' }}"
            "{% elif message['role'] == 'assistant' %}{{ " + answer + " }}{% endif %}{% endfor %}")


def mistral_with_system(opening, closing, answer, place):
    return """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    """ + TURNS + """
    {%- if message["role"] == "user" %}
        {%- if loop.PLACE and system_message is defined %}
            {{- "OPEN" + system_message + "\\n\\n" + message["content"] + "CLOSE" }}
        {%- else %}
            {{- "OPEN" + message["content"] + "CLOSE" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- ANSWER }}
    {%- endif %}
{%- endfor %}
""".replace("PLACE", place).replace("OPEN", opening).replace("CLOSE", closing).replace("ANSWER", answer)


# name: (template, what tarn calls it, whether users and assistants must take turns, whether a system's text is
# possible)
TEMPLATES = {
    "chatml": (CHATML, "chatml", False, True), "qwen2": (QWEN2, "chatml", False, True),
    "qwen2.5": (QWEN25, "chatml", False, True), "qwen3": (QWEN3, "chatml", False, True),
    "llama2": (LLAMA2, "llama2", True, True), "llama3": (LLAMA3 + LLAMA3_PROMPT, "llama3", False, True),
    "llama3 asked": (LLAMA3 + LLAMA3_ASKED, "llama3", False,
                     True), "llama3.1": (LLAMA31.replace("DATE", FIXED_DATE), "llama3", False,
                                         True), "llama3.2": (LLAMA31.replace("DATE", TODAY), "llama3", False, True),
    "mistral 0.1": (mistral("[INST] ", " [/INST]", "message['content'] + eos_token + ' '"), "mistral", True,
                    False), "mistral 0.2": (mistral("[INST] ", " [/INST]",
                                                    "message['content'] + eos_token"), "mistral", True, False),
    "mistral 0.2 new": (mistral_with_system(" [INST] ", " [/INST]", '" " + message["content"]|trim + eos_token',
                                            "first"), "mistral", True, True),
    "mistral 0.3": (mistral_with_system("[INST] ", "[/INST]", '" " + message["content"]|trim + eos_token',
                                        "last"), "mistral", True,
                    True), "mistral tekken": (mistral_with_system("[INST]", "[/INST]", 'message["content"] + eos_token',
                                                                  "last"), "mistral", True, True), }
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "[INST]", "[/INST]")
THOUGHTS = [
    "<think>\nhm\n</think>\n\nyes", "<think></think>", "a</think>\n\nb", "\n\n<think>\n\n</think>c</think>d",
    "<think>x"]


def conversation(rng, in_turns, has_system, plain):
    """Random messages. `plain`: none has a special token in it."""
    def content(role):
        said = text.some_text(rng).replace("\0", "")
        if rng.random() < 0.3:
            said = rng.choice(["  ", "\n", "\x1c "]) + said + rng.choice(["  ", "\n", "\x1f"])
        if role == "assistant" and rng.random() < 0.3:
            said = rng.choice(THOUGHTS)
        if rng.random() < 0.3:
            said += rng.choice(SPECIAL)
        if plain:
            for token in SPECIAL + ("<think>", "</think>", "<|endoftext|>"):
                said = said.replace(token, "")
        return said
    roles = [("user", "assistant")[i % 2] for i in range(rng.randrange(1, 6))]
    if not in_turns:
        roles = [rng.choice(["user", "assistant"]) for _ in roles]
    if has_system and rng.random() < 0.5:
        roles = ["system"] + roles
    return [{"role": role, "content": content(role)} for role in roles]


class Message(c.Structure):
    _fields_ = [("role", c.c_char_p), ("content", c.c_char_p)]


def given(messages):
    return (Message * len(messages))(*(Message(m["role"].encode(), m["content"].encode()) for m in messages))


def rendered(ours, messages, prompt):
    length = c.c_size_t()
    result = tarn.call("chat_render", ours.handle, given(messages), len(messages), prompt, c.byref(length))
    data = c.string_at(result, length.value).decode()
    tarn.call("tokenizer_release", result)
    return data


def encoded(ours, messages, prompt):
    count = c.c_int64()
    result = tarn.call("chat_encode", ours.handle, given(messages), len(messages), prompt, c.byref(count))
    ids = list((c.c_int32 * count.value).from_address(result))
    tarn.call("tokenizer_release", result)
    return ids


def tokenizer_in(folder, rng, template):
    """A folder with a tokenizer and a chat template in one of the places where they are."""
    special = SPECIAL if rng.random() < 0.7 else SPECIAL[:2]
    text.trained(text.corpus(rng), 500, special).save(folder)
    config = {"bos_token": "<s>", "eos_token": rng.choice(["</s>", {"content": "</s>"}])}
    if rng.random() < 0.5:
        config["chat_template"] = template
    elif rng.random() < 0.3:
        config["chat_template"] = [{"name": "tool_use", "template": "{{ 1 }}"},
                                   {"name": "default", "template": template}]
    else:
        with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8", newline="") as file:
            file.write(template)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    theirs = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), bos_token="<s>",
                                     eos_token="</s>")
    theirs.chat_template = template
    return text.opened(folder), theirs


def check(name, folder, rng):
    template, kind, in_turns, has_system = TEMPLATES[name]
    ours, theirs = tokenizer_in(folder, rng, template)
    if tarn.call("chat_name", ours.handle).decode() != kind:
        return f"is taken for {tarn.call('chat_name', ours.handle)}"
    for i in range(60):
        plain, prompt = i % 2 == 0, rng.random() < 0.5
        messages = conversation(rng, in_turns, has_system, plain)
        day = datetime.date.today()
        mine, expected = rendered(ours, messages,
                                  prompt), theirs.apply_chat_template(messages, tokenize=False,
                                                                      add_generation_prompt=prompt)
        if mine != expected and day == datetime.date.today():
            return f"{messages}: {mine!r} here, {expected!r} there"
        if plain and encoded(ours, messages, prompt) != theirs(expected, add_special_tokens=False)["input_ids"]:
            ids = theirs(expected, add_special_tokens=False)['input_ids']
            return f"{messages}: {encoded(ours, messages, prompt)} here, {ids} there"
        if ours.decode(encoded(ours, messages, prompt)).decode() != mine:
            return f"{messages}: the ids are of another text"
    return check_saved(ours, folder, rng, in_turns, has_system)


def check_saved(ours, folder, rng, in_turns, has_system):
    """What tarn saves is a folder that transformers opens, template and all."""
    saved = os.path.join(folder, "saved")
    ours.save(saved)
    theirs = AutoTokenizer.from_pretrained(saved)
    for _ in range(5):
        messages = conversation(rng, in_turns, has_system, True)
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if rendered(ours, messages, True) != expected or encoded(ours, messages, True) != theirs(
                expected, add_special_tokens=False)["input_ids"]:
            return f"{messages}: transformers makes something else of the saved folder: {expected!r}"
    return ""


GAPS = ["", "", "\n", " ", "  \n", "\n  ", "\n\n", "\t"]
TAGS = [
    "{% set a = 1 %}", "{%- set a = 1 %}", "{% set a = 1 -%}", "{{ '' }}", "{{- '' }}", "{{ '' -}}", "{# a remark #}"]


def check_spaces(folder, rng):
    """A template is taken just where nothing is printed of what stands between its tags."""
    text.trained(text.corpus(rng), 400, SPECIAL).save(folder)
    theirs = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
    for _ in range(300):
        template = "".join(rng.choice(GAPS) + rng.choice(TAGS)
                           for _ in range(rng.randrange(4))) + rng.choice(GAPS) + CHATML + rng.choice(GAPS)
        with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8", newline="") as file:
            file.write(template)
        theirs.chat_template = template
        expected = theirs.apply_chat_template([{"role": "user", "content": "hi"}],
                                              tokenize=False) == "<|im_start|>user\nhi<|im_end|>\n"
        ours = text.opened(folder)
        try:
            taken = tarn.call("chat_name", ours.handle) == b"chatml"
        except tarn.Error:
            taken = False
        if taken != expected:
            return f"{template!r} is {'taken' if taken else 'refused'}"
    return ""


def run(seed):
    """Pairs of a name and what is wrong: "" for nothing."""
    many = 10 if os.environ.get("TARN_TEST_LONG") else 1
    for name in [*TEMPLATES, "spaces"]:
        for number in range(many):
            with tempfile.TemporaryDirectory() as folder:
                rng = random.Random(f"{seed}/{name}/{number}")
                try:
                    yield f"{name} {number}", check(name, folder, rng) if name in TEMPLATES else check_spaces(
                        folder, rng)
                except tarn.Error as error:
                    yield f"{name} {number}", f"tarn: {error}"
