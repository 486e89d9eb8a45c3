#!/usr/bin/env python3
"""`tarn pull` from a small hub on loopback, well-behaved and not: layout of the cache, choice of files, resuming,
verification, retries, redirects, the token, hostile answers, a full disk, two processes at once; and models opened from
the cache. Where huggingface_hub is installed, it finds what tarn pulled, and tarn what it downloaded. TARN_COMMAND
names the command. Exit status 77: the build downloads nothing."""
import concurrent.futures
import json
import os
import random
import resource
import shutil
import signal
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "serve"))
import random_model  # noqa: E402
from hub_server import Hub, git_sha1, sha256  # noqa: E402

try:
    import huggingface_hub
except ImportError:
    huggingface_hub = None

TARN = os.environ.get("TARN_COMMAND", "tarn")
SEED = int(os.environ.get("TARN_TEST_SEED", random.randrange(1 << 30)))
draw = random.Random(SEED)
hub = Hub()
scratch = Path(tempfile.mkdtemp(prefix="tarn-pull-"))
failures = []
LARGE = draw.randbytes(300_000)
BASE = {"config.json": b'{"model_type": "llama"}\n', "tokenizer.json": b"{}" * 40, "model.safetensors": LARGE}


def check(holds, what):
    if not holds:
        failures.append(what)
        print(f"FAILED: {what}")


def environment(cache, **more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    return kept | {"HOME": str(scratch / "home"), "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(cache)} | more


def start(arguments, cache, before=None, **more):
    return subprocess.Popen([TARN, *arguments], env=environment(cache, **more), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=before)


def run(arguments, cache, status=0, before=None, **more):
    process = start(arguments, cache, before, **more)
    out, err = process.communicate(timeout=120)
    check(process.returncode == status, f"tarn {' '.join(arguments)}: status {process.returncode}: {out}{err}")
    return out + err


def pull(name, cache, status=0, *flags, **more):
    return run(["pull", name, *flags], cache, status, **more)


def folder(cache, name):
    return cache / ("models--" + name.replace("/", "--"))


def links(cache, name):
    """File: target of each link in the snapshots, and every blob has the contents that its name says."""
    found = {}
    top = folder(cache, name)
    for path in sorted(top.glob("snapshots/*/**/*")):
        if path.is_symlink():
            found[str(path.relative_to(top / "snapshots")).split("/", 1)[1]] = os.readlink(path)
    for blob in (top / "blobs").glob("*"):
        data = blob.read_bytes()
        check(blob.name in (sha256(data), git_sha1(data)) or blob.suffix == ".incomplete", f"{blob} is damaged")
    return found


def cache_of(name):
    return scratch / name.replace("/", "-")


def refused(name, text, status=1, *flags, files=None, **faults):
    """A pull that fails with that text, and leaves no snapshot and no ref."""
    cache = cache_of(name)
    hub.add(name, BASE if files is None else files, **faults)
    out = pull(name, cache, status, *flags)
    check(text in out, f"{name}: '{text}' is not in: {out}")
    check("\x1b" not in out and all(len(line) < 2000 for line in out.split("\n")), f"{name}: the message is not plain")
    check(not list(cache.glob("models--*/snapshots/*/*")) and not list(cache.glob("models--*/refs/*")),
          f"{name}: there is a snapshot")
    return out


# ---- what is written ------------------------------------------------------------------------------------------------


def a_model_is_laid_out():
    name, cache = "org/laid-out", cache_of("laid-out")
    files = BASE | {"pytorch_model.bin": LARGE, "onnx/model.onnx": LARGE, "README.md": b"text", "tf_model.h5": b"x",
                    "sub folder/ä %?#.txt": b"odd"}
    repo = hub.add(name, files)
    out = pull(name, cache)
    top = folder(cache, name)
    check(links(cache, name) == {"config.json": "../../blobs/" + git_sha1(BASE["config.json"]),
                                 "model.safetensors": "../../blobs/" + sha256(LARGE),
                                 "tokenizer.json": "../../blobs/" + git_sha1(BASE["tokenizer.json"])},
          f"the snapshot has relative links of what tarn opens: {links(cache, name)}")
    check((top / "refs/main").read_text() == repo.commit, "refs/main has the commit")
    check(str(top / "snapshots" / repo.commit) in out and "3 files" in out, f"the path is printed: {out}")
    check(sorted(p.name for p in cache.iterdir()) == [".locks", top.name], "nothing else is in the cache")
    before = len(hub.of(name)[1])
    out = pull(name, cache)
    check("all in the cache" in out and len(hub.of(name)[1]) == before, "a second pull downloads nothing")
    out = json.loads(pull(name, cache, 0, "--json"))
    check(out["commit"] == repo.commit and [f["was_cached"] for f in out["files"]] == [True] * 3, f"--json: {out}")
    check(pull(name, cache, 0, "--quiet") == "", "--quiet prints nothing")
    pull(name, cache, 0, "--include", "sub folder/*")
    check(links(cache, name).get("sub folder/ä %?#.txt") == "../../../blobs/" + git_sha1(b"odd"), "a deeper link")
    offline = pull(name, cache, 0, HF_ENDPOINT="http://127.0.0.1:1", HF_HUB_OFFLINE="1")
    check(str(top / "snapshots" / repo.commit) in offline, "offline the cache answers")
    check("HF_HUB_OFFLINE" in pull("org/absent", cache, 1, HF_HUB_OFFLINE="ON"), "and says what it lacks")
    found = json.loads(pull(name, cache, 0, "--json", HF_HUB_OFFLINE="1").splitlines()[-1])
    check(found["commit"] == repo.commit, f"the commit offline: {found}")
    check("--include" in pull(name, cache, 1, "--include", "absent", HF_HUB_OFFLINE="1"), "it chooses nothing offline")
    home = scratch / "other"
    run(["pull", name], cache, HF_HUB_CACHE="", HF_HOME=str(home))
    check((home / "hub" / top.name / "refs/main").exists(), "HF_HOME")
    run(["pull", name], cache, HF_HUB_CACHE="", XDG_CACHE_HOME=str(home))
    check((home / "huggingface/hub" / top.name / "refs/main").exists(), "XDG_CACHE_HOME")


def revisions_are_apart():
    name, cache = "org/revisions", cache_of("revisions")
    repo = hub.add(name, BASE)
    repo.refs |= {"v1.0": repo.commit, "refs/pr/1": repo.commit}
    pull(name, cache, 0, "--revision", "refs/pr/1")
    repo.refs["a" * 40] = repo.commit
    check("answers with commit" in pull(name, cache, 1, "--revision", "a" * 40), "another commit than asked for")
    check((folder(cache, name) / "refs/refs/pr/1").read_text() == repo.commit, "a ref with slashes")
    check(any("/revision/refs%2Fpr%2F1?" in r["raw"] for r in hub.requests), "which is quoted in the URL")
    check("run `tarn pull org/revisions`" in run(["inspect", name], cache, 1), "main is not there")
    pull(name, cache, 0, "--revision", repo.commit)
    check(not (folder(cache, name) / "refs/main").exists(), "a commit has no ref")
    check("has no revision 'v2'" in pull(name, cache, 1, "--revision", "v2"), "a revision that is not there")
    for bad in ("../main", "-x", "a..b", "a b"):
        check("is no revision" in pull(name, cache, 2, f"--revision={bad}"), f"revision {bad}")
    for bad in ("model", "a/b/c", "../x", "a/..", "-a/b", "a--b/c", "https://example.org/a/b", "a/b@c", "a/\x1bb"):
        out = pull(bad, cache, 2)
        check(("is no name of a model" in out or "is missing" in out) and "\x1b" not in out, f"the name {bad}: {out}")


def files_are_chosen():
    cache = cache_of("chosen")
    shards = {"config.json": b"{}", "model.safetensors.index.json": b"{}", "model-00001-of-00002.safetensors": b"1",
              "model-00002-of-00002.safetensors": b"2", "consolidated.safetensors": b"3",
              "model.fp16.safetensors": b"4", "pytorch_model.bin.index.json": b"5", "q4.gguf": b"GGUF",
              "1_Pooling/config.json": b"{}"}
    hub.add("org/shards", shards)
    pull("org/shards", cache)
    check(sorted(links(cache, "org/shards")) == ["1_Pooling/config.json", "config.json",
                                                 "model-00001-of-00002.safetensors",
                                                 "model-00002-of-00002.safetensors", "model.safetensors.index.json"],
          f"shards: {sorted(links(cache, 'org/shards'))}")
    hub.add("org/one-gguf", {"a-Q4_K_M.gguf": b"GGUF4", "mmproj-a.gguf": b"x", "README.md": b""})
    pull("org/one-gguf", cache)
    check(list(links(cache, "org/one-gguf")) == ["a-Q4_K_M.gguf"], "the only GGUF model")
    quants = {"a-Q4_K_M.gguf": b"GGUF4", "a-Q8_0.gguf": b"GGUF8"}
    hub.add("org/quants", quants)
    out = pull("org/quants", cache, 1)
    check("has 2 GGUF models; choose one with --include" in out and "a-Q8_0.gguf" in out, f"several: {out}")
    pull("org/quants", cache, 0, "--include", "*Q8_0.gguf")
    check(list(links(cache, "org/quants")) == ["a-Q8_0.gguf"], "one by its pattern")
    check(f"{folder(cache, 'org/quants')}/snapshots" in run(["inspect", "org/quants"], cache, 1), "is opened by name")
    pull("org/quants", cache, 0, "--include", "*Q4_K_M.gguf")
    check("give one: org/quants/a-Q4_K_M.gguf, org/quants/a-Q8_0.gguf" in run(["inspect", "org/quants"], cache, 1),
          "two are listed")
    check("snapshots" in run(["inspect", "org/quants/a-Q8_0.gguf"], cache, 1), "and one is opened by its file")
    check("--include 'b.gguf'" in run(["inspect", "org/quants/b.gguf"], cache, 1), "or has to be pulled")
    refused("org/pickle", "has no model.safetensors", files={"pytorch_model.bin": b"x", "config.json": b"{}"})
    refused("org/half", "but not its shard 'a-00002-of-00002.gguf'", files={"a-00001-of-00002.gguf": b"x"})
    refused("org/no-first", "none is the first", files={"a-00002-of-00002.gguf": b"x"})
    refused("org/no-match", "matches --include", 1, "--include", "*.onnx")


def gguf_name(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_shard(no, count, tensors):
    """A shard of a GGUF model of two tensors; those in it have eight zeros each."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), 3),
             gguf_name("split.no"), struct.pack("<IH", 2, no), gguf_name("split.count"),
             struct.pack("<IH", 2, count), gguf_name("split.tensors.count"), struct.pack("<Ii", 5, 2)]
    parts += [gguf_name(name) + struct.pack("<IQIQ", 1, 8, 0, 32 * i) for i, name in enumerate(tensors)]
    header = b"".join(parts)
    return header + bytes(-len(header) % 32) + bytes(32 * len(tensors))


def all_shards_of_a_gguf_model_come():
    shards = [gguf_shard(0, 3, []), gguf_shard(1, 3, ["a"]), gguf_shard(2, 3, ["b"])]
    names = [f"a-{i}-of-00003.gguf" for i in ("00001", "00002", "00003")]
    files = dict(zip(names, shards))
    cache = cache_of("sharded")
    hub.add("org/sharded", files | {"mmproj.gguf": b"x"})
    pull("org/sharded", cache)
    check(list(links(cache, "org/sharded")) == names, f"all shards: {list(links(cache, 'org/sharded'))}")
    for name in ("org/sharded", f"org/sharded/{names[0]}", f"org/sharded/{names[2]}"):
        out = run(["inspect", name], cache)
        check("in 3 shards" in out and "2 tensors" in out, f"{name} opens: {out}")
    hub.add("org/two-sharded", {f"{kind}/{name}": data for kind in ("q4", "q8") for name, data in files.items()})
    out = pull("org/two-sharded", cache, 1)
    check("has 2 GGUF models" in out and f"q4/{names[0]}" in out and names[1] not in out, f"several: {out}")
    pull("org/two-sharded", cache, 0, "--include", f"q8/{names[0]}")
    check(list(links(cache, "org/two-sharded")) == [f"q8/{name}" for name in names], "all shards of one by its first")
    check("in 3 shards" in run(["inspect", "org/two-sharded"], cache), "which opens as the only one")


def models_open_from_the_cache():
    name, cache, source = "org/Random-1M", cache_of("opens"), scratch / "random"
    source.mkdir()
    random_model.write_tokenizer(source, random_model.TEMPLATE)
    random_model.write_model(source, 64)
    hub.add(name, {p.name: p.read_bytes() for p in source.iterdir()})
    for arguments in (["generate", name, "x"], ["train", "--model", name, "--data", "text:/x", "--dry-run"]):
        check("tarn pull org/Random-1M" in run(arguments, cache, 1), f"{arguments[0]} names tarn pull")
    pull(name, cache)
    flags = ["--device", "cpu", "--max-tokens", "8", "--temperature", "0"]
    check(run(["generate", name, "Hi", *flags], cache) == run(["generate", str(source), "Hi", *flags], cache),
          "the same text as from the folder")
    check("Llama" in run(["inspect", name], cache) or "llama" in run(["inspect", name], cache), "inspect")
    run(["convert", name, str(scratch / "random.gguf"), "--quiet"], cache)
    check((scratch / "random.gguf").stat().st_size > 100_000, "convert")
    run(["quantize", name + "@main", str(scratch / "q8.gguf"), "--type", "Q8_0", "--quiet"], cache)
    text = scratch / "text.txt"
    text.write_text("one two three four five six seven\n" * 60)
    run(["eval", name, "--data", f"text:{text}", "--device", "cpu"], cache)
    run(["tokenize", "--tokenizer", name, "--text", "Hi"], cache)
    run(["train", "--model", name, "--data", f"text:{text}", "--steps", "2", "--context", "16", "--batch-size", "2",
         "--device", "cpu", "--quiet", "--lora", "2", "--out", str(scratch / "run")], cache)
    chat = subprocess.run([TARN, "chat", name, *flags], env=environment(cache), input="Hi\n", capture_output=True,
                          text=True, errors="replace", timeout=60, check=False)
    check(chat.returncode == 0, f"chat: {chat.stderr}")


# ---- failures that pass ---------------------------------------------------------------------------------------------


def broken_connections_are_resumed():
    name, cache = "org/broken", cache_of("broken")
    repo = hub.add(name, BASE, cut_after=[None, 100_000, 50_000, 1000], list_statuses=[503], head_statuses=[500, 502],
                   statuses=[429], large_statuses=[403], headers={"Retry-After": "1"})
    out = pull(name, cache)
    check(out.count("next try in") == 8, f"retries: {out}")
    check("Signature" not in out, "the signed address is not shown")
    links(cache, name)
    asked = [r["headers"].get("range") for r in hub.of(name)[1] if r["headers"].get("range")]
    check(asked == ["bytes=100000-", "bytes=150000-", "bytes=151000-"], f"ranges: {asked}")
    check(not any("if-range" in r["headers"] for r in hub.of(name)[1]), "the etag is not the other host's")
    check((folder(cache, name) / "refs/main").read_text() == repo.commit, "the pull succeeds")


def ranges_that_do_not_fit():
    for fault in ({"ranges": False}, {"wrong_range": True}):
        name, cache = f"org/{next(iter(fault))}", cache_of(next(iter(fault)))
        hub.add(name, {"tokenizer.json": b"{}" * 1500}, cut_after=[1000], **fault)
        pull(name, cache)
        links(cache, name)
    refused("org/never", "another range than asked for", files={"tokenizer.json": b"{}" * 1500}, wrong_range=True,
            cut_after=[1000, None, 500])
    small = [r["headers"].get("if-range") for r in hub.of("org/ranges")[0]
             if "range" in r["headers"] and "/resolve-cache/" in r["path"]]
    check(small == [f'"{git_sha1(b"{}" * 1500)}"'], f"If-Range: {small}")


def a_damaged_part_is_replaced():
    parts = {"wrong": b"?" * 1000, "long": LARGE + b"more", "whole": LARGE, "changed": b"?" * 300_000}
    for kind, part in parts.items():
        name, cache = f"org/part-{kind}", cache_of(f"part-{kind}")
        hub.add(name, BASE)
        blobs = folder(cache, name) / "blobs"
        blobs.mkdir(parents=True)
        (blobs / f"{sha256(LARGE)}.incomplete").write_bytes(part)
        pull(name, cache)
        links(cache, name)
        check(len(hub.of(name)[1]) == {"wrong": 2, "long": 1, "whole": 0, "changed": 1}[kind],
              f"{kind}: {[r['headers'].get('range') for r in hub.of(name)[1]]}")


def interrupts_keep_the_part():
    name, cache = "org/stopped", cache_of("stopped")
    hub.add(name, BASE, large_pauses=[60])
    process = start(["pull", name], cache)
    part = folder(cache, name) / "blobs" / f"{sha256(LARGE)}.incomplete"
    end = time.time() + 60
    while time.time() < end and process.poll() is None and not (part.exists() and part.stat().st_size > 0):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    check(process.returncode == 1 and "stopped; what has arrived is kept" in err, f"an interrupt: {out}{err}")
    check(part.exists() and 0 < part.stat().st_size < len(LARGE), "the part is kept")
    pull(name, cache)
    links(cache, name)
    check([r["headers"].get("range") for r in hub.of(name)[1]][1] is not None, "and resumed")


def stalls_are_given_up():
    name, cache = "org/stalled", cache_of("stalled")
    hub.add(name, {"tokenizer.json": LARGE}, large_pauses=[30])
    process = start(["pull", name], cache, HF_HUB_DOWNLOAD_TIMEOUT="1")
    out, err = process.communicate(timeout=60)
    check(process.returncode == 0 and "next try" in err, f"a stall: {out}{err}")
    check("HF_HUB_DOWNLOAD_TIMEOUT is 'x'" in pull(name, cache, 1, HF_HUB_DOWNLOAD_TIMEOUT="x"), "its variable")


# ---- failures that stay ---------------------------------------------------------------------------------------------


def contents_are_verified():
    out = refused("org/damaged", "its SHA-256 is", damage=("model.safetensors", LARGE[:-1] + b"?"))
    check(sha256(LARGE) in out and not list(cache_of("org/damaged").rglob("*.incomplete")), "and the part is removed")
    refused("org/damaged-small", "its git SHA-1 is", damage=("config.json", b'{"model_type": "evil!"}\n'))
    refused("org/truncated", "no more than", short=True, cut_after=[None, 1000, 0, 0], files=BASE)
    refused("org/longer", "sends more than the", damage=("model.safetensors", LARGE + b"?"))
    refused("org/other-commit", "the hub answers for commit", commit_header="f" * 40)
    refused("org/no-hash", "names no size and hash", etags={"config.json": "../../x"})
    refused("org/huge", "MiB are needed", sizes={"model.safetensors": 1 << 55})


def statuses_have_their_errors():
    refused("org/gated", "is gated", token="hf_right")
    check("hf_right" not in pull("org/gated", cache_of("org/gated"), 1, HF_TOKEN="hf_wrong"), "no token is printed")
    refused("org/forbidden", "is private: check its name", statuses=[403])
    refused("org/missing-file", "status 410", statuses=[410])
    hub.add("org/listed", BASE, names=[*BASE, "vocab.json"])
    check("vocab.json was not found" in pull("org/listed", cache_of("listed"), 1), "a file that is listed alone")
    check("does not exist, or is private" in pull("org/nowhere", cache_of("nowhere"), 1), "no such model")
    refused("org/down", "6 times in a row", list_statuses=[500] * 9)
    check("HF_ENDPOINT is" in run(["pull", "a/b"], cache_of("e"), 1, HF_ENDPOINT="ftp://x"), "an endpoint")


def the_token_stays():
    name, cache = "org/token", cache_of("token")
    hub.add(name, BASE, token="hf_secret")
    pull(name, cache, HF_TOKEN=" hf_secret\n")
    first, second = hub.of(name)
    check(all(r["headers"].get("authorization") == "Bearer hf_secret" for r in first), "the endpoint gets the token")
    check(len(second) == 1 and "authorization" not in second[0]["headers"], "another host does not")
    hub.add("org/near", BASE, token="hf_secret",
            redirect=f"{hub.near_endpoint}/large/org/near/model.safetensors?Signature=secret")
    pull("org/near", cache, HF_TOKEN="hf_secret")
    near = hub.of("org/near")[1]
    check(len(near) == 1 and "authorization" not in near[0]["headers"], "another port does not")
    check(not any("hf_secret" in json.dumps(r) for r in hub.large_requests), "in no way")
    home = scratch / "token-home"
    home.mkdir()
    (home / "token").write_text("hf_secret\n")
    run(["pull", name], cache, HF_HUB_CACHE="", HF_HOME=str(home))
    (home / "elsewhere").write_text("hf_secret")
    run(["pull", name], cache_of("token2"), HF_TOKEN_PATH=str(home / "elsewhere"))
    out = pull(name, cache, 1, HF_TOKEN="hf_a\r\nX-Header: y")
    check("expected one word" in out and "hf_a" not in out, f"a token that is none: {out}")


def redirects_are_bounded():
    for kind, target, text in (("file", "file:///etc/passwd", "only http and https are followed"),
                               ("ftp", "ftp://127.0.0.1/x", "only http and https are followed"),
                               ("loop", None, "redirects more than 8 times")):
        name = f"org/to-{kind}"
        target = target or f"{hub.endpoint}/{name}/resolve/main/model.safetensors"
        out = refused(name, text, redirect=target)
        check("root:" not in out, "a local file is read")


def certificates_are_verified():
    """A server whose certificate nobody has signed."""
    key, certificate = scratch / "key.pem", scratch / "certificate.pem"
    if not shutil.which("openssl"):
        return
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1",
                           "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
                          check=False, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    check(made.returncode == 0, f"openssl: {made.stderr!r}")
    context.load_cert_chain(certificate, key)
    secure = Hub(context)
    secure.add("org/secure", BASE)
    out = pull("org/secure", cache_of("secure"), 1, HF_ENDPOINT=secure.endpoint, HF_TOKEN="hf_secret")
    check("cannot be trusted" in out and not secure.requests, f"a certificate of its own: {out}")


def hostile_answers_are_refused():
    for kind, bad in enumerate(["../../x.json", "/etc/x.json", "a/../x.json", "a//x.json", "./x.json", "x\\..\\y.json",
                                "x\x1b[2J.json", "x\n.json", "x\u202e.json", "a/" + "x" * 256 + ".json", "", "..",
                                "/".join(["xxxxxxx"] * 150) + ".json"]):
        out = refused(f"org/name-{kind}", "unsafe name", names=[*BASE, bad])
        check(not any(p.name not in ("models--org--name-%d" % kind, ".locks")
                      for p in cache_of(f"org/name-{kind}").glob("*")), f"{bad!r}: {out}")
    refused("org/case", "differ in case alone", files=BASE | {"Config.json": b"{}"})
    refused("org/not-json", "is not JSON", listing=b"<html>")
    refused("org/deep", "is not JSON", listing=b"[" * 100_000)
    refused("org/zero", "is not JSON", listing=b'{"sha": "a\\u0000", "siblings": []}')
    refused("org/bad-sha", "no commit", listing=b'{"sha": "../../x", "siblings": []}')
    refused("org/bad-list", "no list", listing=json.dumps({"sha": "a" * 40, "siblings": {}}).encode())
    refused("org/no-name", "without a name", listing=json.dumps({"sha": "a" * 40, "siblings": [1]}).encode())
    twice = {"sha": "a" * 40, "siblings": [{"rfilename": "x"}] * 2}
    refused("org/twice", "the same file twice", listing=json.dumps(twice).encode())
    refused("org/endless", "more than 32 MiB", listing=b" " * ((32 << 20) + 1))


def a_full_disk_is_resumed():
    name, cache = "org/full", cache_of("full")
    hub.add(name, BASE)
    limit = 128 * 1024
    out = pull(name, cache, 1, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    part = folder(cache, name) / "blobs" / f"{sha256(LARGE)}.incomplete"
    check("cannot write" in out and "make space and run the same command" in out, f"a full disk: {out}")
    check(part.stat().st_size == limit and not (folder(cache, name) / "refs").exists(), "what has arrived is kept")
    pull(name, cache)
    check(hub.of(name)[1][-1]["headers"]["range"] == f"bytes={limit}-", "and resumed")
    links(cache, name)
    disk = scratch / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=200k none {disk} && {TARN} pull {name}"
    tried = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount], check=False,
                           env=environment(disk), capture_output=True, text=True)
    if "unshare" not in tried.stderr and "mount" not in tried.stderr:
        check("MiB free; 0.3 MiB are needed" in tried.stderr, f"a small disk: {tried.stdout}{tried.stderr}")


def two_at_once():
    name, cache = "org/both", cache_of("both")
    repo = hub.add(name, BASE, pause=0.5)
    both = [start(["pull", name], cache) for _ in range(3)]
    for process in both:
        out, err = process.communicate(timeout=60)
        check(process.returncode == 0, f"one of three at once: {out}{err}")
    links(cache, name)
    check(len(hub.of(name)[1]) == 1, "the large file was downloaded once")
    check((folder(cache, name) / "refs/main").read_text() == repo.commit, "and the ref is whole")


# ---- huggingface_hub ------------------------------------------------------------------------------------------------

SNAPSHOT = ("import sys, huggingface_hub as h; "
            "print(h.snapshot_download(sys.argv[1], local_files_only=sys.argv[2] == '1'))")


def snapshot(name, cache, local):
    tried = subprocess.run([sys.executable, "-c", SNAPSHOT, name, str(int(local))], check=False, capture_output=True,
                           env=environment(cache, HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_XET="1",
                                           HF_HUB_DISABLE_TELEMETRY="1"), text=True)
    check(tried.returncode == 0, f"huggingface_hub: {tried.stderr[-2000:]}")
    return Path(tried.stdout.strip())


def huggingface_hub_agrees():
    files = BASE | {"1_Pooling/config.json": b"{ }"}
    repo = hub.add("org/both-ways", files)
    ours, theirs = cache_of("ours"), cache_of("theirs")
    pull("org/both-ways", ours)
    path = snapshot("org/both-ways", ours, True)
    check(path.name == repo.commit and {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()} == set(files),
          f"it finds what tarn pulled: {path}")
    snapshot("org/both-ways", theirs, False)
    check(links(theirs, "org/both-ways") == links(ours, "org/both-ways"), "both caches have the same links and blobs")
    before = len(hub.of("org/both-ways")[1])
    check("all in the cache" in pull("org/both-ways", theirs), "tarn finds what it downloaded")
    check(len(hub.of("org/both-ways")[1]) == before, "and downloads nothing")
    check("snapshots" in run(["inspect", "org/both-ways/model.safetensors"], theirs, 1), "and opens it")


def main():
    probe = run(["pull", "org/absent"], scratch / "probe", 1)
    if "this build downloads nothing" in probe:
        print(f"skipped: {probe}")
        return 77
    print(f"seed {SEED}; huggingface_hub {getattr(huggingface_hub, '__version__', 'is missing: skipped')}")
    parts = [a_model_is_laid_out, revisions_are_apart, files_are_chosen, all_shards_of_a_gguf_model_come,
             models_open_from_the_cache, broken_connections_are_resumed, ranges_that_do_not_fit,
             a_damaged_part_is_replaced, interrupts_keep_the_part, stalls_are_given_up, contents_are_verified,
             statuses_have_their_errors, the_token_stays, redirects_are_bounded, certificates_are_verified,
             hostile_answers_are_refused, a_full_disk_is_resumed, two_at_once]
    parts += [huggingface_hub_agrees] if huggingface_hub else []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for part, done in [(part, pool.submit(part)) for part in parts]:
            error = done.exception()
            check(error is None, f"{part.__name__}: {error!r}")
    shutil.rmtree(scratch, ignore_errors=True)
    print(f"{len(parts)} parts, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
