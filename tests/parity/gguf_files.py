"""GGUF files against the gguf package: what it writes tarn reads and hands on unchanged, and what tarn writes it reads;
blocks are unpacked bit for bit, of any bytes, and packed as the package does or with a smaller error than scaling by
the extremes; files with random changes are taken or refused; shards of the package are one file. Models of transformers
go from their folder to a GGUF file and back without a changed bit, and run from it with the same logits."""
import json
import os
import random
import tempfile

import gguf
import numpy as np
import safetensors.torch
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf import quants

import gpt2
import llama
import support
import tarn
from gpt2 import open_in_tarn

BLOCKS = {name: Type[name.upper()] for name in support.QUANTIZED}
# dequantized on load
LOADED = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"]
CHANGED = 1000
MODELS = 2  # of each family


def convert(source, target, dtype=None, importance=None, mixture=None):
    tarn.convert(source, target, dtype, mixture, importance, replace=True)


# ---- files of the package
# --------------------------------------------------------------------------------------------------------------


def draw_writer(path, rng):
    """A file with metadata of every type and tensors of every type that tarn loads."""
    writer = gguf.GGUFWriter(path, rng.choice(["llama", "qwen2", "other"]))
    if rng.random() < 0.5:
        writer.add_custom_alignment(rng.choice([8, 64, 256]))
    for kind, low, high in [("uint8", 0, 2**8), ("int8", -2**7, 2**7), ("uint16", 0, 2**16), ("int16", -2**15, 2**15),
                            ("uint32", 0, 2**32), ("int32", -2**31, 2**31), ("uint64", 0, 2**64),
                            ("int64", -2**63, 2**63)]:
        getattr(writer, "add_" + kind)(f"x.{kind}", rng.randrange(low, high))
    writer.add_float32("x.float32", rng.random())
    writer.add_float64("x.float64", rng.random())
    writer.add_bool("x.bool", rng.random() < 0.5)
    writer.add_string("x.string", "é\n漢" * rng.randrange(3))
    writer.add_array("x.texts", [rng.choice(["a", "", "ü", "long " * 9]) for _ in range(rng.randint(1, 9))])
    writer.add_array("x.wholes", [rng.randrange(-9, 9) for _ in range(rng.randint(1, 9))])
    writer.add_array("x.reals", [rng.random() for _ in range(3)])
    writer.add_array("x.nested", [[1, 2], [3, 4]])
    generator = np.random.default_rng(rng.randrange(2**31))
    for i, (name, kind) in enumerate(BLOCKS.items()):
        size, packed = gguf.GGML_QUANT_SIZES[kind]
        raw = generator.integers(0, 256, (rng.randint(1, 5), rng.randint(1, 3) * packed), dtype=np.uint8)
        writer.add_tensor(f"t{i}.{name}", raw, raw_dtype=kind)
    writer.add_tensor("plain", generator.standard_normal((3, 5)).astype(np.float32))
    writer.add_tensor("half", generator.standard_normal((2, 3, 4)).astype(np.float16))
    writer.add_tensor("brain", generator.integers(0, 256, (4, 6), dtype=np.uint8), raw_dtype=Type.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def hand_on(source, target):
    """Reads all of a file in tarn and writes it again."""
    with tarn.GGUF(source, support.device()) as file:
        writer = support.call("gguf_create", target)
        for i in range(support.call("gguf_metadata_count", file)):
            support.call("gguf_add_from", writer, file, i)
        for name in file:
            support.call("gguf_add", writer, name, file[name])
        support.call("gguf_finish", writer)


def check_theirs(folder, rng):
    for i in range(5):
        one, two = os.path.join(folder, f"one{i}.gguf"), os.path.join(folder, f"two{i}.gguf")
        draw_writer(one, rng)
        hand_on(one, two)
        a, b = gguf.GGUFReader(one), gguf.GGUFReader(two)
        for key in a.fields:
            if a.fields[key].contents() != b.fields[key].contents():
                return f"{key} is {b.fields[key].contents()!r} instead of {a.fields[key].contents()!r}"
        if list(a.fields) != list(b.fields) or [t.name for t in a.tensors] != [t.name for t in b.tensors]:
            return "keys or tensors have another order"
        for x, y in zip(a.tensors, b.tensors):
            if x.tensor_type != y.tensor_type or x.shape.tolist() != y.shape.tolist() or x.data.tobytes(
            ) != y.data.tobytes():
                return f"tensor {x.name} differs"
    return ""


# ---- blocks ----------------------------------------------------------------------------------------------------------
# ------------------


def write_tensors(path, tensors):
    """{name: (array, type)}"""
    writer = gguf.GGUFWriter(path, "llama")
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_tensors(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


SCALE_AND_MIN = {"q4_1": 0, "q5_1": 0, "q2_k": 80, "q4_k": 0, "q5_k": 0}  # where in a block both stand, in f16


def sums_two_nans(name, raw):
    """By element: whether its block has a NaN as scale and as min. IEEE 754 leaves open which one their sum is, and
    compilers swap operands."""
    if name not in SCALE_AND_MIN:
        return False
    size, packed = gguf.GGML_QUANT_SIZES[BLOCKS[name]]
    at = SCALE_AND_MIN[name]
    pair = np.ascontiguousarray(raw.reshape(-1, packed)[:, at:at + 4]).view(np.float16)
    return np.repeat(np.isnan(pair).all(-1), size).reshape(len(raw), -1)


def check_decode(folder, rng):
    """Random bytes: all bit patterns, NaN, infinite and subnormal scales among them."""
    generator, tensors, wanted = np.random.default_rng(rng.randrange(2**31)), {}, {}
    for name, kind in list(BLOCKS.items()) + [(name, Type[name]) for name in LOADED]:
        size, packed = gguf.GGML_QUANT_SIZES[kind]
        raw = generator.integers(0, 256, (500, 4 * packed), dtype=np.uint8)
        tensors[name] = raw, kind
        with np.errstate(all="ignore"):
            wanted[name] = quants.dequantize(raw, kind)
    source, target = os.path.join(folder, "blocks.gguf"), os.path.join(folder, "f32.gguf")
    write_tensors(source, tensors)
    convert(source, target, "f32")
    for name, found in read_tensors(target).items():
        nan = np.isnan(found.data) & np.isnan(wanted[name]) & (name in LOADED or sums_two_nans(name, tensors[name][0]))
        different = np.count_nonzero((found.data.view(np.uint32) != wanted[name].view(np.uint32)) & np.logical_not(nan))
        if different:
            return f"{name}: {different} of {wanted[name].size} elements differ"
    return ""


def draw_numbers(generator):
    """{name: rows of 1024}: normal, heavy-tailed, constant, positive, tiny, mostly zero."""
    shape = 64, 1024
    normal = generator.standard_normal(shape).astype(np.float32)
    return {
        "normal": 0.02 * normal, "heavy": generator.standard_t(2, shape).astype(np.float32),
        "positive": np.abs(normal) + 3, "constant": np.repeat(normal[:, :1], shape[1],
                                                              axis=1), "groups": np.repeat(normal[:, :32], 32, axis=1),
        "tiny": normal * 1e-4, "sparse": np.where(generator.random(shape) < 0.1, normal,
                                                  0).astype(np.float32), "zero": np.zeros(shape, np.float32)}


def extremes_min(x, group, levels, codes):
    """Each group by its least and largest element, with the block's own scales."""
    x = x.reshape(-1, 256 // group, group).astype(np.float64)
    least = np.minimum(x.min(-1), 0)
    scale, least = np.maximum(x.max(-1) - least, 0) / levels, -least
    top, low = ((v.max(-1, keepdims=True) / codes).astype(np.float16).astype(np.float64) for v in (scale, least))
    with np.errstate(all="ignore"):
        scale = top * np.where(top > 0, np.clip(np.round(scale / top), 0, codes), 0)
        least = low * np.where(low > 0, np.clip(np.round(least / low), 0, codes), 0)
        q = np.where(scale[..., None] > 0, np.clip(np.round((x + least[..., None]) / scale[..., None]), 0, levels), 0)
    return scale[..., None] * q - least[..., None]


def extremes(x, levels, codes):
    """Groups of 16 without a min."""
    x = x.reshape(-1, 16, 16).astype(np.float64)
    scale = np.abs(x).max(-1) / levels
    top = (scale.max(-1, keepdims=True) / codes).astype(np.float16).astype(np.float64)
    with np.errstate(all="ignore"):
        scale = top * np.where(top > 0, np.clip(np.round(scale / top), -codes - 1, codes), 0)
        q = np.where(scale[..., None] > 0, np.clip(np.round(x / scale[..., None]), -levels - 1, levels), 0)
    return scale[..., None] * q


def extremes_iq4(x):
    """Blocks of 32, the largest magnitude at the end of the values, by a scale in f16."""
    values, x = np.array(quants.IQ4_NL.kvalues, np.float64), x.reshape(-1, 32).astype(np.float64)
    scale = (np.abs(x).max(-1, keepdims=True) / 113).astype(np.float16).astype(np.float64)
    with np.errstate(all="ignore"):
        nearest = np.abs(np.where(scale > 0, x / scale, 0)[..., None] - values).argmin(-1)
    return scale * values[nearest]


def packed(folder, numbers, dtype, importance=None):
    source, target = os.path.join(folder, "numbers.gguf"), os.path.join(folder, f"{dtype}.gguf")
    write_tensors(source, {name: (values, Type.F32) for name, values in numbers.items()})
    convert(source, target, dtype, importance)
    return read_tensors(target)


def check_encode(folder, rng):
    """The package's own bytes, where it packs."""
    numbers = draw_numbers(np.random.default_rng(rng.randrange(2**31)))
    for dtype, kind in [("q8_0", Type.Q8_0), ("q4_0", Type.Q4_0), ("q4_1", Type.Q4_1), ("q5_0", Type.Q5_0),
                        ("q5_1", Type.Q5_1), ("f16", Type.F16), ("bf16", Type.BF16)]:
        for name, found in packed(folder, numbers, dtype).items():
            if found.data.tobytes() != quants.quantize(numbers[name], kind).tobytes():
                return f"{dtype} of {name} numbers differs"
    return ""


def check_search(folder, rng):
    """No block has a larger error than with its extremes as the scale, and numbers without structure a clearly smaller
    one."""
    numbers = draw_numbers(np.random.default_rng(rng.randrange(2**31)))
    for dtype, plain in [("q2_k", lambda x: extremes_min(x, 16, 3, 15)), ("q3_k", lambda x: extremes(x, 3, 31)),
                         ("q4_k", lambda x: extremes_min(x, 32, 15, 63)),
                         ("q5_k", lambda x: extremes_min(x, 32, 31, 63)),
                         ("q6_k", lambda x: extremes(x, 31, 127)), ("iq4_nl", extremes_iq4)]:
        kind = BLOCKS[dtype]
        for name, found in packed(folder, numbers, dtype).items():
            x = numbers[name].reshape(-1, 256).astype(np.float64)
            ours = np.square(quants.dequantize(found.data, kind).reshape(-1, 256) - x).sum(-1)
            theirs = np.square(plain(numbers[name]).reshape(-1, 256) - x).sum(-1)
            if np.any(ours > theirs *
                      (1 + 1e-6) + 1e-30) or (name in ("normal", "heavy") and ours.sum() > 0.95 * theirs.sum()):
                return (f"{dtype} of {name} numbers: error {ours.sum():.4g} against {theirs.sum():.4g}, "
                        f"{np.sum(ours > theirs)} blocks worse")
    return ""


def check_nan(folder, rng):
    for value in (np.nan, np.inf, -np.inf, 1e30):
        numbers = {"some.weight": np.zeros((2, 256), np.float32)}
        numbers["some.weight"][1, 7] = value
        for dtype in BLOCKS:
            try:
                packed(folder, numbers, dtype)
                return f"{value} was packed as {dtype}"
            except tarn.Error as error:
                if "'some.weight', element 263" not in str(error):
                    return str(error)
    return ""


# ---- changed files
# ---------------------------------------------------------------------------------------------------------------------


def change(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        if len(data) <= 40:  # cut off by the change before
            break
        at, kind = rng.randrange(len(data) - 40), rng.randrange(6)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at : at + 8] = rng.randrange(2**64).to_bytes(8, "little")
        elif kind == 2:
            del data[at : at + rng.randint(1, 9)]
        elif kind == 3:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
        elif kind == 4:
            del data[at:]
            data += b"\0" * 41
        else:
            data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


def check_changed(folder, rng):
    """Each is taken or refused with a sentence; of what is taken every tensor can be had, but for types that tarn
    lacks."""
    source, path = os.path.join(folder, "good.gguf"), os.path.join(folder, "changed.gguf")
    draw_writer(source, rng)
    with open(source, "rb") as file:
        good = file.read()
    taken = 0
    for _ in range(CHANGED * (100 if os.environ.get("TARN_TEST_LONG") else 1)):
        with open(path, "wb") as file:
            file.write(change(good, rng))
        try:
            opened = tarn.GGUF(path)
        except tarn.Error as error:
            if "changed.gguf" not in str(error):
                return f"an error without the file's name: {error}"
            continue
        for i in range(len(opened)):
            try:
                support.made("gguf_tensor", opened, i, support.device())
            except tarn.Error as error:
                if error.code != "unsupported":
                    return str(error)
        opened.close()
        taken += 1
    return "" if taken else "no changed file was taken: the changes are too rough"


# ---- models ----------------------------------------------------------------------------------------------------------
# ------------------


def neighbours(values, heads):
    """The order of rows that llama.cpp has."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def bits(folder):
    tensors = safetensors.torch.load_file(os.path.join(folder, "model.safetensors"))
    return {
        name: (str(t.dtype), tuple(t.shape), t.contiguous().reshape(-1).view(torch.uint8).tolist())
        for name, t in tensors.items()}


def check_rows(path, network):
    """Queries and keys as llama.cpp has them; everything else as it is."""
    tensors, config = read_tensors(path), network.config
    turned = config.model_type in ("llama", "mistral")
    for name, heads in [("q", config.num_attention_heads), ("k", config.num_key_value_heads), ("v", 1)]:
        weight = getattr(network.model.layers[0].self_attn, name + "_proj").weight.detach().float().numpy()
        wanted = neighbours(weight, heads) if turned and name != "v" else weight
        found = tensors[f"blk.0.attn_{name}.weight"]
        if not np.array_equal(quants.dequantize(found.data, found.tensor_type).reshape(wanted.shape), wanted):
            return f"the rows of attn_{name} are in another order"
    return ""


def check_tensors(path, network):
    """A GPT-2's, under the names that the package has for those of transformers: the same numbers, matrices with a row
    for each output."""
    tensors, names = read_tensors(path), gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, network.config.n_layer)
    state = {name: values.float().numpy() for name, values in network.state_dict().items() if name != "lm_head.weight"}
    for name, values in state.items():
        found = tensors.pop(names.get_name(name, try_suffixes=(".weight", ".bias")), None)
        wanted = values.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else values
        if found is None or not np.array_equal(
                quants.dequantize(found.data, found.tensor_type).reshape(wanted.shape), wanted):
            return f"{name} is {'missing' if found is None else 'another'}"
        if (values.ndim == 1 or name == "transformer.wpe.weight") and found.tensor_type != Type.F32:
            return f"{name} is {found.tensor_type.name}"
    return f"there are {list(tensors)} beside" if tensors else ""


def check_keys(path, network):
    """A GPT-2's metadata, under the package's keys."""
    fields, config = gguf.GGUFReader(path).fields, network.config
    ends = {} if config.eos_token_id is None else {
        gguf.Keys.Tokenizer.BOS_ID: config.eos_token_id, gguf.Keys.Tokenizer.EOS_ID: config.eos_token_id}
    wanted = {
        gguf.Keys.General.ARCHITECTURE: "gpt2", gguf.Keys.LLM.CONTEXT_LENGTH: config.n_positions,
        gguf.Keys.LLM.EMBEDDING_LENGTH: config.n_embd, gguf.Keys.LLM.BLOCK_COUNT: config.n_layer,
        gguf.Keys.LLM.FEED_FORWARD_LENGTH: config.n_inner or 4 * config.n_embd,
        gguf.Keys.Attention.HEAD_COUNT: config.n_head,
        gguf.Keys.Attention.LAYERNORM_EPS: float(np.float32(config.layer_norm_epsilon)), **ends}
    for key, value in wanted.items():
        field = fields.get(key.format(arch="gpt2"))
        if field is None or field.contents() != value:
            return f"{key} is {field and field.contents()} instead of {value}"
    return ""


def draw_network(family, rng):
    if family == "gpt2":
        return gpt2.randomized(transformers.GPT2LMHeadModel(gpt2.draw_config(rng)))
    return llama.make_network(llama.draw_config(family, rng), "f32")


def check_model(folder, family, dtype, rng):
    network = draw_network(family, rng).to(support.TORCH[dtype])
    config = network.config
    source, path, back = os.path.join(folder, "source"), os.path.join(folder,
                                                                      "model.gguf"), os.path.join(folder, "back")
    network.save_pretrained(source)
    convert(source, path)
    convert(path, back)
    if bits(source) != bits(back):
        return "tensors are not as they were"
    wrong = (check_tensors(path, network) or check_keys(path, network)) if family == "gpt2" else check_rows(
        path, network)
    with open(os.path.join(back, "config.json")) as file:
        architecture = json.load(file)["architectures"]
    if wrong or architecture != network.config.architectures:
        return wrong or f"it came back as {architecture}"
    tokens = torch.randint(0, config.vocab_size, (2, min(9, config.max_position_embeddings)))
    with torch.no_grad():  # opened again: .float() would leave the frequencies rounded to 16 bits
        wanted = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()(tokens).logits
    for where in (path, back):
        with tarn.no_grad():
            found = support.read(open_in_tarn(where, "f32")(support.tensor(tokens)))
        error = ((found - wanted).abs() / wanted.abs().clamp(min=1)).max().item()
        if not error < 1e-4:
            return f"logits of {os.path.basename(where)} are off by {error:.3g}; {config}"
    return ""


def rewrite(source, target, change, **limits):
    """A copy of a file whose matrices are change(data), an array and its type; by limits of the package in shards."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents(), **limits)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        data, kind = change(tensor.data) if change and tensor.data.ndim > 1 else (tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_loaded(folder, rng):
    """Models of types that are dequantized on load run as those of their elements, and convert to a folder and to
    another type."""
    config = llama.FAMILIES["llama"](vocab_size=40, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)
    paths = {name: os.path.join(folder, name) for name in ("source", "f32.gguf", "small.gguf", "same.gguf", "back",
                                                           "q4.gguf", "q4_same.gguf")}
    llama.make_network(config, "f32").save_pretrained(paths["source"])
    convert(paths["source"], paths["f32.gguf"])
    tokens = torch.randint(0, 40, (2, 9))

    def logits(path):
        with tarn.no_grad():
            return support.read(open_in_tarn(path, "f32")(support.tensor(tokens)))

    for kind in (Type.TQ1_0, Type.TQ2_0, Type.MXFP4):
        rewrite(paths["f32.gguf"], paths["small.gguf"], lambda x: (quants.quantize(x, kind), kind))
        rewrite(paths["f32.gguf"], paths["same.gguf"],
                lambda x: (quants.dequantize(quants.quantize(x, kind), kind), Type.F32))
        wanted = logits(paths["same.gguf"])
        if not torch.equal(logits(paths["small.gguf"]), wanted):
            return f"{kind.name}: other logits than those of the elements"
        convert(paths["small.gguf"], paths["back"])
        if not torch.equal(logits(paths["back"]), wanted):
            return f"{kind.name}: other logits from a folder"
        for name in ("small", "same"):
            convert(paths[f"{name}.gguf"], paths["q4.gguf" if name == "small" else "q4_same.gguf"], "q4_k")
        a, b = read_tensors(paths["q4.gguf"]), read_tensors(paths["q4_same.gguf"])
        if any(a[name].data.tobytes() != b[name].data.tobytes() for name in a):
            return f"{kind.name}: quantized to other bytes than its elements"
    return ""


def differs(one, other):
    """Between two files: keys, or tensors bit by bit."""
    a, b = gguf.GGUFReader(one), gguf.GGUFReader(other)
    keys = {name for reader in (a, b) for name in reader.fields if not name.startswith("GGUF.")}
    for key in keys:
        if key not in a.fields or key not in b.fields or a.fields[key].contents() != b.fields[key].contents():
            return f"{key} is another"
    if [t.name for t in a.tensors] != [t.name for t in b.tensors]:
        return f"tensors are {[t.name for t in b.tensors]}"
    for x, y in zip(a.tensors, b.tensors):
        if x.tensor_type != y.tensor_type or x.data.tobytes() != y.data.tobytes():
            return f"tensor {x.name} differs"
    return ""


def check_shards(folder, rng):
    """By any of the package's shards the tensors of the file that was split, bit by bit, and the same tokens."""
    source, whole, again = (os.path.join(folder, name) for name in ("source", "whole.gguf", "again.gguf"))
    config = llama.FAMILIES["llama"](vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    llama.make_network(config, "f32").save_pretrained(source)
    prompt = [rng.randrange(96) for _ in range(5)]

    def tokens(path):
        return gpt2.generate(open_in_tarn(path, "f32"), prompt, 24, ignore_eos=True)

    for dtype in ("f32", "q8_0"):
        convert(source, whole, dtype)
        wanted = tokens(whole)
        for number, limits in enumerate([{"split_max_tensors": rng.randint(2, 9)}, {"split_max_size": 50000},
                                         {"split_max_tensors": 4, "small_first_shard": True}]):
            name = f"{dtype}-{number}"
            rewrite(whole, os.path.join(folder, name + ".gguf"), None, **limits)
            shards = sorted(file for file in os.listdir(folder) if file.startswith(name + "-0"))
            if len(shards) < 2:
                return f"{limits} gave {shards}"
            for shard in (shards[0], rng.choice(shards[1:])):
                path = os.path.join(folder, shard)
                hand_on(path, again)
                wrong = differs(whole, again)
                if wrong or tokens(path) != wanted:
                    return f"{shard}: {wrong or 'other tokens'}"
    return ""


def model_checks(seed):
    for family in ["gpt2", *llama.FAMILIES]:
        for number in range(MODELS):
            for dtype in ("f32", "bf16", "f16"):
                name = f"{family} {number} in {dtype}"
                torch.manual_seed(random.Random(f"{seed}/{name}").randrange(2**31))
                with tempfile.TemporaryDirectory() as folder:
                    yield name, check_model(folder, family, dtype, random.Random(f"{seed}/{name}"))


# ---- tokenizers ------------------------------------------------------------------------------------------------------
# ------------------

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
ALPHABET = [
    "the ", "cat", "Café ", "漢字", "123", " 45678", "it's", "WE'LL", "\n\n", "  ", "!?", "naïve ", "<s>", "e\u0301",
    "\t", "x" * 9]


def draw_text(rng, count):
    return "".join(rng.choice(ALPHABET) for _ in range(count))


def bytes_tokenizer(pattern, rng):
    """As Llama 3 and Qwen2 have theirs."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=pattern == LLAMA3))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        split, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if pattern == QWEN2:
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
                                             show_progress=False)
    tokenizer.train_from_iterator([draw_text(rng, 300)], trainer)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens(["added"])
    return tokenizer


def spm_tokenizer(rng):
    """As Llama 2 has it in tokenizer.json: every pair whose text is a piece merges, the best piece first."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = tokenizers.normalizers.Sequence([
        tokenizers.normalizers.Prepend("▁"),
        tokenizers.normalizers.Replace(" ", "▁")])
    tokenizer.decoder = tokenizers.decoders.Sequence([
        tokenizers.decoders.Replace("▁", " "),
        tokenizers.decoders.ByteFallback(),
        tokenizers.decoders.Fuse(),
        tokenizers.decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    tokenizer.train_from_iterator([draw_text(rng, 300)],
                                  tokenizers.trainers.BpeTrainer(vocab_size=450, special_tokens=special,
                                                                 show_progress=False))
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    pieces, vocabulary = dict.fromkeys("".join(pair) for pair in content["model"]["merges"]), content["model"]["vocab"]
    content["model"]["merges"] = [[p[:k], p[k:]] for p in pieces for k in range(1, len(p))
                                  if p[:k] in vocabulary and p[k:] in vocabulary]
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def encode(path, text):
    """The ids that tarn gives, without special tokens around."""
    return tarn.Tokenizer(path).encode(text)


def check_tokenizers(folder, rng):
    """The same ids from the folder, the GGUF file, and the folder that came back, tokenizer.json as it was."""
    for number, make in enumerate([
            lambda: bytes_tokenizer(LLAMA3, rng), lambda: bytes_tokenizer(QWEN2, rng), lambda: spm_tokenizer(rng)]):
        tokenizer, source = make(), os.path.join(folder, f"t{number}")
        path, back = source + ".gguf", source + "-back"
        config = transformers.LlamaConfig(vocab_size=512, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                          num_attention_heads=2, bos_token_id=tokenizer.token_to_id("<s>"),
                                          eos_token_id=tokenizer.token_to_id("</s>"))
        transformers.LlamaForCausalLM(config).save_pretrained(source)
        tokenizer.save(os.path.join(source, "tokenizer.json"))
        template = "{% for m in messages %}<|im_start|>{{ m['role'] }}\né{{ m['content'] }}<|im_end|>{% endfor %}"
        with open(os.path.join(source, "tokenizer_config.json"), "w") as file:
            json.dump({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}, file)
        convert(source, path)
        convert(path, back)
        fields = gguf.GGUFReader(path).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        if len(tokens) != 512 or [tokenizer.id_to_token(i)
                                  for i in range(tokenizer.get_vocab_size())] != tokens[:tokenizer.get_vocab_size()]:
            return f"tokenizer {number}: other tokens"
        with open(os.path.join(source, "tokenizer.json"), "rb") as one, open(os.path.join(back, "tokenizer.json"),
                                                                             "rb") as other:
            if one.read() != other.read() or fields["tokenizer.chat_template"].contents() != template:
                return f"tokenizer {number}: tokenizer.json or the chat template did not stay as they were"
        for _ in range(20):
            text = draw_text(rng, rng.randrange(40))
            wanted = tokenizer.encode(text, add_special_tokens=False).ids
            for where in (source, path, back):
                if encode(where, text) != wanted:
                    return f"tokenizer {number}: {where}: {encode(where, text)} instead of {wanted} for {text!r}"
    return ""


# ---- importance matrices ---------------------------------------------------------------------------------------------
# ------------------


def squares_of(network, ids, names, step):
    """{GGUF name: Σ x² of the inputs of each linear layer}, in chunks as tarn reads them."""
    sums, handles = {}, []
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear):
            stored = names.get_name(name) + ".weight"
            handles.append(module.register_forward_pre_hook(lambda _, x, stored=stored: sums.__setitem__(
                stored, sums.get(stored, 0) + x[0].double().square().flatten(0, -2).sum(0))))
    with torch.no_grad():
        for at in range(0, len(ids) - 1, step):
            network(torch.tensor([ids[at:at + step]]))
    for handle in handles:
        handle.remove()
    return {name: values.float().numpy() for name, values in sums.items()}


def write_importance(folder, sums, count):
    """llama.cpp's files: the older one and that in GGUF."""
    old, new = os.path.join(folder, "imatrix.dat"), os.path.join(folder, "imatrix.gguf")
    with open(old, "wb") as file:
        file.write(np.int32(len(sums)).tobytes())
        for name, values in sums.items():
            file.write(np.int32(len(name)).tobytes() + name.encode() + np.int32(3).tobytes() +
                       np.int32(len(values)).tobytes() + (values / count * 3).astype(np.float32).tobytes())
        file.write(np.int32(3).tobytes() + np.int32(1).tobytes() + b"x")
    writer = gguf.GGUFWriter(new, "")
    writer.add_type("imatrix")
    for name, values in sums.items():
        writer.add_tensor(name + ".in_sum2", values)
        writer.add_tensor(name + ".counts", np.array([count], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return old, new


def check_importance(folder, rng):
    """Of a text, and of llama.cpp's files with the activations of transformers: about the same bytes, and errors that
    are smaller where they are multiplied by large activations."""
    source, text = os.path.join(folder, "source"), os.path.join(folder, "text.txt")
    tokenizer, words = bytes_tokenizer(LLAMA3, rng), draw_text(rng, 1500)
    config = llama.FAMILIES["llama"](vocab_size=tokenizer.get_vocab_size(), hidden_size=256, intermediate_size=512,
                                     num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                     max_position_embeddings=64)
    network = llama.make_network(config, "f32")
    network.save_pretrained(source)
    tokenizer.save(os.path.join(source, "tokenizer.json"))
    with open(text, "w") as file:
        file.write(words)
    ids = tokenizer.encode(words).ids
    sums = squares_of(network, ids, gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2), 64)
    old, new = write_importance(folder, sums, len(ids))
    plain = os.path.join(folder, "plain.gguf")
    convert(source, plain)
    exact = read_tensors(plain)
    for dtype in ("q2_k", "q4_k", "q6_k", "iq4_nl", "q5_1", "q4_0"):
        files = {name: os.path.join(folder, f"{name}.gguf") for name in ("without", "text", "old", "new")}
        for name, importance in zip(files, (None, "text:" + text, old, new)):
            convert(source, files[name], dtype, importance)
        found = {name: read_tensors(path) for name, path in files.items()}
        for name, weight in sums.items():
            if found["old"][name].data.tobytes() != found["new"][name].data.tobytes():
                share = np.mean(found["old"][name].data != found["new"][name].data)
                if share > 0.02:
                    return f"{dtype} of {name}: {share:.3f} of the bytes differ between the files"
            share, kind = np.mean(found["text"][name].data != found["new"][name].data), found["text"][name].tensor_type
            if share > 0.02:
                return f"{dtype} of {name}: {share:.3f} of the bytes differ from those of transformers' activations"
            wanted = exact[name].data.astype(np.float64)
            error = {
                key: (weight * np.square(quants.dequantize(found[key][name].data, kind) - wanted)).sum()
                for key in ("without", "text")}
            if kind != Type.Q8_0 and error["text"] > error["without"]:
                return f"{dtype} of {name}: weighted error {error['text']:.4g}, {error['without']:.4g} without"
    return ""


CHECKS = {
    "what the package writes": check_theirs, "unpacking": check_decode,
    "shards": check_shards, "types without a dtype": check_loaded, "packing": check_encode,
    "searched scales": check_search, "what cannot be packed": check_nan, "changed files": check_changed,
    "tokenizers": check_tokenizers, "importance": check_importance}


def run(seed):
    """Yields (check, what is wrong or "")."""
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            yield name, check(folder, random.Random(f"{seed}/{name}"))
    yield from model_checks(seed)
