"""stories260K, a published model small enough for every test, as a folder that `tarn serve` opens."""
import array
import json
import shutil
import struct
from pathlib import Path


def halves(values, heads, width):
    """Rows of q and k from neighbours (2 i, 2 i + 1) to halves (i, i + D / 2)."""
    rows = [values[i:i + width] for i in range(0, len(values), width)]
    size = len(rows) // heads
    order = [h * size + i for h in range(heads) for i in (*range(0, size, 2), *range(1, size, 2))]
    return array.array("f", (x for i in order for x in rows[i]))


def read(path):
    """The configuration and {name: (shape, values)} of the file, whose form the README of the test data has."""
    data = Path(path).read_bytes()
    hidden, ffn, layers, heads, kv_heads, vocab, context = struct.unpack("7i", data[:28])
    values, at, head = array.array("f", data[28:]), 0, hidden // heads

    def take(*shape):
        nonlocal at
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        at += count
        return list(shape), values[at - count:at]

    state = {"model.embed_tokens.weight": take(vocab, hidden)}
    parts = [("input_layernorm", (hidden,)), ("self_attn.q_proj", (heads * head, hidden)),
             ("self_attn.k_proj", (kv_heads * head, hidden)), ("self_attn.v_proj", (kv_heads * head, hidden)),
             ("self_attn.o_proj", (hidden, heads * head)), ("post_attention_layernorm", (hidden,)),
             ("mlp.gate_proj", (ffn, hidden)), ("mlp.down_proj", (hidden, ffn)), ("mlp.up_proj", (ffn, hidden))]
    for name, shape in parts:
        for i in range(layers):
            shape_of, weight = take(*shape)
            count = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}.get(name)
            state[f"model.layers.{i}.{name}.weight"] = shape_of, halves(weight, count, hidden) if count else weight
    state["model.norm.weight"] = take(hidden)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
              "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv_heads, "vocab_size": vocab, "max_position_embeddings": context,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True,
              "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}
    return config, state


def write(data, folder):
    """Writes the model of the folder `data` with its tokenizer to a new folder."""
    folder.mkdir()
    config, state = read(Path(data) / "stories260K.bin")
    header, parts, at = {}, [], 0
    for name, (shape, values) in state.items():
        parts.append(values.tobytes())
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(Path(data) / "tok512.model", folder / "tokenizer.model")
