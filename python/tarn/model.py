"""Language models: opened from a folder or a GGUF file, and text generated with them."""
import ctypes
import os
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _c
from ._library import DtypeError, Owner, PathLike, call, changes, check, kept, lib, options, path_of, text_of
from ._tensor import Tensor
from ._types import DeviceLike, DTypeLike, device_of, dtype_of
from .functional import chosen, handle_of
from .nn import Module
from .text import Message, Tokenizer, int32_array

FINISH = {
    _c.TARN_FINISH_NONE: None,
    _c.TARN_FINISH_TOKEN: "token",
    _c.TARN_FINISH_STRING: "string",
    _c.TARN_FINISH_LENGTH: "length",
    _c.TARN_FINISH_GRAMMAR: "grammar"
}
KV_TYPES = {"model": _c.TARN_KV_MODEL, "f32": _c.TARN_KV_F32, "bf16": _c.TARN_KV_BF16, "f16": _c.TARN_KV_F16,
            "q8_0": _c.TARN_KV_Q8_0}

ROPE_SCALINGS = {"default": _c.TARN_ROPE_DEFAULT, "linear": _c.TARN_ROPE_LINEAR, "llama3": _c.TARN_ROPE_LLAMA3}

IMPLIED = {"qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}  # what makes an architecture that one

DEFAULT_CONTEXT = 4096

Prompt = Union[str, Sequence[int]]


@dataclass
class Output:
    """One step of a generation."""

    text: str  # complete characters that are final, perhaps none
    token: Optional[int]  # None: none; the sequence has ended
    finish_reason: Optional[str] = None  # "token", "string", "length" or "grammar" at the end
    logprob: Optional[float] = None  # with logprobs=True
    top_logprobs: List[Tuple[int, float]] = field(default_factory=list)


Stop = Union[str, int, Sequence[Union[str, int]]]


def _stops(stop: Stop) -> List[Union[str, int]]:
    """One string or token, or several, as a list."""
    parts = [stop] if isinstance(stop, (str, int)) else list(stop)
    for part in parts:
        if isinstance(part, str) and "\0" in part:
            raise ValueError(f"stop: {part!r} contains a NUL character, which a stop string cannot match")
    return parts


def _generate_options(max_tokens: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: int,
                      repeat_penalty: float, stop: Stop, ignore_eos: bool, logprobs: bool,
                      top_logprobs: int) -> Dict[str, Any]:
    strings = [part.encode() for part in _stops(stop) if isinstance(part, str)]
    tokens = [part for part in _stops(stop) if isinstance(part, int)]
    return {
        "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "seed": seed, "repeat_penalty": repeat_penalty, "ignore_eos": ignore_eos,
        "logprobs": logprobs or top_logprobs > 0, "top_logprobs": top_logprobs,
        "stop": int32_array(tokens) if tokens else None, "stop_count": len(tokens),
        "stop_strings": (ctypes.c_char_p * len(strings))(*strings) if strings else None,
        "stop_string_count": len(strings)
    }


def _output(made: Any) -> Output:
    text = text_of(ctypes.cast(made.text, ctypes.c_void_p).value, made.length).decode(errors="replace")
    likely = [(made.top_logprobs[i].token, made.top_logprobs[i].logprob) for i in range(made.top_logprob_count)]
    return Output(text, None if made.token < 0 else made.token, FINISH.get(made.finish_reason),
                  made.logprob if made.logprob == made.logprob else None, likely)


def _config(kind: Any, arch: str, config: Mapping[str, Any]) -> Dict[str, Any]:
    """Fields of a configuration's struct; giving a token sets that the model has it."""
    fields = dict(kind._fields_)
    made: Dict[str, Any] = {} if arch == "gpt2" else {"arch": arch.encode()}
    for name, value in config.items():
        if name not in fields or name in made or name.startswith("has_") or name == "eos_count":
            raise ValueError(f"Model.create: '{name}' is not a field of {kind.__name__}")
        if value is None:
            continue
        if f"has_{name}" in fields:
            made[f"has_{name}"] = True
        if name == "eos" and "eos_count" in fields:
            tokens = [value] if isinstance(value, int) else list(value)
            made["eos_count"], value = len(tokens), fields["eos"](*tokens)
        elif name == "rope_scaling":
            value = chosen(ROPE_SCALINGS, value, "rope_scaling")
        made[name] = value
    return {**IMPLIED.get(arch, {}), **made}


class Model(Module):
    """A language model with its tokenizer.

        model = tarn.Model.load("models/smollm")
        for output in model.stream("Once upon a time", max_tokens=100):
            print(output.text, end="", flush=True)

    Called with i64 or i32 tokens [B, T] it returns logits [B, T, vocab_size]. A model opens in evaluation mode."""

    tokenizer: Optional[Tokenizer]
    _idle: List[Tuple[int, Owner]]  # with the count of changes when they began

    def __init__(self, handle: int, tokenizer: Optional[Tokenizer], context: int, kv_type: str) -> None:
        # pylint: disable=super-init-not-called
        self._set_owner(Owner(handle, lib.tarn_module_free))
        object.__setattr__(self, "tokenizer", tokenizer)
        object.__setattr__(self, "_idle", [])
        capacity = context or min(self.context, DEFAULT_CONTEXT)
        object.__setattr__(self, "_generator", {"context": capacity, "kv_type": chosen(KV_TYPES, kv_type, "kv_type")})

    @classmethod
    def load(cls, path: PathLike, device: DeviceLike = "auto", dtype: Optional[DTypeLike] = None,
             quantize: Optional[DTypeLike] = None, device_layers: int = 0, context: int = 0, kv_type: str = "model",
             tokenizer: bool = True) -> "Model":
        """Opens a Hugging Face folder or a GGUF file, with its tokenizer.

        dtype: of the parameters; None: as stored, f32 where they differ. quantize: q8_0, q4_0, q4_k or q6_k for linear
        layers of a folder. context, kv_type: of the KV cache; 0: the model's context, at most 4096."""
        given = {"dtype": None if dtype is None else int(dtype_of(dtype)), "device_layers": device_layers,
                 "quantize": None if quantize is None else int(dtype_of(quantize))}
        place = path_of(path), device_of(device)
        tokens = Tokenizer(path) if tokenizer else None
        as_stored = dtype is None and quantize is None
        try:
            handle = call(lib.tarn_model_open_sized, *place,
                          *options(_c.tarn_model_open_options, as_stored=as_stored, **given))
        except DtypeError:
            if not as_stored:
                raise
            handle = call(lib.tarn_model_open_sized, *place, *options(_c.tarn_model_open_options, **given))
        return cls(handle, tokens, context, kv_type)

    @classmethod
    def create(cls, arch: str = "gpt2", *, seed: int = 0, dtype: DTypeLike = "f32", device: DeviceLike = "cpu",
               **config: Union[bool, float, str, Sequence[int]]) -> "Model":
        """A new model with random weights, to be trained: Model.create("llama", vocab_size=512, context=256, layers=4,
        heads=4, hidden_size=128, ffn_size=384, eos=0).

        arch: gpt2, llama, mistral, qwen2 or qwen3. config: the fields of tarn_gpt2_config or tarn_llama_config."""
        make, kind = (lib.tarn_model_gpt2_sized, _c.tarn_gpt2_config) if arch == "gpt2" else (
            lib.tarn_model_llama_sized, _c.tarn_llama_config)
        struct = kind(dtype=int(dtype_of(dtype)), **_config(kind, arch, config))
        handle = call(make, ctypes.byref(struct), ctypes.sizeof(struct), device_of(device), seed)
        return cls(handle, None, 0, "model")

    @property
    def context(self) -> int:
        """Context length of the model, in tokens."""
        return int(self._info().context)

    @property
    def vocab_size(self) -> int:
        """Vocabulary size."""
        return int(self._info().vocab_size)

    @property
    def arch(self) -> str:
        """model_type of its config.json: "gpt2", "llama", "qwen2" ..."""
        return str((self._info().type or b"").decode())

    def _info(self) -> Any:
        info = _c.tarn_model_info()
        call(lib.tarn_model_query_sized, self._handle, ctypes.byref(info), ctypes.sizeof(info))
        return info

    def write(self, folder: PathLike) -> None:
        """Writes config.json and model.safetensors in the format of transformers."""
        call(lib.tarn_model_write, self._handle, path_of(folder))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the next tokens, without the logits in memory."""
        return Tensor._wrap(kept(lib.tarn_model_loss, self._handle, handle_of(tokens), handle_of(targets)))

    # ---- LoRA adapters

    def add_adapter(self, rank: int, alpha: float = 0.0, dropout: float = 0.0, targets: Optional[Sequence[str]] = None,
                    seed: int = 0, dtype: DTypeLike = "f32") -> None:
        """Adds LoRA adapters and freezes all other parameters; create the optimizer after it.

        alpha 0 is 8; targets: names of layers ("q_proj"), None: all linear layers but the head."""
        names = None if targets is None else ",".join(targets).encode()
        given = options(_c.tarn_lora_options, rank=rank, alpha=alpha, dropout=dropout, targets=names, seed=seed,
                        dtype=int(dtype_of(dtype)))
        call(lib.tarn_lora_add_sized, self._handle, *given)
        changes.note()

    def load_adapter(self, path: PathLike) -> None:
        """Adds the adapters of a folder in PEFT's format, or of a GGUF file."""
        call(lib.tarn_lora_load, self._handle, path_of(path))
        changes.note()

    def save_adapter(self, path: PathLike, base_model: Optional[str] = None) -> None:
        """Writes the adapters to a folder in PEFT's format, or to a file that ends in ".gguf".

        base_model: name or path of the base model, to be recorded there."""
        call(lib.tarn_lora_save, self._handle, path_of(path), None if base_model is None else base_model.encode())

    def merge_adapter(self) -> None:
        """Merges the adapters into the weights and removes them."""
        call(lib.tarn_lora_merge, self._handle)
        changes.note()

    # ---- generation

    def _take(self) -> Owner:
        """An idle generator, whose KV cache holds its last text, or a new one."""
        while self._idle:
            count, generator = self._idle.pop()
            if count == changes.count:
                return generator
        borrowed = [self._owner] + ([self.tokenizer._owner] if self.tokenizer else [])
        handle = call(lib.tarn_generator_new_sized, self._handle, self.tokenizer._handle if self.tokenizer else None,
                      *options(_c.tarn_generator_options, **self._generator))  # type: ignore[attr-defined]
        return Owner(handle, lib.tarn_generator_free, *borrowed)

    def stream(self, prompt: Prompt, *, max_tokens: int = 100, temperature: float = 0.0, top_k: int = 0,
               top_p: float = 0.0, min_p: float = 0.0, seed: int = 0, repeat_penalty: float = 0.0,
               stop: Stop = (), ignore_eos: bool = False, logprobs: bool = False,
               top_logprobs: int = 0) -> Iterator[Output]:
        """Generates token by token from a text or from ids; a loop may end early.

        max_tokens 0: up to the context; temperature 0: greedy; top_k, top_p, min_p, repeat_penalty 0: off. `stop`: a
        string or token that ends the text and is not part of it, or several."""
        given = options(
            _c.tarn_generate_options,
            **_generate_options(max_tokens, temperature, top_k, top_p, min_p, seed, repeat_penalty, stop, ignore_eos,
                                logprobs, top_logprobs))
        generator, begun = self._take(), changes.count
        if isinstance(prompt, str):
            encoded = prompt.encode()
            call(lib.tarn_generator_prompt_text_sized, generator.handle, 0, encoded, len(encoded), *given)
        else:
            call(lib.tarn_generator_prompt_sized, generator.handle, 0, int32_array(prompt), len(prompt), *given)
        return self._outputs(generator, begun)

    def _outputs(self, generator: Owner, begun: int) -> Iterator[Output]:
        made = _c.tarn_output()
        try:
            while lib.tarn_generator_next_sized(generator.handle, ctypes.byref(made), ctypes.sizeof(made)):
                yield _output(made)
            check()
        finally:
            lib.tarn_generator_stop(generator.handle, 0)
            self._idle.append((begun, generator))

    def generate(self, prompt: Prompt, **given: Any) -> str:
        """The text that follows a prompt; arguments as those of stream()."""
        return "".join(output.text for output in self.stream(prompt, **given))

    def generate_ids(self, prompt: Prompt, **given: Any) -> List[int]:
        """The ids that follow a prompt; arguments as those of stream()."""
        return [output.token for output in self.stream(prompt, **given) if output.token is not None]

    def chat_stream(self, messages: Sequence[Message], tools: Optional[Sequence[Any]] = None,
                    **given: Any) -> Iterator[Output]:
        """The answer to messages [{"role": "user", "content": ...}], token by token; arguments as those of stream(),
        max_tokens 0 by default.

        If the messages continue those of the previous call, only the new ones are computed."""
        if self.tokenizer is None:
            raise ValueError("chat: the model was loaded without its tokenizer")
        given.setdefault("max_tokens", 0)
        ids = self.tokenizer.apply_chat_template(messages, tools=tools)
        end = self.tokenizer.end_of_turn
        stop = _stops(given.pop("stop", ())) + ([] if end is None else [end])
        return self.stream(ids, stop=stop, **given)

    def chat(self, messages: Sequence[Message], tools: Optional[Sequence[Any]] = None, **given: Any) -> str:
        """The answer to messages; arguments as those of stream()."""
        return "".join(output.text for output in self.chat_stream(messages, tools, **given))


def convert(source: PathLike, target: PathLike, quantize: Optional[DTypeLike] = None, mixture: Optional[str] = None,
            importance: Optional[str] = None, adapter: Optional[PathLike] = None, replace: bool = False) -> None:
    """Converts a model between a Hugging Face folder and a GGUF file, which `target` is if it ends in ".gguf".

    quantize: type of the weights of a GGUF file; mixture: several types instead, by llama.cpp's name ("Q4_K_M").
    importance: "text:FILE" or an imatrix file. adapter: LoRA adapters to merge. replace: replace the target."""
    given = options(_c.tarn_convert_options, quantize=quantize is not None or mixture is not None, replace=replace,
                    type=None if quantize is None else int(dtype_of(quantize)),
                    mixture=None if mixture is None else mixture.encode(),
                    importance=None if importance is None else os.fsencode(importance),
                    adapter=None if adapter is None else path_of(adapter))
    call(lib.tarn_model_convert_sized, path_of(source), path_of(target), None, *given)
