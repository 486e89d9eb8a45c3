"""Random formats of values for jinja.py: "..." % values and "...".format(values), right and wrong ones. Widths stay
below the limit that tarn has and Python has not."""

INTS = [0, 1, -1, 7, 42, -255, 1234567, 10**15, -2**63, 2**63 - 1, True, False]
FLOATS = [0.0, -0.0, 0.5, -0.04, 1.0, 2.675, 3.14159, 123.0, -1234.5, 99999.5, 1e15, 1e16, 1e20, 1e-5, 1.5e-7, 5e-324,
          1.7976931348623157e308]
TEXTS = ["", "a", "hello", "wörld", "日本語", "😀!", "it's", "<b>&\"x\"</b>", "tab\t", "é́"]
OTHERS = [None, [1, "ü"], {"k": 1.5}]
INFINITE = ["big * 10", "-big * 10", "big * 10 - big * 10"] * 2
INFINITE += ["missing", "range(3)", "(1, 2)", "'<i>' | safe"]


def draw_count(rng):
    return str(rng.choice([0, 1, 2, 3, 5, 8, 12, 20, 33])) if rng.random() < 0.97 else rng.choice(["1150", "007",
                           "300"])


class Values:
    """Arguments of a format: expressions of the template, and the context that they name."""

    def __init__(self, rng):
        self.rng, self.expressions, self.context = rng, [], {"big": 1e308}

    def add(self, kind):
        rng = self.rng
        if rng.random() < 0.06:
            kind = rng.choice(["float", "text", "other", "infinite"] + ["int"] * (kind != "size"))
        value = {"int": lambda: rng.choice(INTS + [rng.randint(-10**6, 10**6)]), "text": lambda: rng.choice(TEXTS),
                 "float": lambda: rng.choice(FLOATS + [rng.uniform(-1e4, 1e4)]),
                 "size": lambda: rng.choice([0, 1, 3, 7, 12, -9, True]),
                 "code": lambda: rng.choice([65, 0x65E5, 0x1F600, "x", "日"]), "other": lambda: rng.choice(OTHERS),
                 "infinite": lambda: None}[kind]()
        name = f"v{len(self.context)}"
        self.context[name] = value
        self.expressions.append(rng.choice(INFINITE) if kind == "infinite" else name)


def percent_field(rng, values, key=""):
    flags = "".join(rng.choice("#0- +") for _ in range(rng.choice([0, 0, 1, 1, 2, 3])))
    width = precision = ""
    if rng.random() < 0.6:
        width = "*" if rng.random() < 0.2 and not key else draw_count(rng)
    if width == "*":
        values.add("size")
    if rng.random() < 0.5:
        precision = "." + ("*" if rng.random() < 0.2 and not key else rng.choice(["", draw_count(rng)]))
    if precision == ".*":
        values.add("size")
    kind = rng.choice("diuoxXeEfFgGsracsd" if rng.random() < 0.97 else "%%bnyA*.)")
    if kind != "%":
        values.add("text" if kind in "sra" else "code" if kind == "c" else "int" if kind in "oxX" else
                   rng.choice(["int", "float", "float", "infinite"]))
    return f"%{key}{flags}{width}{precision}{rng.choice(['', '', '', '', 'l', 'h', 'L'])}{kind}"


def draw_percent(rng):
    values = Values(rng)
    parts = []
    for _ in range(rng.randint(1, 3)):
        parts += [rng.choice(["", " ", "ü|", "%%", "{}"]), percent_field(rng, values)]
    text = "".join(parts)[:-1 if rng.random() < 0.02 else None]
    if rng.random() < 0.05:
        values.add("int")
    context, listed = values.context | {"f": text}, ", ".join(values.expressions)
    if rng.random() < 0.2:
        return f"{{{{ f | format({listed}) }}}}", context
    if len(values.expressions) == 1 and rng.random() < 0.5:
        return f"{{{{ f % {listed.join('()')} }}}}", context
    return f"{{{{ f % ({listed}{',' if values.expressions else ''}) }}}}", context


def draw_keys(rng):
    """%(key)s, with other fields between them."""
    values = Values(rng)
    parts, keys = [], ["a", "x y", "p(q)r", ""]
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(keys) if rng.random() < 0.95 else "missing"
        parts.append(percent_field(rng, values, f"({key})" if rng.random() < 0.93 else ""))
    mapping = {key: rng.choice(INTS + FLOATS + TEXTS) for key in keys}
    return "{{ f % d }}", {"f": " ".join(parts), "d": mapping}


TYPES = {"int": ["", "d", "n", "b", "o", "x", "X", "c", "f", "e", "%"], "text": ["", "s"], "other": [""],
         "float": ["", "e", "E", "f", "F", "g", "G", "%", "n"], "infinite": ["", "e", "F", "g", "%"]}


def draw_spec(rng, kind):
    """One that fits a value of that kind, mostly."""
    rare, kind = rng.random() < 0.15, rng.choice(list(TYPES)) if rng.random() < 0.05 else kind
    is_number, spec = kind not in ("text", "other"), ""
    if kind == "other" and not rare:
        return ""
    if rng.random() < 0.5:
        spec += rng.choice(["", "", "*", "0", " ", "日", "<"]) + rng.choice("<>^=" if is_number or rare else "<>^")
    if is_number or rare:
        spec += rng.choice(["", "", "", "+", "-", " "])
        spec += rng.choice(["", "", "z"]) if kind == "float" or rare else ""
        spec += rng.choice(["", "", "", "#"])
    spec += rng.choice(["", "", "0"]) + (draw_count(rng) if rng.random() < 0.6 else "")
    spec += rng.choice(["", "", ",", "_"]) if is_number or rare else ""
    if rng.random() < 0.5 and (kind != "int" or rare):
        spec += "." + (draw_count(rng) if rng.random() < 0.97 else "")
    return spec + rng.choice(TYPES[kind])


def braces_field(rng, values, state):
    kind = rng.choice(["int", "int", "float", "float", "text", "infinite", "other"])
    values.add(kind)
    position = len(values.expressions) - 1
    name = {"auto": "", "manual": str(position), "name": f"k{position}"}[state if rng.random() < 0.98 else "auto"]
    spec = draw_spec(rng, kind) if rng.random() < 0.7 else ""
    if rng.random() < 0.15:  # a field in the spec
        values.add("size")
        inner = {"auto": "", "manual": str(position + 1), "name": f"k{position + 1}"}[state]
        ends = {"int": ["", "d", "x"], "text": ["", "s"]}.get(kind, ["", "f"])
        spec = rng.choice(["{%s}", ">{%s}", "0{%s}", ".{%s}", "{%s!s}", "{%s:}"]) % inner + rng.choice(ends)
    conversion = rng.choice(["!r", "!s", "!a", "!x", "!"]) if rng.random() < 0.06 else ""
    tail = rng.choice([".k", "[k]", "[0]", "[1]x", ".", "[]", "[k"]) if rng.random() < 0.04 else ""
    return "{" + name + tail + conversion + (":" + spec if spec or rng.random() < 0.1 else "") + "}"


def draw_braces(rng):
    values, state = Values(rng), rng.choice(["auto", "auto", "manual", "name"])
    parts = []
    for _ in range(rng.randint(1, 3)):
        parts += [rng.choice(["", " ", "ü|", "{{", "}}", "%s"]), braces_field(rng, values, state)]
    if rng.random() < 0.03:
        parts.insert(rng.randrange(len(parts)), rng.choice("{}"))
    listed = [f"k{i}={e}" if state == "name" else e for i, e in enumerate(values.expressions)]
    markup = "(f | safe)" if rng.random() < 0.1 else "f"
    return f"{{{{ {markup}.format({', '.join(listed)}) }}}}", values.context | {"f": "".join(parts)}


def draw_markup(rng):
    """A format that is markup escapes texts."""
    values = Values(rng)
    text = "".join(rng.choice(["<b>", " ", ""]) + rng.choice(["%s", "%r", "%a", "%9s", "%.2s"]) for _ in range(2))
    for _ in range(2):
        values.expressions.append(rng.choice(["t", "'<i>' | safe", "'&' | escape", "'<x>'"]))
    return f"{{{{ (f | safe) % ({', '.join(values.expressions)}) }}}}", {"f": text, "t": rng.choice(TEXTS)}


def draw(rng):
    """(template, context)"""
    return rng.choice([draw_percent] * 5 + [draw_keys] + [draw_braces] * 5 + [draw_markup])(rng)
