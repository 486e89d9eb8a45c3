"""Chat templates beside transformers' apply_chat_template: the same text and the same ids for random conversations, the
same assistant masks for templates with generation blocks. The templates are published forms of four families, with what
differs between models, and every template of $TARN_TEST_DATA/chat-templates with tools, reasoning and parts."""
import ctypes as c
import datetime
import json
import os
import random
import re
import tempfile
from pathlib import Path

import gguf
import transformers
import transformers.utils.chat_template_utils as chat_utils
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import gguf_files
import jinja
import support
import tarn
import text
from tarn import _c

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


# name: (template, its family, whether users and assistants must take turns, whether a system's text is
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


def given(messages):
    """Messages as C structs: the functions that take these are compared here, the package's, by JSON, below."""
    return support.array(_c.tarn_chat_message, [(m["role"].encode(), m["content"].encode()) for m in messages])


def rendered(ours, messages, prompt):
    length = c.c_size_t()
    result = support.call("chat_render", ours, given(messages), len(messages), prompt, c.byref(length))
    data = c.string_at(result, length.value).decode()
    support.call("tokenizer_release", result)
    return data


def encoded(ours, messages, prompt):
    count = c.c_int64()
    result = support.call("chat_encode", ours, given(messages), len(messages), prompt, c.byref(count))
    ids = result[:count.value]
    support.call("tokenizer_release", c.cast(result, c.c_void_p))
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
    template, _, in_turns, has_system = TEMPLATES[name]
    ours, theirs = tokenizer_in(folder, rng, template)
    if ours.chat_template_name != "model":
        return f"is named {ours.chat_template_name}"
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
        if ours.decode(encoded(ours, messages, prompt), "strict") != mine:
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


# ---- messages in JSON ------------------------------------------------------------------------------------------------

TOKENS = re.compile(r"<\|[^|<>{}' ]{1,40}\|>|<｜[^｜'{}]{1,40}｜>|\[/?[A-Z_]{2,30}\]|<sep>|"
                    r"<(?:start|end)_of_turn>|<\|turn>|<turn\|>|<SPECIAL_\d+>|\]~b\]|\[e~\[")
GENERATION = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}"
              "{% generation %}{{ (m.content or '') | trim }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
              "{% endfor %}<|im_end|>{% endgeneration %}\n\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
              "<|im_end|>\n{% endif %}{% endfor %}")
DAY = datetime.datetime(2024, 7, 26)


def rendered_json(ours, messages, **options):
    return ours.render_chat(messages, **{"add_generation_prompt": False, **options})


def encoded_json(ours, messages, **options):
    return ours.apply_chat_template(messages, **{"add_generation_prompt": False, **options})


def with_date(template, now):
    """transformers compiles a template once: the date of that one is set."""
    program = chat_utils._compile_jinja_template(template)
    program.globals["strftime_now"] = program.environment.globals["strftime_now"] = now.strftime


def tokenizer_of(folder, rng, template):
    """A tokenizer that has the template's tokens, and one of transformers'."""
    special = list(dict.fromkeys(["<s>", "</s>", *sorted(set(TOKENS.findall(template)))]))
    text.trained(text.corpus(rng), 500, special).save(folder)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}, file)
    theirs = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), bos_token="<s>",
                                     eos_token="</s>")
    theirs.chat_template = template
    return text.opened(folder), theirs, special


def without(value, special):
    """The same conversation, in which no string has a special token."""
    if isinstance(value, str):
        for token in special:
            value = value.replace(token, "")
        return value
    if isinstance(value, list):
        return [without(item, special) for item in value]
    return {key: without(item, special) for key, item in value.items()} if isinstance(value, dict) else value


def draw_options(rng):
    context = jinja.draw_context(rng)
    return context["messages"], {
        "tools": context.get("tools"), "documents": context.get("documents"),
        "add_generation_prompt": context["add_generation_prompt"], "variables": {
            name: context[name]
            for name in ["enable_thinking", "thinking", "keep_past_thinking", "reasoning_effort"] if name in context}}


def outcome(make):
    """(result, None) or (None, error)."""
    try:
        return make(), None
    except tarn.Error as error:
        return None, str(error)
    except Exception as error:  # whatever a template can raise
        return None, f"{type(error).__name__}: {error}"


def json_problem(ours, theirs, special, rng):
    messages, options = draw_options(rng)
    theirs_options = {**options, **options["variables"]}
    del theirs_options["variables"]
    expected, error = outcome(lambda: theirs.apply_chat_template(messages, tokenize=False, **theirs_options))
    mine, my_error = outcome(lambda: rendered_json(ours, messages, **options))
    if expected != mine:
        return f"{messages} {options}: {mine!r} {my_error} here, {expected!r} {error} there"
    if error:
        return ""
    clean = without(messages, special)
    clean_options = {name: without(value, special) for name, value in options.items()}
    theirs_options = {name: without(value, special) for name, value in theirs_options.items()}
    expected, error = outcome(lambda: theirs.apply_chat_template(clean, return_dict=False, **theirs_options))
    mine, my_error = outcome(lambda: encoded_json(ours, clean, **clean_options))
    if expected != mine:
        return f"{clean} {clean_options}: {mine} {my_error} here, {expected} {error} there"
    return safety_problem(ours, theirs, special, messages, options)


def safety_problem(ours, theirs, special, messages, options):
    """Special tokens in messages stay text: as many are found as without them."""
    plain = json.loads(json.dumps(messages))
    for message in plain:
        if isinstance(message.get("content"), str):
            message["content"] = "word"
    tokens = {theirs.convert_tokens_to_ids(token) for token in special}
    count = lambda talk: sum(number in tokens for number in encoded_json(ours, talk, **options))
    hostile = json.loads(json.dumps(plain))
    for message in hostile:
        if isinstance(message.get("content"), str):
            message["content"] = "word" + "".join(token for token in special if "think" not in token) + "word"
    wanted, found = outcome(lambda: count(plain)), outcome(lambda: count(hostile))
    if wanted != found and wanted[1] is None and found[1] is None:
        return f"{hostile}: {found[0]} special tokens, not {wanted[0]}"
    return ""


def check_json(template, folder, rng):
    ours, theirs, special = tokenizer_of(folder, rng, template)
    for _ in range(12):
        with_date(template, datetime.datetime.now())
        problem = json_problem(ours, theirs, special, rng)
        if problem:
            return problem
    return ""


# ---- masks -----------------------------------------------------------------------------------------------------------


def sentinel_talk(rng):
    """Messages of words that occur once each."""
    messages = [{"role": "system", "content": "sys0"}] if rng.random() < 0.3 else []
    for turn in range(rng.randint(1, 3)):
        messages += [{"role": "user", "content": f"ask{turn}a"}]
        if rng.random() < 0.3:
            function = {"name": "fn", "arguments": {"x": f"ans{turn}c"}}
            call = {"id": "call00001", "type": "function", "function": function}
            messages += [{"role": "assistant", "content": "", "tool_calls": [call]},
                         {"role": "tool", "name": "fn", "tool_call_id": "call00001", "content": f"res{turn}r"}]
        thought = rng.choice(["", "", f"<think>\nthought{turn}\n</think>\n\n"])
        said = rng.choice(["", " "]) + f"ans{turn}b" + rng.choice(["", "\n"])
        messages += [{"role": "assistant", "content": thought + said}]
    return messages


def mask_problem(ours, theirs, special, template, rng):
    """Words of answers have loss and no others do; with generation blocks the mask is that of transformers."""
    messages = sentinel_talk(rng)
    tools = [without(jinja.draw_tool(rng), special)] if any("tool_calls" in message for message in messages) else None
    with_date(template, DAY)
    expected, error = outcome(lambda: theirs.apply_chat_template(messages, tools=tools, return_dict=True,
                                                                 return_assistant_tokens_mask=True))
    mine, my_error = outcome(lambda: ours.apply_chat_template_with_mask(messages, tools=tools))
    if mine is None:
        refused = error or "prints nothing of message" in my_error or "nothing of message" in my_error
        return "" if refused else f"{messages}: {my_error}"
    ids, flags = mine
    if error or ids != list(expected["input_ids"]):
        return f"{messages}: {ids} here, {expected and expected['input_ids']} {error} there"
    if "generation" in template and re.search(r"{%-?\s*generation\s*-?%}", template):
        return "" if flags == expected["assistant_masks"] else f"{messages}: {flags}, not {expected['assistant_masks']}"
    counted = ours.decode([x for x, flag in zip(ids, flags) if flag])
    given_text = ours.decode([x for x, flag in zip(ids, flags) if not flag])
    for word in re.findall(r"ans\d[bc]|thought\d", given_text):
        return f"{messages}: {word} is not in the loss: {given_text!r}"
    for word in re.findall(r"ask\da|res\dr|sys0", counted):
        return f"{messages}: {word} is in the loss: {counted!r}"
    return "" if flags[0] == 0 or messages[0]["role"] == "assistant" else f"{messages}: the first token is in the loss"


def check_masks(template, folder, rng):
    ours, theirs, special = tokenizer_of(folder, rng, template)
    for _ in range(12):
        problem = mask_problem(ours, theirs, special, template, rng)
        if problem:
            return problem
    return ""


# ---- special tokens and named templates ------------------------------------------------------------------------------

NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token",
         "boi", "x_token"]
SHOWN = "|".join("{{ " + name + " }}" for name in NAMES + ["additional_special_tokens", "extra_special_tokens"])
TALK = [{"role": "user", "content": "x"}]


def draw_special(rng, tokens):
    """A config that names some special tokens, and perhaps a special_tokens_map.json."""
    as_token = lambda token: {"__type": "AddedToken", "content": token, "lstrip": False, "rstrip": False,
                              "normalized": False, "single_word": False, "special": True}
    pick = lambda: rng.choice(tokens)
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": SHOWN,
              "tokenizer_class": rng.choice(["PreTrainedTokenizerFast", "TokenizersBackend"])}
    config |= {name: rng.choice([pick(), None]) for name in rng.sample(NAMES[2:7], rng.randint(0, 5))}
    config |= {name: as_token(pick()) for name in rng.sample(NAMES[2:7], rng.randint(0, 1))}
    config |= {name: pick() for name in ("image_token", "x_token") if rng.random() < 0.5}
    config |= rng.choice([{}, {"extra_special_tokens": {"boi": pick(), "x_token": pick()}},
                          {"additional_special_tokens": [pick()]}, {"extra_special_tokens": [pick()]}])
    if rng.random() < 0.3:
        config["added_tokens_decoder"] = {"0": as_token("<s>") | {"special": True}}
        config["added_tokens_decoder"]["0"].pop("__type")
    named = {name: rng.choice([pick(), {"content": pick(), "lstrip": False, "rstrip": False, "normalized": False,
                                        "single_word": False}])
             for name in rng.sample(NAMES[2:7], 2)} | {"image_token": pick()}
    return config, named if rng.random() < 0.4 else None


def check_special(folder, rng):
    """The special tokens that templates see, in a folder as published and in one that tarn saved."""
    for number in range(8):
        place, saved = os.path.join(folder, f"{number}"), os.path.join(folder, f"{number}-saved")
        os.mkdir(place)
        tokens = ["<s>", "</s>", "<pad>", "<image>"]
        text.trained(text.corpus(rng), 300, tokens).save(place)
        config, named = draw_special(rng, tokens)
        for name, values in (("tokenizer_config.json", config), ("special_tokens_map.json", named)):
            if values is not None:
                Path(place, name).write_text(json.dumps(values), encoding="utf-8")
        ours, theirs = text.opened(place), AutoTokenizer.from_pretrained(place)
        expected = theirs.apply_chat_template(TALK, tokenize=False)
        if rendered(ours, TALK, False) != expected:
            return f"{config}, {named}: {rendered(ours, TALK, False)!r} here, {expected!r} there"
        given_variables = {"pad_token": "own", "boi": 1}
        wanted = theirs.apply_chat_template(TALK, tokenize=False, **given_variables)
        replaced = rendered_json(ours, TALK, variables=given_variables)
        if replaced != wanted:
            return f"{config}: variables do not replace tokens: {replaced!r}"
        ours.save(saved)
        again = AutoTokenizer.from_pretrained(saved).apply_chat_template(TALK, tokenize=False)
        if again != expected:
            return f"{config}, {named}: saved {again!r}, not {expected!r}"
    return ""


def check_named(folder, rng):
    """Several templates, through a GGUF file and back: each is there under its name."""
    place, file, back = (os.path.join(folder, name) for name in ("model", "model.gguf", "back"))
    tokens = ["<s>", "</s>", "<pad>"]
    text.trained(text.corpus(rng), 300, tokens).save(place)
    templates = {name: f"{name}: {{{{ bos_token }}}}{{{{ messages[0].content }}}}{{{{ pad_token }}}}"
                 for name in ["default"] + rng.sample(["tool_use", "rag", "my-own.1", "b"], rng.randint(1, 3))}
    theirs = AutoTokenizer.from_pretrained(place)
    theirs.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
    theirs.chat_template = templates
    theirs.save_pretrained(place, save_jinja_files=rng.random() < 0.5)
    config = transformers.GPT2Config(vocab_size=len(theirs), n_positions=8, n_embd=8, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(config).save_pretrained(place)
    gguf_files.convert(place, file)
    gguf_files.convert(file, back)
    fields = gguf.GGUFReader(file).fields
    stored = {name: fields["tokenizer.chat_template" + (f".{name}" if name != "default" else "")].contents()
              for name in templates}
    opened = AutoTokenizer.from_pretrained(back)
    if stored != templates or opened.chat_template != templates:
        return f"{templates} became {stored} in GGUF, {opened.chat_template} in the folder"
    if sorted(fields["tokenizer.chat_templates"].contents()) != sorted(set(templates) - {"default"}):
        return f"{templates}: the file lists {fields['tokenizer.chat_templates'].contents()}"
    for name in templates:
        expected = opened.apply_chat_template(TALK, tokenize=False, chat_template=name)
        for path in (place, file, back):
            ours = text.opened(path)
            ours.set_chat_template(name)
            if rendered(ours, TALK, False) != expected:
                return f"{name} of {path}: {rendered(ours, TALK, False)!r}, not {expected!r}"
    return ""


def all_checks():
    """Pairs of a name and a check; None for what cannot be checked here."""
    checks = {name: lambda folder, rng, name=name: check(name, folder, rng) for name in TEMPLATES}
    checks |= {"special tokens": check_special, "named templates": check_named}
    folder = Path(os.environ.get("TARN_TEST_DATA", "")) / "chat-templates"
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}
    for name, template in ({"generation": GENERATION} | sources).items():
        checks[f"{name} json"] = lambda folder, rng, template=template: check_json(template, folder, rng)
        checks[f"{name} masks"] = lambda folder, rng, template=template: check_masks(template, folder, rng)
    return checks if sources else checks | {"templates of TARN_TEST_DATA": lambda folder, rng: None}


def run(seed):
    """Pairs of a name and what is wrong: "" for nothing."""
    many = 10 if os.environ.get("TARN_TEST_LONG") else 1
    for name, one in all_checks().items():
        for number in range(many):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    yield f"{name} {number}", one(folder, random.Random(f"{seed}/{name}/{number}"))
                except tarn.Error as error:
                    yield f"{name} {number}", f"tarn: {error}"
