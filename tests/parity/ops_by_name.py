"""Operations of one operand that no table lists, next to PyTorch's function of the same name with attributes of the
same names: a new one needs no entry where PyTorch has it. Float dtypes; other dtypes need a table."""
import torch
import torch.nn.functional as F

import ops_elementwise
from case import Case, FLOATS, Input, LAYOUTS

SHAPES = [(3, 4, 5), (33, 20), (20, 33), (1, 7), (2, 1, 4, 3), (0, 3), (2, 0)]
DRAWS = {"int": lambda rng: rng.randint(-3, 3), "real": lambda rng: rng.choice([-0.5, 0.25, 2.0])}


def cases_of(info):
    """The cases of an operation, as in a table's OPS; None where PyTorch has no such function."""
    name, listed = info.name.decode(), [pair.split(":") for pair in info.attributes.decode().split()]
    function = getattr(torch, name, None) or getattr(F, name, None)
    if not function or (info.min_inputs, info.max_inputs, info.outputs) != (1, 1, 1):
        return None
    if any(kind not in DRAWS for _, kind in listed):
        return None
    if not listed:
        ops_elementwise.UNARY.setdefault(name, ("float", function))
        return ops_elementwise.unary_cases

    def make(op, rng, generator, count):
        for dtype in FLOATS:
            for shape in SHAPES * max(1, count // 2):
                given = {word: DRAWS[kind](rng) for word, kind in listed}
                values = ops_elementwise.random_values(shape, dtype, generator)
                yield Case(op, [Input(values, rng.choice(LAYOUTS))], lambda x, given=given: function(x, **given), given,
                           dtype=dtype, upstream_layout=rng.choice(LAYOUTS))
    return make
