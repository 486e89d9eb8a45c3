/* option_table.c: the table of options of all sub-commands, the lookup of a flag in it, and --help.
 *
 * A row declares an option for the commands of a mask; an option that differs between commands has several rows.
 * Options of a training run are not in this table: they come from the library (train_options.c). Old names are looked
 * up only when the typed name is not an option, so a command may reuse one.
 *
 * Rows of one name must have disjoint masks: the first row that matches a command wins. The default is text, which
 * is parsed like a typed value; NULL leaves the field at zero, and brackets at the end of the help say what that
 * means then. */
#include "cli/cli.h"
#include "cli/options.h"

#include <stdio.h>
#include <string.h>

/* Masks of commands with common options. */
#define BENCH (TARN__BENCH_MATMUL | TARN__BENCH_OPS | TARN__BENCH_WEIGHTS | TARN__BENCH_COMM)
#define RUNS (TARN__EVAL | TARN__PREDICT)
#define AT(field) offsetof(tarn__options, field)
#define EXACT ((int64_t)1 << 53) /* integers up to 2^53 are exact in JSON readers */

/* Order is that of --help. Bounds are inclusive, in the unit that is typed; for DTYPES, DEVICE and STRINGS `high` is
 * the maximum number of values. */
static const tarn__option_row table[] = {
    {"json", TARN__OPT_FLAG, 0, 1, NULL, NULL,
     TARN__EVERY & ~(unsigned)(TARN__DEMO | TARN__CHAT | TARN__BOARD | TARN__SERVE), AT(json), 0,
     "one JSON object per line instead of a table"},
    {"threads", TARN__OPT_INT, 0, 256, "0", "N",
     TARN__EVERY & ~(unsigned)(TARN__OPS | TARN__INSPECT | TARN__DATA | TARN__RUNS | TARN__BOARD | TARN__PULL),
     AT(threads), 0, "CPU threads; 0 = one per core"},
    {"variants", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__OPS, AT(variants), 0,
     "list the variants of each kernel instead, per backend, in the order in which they are tried"},
    {"device", TARN__OPT_DEVICE, 1, 1, "auto", "DEVICE",
     TARN__BENCH_MATMUL | TARN__BENCH_WEIGHTS | TARN__BENCH_DECODE | TARN__PREDICT | TARN__BENCH_SERVE | TARN__DEMO,
     AT(devices), AT(device_count), "device: cpu, cuda:0, opencl:1 or auto"},
    {"device", TARN__OPT_DEVICE, 1, TARN__DEVICES_MAX, "auto", "DEVICE", TARN__EVAL | TARN__OPENS_LM, AT(devices),
     AT(device_count), "device: cpu, cuda:0, opencl:1 or auto; several, as in cuda:0,cuda:1, share the layers"},
    {"tensor-split", TARN__OPT_STRING, 0, 0, NULL, "N,N", TARN__EVAL | TARN__OPENS_LM, AT(tensor_split), 0,
     "with several devices: proportion of the layers on each, as in 3,1 [by free memory]"},
    {"device", TARN__OPT_DEVICE, 1, 2, "auto", "DEVICE", TARN__BENCH_OPS, AT(devices), AT(device_count),
     "device: cpu, cuda:0, opencl:1 or auto; two, as in cpu,cuda, are compared at 16, 128 and 1024 rows"},
    {"sizes", TARN__OPT_INTS, 1, 32768, "128,256,512,1024,2048,4096", "N,N", TARN__BENCH_MATMUL, AT(sizes),
     AT(size_count), "rows and columns of the matrices"},
    {"sizes", TARN__OPT_BYTES, 256, (int64_t)4 << 30, "", "N,N", TARN__BENCH_OPS, AT(sizes), AT(size_count),
     "bytes of the main operand, with KiB, MiB or GiB, or model: the sizes of GPT-2 [4KiB,1MiB,64MiB; model on GPUs]"},
    {"sizes", TARN__OPT_BYTES, 256, (int64_t)4 << 30, "4KiB,1MiB,16MiB,64MiB", "N,N", TARN__BENCH_COMM, AT(sizes),
     AT(size_count), "total bytes of all ranks, with KiB, MiB or GiB"},
    {"dtype", TARN__OPT_DTYPES, 1, 1, "f32", "DTYPE", TARN__BENCH_MATMUL, AT(dtypes), AT(dtype_count),
     "element type: f32, f64, bf16 or f16"},
    {"dtype", TARN__OPT_DTYPES, 1, 1, "", "DTYPE", TARN__OPENS_LM | TARN__BENCH_SERVE, AT(dtypes), AT(dtype_count),
     "dtype of unquantized weights: f32, f64, bf16 or f16 [as stored; f32 where they differ]"},
    {"dtypes", TARN__OPT_DTYPES, 1, 5, "", "DTYPE,DTYPE", TARN__BENCH_OPS, AT(dtypes), AT(dtype_count),
     "element types: f32, f64, bf16, f16, or tf32 for f32 matmuls [f32,bf16; tf32 too on devices with it]"},
    {"only", TARN__OPT_WORDS, 1, TARN__LIST_MAX, "", "NAME,NAME", TARN__BENCH_OPS, AT(only), AT(only_count),
     "rows or operations to measure, such as add,sum-last,softmax [all]"},
    {"only", TARN__OPT_WORDS, 1, TARN__LIST_MAX, "", "DTYPE,DTYPE", TARN__BENCH_WEIGHTS, AT(only), AT(only_count),
     "weight types to measure: quantized types, bf16 or f32 [all]"},
    {"runs", TARN__OPT_INT, 5, 1000, "7", "N", BENCH, AT(runs), 0, "measurements per value; the median is printed"},
    {"runs", TARN__OPT_INT, 1, 100, "3", "N", TARN__BENCH_DECODE, AT(runs), 0,
     "measurements per value; the median is printed"},
    {"model", TARN__OPT_STRING, 0, 0, "gpt2-124m", "NAME", TARN__BENCH_DECODE, AT(model), 0,
     "model size by name: gpt2-124m, llama-1b, llama-3b …"},
    {"dtype", TARN__OPT_STRING, 0, 0, "f32", "DTYPE", TARN__BENCH_DECODE, AT(weights), 0,
     "dtype of the weights: f32, bf16, f16; for Llama models also quantized types, such as q4_k"},
    {"prompt", TARN__OPT_INT, 1, 1 << 20, "512", "N", TARN__BENCH_DECODE, AT(prompt_tokens), 0,
     "prompt length in tokens"},
    {"tokens", TARN__OPT_INT, 1, 1000000, "64", "N", TARN__BENCH_DECODE, AT(max_tokens), 0,
     "tokens to decode after the prompt"},
    {"n", TARN__OPT_INT, 1, 1024, "1", "N", TARN__BENCH_DECODE, AT(sequences), 0, "sequences in a batch"},
    {"kv-type", TARN__OPT_STRING, 0, 0, NULL, "TYPE", TARN__BENCH_DECODE, AT(kv_type), 0,
     "KV cache type: f32, bf16, f16, q8_0, or model for the model's compute dtype [model]"},
    {"prefill-chunk", TARN__OPT_INT, 0, 1000000, "0", "N", TARN__BENCH_DECODE, AT(prefill_chunk), 0,
     "prefill chunk in tokens; 0 = the whole prompt"},
    {"clients", TARN__OPT_INT, 1, 65536, NULL, "N", TARN__BENCH_SERVE, AT(clients), 0,
     "concurrent clients; each sends its next request when the last has finished [16]"},
    {"rate", TARN__OPT_ABOVE, 0, 1000000, NULL, "X", TARN__BENCH_SERVE, AT(rate), 0,
     "instead of --clients: mean requests per second at random times (Poisson), however long answers take"},
    {"requests", TARN__OPT_INT, 1, 1000000000, NULL, "N", TARN__BENCH_SERVE, AT(requests), 0, "number of requests"},
    {"seconds", TARN__OPT_ABOVE, 0, 1000000, NULL, "X", TARN__BENCH_SERVE, AT(seconds), 0,
     "instead of --requests: time in which requests start [10]"},
    {"engine", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__BENCH_SERVE, AT(engine_alone), 0,
     "run the load on an engine in this process, without a server; the difference is the cost of HTTP"},
    {"prompt-tokens", TARN__OPT_INT, 1, 1 << 20, "128", "N", TARN__BENCH_SERVE, AT(prompt_tokens), 0,
     "prompt length in tokens, drawn at random"},
    {"new-tokens", TARN__OPT_INT, 1, 1 << 20, "64", "N", TARN__BENCH_SERVE, AT(max_tokens), 0,
     "new tokens per request; EOS does not end it"},
    {"seed", TARN__OPT_INT, 0, EXACT, "0", "N", TARN__BENCH_SERVE, AT(seed), 0,
     "random seed of the prompts and arrivals"},
    {"batch", TARN__OPT_INT, 1, 65536, NULL, "N", TARN__BENCH_TRAIN, AT(batch_size), 0,
     "batch size per step [32 sequences, 128 images]"},
    {"steps", TARN__OPT_INT, 1, 100000, "20", "N", TARN__BENCH_TRAIN, AT(steps), 0,
     "steps to measure; the median is printed"},
    {"warmup", TARN__OPT_INT, 0, 100000, "5", "N", TARN__BENCH_TRAIN, AT(warmup), 0, "warm-up steps before them"},
    {"resume", TARN__OPT_STRING, 0, 0, NULL, "FOLDER", TARN__TRAIN, AT(resume), 0,
     "resume the run in FOLDER from its last checkpoint"},
    {"dry-run", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__TRAIN, AT(dry_run), 0, "print the plan and exit"},
    {"profile", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__TRAIN, AT(profile), 0,
     "step time breakdown; writes profile.json and trace.json (for Chrome or Perfetto) to the run folder"},
    {"ranks", TARN__OPT_INT, 1, 1024, NULL, "N", TARN__TRAIN, AT(ranks), 0,
     "data parallel: start N processes on this machine"},
    {"ranks", TARN__OPT_INT, 1, 1024, NULL, "N", TARN__EVAL, AT(ranks), 0,
     "start N processes on this machine, which share the batches"},
    {"gpus", TARN__OPT_INT, 1, 64, NULL, "N", TARN__EVAL, AT(gpus), 0,
     "start a process for each of the first N GPUs of this machine"},
    {"ranks", TARN__OPT_INT, 1, 1024, NULL, "N", TARN__BENCH_COMM, AT(ranks), 0,
     "processes to start on this machine [2]"},
    {"gpus", TARN__OPT_INT, 1, 64, NULL, "N", TARN__BENCH_COMM, AT(gpus), 0,
     "start a process for each of the first N GPUs instead"},
    {"gpus", TARN__OPT_INT, 1, 64, NULL, "N", TARN__TRAIN, AT(gpus), 0,
     "data parallel: start a process for each of the first N GPUs of this machine"},
    {"profile-steps", TARN__OPT_INT, 1, 10000, NULL, "N", TARN__TRAIN, AT(profile_steps), 0,
     "with --profile: steps to profile, after the first ten [10]"},
    {"quiet", TARN__OPT_FLAG, 0, 1, NULL, NULL,
     TARN__TRAIN | TARN__TOKENIZE | TARN__QUANTIZE | TARN__CONVERT | TARN__PULL, AT(quiet), 0, "print errors only"},
    {"quiet", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__CHAT, AT(quiet), 0, "no heading and no tokens/s on a terminal"},
    {"no-history", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__CHAT, AT(no_history), 0,
     "on a terminal: neither read nor write the history of messages"},
    {"type", TARN__OPT_STRING, 0, 0, NULL, "TYPE", TARN__QUANTIZE | TARN__CONVERT, AT(type), 0,
     "mixture of weight types, such as Q4_K_M or Q5_K_S; in lower case one type for all matrices, such as q4_k"},
    {"imatrix", TARN__OPT_STRING, 0, 0, NULL, "SOURCE", TARN__QUANTIZE, AT(imatrix), 0,
     "importance matrix: text:FILE to run the model over, or llama.cpp's imatrix file"},
    {"adapter", TARN__OPT_STRING, 0, 0, NULL, "PATH", TARN__OPENS_LM | TARN__BENCH_SERVE | TARN__EVAL, AT(adapter), 0,
     "LoRA adapters for the model: a folder written by PEFT or tarn, or a GGUF file"},
    {"adapter", TARN__OPT_STRING, 0, 0, NULL, "PATH", TARN__QUANTIZE | TARN__CONVERT, AT(adapter), 0,
     "LoRA adapters to merge into the weights: a folder written by PEFT or tarn, or a GGUF file"},
    {"base", TARN__OPT_STRING, 0, 0, NULL, "MODEL", TARN__CONVERT, AT(convert_base), 0,
     "base model of adapters: converts only the adapters, between a folder and a GGUF file"},
    {"checkpoint", TARN__OPT_STRING, 0, 0, NULL, "best|last",
     TARN__OPENS_LM | TARN__BENCH_SERVE | TARN__EVAL | TARN__PREDICT | TARN__QUANTIZE | TARN__CONVERT, AT(checkpoint),
     0, "weights of a run: those of the best evaluation, or the last ones [best]"},
    {"force", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__QUANTIZE | TARN__CONVERT, AT(force), 0,
     "replace an existing file or folder"},
    {"data", TARN__OPT_STRING, 0, 0, NULL, "DATA", TARN__EVAL, AT(data), 0,
     "data to evaluate, named as for train [the run's validation set]"},
    {"batch-size", TARN__OPT_INT, 1, 65536, "256", "N", TARN__EVAL, AT(batch_size), 0, "batch size"},
    {"confusion", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__EVAL, AT(confusion), 0, "classifiers: confusion matrix"},
    {"mistakes", TARN__OPT_INT, 1, 1000000, NULL, "N", TARN__EVAL, AT(mistakes), 0,
     "classifiers: samples to list, those whose true class is the least probable"},
    {"top", TARN__OPT_INT, 1, 65536, "5", "N", TARN__PREDICT, AT(top), 0, "number of most probable classes to print"},
    {"output", TARN__OPT_STRING, 0, 0, NULL, "FILE", TARN__PREDICT, AT(output), 0,
     "tables: CSV file for the rows and their predictions [standard output]"},
    {"ids", TARN__OPT_STRING, 0, 0, NULL, "N,N", TARN__GENERATE, AT(ids), 0,
     "prompt as token ids; the output is token ids too, and no tokenizer is needed"},
    {"max-tokens", TARN__OPT_INT, 0, 1000000, "0", "N", TARN__GENERATE, AT(max_tokens), 0,
     "maximum number of tokens to generate; 0 = 100"},
    {"no-slide", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__GENERATE, AT(no_slide), 0,
     "stop when the context is full, instead of continuing with BOS and its last half"},
    {"no-slide", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__CHAT, AT(no_slide), 0, "same as --on-full refuse"},
    {"temperature", TARN__OPT_REAL, 0, 100, "0.8", "X", TARN__GENERATES, AT(temperature), 0,
     "sampling temperature; 0 = greedy"},
    {"top-k", TARN__OPT_INT, 0, 1000000, "40", "N", TARN__GENERATES, AT(top_k), 0, "top-k sampling; 0 = off"},
    {"top-p", TARN__OPT_ABOVE, 0, 1, "1", "X", TARN__GENERATES, AT(top_p), 0, "top-p (nucleus) sampling; 1 = off"},
    {"seed", TARN__OPT_INT, 0, EXACT, "0", "N", TARN__GENERATES | TARN__DEMO, AT(seed), 0,
     "random seed; the same seed gives the same text"},
    {"min-p", TARN__OPT_REAL, 0, 1, "0", "X", TARN__GENERATES, AT(min_p), 0,
     "minimum probability relative to the most probable token; 0 = off"},
    {"repeat-penalty", TARN__OPT_ABOVE, 0, 100, "1", "X", TARN__GENERATES, AT(repeat_penalty), 0,
     "repetition penalty; 1 = off"},
    {"repeat-last-n", TARN__OPT_INT, 0, 1000000, "0", "N", TARN__GENERATES, AT(repeat_last_n), 0,
     "last tokens for --repeat-penalty; 0 = all"},
    {"frequency-penalty", TARN__OPT_REAL, -100, 100, "0", "X", TARN__GENERATES, AT(frequency_penalty), 0,
     "OpenAI's penalty on generated tokens, per occurrence; 0 = off"},
    {"presence-penalty", TARN__OPT_REAL, -100, 100, "0", "X", TARN__GENERATES, AT(presence_penalty), 0,
     "OpenAI's penalty on generated tokens, once per token; 0 = off"},
    {"ignore-eos", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__GENERATE, AT(ignore_eos), 0, "continue after an EOS token"},
    {"grammar", TARN__OPT_STRING, 0, 0, NULL, "FILE", TARN__GENERATES, AT(grammar), 0,
     "GBNF grammar that constrains the text"},
    {"json-schema", TARN__OPT_STRING, 0, 0, NULL, "FILE", TARN__GENERATES, AT(json_schema), 0,
     "JSON Schema that constrains the text to a JSON value"},
    {"regex", TARN__OPT_STRING, 0, 0, NULL, "PATTERN", TARN__GENERATES, AT(regex), 0,
     "regular expression that constrains the whole text"},
    {"json-object", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__GENERATES, AT(json_object), 0,
     "constrain the text to any JSON object"},
    {"stop", TARN__OPT_STRINGS, 0, TARN__STOPS_MAX, NULL, "TEXT", TARN__GENERATE, AT(stops), AT(stop_count),
     "stop string; may be given several times"},
    {"prompt-file", TARN__OPT_STRING, 0, 0, NULL, "PATH", TARN__GENERATE, AT(prompt_file), 0,
     "prompt file; - = standard input"},
    {"echo", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__GENERATE, AT(echo), 0, "print the prompt first"},
    {"n", TARN__OPT_INT, 1, 1024, "1", "N", TARN__GENERATE, AT(sequences), 0,
     "sequences to generate at once, with consecutive seeds; they share the prompt's KV cache"},
    {"top-logprobs", TARN__OPT_INT, 0, 100, "0", "N", TARN__GENERATE, AT(top_logprobs), 0,
     "with --json: log probability of each token and of the N most probable ones; 0 = off"},
    {"kv-type", TARN__OPT_STRING, 0, 0, NULL, "TYPE", TARN__OPENS_LM | TARN__BENCH_SERVE, AT(kv_type), 0,
     "KV cache type: f32, bf16, f16, q8_0, or model for the model's compute dtype [model]"},
    {"gpu-layers", TARN__OPT_INT, 1, 1024, NULL, "N", TARN__GENERATES | TARN__SERVES | TARN__EVAL | TARN__BENCH_DECODE,
     AT(gpu_layers), 0, "layers to offload to the device, from the first; the others stay on the CPU [all]"},
    {"speculate", TARN__OPT_STRING, 0, 0, NULL, "HOW", TARN__GENERATES, AT(speculate), 0,
     "speculative decoding on the CPU, the same text faster: off, ngram (proposes what followed the same tokens "
     "earlier) or draft (tokens of --draft-model) [draft with --draft-model, else off]"},
    {"draft-model", TARN__OPT_STRING, 0, 0, NULL, "MODEL", TARN__GENERATES, AT(draft_model), 0,
     "smaller model with the same tokenizer, for --speculate draft"},
    {"draft-tokens", TARN__OPT_INT, 1, 7, NULL, "N", TARN__GENERATES, AT(draft_tokens), 0,
     "with --speculate: maximum tokens per proposal [7]"},
    {"prefill-chunk", TARN__OPT_INT, 1, 1000000, "512", "N", TARN__GENERATES, AT(prefill_chunk), 0,
     "prefill chunk in tokens"},
    {"context", TARN__OPT_INT, 0, 1 << 30, "0", "N", TARN__GENERATE, AT(context), 0,
     "KV cache capacity in tokens; 0 = prompt plus --max-tokens, at most the model's context length"},
    {"tokenizer", TARN__OPT_STRING, 0, 0, NULL, "PATH", TARN__TOKENIZE, AT(tokenizer), 0,
     "model folder, tokenizer.json, tokenizer.model, vocab.json or .gguf file; bytes; or characters (of the files)"},
    {"text", TARN__OPT_STRING, 0, 0, NULL, "TEXT", TARN__TOKENIZE, AT(text), 0,
     "text instead of files or standard input"},
    {"decode", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(decode), 0, "token ids to text"},
    {"pieces", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(pieces), 0,
     "each id with its token string, one per line"},
    {"special-as-text", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(special_as_text), 0,
     "treat special tokens in the input as ordinary text"},
    {"add-special", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(add_special), 0,
     "add the tokenizer's special tokens around a text"},
    {"train", TARN__OPT_INT, 256, 1 << 24, NULL, "N", TARN__TOKENIZE, AT(vocab_size), 0,
     "train a BPE tokenizer with N tokens on the files, for --out or --prepare"},
    {"out", TARN__OPT_STRING, 0, 0, NULL, "FOLDER", TARN__TOKENIZE, AT(out), 0, "folder for tokenizer.json"},
    {"out", TARN__OPT_STRING, 0, 0, NULL, "FOLDER", TARN__DEMO, AT(out), 0,
     "new run folder; its text is written to FOLDER.txt [runs/demo; with --chat: model folder, in the user's cache]"},
    {"steps", TARN__OPT_INT, 1, 1000000, NULL, "N", TARN__DEMO, AT(steps), 0,
     "training steps; with --chat on stories, then half as many on conversations [800; with --chat 1500]"},
    {"chat", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__DEMO, AT(chat), 0,
     "chat with a small story model; if it is not installed, it is first trained, once, in minutes"},
    {"prepare", TARN__OPT_STRING, 0, 0, NULL, "FOLDER", TARN__TOKENIZE, AT(prepare), 0,
     "new folder for token shards of the files, to train on"},
    {"val-fraction", TARN__OPT_REAL, 0, 1, "0", "X", TARN__TOKENIZE, AT(val_fraction), 0,
     "with --prepare: fraction for validation"},
    {"shard-tokens", TARN__OPT_INT, 1024, (int64_t)1 << 40, NULL, "N", TARN__TOKENIZE, AT(shard_tokens), 0,
     "with --prepare: maximum tokens per file [100000000]"},
    {"json-lines", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(json_lines), 0,
     "read all files as JSON lines, not only *.jsonl"},
    {"field", TARN__OPT_STRING, 0, 0, NULL, "NAME", TARN__TOKENIZE, AT(field), 0, "text field of JSON lines [text]"},
    {"separator", TARN__OPT_STRING, 0, 0, NULL, "TOKEN", TARN__TOKENIZE, AT(separator), 0,
     "with --prepare: token after each document [the tokenizer's end of text]"},
    {"no-separator", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(no_separator), 0,
     "with --prepare: no token after a document"},
    {"parse-special", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__TOKENIZE, AT(parse_special), 0,
     "with --prepare: parse special tokens in the files"},
    {"max-tokens", TARN__OPT_INT, 0, 1000000, "0", "N", TARN__CHAT, AT(max_tokens), 0,
     "maximum tokens per answer; 0 = up to the context"},
    {"context", TARN__OPT_INT, 0, 1 << 30, "0", "N", TARN__CHAT, AT(context), 0,
     "KV cache capacity in tokens; 0 = 4096, or the model's context length"},
    {"system", TARN__OPT_STRING, 0, 0, NULL, "TEXT", TARN__CHAT, AT(system), 0, "system message"},
    {"tools", TARN__OPT_STRING, 0, 0, NULL, "FILE", TARN__CHAT, AT(tools), 0,
     "JSON array of functions in OpenAI's format that the model may call; /tool RESULT answers a call"},
    {"on-full", TARN__OPT_STRING, 0, 0, NULL, "ACTION", TARN__CHAT, AT(on_full), 0,
     "when the context is full: forget the oldest turns, or refuse [forget]"},
    {"model", TARN__OPT_STRING, 0, 0, NULL, "MODEL", TARN__DATA, AT(model), 0,
     "model to train: a folder or .gguf file with its tokenizer and template"},
    {"context", TARN__OPT_INT, 0, 1 << 24, "0", "N", TARN__DATA, AT(context), 0,
     "tokens per row; 0 = the model's context length, at most 2048"},
    {"template", TARN__OPT_STRING, 0, 0, NULL, "NAME", TARN__DATA | TARN__CHAT | TARN__SERVE | TARN__EVAL,
     AT(template_name), 0, "chat template: chatml, llama2, llama3 or mistral [the model's]"},
    {"add-tokens", TARN__OPT_STRING, 0, 0, NULL, "TOKENS", TARN__DATA, AT(add_tokens), 0,
     "special tokens to add: '<|im_start|>,<|im_end|>', or text:FILE with one per line"},
    {"val", TARN__OPT_STRING, 0, 0, NULL, "FILE", TARN__DATA, AT(val), 0, "JSON lines for validation"},
    {"val-fraction", TARN__OPT_REAL, 0, 1, "0", "X", TARN__DATA, AT(val_fraction), 0,
     "fraction of the documents for validation, below 1"},
    {"seed", TARN__OPT_INT, 0, EXACT, "0", "N", TARN__DATA, AT(seed), 0,
     "random seed of the split and of the row order"},
    {"show", TARN__OPT_INT, 0, 1 << 20, "1", "N", TARN__DATA, AT(show), 0, "first rows to print, token by token"},
    {"compare", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__RUNS, AT(compare), 0,
     "compare 2 to 8 run folders: a page with curves, results and the options that differ"},
    {"out", TARN__OPT_STRING, 0, 0, NULL, "FILE", TARN__RUNS, AT(out), 0, "with --compare: HTML file [compare.html]"},
    {"port", TARN__OPT_INT, 0, 65535, "6007", "N", TARN__BOARD, AT(port), 0, "port on 127.0.0.1; 0 = a free one"},
    {"host", TARN__OPT_STRING, 0, 0, "127.0.0.1", "ADDRESS", TARN__SERVE, AT(host), 0,
     "address to listen on; other than loopback needs --api-key-file"},
    {"port", TARN__OPT_INT, 0, 65535, "8080", "N", TARN__SERVE, AT(port), 0, "port; 0 = a free one"},
    {"api-key-file", TARN__OPT_STRING, 0, 0, NULL, "FILE", TARN__SERVE, AT(api_key_file), 0,
     "file of API keys, one per line; requests must have one of them"},
    {"api-key-file", TARN__OPT_STRING, 0, 0, NULL, "FILE", TARN__BENCH_SERVE, AT(api_key_file), 0,
     "with a URL: file of API keys, one per line; the first is used"},
    {"origin", TARN__OPT_STRINGS, 0, TARN__ORIGINS_MAX, NULL, "URL", TARN__SERVE, AT(origins), AT(origin_count),
     "origin of web pages that may use the server (CORS), such as https://example.org; may be given several times"},
    {"alias", TARN__OPT_STRINGS, 0, TARN__MODELS_MAX, NULL, "NAME", TARN__SERVE, AT(aliases), AT(alias_count),
     "model name in requests and answers; may be given once per model [the last part of its path]"},
    {"lora", TARN__OPT_STRINGS, 0, TARN__LORAS_MAX, NULL, "NAME=PATH", TARN__SERVE, AT(loras), AT(lora_count),
     "LoRA adapters that a request selects by NAME as its model: a folder or a GGUF file; may be given several times"},
    {"context", TARN__OPT_INT, 0, 1 << 30, "0", "N", TARN__SERVES, AT(context), 0,
     "tokens of a request, prompt included; 0 = 8192, or the model's context length"},
    {"sequences", TARN__OPT_INT, 1, 1024, "32", "N", TARN__SERVES, AT(sequences), 0,
     "maximum sequences in a batch; others wait"},
    {"kv-memory", TARN__OPT_INT, 1, 1 << 30, NULL, "MIB", TARN__SERVES, AT(kv_memory), 0,
     "KV cache size in MiB [--sequences contexts, at most 65536 tokens]"},
    {"swap-memory", TARN__OPT_INT, 0, 1 << 30, "0", "MIB", TARN__SERVES, AT(swap_memory), 0,
     "on a GPU: host memory in MiB for KV pages of preempted sequences and past prefixes; 0 = none"},
    {"prefill-chunk", TARN__OPT_INT, 1, 1000000, "512", "N", TARN__SERVES, AT(prefill_chunk), 0,
     "max prompt tokens per step; while sequences decode, at most 5 for each of them, but at least 128"},
    {"speculate", TARN__OPT_STRING, 0, 0, NULL, "HOW", TARN__SERVES, AT(speculate), 0,
     "speculative decoding on the CPU, the same text faster: off, ngram (proposes what followed the same tokens "
     "earlier) or draft (tokens of --draft-model) [draft with --draft-model, else off]"},
    {"draft-model", TARN__OPT_STRING, 0, 0, NULL, "MODEL", TARN__SERVES, AT(draft_model), 0,
     "smaller model with the same tokenizer, for --speculate draft"},
    {"draft-tokens", TARN__OPT_INT, 1, 7, NULL, "N", TARN__SERVES, AT(draft_tokens), 0,
     "with --speculate: maximum tokens per proposal [7]"},
    {"queue", TARN__OPT_INT, 0, 65536, "256", "N", TARN__SERVES, AT(queue), 0,
     "maximum sequences that wait; further requests get status 429"},
    {"drain", TARN__OPT_INT, 0, 86400, "30", "SECONDS", TARN__SERVE, AT(drain), 0,
     "time that open requests have to finish after SIGTERM or Ctrl-C"},
    {"revision", TARN__OPT_STRING, 0, 0, "main", "NAME", TARN__PULL, AT(revision), 0, "branch, tag or commit"},
    {"include", TARN__OPT_STRINGS, 0, TARN__INCLUDES_MAX, NULL, "PATTERN", TARN__PULL, AT(includes), AT(include_count),
     "files to download, such as '*Q4_K_M.gguf'; may be given several times [the files that tarn opens]"},
    {"help", TARN__OPT_FLAG, 0, 1, NULL, NULL, TARN__EVERY, AT(help), 0, "this list"},
};
#define ROWS ((int)(sizeof(table) / sizeof(table[0])))
_Static_assert(ROWS <= TARN__MAX_OPTIONS, "TARN__MAX_OPTIONS is too small");

/* Flags of earlier versions and other spellings, accepted: the name and the one of the table. */
static const char *const old_names[][2] = {{"tokens", "max-tokens"},      {"kv", "kv-type"},
                                           {"chunk", "prefill-chunk"},    {"repeat-window", "repeat-last-n"},
                                           {"ignore-end", "ignore-eos"},  {"logprobs", "top-logprobs"},
                                           {"val-share", "val-fraction"}, {"validation", "val-fraction"},
                                           {"devices", "device"}};

/* Every row, of whatever command, in the order of the table; NULL ends a loop over them. */
const tarn__option_row *tarn__option_at(int i)
{
    return i < ROWS ? &table[i] : NULL;
}

/* `typed` is not terminated: it may be followed by "=VALUE". */
static bool is_name(const char *name, const char *typed, size_t length)
{
    return strlen(name) == length && memcmp(name, typed, length) == 0;
}

static const tarn__option_row *find_name(const char *name, size_t length, unsigned commands)
{
    for (int i = 0; i < ROWS; i++)
        if ((table[i].commands & commands) && is_name(table[i].name, name, length))
            return &table[i];
    return NULL;
}

/* By its present name first: bench decode still has a --tokens of its own. */
const tarn__option_row *tarn__option_find(const char *name, size_t length, unsigned commands)
{
    const tarn__option_row *found = find_name(name, length, commands);
    for (size_t i = 0; !found && i < sizeof(old_names) / sizeof(old_names[0]); i++)
        if (is_name(old_names[i][0], name, length))
            found = find_name(old_names[i][1], strlen(old_names[i][1]), commands);
    return found;
}

/* Bounds of strings, flags, sizes and devices are in their help, where they have any. Options of a run come first,
 * from the library. */
void tarn__options_help(tarn__command command)
{
    tarn__train_options_help(command);
    for (int i = 0; i < ROWS; i++) {
        const tarn__option_row *row = &table[i];
        char left[48], bounds[64] = "";
        if (!(row->commands & command))
            continue;
        snprintf(left, sizeof(left), "--%s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
        if (row->type == TARN__OPT_INT || row->type == TARN__OPT_INTS || row->type == TARN__OPT_REAL ||
            row->type == TARN__OPT_ABOVE)
            snprintf(bounds, sizeof(bounds),
                     row->type == TARN__OPT_ABOVE ? ", above %lld to %lld" : ", from %lld to %lld", (long long)row->low,
                     (long long)row->high);
        tarn__print_option(left, row->help, bounds, row->default_value ? row->default_value : "");
    }
}
