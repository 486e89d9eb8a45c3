"""Tokenizers, chat templates and streaming decoding."""
import ctypes
import json
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _c
from ._library import Owner, PathLike, address_of, call, check, lib, options, path_of, text_of

Message = Mapping[str, Any]

_stream_push, _stream_end = address_of("tarn_text_stream_push"), address_of("tarn_text_stream_end")


def int32_array(ids: Any) -> Any:
    """Ids, in a list, an array or a tensor, as the library takes them."""
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    return (ctypes.c_int32 * len(ids))(*ids)


class Tokenizer:
    """A tokenizer, which any number of threads may use."""

    def __init__(self, path: PathLike) -> None:
        """Opens a Hugging Face folder, a tokenizer.json, a GGUF file, or SentencePiece's or tiktoken's file."""
        self._owner = Owner(call(lib.tarn_tokenizer_open, path_of(path)), lib.tarn_tokenizer_free)

    @classmethod
    def _of(cls, handle: int, *owners: Owner) -> "Tokenizer":
        tokenizer = cls.__new__(cls)
        tokenizer._owner = Owner(handle, None if owners else lib.tarn_tokenizer_free, *owners)
        return tokenizer

    @classmethod
    def of_bytes(cls) -> "Tokenizer":
        """256 ids, one per byte."""
        return cls._of(call(lib.tarn_tokenizer_bytes))

    @classmethod
    def of_characters(cls, text: str) -> "Tokenizer":
        """The distinct characters of a text."""
        encoded = text.encode()
        return cls._of(call(lib.tarn_tokenizer_characters, encoded, len(encoded)))

    @classmethod
    def train_bpe(cls, texts: Iterable[str], vocab_size: int, special: Sequence[str] = ("<|endoftext|>", ),
                  pattern: Optional[str] = None, min_frequency: int = 0) -> "Tokenizer":
        """Trains a byte-level BPE of at most `vocab_size` tokens: the special ones, the 256 bytes, then merges.

        pattern: pre-tokenizer regex, None: GPT-2's. Rarer pairs than `min_frequency` are not merged."""
        encoded = [text.encode() for text in texts]
        names = (ctypes.c_char_p * max(1, len(special)))(*(name.encode() for name in special))
        given = options(_c.tarn_bpe_options, special=names, special_count=len(special), no_special=not special,
                        pattern=None if pattern is None else pattern.encode(), min_frequency=min_frequency)
        return cls._of(call(lib.tarn_bpe_train_sized, (ctypes.c_char_p * len(encoded))(*encoded),
                            (ctypes.c_size_t * len(encoded))(*map(len, encoded)), len(encoded), vocab_size, *given))

    @property
    def _handle(self) -> int:
        return self._owner.handle

    def encode(self, text: Union[str, bytes], add_special: bool = False, special_as_text: bool = False) -> List[int]:
        """Ids of a text; special tokens in it are parsed unless they are to be text."""
        encoded, count = text.encode() if isinstance(text, str) else text, ctypes.c_int64()
        given = options(_c.tarn_encode_options, add_special=add_special, special_as_text=special_as_text)
        ids = lib.tarn_tokenizer_encode_sized(self._handle, encoded, len(encoded), *given, ctypes.byref(count))
        return _taken(ids, count)

    def decode(self, ids: Sequence[int], errors: str = "replace") -> str:
        """The text of ids, with special tokens as text."""
        return self.decode_bytes(ids).decode(errors=errors)

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of ids, which may end within a character."""
        length = ctypes.c_size_t()
        text = call(lib.tarn_tokenizer_decode, self._handle, int32_array(ids), len(ids), ctypes.byref(length))
        try:
            return text_of(text, length.value)
        finally:
            lib.tarn_tokenizer_release(text)

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Text from ids one at a time, in complete characters."""
        given = options(_c.tarn_stream_options)
        stream = Owner(call(lib.tarn_text_stream_new_sized, self._handle, *given), lib.tarn_text_stream_free,
                       self._owner)
        length = ctypes.c_size_t()
        for token in ids:
            yield text_of(call(_stream_push, stream.handle, token, ctypes.byref(length)), length.value).decode()
        yield text_of(call(_stream_end, stream.handle, ctypes.byref(length)), length.value).decode()

    def apply_chat_template(self, messages: Sequence[Message], add_generation_prompt: bool = True,
                            tools: Optional[Sequence[Mapping[str, Any]]] = None,
                            documents: Optional[Sequence[Mapping[str, Any]]] = None,
                            variables: Optional[Mapping[str, Any]] = None) -> List[int]:
        """Ids of messages [{"role": ..., "content": ...}] by the model's chat template."""
        given, count = self._chat(add_generation_prompt, tools, documents, variables), ctypes.c_int64()
        encoded = json.dumps(list(messages)).encode()
        ids = lib.tarn_chat_encode_json_sized(self._handle, encoded, len(encoded), *given, None, ctypes.byref(count))
        return _taken(ids, count)

    def apply_chat_template_with_mask(self, messages: Sequence[Message],
                                      tools: Optional[Sequence[Mapping[str, Any]]] = None,
                                      variables: Optional[Mapping[str, Any]] = None) -> Tuple[List[int], List[bool]]:
        """Ids of messages, and the loss mask for fine-tuning: which of them the assistant writes."""
        given, mask = self._chat(False, tools, None, variables), ctypes.POINTER(ctypes.c_uint8)()
        count = ctypes.c_int64()
        encoded = json.dumps(list(messages)).encode()
        ids = _taken(lib.tarn_chat_encode_json_sized(self._handle, encoded, len(encoded), *given, ctypes.byref(mask),
                                                     ctypes.byref(count)), count)
        return ids, [bool(flag) for flag in _taken(mask, count)]

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True,
                    tools: Optional[Sequence[Mapping[str, Any]]] = None,
                    documents: Optional[Sequence[Mapping[str, Any]]] = None,
                    variables: Optional[Mapping[str, Any]] = None) -> str:
        """Messages as the text of the model's chat template."""
        given, length = self._chat(add_generation_prompt, tools, documents, variables), ctypes.c_size_t()
        encoded = json.dumps(list(messages)).encode()
        text = call(lib.tarn_chat_render_json_sized, self._handle, encoded, len(encoded), *given, ctypes.byref(length))
        try:
            return text_of(text, length.value).decode()
        finally:
            lib.tarn_tokenizer_release(text)

    @staticmethod
    def _chat(add_generation_prompt: bool, tools: Any, documents: Any, variables: Any) -> Any:
        return options(_c.tarn_chat_options, add_generation_prompt=add_generation_prompt,
                       tools=None if tools is None else json.dumps(list(tools)).encode(),
                       documents=None if documents is None else json.dumps(list(documents)).encode(),
                       variables=None if variables is None else json.dumps(dict(variables)).encode())

    def set_chat_template(self, name: str) -> None:
        """Sets the chat template by name: chatml, llama2, llama3, mistral, or one of the model's own."""
        call(lib.tarn_tokenizer_set_chat, self._handle, name.encode())

    @property
    def chat_template_name(self) -> str:
        """Name of the chat template: "model" is the model's own."""
        return str(call(lib.tarn_chat_name, self._handle).decode())

    def save(self, folder: PathLike) -> None:
        """Writes tokenizer.json and tokenizer_config.json."""
        call(lib.tarn_tokenizer_save, self._handle, path_of(folder))

    @property
    def kind(self) -> str:
        """"bpe", "spm", "unigram", "wordpiece", "words", "characters" or "bytes"."""
        return str(call(lib.tarn_tokenizer_kind, self._handle).decode())

    @property
    def hash(self) -> int:
        """Equal for tokenizers with the same ids."""
        return int(call(lib.tarn_tokenizer_hash, self._handle))

    def __len__(self) -> int:
        return int(call(lib.tarn_tokenizer_count, self._handle))

    def token_to_id(self, piece: Union[str, bytes]) -> Optional[int]:
        """Id of the token with exactly this text; None if there is none."""
        encoded = piece.encode() if isinstance(piece, str) else piece
        return _or_none(call(lib.tarn_tokenizer_find, self._handle, encoded, len(encoded)))

    def is_special(self, token: int) -> bool:
        """True for a special token, such as <|endoftext|>."""
        return bool(call(lib.tarn_tokenizer_is_special, self._handle, token))

    @property
    def bos(self) -> Optional[int]:
        """Id of the BOS token; None if there is none."""
        return _or_none(call(lib.tarn_tokenizer_bos, self._handle))

    @property
    def eos(self) -> Optional[int]:
        """Id of the EOS token; None if there is none."""
        return _or_none(call(lib.tarn_tokenizer_eos, self._handle))

    @property
    def end_of_turn(self) -> Optional[int]:
        """Id of the token that ends an answer of the chat template; None if there is none."""
        return _or_none(call(lib.tarn_chat_eot, self._handle))


def _or_none(token: int) -> Optional[int]:
    return None if token < 0 else int(token)


def _taken(ids: Any, count: ctypes.c_int64) -> List[int]:
    check()
    try:
        return list(ids[:count.value])
    finally:
        lib.tarn_tokenizer_release(ctypes.cast(ids, ctypes.c_void_p))
