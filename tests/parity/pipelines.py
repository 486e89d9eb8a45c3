"""Tokenizers of every kind beside Hugging Face's tokenizers: Unigram, WordPiece, WordLevel and BPE on characters with
random normalizers, pre-tokenizers, decoders and added tokens; the families that are published; files saved and opened
again. Vocabularies are drawn here from random texts."""
import base64
import contextlib
import io
import json
import os
import random
import struct
import tempfile
import unicodedata

import gguf
import sentencepiece
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter

import gguf_files
import pieces
import tarn
import text

TEXTS = 250


# Characters that have kept their category since Unicode 3.2, of which both programs may have different tables.
MOVED = {x for x in text.OLD if unicodedata.category(x) != unicodedata.ucd_3_2_0.category(x)} - set(text.SPACES)


def some_text(rng):
    sample = text.some_text(rng) if rng.random() < 0.6 else pieces.some_text(rng)
    return "".join(x for x in sample if x not in MOVED)


def chance(rng, share=0.5):
    return rng.random() < share


@contextlib.contextmanager
def silent():
    """Without what a panic of the package prints."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def encoded(theirs, sample, **options):
    """Their ids; None where the package panics or refuses."""
    try:
        return theirs.encode(sample, **options).ids
    except BaseException as error:  # a panic is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def decoded(theirs, ids):
    """Their text; None where the package panics."""
    try:
        return theirs.decode(ids, skip_special_tokens=False)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def ours_or_error(ours, sample, **options):
    try:
        return ours.encode(sample, **options)
    except tarn.Error as error:
        return str(error)


def shortened(ours, theirs, sample, around):
    """A text that differs, with as many characters left out as possible."""
    at = 0
    while at < len(sample):
        shorter = sample[:at] + sample[at + 1:]
        expected = encoded(theirs, shorter, add_special_tokens=around)
        is_wrong = expected is not None and ours_or_error(ours, shorter, add_special=around) != expected
        sample, at = (shorter, at) if is_wrong else (sample, at + 1)
    return sample


def difference(ours, theirs, rng, count=TEXTS, texts=some_text, decodes=True):
    """What differs for random texts; "" when nothing does."""
    with silent():
        for _ in range(count):
            sample, around = texts(rng), chance(rng, 0.2)
            expected = encoded(theirs, sample, add_special_tokens=around)
            if expected is None:
                continue
            ids = ours_or_error(ours, sample, add_special=around)
            if ids != expected:
                sample = shortened(ours, theirs, sample, around)
                ids, expected = (ours_or_error(ours, sample, add_special=around),
                                 encoded(theirs, sample, add_special_tokens=around))
                return f"{sample!r}: {ids} here, {expected} there"
            if not decodes:
                continue
            there, here = decoded(theirs, expected), ours.decode_bytes(ids)
            if there is not None and "\ufffd" not in there and here.decode(errors="replace") != there:
                return f"{sample!r}: {ids} give {here!r} here, {there!r} there"
            if "".join(pieces.streamed(ours, ids)) != here.decode(errors="replace"):
                return f"{sample!r}: {ids} give {here!r}, streamed {pieces.streamed(ours, ids)}"
    return ""


def same(a, b):
    return a.hash == b.hash


def both_ways(theirs, folder, rng, count=TEXTS, texts=some_text):
    """Their file read by both; what tarn saves, read by both."""
    path, saved = os.path.join(folder, "theirs.json"), os.path.join(folder, "saved")
    theirs.save(path)
    try:
        ours = text.opened(path)
    except tarn.Error as error:
        if "normalization leaves nothing" in str(error):  # the package finds an empty token everywhere
            return None
        raise
    wrong = difference(ours, theirs, rng, count, texts)
    if wrong:
        return wrong
    ours.save(saved)
    if not same(ours, text.opened(saved)):
        return "saved and opened it is another tokenizer"
    wrong = difference(ours, Tokenizer.from_file(os.path.join(saved, "tokenizer.json")), rng, count // 4, texts)
    return f"saved: {wrong}" if wrong else ""


# ---- parts -----------------------------------------------------------------------------------------------------------


def alphabet(rng):
    """Pieces of random texts, so that many match."""
    samples = [some_text(rng) for _ in range(60)]
    return "".join(samples) + "the quick brown fox jumps over 123 dogs. don't! "


def some_pieces(rng, count, space="▁"):
    source, found = alphabet(rng).replace(" ", space), {}
    for _ in range(count):
        at = rng.randrange(len(source))
        found[source[at:at + rng.choice([1, 1, 1, 2, 2, 3, 4, 6])]] = None
    return [piece for piece in found if piece and "\0" not in piece]  # jansson has no keys with a NUL


def double_array(keys):
    """A double-array trie as Darts writes it, of (bytes, value), built plainly: a free offset for each node."""
    tree = {}
    for key, value in keys:
        node = tree
        for byte in key:
            node = node.setdefault(byte, {})
        node[None] = value
    units, used = {0: 0}, {0}
    queue, free = [(tree, 0)], 1

    def offset_for(index, labels):
        nonlocal free
        base = free
        while True:
            offset = index ^ base
            if offset < 1 << 21 and not any((base ^ label) in used or base ^ label == 0 for label in labels):
                return base, offset
            base += 1

    while queue:
        node, index = queue.pop()
        labels = [0 if label is None else label for label in node]
        if not labels:
            continue
        base, offset = offset_for(index, labels)
        units[index] = units.get(index, 0) | offset << 10 | (1 << 8 if None in node else 0)
        for label in labels:
            used.add(base ^ label)
        for label, child in node.items():
            at = base ^ (0 if label is None else label)
            if label is None:
                units[at] = child | 1 << 31
            else:
                units[at] = label
                queue.append((child, at))
    size = (max(units) | 0xFF) + 1
    return b"".join(struct.pack("<I", units.get(i, 0)) for i in range(size))


def charsmap(rng):
    """A character map with random rules, some of several characters, and those of spaces."""
    rules = {"\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\xa0": " ", "\u200b": " ", "ﬁ": "fi", "\ufeff": ""}
    for _ in range(60):
        rules[rng.choice(text.OLD[33:])] = rng.choice(["", "x", " ", "é", "ab", " y", "語"])
    for _ in range(20):
        rules[rng.choice(text.OLD[33:]) + rng.choice(text.MARKS)] = rng.choice(["q", "zz", "é"])
    rules["e\u0301"] = "é"
    rules.pop("\0", None)
    strings, keys = b"", []
    for key, value in rules.items():
        keys.append((key.encode(), len(strings)))
        strings += value.encode() + b"\0"
    trie = double_array(keys)
    return struct.pack("<I", len(trie)) + trie + strings


def some_normalizer(rng):
    kinds = [
        lambda: {"type": "NFC"}, lambda: {"type": "NFD"}, lambda: {"type": "NFKC"}, lambda: {"type": "NFKD"},
        lambda: {"type": "Lowercase"}, lambda: {"type": "StripAccents"},
        lambda: {"type": "Strip", "strip_left": chance(rng), "strip_right": chance(rng)},
        lambda: {"type": "Replace", "pattern": {"String": rng.choice([" ", "``", "e", "é"])},
                 "content": rng.choice(["", "▁", "x", '"'])},
        lambda: {"type": "Replace", "pattern": {"Regex": rng.choice([" {2,}", "[0-9]+", r"\s+", "a|e"])},
                 "content": rng.choice(["", " ", "▁", "0"])},
        lambda: {"type": "Prepend", "prepend": "▁"},
        lambda: {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap(rng)).decode()},
        lambda: {"type": "BertNormalizer", "clean_text": chance(rng), "handle_chinese_chars": chance(rng),
                 "strip_accents": rng.choice([None, True, False]), "lowercase": chance(rng)}]
    count = rng.choice([0, 0, 1, 1, 2, 3])
    steps = [rng.choice(kinds)() for _ in range(count)]
    return None if not steps else steps[0] if len(steps) == 1 else {"type": "Sequence", "normalizers": steps}


BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def some_split(rng):
    pattern = rng.choice([{"String": " "}, {"String": "e"}, {"Regex": r"\s+"}, {"Regex": r"\p{N}{1,3}"},
                          {"Regex": "[a-e]"}, {"Regex": text.QWEN2}, {"Regex": r"\w+"}])
    return {"type": "Split", "pattern": pattern, "behavior": rng.choice(BEHAVIORS), "invert": chance(rng, 0.3)}


def some_pre_tokenizer(rng, empty=True):
    kinds = [
        lambda: some_split(rng), lambda: some_split(rng),
        lambda: {"type": "Punctuation", "behavior": rng.choice(BEHAVIORS)},
        lambda: {"type": "Digits", "individual_digits": chance(rng)}, lambda: {"type": "Whitespace"},
        lambda: {"type": "WhitespaceSplit"}, lambda: {"type": "BertPreTokenizer"},
        lambda: {"type": "CharDelimiterSplit", "delimiter": rng.choice(" ,e")},
        lambda: {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["always", "first", "never"]),
                 "split": chance(rng)},
        lambda: {"type": "ByteLevel", "add_prefix_space": chance(rng), "trim_offsets": True, "use_regex": chance(rng)}]
    steps = [rng.choice(kinds)() for _ in range(rng.choice([0, 1, 1, 1, 2, 3] if empty else [1, 1, 2]))]
    return None if not steps else steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}


def some_decoder(rng):
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["always", "first", "never"]),
                 "split": True}
    strip = {"type": "Strip", "content": rng.choice([" ", "e"]), "start": rng.randrange(3), "stop": rng.randrange(2)}
    return rng.choice([
        None, metaspace, {"type": "WordPiece", "prefix": "##", "cleanup": chance(rng)},
        {"type": "BPEDecoder", "suffix": "</w>"}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                                   "use_regex": True}, {"type": "Fuse"},
        {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]}])


def some_added(rng, first):
    """Random added tokens, with ids after the vocabulary."""
    contents = ["<s>", "</s>", "<pad>", "<tag>", "[MASK]", " ", "  ", "\n", "the", " hello", "a b", "é", "World",
                "<|x|>", "▁", "e"]
    rng.shuffle(contents)
    return [{"id": first + i, "content": content, "single_word": chance(rng, 0.3), "lstrip": chance(rng, 0.4),
             "rstrip": chance(rng, 0.4), "normalized": chance(rng), "special": chance(rng)}
            for i, content in enumerate(contents[:rng.randrange(6)])]


def aligned(part, normalizer):
    """Metaspace's scheme "first" goes by offsets in the original text, which normalizers shift in ways of the package's
    own: a character that Replace puts for two begins at the second. tarn goes by whether the beginning was removed, so
    behind such normalizers another scheme is drawn."""
    if not part or not normalizer or normalizer["type"] == "Lowercase":
        return part
    if part["type"] == "Sequence":
        return part | {"pretokenizers": [aligned(step, normalizer) for step in part["pretokenizers"]]}
    return part | {"prepend_scheme": "always"} if part.get("prepend_scheme") == "first" else part


def distinct(added, normalizer, model):
    """Added tokens without those that normalization makes equal to one before: the package keeps them in a hash table
    and finds another one in every process."""
    if not normalizer:
        return added
    normalize = Tokenizer.from_str(json.dumps({"version": "1.0", "normalizer": normalizer, "model": model})).normalizer
    forms, kept = set(), []
    for token in added:
        form = normalize.normalize_str(token["content"])
        if not token["normalized"] or form not in forms:
            kept.append(token)
        if token["normalized"]:
            forms.add(form)
    return kept


def assembled(model, rng, size, **parts):
    """A tokenizer of the package from parts of JSON."""
    known = set(model["vocab"]) if isinstance(model["vocab"], dict) else {x[0] for x in model["vocab"]}
    added = parts.pop("added", None)
    added = [a for a in (some_added(rng, size) if added is None else added) if a["content"] not in known]
    added = distinct(added, parts.get("normalizer"), model)
    for i, token in enumerate(added):
        token["id"] = size + i
    root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": parts.get("normalizer"),
            "pre_tokenizer": aligned(parts.get("pre_tokenizer"), parts.get("normalizer")),
            "post_processor": parts.get("post_processor"), "decoder": parts.get("decoder"), "model": model}
    return Tokenizer.from_str(json.dumps(root))


BYTES = [f"<0x{i:02X}>" for i in range(256)]

# ---- kinds -----------------------------------------------------------------------------------------------------------


def unigram_model(rng, fallback):
    found = ["<unk>"] + (BYTES if fallback else []) + [x for x in some_pieces(rng, 500) if x not in ("<unk>", *BYTES)]
    scores = [rng.choice([-1.0, -2.0, -2.5, -rng.random() * 12]) for _ in found]
    return {"type": "Unigram", "unk_id": 0, "byte_fallback": fallback, "vocab": [list(x) for x in zip(found, scores)]}


def check_unigram(folder, rng):
    model = unigram_model(rng, chance(rng))
    usual = chance(rng)
    pre = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["always", "first"]), "split": True}
    if usual and chance(rng):
        pre = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, pre]}
    theirs = assembled(
        model, rng, len(model["vocab"]), normalizer=some_normalizer(rng), decoder=some_decoder(rng),
        pre_tokenizer=pre if usual else some_pre_tokenizer(rng))
    return both_ways(theirs, folder, rng)


def check_wordpiece(folder, rng):
    found = ["[UNK]", "[CLS]", "[SEP]"] + [
        x for x in some_pieces(rng, 500, " ") if x not in ("[UNK]", "[CLS]", "[SEP]")]
    found += ["##" + x for x in found[3:] if "##" + x not in found and chance(rng, 0.8)]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
             "max_input_chars_per_word": rng.choice([5, 100]), "vocab": {x: i for i, x in enumerate(found)}}
    usual = chance(rng)
    around = {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
              "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]}
                                 for i, name in ((1, "[CLS]"), (2, "[SEP]"))}}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": chance(rng)}
    theirs = assembled(
        model, rng, len(found), normalizer=bert if usual else some_normalizer(rng), post_processor=around,
        pre_tokenizer={"type": "BertPreTokenizer"} if usual else some_pre_tokenizer(rng),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": chance(rng)} if usual else some_decoder(rng))
    return both_ways(theirs, folder, rng)


def check_words(folder, rng):
    found = ["[UNK]"] + [x for x in some_pieces(rng, 500, " ") if x != "[UNK]"]
    model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {x: i for i, x in enumerate(found)}}
    theirs = assembled(model, rng, len(found), normalizer=some_normalizer(rng), decoder=some_decoder(rng),
                       pre_tokenizer=some_pre_tokenizer(rng))
    return both_ways(theirs, folder, rng)


def check_bpe(folder, rng):
    """BPE on characters, trained by the package, with every setting."""
    prefix, suffix = rng.choice(["", "", "##"]), rng.choice(["", "", "</w>"])
    theirs = Tokenizer(models.BPE(unk_token="<unk>"))
    theirs.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if chance(rng) else pre_tokenizers.Metaspace()
    theirs.train_from_iterator(
        text.corpus(rng) + [some_text(rng).replace("\0", "") for _ in range(100)],
        trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"] + (BYTES if chance(rng) else []),
                            continuing_subword_prefix=prefix, end_of_word_suffix=suffix, show_progress=False))
    model = json.loads(theirs.to_str())["model"]
    model.update(fuse_unk=chance(rng), byte_fallback=chance(rng), ignore_merges=chance(rng),
                 unk_token=rng.choice(["<unk>", "<unk>", None]))
    pre = some_pre_tokenizer(rng)
    if "ByteLevel" in json.dumps(pre):  # without a token for unknown bytes the package drops text, and tarn refuses it
        model["unk_token"] = "<unk>"
    theirs = assembled(model, rng, len(model["vocab"]), normalizer=some_normalizer(rng), decoder=some_decoder(rng),
                       pre_tokenizer=pre)
    return both_ways(theirs, folder, rng)


def byte_level(steps, rng, size=700):
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
    theirs.train_from_iterator(
        text.corpus(rng) + [some_text(rng) + "0123456789 " * 3 for _ in range(200)],
        trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                            show_progress=False))
    return theirs


def check_byte_level(folder, rng):
    """Byte-level BPE with steps before and after ByteLevel."""
    model = json.loads(byte_level([text.BYTES_GPT2], rng).to_str())["model"]
    before, after = ([some_split(rng) for _ in range(rng.randrange(2))] for _ in range(2))
    middle = {"type": "ByteLevel", "add_prefix_space": chance(rng), "trim_offsets": True, "use_regex": chance(rng)}
    theirs = assembled(
        model, rng, len(model["vocab"]), normalizer=some_normalizer(rng),
        pre_tokenizer={"type": "Sequence", "pretokenizers": before + [middle] + after},
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})
    return both_ways(theirs, folder, rng)


# ---- SentencePiece's Unigram -----------------------------------------------------------------------------------------


def check_unigram_model(folder, rng):
    """A tokenizer.model that the package trains, beside the package; saved and opened again."""
    written = io.BytesIO()
    sentences = [line or "x" for line in text.corpus(rng, 400)]
    rules = rng.choice(["nmt_nfkc", "nmt_nfkc", "nfkc_cf", "identity"])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=written, model_type="unigram",
        vocab_size=rng.randrange(330, 420), byte_fallback=chance(rng), character_coverage=1.0,
        normalization_rule_name=rules, add_dummy_prefix=chance(rng, 0.7), remove_extra_whitespaces=chance(rng),
        hard_vocab_limit=False, split_by_whitespace=chance(rng, 0.7), unk_surface="",
        user_defined_symbols=["<tag>", "abc"] if chance(rng, 0.4) else [], minloglevel=2)
    path, saved = os.path.join(folder, "tokenizer.model"), os.path.join(folder, "saved")
    with open(path, "wb") as file:
        file.write(written.getvalue())
    theirs, ours = sentencepiece.SentencePieceProcessor(path), text.opened(path)
    squeezes = pieces.parsed(path).normalizer_spec.remove_extra_whitespaces

    def decode(ids):
        known = theirs.decode([i for i in ids if i != theirs.unk_id()])
        return known.lstrip(" ") if squeezes else known

    bare = pieces.AsText(ours, squeezes)
    for _ in range(TEXTS):
        sample = some_text(rng).replace("\0", "")
        ids, expected = bare.encode(sample), theirs.encode(sample)
        if ids != expected:
            return f"{rules}: {sample!r}: {ids} here, {expected} there"
        if theirs.unk_id() not in ids and bare.decode_bytes(ids).decode() != decode(ids):
            return f"{rules}: {sample!r}: {ids} give {bare.decode_bytes(ids)!r} here, {decode(ids)!r} there"
    ours.save(saved)
    if not same(ours, text.opened(saved)):
        return "saved and opened it is another tokenizer"
    Tokenizer.from_file(os.path.join(saved, "tokenizer.json"))
    return through_gguf(model_folder(saved, theirs.vocab_size()), folder)


# ---- GGUF ------------------------------------------------------------------------------------------------------------


def model_folder(folder, size, theirs=None):
    """A tiny model, with a tokenizer.json if there is one."""
    config = transformers.LlamaConfig(vocab_size=size, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                      num_attention_heads=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    if theirs:
        theirs.save(os.path.join(folder, "tokenizer.json"))
    return folder


def through_gguf(source, folder):
    """The same tokenizer from the GGUF file of a folder, and from the folder that comes back; what is wrong."""
    path, back = os.path.join(folder, "model.gguf"), os.path.join(folder, "back")
    gguf_files.convert(source, path)
    gguf_files.convert(path, back)
    first, second, third = text.opened(source), text.opened(path), text.opened(back)
    if not same(first, second):
        return "the GGUF file has another tokenizer"
    return "" if same(first, third) else "the folder that came back has another tokenizer"


FALCON = [
    pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]


def check_gguf(folder, rng):
    """Falcon's byte-level BPE, Unigram and WordPiece, there and back."""
    source = os.path.join(folder, "source")
    falcon = byte_level(FALCON, rng)
    wrong = both_ways(falcon, folder, rng)
    text.write_gguf(falcon, "falcon", os.path.join(folder, "falcon.gguf"))
    wrong = wrong or difference(text.opened(os.path.join(folder, "falcon.gguf")), falcon, rng)
    wrong = wrong or through_gguf(model_folder(source, 700, falcon), folder)
    if wrong:
        return f"falcon: {wrong}"
    model = unigram_model(rng, chance(rng))
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    unigram = assembled(model, rng, len(model["vocab"]), normalizer=some_normalizer(rng), decoder=space,
                        pre_tokenizer=space, added=[])
    wrong = through_gguf(model_folder(source, 1000, unigram), folder)
    if wrong:
        return f"unigram: {wrong}"
    found = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"] + [x for x in some_pieces(rng, 400, " ") if x[0] not in "[▁"]
    found += ["##" + x for x in found[4:] if "##" + x not in found]
    words = assembled({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                       "max_input_chars_per_word": 100, "vocab": {x: i for i, x in enumerate(found)}}, rng, len(found),
                      normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                  "strip_accents": True, "lowercase": True},
                      pre_tokenizer={"type": "BertPreTokenizer"}, added=[],
                      decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    wrong = through_gguf(model_folder(source, 1000, words), folder)
    if wrong:
        return f"wordpiece: {wrong}"
    path = os.path.join(folder, "bert.gguf")  # as llama.cpp's converter writes it, without a tokenizer.json
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list([x if x[0] == "[" and x[-1] == "]" else x[2:] if x[:2] == "##" else "▁" + x for x in found])
    writer.add_token_types([3 if x[0] == "[" and x[-1] == "]" else 1 for x in found])
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    words.add_special_tokens(found[:4])
    wrong = difference(text.opened(path), words, rng)
    return f"bert: {wrong}" if wrong else ""


# ---- published families ----------------------------------------------------------------------------------------------


def bpe_json(steps):
    return {"type": "Sequence", "pretokenizers": steps}


def split_json(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PLAIN_BYTES = {**BYTE_LEVEL, "use_regex": False}
DIGIT = {"type": "Digits", "individual_digits": True}
DIGITS = {"type": "Digits", "individual_digits": False}
NFC = {"type": "NFC"}
CASED = text.CASED % (text.ENDINGS, text.ENDINGS, "{1,3}")
# the normalizer and the pre-tokenizer of each family's tokenizer.json, and whether it ignores merges
FAMILIES = {
    "gpt_neox": (NFC, BYTE_LEVEL, False), "starcoder2": (None, bpe_json([DIGIT, BYTE_LEVEL]), False),
    "granite": (None, bpe_json([DIGIT, BYTE_LEVEL]), False), "command-r": (NFC, bpe_json([DIGIT, BYTE_LEVEL]), False),
    "mpt": (NFC, BYTE_LEVEL, False), "qwen2": (NFC, bpe_json([split_json(text.QWEN2), PLAIN_BYTES]), False),
    "llama3": (None, bpe_json([split_json(text.LLAMA3), PLAIN_BYTES]), True),
    "smollm3": (None, bpe_json([split_json(text.LLAMA3), PLAIN_BYTES]), True),
    "olmo2": (None, bpe_json([split_json(text.LLAMA3), PLAIN_BYTES]), False),
    "gpt-4o": (None, bpe_json([split_json(CASED), PLAIN_BYTES]), False),
    "tekken": (None, bpe_json([split_json(text.CASED % ("", "", "")), PLAIN_BYTES]), True),
    "bloom": (None, bpe_json([split_json(text.BLOOM), PLAIN_BYTES]), False),
    "falcon": (None, bpe_json([{"type": "Punctuation", "behavior": "Contiguous"}, BYTE_LEVEL, DIGITS,
                               split_json("[0-9][0-9][0-9]")]), False),
    "deepseek-coder": (None, bpe_json([split_json("[\r\n]"), split_json(r"\s?\p{L}+"), split_json(r"\s?\p{P}+"),
                                       split_json(text.DEEPSEEK_HAN), DIGIT, PLAIN_BYTES]), False),
    "deepseek-llm": (None, bpe_json([split_json("[\r\n]"), split_json(text.DEEPSEEK_LETTERS),
                                     split_json(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split_json(r"\s+$"),
                                     split_json(text.DEEPSEEK_HAN), DIGITS, PLAIN_BYTES]), False)}


def spm_family(rng, gemma):
    """Gemma's BPE, or Phi-3's, with random merges."""
    theirs = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    theirs.normalizer = normalizers.Replace(" ", "▁")
    theirs.train_from_iterator(
        text.corpus(rng), trainers.BpeTrainer(vocab_size=600, special_tokens=["<pad>", "<unk>"] + BYTES,
                                              show_progress=False))
    model = json.loads(theirs.to_str())["model"]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = [{**space, "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if gemma:
        return assembled(model, rng, len(model["vocab"]), normalizer=space,
                         decoder={"type": "Sequence", "decoders": back},
                         pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                        "invert": False})
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return assembled(model, rng, len(model["vocab"]), decoder={"type": "Sequence", "decoders": back + [strip]},
                     normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]})


def check_families(folder, rng):
    """The steps of each family's published tokenizer.json, there and back through GGUF too."""
    source, wrong = os.path.join(folder, "source"), []
    for name, (normalizer, steps, ignores) in FAMILIES.items():
        model = json.loads(byte_level([text.BYTES], rng).to_str())["model"]
        model["ignore_merges"] = ignores
        theirs = assembled(model, rng, len(model["vocab"]), normalizer=normalizer, pre_tokenizer=steps, added=[],
                           decoder=BYTE_LEVEL)
        found = both_ways(theirs, folder, rng, 80) or through_gguf(
            model_folder(source, len(model["vocab"]), theirs), folder)
        wrong += [f"{name}: {found}"] if found else []
    for gemma in (False, True):
        found = both_ways(spm_family(rng, gemma), folder, rng, 80)
        wrong += [f"{'gemma' if gemma else 'phi3'}: {found}"] if found else []
    return "; ".join(wrong)


# ---- folders of other libraries --------------------------------------------------------------------------------------


class Converter(TikTokenConverter):
    """transformers' conversion, with the file read here: its own reader needs the package tiktoken."""

    @staticmethod
    def load_tiktoken_bpe(path):
        with open(path, "rb") as file:
            return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, file)}


def check_tiktoken(folder, rng):
    """tiktoken's file beside what transformers makes of it."""
    pattern = rng.choice([text.LLAMA3, text.QWEN2])
    split = [pre_tokenizers.Split(Regex(pattern), "isolated"), text.BYTES]
    letters = {letter: byte for byte, letter in text_of_bytes().items()}
    vocabulary = json.loads(byte_level(split, rng).to_str())["model"]["vocab"]
    tokens = [bytes(letters[x] for x in piece) for piece in sorted(vocabulary, key=vocabulary.get)]
    with open(os.path.join(folder, "tokenizer.model"), "wb") as file:
        file.write(b"".join(base64.b64encode(token) + b" %d\n" % i for i, token in enumerate(tokens)))
    special = ["<|begin_of_text|>", "<|eot_id|>"]
    added = {str(len(tokens) + i): {"content": x, "special": True, "normalized": False} for i, x in enumerate(special)}
    config = {"added_tokens_decoder": added, "bos_token": special[0], "eos_token": special[1]}
    config.update(rng.choice([{"pattern": pattern}, {"pattern": "qwen2" if pattern == text.QWEN2 else "llama-bpe"}]))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump(config, file)
    theirs = Converter(
        os.path.join(folder, "tokenizer.model"), pattern=pattern, extra_special_tokens=special).converted()
    ours = text.opened(folder)
    wrong = difference(ours, theirs, rng)
    ours.save(os.path.join(folder, "saved"))
    return wrong or ("" if same(ours, text.opened(os.path.join(folder, "saved"))) else "saved it is another")


def text_of_bytes():
    """The character of each byte in byte-level vocabularies."""
    shown = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    hidden = [i for i in range(256) if i not in shown]
    return {**{i: chr(i) for i in shown}, **{byte: chr(256 + i) for i, byte in enumerate(hidden)}}


def check_bert_folder(folder, rng):
    """vocab.txt and tokenizer_config.json beside transformers' BertTokenizer."""
    found = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [
        x for x in dict.fromkeys(y.strip() for y in some_pieces(rng, 400, " ")) if x and x[0] != "[" and
        len(x.splitlines()) == 1 and x.strip() == x]
    found += ["##" + x for x in found[5:] if "##" + x not in found]
    with open(os.path.join(folder, "vocab.txt"), "w", newline="") as file:
        file.write("\n".join(found) + "\n")
    settings = {"do_lower_case": chance(rng), "tokenize_chinese_chars": chance(rng),
                "strip_accents": rng.choice([None, True, False])}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"tokenizer_class": "BertTokenizer", **settings}, file)
    theirs = assembled(
        {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
         "vocab": {x: i for i, x in enumerate(found)}}, rng, len(found), added=[],
        normalizer={"type": "BertNormalizer", "clean_text": True, "lowercase": settings["do_lower_case"],
                    "handle_chinese_chars": settings["tokenize_chinese_chars"],
                    "strip_accents": settings["strip_accents"]},
        pre_tokenizer={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    theirs.add_special_tokens(found[:5])
    theirs.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    ours = text.opened(folder)
    wrong = difference(ours, theirs, rng)
    ours.save(os.path.join(folder, "saved"))
    return wrong or ("" if same(ours, text.opened(os.path.join(folder, "saved"))) else "saved it is another")


# ---- added tokens ----------------------------------------------------------------------------------------------------


def check_added(folder, rng):
    """Random sets of added tokens on a byte-level BPE, an SPM-like BPE and words; texts full of them."""
    kind = rng.randrange(3)
    if kind == 0:
        model = json.loads(byte_level([text.BYTES_GPT2], rng, 300).to_str())["model"]
        parts = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": chance(rng), "trim_offsets": True,
                                   "use_regex": True}, "decoder": {"type": "ByteLevel"},
                 "normalizer": rng.choice([None, {"type": "NFC"}])}
        parts["decoder"].update(parts["pre_tokenizer"])
    elif kind == 1:
        model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                 "continuing_subword_prefix": None, "end_of_word_suffix": None, "ignore_merges": False,
                 "vocab": {x: i for i, x in enumerate(["<unk>"] + BYTES + ["▁", "t", "h", "▁t", "th"])},
                 "merges": [["▁", "t"], ["t", "h"]]}
        parts = {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}}
        if chance(rng):
            parts = {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "split": False,
                                       "prepend_scheme": rng.choice(["first", "always", "never"])}}
        parts["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]}
    else:
        found = ["[UNK]"] + [x for x in some_pieces(rng, 200, " ") if x != "[UNK]"]
        model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {x: i for i, x in enumerate(found)}}
        parts = {"pre_tokenizer": some_pre_tokenizer(rng), "normalizer": some_normalizer(rng),
                 "decoder": some_decoder(rng)}
    theirs = assembled(model, rng, len(model["vocab"]), **parts)
    tokens = [t.content for t in theirs.get_added_tokens_decoder().values()] or ["x"]

    def texts(rng):
        return "".join(rng.choice([rng.choice(tokens), rng.choice(tokens), " ", "  ", "x", "the", "_", "\n", "é"])
                       for _ in range(rng.randrange(14)))

    return both_ways(theirs, folder, rng, TEXTS, texts)


CHECKS = {
    "unigram": check_unigram, "unigram model": check_unigram_model, "wordpiece": check_wordpiece, "words": check_words,
    "bpe": check_bpe, "byte-level": check_byte_level, "gguf": check_gguf, "families": check_families,
    "tiktoken": check_tiktoken, "bert folder": check_bert_folder, "added": check_added}
TIMES = {
    "unigram": 12, "unigram model": 6, "wordpiece": 8, "words": 8, "bpe": 10, "byte-level": 8, "gguf": 2,
    "tiktoken": 3, "bert folder": 3, "added": 30}


def run(seed):
    """Pairs of a name and what is wrong: "" for nothing, None where it cannot run."""
    many = 10 if os.environ.get("TARN_TEST_LONG") else 1
    for name, check in CHECKS.items():
        for number in range(many * TIMES.get(name, 1)):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    yield f"{name} {number}", check(folder, random.Random(f"{seed}/{name}/{number}"))
                except tarn.Error as error:
                    yield f"{name} {number}", f"tarn: {error}"
