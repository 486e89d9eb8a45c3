#!/usr/bin/env python3
"""The ollama package against `tarn serve`: lists, chats, prompts, streams, structured output, tools and errors, on a
random chat model and on stories260K where TARN_TEST_DATA has it. TARN_COMMAND names the command. Exit status 77: the
package or the server is missing."""
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import random_model
import stories_model

try:
    import ollama
except ImportError:
    print("skipped: the ollama package is missing")
    sys.exit(77)

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0, "repeat_penalty": 1, "num_predict": 20}
failures = 0


def check(holds, what):
    global failures
    if not holds:
        failures += 1
        print(f"failed: {what}")


def refused(status, text, ask):
    try:
        ask()
        check(False, f"refused: {text}")
    except ollama.ResponseError as error:
        check(error.status_code == status and text in error.error, f"{text}: {error.status_code}, {error.error}")


@contextlib.contextmanager
def served(folder):
    """A client of a server of the model in a folder."""
    server = subprocess.Popen([os.environ["TARN_COMMAND"], "serve", folder, "--port", "0", "--device", "cpu"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        first = server.stdout.readline()
        if not first or not server.stdout.readline():
            said = server.stderr.read()
            print(said)
            sys.exit(77 if "this build has no HTTP server" in said else 1)
        yield ollama.Client(host=first.split()[0])
    finally:
        was_running = server.poll() is None
        server.terminate()
        check(server.wait(60) == 0 or not was_running, "SIGTERM ends the server")


def chats(client):
    check([m.model for m in client.list().models] == ["random"], "the list of models")
    check([m.model for m in client.ps().models] == ["random"], "the running models")
    check("tools" in client.show("random").capabilities, "the model's capabilities")
    whole = client.chat("random", messages=HELLO, options=GREEDY)
    parts = list(client.chat("random", messages=HELLO, options=GREEDY, stream=True))
    check("".join(p.message.content for p in parts) == whole.message.content, "a streamed chat")
    check([p.done for p in parts] == [False] * (len(parts) - 1) + [True], "the end of a stream")
    check(whole.eval_count == parts[-1].eval_count <= 20 and whole.total_duration > 0, "counts and durations")
    check(client.generate("random", "Hello", options=GREEDY).response == whole.message.content, "a prompt is a message")
    check(client.generate("random").done_reason == "load", "a model that is loaded")


def structured(client):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
              "required": ["n"], "additionalProperties": False}
    answer = client.chat("random", messages=HELLO, format=schema)
    check(0 <= json.loads(answer.message.content)["n"] <= 99, "a schema")

    def add(a: int) -> int:
        """Adds.

        Args:
            a: a number
        """
        return a

    call = {"const": {"name": "add", "arguments": {"a": 1}}}
    for parts in ([client.chat("random", messages=HELLO, tools=[add], format=call)],
                  client.chat("random", messages=HELLO, tools=[add], format=call, stream=True)):
        calls = [c for part in parts for c in part.message.tool_calls or []]
        check([(c.function.name, dict(c.function.arguments)) for c in calls] == [("add", {"a": 1})], "a call")
    again = HELLO + [{"role": "assistant", "content": "", "tool_calls": calls},
                     {"role": "tool", "content": "1", "tool_name": "add"}]
    check(client.chat("random", messages=again, tools=[add], options=GREEDY).done, "the result of a call")


def errors(client):
    refused(404, "model 'other' does not exist", lambda: client.chat("other", messages=HELLO))
    refused(400, "options.mirostat", lambda: client.generate("random", "Hi", options={"mirostat": 2}))
    refused(400, "template", lambda: client.generate("random", "Hi", template="{{ .Prompt }}"))
    refused(400, "images", lambda: client.chat("random", messages=[HELLO[0] | {"images": ["aGk="]}]))
    refused(400, "the context has", lambda: list(client.generate("random", "x" * 600, stream=True)))
    refused(404, "no such route", lambda: client.pull("llama3"))


def stories(data, folder):
    """Without a chat template a prompt is a text; greedily it is the model's own story."""
    stories_model.write(data, folder)
    golden = json.loads((data / "golden_greedy200.json").read_text())["ids"]
    done = subprocess.run([os.environ["TARN_COMMAND"], "tokenize", "--tokenizer", folder, "--decode", "--text",
                           " ".join(map(str, golden[1:101]))], stdout=subprocess.PIPE, text=True, check=True)
    with served(folder) as client:
        answer = client.generate("stories", "Once upon a time", options=GREEDY | {"num_predict": 100})
        check(("Once upon a time" + answer.response).startswith(done.stdout.strip()), "the story of the model")
        refused(400, "system needs a chat template", lambda: client.generate("stories", "Hi", system="x"))


def main():
    data = Path(os.environ.get("TARN_TEST_DATA", "")) / "stories260K"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "random"
        random_model.write(folder)
        with served(folder) as client:
            chats(client)
            structured(client)
            errors(client)
        if (data / "stories260K.bin").is_file():
            stories(data, Path(scratch) / "stories")
    print("FAILED" if failures else "the ollama package is served")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
