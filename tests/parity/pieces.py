"""SentencePiece's BPE beside the packages sentencepiece, tokenizers and transformers: the same ids and texts from
tokenizer.model, tokenizer.json and GGUF. Models are trained here; real ones come from TARN_TEST_DATA."""
import codecs
import io
import os
import random
import tempfile

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as messages
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import generate_merges

import tarn
import text

TEXTS = 20000
REAL = [
    "the", "  ", "hello", "123", "aaa", "\n", "   aaaa", "____", "=====", "..", "?!", "    ", "\t", "été", "日本語", "▁",
    "▁▁x", " ▁ "]


def some_text(rng):
    if rng.random() < 0.5:
        return text.some_text(rng)
    return rng.choice(["", " "]).join(rng.choice(REAL) * rng.randrange(1, 4) for _ in range(rng.randrange(12)))


def compare(ours, encode, decode, rng, count):
    """The same ids, and texts from them, for random texts."""
    for _ in range(count):
        sample = some_text(rng)
        ids, expected = ours.encode(sample), encode(sample)
        if ids != expected:
            return f"{sample!r}: {ids} here, {expected} there"
        if ours.decode_bytes(ids).decode() != decode(ids):
            return f"{sample!r}: {ids} give {ours.decode_bytes(ids)!r} here, {decode(ids)!r} there"
    return ""


class AsText:
    """Ours, with what looks like a control token left as text. `bare`: without spaces at the beginning, of which the
    package leaves out all where a model squeezes them; encoding gives several only for a text that begins with
    U+2581."""

    def __init__(self, ours, bare):
        self.ours, self.bare = ours, bare

    def encode(self, sample):
        return self.ours.encode(sample, special_as_text=True)

    def decode_bytes(self, ids):
        return self.ours.decode_bytes(ids).lstrip(b" ") if self.bare else self.ours.decode_bytes(ids)


def beside_package(path, rng, count):
    """tokenizer.model read by both."""
    theirs = sentencepiece.SentencePieceProcessor(path)
    return compare(AsText(text.opened(path),
                          parsed(path).normalizer_spec.remove_extra_whitespaces), theirs.encode, theirs.decode, rng,
                   count)


def hugging_face(model, prefix):
    """The tokenizer.json of Llama's classes in transformers: legacy ("normalizer") or not ("first", "always",
    "never")."""
    vocabulary = {p.piece: i for i, p in enumerate(model.pieces)}
    skipped = [p.piece for p in model.pieces if p.type != 1]
    theirs = Tokenizer(
        models.BPE(vocabulary, generate_merges(vocabulary, {p.piece: p.score for p in model.pieces}, skipped),
                   unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if prefix == "normalizer":
        theirs.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        theirs.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=prefix, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    theirs.decoder = decoders.Sequence(steps + ([] if prefix == "never" else [decoders.Strip(content=" ", left=1)]))
    theirs.add_special_tokens([
        AddedToken(p.piece, normalized=False, special=True) for p in model.pieces if p.type in (2, 3)])
    theirs.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return theirs


def beside_json(model, folder, rng, count):
    """tokenizer.json read by both, and what tarn makes of it read by the package."""
    prefix = rng.choice(["normalizer", "first", "always", "never"])
    theirs, path = hugging_face(model, prefix), os.path.join(folder, "theirs.json")
    theirs.save(path)
    ours = text.opened(path)
    encode, decode = (lambda t: lambda x: t.encode(x, add_special_tokens=False).ids), (
        lambda t: lambda ids: t.decode(ids, skip_special_tokens=False))
    wrong = compare(ours, encode(theirs), decode(theirs), rng, count)
    if wrong:
        return f"{prefix}: {wrong}"
    ours.save(os.path.join(folder, "again"))
    saved = Tokenizer.from_file(os.path.join(folder, "again", "tokenizer.json"))
    wrong = compare(ours, encode(saved), decode(saved), rng, count // 4)
    return f"{prefix}, saved: {wrong}" if wrong else ""


def beside_saved(path, folder, rng, count):
    """tokenizer.model, saved as tokenizer.json: the package gives the same ids, and tarn the same tokenizer."""
    ours = text.opened(path)
    saved = os.path.join(folder, "saved")
    ours.save(saved)
    theirs, again = Tokenizer.from_file(os.path.join(saved, "tokenizer.json")), text.opened(saved)
    if ours.hash != again.hash:
        return "saved and opened it is another tokenizer"
    return compare(ours, lambda x: theirs.encode(x, add_special_tokens=False).ids,
                   lambda ids: theirs.decode(ids, skip_special_tokens=False), rng, count)


def streamed(ours, ids):
    """What a stream gives, push by push, and at the end."""
    return list(ours.decode_stream(ids))


def check_stream(folder, rng):
    """Bytes come out as Python decodes them; those of a text when Python's incremental decoder gives them, one
    character at a time."""
    ours = tarn.Tokenizer.of_bytes()
    for _ in range(2000):
        whole = "".join(rng.choices(["é", "日", "🦙", "x"], k=rng.randrange(6))).encode()
        decoder = codecs.getincrementaldecoder("utf-8")()
        expected = [decoder.decode(whole[i:i + 1]) for i in range(len(whole))] + [""]
        if streamed(ours, whole) != expected:
            return f"{whole!r}: {streamed(ours, whole)} here, {expected} there"
        broken = bytes(b if rng.random() < 0.9 else rng.randrange(256) for b in whole)
        if "".join(streamed(ours, broken)) != broken.decode(errors="replace"):
            return f"{broken!r}: {streamed(ours, broken)} here, {broken.decode(errors='replace')!r} there"
    return ""


# ---- models ----------------------------------------------------------------------------------------------------------
# ------------------


def train(folder, rng):
    """A model that the package trains, with any of the settings that tarn reads."""
    written = io.BytesIO()
    sentences = [line or "x" for line in text.corpus(rng, 400)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=written, model_type="bpe", vocab_size=rng.randrange(330, 420),
        byte_fallback=True, character_coverage=1.0, normalization_rule_name="identity", add_dummy_prefix=rng.random()
        < 0.7, remove_extra_whitespaces=rng.random() < 0.5, hard_vocab_limit=False,
        allow_whitespace_only_pieces=rng.random() < 0.5, split_by_whitespace=rng.random() < 0.7,
        user_defined_symbols=["<tag>", "abc"] if rng.random() < 0.4 else [], minloglevel=2)
    path = os.path.join(folder, "tokenizer.model")
    with open(path, "wb") as file:
        file.write(written.getvalue())
    return path


def parsed(path):
    model = messages.ModelProto()
    with open(path, "rb") as file:
        model.ParseFromString(file.read())
    return model


def check_trained(folder, rng):
    path = train(folder, rng)
    wrong = beside_package(path, rng, 500)
    if wrong or any(p.type == 4 for p in parsed(path).pieces):  # user's pieces have no form in tokenizer.json
        return wrong
    return beside_json(parsed(path), folder, rng, 300)


def check_stories(folder, rng):
    path = text.data("stories260K")
    path = path and os.path.join(path, "tok512.model")
    return path and (beside_package(path, rng, 2000) or beside_saved(path, folder, rng, 1000) or
                     beside_json(parsed(path), folder, rng, 1000))


def llama(folder):
    """The vocabulary of Llama 2 from its GGUF file, as the package's own message."""
    path = text.data("llama-spm")
    if not path:
        return None, None
    path = os.path.join(path, "vocab.gguf")
    fields, model = gguf.GGUFReader(path).fields, messages.ModelProto()
    tokens, scores, types = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type"))
    for token, score, kind in zip(tokens, scores, types):
        model.pieces.add(piece=token, score=score, type=kind)
    model.trainer_spec.model_type, model.trainer_spec.byte_fallback = 2, True
    model.normalizer_spec.name, model.normalizer_spec.remove_extra_whitespaces = "identity", False
    with open(os.path.join(folder, "llama.model"), "wb") as file:
        file.write(model.SerializeToString())
    return path, model


def check_llama(folder, rng):
    """Llama 2: 20,000 texts from tokenizer.model, some of them from tokenizer.json too; GGUF is the same tokenizer."""
    path, model = llama(folder)
    if not path:
        return None
    own = os.path.join(folder, "llama.model")
    wrong = beside_package(own, rng, TEXTS) or beside_json(model, folder, rng, TEXTS // 4) or beside_saved(
        own, folder, rng, TEXTS // 4)
    if wrong:
        return wrong
    ours, other = text.opened(path), text.opened(own)
    return "" if ours.hash == other.hash else "the GGUF file gives another tokenizer than tokenizer.model"


CHECKS = {"stream": check_stream, "trained": check_trained, "stories": check_stories, "llama": check_llama}
TIMES = {"trained": 8}


def run(seed):
    """Pairs of a name and what is wrong: "" for nothing, None where it cannot run."""
    print(f"sentencepiece {sentencepiece.__version__}", flush=True)
    many = 10 if os.environ.get("TARN_TEST_LONG") else 1
    for name, check in CHECKS.items():
        for number in range(many * TIMES.get(name, 1)):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    yield f"{name} {number}", check(folder, random.Random(f"{seed}/{name}/{number}"))
                except tarn.Error as error:
                    yield f"{name} {number}", f"tarn: {error}"
