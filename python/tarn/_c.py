"""The C interface: constants, structs and functions of the public headers. Written by scripts/pyapi."""
import ctypes as c
from typing import Any, Dict, List, Optional, Tuple

Bytes = bytes
Prototype = Tuple[Any, List[Any]]

TARN_VERSION_MAJOR: int = 0
TARN_VERSION_MINOR: int = 1
TARN_VERSION_PATCH: int = 0
TARN_MAX_FIELDS: int = 8
TARN_MAX_RANK: int = 8
TARN_TRAIN_MAX_MLP_SIZES: int = 8
TARN_TRAIN_FITS: int = 6
TARN_TRAIN_METRICS: int = 8
TARN_OK: int = 0
TARN_ERROR_ARGUMENT: int = 1
TARN_ERROR_SHAPE: int = 2
TARN_ERROR_DTYPE: int = 3
TARN_ERROR_DEVICE: int = 4
TARN_ERROR_MEMORY: int = 5
TARN_ERROR_IO: int = 6
TARN_ERROR_FORMAT: int = 7
TARN_ERROR_UNSUPPORTED: int = 8
TARN_ERROR_INTERNAL: int = 9
TARN_LOG_INFO: int = 0
TARN_LOG_NOTICE: int = 1
TARN_LOG_WARNING: int = 2
TARN_HEADER_AUTO: int = 0
TARN_HEADER_YES: int = 1
TARN_HEADER_NO: int = 2
TARN_DECIMAL_AUTO: int = 0
TARN_DECIMAL_POINT: int = 1
TARN_DECIMAL_COMMA: int = 2
TARN_TABLE_AUTO: int = 0
TARN_TABLE_CLASSIFY: int = 1
TARN_TABLE_REGRESS: int = 2
TARN_TABLE_ALL: int = 0
TARN_TABLE_TRAINING: int = 1
TARN_TABLE_VALIDATION: int = 2
TARN_FALLBACK_WARN: int = 0
TARN_FALLBACK_ERROR: int = 1
TARN_KV_MODEL: int = 0
TARN_KV_F32: int = 1
TARN_KV_BF16: int = 2
TARN_KV_F16: int = 3
TARN_KV_Q8_0: int = 4
TARN_SPECULATE_OFF: int = 0
TARN_SPECULATE_NGRAM: int = 1
TARN_SPECULATE_DRAFT: int = 2
TARN_FINISH_NONE: int = 0
TARN_FINISH_TOKEN: int = 1
TARN_FINISH_STRING: int = 2
TARN_FINISH_LENGTH: int = 3
TARN_FINISH_GRAMMAR: int = 4
TARN_FINISH_CANCELLED: int = 5
TARN_FINISH_ERROR: int = 6
TARN_GGUF_U8: int = 0
TARN_GGUF_I8: int = 1
TARN_GGUF_U16: int = 2
TARN_GGUF_I16: int = 3
TARN_GGUF_U32: int = 4
TARN_GGUF_I32: int = 5
TARN_GGUF_F32: int = 6
TARN_GGUF_BOOL: int = 7
TARN_GGUF_STRING: int = 8
TARN_GGUF_ARRAY: int = 9
TARN_GGUF_U64: int = 10
TARN_GGUF_I64: int = 11
TARN_GGUF_F64: int = 12
TARN_GGUF_TYPE_COUNT: int = 13
TARN_RECOMPUTE_NONE: int = 0
TARN_RECOMPUTE_SELECTIVE: int = 1
TARN_RECOMPUTE_FULL: int = 2
TARN_MODEL_MAX_EOS: int = 8
TARN_SPLIT_MAX_DEVICES: int = 16
TARN_LM_MAX_LAYERS: int = 1024
TARN_LM_MAX_PAIRS: int = 256
TARN_RELU: int = 0
TARN_LEAKY_RELU: int = 1
TARN_GELU: int = 2
TARN_GELU_ERF: int = 3
TARN_SILU: int = 4
TARN_TANH: int = 5
TARN_SIGMOID: int = 6
TARN_SOFTPLUS: int = 7
TARN_ROPE_DEFAULT: int = 0
TARN_ROPE_LINEAR: int = 1
TARN_ROPE_LLAMA3: int = 2
TARN_ROPE_DYNAMIC: int = 3
TARN_ROPE_YARN: int = 4
TARN_ROPE_LONGROPE: int = 5
TARN_UPSAMPLE_NEAREST: int = 0
TARN_UPSAMPLE_BILINEAR: int = 1
TARN_REDUCE_MEAN: int = 0
TARN_REDUCE_SUM: int = 1
TARN_REDUCE_NONE: int = 2
TARN_SCHEDULE_CONSTANT: int = 0
TARN_SCHEDULE_LINEAR: int = 1
TARN_SCHEDULE_COSINE: int = 2
TARN_SCHEDULE_STEP: int = 3
TARN_SCHEDULE_ONE_CYCLE: int = 4
TARN_PROFILE_MATMUL: int = 0
TARN_PROFILE_CONVOLUTION: int = 1
TARN_PROFILE_ATTENTION: int = 2
TARN_PROFILE_KERNEL: int = 3
TARN_PROFILE_GRAPH: int = 4
TARN_PROFILE_COPY: int = 5
TARN_PROFILE_LOADER_COPY: int = 6
TARN_PROFILE_WAIT: int = 7
TARN_PROFILE_SPAN: int = 8
TARN_PROFILE_KINDS: int = 9
TARN_PART_MATMUL: int = 0
TARN_PART_CONVOLUTION: int = 1
TARN_PART_ATTENTION: int = 2
TARN_PART_KERNELS: int = 3
TARN_PART_GRAPHS: int = 4
TARN_PART_TRANSFERS: int = 5
TARN_PART_WAITING: int = 6
TARN_PART_HOST: int = 7
TARN_PARTS: int = 8
TARN_MAX_COMPARED: int = 8
TARN_F32: int = 0
TARN_F64: int = 1
TARN_BF16: int = 2
TARN_F16: int = 3
TARN_I32: int = 4
TARN_I64: int = 5
TARN_U8: int = 6
TARN_BOOL: int = 7
TARN_Q8_0: int = 8
TARN_Q4_0: int = 9
TARN_Q4_K: int = 10
TARN_Q6_K: int = 11
TARN_Q4_1: int = 12
TARN_Q5_0: int = 13
TARN_Q5_1: int = 14
TARN_Q2_K: int = 15
TARN_Q3_K: int = 16
TARN_Q5_K: int = 17
TARN_IQ4_NL: int = 18
TARN_IQ4_XS: int = 19
TARN_DTYPE_COUNT: int = 20
TARN_CROSS_DEVICE_ERROR: int = 0
TARN_CROSS_DEVICE_MOVE: int = 1
TARN_BPE_LOWER_IDS: int = 0
TARN_BPE_GREATER_BYTES: int = 1
TARN_OPTION_FLAG: int = 0
TARN_OPTION_INT: int = 1
TARN_OPTION_INTS: int = 2
TARN_OPTION_REAL: int = 3
TARN_OPTION_WORD: int = 4
TARN_OPTION_STRING: int = 5
TARN_REPORT_TRAINING: int = 0
TARN_REPORT_EVALUATION: int = 1
TARN_REPORT_SAMPLE: int = 2
TARN_TRAIN_FINISHED: int = 0
TARN_TRAIN_STOPPED: int = 1
TARN_TRAIN_PATIENCE: int = 2
TARN_TRAIN_PREPARING: int = 0
TARN_TRAIN_STEPS: int = 1
TARN_TRAIN_EVALUATION: int = 2
TARN_TRAIN_SAMPLE: int = 3
TARN_TRAIN_CHECKPOINT: int = 4
TARN_RUN_BEST: int = 0
TARN_RUN_LAST: int = 1
TARN_CHAT_DATASET_TRAINING: int = 0
TARN_CHAT_DATASET_VALIDATION: int = 1


class tarn_backward_options(c.Structure):
    retain: bool


tarn_backward_options._fields_ = [
    ("retain", c.c_bool),
]


class tarn_gradcheck_options(c.Structure):
    step: float
    tolerance: float
    seed: int


tarn_gradcheck_options._fields_ = [
    ("step", c.c_double),
    ("tolerance", c.c_double),
    ("seed", c.c_uint64),
]


class tarn_allocator(c.Structure):
    alloc: Any
    release: Any
    ctx: Optional[int]


tarn_allocator._fields_ = [
    ("alloc", c.CFUNCTYPE(c.c_void_p, c.c_size_t, c.c_size_t, c.c_void_p)),
    ("release", c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, c.c_void_p)),
    ("ctx", c.c_void_p),
]

tarn_convert_fn = c.CFUNCTYPE(None, c.c_int64, c.c_int64, c.c_char_p, c.c_void_p)


class tarn_convert_options(c.Structure):
    quantize: bool
    type: int
    replace: bool
    progress: Any
    ctx: Optional[int]
    adapter: Optional[Bytes]
    mixture: Optional[Bytes]
    importance: Optional[Bytes]


tarn_convert_options._fields_ = [
    ("quantize", c.c_bool),
    ("type", c.c_int),
    ("replace", c.c_bool),
    ("progress", tarn_convert_fn),
    ("ctx", c.c_void_p),
    ("adapter", c.c_char_p),
    ("mixture", c.c_char_p),
    ("importance", c.c_char_p),
]


class tarn_convert_summary(c.Structure):
    tensors: int
    changed: int
    unquantized: int
    fallback: int
    promoted: int
    has_tokenizer: bool
    before: int
    after: int


tarn_convert_summary._fields_ = [
    ("tensors", c.c_int),
    ("changed", c.c_int),
    ("unquantized", c.c_int),
    ("fallback", c.c_int),
    ("promoted", c.c_int),
    ("has_tokenizer", c.c_bool),
    ("before", c.c_int64),
    ("after", c.c_int64),
]


class tarn_shape(c.Structure):
    rank: int
    size: Any


tarn_shape._fields_ = [
    ("rank", c.c_int),
    ("size", c.c_int64 * 8),
]


class tarn_field(c.Structure):
    name: Optional[Bytes]
    dtype: int
    shape: Any


tarn_field._fields_ = [
    ("name", c.c_char_p),
    ("dtype", c.c_int),
    ("shape", tarn_shape),
]


class tarn_csv_options(c.Structure):
    header: int
    delimiter: Bytes
    label: Optional[Bytes]
    label_is_real: bool
    dtype: int


tarn_csv_options._fields_ = [
    ("header", c.c_int),
    ("delimiter", c.c_char),
    ("label", c.c_char_p),
    ("label_is_real", c.c_bool),
    ("dtype", c.c_int),
]


class tarn_images_options(c.Structure):
    size: int
    grey: bool
    class_names: Any
    class_count: int


tarn_images_options._fields_ = [
    ("size", c.c_int64),
    ("grey", c.c_bool),
    ("class_names", c.POINTER(c.c_char_p)),
    ("class_count", c.c_int64),
]


class tarn_table_options(c.Structure):
    header: int
    delimiter: Bytes
    decimal: int
    like: Optional[int]


tarn_table_options._fields_ = [
    ("header", c.c_int),
    ("delimiter", c.c_char),
    ("decimal", c.c_int),
    ("like", c.c_void_p),
]


class tarn_table_info(c.Structure):
    rows: int
    broken: int
    columns: int
    has_header: bool
    delimiter: Bytes
    decimal: Bytes


tarn_table_info._fields_ = [
    ("rows", c.c_int64),
    ("broken", c.c_int64),
    ("columns", c.c_int),
    ("has_header", c.c_bool),
    ("delimiter", c.c_char),
    ("decimal", c.c_char),
]


class tarn_column_info(c.Structure):
    name: Optional[Bytes]
    is_category: bool
    missing: int
    categories: int


tarn_column_info._fields_ = [
    ("name", c.c_char_p),
    ("is_category", c.c_bool),
    ("missing", c.c_int64),
    ("categories", c.c_int64),
]


class tarn_table_encoder_options(c.Structure):
    target: Optional[Bytes]
    drop: Optional[Bytes]
    task: int
    val_fraction: float
    seed: int


tarn_table_encoder_options._fields_ = [
    ("target", c.c_char_p),
    ("drop", c.c_char_p),
    ("task", c.c_int),
    ("val_fraction", c.c_double),
    ("seed", c.c_uint64),
]


class tarn_table_encoder_info(c.Structure):
    features: int
    inputs: int
    target: Optional[Bytes]
    is_regression: bool
    classes: int
    mean: float
    std: float
    notes: Optional[Bytes]


tarn_table_encoder_info._fields_ = [
    ("features", c.c_int64),
    ("inputs", c.c_int),
    ("target", c.c_char_p),
    ("is_regression", c.c_bool),
    ("classes", c.c_int64),
    ("mean", c.c_double),
    ("std", c.c_double),
    ("notes", c.c_char_p),
]


class tarn_random_state(c.Structure):
    key: int
    drawn: int


tarn_random_state._fields_ = [
    ("key", c.c_uint64),
    ("drawn", c.c_uint64),
]


class tarn_device(c.Structure):
    backend: int
    index: int


tarn_device._fields_ = [
    ("backend", c.c_int32),
    ("index", c.c_int32),
]

tarn_augment_fn = c.CFUNCTYPE(c.c_bool, c.c_int64, c.POINTER(tarn_random_state), c.POINTER(c.c_void_p), c.c_void_p)


class tarn_loader_options(c.Structure):
    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int
    workers: int
    prefetch: int
    device: Any
    crop_padding: int
    flip: bool
    augment: Any
    augment_ctx: Optional[int]
    normalize: bool
    scale: float
    mean: Any
    std: Any
    channels: int
    crop_scale: float
    jitter: float


tarn_loader_options._fields_ = [
    ("batch_size", c.c_int64),
    ("shuffle", c.c_bool),
    ("drop_last", c.c_bool),
    ("seed", c.c_uint64),
    ("workers", c.c_int),
    ("prefetch", c.c_int),
    ("device", tarn_device),
    ("crop_padding", c.c_int),
    ("flip", c.c_bool),
    ("augment", tarn_augment_fn),
    ("augment_ctx", c.c_void_p),
    ("normalize", c.c_bool),
    ("scale", c.c_float),
    ("mean", c.POINTER(c.c_float)),
    ("std", c.POINTER(c.c_float)),
    ("channels", c.c_int),
    ("crop_scale", c.c_float),
    ("jitter", c.c_float),
]


class tarn_loader_state(c.Structure):
    epoch: int
    batch: int


tarn_loader_state._fields_ = [
    ("epoch", c.c_int64),
    ("batch", c.c_int64),
]


class tarn_device_info(c.Structure):
    name: Any
    description: Any
    detail: Any
    memory_total: int
    memory_free: int
    type: Any
    vendor: Any
    has_tf32: bool


tarn_device_info._fields_ = [
    ("name", c.c_char * 32),
    ("description", c.c_char * 128),
    ("detail", c.c_char * 128),
    ("memory_total", c.c_int64),
    ("memory_free", c.c_int64),
    ("type", c.c_char * 16),
    ("vendor", c.c_char * 64),
    ("has_tf32", c.c_bool),
]


class tarn_engine_options(c.Structure):
    context: int
    sequences: int
    kv_bytes: int
    kv_type: int
    prompt_tokens: int
    no_sharing: bool
    not_invariant: bool
    tokenizer: Optional[int]
    swap_bytes: int
    draft: Optional[int]
    draft_tokenizer: Optional[int]
    no_capture: bool


tarn_engine_options._fields_ = [
    ("context", c.c_int64),
    ("sequences", c.c_int64),
    ("kv_bytes", c.c_int64),
    ("kv_type", c.c_int),
    ("prompt_tokens", c.c_int64),
    ("no_sharing", c.c_bool),
    ("not_invariant", c.c_bool),
    ("tokenizer", c.c_void_p),
    ("swap_bytes", c.c_int64),
    ("draft", c.c_void_p),
    ("draft_tokenizer", c.c_void_p),
    ("no_capture", c.c_bool),
]


class tarn_candidate(c.Structure):
    token: int
    logprob: float


tarn_candidate._fields_ = [
    ("token", c.c_int32),
    ("logprob", c.c_double),
]


class tarn_engine_output(c.Structure):
    request: int
    token: int
    finish_reason: int
    shared: int
    is_prompt: bool
    text: Optional[Bytes]
    length: int
    logprob: float
    top_logprobs: Any
    top_logprob_count: int
    error: Optional[Bytes]
    wait_ms: float
    prompt_ms: float
    decode_ms: float
    end_token: int
    proposed_tokens: int
    accepted_tokens: int


tarn_engine_output._fields_ = [
    ("request", c.c_int64),
    ("token", c.c_int32),
    ("finish_reason", c.c_int),
    ("shared", c.c_int64),
    ("is_prompt", c.c_bool),
    ("text", c.c_char_p),
    ("length", c.c_size_t),
    ("logprob", c.c_double),
    ("top_logprobs", c.POINTER(tarn_candidate)),
    ("top_logprob_count", c.c_int),
    ("error", c.c_char_p),
    ("wait_ms", c.c_double),
    ("prompt_ms", c.c_double),
    ("decode_ms", c.c_double),
    ("end_token", c.c_int32),
    ("proposed_tokens", c.c_int64),
    ("accepted_tokens", c.c_int64),
]


class tarn_engine_stats(c.Structure):
    pages: int
    free_pages: int
    running: int
    waiting: int
    steps: int
    preemptions: int
    prompt_tokens: int
    shared_tokens: int
    new_tokens: int
    cached_pages: int
    shared_pages: int
    page_tokens: int
    context: int
    added: int
    finished: int
    cancelled: int
    failed: int
    swap_pages: int
    free_swap_pages: int
    swapped_out: int
    swapped_in: int
    cached_swap_pages: int
    prefixes_out: int
    prefixes_in: int
    prefixes_dropped: int
    proposed_tokens: int
    accepted_tokens: int


tarn_engine_stats._fields_ = [
    ("pages", c.c_int64),
    ("free_pages", c.c_int64),
    ("running", c.c_int64),
    ("waiting", c.c_int64),
    ("steps", c.c_int64),
    ("preemptions", c.c_int64),
    ("prompt_tokens", c.c_int64),
    ("shared_tokens", c.c_int64),
    ("new_tokens", c.c_int64),
    ("cached_pages", c.c_int64),
    ("shared_pages", c.c_int64),
    ("page_tokens", c.c_int64),
    ("context", c.c_int64),
    ("added", c.c_int64),
    ("finished", c.c_int64),
    ("cancelled", c.c_int64),
    ("failed", c.c_int64),
    ("swap_pages", c.c_int64),
    ("free_swap_pages", c.c_int64),
    ("swapped_out", c.c_int64),
    ("swapped_in", c.c_int64),
    ("cached_swap_pages", c.c_int64),
    ("prefixes_out", c.c_int64),
    ("prefixes_in", c.c_int64),
    ("prefixes_dropped", c.c_int64),
    ("proposed_tokens", c.c_int64),
    ("accepted_tokens", c.c_int64),
]


class tarn_engine_request(c.Structure):
    request: int
    is_running: bool
    prompt: int
    computed: int
    shared: int
    new_tokens: int
    max_tokens: int
    pages: int
    preemptions: int
    wait_ms: float
    prompt_ms: float
    decode_ms: float
    adapter: int
    proposed_tokens: int
    accepted_tokens: int


tarn_engine_request._fields_ = [
    ("request", c.c_int64),
    ("is_running", c.c_bool),
    ("prompt", c.c_int64),
    ("computed", c.c_int64),
    ("shared", c.c_int64),
    ("new_tokens", c.c_int64),
    ("max_tokens", c.c_int64),
    ("pages", c.c_int64),
    ("preemptions", c.c_int64),
    ("wait_ms", c.c_double),
    ("prompt_ms", c.c_double),
    ("decode_ms", c.c_double),
    ("adapter", c.c_int64),
    ("proposed_tokens", c.c_int64),
    ("accepted_tokens", c.c_int64),
]


class tarn_decoder_options(c.Structure):
    batch: int
    context: int
    kv_type: int
    prefill_chunk: int
    no_capture: bool


tarn_decoder_options._fields_ = [
    ("batch", c.c_int64),
    ("context", c.c_int64),
    ("kv_type", c.c_int),
    ("prefill_chunk", c.c_int64),
    ("no_capture", c.c_bool),
]


class tarn_logit_bias(c.Structure):
    token: int
    bias: float


tarn_logit_bias._fields_ = [
    ("token", c.c_int32),
    ("bias", c.c_double),
]


class tarn_sampler_options(c.Structure):
    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Any
    logit_bias_count: int


tarn_sampler_options._fields_ = [
    ("temperature", c.c_double),
    ("top_k", c.c_int64),
    ("top_p", c.c_double),
    ("seed", c.c_uint64),
    ("min_p", c.c_double),
    ("repeat_penalty", c.c_double),
    ("repeat_last_n", c.c_int64),
    ("frequency_penalty", c.c_double),
    ("presence_penalty", c.c_double),
    ("logit_bias", c.POINTER(tarn_logit_bias)),
    ("logit_bias_count", c.c_int),
]

tarn_token_fn = c.CFUNCTYPE(c.c_bool, c.c_int32, c.c_void_p)


class tarn_generate_options(c.Structure):
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: Any
    stop_count: int
    ignore_eos: bool
    on_token: Any
    ctx: Optional[int]
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    stop_strings: Any
    stop_string_count: int
    logprobs: bool
    top_logprobs: int
    no_capture: bool
    slide: bool
    keep: int
    grammar: Optional[int]
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Any
    logit_bias_count: int
    prompt_logprobs: bool
    prompt_only: bool
    cache_salt: int
    speculate: int
    draft_tokens: int
    adapter: int


tarn_generate_options._fields_ = [
    ("max_tokens", c.c_int64),
    ("temperature", c.c_double),
    ("top_k", c.c_int64),
    ("top_p", c.c_double),
    ("seed", c.c_uint64),
    ("stop", c.POINTER(c.c_int32)),
    ("stop_count", c.c_int),
    ("ignore_eos", c.c_bool),
    ("on_token", tarn_token_fn),
    ("ctx", c.c_void_p),
    ("min_p", c.c_double),
    ("repeat_penalty", c.c_double),
    ("repeat_last_n", c.c_int64),
    ("stop_strings", c.POINTER(c.c_char_p)),
    ("stop_string_count", c.c_int),
    ("logprobs", c.c_bool),
    ("top_logprobs", c.c_int),
    ("no_capture", c.c_bool),
    ("slide", c.c_bool),
    ("keep", c.c_int64),
    ("grammar", c.c_void_p),
    ("frequency_penalty", c.c_double),
    ("presence_penalty", c.c_double),
    ("logit_bias", c.POINTER(tarn_logit_bias)),
    ("logit_bias_count", c.c_int),
    ("prompt_logprobs", c.c_bool),
    ("prompt_only", c.c_bool),
    ("cache_salt", c.c_uint64),
    ("speculate", c.c_int),
    ("draft_tokens", c.c_int64),
    ("adapter", c.c_int64),
]


class tarn_model_split(c.Structure):
    count: int
    device: Any
    layers: Any
    weight_bytes: Any
    kv_bytes: Any
    free_bytes: Any


tarn_model_split._fields_ = [
    ("count", c.c_int),
    ("device", tarn_device * 16),
    ("layers", c.c_int64 * 16),
    ("weight_bytes", c.c_int64 * 16),
    ("kv_bytes", c.c_int64 * 16),
    ("free_bytes", c.c_int64 * 16),
]


class tarn_generator_options(c.Structure):
    sequences: int
    context: int
    kv_type: int
    prefill_chunk: int
    dtype: int
    no_capture: bool
    device_layers: int
    as_stored: bool
    draft: Optional[int]
    draft_tokenizer: Optional[int]
    split: Any


tarn_generator_options._fields_ = [
    ("sequences", c.c_int64),
    ("context", c.c_int64),
    ("kv_type", c.c_int),
    ("prefill_chunk", c.c_int64),
    ("dtype", c.c_int),
    ("no_capture", c.c_bool),
    ("device_layers", c.c_int64),
    ("as_stored", c.c_bool),
    ("draft", c.c_void_p),
    ("draft_tokenizer", c.c_void_p),
    ("split", c.POINTER(tarn_model_split)),
]


class tarn_output(c.Structure):
    sequence: int
    token: int
    text: Optional[Bytes]
    length: int
    finish_reason: int
    logprob: float
    top_logprobs: Any
    top_logprob_count: int
    slid: bool


tarn_output._fields_ = [
    ("sequence", c.c_int64),
    ("token", c.c_int32),
    ("text", c.c_char_p),
    ("length", c.c_size_t),
    ("finish_reason", c.c_int),
    ("logprob", c.c_double),
    ("top_logprobs", c.POINTER(tarn_candidate)),
    ("top_logprob_count", c.c_int),
    ("slid", c.c_bool),
]


class tarn_generator_stats(c.Structure):
    steps: int
    proposed_tokens: int
    accepted_tokens: int


tarn_generator_stats._fields_ = [
    ("steps", c.c_int64),
    ("proposed_tokens", c.c_int64),
    ("accepted_tokens", c.c_int64),
]


class tarn_embedder_options(c.Structure):
    context: int
    kv_type: int
    prefill_chunk: int


tarn_embedder_options._fields_ = [
    ("context", c.c_int64),
    ("kv_type", c.c_int),
    ("prefill_chunk", c.c_int64),
]


class tarn_model_split_options(c.Structure):
    dtype: int
    as_stored: bool
    quantize: int
    context: int
    sequences: int
    kv_type: int
    kv_tokens: int
    kv_bytes: int
    tensor_split: Any


tarn_model_split_options._fields_ = [
    ("dtype", c.c_int),
    ("as_stored", c.c_bool),
    ("quantize", c.c_int),
    ("context", c.c_int64),
    ("sequences", c.c_int64),
    ("kv_type", c.c_int),
    ("kv_tokens", c.c_int64),
    ("kv_bytes", c.c_int64),
    ("tensor_split", c.POINTER(c.c_double)),
]


class tarn_decode_options(c.Structure):
    model: Optional[Bytes]
    dtype: int
    device: Any
    prompt: int
    tokens: int
    sequences: int
    kv_type: int
    prefill_chunk: int
    runs: int
    vocab_size: int
    layers: int
    heads: int
    hidden_size: int
    device_layers: int


tarn_decode_options._fields_ = [
    ("model", c.c_char_p),
    ("dtype", c.c_int),
    ("device", tarn_device),
    ("prompt", c.c_int64),
    ("tokens", c.c_int64),
    ("sequences", c.c_int64),
    ("kv_type", c.c_int),
    ("prefill_chunk", c.c_int64),
    ("runs", c.c_int64),
    ("vocab_size", c.c_int64),
    ("layers", c.c_int64),
    ("heads", c.c_int64),
    ("hidden_size", c.c_int64),
    ("device_layers", c.c_int64),
]


class tarn_decode_timing(c.Structure):
    parameters: int
    weight_bytes: int
    read_bytes: int
    cache_bytes: int
    peak_bytes: int
    prompt_ms: float
    first_ms: float
    token_ms: float
    min_token_ms: float


tarn_decode_timing._fields_ = [
    ("parameters", c.c_int64),
    ("weight_bytes", c.c_int64),
    ("read_bytes", c.c_int64),
    ("cache_bytes", c.c_int64),
    ("peak_bytes", c.c_int64),
    ("prompt_ms", c.c_double),
    ("first_ms", c.c_double),
    ("token_ms", c.c_double),
    ("min_token_ms", c.c_double),
]


class tarn_gguf_entry(c.Structure):
    name: Optional[Bytes]
    dtype_name: Optional[Bytes]
    dtype: int
    shape: Any
    position: int
    bytes: int


tarn_gguf_entry._fields_ = [
    ("name", c.c_char_p),
    ("dtype_name", c.c_char_p),
    ("dtype", c.c_int),
    ("shape", tarn_shape),
    ("position", c.c_int64),
    ("bytes", c.c_int64),
]


class tarn_gguf_value(c.Structure):
    key: Optional[Bytes]
    type: int
    element: int
    count: int


tarn_gguf_value._fields_ = [
    ("key", c.c_char_p),
    ("type", c.c_int),
    ("element", c.c_int),
    ("count", c.c_int64),
]


class tarn_grammar_vocab_options(c.Structure):
    vocab_size: int
    eos: Any
    eos_count: int


tarn_grammar_vocab_options._fields_ = [
    ("vocab_size", c.c_int64),
    ("eos", c.POINTER(c.c_int32)),
    ("eos_count", c.c_int),
]


class tarn_lora_options(c.Structure):
    rank: int
    alpha: float
    dropout: float
    targets: Optional[Bytes]
    seed: int
    dtype: int
    rslora: bool
    modules_to_save: Optional[Bytes]
    trained_tokens: Any
    trained_token_count: int


tarn_lora_options._fields_ = [
    ("rank", c.c_int64),
    ("alpha", c.c_double),
    ("dropout", c.c_double),
    ("targets", c.c_char_p),
    ("seed", c.c_uint64),
    ("dtype", c.c_int),
    ("rslora", c.c_bool),
    ("modules_to_save", c.c_char_p),
    ("trained_tokens", c.POINTER(c.c_int64)),
    ("trained_token_count", c.c_int64),
]


class tarn_resnet20_options(c.Structure):
    channels: int


tarn_resnet20_options._fields_ = [
    ("channels", c.c_int64),
]


class tarn_resnet_options(c.Structure):
    channels: int


tarn_resnet_options._fields_ = [
    ("channels", c.c_int64),
]


class tarn_model_info(c.Structure):
    type: Optional[Bytes]
    vocab_size: int
    context: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: int
    device: Any
    has_bos: bool
    bos: int
    eos_count: int
    eos: Any
    device_layers: int


tarn_model_info._fields_ = [
    ("type", c.c_char_p),
    ("vocab_size", c.c_int64),
    ("context", c.c_int64),
    ("layers", c.c_int64),
    ("hidden_size", c.c_int64),
    ("heads", c.c_int64),
    ("kv_heads", c.c_int64),
    ("head_dim", c.c_int64),
    ("dtype", c.c_int),
    ("device", tarn_device),
    ("has_bos", c.c_bool),
    ("bos", c.c_int64),
    ("eos_count", c.c_int),
    ("eos", c.c_int64 * 8),
    ("device_layers", c.c_int64),
]


class tarn_lm_layers(c.Structure):
    bits: Any


tarn_lm_layers._fields_ = [
    ("bits", c.c_uint64 * 16),
]


class tarn_rope_options(c.Structure):
    axis: int
    base: float
    dims: int
    interleaved: bool
    scaling: int
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int
    attention_factor: float
    mscale: float
    mscale_all_dim: float
    beta_fast: float
    beta_slow: float
    untruncated: bool
    length: int
    pair_factors: Any
    long_pair_factors: Any
    pair_factor_count: int


tarn_rope_options._fields_ = [
    ("axis", c.c_int),
    ("base", c.c_double),
    ("dims", c.c_int64),
    ("interleaved", c.c_bool),
    ("scaling", c.c_int),
    ("factor", c.c_double),
    ("low_freq_factor", c.c_double),
    ("high_freq_factor", c.c_double),
    ("original_context", c.c_int64),
    ("attention_factor", c.c_double),
    ("mscale", c.c_double),
    ("mscale_all_dim", c.c_double),
    ("beta_fast", c.c_double),
    ("beta_slow", c.c_double),
    ("untruncated", c.c_bool),
    ("length", c.c_int64),
    ("pair_factors", c.POINTER(c.c_float)),
    ("long_pair_factors", c.POINTER(c.c_float)),
    ("pair_factor_count", c.c_int64),
]


class tarn_lm_config(c.Structure):
    arch: Optional[Bytes]
    vocab_size: int
    context: int
    layers: int
    heads: int
    hidden_size: int
    ffn_size: int
    kv_heads: int
    head_dim: int
    activation: Optional[Bytes]
    epsilon: float
    attention_bias: bool
    mlp_bias: bool
    tie_embeddings: bool
    sequential: bool
    dtype: int
    rope: Any
    rope_local_base: float
    rope_factors: Any
    no_rope: Any
    window: int
    windows: Any
    attention_scale: float
    scale_by_layer: bool
    attention_softcap: float
    logit_softcap: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    dropout: float
    attention_dropout: float
    embedding_dropout: float
    recompute: int
    has_bos: bool
    bos: int
    eos_count: int
    eos: Any


tarn_lm_config._fields_ = [
    ("arch", c.c_char_p),
    ("vocab_size", c.c_int64),
    ("context", c.c_int64),
    ("layers", c.c_int64),
    ("heads", c.c_int64),
    ("hidden_size", c.c_int64),
    ("ffn_size", c.c_int64),
    ("kv_heads", c.c_int64),
    ("head_dim", c.c_int64),
    ("activation", c.c_char_p),
    ("epsilon", c.c_double),
    ("attention_bias", c.c_bool),
    ("mlp_bias", c.c_bool),
    ("tie_embeddings", c.c_bool),
    ("sequential", c.c_bool),
    ("dtype", c.c_int),
    ("rope", tarn_rope_options),
    ("rope_local_base", c.c_double),
    ("rope_factors", c.c_float * 256 * 2),
    ("no_rope", tarn_lm_layers),
    ("window", c.c_int64),
    ("windows", tarn_lm_layers),
    ("attention_scale", c.c_double),
    ("scale_by_layer", c.c_bool),
    ("attention_softcap", c.c_double),
    ("logit_softcap", c.c_double),
    ("embedding_scale", c.c_double),
    ("residual_scale", c.c_double),
    ("logit_scale", c.c_double),
    ("dropout", c.c_double),
    ("attention_dropout", c.c_double),
    ("embedding_dropout", c.c_double),
    ("recompute", c.c_int),
    ("has_bos", c.c_bool),
    ("bos", c.c_int64),
    ("eos_count", c.c_int),
    ("eos", c.c_int64 * 8),
]


class tarn_gpt2_config(c.Structure):
    vocab_size: int
    context: int
    layers: int
    heads: int
    hidden_size: int
    ffn_size: int
    dropout: float
    attention_dropout: float
    embedding_dropout: float
    epsilon: float
    dtype: int
    has_eos: bool
    eos: int
    recompute: int
    untie_embeddings: bool


tarn_gpt2_config._fields_ = [
    ("vocab_size", c.c_int64),
    ("context", c.c_int64),
    ("layers", c.c_int64),
    ("heads", c.c_int64),
    ("hidden_size", c.c_int64),
    ("ffn_size", c.c_int64),
    ("dropout", c.c_double),
    ("attention_dropout", c.c_double),
    ("embedding_dropout", c.c_double),
    ("epsilon", c.c_double),
    ("dtype", c.c_int),
    ("has_eos", c.c_bool),
    ("eos", c.c_int64),
    ("recompute", c.c_int),
    ("untie_embeddings", c.c_bool),
]


class tarn_llama_config(c.Structure):
    vocab_size: int
    context: int
    layers: int
    heads: int
    hidden_size: int
    ffn_size: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rope_theta: float
    rope_scaling: int
    rope_factor: float
    rope_low_freq_factor: float
    rope_high_freq_factor: float
    rope_original_context: int
    qkv_bias: bool
    qk_norm: bool
    tie_embeddings: bool
    arch: Optional[Bytes]
    dtype: int
    has_bos: bool
    bos: int
    eos_count: int
    eos: Any
    recompute: int


tarn_llama_config._fields_ = [
    ("vocab_size", c.c_int64),
    ("context", c.c_int64),
    ("layers", c.c_int64),
    ("heads", c.c_int64),
    ("hidden_size", c.c_int64),
    ("ffn_size", c.c_int64),
    ("kv_heads", c.c_int64),
    ("head_dim", c.c_int64),
    ("epsilon", c.c_double),
    ("rope_theta", c.c_double),
    ("rope_scaling", c.c_int),
    ("rope_factor", c.c_double),
    ("rope_low_freq_factor", c.c_double),
    ("rope_high_freq_factor", c.c_double),
    ("rope_original_context", c.c_int64),
    ("qkv_bias", c.c_bool),
    ("qk_norm", c.c_bool),
    ("tie_embeddings", c.c_bool),
    ("arch", c.c_char_p),
    ("dtype", c.c_int),
    ("has_bos", c.c_bool),
    ("bos", c.c_int64),
    ("eos_count", c.c_int),
    ("eos", c.c_int64 * 8),
    ("recompute", c.c_int),
]


class tarn_model_open_options(c.Structure):
    dtype: int
    as_stored: bool
    device_layers: int
    quantize: int
    split: Any


tarn_model_open_options._fields_ = [
    ("dtype", c.c_int),
    ("as_stored", c.c_bool),
    ("device_layers", c.c_int64),
    ("quantize", c.c_int),
    ("split", c.POINTER(tarn_model_split)),
]


class tarn_linear_options(c.Structure):
    no_bias: bool
    dtype: int


tarn_linear_options._fields_ = [
    ("no_bias", c.c_bool),
    ("dtype", c.c_int),
]


class tarn_embedding_options(c.Structure):
    dtype: int


tarn_embedding_options._fields_ = [
    ("dtype", c.c_int),
]


class tarn_norm_options(c.Structure):
    epsilon: float
    no_affine: bool
    no_bias: bool
    dtype: int


tarn_norm_options._fields_ = [
    ("epsilon", c.c_double),
    ("no_affine", c.c_bool),
    ("no_bias", c.c_bool),
    ("dtype", c.c_int),
]


class tarn_conv2d_layer_options(c.Structure):
    kernel: Any
    stride: Any
    padding: Any
    dilation: Any
    groups: int
    no_bias: bool
    dtype: int


tarn_conv2d_layer_options._fields_ = [
    ("kernel", c.c_int64 * 2),
    ("stride", c.c_int64 * 2),
    ("padding", c.c_int64 * 2),
    ("dilation", c.c_int64 * 2),
    ("groups", c.c_int64),
    ("no_bias", c.c_bool),
    ("dtype", c.c_int),
]


class tarn_conv_transpose2d_layer_options(c.Structure):
    kernel: Any
    stride: Any
    padding: Any
    output_padding: Any
    dilation: Any
    groups: int
    no_bias: bool
    dtype: int


tarn_conv_transpose2d_layer_options._fields_ = [
    ("kernel", c.c_int64 * 2),
    ("stride", c.c_int64 * 2),
    ("padding", c.c_int64 * 2),
    ("output_padding", c.c_int64 * 2),
    ("dilation", c.c_int64 * 2),
    ("groups", c.c_int64),
    ("no_bias", c.c_bool),
    ("dtype", c.c_int),
]


class tarn_conv1d_layer_options(c.Structure):
    kernel: int
    stride: int
    padding: int
    dilation: int
    groups: int
    no_bias: bool
    dtype: int


tarn_conv1d_layer_options._fields_ = [
    ("kernel", c.c_int64),
    ("stride", c.c_int64),
    ("padding", c.c_int64),
    ("dilation", c.c_int64),
    ("groups", c.c_int64),
    ("no_bias", c.c_bool),
    ("dtype", c.c_int),
]


class tarn_instancenorm_options(c.Structure):
    affine: bool
    epsilon: float
    dtype: int


tarn_instancenorm_options._fields_ = [
    ("affine", c.c_bool),
    ("epsilon", c.c_double),
    ("dtype", c.c_int),
]


class tarn_batchnorm2d_options(c.Structure):
    momentum: float
    epsilon: float
    no_affine: bool
    no_tracking: bool
    dtype: int


tarn_batchnorm2d_options._fields_ = [
    ("momentum", c.c_double),
    ("epsilon", c.c_double),
    ("no_affine", c.c_bool),
    ("no_tracking", c.c_bool),
    ("dtype", c.c_int),
]


class tarn_recurrent_options(c.Structure):
    layers: int
    bidirectional: bool
    batch_first: bool
    no_bias: bool
    dropout: float
    dtype: int


tarn_recurrent_options._fields_ = [
    ("layers", c.c_int64),
    ("bidirectional", c.c_bool),
    ("batch_first", c.c_bool),
    ("no_bias", c.c_bool),
    ("dropout", c.c_double),
    ("dtype", c.c_int),
]


class tarn_recurrent_state(c.Structure):
    h: Optional[int]
    c: Optional[int]


tarn_recurrent_state._fields_ = [
    ("h", c.c_void_p),
    ("c", c.c_void_p),
]


class tarn_module_load_options(c.Structure):
    allow_missing: bool
    allow_unexpected: bool
    skip_mismatched: bool


tarn_module_load_options._fields_ = [
    ("allow_missing", c.c_bool),
    ("allow_unexpected", c.c_bool),
    ("skip_mismatched", c.c_bool),
]


class tarn_attention_options(c.Structure):
    causal: bool
    scale: float
    dropout: float
    lengths: Optional[int]
    document_starts: Optional[int]
    window: int
    softcap: float


tarn_attention_options._fields_ = [
    ("causal", c.c_bool),
    ("scale", c.c_double),
    ("dropout", c.c_double),
    ("lengths", c.c_void_p),
    ("document_starts", c.c_void_p),
    ("window", c.c_int64),
    ("softcap", c.c_double),
]


class tarn_conv2d_options(c.Structure):
    stride: Any
    padding: Any
    dilation: Any
    groups: int


tarn_conv2d_options._fields_ = [
    ("stride", c.c_int64 * 2),
    ("padding", c.c_int64 * 2),
    ("dilation", c.c_int64 * 2),
    ("groups", c.c_int64),
]


class tarn_conv_transpose2d_options(c.Structure):
    stride: Any
    padding: Any
    output_padding: Any
    dilation: Any
    groups: int


tarn_conv_transpose2d_options._fields_ = [
    ("stride", c.c_int64 * 2),
    ("padding", c.c_int64 * 2),
    ("output_padding", c.c_int64 * 2),
    ("dilation", c.c_int64 * 2),
    ("groups", c.c_int64),
]


class tarn_conv1d_options(c.Structure):
    stride: int
    padding: int
    dilation: int
    groups: int


tarn_conv1d_options._fields_ = [
    ("stride", c.c_int64),
    ("padding", c.c_int64),
    ("dilation", c.c_int64),
    ("groups", c.c_int64),
]


class tarn_pool2d_options(c.Structure):
    kernel: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil_mode: bool
    exclude_padding: bool


tarn_pool2d_options._fields_ = [
    ("kernel", c.c_int64 * 2),
    ("stride", c.c_int64 * 2),
    ("padding", c.c_int64 * 2),
    ("dilation", c.c_int64 * 2),
    ("ceil_mode", c.c_bool),
    ("exclude_padding", c.c_bool),
]


class tarn_upsample_options(c.Structure):
    size: Any
    scale: Any
    mode: int
    align_corners: bool


tarn_upsample_options._fields_ = [
    ("size", c.c_int64 * 2),
    ("scale", c.c_double * 2),
    ("mode", c.c_int),
    ("align_corners", c.c_bool),
]


class tarn_batchnorm_options(c.Structure):
    training: bool
    momentum: float
    epsilon: float


tarn_batchnorm_options._fields_ = [
    ("training", c.c_bool),
    ("momentum", c.c_double),
    ("epsilon", c.c_double),
]


class tarn_cross_entropy_options(c.Structure):
    label_smoothing: float
    ignore_index: Any
    reduction: int
    softcap: float


tarn_cross_entropy_options._fields_ = [
    ("label_smoothing", c.c_double),
    ("ignore_index", c.POINTER(c.c_int64)),
    ("reduction", c.c_int),
    ("softcap", c.c_double),
]


class tarn_attribute(c.Structure):
    name: Optional[Bytes]
    number: float
    integer: int
    list: Any
    count: int


tarn_attribute._fields_ = [
    ("name", c.c_char_p),
    ("number", c.c_double),
    ("integer", c.c_int64),
    ("list", c.c_int64 * 8),
    ("count", c.c_int),
]


class tarn_op_info(c.Structure):
    name: Optional[Bytes]
    attributes: Optional[Bytes]
    min_inputs: int
    max_inputs: int
    outputs: int
    differentiable: bool


tarn_op_info._fields_ = [
    ("name", c.c_char_p),
    ("attributes", c.c_char_p),
    ("min_inputs", c.c_int),
    ("max_inputs", c.c_int),
    ("outputs", c.c_int),
    ("differentiable", c.c_bool),
]


class tarn_kernel_variant(c.Structure):
    name: Optional[Bytes]
    dtypes: int
    fits_all: bool


tarn_kernel_variant._fields_ = [
    ("name", c.c_char_p),
    ("dtypes", c.c_uint32),
    ("fits_all", c.c_bool),
]


class tarn_array(c.Structure):
    data: Optional[int]
    shape: Any
    dtype: int


tarn_array._fields_ = [
    ("data", c.c_void_p),
    ("shape", tarn_shape),
    ("dtype", c.c_int),
]


class tarn_parameter_group(c.Structure):
    names: Optional[Bytes]
    lr_scale: float
    weight_decay: float
    no_decay: bool


tarn_parameter_group._fields_ = [
    ("names", c.c_char_p),
    ("lr_scale", c.c_float),
    ("weight_decay", c.c_float),
    ("no_decay", c.c_bool),
]


class tarn_sgd_options(c.Structure):
    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    groups: Any
    group_count: int
    comm: Optional[int]


tarn_sgd_options._fields_ = [
    ("lr", c.c_float),
    ("momentum", c.c_float),
    ("dampening", c.c_float),
    ("weight_decay", c.c_float),
    ("nesterov", c.c_bool),
    ("groups", c.POINTER(tarn_parameter_group)),
    ("group_count", c.c_int),
    ("comm", c.c_void_p),
]


class tarn_adam_options(c.Structure):
    lr: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    groups: Any
    group_count: int
    comm: Optional[int]


tarn_adam_options._fields_ = [
    ("lr", c.c_float),
    ("beta1", c.c_float),
    ("beta2", c.c_float),
    ("epsilon", c.c_float),
    ("weight_decay", c.c_float),
    ("groups", c.POINTER(tarn_parameter_group)),
    ("group_count", c.c_int),
    ("comm", c.c_void_p),
]


class tarn_adamw_options(c.Structure):
    lr: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    decay_all: bool
    groups: Any
    group_count: int
    comm: Optional[int]


tarn_adamw_options._fields_ = [
    ("lr", c.c_float),
    ("beta1", c.c_float),
    ("beta2", c.c_float),
    ("epsilon", c.c_float),
    ("weight_decay", c.c_float),
    ("decay_all", c.c_bool),
    ("groups", c.POINTER(tarn_parameter_group)),
    ("group_count", c.c_int),
    ("comm", c.c_void_p),
]


class tarn_schedule(c.Structure):
    kind: int
    warmup_steps: int
    total_steps: int
    final_factor: float
    step_size: int
    gamma: float
    start_factor: float


tarn_schedule._fields_ = [
    ("kind", c.c_int),
    ("warmup_steps", c.c_int64),
    ("total_steps", c.c_int64),
    ("final_factor", c.c_double),
    ("step_size", c.c_int64),
    ("gamma", c.c_double),
    ("start_factor", c.c_double),
]


class tarn_ema_options(c.Structure):
    decay: float
    warmup: bool


tarn_ema_options._fields_ = [
    ("decay", c.c_double),
    ("warmup", c.c_bool),
]


class tarn_prediction(c.Structure):
    index: int
    label: int
    predicted: int
    probability: float
    label_probability: float
    path: Optional[Bytes]


tarn_prediction._fields_ = [
    ("index", c.c_int64),
    ("label", c.c_int64),
    ("predicted", c.c_int64),
    ("probability", c.c_double),
    ("label_probability", c.c_double),
    ("path", c.c_char_p),
]


class tarn_counters(c.Structure):
    kernels: int
    kernels_on: Any
    fallbacks: int
    uploads: int
    downloads: int
    peer_copies: int
    upload_bytes: int
    download_bytes: int
    peer_bytes: int
    layout_copies: int
    allocations: int
    system_allocations: int


tarn_counters._fields_ = [
    ("kernels", c.c_int64),
    ("kernels_on", c.c_int64 * 8),
    ("fallbacks", c.c_int64),
    ("uploads", c.c_int64),
    ("downloads", c.c_int64),
    ("peer_copies", c.c_int64),
    ("upload_bytes", c.c_int64),
    ("download_bytes", c.c_int64),
    ("peer_bytes", c.c_int64),
    ("layout_copies", c.c_int64),
    ("allocations", c.c_int64),
    ("system_allocations", c.c_int64),
]


class tarn_memory(c.Structure):
    used: int
    cached: int
    peak_used: int
    blocks: int


tarn_memory._fields_ = [
    ("used", c.c_int64),
    ("cached", c.c_int64),
    ("peak_used", c.c_int64),
    ("blocks", c.c_int64),
]


class tarn_memory_kinds(c.Structure):
    parameters: int
    gradients: int
    state: int
    workspace: int
    activations: int
    peak: int


tarn_memory_kinds._fields_ = [
    ("parameters", c.c_int64),
    ("gradients", c.c_int64),
    ("state", c.c_int64),
    ("workspace", c.c_int64),
    ("activations", c.c_int64),
    ("peak", c.c_int64),
]


class tarn_profile_record(c.Structure):
    kind: int
    name: Optional[Bytes]
    function: Optional[Bytes]
    is_backward: bool
    is_fallback: bool
    device: Any
    thread: int
    host_start: float
    host_end: float
    device_start: float
    device_end: float
    dtype: int
    shape: Any
    bytes: float
    flops: float
    variant: Optional[Bytes]


tarn_profile_record._fields_ = [
    ("kind", c.c_int),
    ("name", c.c_char_p),
    ("function", c.c_char_p),
    ("is_backward", c.c_bool),
    ("is_fallback", c.c_bool),
    ("device", tarn_device),
    ("thread", c.c_int),
    ("host_start", c.c_double),
    ("host_end", c.c_double),
    ("device_start", c.c_double),
    ("device_end", c.c_double),
    ("dtype", c.c_int),
    ("shape", tarn_shape),
    ("bytes", c.c_double),
    ("flops", c.c_double),
    ("variant", c.c_char_p),
]


class tarn_profile_summary(c.Structure):
    microseconds: float
    part: Any
    utilization: float
    flops: float
    records: int
    lost: int
    rows: int


tarn_profile_summary._fields_ = [
    ("microseconds", c.c_double),
    ("part", c.c_double * 8),
    ("utilization", c.c_double),
    ("flops", c.c_double),
    ("records", c.c_int64),
    ("lost", c.c_int64),
    ("rows", c.c_int64),
]


class tarn_profile_row(c.Structure):
    kind: int
    name: Optional[Bytes]
    function: Optional[Bytes]
    variant: Optional[Bytes]
    is_backward: bool
    calls: int
    device_microseconds: float
    host_microseconds: float
    bytes: float
    flops: float


tarn_profile_row._fields_ = [
    ("kind", c.c_int),
    ("name", c.c_char_p),
    ("function", c.c_char_p),
    ("variant", c.c_char_p),
    ("is_backward", c.c_bool),
    ("calls", c.c_int64),
    ("device_microseconds", c.c_double),
    ("host_microseconds", c.c_double),
    ("bytes", c.c_double),
    ("flops", c.c_double),
]


class tarn_logged_run(c.Structure):
    date: Optional[Bytes]
    end: Optional[Bytes]
    folder: Optional[Bytes]
    model: Optional[Bytes]
    data: Optional[Bytes]
    device: Optional[Bytes]
    precision: Optional[Bytes]
    processor: Optional[Bytes]
    version: Optional[Bytes]
    parameters: int
    batch_size: int
    steps_in_epoch: int
    first_step: int
    step: int
    steps: int
    seconds: float
    seconds_per_1000_steps: float
    seconds_per_epoch: float
    loss: float
    val_loss: float
    best_step: int
    best_loss: float
    best_accuracy: float
    ema: float


tarn_logged_run._fields_ = [
    ("date", c.c_char_p),
    ("end", c.c_char_p),
    ("folder", c.c_char_p),
    ("model", c.c_char_p),
    ("data", c.c_char_p),
    ("device", c.c_char_p),
    ("precision", c.c_char_p),
    ("processor", c.c_char_p),
    ("version", c.c_char_p),
    ("parameters", c.c_int64),
    ("batch_size", c.c_int64),
    ("steps_in_epoch", c.c_int64),
    ("first_step", c.c_int64),
    ("step", c.c_int64),
    ("steps", c.c_int64),
    ("seconds", c.c_double),
    ("seconds_per_1000_steps", c.c_double),
    ("seconds_per_epoch", c.c_double),
    ("loss", c.c_double),
    ("val_loss", c.c_double),
    ("best_step", c.c_int64),
    ("best_loss", c.c_double),
    ("best_accuracy", c.c_double),
    ("ema", c.c_double),
]


class tarn_safetensors_entry(c.Structure):
    name: Optional[Bytes]
    dtype_name: Optional[Bytes]
    dtype: int
    shape: Any
    position: int
    bytes: int


tarn_safetensors_entry._fields_ = [
    ("name", c.c_char_p),
    ("dtype_name", c.c_char_p),
    ("dtype", c.c_int),
    ("shape", tarn_shape),
    ("position", c.c_int64),
    ("bytes", c.c_int64),
]


class tarn_regression_evaluation(c.Structure):
    samples: int
    loss: float
    rmse: float
    mae: float
    r2: float


tarn_regression_evaluation._fields_ = [
    ("samples", c.c_int64),
    ("loss", c.c_double),
    ("rmse", c.c_double),
    ("mae", c.c_double),
    ("r2", c.c_double),
]


class tarn_axes(c.Structure):
    count: int
    axis: Any


tarn_axes._fields_ = [
    ("count", c.c_int),
    ("axis", c.c_int * 8),
]


class tarn_encode_options(c.Structure):
    special_as_text: bool
    add_special: bool


tarn_encode_options._fields_ = [
    ("special_as_text", c.c_bool),
    ("add_special", c.c_bool),
]


class tarn_chat_message(c.Structure):
    role: Optional[Bytes]
    content: Optional[Bytes]


tarn_chat_message._fields_ = [
    ("role", c.c_char_p),
    ("content", c.c_char_p),
]


class tarn_chat_options(c.Structure):
    add_generation_prompt: bool
    tools: Optional[Bytes]
    documents: Optional[Bytes]
    variables: Optional[Bytes]


tarn_chat_options._fields_ = [
    ("add_generation_prompt", c.c_bool),
    ("tools", c.c_char_p),
    ("documents", c.c_char_p),
    ("variables", c.c_char_p),
]


class tarn_tool_call(c.Structure):
    name: Optional[Bytes]
    name_length: int
    arguments: Optional[Bytes]
    arguments_length: int
    begin: int
    end: int


tarn_tool_call._fields_ = [
    ("name", c.c_char_p),
    ("name_length", c.c_size_t),
    ("arguments", c.c_char_p),
    ("arguments_length", c.c_size_t),
    ("begin", c.c_size_t),
    ("end", c.c_size_t),
]


class tarn_stream_options(c.Structure):
    continues: bool
    skip_special: bool


tarn_stream_options._fields_ = [
    ("continues", c.c_bool),
    ("skip_special", c.c_bool),
]


class tarn_bpe_options(c.Structure):
    special: Any
    special_count: int
    pattern: Optional[Bytes]
    min_frequency: int
    ties: int
    no_special: bool
    json_lines: bool
    field: Optional[Bytes]


tarn_bpe_options._fields_ = [
    ("special", c.POINTER(c.c_char_p)),
    ("special_count", c.c_int),
    ("pattern", c.c_char_p),
    ("min_frequency", c.c_int64),
    ("ties", c.c_int),
    ("no_special", c.c_bool),
    ("json_lines", c.c_bool),
    ("field", c.c_char_p),
]

tarn_shards_progress_fn = c.CFUNCTYPE(c.c_bool, c.c_int64, c.c_int64, c.c_void_p)


class tarn_shards_options(c.Structure):
    val_fraction: float
    shard_tokens: int
    field: Optional[Bytes]
    separator: Optional[Bytes]
    no_separator: bool
    json_lines: bool
    parse_special: bool
    progress_ctx: Optional[int]
    progress: Any


tarn_shards_options._fields_ = [
    ("val_fraction", c.c_double),
    ("shard_tokens", c.c_int64),
    ("field", c.c_char_p),
    ("separator", c.c_char_p),
    ("no_separator", c.c_bool),
    ("json_lines", c.c_bool),
    ("parse_special", c.c_bool),
    ("progress_ctx", c.c_void_p),
    ("progress", tarn_shards_progress_fn),
]


class tarn_shards_summary(c.Structure):
    documents: int
    bytes: int
    train_tokens: int
    valid_tokens: int
    train_files: int
    valid_files: int


tarn_shards_summary._fields_ = [
    ("documents", c.c_int64),
    ("bytes", c.c_int64),
    ("train_tokens", c.c_int64),
    ("valid_tokens", c.c_int64),
    ("train_files", c.c_int),
    ("valid_files", c.c_int),
]


class tarn_train_options(c.Structure):
    model: Any
    data: Any
    mlp_sizes: Any
    mlp_size_count: int
    epochs: int
    steps: int
    batch_size: int
    optimizer: Any
    lr: float
    weight_decay: float
    momentum: float
    schedule: Any
    warmup: int
    clip_norm: float
    augment: bool
    label_smoothing: float
    seed: int
    device: Any
    workers: int
    out: Any
    patience: int
    eval_every: int
    log_every: int
    min_lr: float
    beta2: float
    tokenizer: Any
    layers: int
    heads: int
    hidden_size: int
    context: int
    vocab_size: int
    dropout: float
    micro_batch: int
    eval_batches: int
    sample: int
    keep: int
    precision: Any
    recompute: Any
    capture: Any
    lr_step: int
    lr_step_epochs: int
    lr_gamma: float
    kv_heads: int
    ffn_size: int
    base: Any
    lora: int
    lora_alpha: float
    lora_dropout: float
    lora_targets: Any
    lora_modules_to_save: Any
    quantize: Any
    merge: Any
    chat_template: Any
    val: Any
    val_fraction: float
    overwrite: bool
    ignore_memory: bool
    image_size: int
    grey: bool
    crop_scale: float
    jitter: float
    virtual_ranks: int
    zero: Any
    sync_batchnorm: bool
    rank_timeout: float
    overlap: Any
    reduce: Any
    bucket_size: float
    comm: Optional[int]
    finetune: Any
    freeze: bool
    add_tokens: Any
    target: Any
    drop: Any
    task: Any
    delimiter: Any
    decimal: Any
    header: Any
    ema: float


tarn_train_options._fields_ = [
    ("model", c.c_char * 16),
    ("data", c.c_char * 1024),
    ("mlp_sizes", c.c_int64 * 8),
    ("mlp_size_count", c.c_int),
    ("epochs", c.c_int64),
    ("steps", c.c_int64),
    ("batch_size", c.c_int64),
    ("optimizer", c.c_char * 16),
    ("lr", c.c_double),
    ("weight_decay", c.c_double),
    ("momentum", c.c_double),
    ("schedule", c.c_char * 16),
    ("warmup", c.c_int64),
    ("clip_norm", c.c_double),
    ("augment", c.c_bool),
    ("label_smoothing", c.c_double),
    ("seed", c.c_int64),
    ("device", c.c_char * 32),
    ("workers", c.c_int64),
    ("out", c.c_char * 1024),
    ("patience", c.c_int64),
    ("eval_every", c.c_int64),
    ("log_every", c.c_int64),
    ("min_lr", c.c_double),
    ("beta2", c.c_double),
    ("tokenizer", c.c_char * 1024),
    ("layers", c.c_int64),
    ("heads", c.c_int64),
    ("hidden_size", c.c_int64),
    ("context", c.c_int64),
    ("vocab_size", c.c_int64),
    ("dropout", c.c_double),
    ("micro_batch", c.c_int64),
    ("eval_batches", c.c_int64),
    ("sample", c.c_int64),
    ("keep", c.c_int64),
    ("precision", c.c_char * 8),
    ("recompute", c.c_char * 16),
    ("capture", c.c_char * 8),
    ("lr_step", c.c_int64),
    ("lr_step_epochs", c.c_int64),
    ("lr_gamma", c.c_double),
    ("kv_heads", c.c_int64),
    ("ffn_size", c.c_int64),
    ("base", c.c_char * 1024),
    ("lora", c.c_int64),
    ("lora_alpha", c.c_double),
    ("lora_dropout", c.c_double),
    ("lora_targets", c.c_char * 256),
    ("lora_modules_to_save", c.c_char * 256),
    ("quantize", c.c_char * 8),
    ("merge", c.c_char * 8),
    ("chat_template", c.c_char * 16),
    ("val", c.c_char * 1024),
    ("val_fraction", c.c_double),
    ("overwrite", c.c_bool),
    ("ignore_memory", c.c_bool),
    ("image_size", c.c_int64),
    ("grey", c.c_bool),
    ("crop_scale", c.c_double),
    ("jitter", c.c_double),
    ("virtual_ranks", c.c_int64),
    ("zero", c.c_char * 16),
    ("sync_batchnorm", c.c_bool),
    ("rank_timeout", c.c_double),
    ("overlap", c.c_char * 16),
    ("reduce", c.c_char * 16),
    ("bucket_size", c.c_double),
    ("comm", c.c_void_p),
    ("finetune", c.c_char * 1024),
    ("freeze", c.c_bool),
    ("add_tokens", c.c_char * 1024),
    ("target", c.c_char * 256),
    ("drop", c.c_char * 1024),
    ("task", c.c_char * 16),
    ("delimiter", c.c_char * 16),
    ("decimal", c.c_char * 8),
    ("header", c.c_char * 8),
    ("ema", c.c_double),
]


class tarn_option(c.Structure):
    name: Optional[Bytes]
    type: int
    low: float
    high: float
    default_value: Optional[Bytes]
    value: Optional[Bytes]
    help: Optional[Bytes]
    resumable: bool
    alias: Optional[Bytes]
    in_bench: bool


tarn_option._fields_ = [
    ("name", c.c_char_p),
    ("type", c.c_int),
    ("low", c.c_double),
    ("high", c.c_double),
    ("default_value", c.c_char_p),
    ("value", c.c_char_p),
    ("help", c.c_char_p),
    ("resumable", c.c_bool),
    ("alias", c.c_char_p),
    ("in_bench", c.c_bool),
]


class tarn_train_fit(c.Structure):
    settings: Any
    memory_needed: int


tarn_train_fit._fields_ = [
    ("settings", c.c_char * 96),
    ("memory_needed", c.c_int64),
]


class tarn_train_plan(c.Structure):
    options: Any
    device: Any
    folder: Any
    input: Any
    classes: int
    training_samples: int
    validation_samples: int
    trained: int
    frozen: int
    memory_needed: int
    memory_free: int
    first_step: int
    steps: int
    steps_in_epoch: int
    task: Optional[Bytes]
    sample_name: Optional[Bytes]
    step_samples: int
    training_tokens: int
    validation_tokens: int
    captures: bool
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    activation_bytes: int
    training_documents: int
    validation_documents: int
    completion_tokens: int
    documents_truncated: int
    chosen: Any
    memory_min: int
    fits: Any
    fit_count: int
    skipped_files: int
    ranks: int
    virtual_ranks: int
    is_sharded: bool
    overlaps: bool
    notes: Any


tarn_train_plan._fields_ = [
    ("options", tarn_train_options),
    ("device", c.c_char * 32),
    ("folder", c.c_char * 1024),
    ("input", tarn_shape),
    ("classes", c.c_int64),
    ("training_samples", c.c_int64),
    ("validation_samples", c.c_int64),
    ("trained", c.c_int64),
    ("frozen", c.c_int64),
    ("memory_needed", c.c_int64),
    ("memory_free", c.c_int64),
    ("first_step", c.c_int64),
    ("steps", c.c_int64),
    ("steps_in_epoch", c.c_int64),
    ("task", c.c_char_p),
    ("sample_name", c.c_char_p),
    ("step_samples", c.c_int64),
    ("training_tokens", c.c_int64),
    ("validation_tokens", c.c_int64),
    ("captures", c.c_bool),
    ("weight_bytes", c.c_int64),
    ("gradient_bytes", c.c_int64),
    ("state_bytes", c.c_int64),
    ("activation_bytes", c.c_int64),
    ("training_documents", c.c_int64),
    ("validation_documents", c.c_int64),
    ("completion_tokens", c.c_int64),
    ("documents_truncated", c.c_int64),
    ("chosen", c.c_char * 256),
    ("memory_min", c.c_int64),
    ("fits", tarn_train_fit * 6),
    ("fit_count", c.c_int),
    ("skipped_files", c.c_int64),
    ("ranks", c.c_int),
    ("virtual_ranks", c.c_int64),
    ("is_sharded", c.c_bool),
    ("overlaps", c.c_bool),
    ("notes", c.c_char * 2048),
]


class tarn_train_metric(c.Structure):
    name: Any
    label: Any
    unit: Any
    decimals: int
    json_decimals: int
    rank: int
    higher_is_better: bool
    value: float


tarn_train_metric._fields_ = [
    ("name", c.c_char * 32),
    ("label", c.c_char * 32),
    ("unit", c.c_char * 16),
    ("decimals", c.c_int),
    ("json_decimals", c.c_int),
    ("rank", c.c_int),
    ("higher_is_better", c.c_bool),
    ("value", c.c_double),
]


class tarn_train_report(c.Structure):
    kind: int
    step: int
    steps: int
    epoch: int
    epochs: int
    task: Optional[Bytes]
    metrics: Any
    metric_count: int
    loss: float
    accuracy: float
    lr: float
    images_per_second: float
    seconds: float
    is_best: bool
    tokens_per_second: float
    gradient_norm: float
    memory: int
    utilization: float
    mfu: float
    val_loss: float
    eta: float
    text: Optional[Bytes]
    text_length: int
    unit: Optional[Bytes]
    rmse: float
    mae: float
    r2: float


tarn_train_report._fields_ = [
    ("kind", c.c_int),
    ("step", c.c_int64),
    ("steps", c.c_int64),
    ("epoch", c.c_int64),
    ("epochs", c.c_int64),
    ("task", c.c_char_p),
    ("metrics", tarn_train_metric * 8),
    ("metric_count", c.c_int),
    ("loss", c.c_double),
    ("accuracy", c.c_double),
    ("lr", c.c_double),
    ("images_per_second", c.c_double),
    ("seconds", c.c_double),
    ("is_best", c.c_bool),
    ("tokens_per_second", c.c_double),
    ("gradient_norm", c.c_double),
    ("memory", c.c_int64),
    ("utilization", c.c_double),
    ("mfu", c.c_double),
    ("val_loss", c.c_double),
    ("eta", c.c_double),
    ("text", c.c_char_p),
    ("text_length", c.c_size_t),
    ("unit", c.c_char_p),
    ("rmse", c.c_double),
    ("mae", c.c_double),
    ("r2", c.c_double),
]


class tarn_train_result(c.Structure):
    end: int
    step: int
    best_step: int
    best_loss: float
    best_accuracy: float
    seconds: float
    profiled: int
    best: Any
    best_count: int


tarn_train_result._fields_ = [
    ("end", c.c_int),
    ("step", c.c_int64),
    ("best_step", c.c_int64),
    ("best_loss", c.c_double),
    ("best_accuracy", c.c_double),
    ("seconds", c.c_double),
    ("profiled", c.c_int64),
    ("best", tarn_train_metric * 8),
    ("best_count", c.c_int),
]


class tarn_train_progress(c.Structure):
    phase: int
    step: int
    steps: int
    fraction: float


tarn_train_progress._fields_ = [
    ("phase", c.c_int),
    ("step", c.c_int64),
    ("steps", c.c_int64),
    ("fraction", c.c_double),
]


class tarn_train_timing(c.Structure):
    options: Any
    samples: int
    tokens: int
    parameters: int
    flops: float
    is_captured: bool
    step_ms: float
    min_step_ms: float
    batch_ms: float
    forward_ms: float
    backward_ms: float
    update_ms: float
    host_ms: float
    utilization: float
    memory: Any
    frozen: int


tarn_train_timing._fields_ = [
    ("options", tarn_train_options),
    ("samples", c.c_int64),
    ("tokens", c.c_int64),
    ("parameters", c.c_int64),
    ("flops", c.c_double),
    ("is_captured", c.c_bool),
    ("step_ms", c.c_double),
    ("min_step_ms", c.c_double),
    ("batch_ms", c.c_double),
    ("forward_ms", c.c_double),
    ("backward_ms", c.c_double),
    ("update_ms", c.c_double),
    ("host_ms", c.c_double),
    ("utilization", c.c_double),
    ("memory", tarn_memory_kinds),
    ("frozen", c.c_int64),
]


class tarn_evaluation(c.Structure):
    samples: int
    loss: float
    accuracy: float


tarn_evaluation._fields_ = [
    ("samples", c.c_int64),
    ("loss", c.c_double),
    ("accuracy", c.c_double),
]


class tarn_text_evaluation(c.Structure):
    tokens: int
    loss: float
    perplexity: float


tarn_text_evaluation._fields_ = [
    ("tokens", c.c_int64),
    ("loss", c.c_double),
    ("perplexity", c.c_double),
]


class tarn_run_weights(c.Structure):
    is_run: bool
    checkpoint: int
    step: int
    quantize: int
    path: Any
    ema: float


tarn_run_weights._fields_ = [
    ("is_run", c.c_bool),
    ("checkpoint", c.c_int),
    ("step", c.c_int64),
    ("quantize", c.c_int),
    ("path", c.c_char * 1100),
    ("ema", c.c_double),
]


class tarn_run_open_options(c.Structure):
    device_layers: int
    chat_template: Optional[Bytes]
    checkpoint: int
    split: Any
    comm: Optional[int]


tarn_run_open_options._fields_ = [
    ("device_layers", c.c_int64),
    ("chat_template", c.c_char_p),
    ("checkpoint", c.c_int),
    ("split", c.POINTER(tarn_model_split)),
    ("comm", c.c_void_p),
]


class tarn_chat_dataset_options(c.Structure):
    path: Optional[Bytes]
    tokenizer: Optional[int]
    template_name: Optional[Bytes]
    val_path: Optional[Bytes]
    val_fraction: float
    context: int
    seed: int


tarn_chat_dataset_options._fields_ = [
    ("path", c.c_char_p),
    ("tokenizer", c.c_void_p),
    ("template_name", c.c_char_p),
    ("val_path", c.c_char_p),
    ("val_fraction", c.c_double),
    ("context", c.c_int64),
    ("seed", c.c_uint64),
]


class tarn_chat_dataset_counts(c.Structure):
    documents: Any
    tokens: Any
    completion_tokens: Any
    rows: Any
    truncated: int
    hash: int
    formats: Any


tarn_chat_dataset_counts._fields_ = [
    ("documents", c.c_int64 * 2),
    ("tokens", c.c_int64 * 2),
    ("completion_tokens", c.c_int64 * 2),
    ("rows", c.c_int64 * 2),
    ("truncated", c.c_int64),
    ("hash", c.c_uint64),
    ("formats", c.c_char * 256),
]


class tarn_chat_dataset_rows(c.Structure):
    ids: Any
    targets: Any
    positions: Any
    document_starts: Any


tarn_chat_dataset_rows._fields_ = [
    ("ids", c.POINTER(c.c_int32)),
    ("targets", c.POINTER(c.c_int32)),
    ("positions", c.POINTER(c.c_int32)),
    ("document_starts", c.POINTER(c.c_int32)),
]

tarn_checkpoint_fn = c.CFUNCTYPE(c.c_void_p, c.POINTER(c.c_void_p), c.c_int, c.c_void_p)

tarn_backward_fn = c.CFUNCTYPE(c.c_bool, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p), c.c_void_p)

tarn_backward_saved_fn = c.CFUNCTYPE(c.c_bool, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p), c.POINTER(c.c_void_p), c.c_void_p)

tarn_log_fn = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)

tarn_get_fn = c.CFUNCTYPE(c.c_bool, c.c_int64, c.POINTER(c.c_void_p), c.c_void_p)

tarn_capsule_is_valid_fn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p)

tarn_capsule_get_pointer_fn = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)

tarn_step_fn = c.CFUNCTYPE(c.c_bool, c.c_void_p)

tarn_forward_fn = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p)

tarn_module_visit_fn = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_char_p, c.c_void_p)

tarn_comm_notice_fn = c.CFUNCTYPE(None, c.c_char_p, c.c_void_p)

tarn_prediction_fn = c.CFUNCTYPE(c.c_bool, c.POINTER(tarn_prediction), c.c_void_p)

tarn_logged_run_fn = c.CFUNCTYPE(None, c.POINTER(tarn_logged_run), c.c_void_p)

tarn_write_fn = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_size_t, c.c_void_p)

tarn_report_fn = c.CFUNCTYPE(None, c.POINTER(tarn_train_report), c.c_void_p)

STRUCTS: Dict[str, Any] = {
    "tarn_backward_options": tarn_backward_options,
    "tarn_gradcheck_options": tarn_gradcheck_options,
    "tarn_allocator": tarn_allocator,
    "tarn_convert_options": tarn_convert_options,
    "tarn_convert_summary": tarn_convert_summary,
    "tarn_field": tarn_field,
    "tarn_csv_options": tarn_csv_options,
    "tarn_images_options": tarn_images_options,
    "tarn_table_options": tarn_table_options,
    "tarn_table_info": tarn_table_info,
    "tarn_column_info": tarn_column_info,
    "tarn_table_encoder_options": tarn_table_encoder_options,
    "tarn_table_encoder_info": tarn_table_encoder_info,
    "tarn_random_state": tarn_random_state,
    "tarn_loader_options": tarn_loader_options,
    "tarn_loader_state": tarn_loader_state,
    "tarn_device": tarn_device,
    "tarn_device_info": tarn_device_info,
    "tarn_engine_options": tarn_engine_options,
    "tarn_engine_output": tarn_engine_output,
    "tarn_engine_stats": tarn_engine_stats,
    "tarn_engine_request": tarn_engine_request,
    "tarn_decoder_options": tarn_decoder_options,
    "tarn_logit_bias": tarn_logit_bias,
    "tarn_sampler_options": tarn_sampler_options,
    "tarn_generate_options": tarn_generate_options,
    "tarn_generator_options": tarn_generator_options,
    "tarn_candidate": tarn_candidate,
    "tarn_output": tarn_output,
    "tarn_generator_stats": tarn_generator_stats,
    "tarn_embedder_options": tarn_embedder_options,
    "tarn_model_split_options": tarn_model_split_options,
    "tarn_decode_options": tarn_decode_options,
    "tarn_decode_timing": tarn_decode_timing,
    "tarn_gguf_entry": tarn_gguf_entry,
    "tarn_gguf_value": tarn_gguf_value,
    "tarn_grammar_vocab_options": tarn_grammar_vocab_options,
    "tarn_lora_options": tarn_lora_options,
    "tarn_resnet20_options": tarn_resnet20_options,
    "tarn_resnet_options": tarn_resnet_options,
    "tarn_model_info": tarn_model_info,
    "tarn_model_split": tarn_model_split,
    "tarn_lm_layers": tarn_lm_layers,
    "tarn_lm_config": tarn_lm_config,
    "tarn_gpt2_config": tarn_gpt2_config,
    "tarn_llama_config": tarn_llama_config,
    "tarn_model_open_options": tarn_model_open_options,
    "tarn_linear_options": tarn_linear_options,
    "tarn_embedding_options": tarn_embedding_options,
    "tarn_norm_options": tarn_norm_options,
    "tarn_conv2d_layer_options": tarn_conv2d_layer_options,
    "tarn_conv_transpose2d_layer_options": tarn_conv_transpose2d_layer_options,
    "tarn_conv1d_layer_options": tarn_conv1d_layer_options,
    "tarn_instancenorm_options": tarn_instancenorm_options,
    "tarn_batchnorm2d_options": tarn_batchnorm2d_options,
    "tarn_recurrent_options": tarn_recurrent_options,
    "tarn_recurrent_state": tarn_recurrent_state,
    "tarn_module_load_options": tarn_module_load_options,
    "tarn_attention_options": tarn_attention_options,
    "tarn_rope_options": tarn_rope_options,
    "tarn_conv2d_options": tarn_conv2d_options,
    "tarn_conv_transpose2d_options": tarn_conv_transpose2d_options,
    "tarn_conv1d_options": tarn_conv1d_options,
    "tarn_pool2d_options": tarn_pool2d_options,
    "tarn_upsample_options": tarn_upsample_options,
    "tarn_batchnorm_options": tarn_batchnorm_options,
    "tarn_cross_entropy_options": tarn_cross_entropy_options,
    "tarn_attribute": tarn_attribute,
    "tarn_op_info": tarn_op_info,
    "tarn_kernel_variant": tarn_kernel_variant,
    "tarn_array": tarn_array,
    "tarn_parameter_group": tarn_parameter_group,
    "tarn_sgd_options": tarn_sgd_options,
    "tarn_adam_options": tarn_adam_options,
    "tarn_adamw_options": tarn_adamw_options,
    "tarn_schedule": tarn_schedule,
    "tarn_ema_options": tarn_ema_options,
    "tarn_prediction": tarn_prediction,
    "tarn_counters": tarn_counters,
    "tarn_memory": tarn_memory,
    "tarn_memory_kinds": tarn_memory_kinds,
    "tarn_profile_record": tarn_profile_record,
    "tarn_profile_summary": tarn_profile_summary,
    "tarn_profile_row": tarn_profile_row,
    "tarn_logged_run": tarn_logged_run,
    "tarn_safetensors_entry": tarn_safetensors_entry,
    "tarn_regression_evaluation": tarn_regression_evaluation,
    "tarn_shape": tarn_shape,
    "tarn_axes": tarn_axes,
    "tarn_encode_options": tarn_encode_options,
    "tarn_chat_message": tarn_chat_message,
    "tarn_chat_options": tarn_chat_options,
    "tarn_tool_call": tarn_tool_call,
    "tarn_stream_options": tarn_stream_options,
    "tarn_bpe_options": tarn_bpe_options,
    "tarn_shards_options": tarn_shards_options,
    "tarn_shards_summary": tarn_shards_summary,
    "tarn_train_options": tarn_train_options,
    "tarn_option": tarn_option,
    "tarn_train_fit": tarn_train_fit,
    "tarn_train_plan": tarn_train_plan,
    "tarn_train_metric": tarn_train_metric,
    "tarn_train_report": tarn_train_report,
    "tarn_train_result": tarn_train_result,
    "tarn_train_progress": tarn_train_progress,
    "tarn_train_timing": tarn_train_timing,
    "tarn_evaluation": tarn_evaluation,
    "tarn_text_evaluation": tarn_text_evaluation,
    "tarn_run_weights": tarn_run_weights,
    "tarn_run_open_options": tarn_run_open_options,
    "tarn_chat_dataset_options": tarn_chat_dataset_options,
    "tarn_chat_dataset_counts": tarn_chat_dataset_counts,
    "tarn_chat_dataset_rows": tarn_chat_dataset_rows,
}

PROTOTYPES: Dict[str, Prototype] = {
    "tarn_requires_grad": (c.c_void_p, [c.c_void_p, c.c_bool]),
    "tarn_needs_grad": (c.c_bool, [c.c_void_p]),
    "tarn_backward": (c.c_bool, [c.c_void_p]),
    "tarn_backward_from_sized": (c.c_bool, [c.c_void_p, c.c_void_p, c.POINTER(tarn_backward_options), c.c_size_t]),
    "tarn_grad": (c.c_void_p, [c.c_void_p]),
    "tarn_zero_grad": (None, [c.c_void_p]),
    "tarn_detach": (c.c_void_p, [c.c_void_p]),
    "tarn_no_grad_open": (None, []),
    "tarn_no_grad_close": (None, []),
    "tarn_grad_enabled": (c.c_bool, []),
    "tarn_set_anomaly": (None, [c.c_bool]),
    "tarn_checkpoint": (c.c_void_p, [tarn_checkpoint_fn, c.c_void_p, c.POINTER(c.c_void_p), c.c_int]),
    "tarn_function": (c.c_bool, [c.POINTER(c.c_void_p), c.c_int, c.POINTER(c.c_void_p), c.c_int, tarn_backward_fn, c.c_void_p, c.CFUNCTYPE(None, c.c_void_p)]),
    "tarn_function_save": (c.c_bool, [c.POINTER(c.c_void_p), c.c_int, c.POINTER(c.c_void_p), c.c_int, c.POINTER(c.c_void_p), c.c_int, tarn_backward_saved_fn, c.c_void_p, c.CFUNCTYPE(None, c.c_void_p)]),
    "tarn_gradcheck_sized": (c.c_bool, [tarn_checkpoint_fn, c.c_void_p, c.POINTER(c.c_void_p), c.c_int, c.POINTER(tarn_gradcheck_options), c.c_size_t]),
    "tarn_version": (c.c_char_p, []),
    "tarn_failed": (c.c_bool, []),
    "tarn_error": (c.c_char_p, []),
    "tarn_error_code": (c.c_int, []),
    "tarn_code_name": (c.c_char_p, [c.c_int]),
    "tarn_clear_error": (None, []),
    "tarn_set_error": (c.c_bool, [c.c_int, c.c_char_p]),
    "tarn_suggest": (c.c_char_p, [c.c_char_p, c.POINTER(c.c_char_p), c.c_int]),
    "tarn_string_escape": (c.c_size_t, [c.c_void_p, c.c_size_t, c.c_char_p, c.c_size_t, c.c_bool]),
    "tarn_set_log": (None, [tarn_log_fn, c.c_void_p]),
    "tarn_log_stderr": (None, [c.c_int, c.c_char_p, c.c_void_p]),
    "tarn_set_allocator": (c.c_bool, [c.POINTER(tarn_allocator)]),
    "tarn_set_threads": (c.c_bool, [c.c_int]),
    "tarn_threads": (c.c_int, []),
    "tarn_model_convert_sized": (c.c_bool, [c.c_char_p, c.c_char_p, c.POINTER(tarn_convert_summary), c.POINTER(tarn_convert_options), c.c_size_t]),
    "tarn_convert_mixture_at": (c.c_char_p, [c.c_int]),
    "tarn_dataset_new": (c.c_void_p, [c.POINTER(tarn_field), c.c_int, c.c_int64, tarn_get_fn, c.c_void_p, c.CFUNCTYPE(None, c.c_void_p)]),
    "tarn_dataset_from_arrays": (c.c_void_p, [c.POINTER(c.c_char_p), c.POINTER(tarn_array), c.c_int]),
    "tarn_dataset_idx": (c.c_void_p, [c.c_char_p, c.c_char_p]),
    "tarn_dataset_mnist": (c.c_void_p, [c.c_char_p, c.c_bool]),
    "tarn_dataset_cifar10": (c.c_void_p, [c.POINTER(c.c_char_p), c.c_int]),
    "tarn_dataset_cifar10_folder": (c.c_void_p, [c.c_char_p, c.c_bool]),
    "tarn_dataset_digits": (c.c_void_p, [c.c_int64, c.c_uint64]),
    "tarn_dataset_csv_sized": (c.c_void_p, [c.c_char_p, c.POINTER(tarn_csv_options), c.c_size_t]),
    "tarn_dataset_npy": (c.c_void_p, [c.POINTER(c.c_char_p), c.POINTER(c.c_char_p), c.c_int]),
    "tarn_npy_load": (c.c_bool, [c.c_char_p, c.POINTER(tarn_array)]),
    "tarn_image_load": (c.c_bool, [c.c_char_p, c.POINTER(tarn_array)]),
    "tarn_image_resize": (c.c_bool, [c.POINTER(tarn_array), c.c_int64, c.c_int64, c.POINTER(tarn_array)]),
    "tarn_image_convert": (c.c_bool, [c.POINTER(tarn_array), c.c_int64, c.POINTER(tarn_array)]),
    "tarn_image_load_square": (c.c_bool, [c.c_char_p, c.c_int64, c.c_int64, c.POINTER(tarn_array)]),
    "tarn_dataset_images_sized": (c.c_void_p, [c.c_char_p, c.POINTER(tarn_images_options), c.c_size_t]),
    "tarn_dataset_class_count": (c.c_int64, [c.c_void_p]),
    "tarn_dataset_class_name": (c.c_char_p, [c.c_void_p, c.c_int64]),
    "tarn_dataset_skipped_count": (c.c_int64, [c.c_void_p]),
    "tarn_dataset_skipped": (c.c_char_p, [c.c_void_p, c.c_int64]),
    "tarn_dataset_subset": (c.c_void_p, [c.c_void_p, c.POINTER(c.c_int64), c.c_int64]),
    "tarn_dataset_split": (c.c_bool, [c.c_void_p, c.c_int64, c.c_uint64, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "tarn_dataset_count": (c.c_int64, [c.c_void_p]),
    "tarn_dataset_field_count": (c.c_int, [c.c_void_p]),
    "tarn_dataset_field": (c.c_bool, [c.c_void_p, c.c_int, c.POINTER(tarn_field)]),
    "tarn_dataset_read": (c.c_bool, [c.c_void_p, c.c_int64, c.POINTER(c.c_void_p)]),
    "tarn_dataset_free": (None, [c.c_void_p]),
    "tarn_table_open_sized": (c.c_void_p, [c.c_char_p, c.POINTER(tarn_table_options), c.c_size_t]),
    "tarn_table_query": (c.c_bool, [c.c_void_p, c.POINTER(tarn_table_info)]),
    "tarn_table_column": (c.c_bool, [c.c_void_p, c.c_int, c.POINTER(tarn_column_info)]),
    "tarn_table_free": (None, [c.c_void_p]),
    "tarn_table_encoder_new_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_table_encoder_options), c.c_size_t]),
    "tarn_table_encoder_query": (c.c_bool, [c.c_void_p, c.POINTER(tarn_table_encoder_info)]),
    "tarn_table_encoder_class": (c.c_char_p, [c.c_void_p, c.c_int64]),
    "tarn_table_encoder_free": (None, [c.c_void_p]),
    "tarn_dataset_table": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_int]),
    "tarn_random_below": (c.c_int64, [c.POINTER(tarn_random_state), c.c_int64]),
    "tarn_random_unit": (c.c_double, [c.POINTER(tarn_random_state)]),
    "tarn_loader_new_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_loader_options), c.c_size_t]),
    "tarn_loader_next": (c.c_bool, [c.c_void_p, c.POINTER(c.c_void_p)]),
    "tarn_loader_batches": (c.c_int64, [c.c_void_p]),
    "tarn_loader_tell": (c.c_bool, [c.c_void_p, c.POINTER(tarn_loader_state)]),
    "tarn_loader_seek": (c.c_bool, [c.c_void_p, tarn_loader_state]),
    "tarn_loader_free": (None, [c.c_void_p]),
    "tarn_device_cpu": (tarn_device, []),
    "tarn_device_auto": (tarn_device, []),
    "tarn_device_parse": (tarn_device, [c.c_char_p]),
    "tarn_device_name": (c.c_void_p, [tarn_device, c.c_void_p, c.c_size_t]),
    "tarn_device_equal": (c.c_bool, [tarn_device, tarn_device]),
    "tarn_backend_name": (c.c_char_p, [c.c_int]),
    "tarn_device_count": (c.c_int, [c.c_char_p]),
    "tarn_backend_missing": (c.c_char_p, [c.c_char_p]),
    "tarn_backend_preferred": (c.c_bool, [c.c_char_p, tarn_device]),
    "tarn_device_query": (c.c_bool, [tarn_device, c.POINTER(tarn_device_info)]),
    "tarn_synchronize": (c.c_bool, [tarn_device]),
    "tarn_event_record": (c.c_void_p, [tarn_device]),
    "tarn_event_wait": (c.c_bool, [c.c_void_p]),
    "tarn_event_elapsed": (c.c_double, [c.c_void_p, c.c_void_p]),
    "tarn_event_free": (None, [c.c_void_p]),
    "tarn_native_stream": (c.c_void_p, [tarn_device]),
    "tarn_empty_cache": (c.c_bool, [tarn_device]),
    "tarn_set_backend_path": (c.c_bool, [c.c_char_p]),
    "tarn_set_fallback": (None, [c.c_int]),
    "tarn_set_pool": (None, [c.c_bool]),
    "tarn_dlpack_export": (c.c_void_p, [c.c_void_p]),
    "tarn_dlpack_export_legacy": (c.c_void_p, [c.c_void_p]),
    "tarn_dlpack_import": (c.c_void_p, [c.c_void_p]),
    "tarn_dlpack_import_legacy": (c.c_void_p, [c.c_void_p]),
    "tarn_dlpack_set_capsule_functions": (c.c_bool, [tarn_capsule_is_valid_fn, tarn_capsule_get_pointer_fn]),
    "tarn_dlpack_capsule_name": (c.c_char_p, [c.c_bool, c.c_bool]),
    "tarn_dlpack_capsule_destroy": (None, [c.c_void_p]),
    "tarn_engine_new_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_engine_options), c.c_size_t]),
    "tarn_engine_add_adapter": (c.c_int64, [c.c_void_p, c.c_char_p]),
    "tarn_engine_add_sized": (c.c_int64, [c.c_void_p, c.POINTER(c.c_int32), c.c_int64, c.POINTER(tarn_generate_options), c.c_size_t]),
    "tarn_engine_step": (c.c_int64, [c.c_void_p]),
    "tarn_engine_next_sized": (c.c_bool, [c.c_void_p, c.POINTER(tarn_engine_output), c.c_size_t]),
    "tarn_engine_cancel": (c.c_bool, [c.c_void_p, c.c_int64]),
    "tarn_engine_wait": (c.c_bool, [c.c_void_p, c.c_double]),
    "tarn_engine_wake": (c.c_bool, [c.c_void_p]),
    "tarn_engine_query_sized": (c.c_bool, [c.c_void_p, c.POINTER(tarn_engine_stats), c.c_size_t]),
    "tarn_engine_requests_sized": (c.c_int64, [c.c_void_p, c.POINTER(tarn_engine_request), c.c_int64, c.c_size_t]),
    "tarn_engine_free": (None, [c.c_void_p]),
    "tarn_kv_type_name": (c.c_char_p, [c.c_int]),
    "tarn_kv_type_parse": (c.c_bool, [c.c_char_p, c.POINTER(c.c_int)]),
    "tarn_decoder_new_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_decoder_options), c.c_size_t]),
    "tarn_decoder_feed": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_decoder_feed_one": (c.c_void_p, [c.c_void_p, c.c_int64, c.c_void_p]),
    "tarn_decoder_length": (c.c_int64, [c.c_void_p]),
    "tarn_decoder_length_of": (c.c_int64, [c.c_void_p, c.c_int64]),
    "tarn_decoder_capacity": (c.c_int64, [c.c_void_p]),
    "tarn_decoder_rewind": (c.c_bool, [c.c_void_p, c.c_int64]),
    "tarn_decoder_rewind_one": (c.c_bool, [c.c_void_p, c.c_int64, c.c_int64]),
    "tarn_decoder_free": (None, [c.c_void_p]),
    "tarn_sampler_new_sized": (c.c_void_p, [c.POINTER(tarn_sampler_options), c.c_size_t]),
    "tarn_sampler_accept": (c.c_bool, [c.c_void_p, c.c_void_p]),
    "tarn_sampler_reset": (c.c_bool, [c.c_void_p]),
    "tarn_sampler_mask": (c.c_bool, [c.c_void_p, c.POINTER(c.c_uint32), c.c_int64, c.c_int64]),
    "tarn_sampler_sample": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_token_logprobs": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_int64]),
    "tarn_sampler_free": (None, [c.c_void_p]),
    "tarn_generate_sized": (c.c_int64, [c.c_void_p, c.POINTER(c.c_int32), c.c_int64, c.POINTER(c.c_int32), c.POINTER(tarn_generate_options), c.c_size_t]),
    "tarn_generator_new_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.POINTER(tarn_generator_options), c.c_size_t]),
    "tarn_generator_open_sized": (c.c_void_p, [c.c_char_p, tarn_device, c.POINTER(tarn_generator_options), c.c_size_t]),
    "tarn_generator_model": (c.c_void_p, [c.c_void_p]),
    "tarn_generator_tokenizer": (c.c_void_p, [c.c_void_p]),
    "tarn_generator_prompt_sized": (c.c_bool, [c.c_void_p, c.c_int64, c.POINTER(c.c_int32), c.c_int64, c.POINTER(tarn_generate_options), c.c_size_t]),
    "tarn_generator_prompt_text_sized": (c.c_bool, [c.c_void_p, c.c_int64, c.c_char_p, c.c_size_t, c.POINTER(tarn_generate_options), c.c_size_t]),
    "tarn_generator_next_sized": (c.c_bool, [c.c_void_p, c.POINTER(tarn_output), c.c_size_t]),
    "tarn_generator_tokens": (c.POINTER(c.c_int32), [c.c_void_p, c.c_int64, c.POINTER(c.c_int64)]),
    "tarn_generator_query_sized": (c.c_bool, [c.c_void_p, c.POINTER(tarn_generator_stats), c.c_size_t]),
    "tarn_generator_stop": (c.c_bool, [c.c_void_p, c.c_int64]),
    "tarn_generator_free": (None, [c.c_void_p]),
    "tarn_embedder_new_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_embedder_options), c.c_size_t]),
    "tarn_embedder_begin": (c.c_bool, [c.c_void_p, c.POINTER(c.c_int32), c.c_int64]),
    "tarn_embedder_step": (c.c_int64, [c.c_void_p]),
    "tarn_embedder_read": (c.c_bool, [c.c_void_p, c.POINTER(c.c_float), c.c_int64]),
    "tarn_embedder_free": (None, [c.c_void_p]),
    "tarn_model_plan_split_sized": (c.c_bool, [c.c_char_p, c.POINTER(tarn_device), c.c_int, c.POINTER(tarn_model_split), c.c_size_t, c.POINTER(tarn_model_split_options), c.c_size_t]),
    "tarn_decode_measure_sized": (c.c_bool, [c.POINTER(tarn_decode_timing), c.c_size_t, c.POINTER(tarn_decode_options), c.c_size_t]),
    "tarn_gguf_type_name": (c.c_char_p, [c.c_int]),
    "tarn_gguf_file_type_name": (c.c_char_p, [c.c_int64]),
    "tarn_gguf_open": (c.c_void_p, [c.c_char_p]),
    "tarn_gguf_close": (None, [c.c_void_p]),
    "tarn_gguf_count": (c.c_int, [c.c_void_p]),
    "tarn_gguf_name": (c.c_char_p, [c.c_void_p, c.c_int]),
    "tarn_gguf_info": (c.c_bool, [c.c_void_p, c.c_int, c.POINTER(tarn_gguf_entry)]),
    "tarn_gguf_find": (c.c_int, [c.c_void_p, c.c_char_p]),
    "tarn_gguf_tensor": (c.c_void_p, [c.c_void_p, c.c_int, tarn_device]),
    "tarn_gguf_metadata_count": (c.c_int, [c.c_void_p]),
    "tarn_gguf_metadata_at": (c.c_bool, [c.c_void_p, c.c_int, c.POINTER(tarn_gguf_value)]),
    "tarn_gguf_has": (c.c_bool, [c.c_void_p, c.c_char_p, c.POINTER(tarn_gguf_value)]),
    "tarn_gguf_int": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_int64, c.c_int64, c.POINTER(c.c_int64)]),
    "tarn_gguf_real": (c.c_bool, [c.c_void_p, c.c_char_p, c.POINTER(c.c_double)]),
    "tarn_gguf_bool": (c.c_bool, [c.c_void_p, c.c_char_p, c.POINTER(c.c_bool)]),
    "tarn_gguf_string": (c.c_char_p, [c.c_void_p, c.c_char_p, c.POINTER(c.c_size_t)]),
    "tarn_gguf_ints": (c.c_bool, [c.c_void_p, c.c_char_p, c.POINTER(c.c_int64), c.c_int64]),
    "tarn_gguf_reals": (c.c_bool, [c.c_void_p, c.c_char_p, c.POINTER(c.c_double), c.c_int64]),
    "tarn_gguf_string_at": (c.c_char_p, [c.c_void_p, c.c_char_p, c.c_int64, c.POINTER(c.c_size_t)]),
    "tarn_gguf_create": (c.c_void_p, [c.c_char_p]),
    "tarn_gguf_add_value": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_int, c.c_void_p]),
    "tarn_gguf_add_string": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_char_p, c.c_size_t]),
    "tarn_gguf_add_array": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_int, c.c_void_p, c.c_int64]),
    "tarn_gguf_add_strings": (c.c_bool, [c.c_void_p, c.c_char_p, c.POINTER(c.c_char_p), c.POINTER(c.c_size_t), c.c_int64]),
    "tarn_gguf_add_from": (c.c_bool, [c.c_void_p, c.c_void_p, c.c_int]),
    "tarn_gguf_add": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_void_p]),
    "tarn_gguf_finish": (c.c_bool, [c.c_void_p]),
    "tarn_gguf_cancel": (None, [c.c_void_p]),
    "tarn_grammar_vocab_new_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_grammar_vocab_options), c.c_size_t]),
    "tarn_grammar_vocab_size": (c.c_int64, [c.c_void_p]),
    "tarn_grammar_vocab_free": (None, [c.c_void_p]),
    "tarn_grammar_gbnf": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_size_t]),
    "tarn_grammar_regex": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_size_t]),
    "tarn_grammar_json_schema": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_size_t]),
    "tarn_grammar_json": (c.c_void_p, [c.c_void_p]),
    "tarn_matcher_new": (c.c_void_p, [c.c_void_p]),
    "tarn_matcher_clone": (c.c_void_p, [c.c_void_p]),
    "tarn_matcher_mask": (c.c_bool, [c.c_void_p, c.POINTER(c.c_uint32), c.c_int64]),
    "tarn_matcher_accept": (c.c_bool, [c.c_void_p, c.c_int32]),
    "tarn_matcher_accept_bytes": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_size_t]),
    "tarn_matcher_may_end": (c.c_bool, [c.c_void_p]),
    "tarn_matcher_is_done": (c.c_bool, [c.c_void_p]),
    "tarn_matcher_rollback": (c.c_bool, [c.c_void_p, c.c_int64]),
    "tarn_matcher_free": (None, [c.c_void_p]),
    "tarn_grammar_free": (None, [c.c_void_p]),
    "tarn_graph_capture": (c.c_void_p, [tarn_device, tarn_step_fn, c.c_void_p]),
    "tarn_graph_run": (c.c_bool, [c.c_void_p]),
    "tarn_graph_free": (None, [c.c_void_p]),
    "tarn_lora_add_sized": (c.c_bool, [c.c_void_p, c.POINTER(tarn_lora_options), c.c_size_t]),
    "tarn_lora_has": (c.c_bool, [c.c_void_p]),
    "tarn_lora_merge": (c.c_bool, [c.c_void_p]),
    "tarn_lora_save": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_char_p]),
    "tarn_lora_load": (c.c_bool, [c.c_void_p, c.c_char_p]),
    "tarn_model_mlp": (c.c_void_p, [c.c_int64, c.POINTER(c.c_int64), c.c_int, c.c_int64, tarn_device]),
    "tarn_model_lenet": (c.c_void_p, [c.c_int64, c.c_int64, c.c_int64, c.c_int64, tarn_device]),
    "tarn_model_resnet20": (c.c_void_p, [c.c_int64, tarn_device]),
    "tarn_model_resnet20_with_sized": (c.c_void_p, [c.c_int64, tarn_device, c.POINTER(tarn_resnet20_options), c.c_size_t]),
    "tarn_model_resnet_sized": (c.c_void_p, [c.c_int, c.c_int64, tarn_device, c.POINTER(tarn_resnet_options), c.c_size_t]),
    "tarn_model_loss": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p]),
    "tarn_model_query_sized": (c.c_bool, [c.c_void_p, c.POINTER(tarn_model_info), c.c_size_t]),
    "tarn_model_offload": (c.c_bool, [c.c_void_p, tarn_device, c.c_int64]),
    "tarn_model_split_layers": (c.c_bool, [c.c_void_p, c.POINTER(tarn_model_split)]),
    "tarn_lm_config_named_sized": (c.c_bool, [c.c_char_p, c.POINTER(tarn_lm_config), c.c_size_t]),
    "tarn_model_lm_sized": (c.c_void_p, [c.POINTER(tarn_lm_config), c.c_size_t, tarn_device, c.c_uint64]),
    "tarn_lm_config_of_sized": (c.c_bool, [c.c_void_p, c.POINTER(tarn_lm_config), c.c_size_t]),
    "tarn_gpt2_config_named_sized": (c.c_bool, [c.c_char_p, c.POINTER(tarn_gpt2_config), c.c_size_t]),
    "tarn_model_gpt2_sized": (c.c_void_p, [c.POINTER(tarn_gpt2_config), c.c_size_t, tarn_device, c.c_uint64]),
    "tarn_gpt2_loss": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p]),
    "tarn_gpt2_config_of_sized": (c.c_bool, [c.c_void_p, c.POINTER(tarn_gpt2_config), c.c_size_t]),
    "tarn_llama_config_named_sized": (c.c_bool, [c.c_char_p, c.POINTER(tarn_llama_config), c.c_size_t]),
    "tarn_model_llama_sized": (c.c_void_p, [c.POINTER(tarn_llama_config), c.c_size_t, tarn_device, c.c_uint64]),
    "tarn_llama_config_of_sized": (c.c_bool, [c.c_void_p, c.POINTER(tarn_llama_config), c.c_size_t]),
    "tarn_model_open_sized": (c.c_void_p, [c.c_char_p, tarn_device, c.POINTER(tarn_model_open_options), c.c_size_t]),
    "tarn_model_write": (c.c_bool, [c.c_void_p, c.c_char_p]),
    "tarn_linear": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device]),
    "tarn_linear_with_sized": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device, c.POINTER(tarn_linear_options), c.c_size_t]),
    "tarn_activation": (c.c_void_p, [c.c_int]),
    "tarn_dropout_layer": (c.c_void_p, [c.c_double]),
    "tarn_flatten": (c.c_void_p, [c.c_int]),
    "tarn_embedding_layer": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device]),
    "tarn_embedding_layer_with_sized": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device, c.POINTER(tarn_embedding_options), c.c_size_t]),
    "tarn_layernorm_layer": (c.c_void_p, [c.c_int64, tarn_device]),
    "tarn_rmsnorm_layer": (c.c_void_p, [c.c_int64, tarn_device]),
    "tarn_layernorm_layer_with_sized": (c.c_void_p, [c.c_int64, tarn_device, c.POINTER(tarn_norm_options), c.c_size_t]),
    "tarn_rmsnorm_layer_with_sized": (c.c_void_p, [c.c_int64, tarn_device, c.POINTER(tarn_norm_options), c.c_size_t]),
    "tarn_conv2d_layer": (c.c_void_p, [c.c_int64, c.c_int64, c.c_int64, tarn_device]),
    "tarn_conv2d_layer_with_sized": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device, c.POINTER(tarn_conv2d_layer_options), c.c_size_t]),
    "tarn_conv_transpose2d_layer": (c.c_void_p, [c.c_int64, c.c_int64, c.c_int64, tarn_device]),
    "tarn_conv_transpose2d_layer_with_sized": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device, c.POINTER(tarn_conv_transpose2d_layer_options), c.c_size_t]),
    "tarn_conv1d_layer": (c.c_void_p, [c.c_int64, c.c_int64, c.c_int64, tarn_device]),
    "tarn_conv1d_layer_with_sized": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device, c.POINTER(tarn_conv1d_layer_options), c.c_size_t]),
    "tarn_max_pool2d_layer_sized": (c.c_void_p, [c.POINTER(tarn_pool2d_options), c.c_size_t]),
    "tarn_avg_pool2d_layer_sized": (c.c_void_p, [c.POINTER(tarn_pool2d_options), c.c_size_t]),
    "tarn_global_avg_pool2d_layer": (c.c_void_p, []),
    "tarn_upsample_layer_sized": (c.c_void_p, [c.POINTER(tarn_upsample_options), c.c_size_t]),
    "tarn_groupnorm_layer": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device]),
    "tarn_groupnorm_layer_with_sized": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device, c.POINTER(tarn_norm_options), c.c_size_t]),
    "tarn_instancenorm_layer": (c.c_void_p, [c.c_int64, tarn_device]),
    "tarn_instancenorm_layer_with_sized": (c.c_void_p, [c.c_int64, tarn_device, c.POINTER(tarn_instancenorm_options), c.c_size_t]),
    "tarn_batchnorm2d": (c.c_void_p, [c.c_int64, tarn_device]),
    "tarn_batchnorm2d_with_sized": (c.c_void_p, [c.c_int64, tarn_device, c.POINTER(tarn_batchnorm2d_options), c.c_size_t]),
    "tarn_batchnorm_sync": (c.c_bool, [c.c_void_p, c.c_void_p]),
    "tarn_lstm_layer": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device]),
    "tarn_gru_layer": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device]),
    "tarn_lstm_layer_with_sized": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device, c.POINTER(tarn_recurrent_options), c.c_size_t]),
    "tarn_gru_layer_with_sized": (c.c_void_p, [c.c_int64, c.c_int64, tarn_device, c.POINTER(tarn_recurrent_options), c.c_size_t]),
    "tarn_recurrent_forward": (c.c_void_p, [c.c_void_p, c.c_void_p, c.POINTER(tarn_recurrent_state), c.POINTER(tarn_recurrent_state)]),
    "tarn_residual": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_sequential_from": (c.c_void_p, [c.POINTER(c.c_void_p), c.c_int]),
    "tarn_module_new": (c.c_void_p, [c.c_char_p, tarn_forward_fn, c.c_void_p, c.CFUNCTYPE(None, c.c_void_p)]),
    "tarn_module_add_parameter": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_void_p]),
    "tarn_module_add_buffer": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_void_p]),
    "tarn_module_add_child": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_void_p]),
    "tarn_forward": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_module_train": (c.c_bool, [c.c_void_p, c.c_bool]),
    "tarn_module_is_training": (c.c_bool, [c.c_void_p]),
    "tarn_module_kind": (c.c_char_p, [c.c_void_p]),
    "tarn_module_visit": (c.c_bool, [c.c_void_p, tarn_module_visit_fn, c.c_void_p]),
    "tarn_module_parameter_count": (c.c_int, [c.c_void_p]),
    "tarn_module_element_count": (c.c_int64, [c.c_void_p]),
    "tarn_module_parameter": (c.c_void_p, [c.c_void_p, c.c_int]),
    "tarn_module_parameter_name": (c.c_char_p, [c.c_void_p, c.c_int]),
    "tarn_module_buffer_count": (c.c_int, [c.c_void_p]),
    "tarn_module_buffer": (c.c_void_p, [c.c_void_p, c.c_int]),
    "tarn_module_buffer_name": (c.c_char_p, [c.c_void_p, c.c_int]),
    "tarn_module_find": (c.c_void_p, [c.c_void_p, c.c_char_p]),
    "tarn_module_to": (c.c_bool, [c.c_void_p, tarn_device]),
    "tarn_module_freeze": (c.c_bool, [c.c_void_p, c.c_bool]),
    "tarn_module_save": (c.c_bool, [c.c_void_p, c.c_char_p]),
    "tarn_module_load_sized": (c.c_bool, [c.c_void_p, c.c_char_p, c.POINTER(tarn_module_load_options), c.c_size_t]),
    "tarn_module_summary": (c.c_bool, [c.c_void_p, tarn_shape, c.c_int, c.c_void_p]),
    "tarn_module_summary_string": (c.c_void_p, [c.c_void_p, tarn_shape, c.c_int]),
    "tarn_string_free": (None, [c.c_void_p]),
    "tarn_module_free": (None, [c.c_void_p]),
    "tarn_neg": (c.c_void_p, [c.c_void_p]),
    "tarn_abs": (c.c_void_p, [c.c_void_p]),
    "tarn_sign": (c.c_void_p, [c.c_void_p]),
    "tarn_square": (c.c_void_p, [c.c_void_p]),
    "tarn_sqrt": (c.c_void_p, [c.c_void_p]),
    "tarn_rsqrt": (c.c_void_p, [c.c_void_p]),
    "tarn_recip": (c.c_void_p, [c.c_void_p]),
    "tarn_exp": (c.c_void_p, [c.c_void_p]),
    "tarn_exp2": (c.c_void_p, [c.c_void_p]),
    "tarn_log": (c.c_void_p, [c.c_void_p]),
    "tarn_log2": (c.c_void_p, [c.c_void_p]),
    "tarn_sin": (c.c_void_p, [c.c_void_p]),
    "tarn_cos": (c.c_void_p, [c.c_void_p]),
    "tarn_tanh": (c.c_void_p, [c.c_void_p]),
    "tarn_erf": (c.c_void_p, [c.c_void_p]),
    "tarn_sigmoid": (c.c_void_p, [c.c_void_p]),
    "tarn_relu": (c.c_void_p, [c.c_void_p]),
    "tarn_leaky_relu": (c.c_void_p, [c.c_void_p, c.c_double]),
    "tarn_gelu": (c.c_void_p, [c.c_void_p]),
    "tarn_gelu_erf": (c.c_void_p, [c.c_void_p]),
    "tarn_silu": (c.c_void_p, [c.c_void_p]),
    "tarn_softplus": (c.c_void_p, [c.c_void_p]),
    "tarn_clamp": (c.c_void_p, [c.c_void_p, c.c_double, c.c_double]),
    "tarn_cast": (c.c_void_p, [c.c_void_p, c.c_int]),
    "tarn_add": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_sub": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_mul": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_div": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_maximum": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_minimum": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_mod": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_pow": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_eq": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_ne": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_lt": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_le": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_gt": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_ge": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_where": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p]),
    "tarn_neg_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_abs_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_sign_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_square_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_sqrt_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_rsqrt_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_recip_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_exp_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_exp2_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_log_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_log2_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_sin_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_cos_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_tanh_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_erf_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_sigmoid_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_relu_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_leaky_relu_inplace": (c.c_void_p, [c.c_void_p, c.c_double]),
    "tarn_gelu_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_gelu_erf_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_silu_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_softplus_inplace": (c.c_void_p, [c.c_void_p]),
    "tarn_clamp_inplace": (c.c_void_p, [c.c_void_p, c.c_double, c.c_double]),
    "tarn_add_inplace": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_sub_inplace": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_mul_inplace": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_div_inplace": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_maximum_inplace": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_minimum_inplace": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_mod_inplace": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_pow_inplace": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_fill_inplace": (c.c_void_p, [c.c_void_p, c.c_double]),
    "tarn_sum": (c.c_void_p, [c.c_void_p, tarn_axes, c.c_bool]),
    "tarn_mean": (c.c_void_p, [c.c_void_p, tarn_axes, c.c_bool]),
    "tarn_prod": (c.c_void_p, [c.c_void_p, tarn_axes, c.c_bool]),
    "tarn_max": (c.c_void_p, [c.c_void_p, tarn_axes, c.c_bool]),
    "tarn_min": (c.c_void_p, [c.c_void_p, tarn_axes, c.c_bool]),
    "tarn_argmax": (c.c_void_p, [c.c_void_p, c.c_int, c.c_bool]),
    "tarn_argmin": (c.c_void_p, [c.c_void_p, c.c_int, c.c_bool]),
    "tarn_var": (c.c_void_p, [c.c_void_p, tarn_axes, c.c_double, c.c_bool]),
    "tarn_cumsum": (c.c_void_p, [c.c_void_p, c.c_int]),
    "tarn_reshape": (c.c_void_p, [c.c_void_p, tarn_shape]),
    "tarn_permute": (c.c_void_p, [c.c_void_p, tarn_axes]),
    "tarn_transpose": (c.c_void_p, [c.c_void_p, c.c_int, c.c_int]),
    "tarn_expand": (c.c_void_p, [c.c_void_p, tarn_shape]),
    "tarn_unsqueeze": (c.c_void_p, [c.c_void_p, c.c_int]),
    "tarn_squeeze": (c.c_void_p, [c.c_void_p, c.c_int]),
    "tarn_pad": (c.c_void_p, [c.c_void_p, tarn_shape, tarn_shape, c.c_double]),
    "tarn_shrink": (c.c_void_p, [c.c_void_p, tarn_shape, tarn_shape]),
    "tarn_slice": (c.c_void_p, [c.c_void_p, c.c_int, c.c_int64, c.c_int64]),
    "tarn_stride": (c.c_void_p, [c.c_void_p, tarn_shape]),
    "tarn_flip": (c.c_void_p, [c.c_void_p, tarn_axes]),
    "tarn_contiguous": (c.c_void_p, [c.c_void_p]),
    "tarn_concat": (c.c_void_p, [c.POINTER(c.c_void_p), c.c_int, c.c_int]),
    "tarn_stack": (c.c_void_p, [c.POINTER(c.c_void_p), c.c_int, c.c_int]),
    "tarn_split": (c.c_bool, [c.c_void_p, c.c_int, c.POINTER(c.c_int64), c.c_int, c.POINTER(c.c_void_p)]),
    "tarn_gather": (c.c_void_p, [c.c_void_p, c.c_int, c.c_void_p]),
    "tarn_scatter_add": (c.c_void_p, [c.c_void_p, c.c_int, c.c_void_p, c.c_void_p]),
    "tarn_index_select": (c.c_void_p, [c.c_void_p, c.c_int, c.c_void_p]),
    "tarn_one_hot": (c.c_void_p, [c.c_void_p, c.c_int64, c.c_int]),
    "tarn_embedding": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_topk": (c.c_bool, [c.c_void_p, c.c_int64, c.c_int, c.c_bool, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "tarn_sort": (c.c_bool, [c.c_void_p, c.c_int, c.c_bool, c.POINTER(c.c_void_p), c.POINTER(c.c_void_p)]),
    "tarn_matmul": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_set_tf32": (None, [c.c_bool]),
    "tarn_linear_apply": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p]),
    "tarn_mlp": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p]),
    "tarn_mlp_with": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.c_int]),
    "tarn_gated": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_int]),
    "tarn_swiglu": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_attention_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(tarn_attention_options), c.c_size_t]),
    "tarn_attention_packed_sized": (c.c_void_p, [c.c_void_p, c.c_int64, c.c_int64, c.POINTER(tarn_attention_options), c.c_size_t]),
    "tarn_rope_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.POINTER(tarn_rope_options), c.c_size_t]),
    "tarn_conv2d_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(tarn_conv2d_options), c.c_size_t]),
    "tarn_conv_transpose2d_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(tarn_conv_transpose2d_options), c.c_size_t]),
    "tarn_conv1d_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(tarn_conv1d_options), c.c_size_t]),
    "tarn_max_pool2d_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_pool2d_options), c.c_size_t]),
    "tarn_avg_pool2d_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_pool2d_options), c.c_size_t]),
    "tarn_global_avg_pool2d": (c.c_void_p, [c.c_void_p]),
    "tarn_upsample_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_upsample_options), c.c_size_t]),
    "tarn_softmax": (c.c_void_p, [c.c_void_p, c.c_int]),
    "tarn_log_softmax": (c.c_void_p, [c.c_void_p, c.c_int]),
    "tarn_layernorm": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.c_double]),
    "tarn_rmsnorm": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_double]),
    "tarn_rmsnorm_offset": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_double, c.c_double]),
    "tarn_residual_norm": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.c_bool, c.c_double, c.POINTER(c.c_void_p)]),
    "tarn_residual_rmsnorm": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.c_double, c.c_double, c.POINTER(c.c_void_p)]),
    "tarn_batchnorm_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(tarn_batchnorm_options), c.c_size_t]),
    "tarn_batchnorm_relu_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(tarn_batchnorm_options), c.c_size_t]),
    "tarn_groupnorm": (c.c_void_p, [c.c_void_p, c.c_int64, c.c_void_p, c.c_void_p, c.c_double]),
    "tarn_dropout": (c.c_void_p, [c.c_void_p, c.c_double]),
    "tarn_cross_entropy_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.POINTER(tarn_cross_entropy_options), c.c_size_t]),
    "tarn_linear_cross_entropy_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(tarn_cross_entropy_options), c.c_size_t]),
    "tarn_mse_loss": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_l1_loss": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_huber_loss": (c.c_void_p, [c.c_void_p, c.c_void_p, c.c_double]),
    "tarn_bce_with_logits_loss": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_op_count": (c.c_int, []),
    "tarn_op_at": (c.c_bool, [c.c_int, c.POINTER(tarn_op_info)]),
    "tarn_op_find": (c.c_int, [c.c_char_p]),
    "tarn_op_on": (c.c_bool, [c.c_int, c.c_char_p, c.c_bool]),
    "tarn_kernel_count": (c.c_int, []),
    "tarn_kernel_name": (c.c_char_p, [c.c_int]),
    "tarn_kernel_variant_at": (c.c_bool, [c.c_int, c.c_char_p, c.c_int, c.POINTER(tarn_kernel_variant)]),
    "tarn_apply": (c.c_bool, [c.c_char_p, c.POINTER(c.c_void_p), c.c_int, c.POINTER(tarn_attribute), c.c_int, c.POINTER(c.c_void_p), c.c_int]),
    "tarn_apply_host": (c.c_bool, [c.c_char_p, tarn_device, c.POINTER(tarn_array), c.c_int, c.POINTER(tarn_attribute), c.c_int, c.POINTER(tarn_array), c.c_int]),
    "tarn_apply_host_backward": (c.c_bool, [c.c_char_p, tarn_device, c.POINTER(tarn_array), c.c_int, c.POINTER(tarn_attribute), c.c_int, c.POINTER(tarn_array), c.c_int, c.c_uint64, c.POINTER(tarn_array)]),
    "tarn_array_free": (None, [c.POINTER(tarn_array)]),
    "tarn_sgd_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_sgd_options), c.c_size_t]),
    "tarn_adam_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_adam_options), c.c_size_t]),
    "tarn_adamw_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_adamw_options), c.c_size_t]),
    "tarn_optimizer_step": (c.c_bool, [c.c_void_p]),
    "tarn_optimizer_zero_grad": (None, [c.c_void_p]),
    "tarn_optimizer_clip_norm": (c.c_void_p, [c.c_void_p, c.c_double]),
    "tarn_optimizer_clip_value": (c.c_bool, [c.c_void_p, c.c_double]),
    "tarn_optimizer_nonfinite": (c.c_char_p, [c.c_void_p]),
    "tarn_optimizer_set_lr": (c.c_bool, [c.c_void_p, c.c_double]),
    "tarn_optimizer_lr": (c.c_double, [c.c_void_p]),
    "tarn_optimizer_steps": (c.c_int64, [c.c_void_p]),
    "tarn_schedule_at": (c.c_double, [c.POINTER(tarn_schedule), c.c_int64]),
    "tarn_optimizer_set_schedule": (c.c_bool, [c.c_void_p, c.POINTER(tarn_schedule)]),
    "tarn_optimizer_save": (c.c_bool, [c.c_void_p, c.c_char_p]),
    "tarn_optimizer_load": (c.c_bool, [c.c_void_p, c.c_char_p]),
    "tarn_optimizer_free": (None, [c.c_void_p]),
    "tarn_ema_new_sized": (c.c_void_p, [c.c_void_p, c.c_void_p, c.POINTER(tarn_ema_options), c.c_size_t]),
    "tarn_ema_update": (c.c_bool, [c.c_void_p]),
    "tarn_ema_updates": (c.c_int64, [c.c_void_p]),
    "tarn_ema_apply": (c.c_bool, [c.c_void_p]),
    "tarn_ema_restore": (c.c_bool, [c.c_void_p]),
    "tarn_ema_save": (c.c_bool, [c.c_void_p, c.c_char_p]),
    "tarn_ema_load": (c.c_bool, [c.c_void_p, c.c_char_p]),
    "tarn_ema_free": (None, [c.c_void_p]),
    "tarn_comm_threads": (c.c_bool, [c.c_int, c.POINTER(c.c_void_p)]),
    "tarn_comm_mpi": (c.c_void_p, []),
    "tarn_comm_torchrun": (c.c_void_p, []),
    "tarn_comm_sockets": (c.c_void_p, [c.c_int, c.c_int, c.POINTER(c.c_int)]),
    "tarn_comm_launched": (c.c_int, []),
    "tarn_comm_rank": (c.c_int, [c.c_void_p]),
    "tarn_comm_size": (c.c_int, [c.c_void_p]),
    "tarn_comm_host": (c.c_char_p, [c.c_void_p, c.c_int]),
    "tarn_comm_connect": (c.c_bool, [c.c_void_p, tarn_device]),
    "tarn_device_link": (c.c_bool, [tarn_device, tarn_device, c.c_void_p, c.c_size_t]),
    "tarn_comm_transport": (c.c_char_p, [c.c_void_p]),
    "tarn_comm_set_timeout": (c.c_bool, [c.c_void_p, c.c_double]),
    "tarn_comm_set_notice": (c.c_bool, [c.c_void_p, tarn_comm_notice_fn, c.c_void_p]),
    "tarn_comm_free": (None, [c.c_void_p]),
    "tarn_comm_all_to_all": (c.c_bool, [c.c_void_p, c.c_void_p, c.POINTER(c.c_size_t), c.c_void_p, c.POINTER(c.c_size_t)]),
    "tarn_comm_all_gather": (c.c_bool, [c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(c.c_size_t)]),
    "tarn_comm_broadcast": (c.c_bool, [c.c_void_p, c.c_int, c.c_void_p, c.c_size_t]),
    "tarn_comm_barrier": (c.c_bool, [c.c_void_p]),
    "tarn_comm_send": (c.c_bool, [c.c_void_p, c.c_int, c.c_void_p, c.c_size_t]),
    "tarn_comm_receive": (c.c_bool, [c.c_void_p, c.c_int, c.c_void_p, c.c_size_t]),
    "tarn_comm_sum": (c.c_bool, [c.c_void_p, c.POINTER(c.c_void_p), c.c_int, c.c_void_p]),
    "tarn_comm_poll": (c.c_bool, [c.c_void_p]),
    "tarn_comm_abort": (None, [c.c_void_p, c.c_char_p]),
    "tarn_comm_is_reporter": (c.c_bool, [c.c_void_p]),
    "tarn_run_load_image": (c.c_bool, [c.c_void_p, c.c_char_p, c.POINTER(tarn_array)]),
    "tarn_run_predict_data": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_int64, tarn_prediction_fn, c.c_void_p]),
    "tarn_stats": (tarn_counters, []),
    "tarn_stats_reset": (None, []),
    "tarn_memory_of": (tarn_memory, [tarn_device]),
    "tarn_memory_kinds_of": (tarn_memory_kinds, [tarn_device]),
    "tarn_device_peak_flops": (c.c_double, [tarn_device, c.c_char_p]),
    "tarn_memory_table": (c.c_size_t, [tarn_device, c.c_void_p, c.c_size_t]),
    "tarn_profile_start": (c.c_bool, [tarn_device]),
    "tarn_profile_stop": (c.c_bool, []),
    "tarn_profile_is_on": (c.c_bool, []),
    "tarn_profile_clear": (None, []),
    "tarn_profile_span_open": (None, [c.c_char_p]),
    "tarn_profile_span_close": (None, []),
    "tarn_profile_count": (c.c_int64, []),
    "tarn_profile_get": (c.c_bool, [c.c_int64, c.POINTER(tarn_profile_record)]),
    "tarn_profile_part_name": (c.c_char_p, [c.c_int]),
    "tarn_profile_summarize": (c.c_bool, [c.POINTER(tarn_profile_summary), c.POINTER(tarn_profile_row), c.c_int64]),
    "tarn_profile_write_trace": (c.c_bool, [c.c_char_p]),
    "tarn_runs_read": (c.c_bool, [c.c_char_p, tarn_logged_run_fn, c.c_void_p]),
    "tarn_runs_compare": (c.c_bool, [c.POINTER(c.c_char_p), c.c_int, c.c_char_p]),
    "tarn_safetensors_open": (c.c_void_p, [c.c_char_p]),
    "tarn_safetensors_close": (None, [c.c_void_p]),
    "tarn_safetensors_count": (c.c_int, [c.c_void_p]),
    "tarn_safetensors_name": (c.c_char_p, [c.c_void_p, c.c_int]),
    "tarn_safetensors_info": (c.c_bool, [c.c_void_p, c.c_int, c.POINTER(tarn_safetensors_entry)]),
    "tarn_safetensors_find": (c.c_int, [c.c_void_p, c.c_char_p]),
    "tarn_safetensors_read": (c.c_void_p, [c.c_void_p, c.c_char_p, tarn_device]),
    "tarn_safetensors_read_into": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_void_p]),
    "tarn_safetensors_metadata": (c.c_char_p, [c.c_void_p, c.c_char_p]),
    "tarn_safetensors_metadata_count": (c.c_int, [c.c_void_p]),
    "tarn_safetensors_metadata_at": (c.c_bool, [c.c_void_p, c.c_int, c.POINTER(c.c_char_p), c.POINTER(c.c_char_p)]),
    "tarn_safetensors_create": (c.c_void_p, [c.c_char_p]),
    "tarn_safetensors_add": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_void_p]),
    "tarn_safetensors_add_metadata": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_char_p]),
    "tarn_safetensors_add_checksums": (c.c_bool, [c.c_void_p]),
    "tarn_safetensors_finish": (c.c_bool, [c.c_void_p]),
    "tarn_safetensors_cancel": (None, [c.c_void_p]),
    "tarn_run_evaluate_regression": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_int64, c.POINTER(tarn_regression_evaluation)]),
    "tarn_run_encoder": (c.c_void_p, [c.c_void_p]),
    "tarn_run_predict_table": (c.c_bool, [c.c_void_p, c.c_char_p, tarn_write_fn, c.c_void_p, c.POINTER(c.c_int64)]),
    "tarn_dtype_name": (c.c_char_p, [c.c_int]),
    "tarn_dtype_parse": (c.c_int, [c.c_char_p]),
    "tarn_dtype_size": (c.c_size_t, [c.c_int]),
    "tarn_dtype_block_size": (c.c_int64, [c.c_int]),
    "tarn_scope_open": (c.c_void_p, []),
    "tarn_scope_close": (None, [c.c_void_p]),
    "tarn_scope_return": (c.c_void_p, [c.c_void_p, c.c_void_p]),
    "tarn_keep": (c.c_void_p, [c.c_void_p]),
    "tarn_free": (None, [c.c_void_p]),
    "tarn_empty": (c.c_void_p, [tarn_shape, c.c_int, tarn_device]),
    "tarn_zeros": (c.c_void_p, [tarn_shape, c.c_int, tarn_device]),
    "tarn_ones": (c.c_void_p, [tarn_shape, c.c_int, tarn_device]),
    "tarn_full": (c.c_void_p, [tarn_shape, c.c_double, c.c_int, tarn_device]),
    "tarn_empty_like": (c.c_void_p, [c.c_void_p]),
    "tarn_zeros_like": (c.c_void_p, [c.c_void_p]),
    "tarn_ones_like": (c.c_void_p, [c.c_void_p]),
    "tarn_full_like": (c.c_void_p, [c.c_void_p, c.c_double]),
    "tarn_uniform_like": (c.c_void_p, [c.c_void_p, c.c_double, c.c_double]),
    "tarn_normal_like": (c.c_void_p, [c.c_void_p, c.c_double, c.c_double]),
    "tarn_arange": (c.c_void_p, [c.c_double, c.c_double, c.c_double, c.c_int, tarn_device]),
    "tarn_eye": (c.c_void_p, [c.c_int64, c.c_int64, c.c_int, tarn_device]),
    "tarn_uniform": (c.c_void_p, [tarn_shape, c.c_double, c.c_double, c.c_int, tarn_device]),
    "tarn_normal": (c.c_void_p, [tarn_shape, c.c_double, c.c_double, c.c_int, tarn_device]),
    "tarn_seed": (None, [c.c_uint64]),
    "tarn_from": (c.c_void_p, [c.c_void_p, tarn_shape, c.c_int, tarn_device]),
    "tarn_from_f32": (c.c_void_p, [c.POINTER(c.c_float), tarn_shape, tarn_device]),
    "tarn_from_f64": (c.c_void_p, [c.POINTER(c.c_double), tarn_shape, tarn_device]),
    "tarn_from_i32": (c.c_void_p, [c.POINTER(c.c_int32), tarn_shape, tarn_device]),
    "tarn_from_i64": (c.c_void_p, [c.POINTER(c.c_int64), tarn_shape, tarn_device]),
    "tarn_from_u8": (c.c_void_p, [c.POINTER(c.c_uint8), tarn_shape, tarn_device]),
    "tarn_scalar": (c.c_void_p, [c.c_double]),
    "tarn_dtype_of": (c.c_int, [c.c_void_p]),
    "tarn_rank": (c.c_int, [c.c_void_p]),
    "tarn_shape_of": (tarn_shape, [c.c_void_p]),
    "tarn_size": (c.c_int64, [c.c_void_p, c.c_int]),
    "tarn_stride_of": (c.c_int64, [c.c_void_p, c.c_int]),
    "tarn_count": (c.c_int64, [c.c_void_p]),
    "tarn_bytes": (c.c_int64, [c.c_void_p]),
    "tarn_device_of": (tarn_device, [c.c_void_p]),
    "tarn_is_contiguous": (c.c_bool, [c.c_void_p]),
    "tarn_name": (c.c_char_p, [c.c_void_p]),
    "tarn_set_name": (c.c_void_p, [c.c_void_p, c.c_char_p]),
    "tarn_read": (c.c_bool, [c.c_void_p, c.c_void_p, c.c_size_t]),
    "tarn_read_f32": (c.c_bool, [c.c_void_p, c.POINTER(c.c_float), c.c_int64]),
    "tarn_read_f64": (c.c_bool, [c.c_void_p, c.POINTER(c.c_double), c.c_int64]),
    "tarn_item": (c.c_double, [c.c_void_p]),
    "tarn_item_at": (c.c_double, [c.c_void_p, tarn_shape]),
    "tarn_write": (c.c_bool, [c.c_void_p, c.c_void_p, c.c_size_t]),
    "tarn_data": (c.c_void_p, [c.c_void_p]),
    "tarn_format": (c.c_size_t, [c.c_void_p, c.c_void_p, c.c_size_t]),
    "tarn_print": (None, [c.c_void_p]),
    "tarn_to": (c.c_void_p, [c.c_void_p, tarn_device]),
    "tarn_clone": (c.c_void_p, [c.c_void_p]),
    "tarn_copy": (c.c_bool, [c.c_void_p, c.c_void_p]),
    "tarn_set_cross_device": (None, [c.c_int]),
    "tarn_tokenizer_open": (c.c_void_p, [c.c_char_p]),
    "tarn_tokenizer_bytes": (c.c_void_p, []),
    "tarn_tokenizer_characters": (c.c_void_p, [c.c_char_p, c.c_size_t]),
    "tarn_tokenizer_characters_files": (c.c_void_p, [c.POINTER(c.c_char_p), c.c_int, c.c_char_p, c.c_bool]),
    "tarn_tokenizer_free": (None, [c.c_void_p]),
    "tarn_tokenizer_save": (c.c_bool, [c.c_void_p, c.c_char_p]),
    "tarn_tokenizer_kind": (c.c_char_p, [c.c_void_p]),
    "tarn_tokenizer_count": (c.c_int64, [c.c_void_p]),
    "tarn_tokenizer_hash": (c.c_uint64, [c.c_void_p]),
    "tarn_tokenizer_piece": (c.c_char_p, [c.c_void_p, c.c_int32, c.POINTER(c.c_size_t)]),
    "tarn_tokenizer_find": (c.c_int32, [c.c_void_p, c.c_char_p, c.c_size_t]),
    "tarn_tokenizer_is_special": (c.c_bool, [c.c_void_p, c.c_int32]),
    "tarn_tokenizer_end_of_text": (c.c_int32, [c.c_void_p]),
    "tarn_tokenizer_bos": (c.c_int32, [c.c_void_p]),
    "tarn_tokenizer_eos": (c.c_int32, [c.c_void_p]),
    "tarn_tokenizer_encode_sized": (c.POINTER(c.c_int32), [c.c_void_p, c.c_char_p, c.c_size_t, c.POINTER(tarn_encode_options), c.c_size_t, c.POINTER(c.c_int64)]),
    "tarn_tokenizer_decode": (c.c_void_p, [c.c_void_p, c.POINTER(c.c_int32), c.c_int64, c.POINTER(c.c_size_t)]),
    "tarn_tokenizer_release": (None, [c.c_void_p]),
    "tarn_chat_name": (c.c_char_p, [c.c_void_p]),
    "tarn_chat_render": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_chat_message), c.c_int, c.c_bool, c.POINTER(c.c_size_t)]),
    "tarn_chat_encode": (c.POINTER(c.c_int32), [c.c_void_p, c.POINTER(tarn_chat_message), c.c_int, c.c_bool, c.POINTER(c.c_int64)]),
    "tarn_chat_render_json_sized": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_size_t, c.POINTER(tarn_chat_options), c.c_size_t, c.POINTER(c.c_size_t)]),
    "tarn_chat_encode_json_sized": (c.POINTER(c.c_int32), [c.c_void_p, c.c_char_p, c.c_size_t, c.POINTER(tarn_chat_options), c.c_size_t, c.POINTER(c.POINTER(c.c_uint8)), c.POINTER(c.c_int64)]),
    "tarn_chat_check_tools": (c.c_bool, [c.c_char_p]),
    "tarn_chat_find_call": (c.c_bool, [c.c_char_p, c.c_char_p, c.c_size_t, c.POINTER(tarn_tool_call)]),
    "tarn_chat_content_length": (c.c_size_t, [c.c_char_p, c.c_size_t]),
    "tarn_tokenizer_set_chat": (c.c_bool, [c.c_void_p, c.c_char_p]),
    "tarn_tokenizer_add_tokens": (c.c_int, [c.c_void_p, c.c_char_p]),
    "tarn_chat_eot": (c.c_int32, [c.c_void_p]),
    "tarn_text_stream_new_sized": (c.c_void_p, [c.c_void_p, c.POINTER(tarn_stream_options), c.c_size_t]),
    "tarn_text_stream_push": (c.c_char_p, [c.c_void_p, c.c_int32, c.POINTER(c.c_size_t)]),
    "tarn_text_stream_end": (c.c_char_p, [c.c_void_p, c.POINTER(c.c_size_t)]),
    "tarn_text_stream_free": (None, [c.c_void_p]),
    "tarn_bpe_train_sized": (c.c_void_p, [c.POINTER(c.c_char_p), c.POINTER(c.c_size_t), c.c_int, c.c_int64, c.POINTER(tarn_bpe_options), c.c_size_t]),
    "tarn_bpe_train_files_sized": (c.c_void_p, [c.POINTER(c.c_char_p), c.c_int, c.c_int64, c.POINTER(tarn_bpe_options), c.c_size_t]),
    "tarn_shards_prepare_sized": (c.c_bool, [c.POINTER(c.c_char_p), c.c_int, c.c_void_p, c.c_char_p, c.POINTER(tarn_shards_summary), c.POINTER(tarn_shards_options), c.c_size_t]),
    "tarn_tokens_open": (c.c_void_p, [c.c_char_p, c.c_char_p]),
    "tarn_tokens_close": (None, [c.c_void_p]),
    "tarn_tokens_count": (c.c_int64, [c.c_void_p]),
    "tarn_tokens_vocab_size": (c.c_int64, [c.c_void_p]),
    "tarn_tokens_hash": (c.c_uint64, [c.c_void_p]),
    "tarn_tokens_read": (c.c_bool, [c.c_void_p, c.c_int64, c.c_int64, c.POINTER(c.c_int32)]),
    "tarn_train_option_count": (c.c_int, []),
    "tarn_train_option": (c.c_bool, [c.c_int, c.POINTER(tarn_option)]),
    "tarn_train_option_applies": (c.c_bool, [c.c_char_p, c.c_char_p]),
    "tarn_train_options_set_sized": (c.c_bool, [c.POINTER(tarn_train_options), c.c_size_t, c.c_char_p, c.c_char_p]),
    "tarn_train_options_load_sized": (c.c_bool, [c.POINTER(tarn_train_options), c.c_size_t, c.c_char_p]),
    "tarn_trainer_new_sized": (c.c_void_p, [c.POINTER(tarn_train_options), c.c_size_t]),
    "tarn_trainer_resume_sized": (c.c_void_p, [c.c_char_p, c.POINTER(tarn_train_options), c.c_size_t]),
    "tarn_trainer_dry_run_sized": (c.c_void_p, [c.c_char_p, c.POINTER(tarn_train_options), c.c_size_t]),
    "tarn_trainer_plan": (c.c_bool, [c.c_void_p, c.POINTER(tarn_train_plan)]),
    "tarn_trainer_run": (c.c_bool, [c.c_void_p, tarn_report_fn, c.c_void_p, c.POINTER(tarn_train_result)]),
    "tarn_trainer_profile": (c.c_bool, [c.c_void_p, c.c_int64]),
    "tarn_trainer_progress": (c.c_bool, [c.c_void_p, c.POINTER(tarn_train_progress)]),
    "tarn_trainer_stop": (None, [c.c_void_p]),
    "tarn_trainer_model": (c.c_void_p, [c.c_void_p]),
    "tarn_trainer_free": (None, [c.c_void_p]),
    "tarn_train_measure_sized": (c.c_bool, [c.c_int64, c.c_int64, c.POINTER(tarn_train_timing), c.c_size_t, c.POINTER(tarn_train_options), c.c_size_t]),
    "tarn_evaluate": (c.c_bool, [c.c_void_p, c.c_void_p, c.c_int64, c.POINTER(tarn_evaluation), c.POINTER(c.c_int64), c.POINTER(c.c_int64)]),
    "tarn_run_open": (c.c_void_p, [c.c_char_p, tarn_device]),
    "tarn_run_weights_find": (c.c_bool, [c.c_char_p, c.c_int, c.POINTER(tarn_run_weights)]),
    "tarn_run_open_with_sized": (c.c_void_p, [c.c_char_p, tarn_device, c.POINTER(tarn_run_open_options), c.c_size_t]),
    "tarn_run_model": (c.c_void_p, [c.c_void_p]),
    "tarn_run_kind": (c.c_char_p, [c.c_void_p]),
    "tarn_run_data": (c.c_char_p, [c.c_void_p]),
    "tarn_run_task": (c.c_char_p, [c.c_void_p]),
    "tarn_run_tokenizer": (c.c_void_p, [c.c_void_p]),
    "tarn_run_input": (c.c_bool, [c.c_void_p, c.POINTER(tarn_shape)]),
    "tarn_run_classes": (c.c_int64, [c.c_void_p]),
    "tarn_run_class_name": (c.c_char_p, [c.c_void_p, c.c_int64]),
    "tarn_run_evaluate": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_int64, c.POINTER(tarn_evaluation), c.POINTER(c.c_int64), c.POINTER(c.c_int64)]),
    "tarn_run_evaluate_text": (c.c_bool, [c.c_void_p, c.c_char_p, c.c_int64, c.POINTER(tarn_text_evaluation)]),
    "tarn_run_predict": (c.c_bool, [c.c_void_p, c.POINTER(tarn_array), c.POINTER(c.c_double)]),
    "tarn_run_close": (None, [c.c_void_p]),
    "tarn_chat_dataset_open_sized": (c.c_void_p, [c.POINTER(tarn_chat_dataset_options), c.c_size_t]),
    "tarn_chat_dataset_counts_of": (c.c_bool, [c.c_void_p, c.POINTER(tarn_chat_dataset_counts)]),
    "tarn_chat_dataset_batch": (c.c_bool, [c.c_void_p, c.c_int, c.c_int64, c.c_int64, c.POINTER(tarn_chat_dataset_rows)]),
    "tarn_chat_dataset_close": (None, [c.c_void_p]),
}
