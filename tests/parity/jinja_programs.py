"""Random programs of Jinja for tests/parity/jinja.py: statements and expressions that mostly make sense, and some that
raise."""

CONTEXT = {
    "s": "Hello, Wörld", "t": "  a b  c\n", "e": "", "n": 7, "z": 0, "f": 2.5, "g": -0.75, "yes": True, "no": False,
    "nil": None, "l": [3, 1, 2], "w": ["b", "a", "C", "a"], "empty": [], "d": {"b": 1, "a": [1, 2], "items": "own"},
    "m": [{"role": "user", "content": "hi", "k": {"v": 2}}, {"role": "assistant", "content": " yo ", "k": {"v": 1}}],
    "nest": [[1, [2, 3]], [], ["x"]], "q": "it's \"so\" \\ <b>", "x": 5}
NAMES = list(CONTEXT) + ["missing", "y", "ns", "i", "mac"]
STRINGS = ["''", "'a'", "'a b'", '"it\'s"', "'\\n'", "'ö'", "'%s'", "'l'", "' '", "'{}'", "'b,a'", "'1.5'", "'12'",
           "'\\u00e9\\x41'", "'ab' 'cd'"]
NUMBERS = ["0", "1", "2", "-1", "3", "10", "2.5", "1e3", "0.1", "1_000", "0x1f"]
METHODS = ["strip()", "lstrip()", "rstrip('l')", "strip('Hd')", "upper()", "lower()", "title()", "capitalize()",
           "split()", "split(',')", "split(' ', 1)", "rsplit(' ', 1)", "rsplit()", "splitlines()", "startswith('H')",
           "endswith(('d', 'x'))", "replace('l', 'L')", "replace('', '-')", "find('l')", "rfind('l')", "count('l')",
           "index('zz')", "join(w)", "join(l)", "format(1, 'a')", "isdigit()", "isupper()", "islower()", "isalpha()",
           "isspace()", "zfill(6)", "center(9, '*')", "ljust(4)", "rjust(15)", "partition(' ')", "rpartition('o')",
           "removeprefix('He')", "removesuffix('d')", "swapcase()", "keys()", "values()", "items()", "get('a')",
           "get('zz', 4)", "get('b')", "index(2)", "count(1)", "append(1)", "pop('a')", "foo", "foo.bar", "a", "b",
           "items", "role", "content", "0", "startswith('e', 1)", "split('')", "find('o', 5)", "strip(none)", "copy()",
           "replace('l', 'L', 1)", "split(maxsplit=1)", "strip(chars='x')", "update({})"]
FILTERS = ["trim", "length", "count", "upper", "lower", "title", "capitalize", "join", "join(', ')",
           "join('-', 'role')",
           "first", "last", "list", "string", "int", "int(9)", "float", "abs", "round", "round(1)", "round(1, 'floor')",
           "sort", "sort(reverse=true)", "sort(attribute='k.v')", "unique|list", "reverse", "reverse|list", "min",
           "max", "sum", "sum(attribute='k.v')", "sum(start=2)", "tojson", "tojson(indent=2)",
           "tojson(ensure_ascii=true)",
           "tojson(separators=(',', ':'))", "tojson(sort_keys=true)", "items|list", "dictsort", "dictsort(by='value')",
           "dictsort(reverse=true)", "default('D')", "d('D', true)", "replace('a', 'b')", "replace('l', 'L', 1)",
           "indent", "indent(2, true)", "indent(2, blank=true)", "batch(2)|list", "batch(2, 'f')|list", "slice(2)|list",
           "map('upper')|list", "map(attribute='role')|list", "map(attribute='zz', default='-')|list",
           "map(attribute='k.v')|list", "select|list", "select('odd')|list", "reject('string')|list",
           "selectattr('role', 'equalto', 'user')|list", "rejectattr('k')|list", "selectattr('zz')|list", "safe",
           "escape", "e", "truncate(5)", "truncate(6, true, '..', 0)", "wordcount", "center(12)", "attr('role')",
           "groupby('role')", "map('length')|list", "select('in', [1, 2])|list", "format(1)", "map('int')|sum",
           "nofilter",
           "int(base=16)", "map('default', 'x')|list", "map('tojson')|join(';')", "random_thing",
           "selectattr('k.v', 'gt', 1)|list"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping",
         "iterable", "sequence", "callable", "even", "odd", "divisibleby(3)", "divisibleby 2", "eq 1", "equalto('a')",
         "ne 2", "gt 1", "lt(3)", "ge 2", "le 2", "in [1, 2]", "in(l)", "sameas none", "sameas(true)", "lower", "upper",
         "not defined", "not none", "not string", "escaped", "notest", "filter", "in 'abc'"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~"]
# Expressions that raise nothing, by their type; A, N and L stand for others of type string, number and list.
TYPED = {
    "A": ["s", "t", "e", "q", "'a b'", "'l'", "'ö'", "m[0].content", "m[1]['content']", "w[0]", "A.upper()",
          "A.strip()",
          "A.lstrip()", "A.rstrip()", "A + A", "A ~ N", "A ~ L", "A|trim", "A|upper", "A|title", "A|capitalize",
          "A[1:]",
          "A[:-1]", "A[::-1]", "A[N:N]", "A.split(' ')[0]", "A.split('l')[-1]", "A.replace('l', A)", "L|join(', ')",
          "L|join", "L|tojson", "A|tojson", "d|tojson(indent=2)", "m|tojson(indent=N)", "N|string", "L|string",
          "(A|safe ~ '')",
          "(A|e ~ '')", "A|indent(2)", "A|truncate(6)", "A * 2", "(A if B else A)", "(A or A)", "(A and A)",
          "'%s-%s' % (A, N)",
          "'{} {}'.format(A, N)", "A|replace('a', A)", "A.title()", "A.capitalize()", "A.lower()", "A|reverse",
          "A|center(9)", "A.strip('a ')", "missing|default(A)", "A|d('x', true)", "A.splitlines()|join('/')",
          "'%5.2f|%-4d|%04d' % (f, n, n)", "'{:>8}|{:<5}|{:^7}|{:.2f}'.format(A, N, A, f)",
          "A.partition(' ')|join('|')",
          "A.rsplit(' ', 1)|join('+')", "A|format", "A.swapcase()", "A.zfill(8)", "A.removeprefix('He')", "d|string",
          "m|map(attribute='role')|join(A)", "A|string", "(A, N)|string", "[A, none, B, f]|string", "{A: N}|string"],
    "N": ["n", "z", "1", "2", "-3", "x", "N + N", "N - N", "N * 2", "N % 3", "N // 2", "A|length", "L|length", "N|abs",
          "A|int", "A|wordcount", "A.count('l')", "A.find('l')", "A.rfind(A)", "l|sum", "l|max", "l|min",
          "(N if B else N)",
          "d|length", "-n", "2 ** 3", "m|map(attribute='k.v')|sum", "f|int", "f|round|int", "N|float|int", "l[0]",
          "l[-1]", "d.b", "d['a'][1]", "d.get('zz', N)"],
    "L": ["l", "w", "m", "empty", "nest", "[1, 'a']", "range(4)|list", "L[1:]", "L[::-1]", "L[:N]", "L + L",
          "A.split()",
          "A.split(',')", "A|list", "L|reverse|list", "l|sort", "w|sort", "w|sort(case_sensitive=true)",
          "w|unique|list",
          "L|list", "d.keys()|list", "d.values()|list", "d.items()|list", "d|dictsort", "m|map(attribute='role')|list",
          "m|selectattr('role', 'equalto', 'user')|list", "L|select('string')|list", "L|reject('none')|list",
          "L|batch(2)|list", "L|slice(2)|list", "m|sort(attribute='k.v')", "m|rejectattr('zz', 'defined')|list",
          "w|map('upper')|list", "l|select('odd')|list", "d|items|list", "(L if B else L)", "L * 2", "d|list"],
    "B": ["yes", "no", "true", "N > N", "N <= N", "N == N", "A == A", "A != A", "A in A", "N in L", "A not in L",
          "not B",
          "(B and B)", "(B or B)", "A is string", "L is iterable", "N is odd", "N is even", "A is defined",
          "N is number",
          "missing is defined", "L is sequence", "d is mapping", "A.startswith('H')", "A.endswith(('d', 'x'))",
          "N < N < N",
          "A is upper", "A is lower", "nil is none", "L == L", "N is divisibleby(2)", "A < A", "'a' in d",
          "m[0].zz is defined"],
}
COMPARISONS = ["==", "!=", "<", "<=", ">", ">=", "in", "not in"]


class Drawer:
    def __init__(self, rng):
        self.rng = rng
        self.loops = 0

    def pick(self, options):
        return self.rng.choice(options)

    def atom(self):
        kind = self.rng.random()
        if kind < 0.6:
            return self.pick(NAMES[:-5] * 4 + NAMES[-5:])
        if kind < 0.75:
            return self.pick(STRINGS)
        if kind < 0.9:
            return self.pick(NUMBERS)
        return self.pick(["true", "none", "[]", "{}", "()", "(1,)", "[1, 'a', none]", "{'a': 1, 2: 'b'}", "range(3)",
                          "range(1, 10, 3)", "range(5, 0, -2)", "dict(a=1)", "namespace(a=1).a", "(1, 2)", "False"])

    def typed(self, kind, depth=0):
        """An expression of a type, with others in its place holders."""
        form = self.pick(TYPED[kind][:6] if depth > 3 else TYPED[kind])
        return "".join(self.wrapped(self.typed(c, depth + 1)) if c in TYPED and not self.is_inside(form, i) else c
                       for i, c in enumerate(form))

    def wrapped(self, text):
        """A filter binds more tightly than what may stand around it."""
        return f"({text})" if "|" in text or " " in text else text

    @staticmethod
    def is_inside(form, at):
        """True for a letter that is part of a word or a string."""
        around = form[max(at - 1, 0):at] + form[at + 1:at + 2]
        return any(c.isalnum() or c == "'" for c in around)

    def subscript(self, depth):
        kind = self.rng.random()
        if kind < 0.4:
            return self.pick(["0", "-1", "1", "'a'", "'role'", "5", "none", "true", "'upper'"])
        parts = [self.pick(["", "1", "-1", "2", "-2", "0", "n"]) for _ in range(3)]
        if self.rng.random() < 0.6:
            return f"{parts[0]}:{parts[1]}"
        return f"{parts[0]}:{parts[1]}:{self.pick(['', '2', '-1', '-2', '1', '0'])}"

    def expression(self, depth=0):
        if depth > 3:
            return self.atom()
        if self.rng.random() < 0.75:
            return self.typed(self.pick("ANLB"))
        kind = self.rng.randrange(16)
        inner = lambda: self.expression(depth + 1)  # noqa: E731
        if kind < 3:
            return self.atom()
        if kind == 3:
            return f"{inner()} {self.pick(OPERATORS)} {inner()}"
        if kind == 4:
            return f"({inner()} {self.pick(OPERATORS)} {inner()})"
        if kind == 5:
            return f"{inner()} {self.pick(COMPARISONS)} {inner()}"
        if kind == 6:
            return f"{self.atom()}.{self.pick(METHODS)}"
        if kind == 7:
            return f"{self.pick(NAMES)}[{self.subscript(depth)}]"
        if kind in (8, 9):
            return f"{inner()}|{self.pick(FILTERS)}"
        if kind == 10:
            return f"{inner()} is {self.pick(TESTS)}"
        if kind == 11:
            other = f" else {inner()}" if self.rng.random() < 0.7 else ""
            return f"({inner()} if {inner()}{other})"
        if kind == 12:
            return f"({inner()} {self.pick(['and', 'or'])} {inner()})"
        if kind == 13:
            return f"not {inner()}" if self.rng.random() < 0.5 else f"-{self.atom()}"
        if kind == 14:
            return f"[{inner()}, {inner()}]" if self.rng.random() < 0.5 else f"{{'k': {inner()}, 'j': {inner()}}}"
        return f"{self.atom()} {self.pick(COMPARISONS)} {self.atom()} {self.pick(COMPARISONS)} {self.atom()}"

    def open(self):
        return self.pick(["{%", "{%-", "{%", "{%+"])

    def close(self):
        return self.pick(["%}", "-%}", "%}", "+%}"])

    def tag(self, text):
        return f"{self.open()} {text} {self.close()}"

    def space(self):
        return self.pick(["", "", " ", "\n", "  \n", "\n  ", " x ", "\r\n", "\t"])

    def body(self, depth):
        return "".join(self.space() + self.statement(depth + 1) for _ in range(self.rng.randint(1, 3))) + self.space()

    def statement(self, depth=0):
        kind = self.rng.randrange(24 if depth < 3 else 9)
        if kind < 6:
            return f"{self.pick(['{{', '{{-', '{{'])} {self.expression()} {self.pick(['}}', '-}}', '}}'])}"
        if kind < 8:
            return self.tag(f"set {self.pick(['y', 'x', 'i', 's'])} = {self.expression()}")
        if kind == 8:
            return self.pick(["{# note #}", "{#- note -#}", "text\n", "{% raw %}{{ x }}{% endraw %}", "%}", "}}",
                              "{%- raw -%} {% if %} {%- endraw +%}", "\n{# note #}\n"])
        if kind < 12:
            condition = self.tag(f"if {self.expression()}") + self.body(depth)
            if self.rng.random() < 0.4:
                condition += self.tag(f"elif {self.expression()}") + self.body(depth)
            if self.rng.random() < 0.5:
                condition += self.tag("else") + self.body(depth)
            return condition + self.tag("endif")
        if kind < 16:
            return self.loop(depth)
        if kind == 16:
            return self.tag("set ns = namespace(a=1, y='n')") + self.body(depth) + self.tag(
                f"set ns.a = {self.expression()}") + "{{ ns.a }}{{ ns.y }}"
        if kind == 17:
            return self.macro(depth)
        if kind == 18:
            filters = self.pick(["", " | upper", " | trim | length"])
            return self.tag(f"set y{filters}") + self.body(depth) + self.tag("endset") + "{{ y }}"
        if kind == 19:
            return self.tag(f"filter {self.pick(['upper', 'trim', 'replace(1, 2)', 'indent(2)'])}") + self.body(
                depth) + self.tag("endfilter")
        if kind == 20:
            return self.tag(f"with y = {self.expression()}") + self.body(depth) + self.tag("endwith")
        if kind == 21:
            return "{% generation %}" + self.body(depth) + "{% endgeneration %}"
        if kind == 22:
            return "{{ mac(1, b=x) }}"
        return self.tag("set y, i = 1, " + self.expression())

    def loop(self, depth):
        target, iterable = self.pick([("i", "l"), ("i", "w"), ("i", "m"), ("k, v", "d.items()"), ("i", "s"), ("i", "d"),
                                      ("a, b", "[(1, 2), (3, 4)]"), ("i", "range(4)"), ("i", "empty"), ("i", "missing"),
                                      ("i", self.expression(2)), ("i", "nest"), ("x", "l")])
        head = f"for {target} in {iterable}"
        if self.rng.random() < 0.2:
            head += " if " + self.pick(["i", "i != 1", "i is odd", "i in l"])
        text = self.tag(head)
        extras = ["{{ loop.index }}", "{{ loop.first }}{{ loop.last }}", "{{ loop.previtem }}", "{{ loop.nextitem }}",
                  "{{ loop.cycle('p', 'q') }}", "{{ loop.changed(i) }}", "{{ loop.revindex0 }}{{ loop.length }}",
                  "{{ loop.depth }}", "{% set x = loop.index %}{{ x }}", "{{ i }}", "", "", "{{ x }}", "{{ y }}",
                  "{% set ns.a = i %}", "{% if loop.index == 2 %}{% break %}{% endif %}",
                  "{% if i == 2 %}{% continue %}{% endif %}"]
        text += self.pick(extras) + self.body(depth) + self.pick(extras)
        if self.rng.random() < 0.25:
            text += self.tag("else") + self.body(depth)
        return text + self.tag("endfor")

    def macro(self, depth):
        name = self.pick(["mac", "f2"])
        parameters = self.pick(["", "a", "a, b=2", "a=1, b=a", "a, b"])
        extra = self.pick(["", "{{ caller() }}", "{{ varargs }}{{ kwargs }}", "{{ a }}{{ b }}", "{{ x }}{{ y }}"])
        text = self.tag(f"macro {name}({parameters})") + extra + self.body(depth) + self.tag("endmacro")
        call = self.pick([f"{name}()", f"{name}(1)", f"{name}(1, 2)", f"{name}(b=3)", f"{name}(1, 2, 3)",
                          f"{name}(1, z=2)", f"{name}(*l)", f"{name}(**{{'a': 4}})"])
        if self.rng.random() < 0.3:
            return text + "{% call " + call + " %}" + self.body(depth) + "{% endcall %}"
        return text + self.pick(["{{ " + call + " }}", "{{ " + call + "|upper }}", "{% set y = " + call + " %}{{ y }}"])


def draw(rng):
    """A template, and the variables it is rendered with."""
    drawer = Drawer(rng)
    if rng.random() < 0.5:
        return "{{ " + drawer.expression() + " }}", CONTEXT
    return "".join(drawer.space() + drawer.statement() for _ in range(rng.randint(1, 4))) + drawer.space(), CONTEXT
