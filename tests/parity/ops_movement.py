"""Movements in torch's f64, and their cases: nothing is computed, so results and gradients are equal."""
import math

import torch

import support
from case import Case, FLOATS, Input, LAYOUTS, by_squares
from ops_elementwise import random_shape, random_values, special_values

SHAPES = [(3, 4, 5), (2, 3), (7, ), (1, ), (5, 1, 3), (2, 1, 2, 1, 3), (), (0, ), (3, 0, 2), (2, 2, 2, 2, 2, 2, 2),
          (40, 33)]


def factors(count, rng):
    """A shape with that many elements."""
    shape = []
    while count > 1 and len(shape) < 4:
        choices = [n for n in range(2, min(count, 12) + 1) if count % n == 0]
        shape.append(rng.choice(choices) if choices else count)
        count //= shape[-1]
    shape = shape + [count] if count != 1 or not shape else shape
    rng.shuffle(shape)
    return shape + [1] * rng.randint(0, 1)


def reshape(shape, rng):
    count = math.prod(shape)
    target = factors(count, rng) if count else rng.choice([[0], [0, 4], [2, 0, 1]])
    if count and rng.random() < 0.4:
        target[rng.randrange(len(target))] = -1
    return {"shape": target}, lambda x: x.reshape(target)


def permute(shape, rng):
    order = list(range(len(shape)))
    rng.shuffle(order)
    order = [a - len(shape) if rng.random() < 0.3 else a for a in order]
    return {"axes": order}, lambda x: x.permute(order)


def transpose(shape, rng):
    a, b = (rng.randrange(-len(shape), len(shape)) for _ in range(2))
    return {"a": a, "b": b}, lambda x: x.transpose(a, b)


def expand(shape, rng):
    lead = [rng.choice([1, 2, 3]) for _ in range(rng.randint(0, min(2, 8 - len(shape))))]
    target = lead + [rng.choice([1, 4, -1]) if n == 1 else rng.choice([n, -1]) for n in shape]
    return {"shape": target}, lambda x: x.expand(target)


def unsqueeze(shape, rng):
    axis = rng.randint(-len(shape) - 1, len(shape))
    return {"axis": axis}, lambda x: x.unsqueeze(axis)


def squeeze(shape, rng):
    ones = [i for i, n in enumerate(shape) if n == 1]
    if not ones:
        return None
    axis = rng.choice(ones) - rng.choice([0, len(shape)])
    return {"axis": axis}, lambda x: x.squeeze(axis)


def pad(shape, rng):
    before, after = ([rng.randint(0, 2) for _ in shape] for _ in range(2))
    value = rng.choice([0.0, 3.0, 1.0])
    pairs = [n for pair in zip(reversed(before), reversed(after)) for n in pair]
    return {"before": before, "after": after, "value": value}, lambda x: torch.nn.functional.pad(x, pairs, value=value)


def shrink(shape, rng):
    least = 0 if rng.random() < 0.2 else 1  # mostly something is left
    begin = [rng.randint(0, max(n - least, 0)) for n in shape]
    end = [rng.randint(min(b + least, n), n) for b, n in zip(begin, shape)]
    return {"begin": begin, "end": end}, lambda x: x[tuple(slice(b, e) for b, e in zip(begin, end))]


def slice_(shape, rng):
    axis = rng.randrange(-len(shape), len(shape))
    begin = rng.randint(0, shape[axis])
    end = rng.randint(begin, shape[axis])
    return {"axis": axis, "begin": begin, "end": end}, lambda x: x.narrow(axis, begin, end - begin)


def stride(shape, rng):
    steps = [rng.randint(1, 3) for _ in shape]
    return {"steps": steps}, lambda x: x[tuple(slice(None, None, s) for s in steps)]


def flip(shape, rng):
    axes = rng.sample(range(len(shape)), rng.randint(1, len(shape))) if shape else []
    named = [a - len(shape) if rng.random() < 0.3 else a for a in axes]
    return {"axes": named}, lambda x: x.flip(axes)


def same(shape, rng):
    return {}, lambda x: x * 1 if x.is_floating_point() else x.clone()


# name: (what makes attributes and reference, the smallest rank)
MOVEMENTS = {
    "reshape": (reshape, 0), "permute": (permute, 1), "transpose": (transpose, 1), "expand": (expand, 0),
    "unsqueeze": (unsqueeze, 0), "squeeze": (squeeze, 1), "pad": (pad, 1), "shrink": (shrink, 1), "slice": (slice_, 1),
    "stride": (stride, 1), "flip": (flip, 1), "contiguous": (same, 0), "clone": (same, 0)}


def movement_cases(op, rng, generator, count):
    draw, lowest = MOVEMENTS[op]
    for dtype in support.DTYPES:
        def case(values, layout, **more):
            drawn = draw(tuple(values.shape), rng)
            if not drawn:
                return []
            summed = op == "expand"
            return [
                Case(op, [Input(values, layout)], drawn[1], drawn[0], kind="exact", dtype=dtype,
                     upstream_layout=rng.choice(LAYOUTS), gradient_kind="sum" if summed else "exact",
                     sizes=by_squares(drawn[1]) if summed else None, **more)]
        shapes = [s for s in SHAPES if len(s) >= lowest]
        for shape in shapes:
            for layout in LAYOUTS:
                yield from case(random_values(shape, dtype, generator), layout)
        for _ in range(count):
            shape = random_shape(rng)
            if len(shape) >= lowest:
                yield from case(random_values(shape, dtype, generator), rng.choice(LAYOUTS), label="random shape")
        if dtype in FLOATS:
            yield from case(special_values(dtype), "dense", label="special values")


def join_cases(op, rng, generator, count):
    function = torch.cat if op == "concat" else torch.stack
    for dtype in support.DTYPES:
        def case(shapes, axis, layouts=None, **more):
            inputs = [Input(random_values(s, dtype, generator), rng.choice(LAYOUTS)) for s in shapes]
            return Case(op, inputs, lambda *x: function(x, axis), {"axis": axis}, kind="exact", dtype=dtype,
                        upstream_layout=rng.choice(LAYOUTS), **more)
        for shape in [(3, 4, 5), (6,), (1, 3), (0, 2), (2, 2, 2, 2), (40, 33)] + ([()] if op == "stack" else []):
            for axis in range(-len(shape) - (op == "stack"), len(shape) + (op == "stack")):
                shapes = [shape] * rng.randint(1, 4)
                if op == "concat":
                    shapes = [
                        shape[:axis % len(shape)] + (rng.randint(0, 4), ) + shape[axis % len(shape) + 1:]
                        for shape in shapes]
                yield case(shapes, axis)
        yield case([(2, 3)] * 64, 0, label="as many as it takes")


def split_cases(op, rng, generator, count):
    for dtype in support.DTYPES:
        for shape in [(3, 4, 5), (12,), (8, 1), (5, 0), (30, 33)]:
            for axis in range(-len(shape), len(shape)):
                for layout in LAYOUTS:
                    sizes, left = [], shape[axis]
                    while left and len(sizes) < 7:
                        sizes.append(rng.randint(0, left))
                        left -= sizes[-1]
                    sizes.append(left)
                    reference = lambda x, sizes=sizes, axis=axis: tuple(p.clone() for p in torch.split(x, sizes, axis))
                    yield Case(op, [Input(random_values(shape, dtype, generator), layout)], reference,
                               {"axis": axis, "sizes": sizes}, kind="exact", dtype=dtype, outputs=8,
                               upstream_layout=rng.choice(LAYOUTS))


OPS = {**{name: movement_cases for name in MOVEMENTS}, "concat": join_cases, "stack": join_cases, "split": split_cases}
