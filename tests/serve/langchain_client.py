#!/usr/bin/env python3
"""LangChain (langchain-openai) against `tarn serve`: chats, streams, tools, structured output, embeddings and errors,
on a random Llama. TARN_COMMAND names the command. Exit status 77: the package or the server is missing."""
import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import openai
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
except ImportError:
    print("skipped: the langchain-openai package is missing")
    sys.exit(77)

import random_model

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
            "<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n"
            "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
ADD = {"type": "function", "function": {"name": "add", "description": "Adds two digits.", "parameters": {
    "type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": [3, 4]}}, "required": ["a", "b"],
    "additionalProperties": False}}}
PLACE = {"title": "Place", "description": "A place.", "type": "object", "properties": {
    "name": {"type": "string", "maxLength": 8}, "isle": {"type": "boolean"}}, "required": ["name", "isle"],
    "additionalProperties": False}
failures = 0


def check(holds, what):
    global failures
    if not holds:
        failures += 1
        print(f"FAILED: {what}")


def chats(model):
    parts = [{"type": "text", "text": "Go on"}]
    ask = [SystemMessage("Be brief."), HumanMessage("Hi"), AIMessage("Hello."), HumanMessage(parts)]
    whole = model.invoke(ask)
    check(whole.content and whole.response_metadata["finish_reason"] in ("stop", "length"), "a chat")
    check(whole.usage_metadata["output_tokens"] <= 40 < whole.usage_metadata["input_tokens"], "usage")
    parts = list(model.stream(ask))
    check("".join(p.content for p in parts) == whole.content, "a stream has the text of the whole answer")
    usage = [p.usage_metadata for p in parts if p.usage_metadata]
    check(usage and usage[-1]["output_tokens"] == whole.usage_metadata["output_tokens"], "and its usage")
    check([m.content for m in model.batch([ask, ask])] == [whole.content] * 2, "a batch")
    check(asyncio.run(model.ainvoke(ask)).content == whole.content, "an asynchronous chat")


def tools(model):
    bound = model.bind_tools([ADD], tool_choice="add")
    answer = bound.invoke("Add 1 and 3.")
    check([c["name"] for c in answer.tool_calls] == ["add"], "a call that is demanded")
    arguments = answer.tool_calls[0]["args"] if answer.tool_calls else {}
    check(arguments.get("a") in (1, 2) and arguments.get("b") in (3, 4), "its arguments")
    whole = None
    for part in bound.stream("Add 1 and 3."):
        whole = part if whole is None else whole + part
    check([(c["name"], c["args"]) for c in whole.tool_calls] == [("add", arguments)], "a streamed call")
    talk = [HumanMessage("Add 1 and 3."), answer, ToolMessage("4", tool_call_id=answer.tool_calls[0]["id"])]
    check(model.bind_tools([ADD]).invoke(talk).content is not None, "the result of a call")


def structured(model):
    for method in ("json_schema", "function_calling"):
        value = model.with_structured_output(PLACE, method=method).invoke("A place")
        check(isinstance(value, dict) and isinstance(value.get("isle"), bool) and len(value.get("name", "x" * 9)) <= 8,
              f"an answer by a schema, {method}: {value}")


def embeddings(url):
    texts = OpenAIEmbeddings(base_url=url, api_key="none", model="random", check_embedding_ctx_length=False)
    vectors = texts.embed_documents(["one", "two"])
    check([len(v) for v in vectors] == [random_model.HIDDEN] * 2 and vectors[0] != vectors[1], "embeddings")
    check(texts.embed_query("one") == vectors[0], "the embedding of a query")


def errors(url):
    try:
        ChatOpenAI(base_url=url, api_key="none", model="other", max_retries=0).invoke("Hi")
        check(False, "another model is refused")
    except openai.NotFoundError as error:
        check(error.code == "model_not_found", f"another model is refused: {error}")


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "random"
        random_model.write(folder, TEMPLATE)
        with open(folder / "errors", "w") as errors_file:
            server = subprocess.Popen([os.environ["TARN_COMMAND"], "serve", folder, "--port", "0", "--device", "cpu"],
                                      stdout=subprocess.PIPE, stderr=errors_file, text=True)
        try:
            first = server.stdout.readline()
            if not first or not server.stdout.readline():
                said = (folder / "errors").read_text()
                print(said)
                return 77 if "this build has no HTTP server" in said else 1
            url = first.split()[0] + "/v1"
            model = ChatOpenAI(base_url=url, api_key="none", model="random", temperature=0, seed=1, max_tokens=40,
                               max_retries=0, timeout=60, stream_usage=True)
            chats(model)
            tools(model.model_copy(update={"max_tokens": 200}))
            structured(model.model_copy(update={"max_tokens": 200}))
            embeddings(url)
            errors(url)
        finally:
            was_running = server.poll() is None
            server.terminate()
            check(server.wait(60) == 0 or not was_running, "SIGTERM ends the server")
    print("FAILED" if failures else "LangChain is served")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
