# Short commands over CMake, Ninja and the scripts; `make help` lists them.

PREFIX ?= /usr/local
DESTDIR ?=
BUILD ?= build/release
DEVICE ?= cuda
export DESTDIR

# Test programs of minutes that repeat what others cover: models trained to measure quantization and to answer
# questions, tensors of gibibytes. `make test` and `make asan` are without them.
LONG_TESTS = train\.quantized|cli\.finetune_answers|core\.large

# `make test` takes five minutes of two cores, build and all. What it leaves to test-slow besides: runs of several
# processes, the server under load, random files, measured memory, checks of the sources and their documents, and in
# ops.cases that the number of threads changes no bit.
SLOW_TESTS = ^($(LONG_TESTS)|cli\.(compare|ranks)|fuzz\.targets|generate\.(engine_swap|speculate)|hub\.pull|parallel\.(comm|mpi)|project\.(backends|bench_tables|dist|guide|headers)|serve\.(http_server|load)|text\.shards|train\.(ema|plan|ranks))$$
SLOW_CASES = *: threads do not*

.NOTPARALLEL:
.PHONY: all demo models test test-slow test-levels test-cross test-gpu sanitize-gpu parity bench install uninstall dist deb check-long fuzz \
    asan tsan debug valgrind format docs clean help

all: ## build everything into build/release: library, command, examples, backends whose toolkits are found
	@scripts/bootstrap build
	@scripts/build release

demo: ## build, train a small GPT on tarn's own source, and generate; backends only where a driver is found
	@scripts/bootstrap demo
	@scripts/build release tarn_command tarn_present_backends
	@build/release/tarn demo

models: ## train the models to hand out into build/models: digits, a character GPT, stories; minutes
	@scripts/bootstrap build
	@scripts/build release tarn_command
	@scripts/models build/models

test: ## build and run the C test suite but for test-slow; backends only where a driver is found
	@scripts/bootstrap test
	@scripts/build release tarn_tests tarn_present_backends
	@TARN_TEST_SKIP='$(SLOW_CASES)' scripts/test release -E '$(SLOW_TESTS)'

test-slow: ## run the slow rest of the C test suite
	@scripts/bootstrap test
	@scripts/build release tarn_tests
	@TARN_TEST_ONLY='$(SLOW_CASES)' scripts/test release -R '$(SLOW_TESTS)|^ops\.cases$$'

test-levels: ## run the suite at every instruction level of this processor, in BUILD (build/release)
	@[ "$(BUILD)" != build/release ] || { scripts/bootstrap test && scripts/build release tarn_tests; }
	@scripts/test-levels "$(BUILD)"

test-cross: ## cross-compile for the other architecture (AArch64, x86-64) and test it under qemu
	@scripts/bootstrap cross
	@scripts/test-cross

test-gpu: ## run tests that need a GPU, in BUILD (build/release), on DEVICE (cuda or opencl)
	@[ -e "$(BUILD)/tarn" ] || scripts/build release
	@scripts/test-gpu "$(BUILD)" "$(DEVICE)"

sanitize-gpu: ## run CUDA kernels under compute-sanitizer: memory, races, uninitialized reads
	@[ -e "$(BUILD)/tarn" ] || scripts/build release
	@TARN_TEST_SANITIZE="memcheck racecheck initcheck" scripts/test-gpu "$(BUILD)"

parity: ## compare every operation, layer and optimizer with PyTorch (PYTHON: interpreter)
	@scripts/bootstrap build
	@scripts/build release
	@scripts/parity

bench: all ## measure matmuls and operations
	@build/release/tarn bench matmul
	@build/release/tarn bench ops

install: ## install under PREFIX (/usr/local), below DESTDIR
	@scripts/build release
	@cmake --install build/release --prefix "$(PREFIX)"

uninstall: ## remove an installation under PREFIX
	@scripts/build release
	@scripts/uninstall build/release "$(PREFIX)"

dist: ## write the source tarball of the last commit to build/dist
	@scripts/dist

deb: ## build Debian packages of the last commit in build/deb
	@scripts/bootstrap deb
	@scripts/deb

check-long: ## everything with many more rounds and seeds, under both sanitizers: hours
	@scripts/bootstrap test
	@scripts/build release
	@TARN_TEST_LONG=1 TARN_TEST_TIMEOUT=14400 scripts/test release
	@TARN_TEST_LONG=1 TARN_TEST_LLAMA_CPP=1 scripts/parity
	@scripts/bootstrap opencl
	@scripts/test-gpu build/release opencl
	@scripts/build asan
	@TARN_TEST_TIMEOUT=14400 scripts/test asan
	@scripts/build tsan
	@TARN_TEST_TIMEOUT=14400 scripts/test tsan
	@scripts/fuzz 60
	@scripts/fuzz 600 gguf safetensors tokenizer tokenizer_model

fuzz: ## run libFuzzer (clang) on every parser, SECONDS_EACH (60) seconds each
	@scripts/fuzz $${SECONDS_EACH:-60}

debug: ## build and test without optimization, with assertions
	@scripts/bootstrap test
	@scripts/build debug
	@scripts/test debug

# Without fuzz.targets, which scripts/fuzz-files runs for longer in the same build, and long programs whose code others
# run, too: speculation (generate.engine_speculate, engine_draft), plans and their memory, quant blocks, the demo and
# profiles of whole runs (cli.train, core.profile). check-long runs all, with all rounds.
asan: ## build and test with the address and undefined-behavior sanitizers
	@scripts/bootstrap test
	@scripts/build asan
	@TARN_TEST_QUICK=1 scripts/test asan -E '^($(LONG_TESTS))$$|^(base\.quant|cli\.(demo|profile)|fuzz\.targets|generate\.speculate|train\.(plan|step_graph_memory))$$'

# Without programs that start no threads, or none of their own: the command (its callees are tested by themselves),
# parsers, generation and engines but for those whose threads compile masks or take requests (generate.constrain,
# engine_masks, engine_threads), sequences of small kernels, accounts of memory, families of operations (ops.cases has
# all of them; not its gradient checks, which start no threads, and its layouts, of which few do), train.train and
# llama_runs (train.lm_runs has the same loop). check-long runs all.
tsan: ## build and test with the thread sanitizer
	@scripts/bootstrap test
	@scripts/build tsan
	@TARN_TEST_QUICK=1 TARN_TEST_SKIP='*: *agree*' TARN_TEST_TIMEOUT=$${TARN_TEST_TIMEOUT:-600} \
	    scripts/test tsan -E '^(cli\..*|fuzz\..*|text\.(tokenizer|spm)|models\.(models|convert|decode|llama|lora|lora_files)|ops\.(attention_window|batch_invariant|reduce|transformer|scale_grad|quant|quant_composed|batchnorm|batchnorm_relu)|examples\..*|core\.mirror_memory|data\.digits|generate\.(as_stored|embedder|engine|engine_(adapters|draft|longrope|offload|options|speculate|speculate_grammar|step|swap|window)|longrope|offload|sequences|sliding_window|speculate|split)|nn\.recurrent|train\.(archive|ema|quantized|finetune|finetune_chat|llama_runs|plan|precision|ranks|step_graph_memory|train))$$'

valgrind: ## run tests of the release build under valgrind
	@scripts/bootstrap valgrind
	@scripts/build release
	@scripts/valgrind

format: ## format C, CUDA and OpenCL sources (scripts/format --check: report what is not)
	@scripts/bootstrap format
	@scripts/format

docs: ## write docs/reference from the headers and the command's help, and the tables of docs from their sources
	@scripts/apidoc include/tarn > docs/reference/api.md
	@scripts/pyapi include/tarn > python/tarn/_c.py
	@[ ! -e build/release/tarn ] || scripts/clidoc build/release/tarn > docs/reference/command.md
	@scripts/backend-doc
	@scripts/bench-tables

clean: ## remove the build folder
	@rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
	@echo "  TARN_NO_INSTALL=1   reports missing packages instead of installing them"
