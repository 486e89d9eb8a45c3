"""Reductions in torch's f64, and their cases."""
import math

import torch

import support
from case import Case, FLOATS, INTEGERS, Input, LAYOUTS, by_squares, in_torch
from ops_elementwise import cast, random_shape, random_values, refusals

SHAPES = [(3, 4, 5), (6, 7), (9,), (1,), (1, 1, 4), (5, 1, 3), (), (2, 2, 2, 2, 2), (40, 70), (130, 3), (3, 130)]


def axes_of(axes, rank):
    """Axes as torch wants them: a list, all of them for an empty one."""
    return sorted(a % rank for a in axes) if axes else list(range(rank))


def several(function):
    """A torch reduction over one axis, over several: they are joined to one first."""
    def reduce(x, axes, keep):
        axes = axes_of(axes, x.ndim)
        kept = [n if i not in axes else 1 for i, n in enumerate(x.shape)]
        rest = [i for i in range(x.ndim) if i not in axes]
        joined = x.permute(rest + axes).reshape([x.shape[i] for i in rest] + [math.prod(x.shape[i] for i in axes)])
        y = function(joined)
        return y.reshape(kept) if keep else y
    return reduce


def total(x, axes, keep):
    return torch.sum(x, axes_of(axes, x.ndim), keepdim=keep) if x.ndim else torch.sum(x)


def terms_of(shape, axes):
    return math.prod(shape[a] for a in axes_of(axes, len(shape)))


REFERENCE = {
    "sum": total,
    "mean": lambda x, axes, keep: torch.mean(x, axes_of(axes, x.ndim), keepdim=keep) if x.ndim else torch.mean(x),
    "prod": several(lambda x: torch.prod(x, -1)),
    "max": lambda x, axes, keep: torch.amax(x, axes_of(axes, x.ndim), keepdim=keep),
    "min": lambda x, axes, keep: torch.amin(x, axes_of(axes, x.ndim), keepdim=keep),
    "var": None,
}
DTYPES = {
    "sum": FLOATS + INTEGERS + ["bool"],
    "mean": FLOATS,
    "prod": FLOATS + INTEGERS + ["bool"],
    "max": FLOATS + INTEGERS + ["bool"],
    "min": FLOATS + INTEGERS + ["bool"],
    "var": FLOATS,
}


def variance_sizes(axes, keep, correction):
    """The gradient is a difference of x and its mean: its terms are those of the sum of squares, with no mean taken
    off. Where all elements are equal the mean's own rounding in f64 is left, squared."""
    def sizes(values, wanted, upstreams):
        moment = lambda x: total(x * x, axes, keep) / (terms_of(x.shape, axes) - correction or math.nan)
        moments, _, gradients = in_torch(moment, values, wanted, upstreams)
        return [moments[0].abs() * torch.finfo(torch.float64).eps
               ], [g.abs() if g is not None else None for g in gradients]
    return sizes


def sizes_of(op, axes, keep, correction):
    if op == "var":
        return variance_sizes(axes, keep, correction)
    if op == "sum":
        return by_squares(lambda x: total(x, axes, keep))
    if op == "mean":
        return by_squares(lambda x: total(x, axes, keep) / max(terms_of(x.shape, axes), 1) ** 2)
    return None


def axes_choices(rank):
    """No axis (all), each alone, counted from either end, pairs, and all by name."""
    if rank == 0:
        return [[]]
    choices = [[], [0], [-1], list(range(rank))]
    choices += [[a]
                for a in range(1, rank - 1)] + ([[0, -1]] if rank > 1 else []) + ([[1, 2], [-2, 0]] if rank > 2 else [])
    return choices


def make(op, values, axes, keep, dtype, layout="dense", rng=None, **more):
    attributes = {"axes": axes, "keep": keep}
    reference = lambda x: REFERENCE[op](x, axes, keep)
    correction = float(rng.choice([0, 1])) if op == "var" else 0.0
    if op == "var":
        attributes["correction"] = correction
        reference = lambda x: torch.var(x, axes_of(axes, x.ndim), correction=correction, keepdim=keep)
    kind = "exact" if op in ("max", "min") else "sum"
    return Case(op, [Input(values, layout)], reference, attributes, kind=kind, gradient_kind="sum", dtype=dtype,
                sizes=sizes_of(op, axes, keep, correction), terms=terms_of(values.shape, axes), **more)


def reduce_cases(op, rng, generator, count):
    for dtype in DTYPES[op]:
        def values(shape):
            made = random_values(shape, dtype, generator)
            # a product of many stays in range, also where a zero stride repeats a row: beyond f64's, its order decides
            if op == "prod" and dtype in FLOATS:
                size = (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)**0.7)**min(
                    1.0, 1000 / max(1, math.prod(shape)))
                made = cast(torch.sign(made.to(torch.float64)) * size, dtype)
            return made

        def case(shape, axes, layout=None, keep=None, **more):
            keep = rng.random() < 0.5 if keep is None else keep
            layout = layout or rng.choice(LAYOUTS)
            return make(op, values(shape), axes, keep, dtype, layout, rng, upstream_layout=rng.choice(LAYOUTS), **more)
        for shape in SHAPES:
            for axes in axes_choices(len(shape)):
                for layout in LAYOUTS if shape in ((3, 4, 5), (40, 70)) else [None]:
                    yield case(shape, axes, layout)
        for _ in range(count):
            shape = random_shape(rng)
            yield case(shape, rng.choice(axes_choices(len(shape))), label="random shape")
        for layout in LAYOUTS:
            yield case((257, 300), rng.choice([[0], [1], []]), layout, label="large")
        if op not in ("max", "min"):
            for shape, axes in (((0,), [0]), ((3, 0), [1]), ((3, 0), [0]), ((3, 0, 2), [])):
                yield case(shape, axes, label="empty")
        else:
            yield case((3, 0), [0], label="empty")
        if dtype in FLOATS:
            yield from special_cases(op, dtype, rng, generator)
    if op in ("sum", "mean", "var", "max"):
        for axes, shape in (([], (120_000,)), ([0], (30_000, 5)), ([1], (5, 30_000))):
            yield make(op, random_values(shape, "f32", generator), axes, False, "f32", rng.choice(["dense", "general"]),
                       rng, label="long")
    yield from refusals(op, DTYPES[op])


def special_cases(op, dtype, rng, generator):
    """NaN, infinities, ties, zeros, values far from zero."""
    base = random_values((6, 8), dtype, generator)
    for number in (math.nan, math.inf, -math.inf):
        values = base.clone()
        values[2, 3] = values[4, 0] = number
        for axes in ([0], [1], []):
            yield make(op, values, axes, False, dtype, "dense", rng, label=f"with {number}")
    both = base.clone()
    both[1, 1], both[1, 5] = math.inf, -math.inf
    yield make(op, both, [1], False, dtype, "dense", rng, label="with both infinities")
    ties = cast(torch.randint(-1, 2, (6, 8), generator=generator).to(torch.float64), dtype)
    for axes in ([0], [1], []):
        yield make(op, ties, axes, True, dtype, rng.choice(LAYOUTS), rng, label="ties and zeros")
    if op == "prod":
        for zeros in ([], [3], [3, 5]):
            values = base.clone()
            values[:, zeros] = 0
            yield make(op, values, [1], False, dtype, "dense", rng, label=f"{len(zeros)} zeros")
    if op in ("var", "mean", "sum") and dtype in ("f32", "f64"):
        yield make(op, base + 1000, [1], False, dtype, "dense", rng, label="far from zero")


def argument_cases(op, rng, generator, count):
    dtypes = FLOATS + INTEGERS + ["bool"]
    plain = torch.argmax if op == "argmax" else torch.argmin
    function = lambda x, **more: plain(x.to(torch.uint8)
                                       if x.dtype == torch.bool else x, **more)  # torch has none for bool
    for dtype in dtypes:
        def case(values, axis, layout=None, **more):
            keep = rng.random() < 0.5
            return Case(op, [Input(values, layout or rng.choice(LAYOUTS))],
                        lambda x: function(x, dim=axis, keepdim=keep), {"axis": axis, "keep": keep}, dtype=dtype,
                        kind="exact", **more)
        for shape in SHAPES:
            for axis in range(-len(shape), len(shape)) if shape else [0]:
                yield case(random_values(shape, dtype, generator), axis)
        for layout in LAYOUTS:
            for axis in (0, 1):
                yield case(random_values((70, 60), dtype, generator), axis, layout)
                few = torch.randint(0, 2 if dtype == "bool" else 3, (9, 11), generator=generator)
                yield case(few.to(support.TORCH[dtype]), axis, layout, label="ties")
        yield case(random_values((3, 0), dtype, generator), 0, label="empty")
        for _ in range(count):
            shape = random_shape(rng) or (4,)
            yield case(random_values(shape, dtype, generator), rng.randrange(-len(shape), len(shape)),
                       label="random shape")
        if dtype in FLOATS:
            for number in (math.nan, math.inf, -math.inf):
                values = random_values((6, 8), dtype, generator)
                values[2, 3] = values[4, 0] = values[2, 6] = number
                for axis in (0, 1):
                    yield case(values, axis, label=f"with {number}")


def cumsum_cases(op, rng, generator, count):
    dtypes = FLOATS + INTEGERS + ["bool"]
    for dtype in dtypes:
        def case(values, axis, layout=None, **more):
            reference = lambda x: torch.cumsum(x, axis)
            return Case(op, [Input(values, layout or rng.choice(LAYOUTS))], reference, {"axis": axis}, kind="sum",
                        dtype=dtype, sizes=by_squares(reference), upstream_layout=rng.choice(LAYOUTS), **more)
        for shape in SHAPES + [(0,), (3, 0), (0, 3)]:
            for axis in range(-len(shape), len(shape)) if shape else [0, -1]:
                yield case(random_values(shape, dtype, generator), axis)
        for layout in LAYOUTS:
            for axis in (0, 1):
                yield case(random_values((70, 60), dtype, generator), axis, layout)
        for _ in range(count):
            shape = random_shape(rng) or (4,)
            yield case(random_values(shape, dtype, generator), rng.randrange(-len(shape), len(shape)),
                       label="random shape")
        if dtype in FLOATS:
            for number in (math.nan, math.inf):
                values = random_values((6, 8), dtype, generator)
                values[2, 3] = values[4, 0] = number
                yield case(values, rng.choice([0, 1]), label=f"with {number}")
    yield case_long(op, generator)


def case_long(op, generator):
    reference = lambda x: torch.cumsum(x, 0)
    return Case(op, [Input(random_values((50_000, ), "f32", generator))], reference, {"axis": 0}, kind="sum",
                sizes=by_squares(reference), terms=50_000, label="long")


OPS = {
    **{name: reduce_cases for name in REFERENCE}, "argmax": argument_cases, "argmin": argument_cases,
    "cumsum": cumsum_cases}
