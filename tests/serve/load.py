#!/usr/bin/env python3
"""`tarn serve` under load and abuse: idle connections, many streams, requests of `tarn bench serve` with flat memory,
slow readers, cut and half-open connections, killed clients, wrong bodies. After each part the server is healthy and no
sequence is left. On stories260K where TARN_TEST_DATA has it, else on a random model. TARN_COMMAND names the command,
TARN_TEST_DEVICE the device (cpu); TARN_TEST_LONG=1: 10,000 connections, 1,000 streams, 256 requests at a time for
TARN_TEST_SECONDS (60). Exit status 77: there is no server."""
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import random_model
import stories_model

LONG = bool(os.environ.get("TARN_TEST_LONG"))
TARN = os.environ.get("TARN_COMMAND", "tarn")
IDLE, STREAMS, ACTIVE, SECONDS = (10000, 1000, 256, 60) if LONG else (300, 40, 16, 1)
SECONDS = int(os.environ.get("TARN_TEST_SECONDS", SECONDS))
DEVICE = os.environ.get("TARN_TEST_DEVICE", "cpu")
failures = 0


def check(holds, what):
    global failures
    if not holds:
        failures += 1
        print(f"failed: {what}")


class Server:
    def __init__(self, folder):
        self.process = subprocess.Popen([TARN, "serve", folder, "--port", "0", "--device", DEVICE, "--sequences", "64",
                                         "--queue", str(STREAMS + ACTIVE)], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            print("skipped: the command has no server")
            sys.exit(77)
        self.url = line.split()[0]
        self.port = int(self.url.rsplit(":", 1)[1])
        self.process.stdout.readline()

    def connect(self, receive=0):
        s = socket.socket()
        if receive:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        s.settimeout(120)
        s.connect(("127.0.0.1", self.port))
        return s

    def send(self, s, body, path="/v1/completions", method="POST"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def ask(self, path, body=b"", method="GET"):
        with self.connect() as s:
            self.send(s, body, path, method)
            return receive_all(s)

    def memory(self):
        """Resident KiB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0])

    def check_idle(self, after):
        """Healthy, and within 20 seconds without a sequence."""
        until = time.time() + 20
        slots = None
        while slots != "[]" and time.time() < until:
            slots = self.ask("/slots").partition("\r\n\r\n")[2]
            time.sleep(0.05)
        check(slots == "[]", f"after {after}: sequences are left: {slots}")
        check(self.process.poll() is None and "200 OK" in self.ask("/health"), f"after {after}: not healthy")
        print(f"{after}: {self.memory()} KiB", flush=True)


def receive_all(s):
    parts = []
    while True:
        part = s.recv(1 << 16)
        if not part:
            return b"".join(parts).decode("utf-8", "replace")
        parts.append(part)


def story(tokens, **more):
    return {"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "stream": True, **more}


def bench(server, *options):
    return [TARN, "bench", "serve", server.url, "--prompt-tokens", "32", "--new-tokens", "64", "--json", *options]


# ---- parts -----------------------------------------------------------------------------------------------------------


def idle_connections(server):
    """All are open at once; then a request on some of them is still answered."""
    sockets = [server.connect() for _ in range(IDLE)]
    for s in sockets[::max(1, IDLE // 50)]:
        server.send(s, b"", "/health", "GET")
        check("200 OK" in receive_all(s), "an idle connection gets no answer")
    check("200 OK" in server.ask("/health"), "no answer beside idle connections")
    print(f"{len(sockets)} connections: {server.memory()} KiB")
    for s in sockets:
        s.close()


def streams(server):
    """All are open at once, and each comes to its end."""
    sockets = [server.connect() for _ in range(STREAMS)]
    for s in sockets:
        server.send(s, story(100))
    ends = ["data: [DONE]" in receive_all(s) for s in sockets]
    check(all(ends), f"{ends.count(False)} of {STREAMS} streams have no end")
    for s in sockets:
        s.close()


def flat_memory(server):
    """The load generator for a while; memory of the second half does not grow by more than 3 %."""
    process = subprocess.Popen(bench(server, "--clients", str(ACTIVE), "--seconds", str(SECONDS)),
                               stdout=subprocess.PIPE, text=True)
    samples = []
    while process.poll() is None:
        samples.append(server.memory())
        time.sleep(SECONDS / 60)
    result = json.loads(process.stdout.read())
    middle = max(samples[len(samples) // 4:len(samples) // 2])
    last = max(samples[len(samples) // 2:])
    first = result["first_token_ms"]
    print(f"{ACTIVE} clients, {SECONDS} s: {result['done']} requests, {result['tokens_per_second']:.0f} tokens/s, "
          f"first token {first['p50']:.1f} ms, p99 {first['p99']:.1f}; memory {middle} KiB, then {last}")
    check(result["failed"] == 0 and result["done"] > 0, f"failed requests: {result['errors']}")
    if LONG:
        check(last <= 1.03 * middle, f"memory grew from {middle} to {last} KiB")


def slow_readers(server):
    """They read nothing, with small buffers; others are answered meanwhile."""
    sockets = [server.connect(receive=2048) for _ in range(8)]
    for s in sockets:
        server.send(s, story(450, n=8, logprobs=5))
    body = server.ask("/v1/completions", json.dumps(story(20, stream=False)).encode(), "POST")
    check('"completion_tokens":20' in body, "no answer beside slow readers")
    for s in sockets:
        s.close()


def cut_connections(server):
    """At every point of a request and of its stream: closed, reset, and half-open."""
    draw = random.Random(1)
    body = json.dumps(story(200)).encode()
    whole = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)) + body
    for i in range(200 if LONG else 30):
        s = server.connect()
        s.sendall(whole[:draw.randint(1, len(whole))])
        if i % 3 == 0:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif i % 3 == 1:
            s.shutdown(socket.SHUT_WR)
        s.close()
        s = server.connect()
        s.sendall(whole)
        s.recv(draw.randint(1, 2000))
        if i % 2:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()


def killed_clients(server):
    for _ in range(5 if LONG else 2):
        process = subprocess.Popen(bench(server, "--clients", str(ACTIVE), "--seconds", "30"),
                                   stdout=subprocess.DEVNULL)
        time.sleep(1 if LONG else 0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()


def wrong_bodies(server):
    """None is answered with 200 or 500, or ends the connection without an answer."""
    draw = random.Random(2)
    good = json.dumps(story(2, stream=False)).encode()
    bodies = [b"", b"{", b"[]", b"null", b"\0", b"\xff\xfe", b"{}" * 1000, b"[" * 100000,
              b'{"a":' * 70 + b"1" + b"}" * 70,
              b'{"prompt":1e999}', b'{"prompt":"a","prompt":"b"}', b'{"prompt":"a","max_tokens":-1}',
              b'{"prompt":"a","max_tokens":99999999999999999999}', b'{"prompt":"\\ud800"}', b'{"prompt":[99999999]}',
              b'{"prompt":"a","n":9}', b'{"prompt":"a","nosuch":1}', b'{"prompt":{"a":1}}',
              json.dumps({"prompt": "a " * 100000}).encode(), b'{"messages":[]}', b"x" * (5 << 20)]
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template"):
        for body in bodies:
            with server.connect() as s:
                try:
                    server.send(s, body, path)
                    status = receive_all(s)[9:12]
                except ConnectionError:  # a body that is too large is not read to its end
                    status = "413"
                fine = status.startswith("4") or (path == "/tokenize" and status == "200")
                check(fine, f"{path} with {body[:40]}: status {status!r}")
    for _ in range(2000 if LONG else 100):
        body = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        status = server.ask("/v1/completions", bytes(body), "POST")[9:12]
        check(status in ("200", "400", "404"), f"{bytes(body)}: status {status!r}")


def main():
    data = Path(os.environ.get("TARN_TEST_DATA", "")) / "stories260K"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 100:
        print(f"skipped: {IDLE} connections need as many open files; the limit is {hard}")
        return 77
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        if (data / "stories260K.bin").is_file():
            stories_model.write(data, Path(folder) / "model")
        else:
            random_model.write(Path(folder) / "model")
        server = Server(os.path.join(folder, "model"))
        try:
            for part in (idle_connections, streams, flat_memory, slow_readers, cut_connections, killed_clients,
                         wrong_bodies):
                part(server)
                server.check_idle(part.__name__.replace("_", " "))
            server.process.send_signal(signal.SIGTERM)
            check(server.process.wait(60) == 0, f"the server ended with status {server.process.returncode}")
        finally:
            server.process.kill()
            server.process.wait()
    print("failed" if failures else "all passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
