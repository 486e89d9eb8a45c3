"""Indexing and sorting in torch's f64, and their cases."""
import math

import torch

import support
from case import Case, FLOATS, Input, LAYOUTS, by_squares
from ops_elementwise import random_shape, random_values

INDICES = ["i64", "i32"]


def indices(shape, limit, dtype, generator):
    return torch.randint(0, max(limit, 1), shape, generator=generator).to(support.TORCH[dtype])


def long(index):
    """torch takes i64 only."""
    return index.to(torch.int64)


def index_case(op, inputs, reference, attributes, dtype, rng, **more):
    """Results are equal, or sums where something is added; gradients may be sums."""
    kind = "sum" if op == "scatter_add" else "exact"
    return Case(op, inputs, reference, attributes, kind=kind, gradient_kind="sum", dtype=dtype,
                sizes=by_squares(reference), upstream_layout=rng.choice(LAYOUTS), **more)


def gather_cases(op, rng, generator, count):
    shapes = [(3, 4, 5), (6,), (1, 3), (), (4, 0), (40, 33)]
    for dtype in support.DTYPES:
        for index_dtype in INDICES:
            for shape in shapes + [random_shape(rng) for _ in range(count)]:
                for layout in LAYOUTS:
                    axis = rng.randrange(-len(shape), len(shape)) if shape else rng.choice([0, -1])
                    wanted = list(shape)
                    if shape:
                        wanted = [rng.randint(min(n, 1), n) for n in shape]
                        wanted[axis] = rng.randint(1, 9) if shape[axis] else 0
                    index = indices(wanted, shape[axis] if shape else 1, index_dtype, generator)
                    yield index_case(
                        op, [Input(random_values(shape, dtype, generator), layout),
                             Input(index, rng.choice(LAYOUTS))], lambda x, i, axis=axis: torch.gather(x, axis, long(i)),
                        {"axis": axis}, dtype, rng, label=f"index {index_dtype}")


def scatter(x, axis, index, source):
    """torch.scatter_add, which has a gradient only where the source is no larger than the index."""
    return torch.scatter_add(x, axis, index, source[tuple(slice(0, n) for n in index.shape)])


def scatter_cases(op, rng, generator, count):
    shapes = [(3, 4, 5), (6,), (1, 3), (), (40, 33)]
    for dtype in [d for d in support.DTYPES if d != "bool"]:
        for index_dtype in INDICES:
            for shape in shapes + [random_shape(rng) for _ in range(count)]:
                for layout in LAYOUTS:
                    axis = rng.randrange(-len(shape), len(shape)) if shape else 0
                    wanted = [rng.randint(1, n) for n in shape]
                    if shape:
                        wanted[axis] = rng.randint(0, 9)
                    source = [n + rng.randint(0, 2) for n in wanted]
                    index = indices(wanted, shape[axis] if shape else 1, index_dtype, generator)
                    inputs = [Input(random_values(shape, dtype, generator), layout), Input(index, rng.choice(LAYOUTS)),
                              Input(random_values(source, dtype, generator), rng.choice(LAYOUTS))]
                    yield index_case(op, inputs, lambda x, i, s, axis=axis: scatter(x, axis, long(i), s),
                                     {"axis": axis}, dtype, rng, label=f"index {index_dtype}")


def select_cases(op, rng, generator, count):
    shapes = [(3, 4, 5), (6,), (1, 3), (40, 33), (5, 0)]
    for dtype in support.DTYPES:
        for index_dtype in INDICES:
            for shape in shapes + [random_shape(rng) or (3,) for _ in range(count)]:
                for layout in LAYOUTS:
                    axis = rng.randrange(-len(shape), len(shape))
                    index = indices((rng.randint(0, 9) if shape[axis] else 0,), shape[axis], index_dtype, generator)
                    yield index_case(
                        op, [Input(random_values(shape, dtype, generator), layout),
                             Input(index, rng.choice(LAYOUTS))],
                        lambda x, i, axis=axis: torch.index_select(x, axis, long(i)), {"axis": axis}, dtype, rng,
                        label=f"index {index_dtype}")


def embedding_cases(op, rng, generator, count):
    for dtype in support.DTYPES:
        for index_dtype in INDICES:
            for shape in [(6, ), (2, 3), (), (0, ), (2, 0), (4, 5, 2),
                          (300, )] + [random_shape(rng) for _ in range(count)]:
                for layout in LAYOUTS:
                    rows, columns = rng.choice([(7, 5), (1, 4), (30, 65), (9, 1)])
                    index = indices(shape, rows, index_dtype, generator)
                    weight = random_values((rows, columns), dtype, generator)
                    yield index_case(op, [Input(weight, layout), Input(index, rng.choice(LAYOUTS))],
                                     lambda w, i: w[long(i)], {}, dtype, rng, label=f"index {index_dtype}")


def one_hot_cases(op, rng, generator, count):
    for dtype in support.DTYPES:
        for index_dtype in INDICES:
            for shape in [(6,), (2, 3), (), (0,), (2, 0, 3), (4, 1, 5)] + [random_shape(rng) for _ in range(count)]:
                for layout in LAYOUTS:
                    classes = rng.choice([1, 3, 17])
                    index = indices(shape, classes, index_dtype, generator)
                    reference = lambda i, classes=classes, dtype=dtype: torch.nn.functional.one_hot(long(
                        i), classes).to(support.TORCH[dtype])
                    yield Case(op, [Input(index, layout)], reference,
                               {"classes": classes, "dtype": support.DTYPES.index(dtype)}, kind="exact", dtype=dtype,
                               label=f"index {index_dtype}")


def distinct_values(shape, dtype, generator):
    """No two equal along any axis, so that indices are determined; in 8 bits that lasts for 256."""
    count = math.prod(shape)
    if dtype in ("bool", "u8", "bf16", "f16"):
        count = min(count, 256)
    order = torch.randperm(count, generator=generator)
    values = torch.cat([order] * (-(-math.prod(shape) // count) if count else 1))[:math.prod(shape)].reshape(shape)
    return (values if dtype == "u8" else values - count // 2).to(support.TORCH[dtype])


def few_values(shape, dtype, generator):
    return torch.randint(0, 2 if dtype == "bool" else 4, shape, generator=generator).to(support.TORCH[dtype])


SORTED = [(3, 4, 5), (7,), (1,), (), (0,), (3, 0), (0, 3), (2, 200), (200, 2), (40, 33)]


def with_specials(values):
    flat = values.clone().flatten()
    flat[::7], flat[1::11], flat[2::13], flat[3::5] = math.nan, math.inf, -math.inf, 0.0
    return flat.reshape(values.shape)


def sort_cases(op, rng, generator, count):
    for dtype in support.DTYPES:
        def case(values, layout, **more):
            axis = rng.randrange(-values.ndim, values.ndim) if values.ndim else rng.choice([0, -1])
            descending = rng.random() < 0.5
            return Case(op, [Input(values, layout)],
                        lambda x: tuple(torch.sort(x, dim=axis, descending=descending, stable=True)),
                        {"axis": axis, "descending": descending}, kind="exact", dtype=dtype, outputs=2,
                        upstream_layout=rng.choice(LAYOUTS), **more)
        for shape in SORTED + [random_shape(rng) for _ in range(count)]:
            for layout in LAYOUTS:
                yield case(random_values(shape, dtype, generator), layout)
                yield case(few_values(shape, dtype, generator), layout, label="ties")
        if dtype in FLOATS:
            for shape in ((9, 12), (500,)):
                yield case(with_specials(random_values(shape, dtype, generator)), rng.choice(LAYOUTS),
                           label="NaN, infinities, ties")


def topk_cases(op, rng, generator, count):
    for dtype in support.DTYPES:
        def case(values, layout, **more):
            axis = rng.randrange(-values.ndim, values.ndim) if values.ndim else -1
            size = values.shape[axis] if values.ndim else 1
            k = rng.randint(0 if values.ndim else 1, size)
            largest = rng.random() < 0.5
            # torch leaves the order of equal ones open; tarn takes the first, as a stable sort does. torch.topk itself
            # gives the values.
            def reference(x):
                order = torch.sort(x, dim=axis, descending=largest, stable=True)
                if not x.ndim:
                    return tuple(order)
                values, places = (t.narrow(axis, 0, k) for t in order)
                if x.dtype != torch.bool:
                    plain = torch.topk(x, k, dim=axis, largest=largest, sorted=True).values
                    assert torch.equal(*(t.detach().to(torch.float64).nan_to_num(1e9) for t in (plain, values)))
                return values, places

            return Case(op, [Input(values, layout)], reference, {"k": k, "axis": axis, "largest": largest},
                        kind="exact", dtype=dtype, outputs=2, upstream_layout=rng.choice(LAYOUTS), **more)
        for shape in SORTED + [random_shape(rng) for _ in range(count)]:
            for layout in LAYOUTS:
                yield case(distinct_values(shape, dtype, generator), layout)
        for layout in LAYOUTS:
            yield case(few_values((30, 20), dtype, generator), layout, label="ties")
        if dtype in FLOATS:
            yield case(with_specials(random_values((9, 12), dtype, generator)), rng.choice(LAYOUTS),
                       label="NaN, infinities, ties")


OPS = {"gather": gather_cases, "scatter_add": scatter_cases, "index_select": select_cases, "embedding": embedding_cases,
       "one_hot": one_hot_cases, "sort": sort_cases, "topk": topk_cases}
