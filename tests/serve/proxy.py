#!/usr/bin/env python3
"""contrib/nginx.conf and contrib/tarn.service as they are, but for ports and paths: a stream through nginx with TLS
comes token by token, keys and limits hold, /metrics stays inside; systemd accepts the unit. TARN_COMMAND names the
command. Exit status 77: nginx, openssl or the server is missing."""
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import random_model

SOURCE = Path(__file__).resolve().parents[2]
KEY = "key-of-the-test"
failures = 0


def check(holds, what):
    global failures
    if not holds:
        failures += 1
        print(f"failed: {what}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def configuration(folder, port, server_port):
    """The example with the ports and files of the test, inside what nginx needs to run alone."""
    text = (SOURCE / "contrib/nginx.conf").read_text()
    for old, new in (("127.0.0.1:8080", f"127.0.0.1:{server_port}"), ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
                     ("/etc/ssl/models.pem", str(folder / "cert.pem")),
                     ("/etc/ssl/models.key", str(folder / "key.pem"))):
        check(old in text, f"{old} is in the example")
        text = text.replace(old, new)
    folders = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temp = "".join(f"{name}_temp_path {folder}/{name};\n" for name in folders)
    path = folder / "nginx.conf"
    path.write_text(f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
                    f"http {{\naccess_log off;\n{temp}{text}}}\n")
    return path


def ask(port, context, method, path, body=None, key=KEY):
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    headers = {"Host": "models.example.org", "Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connection.request(method, path, json.dumps(body) if body else None, headers)
    return connection.getresponse()


def stream(port, context):
    """The first event is there long before the last."""
    body = {"prompt": "Once", "max_tokens": 400, "stream": True, "ignore_eos": True, "n": 8}
    answer = ask(port, context, "POST", "/v1/completions", body)
    check(answer.status == 200 and answer.headers["Content-Type"] == "text/event-stream", "the head of a stream")
    times, last = [], b""
    for line in answer:
        if line.startswith(b"data: "):
            times.append(time.monotonic())
            last = line
    check(last == b"data: [DONE]\n", "the end of a stream")
    check(len(times) > 400, f"{len(times)} events")
    check(len(set(round(t, 3) for t in times)) > 10, "events come one after the other")


def health_at_once(port, context):
    """Statuses of 60 requests over one connection: a handshake for each would take as long as the limit allows."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    statuses = []
    for _ in range(60):
        connection.request("GET", "/health", headers={"Host": "models.example.org"})
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    return statuses


def through_nginx(port, context):
    check(ask(port, context, "GET", "/health", key=None).status == 200, "/health")
    check(ask(port, context, "GET", "/v1/models").status == 200, "/v1/models with a key")
    check(ask(port, context, "GET", "/v1/models", key=None).status == 401, "a request without a key")
    check(ask(port, context, "GET", "/metrics").status == 403, "/metrics stays inside")
    check(ask(port, context, "GET", "/slots").status == 403, "/slots stay inside")
    check(ask(port, context, "POST", "/tokenize", {"content": "x" * (5 << 20)}).status == 413, "a body too large")
    stream(port, context)
    time.sleep(2)
    statuses = health_at_once(port, context)
    check(set(statuses) == {200, 429} and statuses.count(200) >= 21, f"the limit per address: {statuses}")


def check_unit():
    if not shutil.which("systemd-analyze"):
        print("skipped: systemd-analyze is missing")
        return
    with tempfile.TemporaryDirectory() as scratch:
        text = (SOURCE / "contrib/tarn.service").read_text()
        unit = Path(scratch) / "tarn.service"
        unit.write_text(text.replace("/usr/local/bin/tarn", os.environ["TARN_COMMAND"]))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
        said = [line for line in (done.stdout + done.stderr).splitlines() if "tarn.service" in line]
        check(done.returncode == 0 and not said, f"systemd-analyze verify: {said or done.stderr}")
    options = re.search(r"ExecStart=\S+ serve ((?:.*\\\n)*.*)", text)[1]
    helped = subprocess.run([os.environ["TARN_COMMAND"], "serve", "--help"], capture_output=True, text=True).stdout
    flags = re.findall(r"--[a-z-]+", options)
    check(len(flags) == 4, f"the options of the unit: {flags}")
    for flag in flags:
        check(f"  {flag} " in helped, f"{flag} of the unit is an option")


def main():
    check_unit()
    for tool in ("nginx", "openssl"):
        if not shutil.which(tool):
            print(f"skipped: {tool} is missing")
            return 77
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        random_model.write(folder / "random")
        (folder / "keys").write_text(KEY + "\n")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key.pem",
                        "-out", folder / "cert.pem", "-days", "1", "-subj", "/CN=models.example.org", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        server = subprocess.Popen([os.environ["TARN_COMMAND"], "serve", folder / "random", "--port", "0", "--device",
                                   "cpu", "--api-key-file", folder / "keys"], stdout=subprocess.PIPE, text=True)
        proxy = None
        try:
            first = server.stdout.readline()
            if not first or not server.stdout.readline():
                return 77
            port = free_port()
            path = configuration(folder, port, int(first.split()[0].rsplit(":", 1)[1]))
            tested = subprocess.run(["nginx", "-t", "-c", path], capture_output=True, text=True)
            check(tested.returncode == 0 and "warn" not in tested.stderr, f"nginx -t: {tested.stderr}")
            proxy = subprocess.Popen(["nginx", "-c", path], stderr=subprocess.DEVNULL)
            context = ssl.create_default_context(cafile=folder / "cert.pem")
            for _ in range(100):
                with socket.socket() as s:
                    if s.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            through_nginx(port, context)
        finally:
            for process in filter(None, (proxy, server)):
                process.terminate()
                process.wait(60)
    print("FAILED" if failures else "the server is proxied")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
