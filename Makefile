# tarn's front door: thin commands over CMake, Ninja and the scripts. `make help` lists them.

PREFIX ?= /usr/local
DESTDIR ?=
BUILD ?= build/release
DEVICE ?= cuda
export DESTDIR

.NOTPARALLEL:
.PHONY: all demo test test-levels test-cross test-gpu sanitize-gpu parity bench install uninstall check-long fuzz asan tsan debug valgrind format docs clean help

all: ## build all that can be built into build/release
	@scripts/bootstrap build
	@scripts/build release

demo: ## build, then watch a small GPT learn from tarn's own source, and write; only backends of devices that are there are built
	@scripts/bootstrap demo
	@scripts/build release tarn_command tarn_present_backends
	@build/release/tarn demo

test: ## build and run the C test suite; only backends of devices that are there are built
	@scripts/bootstrap test
	@scripts/build release tarn_tests tarn_present_backends
	@scripts/test release

test-levels: ## run the C test suite at every instruction level of this processor, in the build folder BUILD (build/release)
	@[ "$(BUILD)" != build/release ] || { scripts/bootstrap test && scripts/build release tarn_tests; }
	@scripts/test-levels "$(BUILD)"

test-cross: ## cross-compile for the other architecture (AArch64, x86-64) and run tests of it under qemu
	@scripts/bootstrap cross
	@scripts/test-cross

test-gpu: ## run what needs a GPU, in the build folder BUILD (build/release), on DEVICE (cuda; opencl is the other)
	@[ -e "$(BUILD)/tarn" ] || scripts/build release
	@scripts/test-gpu "$(BUILD)" "$(DEVICE)"

sanitize-gpu: ## our own CUDA kernels under compute-sanitizer: memory, races, uninitialised reads
	@[ -e "$(BUILD)/tarn" ] || scripts/build release
	@TARN_TEST_SANITIZE="memcheck racecheck initcheck" scripts/test-gpu "$(BUILD)"

parity: ## compare every operation, layer and optimizer with PyTorch (PYTHON= chooses the interpreter)
	@scripts/bootstrap build
	@scripts/build release
	@scripts/parity

bench: all ## measure matrix products and operations
	@build/release/tarn bench matmul
	@build/release/tarn bench ops

install: ## install under PREFIX (/usr/local), below DESTDIR
	@scripts/build release
	@cmake --install build/release --prefix "$(PREFIX)"

uninstall: ## take an installation under PREFIX back
	@scripts/build release
	@scripts/uninstall build/release "$(PREFIX)"

check-long: ## everything with many more rounds and seeds, all under both sanitizers: hours, not minutes
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

fuzz: ## let libFuzzer (clang) look for files that harm a parser, SECONDS_EACH (60) for each parser
	@scripts/fuzz $${SECONDS_EACH:-60}

debug: ## build and test without optimisation, with assertions
	@scripts/bootstrap test
	@scripts/build debug
	@scripts/test debug

# Without three programs that take minutes, and run what others run too: models trained to see what quantization costs and to answer questions, tensors of
# gibibytes. check-long runs all.
asan: ## build and test with the address and undefined-behaviour sanitizers
	@scripts/bootstrap test
	@scripts/build asan
	@scripts/test asan -E '^(train\.quantized|cli\.finetune|core\.large)$$'

# Without what starts no threads, or only those that other programs start too: the command (what it calls is tested beside it), parsers, families of operations
# (ops.cases has every one of them). check-long runs all.
tsan: ## build and test with the thread sanitizer
	@scripts/bootstrap test
	@scripts/build tsan
	@TARN_TEST_QUICK=1 TARN_TEST_TIMEOUT=$${TARN_TEST_TIMEOUT:-600} scripts/test tsan -E '^(cli\..*|fuzz\..*|text\.(tokenizer|spm)|models\.(models|convert|lora)|ops\.(reduce|transformer|scale|blocks|batchnorm|batchnorm_relu)|examples\..*|train\.(quantized|finetune|finetune_chat|plan|precision))$$'

valgrind: ## run tests of the release build under valgrind
	@scripts/bootstrap valgrind
	@scripts/build release
	@scripts/valgrind

format: ## format C, CUDA and OpenCL sources (scripts/format --check: report what is not)
	@scripts/bootstrap format
	@scripts/format

docs: ## write docs/reference from the headers and the command's help, and the tables of docs from bench/results
	@scripts/apidoc include/tarn > docs/reference/api.md
	@[ ! -e build/release/tarn ] || scripts/clidoc build/release/tarn > docs/reference/command.md
	@scripts/bench-tables

clean: ## remove everything that was built
	@rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
	@echo "  TARN_NO_INSTALL=1   reports missing packages instead of installing them"
