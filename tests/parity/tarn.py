"""The part of tarn's public interface that the comparison needs, through ctypes. Tensors go in and come back as torch
tensors of the same dtype, bit for bit. Errors are exceptions."""
import contextlib
import ctypes as c
import os

import torch

MAX_RANK = 8
DTYPES = ["f32", "f64", "bf16", "f16", "i32", "i64", "u8", "bool"]  # in the order of tarn_dtype
QUANTIZED = ["q8_0", "q4_0", "q4_k", "q6_k", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q5_k", "iq4_nl",
             "iq4_xs"]  # after them
TORCH = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32,
         "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool}
NAME = {dtype: name for name, dtype in TORCH.items()}
CODES = ["ok", "argument", "shape", "dtype", "device", "memory", "io", "format", "unsupported", "internal"]


class Error(Exception):
    """An error that tarn reported; `code` is its kind, as in tarn_code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Shape(c.Structure):
    _fields_ = [("rank", c.c_int), ("size", c.c_int64 * MAX_RANK)]

    def __init__(self, sizes=()):
        super().__init__(len(sizes), (c.c_int64 * MAX_RANK)(*sizes))


class Axes(c.Structure):
    _fields_ = [("count", c.c_int), ("axis", c.c_int * MAX_RANK)]

    def __init__(self, axes=()):
        super().__init__(len(axes), (c.c_int * MAX_RANK)(*axes))


class Device(c.Structure):
    _fields_ = [("backend", c.c_int32), ("index", c.c_int32)]


class DeviceInfo(c.Structure):
    _fields_ = [("name", c.c_char * 32), ("description", c.c_char * 128), ("detail", c.c_char * 128),
                ("memory_total", c.c_int64), ("memory_free", c.c_int64), ("type", c.c_char * 16),
                ("vendor", c.c_char * 64), ("has_tf32", c.c_bool)]


class Attribute(c.Structure):
    _fields_ = [("name", c.c_char_p), ("number", c.c_double), ("integer", c.c_int64), ("list", c.c_int64 * MAX_RANK),
                ("count", c.c_int)]


class OpInfo(c.Structure):
    _fields_ = [("name", c.c_char_p), ("attributes", c.c_char_p), ("min_inputs", c.c_int), ("max_inputs", c.c_int),
                ("outputs", c.c_int), ("differentiable", c.c_bool)]


class Array(c.Structure):
    _fields_ = [("data", c.c_void_p), ("shape", Shape), ("dtype", c.c_int)]


class LinearOptions(c.Structure):
    _fields_ = [("no_bias", c.c_bool), ("dtype", c.c_int)]


class NormOptions(c.Structure):
    _fields_ = [("epsilon", c.c_double), ("no_affine", c.c_bool), ("no_bias", c.c_bool), ("dtype", c.c_int)]


class Conv2dOptions(c.Structure):
    _fields_ = [("kernel", c.c_int64 * 2), ("stride", c.c_int64 * 2), ("padding", c.c_int64 * 2),
                ("dilation", c.c_int64 * 2), ("groups", c.c_int64), ("no_bias", c.c_bool), ("dtype", c.c_int)]


class ConvTranspose2dOptions(c.Structure):
    _fields_ = [("kernel", c.c_int64 * 2), ("stride", c.c_int64 * 2), ("padding", c.c_int64 * 2),
                ("output_padding", c.c_int64 * 2), ("dilation", c.c_int64 * 2), ("groups", c.c_int64),
                ("no_bias", c.c_bool), ("dtype", c.c_int)]


class Conv1dOptions(c.Structure):
    _fields_ = [("kernel", c.c_int64), ("stride", c.c_int64), ("padding", c.c_int64), ("dilation", c.c_int64),
                ("groups", c.c_int64), ("no_bias", c.c_bool), ("dtype", c.c_int)]


class InstancenormOptions(c.Structure):
    _fields_ = [("affine", c.c_bool), ("epsilon", c.c_double), ("dtype", c.c_int)]


class Pool2dOptions(c.Structure):
    _fields_ = [("kernel", c.c_int64 * 2), ("stride", c.c_int64 * 2), ("padding", c.c_int64 * 2),
                ("dilation", c.c_int64 * 2), ("ceil_mode", c.c_bool), ("exclude_padding", c.c_bool)]


class UpsampleOptions(c.Structure):
    _fields_ = [("size", c.c_int64 * 2), ("scale", c.c_double * 2), ("mode", c.c_int), ("align_corners", c.c_bool)]


class RecurrentOptions(c.Structure):
    _fields_ = [("layers", c.c_int64), ("bidirectional", c.c_bool), ("batch_first", c.c_bool), ("no_bias", c.c_bool),
                ("dropout", c.c_double), ("dtype", c.c_int)]


class RecurrentState(c.Structure):
    _fields_ = [("h", c.c_void_p), ("c", c.c_void_p)]


class Batchnorm2dOptions(c.Structure):
    _fields_ = [("momentum", c.c_double), ("epsilon", c.c_double), ("no_affine", c.c_bool), ("no_tracking", c.c_bool),
                ("dtype", c.c_int)]


class EmbeddingOptions(c.Structure):
    _fields_ = [("dtype", c.c_int)]


class Gpt2Config(c.Structure):
    _fields_ = [
        (name, c.c_int64) for name in ("vocab_size", "context", "layers", "heads", "hidden_size", "ffn_size")] + [
            (name, c.c_double) for name in ("dropout", "attention_dropout", "embedding_dropout", "epsilon")] + [
                ("dtype", c.c_int), ("has_eos", c.c_bool), ("eos", c.c_int64), ("recompute", c.c_int),
                ("untie_embeddings", c.c_bool)]


class LlamaConfig(c.Structure):
    _fields_ = [
        (name, c.c_int64)
        for name in ("vocab_size", "context", "layers", "heads", "hidden_size", "ffn_size", "kv_heads", "head_dim")] + [
            ("epsilon", c.c_double), ("rope_theta", c.c_double), ("rope_scaling", c.c_int), ("rope_factor", c.c_double),
            ("rope_low_freq_factor", c.c_double), ("rope_high_freq_factor", c.c_double),
            ("rope_original_context", c.c_int64), ("qkv_bias", c.c_bool), ("qk_norm", c.c_bool),
            ("tie_embeddings", c.c_bool), ("arch", c.c_char_p), ("dtype", c.c_int), ("has_bos", c.c_bool),
            ("bos", c.c_int64), ("eos_count", c.c_int), ("eos", c.c_int64 * 8), ("recompute", c.c_int)]


class ModelOpenOptions(c.Structure):
    _fields_ = [("dtype", c.c_int), ("as_stored", c.c_bool)]


class GenerateOptions(c.Structure):
    _fields_ = [("max_tokens", c.c_int64), ("temperature", c.c_double), ("top_k", c.c_int64), ("top_p", c.c_double),
                ("seed", c.c_uint64), ("stop", c.POINTER(c.c_int32)), ("stop_count", c.c_int), ("ignore_eos", c.c_bool),
                ("on_token", c.c_void_p), ("ctx", c.c_void_p), ("min_p", c.c_double), ("repeat_penalty", c.c_double),
                ("repeat_last_n", c.c_int64), ("stop_strings", c.POINTER(c.c_char_p)), ("stop_string_count", c.c_int),
                ("logprobs", c.c_bool), ("top_logprobs", c.c_int)]


class SamplerOptions(c.Structure):
    _fields_ = [("temperature", c.c_double), ("top_k", c.c_int64), ("top_p", c.c_double), ("seed", c.c_uint64),
                ("min_p", c.c_double), ("repeat_penalty", c.c_double), ("repeat_last_n", c.c_int64)]


class GeneratorOptions(c.Structure):
    _fields_ = [("sequences", c.c_int64), ("context", c.c_int64), ("kv_type", c.c_int), ("prefill_chunk", c.c_int64),
                ("dtype", c.c_int)]


class Output(c.Structure):
    _fields_ = [("sequence", c.c_int64), ("token", c.c_int32), ("text", c.c_void_p), ("length", c.c_size_t),
                ("finish_reason", c.c_int), ("logprob", c.c_double), ("top_logprobs", c.c_void_p),
                ("top_logprob_count", c.c_int)]


class ParameterGroup(c.Structure):
    _fields_ = [("names", c.c_char_p), ("lr_scale", c.c_float), ("weight_decay", c.c_float), ("no_decay", c.c_bool)]


GROUPS = [("groups", c.POINTER(ParameterGroup)), ("group_count", c.c_int)]


class SgdOptions(c.Structure):
    _fields_ = [("lr", c.c_float), ("momentum", c.c_float), ("dampening", c.c_float), ("weight_decay", c.c_float),
                ("nesterov", c.c_bool)] + GROUPS


class AdamOptions(c.Structure):
    _fields_ = [("lr", c.c_float), ("beta1", c.c_float), ("beta2", c.c_float), ("epsilon", c.c_float),
                ("weight_decay", c.c_float)] + GROUPS


class AdamwOptions(c.Structure):
    _fields_ = [("lr", c.c_float), ("beta1", c.c_float), ("beta2", c.c_float), ("epsilon", c.c_float),
                ("weight_decay", c.c_float), ("decay_all", c.c_bool)] + GROUPS


class EmaOptions(c.Structure):
    _fields_ = [("decay", c.c_double), ("warmup", c.c_bool)]


class Schedule(c.Structure):
    _fields_ = [("kind", c.c_int), ("warmup_steps", c.c_int64), ("total_steps", c.c_int64),
                ("final_factor", c.c_double), ("step_size", c.c_int64), ("gamma", c.c_double),
                ("start_factor", c.c_double)]


class LoaderOptions(c.Structure):
    _fields_ = [("batch_size", c.c_int64), ("shuffle", c.c_bool), ("drop_last", c.c_bool), ("seed", c.c_uint64),
                ("workers", c.c_int), ("prefetch", c.c_int), ("device", Device), ("crop_padding", c.c_int),
                ("flip", c.c_bool), ("augment", c.c_void_p), ("augment_ctx", c.c_void_p), ("normalize", c.c_bool),
                ("scale", c.c_float), ("mean", c.POINTER(c.c_float)), ("std", c.POINTER(c.c_float)),
                ("channels", c.c_int)]


class EncodeOptions(c.Structure):
    _fields_ = [("special_as_text", c.c_bool), ("add_special", c.c_bool)]


class ChatOptions(c.Structure):
    _fields_ = [("add_generation_prompt", c.c_bool), ("tools", c.c_char_p), ("documents", c.c_char_p),
                ("variables", c.c_char_p)]


class ChatDatasetOptions(c.Structure):
    _fields_ = [("path", c.c_char_p), ("tokenizer", c.c_void_p), ("template_name", c.c_char_p),
                ("val_path", c.c_char_p), ("val_fraction", c.c_double), ("context", c.c_int64), ("seed", c.c_uint64)]


class ChatDatasetCounts(c.Structure):
    _fields_ = [("documents", c.c_int64 * 2), ("tokens", c.c_int64 * 2), ("completion_tokens", c.c_int64 * 2),
                ("rows", c.c_int64 * 2), ("truncated", c.c_int64), ("hash", c.c_uint64),
                ("formats", c.c_char * 256)]


class ChatDatasetRows(c.Structure):
    _fields_ = [(name, c.POINTER(c.c_int32)) for name in ("ids", "targets", "positions", "document_starts")]


class BpeOptions(c.Structure):
    _fields_ = [("special", c.POINTER(c.c_char_p)), ("special_count", c.c_int), ("pattern", c.c_char_p),
                ("min_frequency", c.c_int64), ("ties", c.c_int), ("no_special", c.c_bool)]


class Counters(c.Structure):
    _fields_ = [("kernels", c.c_int64), ("kernels_on", c.c_int64 * 8)] + [
        (name, c.c_int64)
        for name in ("fallbacks", "uploads", "downloads", "peer_copies", "upload_bytes", "download_bytes", "peer_bytes",
                     "layout_copies", "allocations", "system_allocations")]


POINTER, TENSORS = c.c_void_p, c.POINTER(c.c_void_p)
STEP = c.CFUNCTYPE(c.c_bool, c.c_void_p)

# name: (result, arguments)
FUNCTIONS = {
    "version": (c.c_char_p, []), "failed": (c.c_bool, []), "error": (c.c_char_p, []), "error_code": (c.c_int, []),
    "clear_error": (None, []), "set_threads": (c.c_bool, [c.c_int]), "device_parse": (Device, [c.c_char_p]),
    "device_query": (c.c_bool, [Device, c.POINTER(DeviceInfo)]), "seed": (None, [c.c_uint64]), "stats": (Counters, []),
    "scope_open": (POINTER, []), "scope_close": (None, [POINTER]), "from": (POINTER, [POINTER, Shape, c.c_int, Device]),
    "scalar": (POINTER, [c.c_double]), "shape_of": (Shape, [POINTER]), "stride_of": (c.c_int64, [POINTER, c.c_int]),
    "dtype_of": (c.c_int, [POINTER]), "read": (c.c_bool, [POINTER, POINTER, c.c_size_t
                                                         ]), "write": (c.c_bool, [POINTER, POINTER, c.c_size_t]),
    "copy": (c.c_bool, [POINTER, POINTER]), "permute": (POINTER, [POINTER,
                                                                  Axes]), "shrink": (POINTER, [POINTER, Shape, Shape]),
    "stride": (POINTER, [POINTER, Shape]), "expand": (POINTER, [POINTER, Shape]), "flip": (POINTER, [POINTER, Axes]),
    "requires_grad": (POINTER, [POINTER,
                                c.c_bool]), "backward_from_sized": (c.c_bool, [POINTER, POINTER, POINTER, c.c_size_t]),
    "grad": (POINTER, [POINTER]), "no_grad_open": (None, []), "no_grad_close": (None, []), "set_tf32": (None, [
        c.c_bool]), "graph_capture": (POINTER, [Device, STEP, POINTER
                                               ]), "graph_run": (c.c_bool, [POINTER]), "graph_free": (None, [POINTER]),
    "op_count": (c.c_int, []), "op_at": (c.c_bool, [c.c_int, c.POINTER(OpInfo)]), "apply": (c.c_bool, [
        c.c_char_p, TENSORS, c.c_int, c.POINTER(Attribute), c.c_int, TENSORS,
        c.c_int]), "linear_with_sized": (POINTER, [c.c_int64, c.c_int64, Device,
                                                   c.POINTER(LinearOptions),
                                                   c.c_size_t]), "layernorm_layer_with_sized": (POINTER, [
                                                       c.c_int64, Device,
                                                       c.POINTER(NormOptions),
                                                       c.c_size_t]), "rmsnorm_layer_with_sized": (POINTER, [
                                                           c.c_int64, Device,
                                                           c.POINTER(NormOptions),
                                                           c.c_size_t]), "embedding_layer_with_sized": (POINTER, [
                                                               c.c_int64, c.c_int64, Device,
                                                               c.POINTER(EmbeddingOptions),
                                                               c.c_size_t]), "conv2d_layer_with_sized": (POINTER, [
                                                                   c.c_int64, c.c_int64, Device,
                                                                   c.POINTER(Conv2dOptions), c.c_size_t]),
    "conv_transpose2d_layer_with_sized": (POINTER, [
        c.c_int64, c.c_int64, Device, c.POINTER(ConvTranspose2dOptions), c.c_size_t]),
    "conv1d_layer_with_sized": (POINTER, [c.c_int64, c.c_int64, Device, c.POINTER(Conv1dOptions), c.c_size_t]),
    "instancenorm_layer_with_sized": (POINTER, [c.c_int64, Device, c.POINTER(InstancenormOptions), c.c_size_t]),
    "upsample_layer_sized": (POINTER, [c.POINTER(UpsampleOptions), c.c_size_t]),
    "lstm_layer_with_sized": (POINTER, [c.c_int64, c.c_int64, Device, c.POINTER(RecurrentOptions), c.c_size_t]),
    "gru_layer_with_sized": (POINTER, [c.c_int64, c.c_int64, Device, c.POINTER(RecurrentOptions), c.c_size_t]),
    "recurrent_forward": (POINTER, [POINTER, POINTER, c.POINTER(RecurrentState), c.POINTER(RecurrentState)]),
    "rope_sized": (POINTER, [POINTER, POINTER, POINTER, c.c_size_t]),
    "max_pool2d_layer_sized": (POINTER, [c.POINTER(Pool2dOptions), c.c_size_t]), "avg_pool2d_layer_sized": (POINTER, [
        c.POINTER(Pool2dOptions),
        c.c_size_t]), "global_avg_pool2d_layer": (POINTER, []), "groupnorm_layer_with_sized": (POINTER, [
            c.c_int64, c.c_int64, Device, c.POINTER(NormOptions), c.c_size_t]), "batchnorm2d_with_sized": (POINTER, [
                c.c_int64, Device, c.POINTER(Batchnorm2dOptions),
                c.c_size_t]), "dropout_layer": (POINTER, [c.c_double]), "flatten": (POINTER, [c.c_int]),
    "residual": (POINTER, [POINTER, POINTER]), "activation": (POINTER, [c.c_int]), "sequential_from": (POINTER, [
        TENSORS, c.c_int]), "forward": (POINTER, [POINTER, POINTER]), "module_parameter_count": (c.c_int, [POINTER]),
    "module_parameter": (POINTER, [POINTER, c.c_int]), "module_parameter_name": (c.c_char_p, [
        POINTER, c.c_int]), "module_buffer_count": (c.c_int, [POINTER]), "module_buffer": (POINTER, [
            POINTER, c.c_int]), "module_buffer_name": (c.c_char_p, [POINTER, c.c_int]), "module_train": (c.c_bool, [
                POINTER, c.c_bool]), "module_save": (c.c_bool, [POINTER, c.c_char_p]), "module_load_sized": (c.c_bool, [
                    POINTER, c.c_char_p,
                    POINTER, c.c_size_t]), "module_free": (None, [POINTER]), "model_resnet20": (POINTER, [
                        c.c_int64, Device]), "model_resnet_sized": (POINTER, [
                            c.c_int, c.c_int64, Device, POINTER, c.c_size_t]),
    "safetensors_open": (POINTER, [c.c_char_p]), "safetensors_close": (None, [
                            POINTER]), "safetensors_count": (c.c_int, [POINTER]), "safetensors_name": (c.c_char_p, [
                                POINTER, c.c_int]), "safetensors_read": (POINTER, [POINTER, c.c_char_p, Device]),
    "safetensors_metadata": (c.c_char_p, [POINTER, c.c_char_p]), "safetensors_metadata_count": (c.c_int, [
        POINTER]), "safetensors_create": (POINTER, [c.c_char_p]), "safetensors_add": (c.c_bool, [
            POINTER, c.c_char_p, POINTER]), "safetensors_add_metadata": (c.c_bool, [POINTER, c.c_char_p, c.c_char_p]),
    "safetensors_finish": (c.c_bool, [POINTER]), "array_free": (None, [c.POINTER(Array)]), "image_load": (c.c_bool, [
        c.c_char_p,
        c.POINTER(Array)]), "image_resize": (c.c_bool, [c.POINTER(Array), c.c_int64, c.c_int64,
                                                        c.POINTER(Array)]), "image_convert": (c.c_bool, [
                                                            c.POINTER(Array), c.c_int64,
                                                            c.POINTER(Array)]), "model_gpt2_sized": (POINTER, [
                                                                c.POINTER(Gpt2Config), c.c_size_t, Device,
                                                                c.c_uint64]), "gpt2_config_of_sized": (c.c_bool, [
                                                                    POINTER, c.POINTER(Gpt2Config), c.c_size_t
                                                                ]), "gpt2_loss": (POINTER, [POINTER, POINTER, POINTER]),
    "model_loss": (POINTER, [POINTER, POINTER, POINTER]), "model_llama_sized": (POINTER, [
        c.POINTER(LlamaConfig), c.c_size_t, Device, c.c_uint64]), "llama_config_of_sized": (c.c_bool, [
            POINTER, c.POINTER(LlamaConfig),
            c.c_size_t]), "model_open_sized": (POINTER, [c.c_char_p, Device,
                                                         c.POINTER(ModelOpenOptions),
                                                         c.c_size_t]), "model_write": (c.c_bool, [POINTER, c.c_char_p]),
    "lora_load": (c.c_bool, [POINTER, c.c_char_p]), "lora_save": (c.c_bool, [
        POINTER, c.c_char_p, c.c_char_p]), "lora_merge": (c.c_bool, [POINTER]), "generate_sized": (c.c_int64, [
            POINTER,
            c.POINTER(c.c_int32), c.c_int64,
            c.POINTER(c.c_int32),
            c.POINTER(GenerateOptions), c.c_size_t
        ]), "sampler_new_sized": (POINTER, [c.POINTER(SamplerOptions), c.c_size_t]), "sampler_accept": (c.c_bool, [
            POINTER, POINTER]), "sampler_sample": (POINTER, [POINTER, POINTER]), "sampler_free": (None, [POINTER]),
    "token_logprobs": (POINTER, [POINTER, POINTER, c.c_int64]), "generator_new_sized": (POINTER, [
        POINTER, POINTER, c.POINTER(GeneratorOptions),
        c.c_size_t]), "generator_prompt_sized": (c.c_bool, [
            POINTER, c.c_int64,
            c.POINTER(c.c_int32), c.c_int64,
            c.POINTER(GenerateOptions), c.c_size_t
        ]), "generator_next_sized": (c.c_bool, [POINTER, c.POINTER(Output), c.c_size_t]), "generator_free": (None, [
            POINTER]), "sgd_sized": (POINTER, [POINTER, c.POINTER(SgdOptions), c.c_size_t]), "adam_sized": (POINTER, [
                POINTER, c.POINTER(AdamOptions), c.c_size_t
            ]), "adamw_sized": (POINTER, [POINTER, c.POINTER(AdamwOptions), c.c_size_t]), "optimizer_step": (c.c_bool, [
                POINTER]), "optimizer_clip_norm": (POINTER, [POINTER, c.c_double]), "optimizer_clip_value": (c.c_bool, [
                    POINTER, c.c_double]), "optimizer_set_schedule": (c.c_bool, [POINTER, c.POINTER(Schedule)
                                                                                ]), "optimizer_free": (None, [POINTER]),
    "ema_new_sized": (POINTER, [POINTER, POINTER, c.POINTER(EmaOptions), c.c_size_t]),
    "ema_update": (c.c_bool, [POINTER]), "ema_apply": (c.c_bool, [POINTER]), "ema_restore": (c.c_bool, [POINTER]),
    "ema_free": (None, [POINTER]),
    "table_open_sized": (POINTER, [c.c_char_p, POINTER, c.c_size_t]), "table_free": (None, [POINTER]),
    "table_encoder_new_sized": (POINTER, [POINTER, POINTER, c.c_size_t]), "table_encoder_free": (None, [POINTER]),
    "dataset_table": (POINTER, [POINTER, POINTER, c.c_int]),
    "array_free": (None, [POINTER]), "npy_load": (c.c_bool, [c.c_char_p, POINTER]), "dataset_csv_sized": (POINTER, [
        c.c_char_p, POINTER,
        c.c_size_t]), "dataset_idx": (POINTER, [c.c_char_p, c.c_char_p]), "dataset_mnist": (POINTER, [
            c.c_char_p, c.c_bool]), "dataset_count": (c.c_int64, [POINTER]), "dataset_field_count": (c.c_int, [
                POINTER]), "dataset_field": (c.c_bool, [POINTER, c.c_int, POINTER]), "dataset_read": (c.c_bool, [
                    POINTER, c.c_int64, TENSORS]), "dataset_free": (None, [POINTER]), "loader_new_sized": (POINTER, [
                        POINTER, c.POINTER(LoaderOptions),
                        c.c_size_t]), "loader_next": (c.c_bool, [POINTER, TENSORS]), "loader_batches": (c.c_int64, [
                            POINTER]), "loader_free": (None, [POINTER]),
    "tokenizer_open": (POINTER, [c.c_char_p]), "tokenizer_bytes": (POINTER, []), "tokenizer_characters": (POINTER, [
        c.c_char_p, c.c_size_t]), "tokenizer_free": (None, [POINTER]), "tokenizer_save": (c.c_bool, [
            POINTER, c.c_char_p]), "tokenizer_count": (c.c_int64, [POINTER]), "tokenizer_encode_sized": (POINTER, [
                POINTER, c.c_char_p, c.c_size_t,
                c.POINTER(EncodeOptions), c.c_size_t,
                c.POINTER(c.c_int64)]), "tokenizer_decode": (POINTER, [
                    POINTER, c.POINTER(c.c_int32),
                    c.c_int64, c.POINTER(c.c_size_t)]), "tokenizer_release": (None, [
                        POINTER]), "tokenizer_hash": (c.c_uint64, [POINTER]), "text_stream_new_sized": (POINTER, [
                            POINTER, POINTER, c.c_size_t]), "text_stream_push": (POINTER, [
                                POINTER, c.c_int32,
                                c.POINTER(c.c_size_t)]), "text_stream_end": (POINTER, [POINTER,
                                                                                       c.POINTER(c.c_size_t)]),
    "text_stream_free": (None, [POINTER]), "chat_name": (c.c_char_p, [POINTER]), "chat_render": (POINTER, [
        POINTER, POINTER, c.c_int, c.c_bool, c.POINTER(c.c_size_t)]), "chat_encode": (POINTER, [
            POINTER, POINTER, c.c_int, c.c_bool, c.POINTER(c.c_int64)
        ]), "chat_render_json_sized": (POINTER, [
            POINTER, c.c_char_p, c.c_size_t, POINTER, c.c_size_t, c.POINTER(c.c_size_t)
        ]), "chat_encode_json_sized": (POINTER, [
            POINTER, c.c_char_p, c.c_size_t, POINTER, c.c_size_t, c.POINTER(POINTER), c.POINTER(c.c_int64)
        ]), "chat_eot": (c.c_int32, [POINTER]), "tokenizer_set_chat": (c.c_bool, [POINTER, c.c_char_p
        ]), "chat_dataset_open_sized": (POINTER, [
            c.POINTER(ChatDatasetOptions), c.c_size_t
        ]), "chat_dataset_counts_of": (c.c_bool,
                                       [POINTER, c.POINTER(ChatDatasetCounts)]), "chat_dataset_batch": (c.c_bool, [
                                           POINTER, c.c_int, c.c_int64, c.c_int64,
                                           c.POINTER(ChatDatasetRows)
                                       ]), "chat_dataset_close": (None, [POINTER]), "bpe_train_sized": (POINTER, [
                                           c.POINTER(c.c_char_p),
                                           c.POINTER(c.c_size_t), c.c_int, c.c_int64,
                                           c.POINTER(BpeOptions), c.c_size_t]), }

library = c.CDLL(os.environ["TARN_LIBRARY"])


def _declare(name, result, arguments):
    function = getattr(library, "tarn_" + name)
    function.restype, function.argtypes = result, arguments
    return function


_functions = {name: _declare(name, *signature) for name, signature in FUNCTIONS.items()}
_place = [Device(0, 0), "cpu"]


def call(name, *arguments):
    """Calls a function of the interface; a pending error becomes an exception and is cleared."""
    result = _functions[name](*arguments)
    if _functions["failed"]():
        error = Error(CODES[_functions["error_code"]()], _functions["error"]().decode())
        _functions["clear_error"]()
        raise error
    return result


def use_device(text):
    _place[:] = call("device_parse", text.encode()), text


def device():
    return _place[0]


def device_name():
    """As it was asked for: cpu, cuda …"""
    return _place[1]


def device_description():
    """What its maker calls it."""
    info = DeviceInfo()
    call("device_query", device(), c.byref(info))
    return info.description.decode()


@contextlib.contextmanager
def scope():
    opened = call("scope_open")
    try:
        yield
    finally:
        _functions["scope_close"](opened)


@contextlib.contextmanager
def no_grad():
    _functions["no_grad_open"]()
    try:
        yield
    finally:
        _functions["no_grad_close"]()


def operations():
    """What the library says of each of its operations."""
    infos = []
    for index in range(call("op_count")):
        info = OpInfo()
        call("op_at", index, c.byref(info))
        infos.append(info)
    return infos


def tensor(values):
    """A dense tensor on the device in use, with the bits of a torch tensor."""
    values = values.contiguous()
    return call("from", values.data_ptr() or None, Shape(values.shape), DTYPES.index(NAME[values.dtype]), device())


def shape_of(handle):
    shape = call("shape_of", handle)
    return tuple(shape.size[:shape.rank])


def read(handle):
    """The elements as a torch tensor of the same dtype."""
    values = torch.empty(shape_of(handle), dtype=TORCH[DTYPES[call("dtype_of", handle)]])
    call("read", handle, values.data_ptr() or None, values.numel() * values.element_size())
    return values


def write(handle, values):
    values = values.contiguous()
    call("write", handle, values.data_ptr(), values.numel() * values.element_size())


def attribute(name, value):
    """An attribute from a Python value: a list, a whole number or bool, or a real number."""
    if isinstance(value, (list, tuple)):
        return Attribute(name.encode(), 0, 0, (c.c_int64 * MAX_RANK)(*value), len(value))
    if isinstance(value, float):
        return Attribute(name.encode(), value, 0)
    return Attribute(name.encode(), 0, int(value))


def apply(name, inputs, attributes, outputs):
    """Runs an operation by its name. Inputs are handles or None; returns the list of output handles (None where one is
    not made)."""
    given = (c.c_void_p * len(inputs))(*inputs)
    listed = (Attribute * len(attributes))(*(attribute(*item) for item in attributes.items()))
    made = (c.c_void_p * outputs)()
    call("apply", name.encode(), given, len(inputs), listed, len(attributes), made, outputs)
    return list(made)


def backward(handle, upstream, retain=False):
    options = c.c_bool(retain)
    call("backward_from_sized", handle, upstream, c.byref(options), c.sizeof(options))


def gradient(handle):
    """The gradient that backward left, or None."""
    grad = call("grad", handle)
    return read(grad) if grad else None
