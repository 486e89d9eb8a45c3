#!/usr/bin/env python3
"""schemathesis against `tarn serve`: requests made from /openapi.json, right and wrong, to two random models. No answer
has a status 5xx that is not documented; every answer conforms to the document; what the document excludes is refused.
15 seconds, with TARN_TEST_LONG=1 three minutes. TARN_COMMAND names the command. Exit status 77: the package or the
server is missing."""
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import random_model

CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
          "response_schema_conformance,negative_data_rejection,unsupported_method")
FEWEST = 50  # requests: fewer would have tried nothing


def attack(url, scratch):
    """The status of the run, whose output is shown where something is wrong."""
    is_long = bool(os.environ.get("TARN_TEST_LONG"))
    seed = random.randrange(1 << 32)
    command = [sys.executable, "-m", "schemathesis.cli", "run", url + "/openapi.json", "--checks", CHECKS, "--phases",
               "coverage,fuzzing", "--seed", str(seed), "--max-time", "180" if is_long else "15", "--max-examples",
               "500" if is_long else "20", "--generation-database", "none", "--no-color", "--request-timeout", "60"]
    done = subprocess.run(command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=600)
    made = re.search(r"([\d,]+) generated", done.stdout)
    count = int(made.group(1).replace(",", "")) if made else 0
    if done.returncode or count < FEWEST:
        print(f"FAILED: {count} requests, seed {seed}\n{done.stdout}")
        return 1
    print(f"schemathesis: {count} requests conform, seed {seed}")
    return 0


def main():
    if not importlib.util.find_spec("schemathesis"):
        print("skipped: the schemathesis package is missing")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("one", "two")]
        for folder in folders:
            random_model.write(folder)
        with open(Path(scratch) / "errors", "w") as errors:
            server = subprocess.Popen([os.environ["TARN_COMMAND"], "serve", *folders, "--port", "0", "--device", "cpu",
                                       "--context", "128"], stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            first = server.stdout.readline()
            if not first or not server.stdout.readline():
                said = (Path(scratch) / "errors").read_text()
                print(said)
                return 77 if "this build has no HTTP server" in said else 1
            status = attack(first.split()[0], scratch)
            if server.poll() is not None:
                print(f"FAILED: the server has ended with status {server.returncode}")
                status = 1
        finally:
            server.terminate()
            if server.wait(60) != 0:
                print("FAILED: SIGTERM does not end the server")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
