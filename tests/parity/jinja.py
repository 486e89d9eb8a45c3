"""Chat templates beside Python's jinja2, in the environment that transformers makes for them: the same bytes, or an
error in both. Every template of $TARN_TEST_DATA/chat-templates over random conversations, with and without tools and
the generation prompt; random programs, drawn from a grammar of statements and expressions; random formats of values;
and the bytes of generation blocks."""
import datetime
import json
import os
import random
import subprocess
import warnings
from pathlib import Path

import transformers.utils.chat_template_utils as chat_utils

import jinja_formats
import jinja_programs

NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)
WORDS = ["hello", "", " ", "wörld", "日本語 text", "<|im_end|>", "a\nb", "  padded  ", "😀!", "it's \"quoted\"", "{{ x }}",
         "<think>\nhm\n</think>\n\nyes", "<think></think>", "back\\slash", "tab\there", "[INST]", "é́", "None", "0"]


def program_path():
    return Path(os.environ["TARN_LIBRARY"]).parent / "tests" / "parity" / "jinja_lines"


class Renderer:
    """tarn's interpreter, as a process that answers one case after the other."""

    def __init__(self):
        self.process = subprocess.Popen([str(program_path())], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, template, context):
        """(text, origins) or (None, error)."""
        source, variables = template.encode(), json.dumps(context).encode()
        self.process.stdin.write(b"%d %d\n" % (len(source), len(variables)) + source + variables)
        self.process.stdin.flush()
        good, size = self.process.stdout.readline().split()
        output = self.process.stdout.read(int(size))
        if good == b"1":
            return output.decode(), self.process.stdout.read(int(size))
        return None, output.decode(errors="replace")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compiled(template):
    """A template of jinja2 with the time that the other side has."""
    program = chat_utils._compile_jinja_template(template)
    program.environment.globals["strftime_now"] = NOW.strftime
    program.globals["strftime_now"] = NOW.strftime
    return program


def expected(template, context):
    """(text, None) or (None, error) of jinja2."""
    try:
        return compiled(template).render(**context), None
    except RecursionError:
        return None, "recursion"
    except Exception as error:  # whatever a template can raise
        return None, f"{type(error).__name__}: {error}"


def problem_of(render, template, context):
    wanted, wanted_error = expected(template, context)
    got, detail = render(template, context)
    if wanted is None and got is None:
        return None
    if wanted != got:
        return f"jinja2: {wanted!r} {wanted_error or ''}\ntarn:   {got!r} {detail if got is None else ''}"
    return None


# ---- conversations ---------------------------------------------------------------------------------------------------


def draw_text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 3)))


def draw_value(rng, depth=0):
    kind = rng.randrange(8 if depth < 2 else 5)
    if kind == 5:
        return [draw_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind >= 6:
        return {rng.choice(["a", "city", "ü", "x y"]): draw_value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return [draw_text(rng), rng.randint(-5, 1000), rng.choice([0.5, 1e20, -2.25, 3.0]), rng.random() < 0.5, None][kind]


def draw_property(rng, depth=0):
    kind = rng.choice(["string", "number", "integer", "boolean", "array", "object", ["string", "null"]])
    prop = {"type": kind}
    if rng.random() < 0.7:
        prop["description"] = draw_text(rng)
    if rng.random() < 0.2:
        prop["enum"] = ["celsius", "fahrenheit"]
    if rng.random() < 0.1:
        prop["default"] = draw_value(rng, 2)
    if kind == "array" and rng.random() < 0.8:
        prop["items"] = draw_property(rng, depth + 1) if depth < 2 else {"type": "string"}
    if kind == "object" and depth < 2:
        prop["properties"] = {name: draw_property(rng, depth + 1) for name in rng.sample(["p", "q", "r"], 2)}
    return prop


def draw_tool(rng):
    names = rng.sample(["city", "unit", "when", "täg", "n"], rng.randint(0, 3))
    parameters = {"type": "object", "properties": {name: draw_property(rng) for name in names}}
    if rng.random() < 0.7:
        parameters["required"] = names[:rng.randint(0, len(names))]
    function = {"name": rng.choice(["get_weather", "search", "python", "f"]), "description": draw_text(rng),
                "parameters": parameters}
    if rng.random() < 0.1:
        function["return"] = {"type": "string", "description": "what comes back"}
    return {"type": "function", "function": function}


def draw_call(rng):
    arguments = {rng.choice(["city", "n", "unit"]): draw_value(rng, 1) for _ in range(rng.randint(0, 3))}
    function = {"name": rng.choice(["get_weather", "f"]),
                "arguments": json.dumps(arguments) if rng.random() < 0.3 else arguments}
    call = {"type": "function", "function": function}
    if rng.random() < 0.6:
        call["id"] = rng.choice(["call00001", "123456789", "x"])
    return call


def draw_content(rng):
    if rng.random() < 0.15:
        return [{"type": "text", "text": draw_text(rng)} for _ in range(rng.randint(0, 3))]
    return draw_text(rng)


def draw_messages(rng):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": rng.choice(["system", "system", "developer"]), "content": draw_content(rng)})
    for _ in range(rng.randint(0, 3)):
        messages.append({"role": "user", "content": draw_content(rng)})
        answer = {"role": "assistant", "content": draw_content(rng)}
        if rng.random() < 0.2:
            answer[rng.choice(["reasoning_content", "thinking", "reasoning"])] = draw_text(rng)
        if rng.random() < 0.35:
            answer["tool_calls"] = [draw_call(rng) for _ in range(rng.randint(1, 2))]
            answer["content"] = rng.choice(["", None, draw_text(rng)])
            messages.append(answer)
            for call in answer["tool_calls"]:
                result = {"role": "tool", "content": rng.choice([draw_text(rng), json.dumps(draw_value(rng))])}
                result |= {"tool_call_id": call["id"]} if "id" in call else {}
                result |= {"name": call["function"]["name"]} if rng.random() < 0.5 else {}
                messages.append(result)
            if rng.random() < 0.5:
                messages.append({"role": "assistant", "content": draw_content(rng)})
        else:
            messages.append(answer)
    if rng.random() < 0.6 or not messages:
        messages.append({"role": "user", "content": draw_content(rng)})
    if rng.random() < 0.1:
        rng.shuffle(messages)
    return messages


def draw_context(rng):
    context = {"messages": draw_messages(rng), "add_generation_prompt": rng.random() < 0.5}
    chance = rng.random()
    if chance < 0.5:
        context["tools"] = [draw_tool(rng) for _ in range(rng.randint(1, 3))] if chance < 0.4 else None
    if rng.random() < 0.9:
        context |= {"bos_token": "<s>", "eos_token": "</s>"}
    for name in ["enable_thinking", "thinking", "keep_past_thinking", "preserve_thinking"]:
        if rng.random() < 0.15:
            context[name] = rng.random() < 0.5
    if rng.random() < 0.1:
        context["documents"] = [{"title": draw_text(rng), "text": draw_text(rng)}]
    if rng.random() < 0.1:
        context["reasoning_effort"] = rng.choice(["low", "high"])
    return context


def template_checks(render, rng, count):
    folder = Path(os.environ.get("TARN_TEST_DATA", "")) / "chat-templates"
    if not folder.is_dir():
        yield "templates of TARN_TEST_DATA", None
    for path in sorted(folder.glob("*.jinja")):
        template, errors = path.read_text(encoding="utf-8"), []
        for _ in range(count):
            context = draw_context(rng)
            problem = problem_of(render, template, context)
            if problem:
                errors.append(f"{path.name}: {json.dumps(context, ensure_ascii=False)}\n{problem}")
        yield path.name, errors


# ---- masks -----------------------------------------------------------------------------------------------------------

GENERATION = ("{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content | trim }}<e>"
              "{% endgeneration %}\n{% else %}U:{{ m.content }}<e>{% endif %}{% endfor %}")


def mask_problem(render, rng):
    """Generation blocks: the characters that transformers reports, as bytes."""
    messages = [{"role": rng.choice(["user", "assistant"]), "content": draw_text(rng)} for _ in range(5)]
    text, ranges = chat_utils._render_with_assistant_indices(chat_utils._compile_jinja_template(GENERATION), messages,
                                                             None, None, False)
    got, origins = render(GENERATION, {"messages": messages})
    flags = [False] * len(text)
    for begin, end in ranges:
        flags[begin:end] = [True] * (end - begin)
    wanted = [flag for flag, character in zip(flags, text) for _ in character.encode()]
    if got != text or [origin >= 128 for origin in origins] != wanted:
        return f"{messages}: {text!r} {ranges}, but {got!r} {list(origins)}"
    return None


# ---- programs --------------------------------------------------------------------------------------------------------


def program_errors(render, draw, seed, count):
    """Programs that print an object with its address cannot be compared."""
    errors = []
    for i in range(count):
        rng = random.Random(f"{seed}/{i}")
        template, context = draw(rng)
        problem = problem_of(render, template, context)
        if problem and " object" not in problem.lower() and "built-in" not in problem.lower():
            errors.append(f"program {i}: {template!r} {context.get('f', '')!r}\n{problem}")
    return errors


def run(seed):
    """(name, what is wrong) of each template, of masks and of random programs."""
    if not program_path().is_file():  # built with the tests
        yield "jinja_lines", None
        return
    rng, render, scale = random.Random(seed), Renderer(), 10 if os.environ.get("TARN_TEST_LONG") else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, about what is drawn: 'int' object is not subscriptable
        for name, errors in template_checks(render, rng, 30 * scale):
            yield name, None if errors is None else "\n".join(errors[:3])
        problems = [mask_problem(render, rng) for _ in range(50)]
        yield "masks", "\n".join(filter(None, problems))
        for part in range(10):
            errors = program_errors(render, jinja_programs.draw, f"{seed}/{part}", 200 * scale)
            yield f"programs {part}", "\n".join(errors[:3])
        for part in range(4):
            errors = program_errors(render, jinja_formats.draw, f"{seed}/formats {part}", 1000 * scale)
            yield f"formats {part}", "\n".join(errors[:3])
    render.close()
