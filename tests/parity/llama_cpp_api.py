"""llama.cpp by its C functions, which the package xllamacpp exports. Its structs of parameters grow with versions, so
none is declared: they are passed as blocks of words that are larger than any, as llama.cpp fills them, and the few that
are changed here are found by their defaults. What llama.cpp reports on a context then has to say that it took them."""
import ctypes as c
import re

import numpy as np
import torch
import xllamacpp
from xllamacpp import xllamacpp as extension

WORDS = 256             # of a struct of parameters at most
NONE, F16, F32 = 0xFFFFFFFF, 1, 0  # an enum's -1; types as ggml.h numbers them
ERROR, CONTINUED = 4, 5  # levels of messages, as ggml.h numbers them
THREADS = 1  # small models: threads would only wait for each other
VERSION = xllamacpp.__version__

LIBRARY = c.CDLL(extension.__file__)


class Words(c.Structure):
    """A struct of parameters, with room behind. Both on x86-64 and on AArch64 it goes through memory, in and out."""
    _fields_ = [("at", c.c_uint32 * WORDS)]


class Batch(c.Structure):
    _fields_ = [("count", c.c_int32), ("tokens", c.POINTER(c.c_int32)), ("embeddings", c.c_void_p),
                ("positions", c.c_void_p), ("sequence_counts", c.c_void_p), ("sequences", c.c_void_p),
                ("wanted", c.POINTER(c.c_int8)), ("room", c.c_uint64 * 8)]


def declare(name, result, *arguments):
    function = getattr(LIBRARY, name)
    function.restype, function.argtypes = result, arguments
    return function


POINTER, TEXT, INT, TOKENS = c.c_void_p, c.c_char_p, c.c_int32, c.POINTER(c.c_int32)
ON_MESSAGE = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
model_defaults = declare("llama_model_default_params", Words)
context_defaults = declare("llama_context_default_params", Words)
load_model = declare("llama_model_load_from_file", POINTER, TEXT, Words)
make_context = declare("llama_init_from_model", POINTER, POINTER, Words)
free_model = declare("llama_model_free", None, POINTER)
free_context = declare("llama_free", None, POINTER)
get_vocab = declare("llama_model_get_vocab", POINTER, POINTER)
count_vocab = declare("llama_vocab_n_tokens", INT, POINTER)
vocab_eos = declare("llama_vocab_eos", INT, POINTER)
get_memory = declare("llama_get_memory", POINTER, POINTER)
clear_memory = declare("llama_memory_clear", None, POINTER, c.c_bool)
set_threads = declare("llama_set_n_threads", None, POINTER, INT, INT)
context_size = declare("llama_n_ctx", c.c_uint32, POINTER)
one_batch = declare("llama_batch_get_one", Batch, TOKENS, INT)
decode = declare("llama_decode", INT, POINTER, Batch)
logits_at = declare("llama_get_logits_ith", c.POINTER(c.c_float), POINTER, INT)
tokenize = declare("llama_tokenize", INT, POINTER, TEXT, INT, TOKENS, INT, c.c_bool, c.c_bool)
detokenize = declare("llama_detokenize", INT, POINTER, TOKENS, INT, TEXT, INT, c.c_bool, c.c_bool)
metadata_text = declare("llama_model_meta_val_str", INT, POINTER, TEXT, TEXT, c.c_size_t)
quantize_chunk = declare("ggml_quantize_chunk", c.c_size_t, c.c_int, POINTER, POINTER, c.c_int64, c.c_int64, c.c_int64,
                         POINTER)

MESSAGES = []  # of the model that was opened last: (level, text)


@ON_MESSAGE
def keep_message(level, message, _):
    text = message.decode(errors="replace")
    if level == CONTINUED and MESSAGES:
        level, text = MESSAGES[-1][0], MESSAGES.pop()[1] + text
    MESSAGES.append((level, text))


declare("llama_log_set", None, ON_MESSAGE, POINTER)(keep_message, None)
declare("llama_backend_init", None)()


def complaints():
    """What llama.cpp last called errors."""
    return " | ".join(text.strip() for level, text in MESSAGES if level == ERROR)


def report():
    return "".join(text for _, text in MESSAGES)


# ---- parameters of a context
# ---------------------------------------------------------------------------------------------------------------------


def only(places, what):
    if len(places) != 1:
        raise RuntimeError(f"xllamacpp {VERSION}: {what} was found at {places} of llama.cpp's context parameters; "
                           "this check must be adapted to it")
    return places[0]


def plain_context():
    """Parameters with keys and values in f32, and attention that is not fused: it rounds to 16 bits on some machines.

    The attention's kind is the last of four enums that are -1 by default, before RoPE's base and scale, which are 0.
    The types of keys and values are two times F16 between pointers that are NULL."""
    made = context_defaults()
    words = made.at
    run = only([i for i in range(WORDS // 2) if list(words[i:i + 7]) == [0] + 4 * [NONE] + [0, 0]], "attention's kind")
    types = only([
        i for i in range(run, run + 24) if i % 2 == 0 and list(words[i - 4:i + 6]) == 4 * [0] + [F16, F16] + 4 * [0]
    ], "the type of keys and values")
    words[run + 4] = 0
    words[types] = words[types + 1] = F32
    return made


def check_report():
    """llama.cpp says what a context has."""
    text = report()
    found = re.findall(r"K \((\w+)\).*?V \((\w+)\)", text)
    if not found or set(found) != {("f32", "f32")}:
        raise RuntimeError(f"xllamacpp {VERSION}: keys and values are {found}, not f32")
    if not re.search(r"flash_attn\s*=\s*(disabled|0)", text):
        raise RuntimeError(f"xllamacpp {VERSION}: attention is fused, or it does not say")


# ---- models
# ---------------------------------------------------------------------------------------------------------------------


class Model:
    """A GGUF file in llama.cpp."""

    def __init__(self, path):
        MESSAGES.clear()
        self.context = None
        self.model = load_model(path.encode(), model_defaults())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not open {path}")
        self.vocab = get_vocab(self.model)
        self.context = make_context(self.model, plain_context())
        if not self.context:
            self.close()
            raise RuntimeError(f"llama.cpp makes no context of {path}")
        check_report()
        set_threads(self.context, THREADS, THREADS)
        self.size, self.room = count_vocab(self.vocab), context_size(self.context)
        self.count = 0  # tokens that it has seen

    def reset(self):
        clear_memory(get_memory(self.context), True)
        self.count = 0

    def eval(self, ids):
        """Logits after each of the ids, which follow those that it has seen."""
        if self.count + len(ids) > self.room:
            raise RuntimeError(f"{self.count + len(ids)} tokens, and a context of {self.room}")
        tokens, wanted = (c.c_int32 * len(ids))(*ids), (c.c_int8 * len(ids))(*[1] * len(ids))
        batch = one_batch(tokens, len(ids))
        if batch.count != len(ids) or c.addressof(batch.tokens.contents) != c.addressof(tokens) or batch.wanted:
            raise RuntimeError(f"xllamacpp {VERSION}: a batch has other fields than this check expects")
        batch.wanted = wanted
        status = decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode() returns {status}")
        self.count += len(ids)
        return torch.from_numpy(np.stack([self.row(i) for i in range(len(ids))])).to(torch.float64)

    def row(self, i):
        values = logits_at(self.context, i)
        if not values:
            raise RuntimeError(f"llama.cpp has no logits of token {i}")
        return np.ctypeslib.as_array(values, (self.size, )).copy()

    def logits(self, ids):
        self.reset()
        return self.eval(ids)

    def write(self, prompt, count):
        """Greedy decoding."""
        last, made = self.logits(prompt)[-1], []
        while len(made) < count:
            made.append(int(last.argmax()))
            last = self.eval(made[-1:])[-1]
        return made

    def encode(self, sample, add_special=False):
        data = sample.encode()
        room = (c.c_int32 * (len(data) + 16))()
        count = tokenize(self.vocab, data, len(data), room, len(room), add_special, True)
        if count < 0:
            raise RuntimeError(f"llama.cpp has no ids of {sample!r}")
        return room[:count]

    def decode(self, ids):
        """Bytes, without special tokens."""
        room = c.create_string_buffer(64 * len(ids) + 64)
        count = detokenize(self.vocab, (c.c_int32 * len(ids))(*ids), len(ids), room, len(room), False, False)
        if count < 0:
            raise RuntimeError(f"llama.cpp has no text of {ids}")
        return room.raw[:count]

    def metadata(self, key):
        """A string of the file's; None where there is none."""
        count = metadata_text(self.model, key.encode(), None, 0)
        if count < 0:
            return None
        room = c.create_string_buffer(count + 1)
        metadata_text(self.model, key.encode(), room, len(room))
        return room.value.decode()

    def eos(self):
        return vocab_eos(self.vocab)

    def close(self):
        if self.context:
            free_context(self.context)
        if self.model:
            free_model(self.model)
        self.context = self.model = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---- quantizers
# ---------------------------------------------------------------------------------------------------------------------


def quantized(number, values, row_bytes, importance=None):
    """The bytes of ggml's quantizer of a type, with an importance per column or None."""
    values = np.ascontiguousarray(values, np.float32)
    if importance is not None:
        importance = np.ascontiguousarray(importance, np.float32)
    found = np.zeros((values.shape[0], row_bytes), np.uint8)
    written = quantize_chunk(int(number), values.ctypes.data, found.ctypes.data, 0, *values.shape,
                             None if importance is None else importance.ctypes.data)
    if written != found.size:
        raise RuntimeError(f"ggml_quantize_chunk() writes {written} bytes, not {found.size}")
    return found
