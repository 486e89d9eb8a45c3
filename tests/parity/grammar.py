"""Grammars beside Python: regular expressions and GBNF beside `re`, and schemas beside `jsonschema`.

Random regular expressions match the same texts; so do grammars of GBNF made from them. Random schemas accept every
valid value that is written in canonical form; whatever they accept, found by a random walk over the masks or by
mutation, is valid."""
import ctypes as c
import json
import os
import random
import re
import signal

import jsonschema

LETTERS = "ab01-_. é\n"


def declare():
    library = c.CDLL(os.environ["TARN_LIBRARY"])
    text = [c.c_void_p, c.c_char_p, c.c_size_t]
    signatures = {
        "tokenizer_bytes": (c.c_void_p, []), "grammar_vocab_new_sized": (c.c_void_p, text),
        "grammar_gbnf": (c.c_void_p, text),
        "grammar_regex": (c.c_void_p, text), "grammar_json_schema": (c.c_void_p, text),
        "grammar_free": (None, [c.c_void_p]), "matcher_new": (c.c_void_p, [c.c_void_p]),
        "matcher_free": (None, [c.c_void_p]),
        "matcher_mask": (c.c_bool, [c.c_void_p, c.POINTER(c.c_uint32), c.c_int64]),
        "matcher_accept": (c.c_bool, [c.c_void_p, c.c_int32]), "matcher_accept_bytes": (c.c_bool, text),
        "matcher_may_end": (c.c_bool, [c.c_void_p]), "matcher_is_done": (c.c_bool, [c.c_void_p]),
        "error": (c.c_char_p, []), "clear_error": (None, []), "failed": (c.c_bool, [])}
    functions = {}
    for name, (result, arguments) in signatures.items():
        functions[name] = getattr(library, "tarn_" + name)
        functions[name].restype, functions[name].argtypes = result, arguments
    return functions


tarn = declare()
vocab = tarn["grammar_vocab_new_sized"](tarn["tokenizer_bytes"](), None, 0)


class Grammar:
    """A compiled grammar over bytes."""

    def __init__(self, kind, text):
        source = text.encode()
        self.grammar = tarn["grammar_" + kind](vocab, source, len(source))
        if tarn["failed"]():
            message = tarn["error"]().decode()
            tarn["clear_error"]()
            raise ValueError(message)

    def accepts(self, text):
        data, matcher = text.encode(), tarn["matcher_new"](self.grammar)
        good = tarn["matcher_accept_bytes"](matcher, data, len(data)) and tarn["matcher_may_end"](matcher)
        tarn["matcher_free"](matcher)
        return good

    def walk(self, rng, limit=3000):
        """A random text by the masks; after a while it prefers what ends values. None: it did not end."""
        matcher, mask, text = tarn["matcher_new"](self.grammar), (c.c_uint32 * 8)(), bytearray()
        while len(text) < limit and not tarn["matcher_is_done"](matcher):
            if tarn["matcher_may_end"](matcher) and rng.random() < 0.3:
                break
            assert tarn["matcher_mask"](matcher, mask, 8), tarn["error"]()
            allowed = [i for i in range(256) if mask[i // 32] >> i % 32 & 1]
            closing = [i for i in allowed if i in b"\"]}0-z"] if len(text) > 60 else []
            common = [i for i in allowed if i < 128 and i not in b" \n\t\\"]
            anything = rng.random() < 0.1 or not common
            choice = rng.choice(closing or (allowed if anything else common))
            assert tarn["matcher_accept"](matcher, choice)
            text.append(choice)
        ended = tarn["matcher_may_end"](matcher)
        tarn["matcher_free"](matcher)
        return text.decode() if ended else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        tarn["grammar_free"](self.grammar)


# ---- regular expressions ---------------------------------------------------------------------------------------------


def draw_regex(rng, depth=0):
    """(pattern, a function that draws a matching text)."""
    kind = rng.choice(["letter", "class", "escape", "any"] if depth > 2 else
                      ["letter", "class", "escape", "seq", "alt", "repeat", "seq"])
    if kind == "letter":
        letter = rng.choice(LETTERS)
        return re.escape(letter) if letter != "\n" else "\\n", lambda: letter
    if kind == "any":
        return ".", lambda: rng.choice(LETTERS.replace("\n", ""))
    if kind == "escape":
        escape = rng.choice(["\\d", "\\w", "\\s", "\\D", "\\W", "\\S"])
        return escape, lambda: rng.choice([x for x in LETTERS if re.fullmatch(escape, x, re.A)])
    if kind == "class":
        parts = ["a", "0-1", "\\-", "é", "a-c", "_.", "\\d", "\\s"]
        body = "".join(rng.choice(parts) for _ in range(rng.randint(1, 3)))
        pattern = "[" + rng.choice(["", "^"]) + body + "]"
        choices = [x for x in LETTERS if re.fullmatch(pattern, x, re.A)] or [""]
        return pattern, lambda: rng.choice(choices)
    if kind == "repeat":
        child, draw = draw_regex(rng, depth + 1)
        low, high = rng.randint(0, 3), rng.randint(0, 3)
        suffix, low, high = rng.choice([
            ("*", 0, 4), ("+", 1, 4), ("?", 0, 1), (f"{{{low},{low + high}}}", low, low + high),
            (f"{{{low}}}", low, low), (f"{{{low},}}", low, low + 2)])
        pattern = f"(?:{child}){suffix}{rng.choice(['', '?'])}"
        return pattern, lambda: "".join(draw() for _ in range(rng.randint(low, high)))
    parts = [draw_regex(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    if kind == "alt":
        opening = rng.choice(["(", "(?:"])
        return opening + "|".join(p for p, _ in parts) + ")", lambda: rng.choice(parts)[1]()
    return "".join(p for p, _ in parts), lambda: "".join(draw() for _, draw in parts)


def mutated(rng, text, letters=LETTERS):
    text = list(text)
    for _ in range(rng.randint(1, 2)):
        at = rng.randint(0, len(text))
        action = rng.randint(0, 2)
        if action == 0 or not text:
            text.insert(at, rng.choice(letters))
        elif action == 1:
            del text[min(at, len(text) - 1)]
        else:
            text[min(at, len(text) - 1)] = rng.choice(letters)
    return "".join(text)


class Backtracks(Exception):
    """A match that takes re longer than SECONDS: its time may be exponential in the length of a text."""


SECONDS = 1


def matches(reference, text):
    """Whether re matches all of a text; None: it backtracks for too long to say, and the text is left out."""
    def stop(*_):
        raise Backtracks

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return bool(reference.fullmatch(text))
    except Backtracks:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def regex_problem(rng):
    pattern, draw = draw_regex(rng)
    pattern = rng.choice(["", "^"]) + f"(?:{pattern})" + rng.choice(["", "$"])
    reference = re.compile(pattern.removesuffix("$"), re.A)
    with Grammar("regex", pattern) as grammar:
        for _ in range(8):
            text = draw()
            for sample in (text, mutated(rng, text)):
                expected = matches(reference, sample)
                if expected is not None and grammar.accepts(sample) != expected:
                    return f"{pattern!r} and {sample!r}: re says {expected}"
        text = grammar.walk(rng, 200)
        # \s is ECMAScript's: it has more spaces than Python's in ASCII
        if text is not None and matches(reference, re.sub("[^\\S\\x00-\\x7f]|\ufeff", " ", text)) is False:
            return f"{pattern!r} accepts {text!r}"
    return None


# ---- GBNF ------------------------------------------------------------------------------------------------------------


def draw_gbnf(rng, rules, depth=0):
    """(regular expression, GBNF) of the same texts; some parts become rules of their own."""
    kind = rng.choice(["letter", "class"] if depth > 2 else ["letter", "class", "seq", "alt", "repeat", "rule"])
    if kind == "letter":
        letter = rng.choice("ab01é\"\n")
        return re.escape(letter), json.dumps(letter, ensure_ascii=rng.random() < 0.5)
    if kind == "class":
        body = rng.choice(["a", "^a", "0-9", "a-cé", "^0-9\\n", "\\u00e8-\\u00ea"])
        return f"[{body}]", f"[{body}]"
    if kind == "rule":
        pattern, text = draw_gbnf(rng, rules, depth + 1)
        rules.append(f"r{len(rules)} ::= {text}")
        return f"(?:{pattern})", f"r{len(rules) - 1}"
    if kind == "repeat":
        pattern, text = draw_gbnf(rng, rules, depth + 1)
        suffix = rng.choice(["*", "+", "?", "{2}", "{1,}", "{0,2}"])
        return f"(?:{pattern}){suffix}", f"({text}){suffix}"
    parts = [draw_gbnf(rng, rules, depth + 1) for _ in range(rng.randint(1, 3))]
    between = "|" if kind == "alt" else ""
    return f"(?:{between.join(p for p, _ in parts)})", "(" + (f" {between} ".join(t for _, t in parts)) + ")"


def gbnf_problem(rng):
    rules = []
    pattern, text = draw_gbnf(rng, rules)
    source = "\n".join([f"root ::= {text}  # {len(rules)}"] + rules)
    reference = re.compile(pattern)
    with Grammar("gbnf", source) as grammar:
        samples = [grammar.walk(rng, 200) for _ in range(4)]
        for sample in filter(None, samples):
            for other in (sample, mutated(rng, sample, "ab01é\"\n")):
                expected = matches(reference, other)
                if expected is not None and grammar.accepts(other) != expected:
                    return f"{source!r} and {other!r}: re says {expected}"
    return None


# ---- schemas ---------------------------------------------------------------------------------------------------------

KEYS = ["a", "b", "name", "na", "é", "x\"y", "tab\t"]
WORDS = ["", "a", "ab", "hello", "é", "日本", "q\"uote", "back\\slash", "new\nline", "\u0001", "😀", "123"]
PATTERNS = [("^[a-z]{2,4}$", ["ab", "abcd"]), ("\\d+", ["a1b", "12"]), ("^x|y$", ["xa", "by"]), ("^\\S*$", ["", "é!"]),
            ("[\"\\\\]", ["\"", "a\\b"]), ("^(a|b)*c", ["c", "abcd"])]
FORMATS = {"date": ["2024-02-29", "1999-12-31"], "ipv4": ["1.2.3.4", "255.0.10.199"],
           "uuid": ["123e4567-e89b-12d3-a456-426614174000"], "email": ["a.b@example.org"],
           "time": ["10:20:30Z", "23:59:59.5+01:00"], "date-time": ["2024-02-29T10:20:30Z"],
           "uri": ["http://a.b/c?d#e"]}


def value(rng, depth=0):
    """Any JSON value."""
    kind = rng.randint(0, 4 if depth > 1 else 6)
    if kind < 5:
        return [None, True, rng.randint(-50, 50), rng.choice([0.5, -2.25, 1e-3, 100.0]), rng.choice(WORDS)][kind]
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 2))]
    return {rng.choice(KEYS): value(rng, depth + 1) for _ in range(rng.randint(0, 2))}


def draw_integer(rng):
    schema, low, high = {"type": "integer"}, -1000, 1000
    if rng.random() < 0.6:
        low = rng.choice([0, 1, -7, 9, 10, 99, -100])
        schema.update(rng.choice([{"minimum": low}, {"exclusiveMinimum": low - 1}, {"minimum": low - 0.5}]))
    if rng.random() < 0.6:
        high = low + rng.choice([0, 1, 5, 11, 90, 901])
        schema.update(rng.choice([{"maximum": high}, {"exclusiveMaximum": high + 1}, {"maximum": high + 0.25}]))
    step = rng.choice([1, 1, 2, 3, 7]) if low + 10 < high else 1
    if step > 1:
        schema["multipleOf"] = step
    return schema, lambda: rng.randrange(-(-low // step) * step, high + 1, step)


def draw_number(rng):
    schema, low, high = {"type": "number"}, -1000.0, 1000.0
    if rng.random() < 0.6:
        low = rng.choice([0, 0.5, -7.25, 9.99, 100, -0.001])
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.6:
        high = low + rng.choice([0.5, 1, 5.125, 90])
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = high
    middle = (low + high) / 2
    return schema, lambda: round(rng.choice([middle, low + (high - low) * 0.25]), 6)


def draw_string(rng):
    kind = rng.randint(0, 4)
    if kind == 0:
        return {"type": "string"}, lambda: rng.choice(WORDS)
    if kind == 1:
        low = rng.randint(0, 3)
        high = low + rng.randint(0, 3)
        return ({"type": "string", "minLength": low, "maxLength": high},
                lambda: "".join(rng.choice("aé日😀\"\\\n ") for _ in range(rng.randint(low, high))))
    if kind == 2:
        pattern, samples = rng.choice(PATTERNS)
        return {"type": "string", "pattern": pattern}, lambda: rng.choice(samples)
    if kind == 3:
        pattern, samples = rng.choice(PATTERNS)
        lengths = [len(sample) for sample in samples]
        return ({"type": "string", "pattern": pattern, "maxLength": max(lengths), "minLength": min(lengths)},
                lambda: rng.choice(samples))
    name = rng.choice(list(FORMATS))
    return {"type": "string", "format": name}, lambda: rng.choice(FORMATS[name])


def draw_array(rng, depth):
    item, draw = draw_schema(rng, depth + 1)
    low = rng.randint(0, 2)
    high = low + rng.randint(0, 2)
    schema = {"type": "array", "items": item}
    if rng.random() < 0.5:
        schema.update(minItems=low, maxItems=high)
    if rng.random() < 0.3:
        first, draw_first = draw_schema(rng, depth + 1)
        schema["prefixItems"] = [first]
        low = max(low, 1)
        if high < low:
            return {"type": "array", "items": item}, lambda: []
        return schema, lambda: [draw_first()] + [draw() for _ in range(rng.randint(low, high) - 1)]
    return schema, lambda: [draw() for _ in range(rng.randint(low, high))]


def draw_object(rng, depth):
    names = rng.sample(KEYS, rng.randint(0, 4))
    parts = {name: draw_schema(rng, depth + 1) for name in names}
    required = [name for name in names if rng.random() < 0.5]
    schema = {"type": "object", "properties": {name: part[0] for name, part in parts.items()}}
    other, draw_other = {}, None
    if required or rng.random() < 0.3:
        schema["required"] = rng.sample(required, len(required))
    if rng.random() < 0.3:
        other, draw_other = draw_schema(rng, depth + 1)
        schema["additionalProperties"] = other
    elif rng.random() < 0.5 or not names:
        schema["additionalProperties"] = False
    if not draw_other and rng.random() < 0.2:
        other, draw_other = draw_schema(rng, depth + 1)
        schema["patternProperties"] = {"^k": other}

    def draw():
        result = {name: parts[name][1]() for name in names if name in required or rng.random() < 0.5}
        if draw_other and rng.random() < 0.6:
            for name in rng.sample(["k1", "kz\\"], rng.randint(1, 2)):
                result[name] = draw_other()
        return result
    return schema, draw


def draw_one_of(rng, depth):
    """Objects that a constant tells apart."""
    branches = []
    for tag in rng.sample(["cat", "dog", 1, 2], 2):
        schema, draw = draw_object(rng, depth + 1)
        schema.pop("patternProperties", None)
        schema["properties"] = {"kind": {"const": tag}, **schema["properties"]}
        schema["required"] = ["kind"] + schema.get("required", [])
        branches.append((schema, lambda draw=draw, tag=tag, named=schema["properties"]:
                         {"kind": tag, **{k: v for k, v in draw().items() if k in named}}))
    return {"oneOf": [b[0] for b in branches]}, lambda: rng.choice(branches)[1]()


def draw_schema(rng, depth=0):
    """(schema, a function that draws a valid value, members in the schema's order)."""
    kind = rng.randint(0, 5 if depth > 2 else 12)
    if kind == 0:
        return draw_integer(rng)
    if kind == 1:
        return draw_number(rng)
    if kind in (2, 3):
        return draw_string(rng)
    if kind == 4:
        values = [value(rng, 2) for _ in range(rng.randint(1, 4))]
        return rng.choice([({"enum": values}, lambda: rng.choice(values)), ({"const": values[0]}, lambda: values[0])])
    if kind == 5:
        name = rng.choice(["boolean", "null", ["boolean", "null"]])
        return {"type": name}, lambda: None if name == "null" else rng.choice([True, False])
    if kind in (6, 7):
        return draw_array(rng, depth)
    if kind == 8:
        branches = [draw_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]
        return {"anyOf": [b[0] for b in branches]}, lambda: rng.choice(branches)[1]()
    if kind == 9:
        return draw_one_of(rng, depth)
    return draw_object(rng, depth)


def with_references(rng, schema, draw):
    """The schema behind a $ref, or a list of it by recursion."""
    kind = rng.randint(0, 3)
    if kind == 0:
        return {"$ref": "#/$defs/x~1y", "$defs": {"x/y": schema}}, draw
    if kind == 1:
        node = {"type": "object",
                "properties": {"value": schema, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
                "required": ["value", "next"], "additionalProperties": False}

        def chain(depth=0):
            return {"value": draw(), "next": chain(depth + 1) if depth < 3 and rng.random() < 0.6 else None}
        return {"$ref": "#/$defs/n", "$defs": {"n": node}}, chain
    if kind == 2:
        return {"allOf": [schema, {"title": "the same"}], "description": "…", "default": 1}, draw
    return schema, draw


def written(rng, instance):
    """A value in one of the forms that json.dumps() has."""
    return json.dumps(instance, ensure_ascii=False,
                      **rng.choice([{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": "\t"}]))


def has_exponent(instance):
    return "e" in re.sub(r'"(\\.|[^"\\])*"|true|false|null', "", json.dumps(instance))


def valid(validator, text):
    try:
        return validator.is_valid(json.loads(text))
    except json.JSONDecodeError:
        return False


def schema_problem(rng):
    schema, draw = with_references(rng, *draw_schema(rng))
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    with Grammar("json_schema", json.dumps(schema)) as grammar:
        for _ in range(5):
            instance = draw()
            text = written(rng, instance)
            if not validator.is_valid(instance):
                continue
            if not has_exponent(instance) and not grammar.accepts(text):
                return f"{json.dumps(schema, ensure_ascii=False)} does not accept {text}"
            for other in (mutated(rng, text, "ab01-.,:\"[]{} é\\"), written(rng, value(rng))):
                if grammar.accepts(other) and not valid(validator, other):
                    return f"{json.dumps(schema, ensure_ascii=False)} accepts {other}"
        for _ in range(3):
            text = grammar.walk(rng)
            if text is not None and not valid(validator, text):
                return f"{json.dumps(schema, ensure_ascii=False)} accepts {text}"
    return None


def json_problem(rng):
    text = written(rng, {"a": value(rng), "é\"": value(rng)})
    with Grammar("json_schema", "true") as grammar:
        for sample in (text, mutated(rng, text, "ab01-.,:\"[]{}\\")):
            try:
                json.loads(sample, parse_constant=lambda _: 1 / 0)
                good = True
            except (ValueError, ZeroDivisionError):
                good = False
            if good and sample == text and not grammar.accepts(sample):
                return f"{sample} is not accepted"
            if grammar.accepts(sample) and not good:
                return f"{sample} is accepted"
    return None


def run(seed):
    """(name, what is wrong) of random regular expressions, schemas and JSON texts."""
    scale = 20 if os.environ.get("TARN_TEST_LONG") else 1
    for name, problem_of, count in (("regexes", regex_problem, 150), ("gbnf", gbnf_problem, 100),
                                    ("schemas", schema_problem, 80), ("json", json_problem, 50)):
        problems = []
        for i in range(count * scale):
            try:
                problem = problem_of(random.Random(f"{seed}/{name}/{i}"))
            except ValueError as error:
                problem = str(error)
            if problem:
                problems.append(f"{name} {i}: {problem}")
        yield name, "\n".join(problems[:3])
