"""Documents to fine-tune on beside transformers: the ids that apply_chat_template gives, and loss on just the bytes of
answers: what follows the beginning of one, up to and with the token that ends it. Where answers lie in the text is
found by hand, by what each family writes around them."""
import ctypes as c
import json
import os
import random
import re
import tempfile

from transformers import AutoTokenizer, PreTrainedTokenizerFast

import chat
import support
import tarn
import text
from tarn import _c

CONTEXT, UNCOUNTED = 3000, -100
ANSWERS = {
    "chatml": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)",
    "llama3": r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)",
    "llama2": r"\[/INST\](.*?</s>)", "mistral": r"\[/INST\](.*?</s>)"}
NAMED = {"chatml": "chatml", "llama2": "llama2", "llama3": "llama3 asked", "mistral": "mistral named"}


def said(rng, role):
    """Something that no template takes for its own; answers are not empty."""
    words = text.some_text(rng).replace("\0", "")[:60]
    for token in chat.SPECIAL + ("<think>", "</think>", "<|endoftext|>"):
        words = words.replace(token, "")
    if role == "assistant" and rng.random() < 0.2:
        return rng.choice(chat.THOUGHTS)
    words = rng.choice(["", "", " ", "\n", "\n\n"]) + words + rng.choice(["", "", "  ", "\n"])
    return words + "yes" if role == "assistant" and not words.strip(chat_spaces()) else words


def chat_spaces():
    return "".join(chr(i) for i in range(0x3001) if chr(i).isspace())


def conversation(rng, in_turns, has_system):
    roles = [("user", "assistant")[i % 2] for i in range(rng.randrange(2, 7))]
    if not in_turns:
        roles = [rng.choice(["user", "assistant"]) for _ in roles] + ["assistant"]
    if has_system and rng.random() < 0.5:
        roles = ["system"] + roles
    return [{"role": role, "content": said(rng, role)} for role in roles]


def documents(ours, path, template=None, **options):
    """The (ids, marks) of all documents in the rows of an epoch; a document without loss is what fills a row."""
    given = support.options("chat_dataset", path=path.encode(), tokenizer=ours._handle, context=CONTEXT,
                            template_name=template and template.encode(), **options)
    handle, counts, found = support.call("chat_dataset_open_sized", *given), _c.tarn_chat_dataset_counts(), []
    support.call("chat_dataset_counts_of", handle, c.byref(counts))
    for row in range(counts.rows[0]):
        arrays = [(c.c_int32 * CONTEXT)() for _ in range(4)]
        support.call("chat_dataset_batch", handle, 0, row, 1, c.byref(_c.tarn_chat_dataset_rows(*arrays)))
        ids, targets, positions, starts = map(list, arrays)
        for begin in sorted(set(starts)):
            end = begin + starts.count(begin)
            if starts[begin:end] != [begin] * (end - begin) or positions[begin:end] != list(range(end - begin)):
                raise ValueError(f"row {row} has starts {starts} and positions {positions}")
            wanted = [x if x != UNCOUNTED else None for x in targets[begin:end]]
            if any(wanted):
                if wanted[-1] is not None or any(x is not None and x != y for x, y in zip(wanted, ids[begin + 1:end])):
                    raise ValueError(f"the targets {wanted} are not what follows {ids[begin:end]}")
                found.append((ids[begin:end], [False] + [x is not None for x in wanted[:-1]]))
    support.call("chat_dataset_close", handle)
    return found, counts


def marks(theirs, ids, spans):
    """Which ids hold a byte of a span. Letters of byte-level pieces are bytes, so that pieces add up."""
    at, result, added = 0, [], theirs.get_added_vocab()
    for number in ids:
        piece = theirs.convert_ids_to_tokens(number)
        size = len(piece.encode()) if piece in added else len(piece)
        result.append(any(begin < at + size and at < end for begin, end in spans))
        at += size
    return result


def spans_of(kind, rendered):
    return [
        tuple(len(rendered[:place].encode()) for place in found.span(1))
        for found in re.finditer(ANSWERS[kind], rendered, re.DOTALL)]


def expected(theirs, kind, messages):
    """As it is rendered, but for today's date."""
    rendered = theirs.apply_chat_template(messages, tokenize=False)
    rendered = re.sub(r"Today Date: .*?\n", "Today Date: 26 Jul 2024\n", rendered,
                      count=1) if kind == "llama3" else rendered
    ids = theirs(rendered, add_special_tokens=False)["input_ids"]
    return ids, marks(theirs, ids, spans_of(kind, rendered))


def write_lines(path, lines):
    with open(path, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=random.random() < 0.5) + "\n")


def differing(mine, wanted):
    """Rows change the order. The first id of a document is never in the loss."""
    wanted = [(ids, [False] + mask[1:]) for ids, mask in wanted]
    order = lambda documents: sorted(documents, key=str)
    for one, other in zip(order(mine), order(wanted)):
        if one != other:
            return f"{one} here, {other} there"
    return "" if len(mine) == len(wanted) else f"{len(mine)} documents here, {len(wanted)} there"


def check(template, kind, in_turns, has_system, folder, rng, name=None):
    ours, theirs = chat.tokenizer_in(folder, rng, template)
    if name:  # a template by its name, which needs its tokens
        text.trained(text.corpus(rng), 500, chat.SPECIAL).save(folder)
        ours, theirs = text.opened(folder), PreTrainedTokenizerFast(
            tokenizer_file=os.path.join(folder, "tokenizer.json"), bos_token="<s>", eos_token="</s>")
        theirs.chat_template = template
    talks = [conversation(rng, in_turns, has_system) for _ in range(60)]
    path = os.path.join(folder, "talks.jsonl")
    write_lines(path, [{"messages": talk} for talk in talks])
    mine, _ = documents(ours, path, name, seed=rng.randrange(1 << 60))
    wrong = differing(mine, [expected(theirs, kind, talk) for talk in talks])
    pairs = [(said(rng, "user"), said(rng, "assistant")) for _ in range(20)]
    write_lines(path,
                [{"prompt": prompt, "completion": completion, "id": i} for i, (prompt, completion) in enumerate(pairs)])
    mine, _ = documents(ours, path, name)
    return wrong or differing(mine, [
        expected(theirs, kind, [{"role": "user", "content": p}, {"role": "assistant", "content": a}])
        for p, a in pairs])


def check_plain(folder, rng):
    """Without a template: a prompt before its completion, and texts, each with the token that ends a text."""
    text.trained(text.corpus(rng), 500, chat.SPECIAL).save(folder)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"bos_token": "<s>", "eos_token": "</s>"}, file)
    ours, theirs = text.opened(folder), PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
    end, path = theirs.convert_tokens_to_ids("</s>"), os.path.join(folder, "lines.jsonl")
    pairs = [(rng.choice(["", said(rng, "user")]), said(rng, "assistant")) for _ in range(80)]
    write_lines(path, [{"prompt": p, "completion": a} if i % 2 else {"text": p + a} for i, (p, a) in enumerate(pairs)])
    wanted = []
    for i, (prompt, answer) in enumerate(pairs):
        ids = theirs(prompt + answer, add_special_tokens=False)["input_ids"]
        begin = len(prompt.encode()) if i % 2 else 0
        wanted.append((ids + [end], marks(theirs, ids, [(begin, len((prompt + answer).encode()))]) + [True]))
    return differing(documents(ours, path)[0], wanted)


def check_named(folder, rng):
    """Templates by name, in the folder that is saved, are Jinja that transformers runs."""
    for name, like in NAMED.items():
        text.trained(text.corpus(rng), 500, chat.SPECIAL).save(folder)
        with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
            json.dump({"bos_token": "<s>", "eos_token": "</s>"}, file)
        ours, saved = text.opened(folder), os.path.join(folder, name)
        ours.set_chat_template(name)
        ours.save(saved)
        theirs, (_, _, in_turns, has_system) = AutoTokenizer.from_pretrained(saved), templates()[like]
        for _ in range(40):
            messages, prompt = conversation(rng, in_turns, has_system), rng.random() < 0.5
            rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            if chat.rendered(ours, messages, prompt) != rendered or ours.chat_template_name != name:
                return f"{name}: {messages}: {chat.rendered(ours, messages, prompt)!r} here, {rendered!r} there"
    return ""


def templates():
    return chat.TEMPLATES | {
        "mistral named": (chat.mistral_with_system("[INST] ", " [/INST]", '" " + message["content"]|trim + eos_token',
                                                   "first"), "mistral", True, True)}


def run(seed):
    """Pairs of a name and what is wrong: "" for nothing."""
    checks = {name: lambda folder, rng, row=row: check(*row, folder, rng) for name, row in templates().items()}
    checks |= {
        f"named {name}": lambda folder, rng, name=name, like=like: check(*templates()[like], folder, rng, name)
        for name, like in NAMED.items()}
    checks |= {"plain": check_plain, "named": check_named}
    for name, one in checks.items():
        for number in range(10 if os.environ.get("TARN_TEST_LONG") else 1):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    yield f"{name} {number}", one(folder, random.Random(f"{seed}/{name}/{number}"))
                except (tarn.Error, ValueError) as error:
                    yield f"{name} {number}", f"tarn: {error}"
