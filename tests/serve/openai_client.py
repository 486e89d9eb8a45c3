#!/usr/bin/env python3
"""The openai package against `tarn serve`: models, chats, completions, embeddings, streams, structured output,
thinking, log probabilities, errors and keys, on a random Llama. TARN_COMMAND names the command. Exit status 77: the
package or the server is missing."""
import array
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent import futures
from pathlib import Path

try:
    import openai
except ImportError:
    print("skipped: the openai package is missing")
    sys.exit(77)

import random_model

KEY = "sk-of-the-test"
failures = 0


def check(holds, what):
    global failures
    if not holds:
        failures += 1
        print(f"FAILED: {what}")


def refused(error, code, call):
    """The call raises the error with that code."""
    try:
        call()
    except error as e:
        check(e.code == code, f"{error.__name__} has the code {e.code}, not {code}")
        return
    check(False, f"{error.__name__} was not raised")


def chats(client):
    ask = dict(model="random", messages=[{"role": "user", "content": "Hi"}], temperature=0, max_tokens=40)
    whole = client.chat.completions.create(**ask)
    check(whole.choices[0].message.role == "assistant", "the role of an answer")
    check(whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, "usage")
    text, reason, usage = "", None, None
    for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    check(text == whole.choices[0].message.content, "a stream has the text of the whole answer")
    check(reason == whole.choices[0].finish_reason, "and its finish reason")
    check(usage.completion_tokens == whole.usage.completion_tokens, "and its usage")
    parts = ask | {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
    check(client.chat.completions.create(**parts).choices[0].message.content == text, "parts of text")
    several = client.chat.completions.create(**ask | {"temperature": 1, "n": 3, "seed": 1})
    check(len({c.message.content for c in several.choices}) == 3, "three different answers")
    again = client.chat.completions.create(**ask | {"temperature": 1, "n": 3, "seed": 1})
    check([c.message.content for c in again.choices] == [c.message.content for c in several.choices], "seeds")
    logprobs = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    check(len(logprobs) == whole.usage.completion_tokens, "log probabilities of every token")
    check(all(len(p.top_logprobs) == 3 and p.top_logprobs[0].logprob == p.logprob for p in logprobs), "the best first")
    check(all(bytes(p.bytes or b"").decode(errors="replace") == p.token for p in logprobs), "the bytes of a token")
    streamed = [p for chunk in client.chat.completions.create(**ask, logprobs=True, top_logprobs=3, stream=True)
                for c in chunk.choices if c.logprobs for p in c.logprobs.content]
    check([(p.token, p.logprob) for p in streamed] == [(p.token, p.logprob) for p in logprobs], "streamed logprobs")
    sampled = client.chat.completions.create(**ask | {"temperature": 1.5, "seed": 2}, logprobs=True, top_logprobs=2)
    entries = sampled.choices[0].logprobs.content
    check(any(p.token not in [t.token for t in p.top_logprobs] for p in entries), "a token that is not among the best")
    check(all(isinstance(p.logprob, float) and p.logprob <= p.top_logprobs[0].logprob and len(p.top_logprobs) == 2
              for p in entries), "and every token's own log probability")


def structured(client):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "on": {"type": "boolean"}},
              "required": ["name", "on"], "additionalProperties": False}
    answer = client.chat.completions.create(
        model="random", messages=[{"role": "user", "content": "Hi"}], seed=3, max_tokens=300,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}})
    value = json.loads(answer.choices[0].message.content, strict=False)
    check(isinstance(value["on"], bool) and len(value["name"]) <= 8, "an answer by a schema")


def tools(client):
    """A grammar makes the model call the tool."""
    call = '<tool_call>{\\"name\\": \\"add\\", \\"arguments\\": {\\"a\\": 1}}</tool_call>'
    ask = dict(model="random", messages=[{"role": "user", "content": "Hi"}], max_tokens=120,
               tools=[{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
               extra_body={"grammar": f'root ::= "{call}"'})
    choice = client.chat.completions.create(**ask).choices[0]
    check(choice.finish_reason == "tool_calls", "the finish reason of a call")
    made = choice.message.tool_calls[0]
    check(made.function.name == "add" and json.loads(made.function.arguments) == {"a": 1}, "a call")
    streamed = [part for chunk in client.chat.completions.create(**ask, stream=True) for c in chunk.choices
                for part in c.delta.tool_calls or []]
    check([p.function.arguments for p in streamed] == [made.function.arguments], "a streamed call")


TOOL_TEMPLATE = (
    "{% if style == 'granite' %}Respond only with <|tool_call|> and a JSON list of tools.\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{% set args = c.function.arguments | tojson %}"
    "{% if style == 'hermes' %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ args }}}\n"
    "</tool_call>{% elif style == 'llama' %}{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ args }}}"
    "{% elif style == 'mistral' %}[TOOL_CALLS] [{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ args }}, "
    "\"id\": \"{{ c.id }}\"}]{% elif style == 'granite' %}{% else %}{{ c.function.name }}({{ args }}){% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinks %}<think>\n{% endif %}{% endif %}")


def forced_tools(client):
    """Calls that are demanded, in the forms of four templates; a form that is not JSON is refused."""
    numbers = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
               "additionalProperties": False}
    names = {"type": "object", "properties": {"who": {"type": "string", "maxLength": 4}}, "required": ["who"],
             "additionalProperties": False}
    ask = dict(model="random", messages=[{"role": "user", "content": "Hi"}], max_tokens=200, seed=5,
               tools=[{"type": "function", "function": {"name": "add", "parameters": numbers, "strict": True}},
                      {"type": "function", "function": {"name": "greet", "parameters": names}}])
    named = {"type": "function", "function": {"name": "greet"}}
    seen, prompts = set(), {}
    for style in ["hermes", "llama", "mistral", "granite"]:
        ask["extra_body"] = {"chat_template_kwargs": {"style": style}}
        for choice in ["required", named]:
            whole = client.chat.completions.create(**ask, tool_choice=choice)
            answer, prompts[style] = whole.choices[0], whole.usage.prompt_tokens
            calls = answer.message.tool_calls or []
            check(len(calls) == 1 and answer.finish_reason == "tool_calls", f"a demanded call, {style}")
            for call in calls:
                arguments = json.loads(call.function.arguments, strict=False)
                seen.add(call.function.name)
                check(choice != named or call.function.name == "greet", f"a call by its name, {style}")
                check(arguments["a"] in [1, 2] if call.function.name == "add" else len(arguments["who"]) <= 4,
                      f"arguments by the schema, {style}")
                check(not answer.message.content, f"no text beside the call, {style}")
    check("greet" in seen, "the named tool is called")
    check(prompts["hermes"] - prompts["llama"] == len("<tool_call>\n"), "the text before a call is in the prompt")
    ask["tools"][0]["function"].pop("strict")
    ask["extra_body"] = {"chat_template_kwargs": {"style": "hermes"}}
    none = client.chat.completions.create(**ask | {"max_tokens": 5}, tool_choice="none", parallel_tool_calls=False)
    check(not none.choices[0].message.tool_calls, "no call")
    refuse = lambda code, **more: refused(openai.BadRequestError, code,
                                          lambda: client.chat.completions.create(**ask | more))
    refuse("unsupported_parameter", tool_choice="required", extra_body={})
    refuse(None, tool_choice={"type": "function", "function": {"name": "other"}})
    refuse(None, tool_choice="always")
    refuse(None, tool_choice="required", tools=[])
    refuse(None, tool_choice="required", response_format={"type": "json_object"})


def completions(client):
    ask = dict(model="random", prompt="Once", temperature=0, max_tokens=20)
    whole = client.completions.create(**ask, logprobs=2)
    check(len(whole.choices[0].logprobs.token_logprobs) == whole.usage.completion_tokens, "logprobs of a completion")
    text = "".join(c.choices[0].text for c in client.completions.create(**ask, stream=True))
    check(text == whole.choices[0].text, "a streamed completion")
    both = client.completions.create(**ask | {"prompt": ["Once", [79, 110, 99, 101]]})
    check([c.text for c in both.choices] == [text, text], "a list of prompts")


def embeddings(client, folder):
    """By the package's default, base64, as floats, and as transformers has them where it is installed."""
    inputs = ["Hi", "a longer text", "x" * 512]
    answer = client.embeddings.create(model="random", input=inputs)
    floats = client.embeddings.create(model="random", input=[list(t.encode()) for t in inputs], encoding_format="float")
    check([array.array("f", e.embedding) for e in answer.data] == [array.array("f", e.embedding) for e in floats.data],
          "base64 and floats are the same")
    check([e.index for e in answer.data] == [0, 1, 2], "all embeddings")
    check(len(answer.data[0].embedding) == random_model.HIDDEN, "the size of an embedding")
    check(answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, inputs)), "usage of embeddings")
    one = client.embeddings.create(model="random", input="Hi", dimensions=random_model.HIDDEN).data[0].embedding
    check(one == answer.data[0].embedding, "an input alone has the same embedding")
    refused(openai.BadRequestError, "context_length_exceeded",
            lambda: client.embeddings.create(model="random", input="x" * 513))
    refused(openai.BadRequestError, "unsupported_parameter",
            lambda: client.embeddings.create(model="random", input="x", dimensions=random_model.HIDDEN // 2))
    try:
        import torch
        import transformers
    except ImportError:
        return
    model = transformers.AutoModel.from_pretrained(folder)
    for text, entry in zip(inputs, answer.data):
        with torch.no_grad():
            theirs = model(torch.tensor([list(text.encode())])).last_hidden_state.mean(1)[0]
        distance = (torch.tensor(entry.embedding) - theirs).abs().max().item()
        check(distance < 1e-4, f"the embedding of {len(text)} tokens is {distance:.2g} from that of transformers")
    print(f"embeddings are those of transformers {transformers.__version__}")


def reasoning(client):
    """A template that opens <think>: all is thinking until </think>, which this model does not write."""
    ask = dict(model="random", messages=[{"role": "user", "content": "Hi"}], temperature=0, max_tokens=20)
    plain = client.chat.completions.create(**ask)
    check(not hasattr(plain.choices[0].message, "reasoning_content"), "an answer without thinking")
    check(plain.usage.completion_tokens_details.reasoning_tokens == 0, "and its usage")
    ask |= {"extra_body": {"chat_template_kwargs": {"thinks": True}}}
    whole = client.chat.completions.create(**ask)
    thinking = whole.choices[0].message.reasoning_content
    check(thinking and not whole.choices[0].message.content, "an answer of thinking alone")
    usage = whole.usage
    check(usage.completion_tokens_details.reasoning_tokens == usage.completion_tokens == 20, "tokens of thinking")
    deltas = [c.delta for chunk in client.chat.completions.create(**ask, stream=True) for c in chunk.choices]
    check("".join(getattr(d, "reasoning_content", "") for d in deltas) == thinking, "streamed thinking")
    check(not "".join(d.content or "" for d in deltas), "without content")
    closed = client.chat.completions.create(**ask | {"response_format": {"type": "json_object"}, "max_tokens": 60})
    check(closed.choices[0].message.content, "an answer by a grammar does not think")


def adapters(client, command, folder):
    """Adapters are models of their own; asked together, each has the text that `tarn generate` gives with it."""
    listed = {m.id: getattr(m, "parent", None) for m in client.models.list()}
    check(listed == {"random": None, "first": "random", "second": "random"}, f"adapters in the list: {listed}")
    check(client.models.retrieve("second").id == "second", "an adapter by its name")
    ask = dict(prompt="Once upon a time", max_tokens=24, temperature=0)
    expected = {}
    for name in listed:
        words = [command, "generate", folder, ask["prompt"], "--max-tokens", "24", "--temperature", "0",
                 "--device", "cpu", "--json"]
        words += ["--adapter", folder / name] if name != "random" else []
        made = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        expected[name] = made["text"]
    check(len(set(expected.values())) == 3, "adapters change the text")
    with futures.ThreadPoolExecutor(9) as pool:
        names = 3 * list(listed)
        answers = list(pool.map(lambda name: client.completions.create(model=name, **ask), names))
    for name, answer in zip(names, answers):
        check(answer.model == name, f"an answer of {answer.model} is one of {name}")
        check(answer.choices[0].text == expected[name], f"{name}: {answer.choices[0].text!r}, not {expected[name]!r}")
    streamed = list(client.completions.create(model="first", stream=True, **ask))
    check("".join(c.choices[0].text for c in streamed) == expected["first"], "a stream with an adapter")
    check({c.model for c in streamed} == {"first"}, "and its name")
    refused(openai.NotFoundError, "model_not_found", lambda: client.completions.create(model="third", **ask))
    refused(openai.BadRequestError, "unsupported_parameter",
            lambda: client.embeddings.create(model="first", input="Hi"))


def unfit_adapters(command, folder):
    """A server with adapters of another model does not start, and names the tensor."""
    random_model.write_adapter(folder / "wide", 1, 2, ["q_proj"], 48)
    made = subprocess.run([command, "serve", folder, "--port", "0", "--device", "cpu", "--lora",
                           f"wide={folder / 'wide'}"], capture_output=True, text=True, timeout=60)
    check(made.returncode == 1 and "self_attn.q_proj.lora_A.weight' is [2, 48], but must be [2, 32]" in made.stderr,
          f"adapters of another model: {made.returncode}, {made.stderr}")


def several(client, url):
    """One of two models is loaded at a time."""
    check([(m.id, m.loaded) for m in client.models.list()] == [("random", True), ("org/second", False)], "both models")
    check(client.models.retrieve("org/second").id == "org/second", "a model by its name")
    ask = lambda model: client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}],
                                                       max_tokens=5)
    refused(openai.ConflictError, "model_not_loaded", lambda: ask("org/second"))
    administrator = openai.OpenAI(base_url=url.removesuffix("/v1"), api_key=KEY, max_retries=0, timeout=60)
    loaded = administrator.post("/admin/load", body={"model": "org/second"}, cast_to=object)
    check(loaded["id"] == "org/second" and loaded["loaded"], "the other one is loaded")
    check(ask("org/second").model == "org/second", "and answers")
    refused(openai.ConflictError, "model_not_loaded", lambda: ask("random"))
    refused(openai.NotFoundError, "model_not_found",
            lambda: administrator.post("/admin/load", body={"model": "/etc/passwd"}, cast_to=object))


def errors(client, url):
    ask = client.chat.completions.create
    hi = [{"role": "user", "content": "Hi"}]
    refused(openai.NotFoundError, "model_not_found", lambda: ask(model="gpt-4", messages=hi))
    refused(openai.BadRequestError, "context_length_exceeded",
            lambda: ask(model="random", messages=[{"role": "user", "content": "x" * 600}]))
    refused(openai.BadRequestError, "unsupported_parameter",
            lambda: ask(model="random", messages=hi, reasoning_effort="low"))
    stranger = openai.OpenAI(base_url=url, api_key="sk-of-another", max_retries=0)
    refused(openai.AuthenticationError, "invalid_api_key", stranger.models.list)


@contextlib.contextmanager
def serving(command, folder, lines, *words):
    """A client of a server, and its URL; None for a build without a server. The server prints so many lines."""
    with open(folder / "errors", "w") as errors_file:
        server = subprocess.Popen([command, "serve", *words, "--port", "0", "--device", "cpu", "--api-key-file",
                                   folder / "keys"], stdout=subprocess.PIPE, stderr=errors_file, text=True)
    try:
        printed = [server.stdout.readline() for _ in range(lines)]
        if all(printed):
            url = printed[0].split()[0] + "/v1"
            yield openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60), url
        else:
            said = (folder / "errors").read_text()
            print(said)
            check("this build has no HTTP server" in said, "the server starts")
            yield None, None
    finally:
        was_running = server.poll() is None
        server.terminate()
        check(server.wait(60) == 0 or not was_running, "SIGTERM ends the server")


def main():
    command = os.environ["TARN_COMMAND"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "random"
        random_model.write(folder, TOOL_TEMPLATE)
        (folder / "keys").write_text(KEY + "\n")
        random_model.write_adapter(folder / "first", 1, 2, ["q_proj", "v_proj"])
        random_model.write_adapter(folder / "second", 2, 3, ["k_proj", "o_proj"])
        with serving(command, folder, 5, folder, "--lora", f"first={folder / 'first'}", "--lora",
                     f"second={folder / 'second'}") as (client, url):
            if not client:
                return 1 if failures else 77
            adapters(client, command, folder)
            unfit_adapters(command, folder)
            chats(client)
            structured(client)
            tools(client)
            forced_tools(client)
            completions(client)
            embeddings(client, folder)
            reasoning(client)
            errors(client, url)
        with serving(command, folder, 3, folder, folder, "--alias", "random", "--alias", "org/second") as (client, url):
            several(client, url)
    print("FAILED" if failures else f"the openai package {openai.__version__} is served")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
