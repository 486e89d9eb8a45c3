"""Products, softmax, normalisation, dropout and losses in torch's f64, and their cases."""
import functools
import math

import torch
import torch.nn.functional as F

import compare
from case import Case, FLOATS, INTEGERS, Input, LAYOUTS, by_squares
from ops_elementwise import NARROW, UNARY, cast, random_shape, random_values, refusals
from ops_index import indices, long

# ---- products --------------------------------------------------------------------------------------------------------
# -----------------

PAIRS = [((4, ), (4, )), ((3, 4), (4, )), ((4, ), (4, 5)), ((3, 4), (4, 5)), ((1, 1), (1, 1)), ((1, 7), (7, 1)),
         ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
         ((2, 3, 4), (4, )), ((4, ), (2, 4, 5)), ((33, 65), (65, 47)), ((128, 100), (100, 70)),
         ((1, 2, 3, 4), (6, 1, 4, 3)), ((5, 300), (300, 3)), ((3, 0), (0, 4)), ((0, 3), (3, 4)), ((2, 0, 3), (3, 2)),
         ((3, 4), (4, 0)), ((0, ), (0, )), ((2, 2, 2, 3, 2, 4), (4, 3))]


def integer_product(a, b):
    """torch has no integer product of every rank and dtype; in i64 it has, and the result wraps the same."""
    return torch.matmul(a.to(torch.int64), b.to(torch.int64)).to(a.dtype)


def product(a, b):
    return torch.matmul(a, b) if a.is_floating_point() else integer_product(a, b)


def matmul_cases(op, rng, generator, count):
    for dtype in FLOATS + INTEGERS:
        def case(shapes, layouts=None, **more):
            layouts = layouts or [rng.choice(LAYOUTS) for _ in range(2)]
            inputs = [Input(random_values(s, dtype, generator), l) for s, l in zip(shapes, layouts)]
            return Case(op, inputs, product, kind="sum", dtype=dtype, sizes=by_squares(product),
                        upstream_layout=rng.choice(LAYOUTS), **more)
        for shapes in PAIRS:
            for layout in LAYOUTS:
                yield case(shapes, (layout, rng.choice(LAYOUTS)))
        for layouts in [(a, b) for a in LAYOUTS for b in LAYOUTS]:
            yield case(((6, 9), (9, 5)), layouts)
            yield case(((2, 6, 9), (2, 9, 5)), layouts)
        for _ in range(count):
            m, k, n = (rng.choice([1, 2, 7, 16, 31, 64, 90]) for _ in range(3))
            batch = random_shape(rng, 6)[:3]
            other = tuple(1 if rng.random() < 0.3 else s for s in batch)[rng.randint(0, len(batch)):]
            yield case((batch + (m, k), other + (k, n)), label="random shape")
        if dtype in FLOATS:
            for i in range(2):
                one = case(((5, 6), (6, 7)), label=f"gradient {i} only")
                one.inputs[1 - i].smooth = False
                yield one
            for number in (math.nan, math.inf):
                one = case(((5, 6), (6, 7)), ("dense", "dense"), label=f"with {number}")
                one.inputs[0].values[1, 2] = number
                yield one
    long_values = [Input(random_values(s, "f32", generator)) for s in ((3, 20_000), (20_000, 2))]
    yield Case(op, long_values, product, kind="sum", sizes=by_squares(product), terms=20_000, label="long")


def linear_cases(op, rng, generator, count):
    def reference(x, w, bias=None):
        y = product(x, w.T)
        return y if bias is None else y + bias
    for dtype in FLOATS + INTEGERS:
        shapes = [(6, 5), (5,), (2, 3, 5), (0, 5), (1, 1, 1), (70, 90), (2, 2, 2, 2, 3)]
        for shape in shapes + [random_shape(rng)[:2] + (rng.choice([1, 4, 33]),) for _ in range(count)]:
            for layout in LAYOUTS:
                for bias in (True, False):
                    out = rng.choice([1, 4, 37])
                    inputs = [Input(random_values(shape, dtype, generator), layout),
                              Input(random_values((out, shape[-1]), dtype, generator), rng.choice(LAYOUTS))]
                    given = [Input(None)] * rng.randint(0, 1)
                    if bias:
                        given = [Input(random_values((out,), dtype, generator), rng.choice(LAYOUTS))]
                    yield Case(op, inputs + given, reference, kind="sum", dtype=dtype, sizes=by_squares(reference),
                               upstream_layout=rng.choice(LAYOUTS))


ACTS = {  # by tarn_activation_kind; the tanh form of GELU without 1 + tanh, which would lose the negative side
    2: lambda z: z * torch.sigmoid(1.5957691216057308 * (z + 0.044715 * z**3)),
    0: torch.relu, 3: F.gelu, 4: F.silu}


def mlp_cases(op, rng, generator, count):
    def reference(x, up, down, up_bias=None, down_bias=None, kind=2):
        z = product(x, up.T) if up_bias is None else product(x, up.T) + up_bias
        h = ACTS[kind](z)
        y = product(h, down.T)
        return y if down_bias is None else y + down_bias

    def without_gelu(x, up, down, up_bias=None, down_bias=None):  # terms are as large as without it, or smaller
        z = product(x, up.T) if up_bias is None else product(x, up.T) + up_bias
        y = product(z, down.T)
        return y if down_bias is None else y + down_bias
    for dtype in ("f32", "f64"):
        for shape in [(6, 5), (5, ), (2, 3, 5), (0, 5),
                      (70, 90)] + [random_shape(rng)[:2] + (rng.choice([1, 4, 33]), ) for _ in range(count)]:
            for layout in LAYOUTS:
                hidden, out, biases = rng.choice([1, 8, 37]), rng.choice([1, 4, 33]), rng.randint(0, 2)
                kind = rng.choice([2, 2, 0, 3, 4])
                attributes = {} if kind == 2 and rng.random() < 0.5 else {"activation": kind}
                shapes = [(hidden, shape[-1]), (out, hidden), (hidden,), (out,)][:2 + biases]
                # Weights as large as a network's: what comes between is of the size of x, and its rounding is not
                # magnified by the second product.
                weights = [random_values(s, dtype, generator) / (s[-1] ** 0.5 if len(s) > 1 else 1) for s in shapes]
                yield Case(op, [Input(random_values(shape, dtype, generator), layout)] +
                           [Input(w, rng.choice(LAYOUTS)) for w in weights],
                           functools.partial(reference, kind=kind), attributes, kind="sum", dtype=dtype,
                           sizes=by_squares(without_gelu))


# ---- softmax and norms
# ----------------------------------------------------------------------------------------------------------------

ROWS = [(3, 4, 5), (6, 9), (7,), (1,), (5, 1), (), (0, 3), (3, 0), (40, 70), (3, 300), (300, 3)]


def softmax_sizes(op, axis):
    """gx = y (g - sum of y g), or g - y (sum of g) for the logarithm: the sizes of these terms."""
    def sizes(values, wanted, upstreams):
        y, g = torch.softmax(values[0].to(torch.float64), axis), upstreams[0].to(torch.float64)
        size = lambda t: torch.maximum((t * t).sum(axis, keepdim=True).sqrt(), t.sum(axis, keepdim=True).abs())
        if op == "softmax":
            return [None], [y * torch.maximum(g.abs(), size(y * g))]
        return [None], [torch.maximum(g.abs(), y * size(g))]
    return sizes


def softmax_cases(op, rng, generator, count):
    function = torch.softmax if op == "softmax" else torch.log_softmax
    for dtype in FLOATS:
        def case(values, axis, layout=None, **more):
            return Case(op, [Input(values, layout or rng.choice(LAYOUTS))], lambda x: function(x, axis), {"axis": axis},
                        kind="sum", dtype=dtype, sizes=softmax_sizes(op,
                                                                     axis), upstream_layout=rng.choice(LAYOUTS), **more)
        for shape in ROWS + [random_shape(rng) for _ in range(count)]:
            for axis in range(-len(shape), len(shape)) if shape else [0, -1]:
                yield case(random_values(shape, dtype, generator), axis)
        for layout in LAYOUTS:
            for axis in (0, 1, -1):
                yield case(random_values((9, 70, 3), dtype, generator), axis, layout)
        for number in (math.nan, math.inf, -math.inf):
            values = random_values((6, 8), dtype, generator)
            values[2, 3] = number
            values[4, :] = -math.inf
            yield case(values, -1, label=f"with {number} and a row of -infinity")
        yield case(cast(random_values((6, 8), "f64", generator) * 1000, dtype), -1, label="large")
        yield case(cast(random_values((6, 8), "f64", generator) + 60000, dtype), -1, label="far from zero")
        if dtype in NARROW:
            yield from extreme_softmax_cases(op, dtype, case)
    yield from refusals(op, FLOATS, attributes={"axis": 0})


HUGE = [1e38, -1e30, 1e10, 65504.0, 1e-10, -1e-30, 2.0**-126,
        2.0**-149]  # upstream gradients, finite where the dtype holds them


def extreme_softmax_cases(op, dtype, case):
    """One extreme upstream gradient in a row, at an element that may be far below the largest. The gradient of softmax
    is taken from its result, so there the results stay within the range of f32; the logarithm's may not, and its
    gradient may be infinite."""
    lowest = 80 if op == "softmax" else 700
    far = [-d for d in (0, 20, 50, 80, 95, 103, 104.5, 110, 150, 250, 400, 700) if d <= lowest]
    upstreams = HUGE + [math.inf, -math.inf] if op == "log_softmax" else HUGE
    rows = [(d, g, position) for d in far for g in upstreams for position in range(4)]
    x = torch.tensor([[0, d, -1, d / 2, -2, 0, -30, -3, -4] for d, _, _ in rows], dtype=torch.float64)
    g = torch.zeros_like(x)
    for row, (_, number, position) in enumerate(rows):
        g[row, position] = number
    g = cast(g, dtype)
    if op == "softmax":
        g = g.clamp(-65504, 65504) if dtype == "f16" else g
    yield case(cast(x, dtype), -1, "dense", given=g, label="extreme upstream")
    yield case(cast(x, dtype).T.contiguous(), 0, "dense", given=g.T.contiguous(), label="extreme upstream")


EQUAL = 0.01  # of |x|: what the rounding of a mean leaves where all elements of a row are equal and the result is 0


def norm_sizes(op, epsilon, offset=0):
    """y = n w + b with n = (x - mean) r; gx = r (wg - mean of wg - n (mean of wg n)); gw and gb sum over rows."""
    def sizes(values, wanted, upstreams):
        x, w, b = (v.to(torch.float64) if v is not None else None for v in (*values, None, None)[:3])
        w = w + offset if w is not None else None
        g = upstreams[0].to(torch.float64)
        count, over_rows = max(x.shape[-1], 1), tuple(range(x.ndim - 1))
        w, b = (torch.ones(x.shape[-1:], dtype=torch.float64) if w is None else w), (torch.zeros(
            ()) if b is None else b)
        centred = x - x.mean(-1, keepdim=True) if op == "layernorm" else x
        r = torch.rsqrt((centred ** 2).mean(-1, keepdim=True) + epsilon)
        n, least, wg = centred * r, EQUAL * x.abs() * r, w * g
        mean = lambda t: (t * t).mean(-1, keepdim=True) / count
        results = [((n * w) ** 2 + b * b + (least * w) ** 2).sqrt()]
        gx = r * (wg * wg + mean(wg) + n * n * mean(wg * n)).sqrt()
        rows = lambda t: (t * t).sum(over_rows).sqrt() if over_rows else t.abs()
        gw = rows(g * n) + ((g * least).abs().sum(over_rows) if over_rows else
                            (g * least).abs())  # equal rows round alike
        return results, [gx, gw, rows(g)][:len(values)]
    return sizes


def norm_cases(op, rng, generator, count):
    operands = 3 if op == "layernorm" else 2
    for dtype in FLOATS:
        def case(shape, given, layout=None, values=None, **more):
            epsilon = rng.choice([1e-5, 1e-6, 1e-3])
            inputs = [
                Input(
                    random_values(shape, dtype, generator) if values is None else values, layout or
                    rng.choice(LAYOUTS))]
            inputs += [
                Input(random_values(shape[-1:], dtype, generator), rng.choice(LAYOUTS)) if g else Input(None)
                for g in given]
            def reference(x, weight=None, bias=None):
                if op == "layernorm":
                    return F.layer_norm(x, x.shape[-1:], weight, bias, epsilon)
                y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon)
                return y if weight is None else y * (offset + weight)
            offset = rng.choice([0.0, 1.0, -0.3]) if op == "rmsnorm" else 0
            attributes = {"epsilon": epsilon} | ({"offset": offset} if offset else {})

            return Case(op, inputs, reference, attributes, kind="sum", dtype=dtype,
                        sizes=norm_sizes(op, epsilon, offset), upstream_layout=rng.choice(LAYOUTS), **more)
        givens = [()] + [tuple(bool(n >> i & 1) for i in range(operands - 1)) for n in range(1 << (operands - 1))]
        drawn = [(rng.randint(1, 30), rng.randint(16, 200)) for _ in range(count)]
        for shape in [(6, 9), (3, 4, 50), (1, 30), (40, 300), (2, 2, 2, 70), (30,)] + drawn:
            for layout in LAYOUTS:
                yield case(shape, rng.choice(givens), layout)
        for given in givens:
            yield case((5, 33), given, label="operands")
        for shape in ((0, 4), (3, 1)):
            yield case(shape, givens[-1], label="edges")
        values = random_values((5, 33), dtype, generator)
        values[2, 3], values[3, 1] = math.nan, math.inf
        yield case((5, 33), givens[-1], "dense", values, label="NaN and infinity")
        yield case((5, 64), givens[-1], "dense", cast(random_values((5, 64), "f64", generator) + 100, dtype),
                   label="far from zero")


# ---- dropout ---------------------------------------------------------------------------------------------------------
# -----------------


def dropout_check(p, dtype):
    """Each element is zero or x / (1 - p); the gradient has the same zeros; about p of them are zero."""
    def check(inputs, outputs, upstreams, gradients):
        x, y, g, gx = inputs[0].to(torch.float64), outputs[0], upstreams[0].to(torch.float64), gradients[0]
        kept = y != 0
        keep = torch.zeros_like(x) if p == 1 else kept / (1 - p)
        verdicts = [compare.elementwise(y, x * keep, dtype), compare.elementwise(gx, g * keep, dtype, "gradient")]
        share, n = 1 - kept.to(torch.float64).mean().item() if y.numel() else p, max(y.numel(), 1)
        allowed = 6 * math.sqrt(p * (1 - p) / n) + 1e-12
        verdicts.append(
            compare.Verdict(abs(share - p) <= allowed, text=f"{share:.3f} of {n} elements are zero, {p} expected"))
        return verdicts
    return check


def dropout_cases(op, rng, generator, count):
    for dtype in FLOATS:
        for shape in [(3, 4, 5), (100, 30), (), (0,), (1,), (4000,)] + [random_shape(rng) for _ in range(count)]:
            for layout in LAYOUTS:
                p = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
                values = random_values(shape, dtype, generator)
                values = torch.where(values == 0, torch.ones_like(values), values)
                yield Case(op, [Input(values, layout)], None, {"p": p}, dtype=dtype, check=dropout_check(p, dtype),
                           upstream_layout=rng.choice(LAYOUTS))
    yield from refusals(op, FLOATS, attributes={"p": 0.5})


# ---- losses ----------------------------------------------------------------------------------------------------------
# -----------------

REDUCTIONS = ["mean", "sum", "none"]


def cross_entropy_cases(op, rng, generator, count):
    for dtype in FLOATS:
        for index_dtype in ("i64", "i32"):
            drawn = [(rng.randint(1, 30), rng.randint(2, 99)) for _ in range(count)]
            for shape in [(6, 5), (4,), (2, 3, 7), (1, 1), (40, 70), (3, 300), (200, 3), (0, 4)] + drawn:
                for layout in LAYOUTS:
                    yield cross_entropy_case(op, shape, dtype, index_dtype, layout, rng, generator)


# The loss of bf16 and f16 logits is f32.
def cross_entropy_case(op, shape, dtype, index_dtype, layout, rng, generator):
    classes, smoothing = shape[-1], rng.choice([0.0, 0.1, 0.5])
    reduction, ignored = rng.choice(REDUCTIONS), rng.choice([None, None, 1, -100])
    target = indices(shape[:-1], classes, index_dtype, generator)
    if ignored == -100 and target.ndim:
        target[..., ::3] = -100
    if ignored is not None and reduction == "mean" and not (target != ignored).any():
        ignored = None
        target = target.clamp(min=0)
    attributes = {"label_smoothing": smoothing, "reduction": REDUCTIONS.index(reduction)}
    if ignored is not None:
        attributes["ignore_index"] = ignored
    def reference(logits, target):
        flat = F.cross_entropy(logits.reshape(-1, classes),
                               long(target).reshape(-1), label_smoothing=smoothing, reduction=reduction,
                               ignore_index=-1000 if ignored is None else ignored)
        return flat.reshape(target.shape) if reduction == "none" else flat

    return Case(op, [Input(random_values(shape, dtype, generator), layout),
                     Input(target, rng.choice(LAYOUTS))], reference, attributes, kind="sum", dtype=dtype,
                result_dtype="f64" if dtype == "f64" else "f32", label=f"index {index_dtype}")


LOSSES = {
    "mse_loss": lambda a, b: F.mse_loss(a, b),
    "l1_loss": lambda a, b: F.l1_loss(a, b),
    "huber_loss": None,
    "bce_with_logits_loss": lambda a, b: F.binary_cross_entropy_with_logits(a, b),
}


def loss_cases(op, rng, generator, count):
    for dtype in FLOATS:
        for shape in [(6, 5), (7,), (), (1, 1), (0,), (40, 70), (3, 1, 4)] + [random_shape(rng) for _ in range(count)]:
            for layout in LAYOUTS:
                attributes, reference = {}, LOSSES[op]
                if op == "huber_loss":
                    delta = rng.choice([1.0, 0.25, 3.0])
                    attributes, reference = {"delta": delta}, lambda a, b, delta=delta: F.huber_loss(a, b, delta=delta)
                a, b = random_values(shape, dtype, generator), random_values(shape, dtype, generator)
                if op.startswith("bce"):
                    b = cast(torch.rand(shape, generator=generator, dtype=torch.float64), dtype)
                yield Case(op, [Input(a, layout), Input(b, rng.choice(LAYOUTS))], reference, attributes, kind="sum",
                           dtype=dtype)
        a = random_values((6, 5), dtype, generator)
        yield Case(op, [Input(a), Input(a.clone())], loss_with_default(op), kind="sum", dtype=dtype,
                   label="equal operands")
        for number in (math.nan, math.inf):
            a, b = random_values((6, 5), dtype,
                                 generator), cast(torch.rand((6, 5), generator=generator, dtype=torch.float64), dtype)
            a[2, 3] = number
            yield Case(op, [Input(a), Input(b)], loss_with_default(op), kind="sum", dtype=dtype, label=f"with {number}")


        if op.startswith("bce") and dtype in NARROW:
            yield from extreme_bce_cases(op, dtype)


def extreme_bce_cases(op, dtype):
    """Logits far on either side, whose sigmoid is below the range of f32, with upstream gradients that bring the
    product back. torch's own loss and gradient are differences that cancel there."""
    softplus = UNARY["softplus"][1]
    reference = lambda x, t: (t * softplus(-x) + (1 - t) * softplus(x)).mean()
    x = torch.tensor([s * d for d in (0, 20, 50, 90, 104.5, 110, 150, 300, 700) for s in (1, -1)], dtype=torch.float64)
    for target in (0.0, 1.0, 0.25):
        for number in HUGE:
            given = cast(torch.tensor(number, dtype=torch.float64), dtype)
            if torch.isfinite(given):  # infinity times (1 - t) less infinity times t is NaN
                inputs = [Input(cast(x, dtype)), Input(cast(torch.full_like(x, target), dtype))]
                yield Case(op, inputs, reference, kind="sum", gradient_kind="ulp", dtype=dtype, given=given,
                           label="extreme upstream")


def loss_with_default(op):
    return LOSSES[op] or F.huber_loss


OPS = {
    "matmul": matmul_cases, "linear": linear_cases, "mlp": mlp_cases, "softmax": softmax_cases,
    "log_softmax": softmax_cases, "layernorm": norm_cases, "rmsnorm": norm_cases, "dropout": dropout_cases,
    "cross_entropy": cross_entropy_cases, **{name: loss_cases for name in LOSSES}}
