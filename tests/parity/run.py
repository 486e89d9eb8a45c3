"""Compares every operation of tarn, forward and every gradient, with torch in f64, layers, training, and files read
with NumPy:

    run.py [--seed N] [--only OP[,OP]] [--cases N] …

The library is asked for its operations; one that neither a table nor PyTorch knows by its name is a failure.
TARN_LIBRARY names libtarn.so. Values, shapes and layouts are drawn from a seed that is new in every run and printed
(TARN_PARITY_SEED or --seed fixes it); with the same seed --only repeats exactly what the whole run did for that
operation."""
import argparse
import importlib
import importlib.util
import os
import random
import subprocess
import sys
import time
import traceback
import warnings
import zlib

import torch

import case as cases
import ops_attention
import ops_batchnorm
import ops_by_name
import ops_elementwise
import ops_index
import ops_movement
import ops_products
import ops_reduce
import ops_vision
import support
import tarn
import training

TABLES = [ops_elementwise, ops_reduce, ops_movement, ops_index, ops_products, ops_vision, ops_batchnorm, ops_attention]
SHOWN = 5  # failures printed for each operation

warnings.filterwarnings("ignore", category=UserWarning)


class Tally:
    """What happened to one operation."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.worst = {}  # (dtype, unit): the largest error

    def note(self, dtype, verdicts):
        for v in verdicts:
            if v.good and v.unit and dtype in cases.FLOATS:
                key = dtype, v.unit
                self.worst[key] = max(self.worst.get(key, 0.0), v.error)

    def line(self, name):
        worst = ", ".join(f"{dtype} {error:.2g} {unit}" for (dtype, unit), error in self.worst.items()) or "exact"
        count = f"{self.passed} cases" if not self.failed else f"{self.passed} cases, {self.failed} FAILED"
        return f"{name:<22} {count:<28} worst: {worst}"


def run_one(case, seed, info, tally):
    """Runs a case and counts it; returns texts of what failed."""
    try:
        verdicts = cases.run(case, seed, info.differentiable)
    except tarn.Error as error:
        if error.code == "unsupported" and support.device().type != "cpu":
            tally.skipped += 1
            return []
        verdicts = [cases.compare.Verdict(False, text=f"tarn: {error}")]
    except Exception:  # torch refused, or the table is wrong: a failure with its place
        verdicts = [cases.compare.Verdict(False, text=traceback.format_exc(limit=-2).replace("\n", " | "))]
    wrong = [v.text for v in verdicts if not v.good]
    tally.note(case.dtype, verdicts)
    tally.failed += bool(wrong)
    tally.passed += not wrong
    return wrong


def made_cases(name, make, options):
    """One after the other: a case may refer to what the next one changes."""
    rng = random.Random(f"{options.seed}/{name}")
    generator = torch.Generator().manual_seed(zlib.crc32(f"{options.seed}/{name}".encode()))
    yield from enumerate(make(name, rng, generator, options.cases))


def chosen_cases(name, make, options):
    """All cases, or as many as are wanted, in their order: others in every run."""
    if options.most <= 0:
        yield from made_cases(name, make, options)
        return
    count = sum(1 for _ in made_cases(name, make, options))
    chosen = set(random.Random(f"{options.seed}/{name}").sample(range(count), min(options.most, count)))
    yield from ((number, case) for number, case in made_cases(name, make, options) if number in chosen)


def run_operation(info, make, options):
    name, tally, shown = info.name.decode(), Tally(), 0
    for number, case in chosen_cases(name, make, options):
        if options.layout and any(i.layout != options.layout for i in case.inputs):
            continue
        case.upstream_layout = options.layout or case.upstream_layout
        for text in run_one(case, zlib.crc32(f"{options.seed}/{name}/{number}".encode()), info, tally):
            shown += 1
            if shown <= options.show:
                print(f"FAIL {case.title()}: {text}; seed {options.seed}", flush=True)
    print(tally.line(name), flush=True)
    return tally


def run_training(options):
    """The same network trained in both, by each optimizer."""
    tally = Tally()
    for recipe in training.RECIPES:
        try:
            verdict = training.compare_training(recipe, zlib.crc32(f"{options.seed}/{recipe}".encode()))
        except tarn.Error as error:
            verdict = cases.compare.Verdict(False, text=f"tarn: {error}")
        tally.note(recipe.dtype, [verdict])
        tally.failed += not verdict.good
        tally.passed += verdict.good
        if not verdict.good:
            print(f"FAIL training {recipe}: {verdict.text}; seed {options.seed}", flush=True)
    print(tally.line("training"), flush=True)
    return tally


def run_tables(options):
    """Tables, next to NumPy."""
    tally = Tally()
    for title, verdict in importlib.import_module("tables").verdicts(options.seed, 10 * options.cases):
        tally.failed += not verdict.good
        tally.passed += verdict.good
        if not verdict.good:
            print(f"FAIL tables {title}: {verdict.text}; seed {options.seed}", flush=True)
    print(tally.line("tables"), flush=True)
    return tally


def run_data(options):
    """Files of other programs, read by both."""
    tally = Tally()
    try:
        for title, verdict in importlib.import_module("data").verdicts(options.seed, 20 * options.cases):
            tally.failed += not verdict.good
            tally.passed += verdict.good
            if not verdict.good:
                print(f"FAIL data {title}: {verdict.text}; seed {options.seed}", flush=True)
    except tarn.Error as error:
        tally.failed += 1
        print(f"FAIL data: tarn: {error}; seed {options.seed}", flush=True)
    print(tally.line("data"), flush=True)
    return tally


def run_files(title, checks, options):
    """Files written and read by both; a check that cannot run here (None) is skipped."""
    tally = Tally()
    for name, wrong in checks(options.seed):
        tally.skipped += wrong is None
        tally.failed += bool(wrong)
        tally.passed += wrong == ""
        if wrong:
            print(f"FAIL {title}: {name}: {wrong}; seed {options.seed}", flush=True)
    print(tally.line(title), flush=True)
    return tally


def run_formats(options):
    """Files of tensors."""
    return run_files("formats", importlib.import_module("formats").run, options)


def run_gguf(options):
    """GGUF files, blocks, and models in them."""
    return run_files("gguf", importlib.import_module("gguf_files").run, options)


def run_events(options):
    """A run's numbers, as TensorBoard reads them."""
    return run_files("events", importlib.import_module("events").run, options)


def run_images(options):
    """Image files, sizes and colours."""
    return run_files("images", importlib.import_module("images").run, options)


def check_clients(_):
    """The clients in tests/serve, and huggingface_hub beside `tarn pull`, each in a process of its own; without the
    server or a browser (status 77) one cannot run, and says why."""
    command = os.path.join(os.path.dirname(os.environ["TARN_LIBRARY"]), "tarn")
    for name in ["openai", "ollama", "langchain_openai", "schemathesis", "playwright", "huggingface_hub"]:
        importlib.import_module(name)
    for path in ["serve/openai_client", "serve/ollama_client", "serve/langchain_client", "serve/openapi_client",
                 "serve/page_client", "hub/pull"]:
        name = os.path.basename(path)
        script = os.path.join(os.path.dirname(__file__), "..", f"{path}.py")
        done = subprocess.run([sys.executable, script], env={"TARN_COMMAND": command, **os.environ},
                              capture_output=True, text=True, timeout=600)
        if done.returncode == 77:
            print(f"SKIP serve: {name}: {done.stdout.strip()}", flush=True)
        yield name, "" if done.returncode == 0 else None if done.returncode == 77 else done.stdout + done.stderr
        if name == "openai_client" and done.returncode == 0:
            yield "embeddings", "" if "those of transformers" in done.stdout else "not compared with transformers"


def run_serve(options):
    """`tarn serve` through the openai, ollama and langchain packages; its document, by schemathesis; embeddings beside
    transformers; its pages in a browser; `tarn pull` beside huggingface_hub."""
    return run_files("serve", check_clients, options)


def run_bench(options):
    """Scripts of bench/compare, which time tarn and others in one process."""
    return run_files("bench", importlib.import_module("bench").run, options)


def run_text(options):
    """Tokenizers: ids, texts, files and training."""
    return run_files("text", importlib.import_module("text").run, options)


def run_pipelines(options):
    """Tokenizers of every kind beside Hugging Face's tokenizers."""
    return run_files("pipelines", importlib.import_module("pipelines").run, options)


def run_pieces(options):
    """Tokenizers of SentencePiece, beside its own package and transformers."""
    return run_files("pieces", importlib.import_module("pieces").run, options)


def run_chat(options):
    """Chat templates: texts and ids."""
    return run_files("chat", importlib.import_module("chat").run, options)


def run_chats(options):
    """Documents to fine-tune on: ids, loss mask, positions."""
    return run_files("chats", importlib.import_module("chats").run, options)


def run_jinja(options):
    """Templates and random programs of Jinja."""
    return run_files("jinja", importlib.import_module("jinja").run, options)


def run_grammar(options):
    """Regular expressions and JSON Schemas that constrain text."""
    return run_files("grammar", importlib.import_module("grammar").run, options)


def run_rope(options):
    """Frequencies of RoPE, as transformers scales them."""
    return run_files("rope_scalings", importlib.import_module("rope").run, options)


def run_verdicts(title, checks, options):
    """Checks of (name, dtype, verdicts); one that cannot run here (None) is skipped."""
    tally = Tally()
    for name, dtype, verdicts in checks(options.seed):
        if verdicts is None:
            tally.skipped += 1
            continue
        wrong = [v.text for v in verdicts if not v.good]
        tally.note(dtype, verdicts)
        tally.failed += bool(wrong)
        tally.passed += not wrong
        for text in wrong:
            print(f"FAIL {title}: {name}: {text}; seed {options.seed}", flush=True)
    print(tally.line(title), flush=True)
    return tally


def run_layers(options):
    """Layers of both, from the same weights."""
    return run_verdicts("layers", importlib.import_module("layers").run, options)


def run_resnet20(options):
    """Weights trained by others, image by image."""
    return run_verdicts("resnet20", importlib.import_module("resnet20").run, options)


def run_resnets(options):
    """ResNet-18, -34 and -50 as torchvision's, from the same files."""
    return run_verdicts("resnets", importlib.import_module("resnets").run, options)


def run_gpt2(options):
    """GPT-2 of transformers and ours, from each other's folders."""
    return run_verdicts("gpt2", importlib.import_module("gpt2").run, options)


def run_generate(options):
    """Samplers and transformers' processors."""
    return run_verdicts("generate", importlib.import_module("generate").run, options)


def run_archs(options):
    """Every architecture, against transformers."""
    return run_verdicts("archs", importlib.import_module("archs").run, options)


def run_llama(options):
    """The Llama family of transformers and ours, from each other's folders."""
    return run_verdicts("llama", importlib.import_module("llama").run, options)


def run_lora(options):
    """Adapters of PEFT and ours."""
    return run_verdicts("lora", importlib.import_module("lora").run, options)


def run_llama_cpp(options):
    """GGUF files of tarn's in llama.cpp."""
    return run_verdicts("llama_cpp", importlib.import_module("llama_cpp_files").run, options)


def run_llama_cpp_archs(options):
    """Every architecture in llama.cpp."""
    return run_verdicts("llama_cpp_archs", importlib.import_module("llama_cpp_archs").run, options)


def run_training_gpt2(options):
    """GPT-2 trained in both."""
    return run_verdicts("training_gpt2", importlib.import_module("training_gpt2").run, options)


def run_curves_gpt2(options):
    """The loss of a GPT-2 over 200 steps."""
    return run_verdicts("curves_gpt2", importlib.import_module("curves_gpt2").run, options)


def run_conv_sums(options):
    """Long sums of convolutions, no further off than PyTorch's."""
    return run_verdicts("conv_sums", importlib.import_module("conv_sums").run, options)


def run_networks(options):
    """Networks trained in both. What a device's missing kernels keep from being judged counts as skipped."""
    tally, training_networks = Tally(), importlib.import_module("training_networks")
    for recipe in training_networks.RECIPES:
        try:
            verdicts, judged = training_networks.compare_training(recipe,
                                                                  zlib.crc32(f"{options.seed}/{recipe}".encode()))
        except tarn.Error as error:
            verdicts, judged = [cases.compare.Verdict(False, text=f"tarn: {error}")], True
        wrong = [v.text for v in verdicts if not v.good]
        tally.note(recipe.dtype, verdicts)
        tally.failed += bool(wrong)
        tally.passed += not wrong
        tally.skipped += not judged
        for text in wrong:
            print(f"FAIL networks {recipe}: {text}; seed {options.seed}", flush=True)
    print(tally.line("networks"), flush=True)
    return tally


def skipped(name, reason):
    tally = Tally()
    tally.skipped += 1
    print(f"{name:<22} skipped: {reason}", flush=True)
    return tally


def run_mnist(options):
    """Accuracy after training for real: minutes, so only on demand and with TARN_TEST_LONG."""
    tally, mnist = Tally(), importlib.import_module("mnist")
    if not mnist.folder():
        return skipped("mnist", "TARN_TEST_DATA names no folder that holds mnist/")
    torch.set_num_threads(os.cpu_count())
    verdict = mnist.run(options.seed, seeds=3, epochs=5)
    torch.set_num_threads(1)
    tally.passed, tally.failed = int(verdict.good), int(not verdict.good)
    print(f"{'mnist' if verdict.good else 'FAIL mnist':<22} {verdict.text}; seed {options.seed}", flush=True)
    return tally


# What is compared beside operations.
EXTRAS = {
    "training": run_training, "networks": run_networks, "conv_sums": run_conv_sums, "rope_scalings": run_rope,
    "layers": run_layers, "resnet20": run_resnet20, "resnets": run_resnets,
    "formats": run_formats, "gguf": run_gguf, "data": run_data, "tables": run_tables,
    "events": run_events, "bench": run_bench,
    "images": run_images, "text": run_text, "pieces": run_pieces, "pipelines": run_pipelines,
    "chat": run_chat, "chats": run_chats,
    "jinja": run_jinja, "grammar": run_grammar, "gpt2": run_gpt2, "llama": run_llama, "archs": run_archs,
    "llama_cpp_archs": run_llama_cpp_archs, "lora": run_lora, "generate": run_generate, "serve": run_serve,
    "training_gpt2": run_training_gpt2, "curves_gpt2": run_curves_gpt2, "llama_cpp": run_llama_cpp, "mnist": run_mnist}
LONG = {"llama_cpp", "llama_cpp_archs", "mnist"}  # only where asked for, by --only or TARN_TEST_LONG


def run_extra(name, options):
    """A comparison that needs more packages than torch. Where a device is, they cannot always be had: there, and only
    there, one counts as skipped."""
    try:
        return EXTRAS[name](options)
    except ModuleNotFoundError as error:
        if options.device == "cpu":
            raise
        return skipped(name, error)


def extras_of(options):
    """Names, in EXTRAS' order."""
    def is_wanted(name):
        has_llama_cpp = os.environ.get("TARN_TEST_LLAMA_CPP") == "1"
        asked = os.environ.get("TARN_TEST_LONG") or name.startswith("llama_cpp") and has_llama_cpp
        wanted = name in options.extras.split(",") if options.extras else name not in LONG or asked
        return name in options.only.split(",") or not options.only and wanted
    return [name for name in EXTRAS if is_wanted(name)]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int,
                        default=int(os.environ.get("TARN_PARITY_SEED") or random.SystemRandom().randrange(1 << 31)))
    parser.add_argument("--only", default="",
                        help=f"operations to run, and of {', '.join(EXTRAS)}, separated by commas")
    parser.add_argument("--cases", type=int, default=10,
                        help="random shapes for each operation and dtype, on top of the listed ones")
    parser.add_argument("--most", type=int, default=0,
                        help="cases of each operation at most, drawn from all of them; 0 for all")
    parser.add_argument("--extras", default="", help="of what is compared beside operations, only these")
    parser.add_argument("--part", default="0/1",
                        help="I/N: every N-th of all that would be run, from the I-th on; parts run beside each other")
    parser.add_argument("--device", default="cpu", help="cpu, mirror:0, cuda, opencl …")
    parser.add_argument("--layout", default="", help="only cases whose inputs all have this layout")
    parser.add_argument("--show", type=int, default=SHOWN, help="how many failures to print for each operation")
    return parser.parse_args()


def main():
    options = parse()
    torch.set_num_threads(1)  # small tensors: threads would only wait for each other
    support.use_device(options.device)
    print(
        f"tarn {tarn.version()} on {options.device} ({support.device().description}) against torch {torch.__version__} "
        f"in f64, "
        f"seed {options.seed}",
        flush=True)
    table = {name: make for module in TABLES for name, make in module.OPS.items()}
    infos = {info.name.decode(): info for info in support.operations()}
    chosen = [name for name in options.only.split(",") if name not in EXTRAS] if options.only else list(infos)
    begin, tallies, strangers = time.monotonic(), [], 0
    part, parts = (int(number) for number in options.part.split("/"))
    for name in chosen[part::parts]:
        make = table.get(name) or (ops_by_name.cases_of(infos[name]) if name in infos else None)
        if name not in infos or not make:
            unknown = "the comparison does not know" if name in infos else "tarn does not have"
            print(f"FAIL {name}: {unknown} this operation")
            strangers += 1
            continue
        tallies.append(run_operation(infos[name], make, options))
    for name in extras_of(options)[part::parts]:
        tallies.append(run_extra(name, options))
    failed = sum(t.failed for t in tallies) + strangers
    print(f"{time.monotonic() - begin:.0f} s")
    print(f"{sum(t.passed for t in tallies)} passed, {failed} failed, {sum(t.skipped for t in tallies)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
