"""A random Llama whose tokens are bytes, with a chat template, as files: the model of the scripts beside this one."""
import array
import json
import random
import struct

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ["<|im_start|>", "<|im_end|>"]
HIDDEN, FFN, LAYERS, HEADS, VOCAB = 32, 64, 2, 2, 258


def byte_letters():
    """GPT-2's printable character of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def write_tokenizer(folder, template):
    vocab = {letter: i for i, letter in enumerate(byte_letters())}
    added = [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, text in enumerate(SPECIAL)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}
    text = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(text))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[1], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def write_tensors(path, shapes, draw, spread):
    """Random tensors with a spread around 1 where they are vectors, else around 0."""
    header, parts, at = {}, [], 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        mean = 1 if len(shape) == 1 else 0
        parts.append(array.array("f", (draw.gauss(mean, spread) for _ in range(count))).tobytes())
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def write_adapter(folder, seed, rank, targets, width=HIDDEN):
    """LoRA adapters of attention's projections, as PEFT writes them, into a new folder."""
    folder.mkdir()
    shapes = {}
    for i in range(LAYERS):
        for name in targets:
            module = f"base_model.model.model.layers.{i}.self_attn.{name}."
            shapes |= {module + "lora_A.weight": [rank, width], module + "lora_B.weight": [width, rank]}
    write_tensors(folder / "adapter_model.safetensors", shapes, random.Random(seed), 0.5)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": targets}))


def write_model(folder, context):
    """Weights with a spread of 0.2, so that tokens differ; one shape per line of Llama's names."""
    draw = random.Random(7)
    shapes = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN],
              "lm_head.weight": [VOCAB, HIDDEN]}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name in "qkvo":
            shapes[f"{layer}self_attn.{name}_proj.weight"] = [HIDDEN, HIDDEN]
        shapes |= {layer + "mlp.gate_proj.weight": [FFN, HIDDEN], layer + "mlp.up_proj.weight": [FFN, HIDDEN],
                   layer + "mlp.down_proj.weight": [HIDDEN, FFN], layer + "input_layernorm.weight": [HIDDEN],
                   layer + "post_attention_layernorm.weight": [HIDDEN]}
    write_tensors(folder / "model.safetensors", shapes, draw, 0.2)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": VOCAB,
        "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float32", "eos_token_id": 257}))


def write(folder, template=TEMPLATE, context=512):
    """Writes the model into a new folder; without a chat template where it is None."""
    folder.mkdir()
    write_tokenizer(folder, template)
    write_model(folder, context)
