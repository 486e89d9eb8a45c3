"""Element-wise operations in torch's f64, and their cases."""
import math

import numpy as np
import torch
import torch.nn.functional as F

import compare
import support
from case import Case, FLOATS, INTEGERS, Input, LAYOUTS, by_terms, by_upstream

# ---- references ------------------------------------------------------------------------------------------------------
# -----------------
#
# Where torch's own f64 formula loses precision or range that tarn still has (1 + tanh(u) far on the left, 1 - y * y
# where y is near 1, y * y * y beyond the range, softplus, which torch cuts off at 20), the reference is the same
# function written without the loss; every run checks that it agrees with torch's own as far as that goes.


def smooth(value, gradient):
    """A function of one argument; `gradient` makes dL/dx from g = dL/dy and x."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return value(x)

        @staticmethod
        def backward(context, g):
            return gradient(g, *context.saved_tensors)

    return Function.apply


def sigmoid(x):
    e = torch.exp(-x.abs())
    return torch.where(x < 0, e, torch.ones_like(e)) / (1 + e)


def sech2(x):
    e = torch.exp(-2 * x.abs())
    return 4 * e / (1 + e) ** 2


ROOT_2_PI = math.sqrt(2 / math.pi)


def gelu_argument(x):
    return 2 * ROOT_2_PI * (x + 0.044715 * x ** 3)


def gelu_value(x):
    # 0.5 x (1 + tanh(u)) = x sigmoid(2u)
    return x * sigmoid(gelu_argument(x))


def gelu_slope(x):
    x = torch.where(torch.isfinite(x), x.clamp(-1e4, 1e4),
                    x)  # far out the slope is 0 or 1, and x * x would leave the range
    u = gelu_argument(x)
    s = sigmoid(u)
    return s + x * s * sigmoid(-u) * 2 * ROOT_2_PI * (1 + 3 * 0.044715 * x * x)


def gelu_erf_value(x):
    return 0.5 * x * torch.special.erfc(-x / math.sqrt(2))


def gelu_erf_slope(x):
    return 0.5 * torch.special.erfc(-x / math.sqrt(2)) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def softplus_value(x):
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def silu_slope(x):
    return sigmoid(x) * (1 + x * sigmoid(-x))


def scale(values, exponent):
    """values times 2 to the exponent, in three steps that do not leave the range before the result does."""
    third = torch.div(exponent, 3, rounding_mode="trunc")
    for part in (third, third, exponent - 2 * third):
        values = values * torch.exp2(part.to(torch.float64))
    return values


class Quotient(torch.autograd.Function):
    """torch.div, with mantissas and exponents of the gradient of b taken apart: a / b / b leaves the range before g a /
    b / b does."""

    @staticmethod
    def forward(context, a, b):
        context.save_for_backward(a, b)
        return a / b

    @staticmethod
    def backward(context, g):
        a, b = context.saved_tensors
        (gm, ge), (am, ae), (bm, be) = (torch.frexp(t) for t in torch.broadcast_tensors(g, a, b))
        careful = scale(-gm * am / (bm * bm), ge + ae - 2 * be)
        plain = -g * (a / b / b)
        gb = torch.where(
            torch.isfinite(careful) & torch.isfinite(g) & torch.isfinite(a) & torch.isfinite(b) & (b != 0), careful,
            plain)
        return (g / b).sum_to_size(a.shape), gb.sum_to_size(b.shape)


class Remainder(torch.autograd.Function):
    """torch.remainder, whose vector form gives NaN where a / b is very large; the C library's is exact."""

    @staticmethod
    def forward(context, a, b):
        context.save_for_backward(a, b)
        context.set_materialize_grads(False)
        a, b = torch.broadcast_tensors(a, b)
        with np.errstate(invalid="ignore"):
            rest = torch.from_numpy(np.asarray(np.fmod(a.numpy(force=True), b.numpy(force=True))))
        return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)

    @staticmethod
    def backward(context, g):
        a, b = context.saved_tensors
        return g.sum_to_size(a.shape), (-g * torch.div(a, b, rounding_mode="floor")).sum_to_size(b.shape)


# name: (dtypes, reference, torch's own where that is another)
UNARY = {
    "neg": ("number", torch.neg), "abs": ("number", torch.abs), "sign": ("number", torch.sign),
    "square": ("number", smooth(torch.square, lambda g, x: 2 * (x * g)), torch.square), "sqrt": ("float", torch.sqrt),
    "rsqrt": ("float", smooth(torch.rsqrt, lambda g, x: -0.5 * g * torch.rsqrt(x) / x.abs()),
              torch.rsqrt), "recip": ("float", smooth(torch.reciprocal, lambda g, x: -(g / x) / x), torch.reciprocal),
    "exp": ("float", smooth(torch.exp, lambda g, x: g * torch.exp(x / 2) * torch.exp(x / 2)), torch.exp),
    "exp2": ("float", smooth(torch.exp2, lambda g, x: g * math.log(2) * torch.exp2(x / 2) * torch.exp2(x / 2)),
             torch.exp2), "log": ("float", torch.log), "log2": ("float", torch.log2), "sin": ("float", torch.sin),
    "cos": ("float", torch.cos), "tanh": ("float", smooth(torch.tanh, lambda g, x: g * sech2(x)), torch.tanh),
    "erf": ("float", torch.erf), "sigmoid": ("float", smooth(sigmoid, lambda g, x: g * sigmoid(x) * sigmoid(-x)),
                                             torch.sigmoid), "relu": ("number", torch.relu),
    "leaky_relu": ("float", None), "gelu": ("float", smooth(gelu_value, lambda g, x: g * gelu_slope(x)),
                                            lambda x: F.gelu(x, approximate="tanh")),
    "gelu_erf": ("float", smooth(gelu_erf_value, lambda g, x: g * gelu_erf_slope(x)),
                 F.gelu), "silu": ("float", smooth(lambda x: x * sigmoid(x), lambda g, x: g * silu_slope(x)),
                                   F.silu), "softplus": ("float", smooth(softplus_value, lambda g, x: g * sigmoid(x)),
                                                         F.softplus), "clamp": ("number", None), }

BINARY = {
    "add": ("number", torch.add),
    "sub": ("number", torch.sub),
    "mul": ("number", torch.mul),
    "div": ("float", lambda a, b: Quotient.apply(a, b)),
    "maximum": ("number", torch.maximum),
    "minimum": ("number", torch.minimum),
    "mod": ("number", lambda a, b: Remainder.apply(a, b) if a.is_floating_point() else torch.remainder(a, b)),
    "pow": ("float", torch.pow),
}

COMPARE = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}

WITH_ROOTS = ("gelu", "gelu_erf", "silu")  # their derivatives
POW_BARS = {**compare.ULPS, "f32": 16.0}

# ---- values ----------------------------------------------------------------------------------------------------------
# -----------------


def cast(values, dtype):
    return values.to(support.TORCH[dtype])


def random_values(shape, dtype, generator, positive=False):
    """Floats of many magnitudes around 1; integers small enough that products mostly do not wrap, with some that do."""
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    if dtype in INTEGERS:
        low, high = (0, 256) if dtype == "u8" else (1, 1000) if positive else (-1000, 1000)
        return torch.randint(low, high, shape, generator=generator).to(support.TORCH[dtype])
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype != "f16":  # whose range products of these would leave
        values = values * torch.exp2(torch.randint(-3, 3, shape, generator=generator).to(torch.float64))
    return cast(values.abs() if positive else values, dtype)


def bit_patterns(dtype, generator):
    """Every value of a 16-bit dtype; as many random bit patterns of a wider one."""
    if dtype in ("bf16", "f16"):
        return torch.arange(-32768, 32768).to(torch.int16).view(support.TORCH[dtype])
    if dtype == "f32":
        return torch.randint(-2 ** 31, 2 ** 31, (65536,), generator=generator).to(torch.int32).view(torch.float32)
    high = torch.randint(-2 ** 31, 2 ** 31, (65536,), generator=generator)
    return (high * 2 ** 32 + torch.randint(0, 2 ** 32, (65536,), generator=generator)).view(torch.float64)


SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -2.0, -3.0, math.inf, -math.inf, math.nan, 1e8, -1e8, 88.0, 89.5, -87.0, -88.5,
    -103.5, -104.5, 128.0, -126.5, -149.5, 20.0, -20.0, 710.0, -745.5, 9.0, -9.0, 6.5, -14.0, 1e-3, -1e-3, math.pi,
    math.pi / 2, 1e30, -1e30, 65504.0, 5e-8, 1e-7, 2.0**-14, 2.0**-24, 2.0**-126, 2.0**-130, -2.0**-140, 2.0**-149,
    3.4e38, -3.4e38, 1e-30, -1e-30, 0.99999, 1.00001]
SPECIAL_F64 = SPECIAL + [1e300, -1e300, 1e-300, 2.0 ** -1022, 2.0 ** -1060, 5e-324, 1.7e308]


def special_values(dtype):
    return cast(torch.tensor(SPECIAL_F64 if dtype == "f64" else SPECIAL, dtype=torch.float64), dtype)


# Upstream gradients whose product with a derivative is an ordinary number although the derivative is not, or the other
# way round: every one of them meets every argument below, in the dtypes whose derivatives f64 can still hold.
NARROW = [dtype for dtype in FLOATS if dtype != "f64"]
EXTREME_UPSTREAMS = [
    0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 3.3e38, -3.3e38, 1e30, -1e20, 1e10, 65504.0, 1e-10, -1e-20,
    1e-30, 2.0**-14, 2.0**-24, 2.0**-126, -2.0**-130, 2.0**-149]
EXTREME_SIZES = [
    1e-45, 1e-40, 1e-38, 1e-20, 1e-10, 1e-5, 0.1, 0.3, 0.7, 1.5, 4, 5.5, 7, 12, 17, 25, 44, 60, 87.3, 95, 103, 110, 130,
    150, 180, 210, 300, 400, 500, 600, 700, 740, 800, 1000, 1e4, 1e10, 1e19, 1e25, 1e35]


def extremes(dtype):
    sizes = torch.tensor(EXTREME_SIZES, dtype=torch.float64)
    return torch.cat([special_values(dtype), cast(sizes, dtype), cast(-sizes, dtype)])


def extreme_case(case, *operands):
    """Every combination of the operands' values with every extreme upstream gradient."""
    grid = torch.cartesian_prod(
        *operands, cast(torch.tensor(EXTREME_UPSTREAMS, dtype=torch.float64), support.NAME[operands[0].dtype]))
    columns = [column.contiguous() for column in grid.unbind(1)]
    return case(*columns[:-1], given=columns[-1], label="extreme upstream")


SHAPES = [(3, 4, 5), (2, 3), (7, ), (1, ), (1, 1), (5, 1, 3), (2, 1, 2, 1, 3), (), (0, ), (3, 0, 2),
          (2, 2, 2, 2, 2, 2, 2, 2), (70, 33)]


def random_shape(rng, largest=600):
    while True:
        shape = tuple(rng.choice([1, 2, 3, 5, 8, 17, 40]) for _ in range(rng.randint(0, 5)))
        if math.prod(shape) <= largest:
            return shape


# ---- cases -----------------------------------------------------------------------------------------------------------
# -----------------


def dtypes_of(kind):
    return FLOATS + INTEGERS if kind == "number" else FLOATS


def refusals(op, taken, inputs=1, attributes=None):
    """A dtype that the table does not list must be one that tarn does not take."""
    for dtype in support.DTYPES:
        if dtype not in taken:
            values = [Input(torch.ones(3, dtype=support.TORCH[dtype])) for _ in range(inputs)]
            yield Case(op, values, None, attributes or {}, dtype=dtype, refused=True, label="must be refused")


def parameters(op, dtype, rng):
    """Attributes of the rows that have some, and the reference with them."""
    if op == "leaky_relu":
        slope = rng.choice([0.01, 0.25, -0.5])
        return {"slope": slope}, lambda x: F.leaky_relu(x, slope)
    if op == "clamp":
        low, high = rng.choice([(0.0, 1.0) if dtype == "u8" else (-1.0, 1.0), (0.0, 6.0),
                                (2.0, 2.0)])  # torch wraps -1 to 255
        if dtype in INTEGERS:
            return {"low": low, "high": high}, lambda x: torch.clamp(x, int(low), int(high))
        # The gradient at the bounds is 0, as in current PyTorch; older ones said 1, so it is written out.
        return {"low": low, "high": high}, lambda x: torch.where((x > low) & (x < high), x, x.detach().clamp(low, high))
    return {}, UNARY[op][1]


def unary_cases(op, rng, generator, count):
    kind = UNARY[op][0]
    for dtype in dtypes_of(kind):
        def case(values, layout="dense", **more):
            attributes, reference = parameters(op, dtype, rng)
            return Case(op, [Input(values, layout)], reference, attributes, dtype=dtype,
                        upstream_layout=rng.choice(LAYOUTS), sizes=by_upstream if op in WITH_ROOTS else None, **more)
        for layout in LAYOUTS:
            for shape in [(3, 4, 5), (33, 20), (9,)]:
                yield case(random_values(shape, dtype, generator), layout)
        for shape in SHAPES:
            yield case(random_values(shape, dtype, generator), rng.choice(LAYOUTS))
        for _ in range(count):
            yield case(random_values(random_shape(rng), dtype, generator), rng.choice(LAYOUTS), label="random shape")
        if dtype in FLOATS:
            yield case(random_values((3, 4, 5), dtype, generator), upstream="special", label="special upstream")
            for layout in ("dense", "general"):
                yield case(special_values(dtype), layout, label="special values")
            yield case(bit_patterns(dtype, generator), label="bit patterns")
            yield case(random_values((300, 401), dtype, generator), rng.choice(["permuted", "general"]), label="large")
        if dtype in NARROW:
            yield extreme_case(case, extremes(dtype))
    yield from refusals(op, dtypes_of(kind))
    if len(UNARY[op]) > 2:
        yield agreement(op)


def agreement(op):
    """Our reference against torch's own function and derivative, as far as torch's f64 goes; tarn's part is only to be
    called."""
    def check(inputs, outputs, upstreams, gradients):
        verdicts = []
        x = torch.linspace(-12, 12, 4801, dtype=torch.float64)
        pairs = [(f(v), v) for f in UNARY[op][1:3] for v in [x.clone().requires_grad_()]]
        for y, v in pairs:
            y.backward(torch.ones_like(y))
        for label, ours, theirs in (("value", pairs[0][0], pairs[1][0]), ("derivative", pairs[0][1].grad,
                                                                          pairs[1][1].grad)):
            distance = ((ours - theirs) / theirs.abs().clamp(min=1)).abs().nan_to_num(0).max().item()
            verdicts.append(
                compare.Verdict(distance < 1e-13,
                                text=f"the reference's {label} differs from torch's own by {distance:.2g}"))
        return verdicts
    return Case(op, [Input(torch.zeros(1))], None, check=check, label="the reference is torch's function")


BROADCASTS = {
    "same": ((4, 5), (4, 5)),
    "row": ((4, 5), (5,)),
    "column": ((4, 5), (4, 1)),
    "rank 0": ((4, 5), ()),
    "outer": ((4, 1), (1, 5)),
    "middle": ((3, 1, 5), (3, 4, 5)),
    "leading": ((2, 3, 4, 5), (4, 5)),
    "both rank 0": ((), ()),
    "size 1": ((1,), (1, 1)),
    "wide row": ((33, 70), (70,)),
    "wide column": ((33, 70), (33, 1)),
}
EMPTY = [((0,), (1,)), ((3, 0), (3, 1)), ((0, 4), (4,)), ((2, 0), ())]


def second_operand(op, values):
    """Integers are not divided by zero: torch refuses it, tarn gives 0."""
    if op == "mod" and not values.is_floating_point():
        return torch.where(values == 0, torch.ones_like(values), values)
    return values


def within_range(op, values):
    """For sums of f16 gradients: every term must stay within 65504, or the sum of the terms is not what torch's f64
    has."""
    if values.dtype != torch.float16 or op not in ("div", "pow"):
        return values
    return torch.sign(values) * (0.5 + torch.remainder(values.abs(), 1.5))


def binary_case(op, reference, a, b, dtype, **more):
    """Gradients of broadcast operands are sums; those of the others are compared in ulps."""
    b.values = second_operand(op, b.values)
    broadcast = a.values.shape != b.values.shape
    if broadcast:
        a.values, b.values = within_range(op, a.values), within_range(op, b.values)
    bars = POW_BARS if op == "pow" else None
    return Case(op, [a, b], reference, dtype=dtype, bars=bars, gradient_kind="sum" if broadcast else None,
                sizes=by_terms(reference) if broadcast else None, **more)


def binary_cases(op, rng, generator, count):
    kind, reference = BINARY[op] if op in BINARY else ("any", COMPARE[op])
    dtypes = FLOATS + INTEGERS + ["bool"] if kind == "any" else dtypes_of(kind)
    for dtype in dtypes:
        def values(shape):
            return random_values(shape, dtype, generator, positive=op == "pow" and rng.random() < 0.5)

        def case(a, b, **more):
            return binary_case(op, reference, a, b, dtype, upstream_layout=rng.choice(LAYOUTS), **more)
        for name, shapes in BROADCASTS.items():
            for layout in LAYOUTS:
                for flip in (False, True):
                    first, second = shapes[::-1] if flip else shapes
                    yield case(Input(values(first), layout), Input(values(second), rng.choice(LAYOUTS)), label=name)
        for first, second in EMPTY:
            yield case(Input(values(first)), Input(values(second)), label="empty")
        if dtype != "bool":
            for layout in LAYOUTS:
                yield case(Input(values((4, 5)), layout), Input(second_operand(op, values(())), constant=True),
                           label="constant")
                yield case(Input(values(()), constant=True), Input(values((4, 5)), layout), label="constant")
        for _ in range(count):
            shape = random_shape(rng)
            other = tuple(1 if rng.random() < 0.3 else n for n in shape)[rng.randint(0, len(shape)):]
            yield case(Input(values(shape), rng.choice(LAYOUTS)), Input(values(other), rng.choice(LAYOUTS)),
                       label="random shape")
        if dtype in FLOATS:
            special = special_values(dtype)
            pairs = torch.cartesian_prod(special, special)
            yield case(Input(pairs[:, 0].contiguous()), Input(pairs[:, 1].contiguous()), label="special values")
            yield case(Input(values((5, 7))), Input(values((5, 7))), upstream="special", label="special upstream")
            bits = bit_patterns(dtype, generator)
            shuffled = bits[torch.randperm(bits.numel(), generator=generator)]
            yield case(Input(bits), Input(shuffled), label="bit patterns")
            yield case(Input(values((300, 401)), "permuted"), Input(values((300, 401)), "general"), label="large")
            # Only one of the two gradients is wanted: another kernel.
            for i in range(2):
                yield case(Input(values((9, 11)), smooth=i == 0), Input(values((9, 11)), smooth=i == 1),
                           label=f"gradient {i} only")
            same = values((6, 7))
            yield case(Input(same), Input(same.clone()), label="ties")
        if dtype in NARROW and op in BINARY:
            yield extreme_case(lambda a, b, **more: case(Input(a), Input(b), **more), special, special)
    yield from refusals(op, dtypes, 2)


GATES = {4: "silu", 2: "gelu", 3: "gelu_erf", 0: "relu"}  # by tarn_activation_kind
GATED_BARS = compare.ULPS | {"f32": compare.ULPS["f32"] + 1}  # one rounding more, of half an ulp before the product


def gated_cases(op, rng, generator, count):
    for kind in GATES:
        yield from swiglu_cases(op, rng, generator, count, {"activation": kind})


def swiglu_cases(op, rng, generator, count, attributes={}):
    name = GATES[attributes.get("activation", 4)]
    reference = lambda gate, up: UNARY[name][1](gate) * up

    def sizes(values, wanted, upstreams):  # the derivatives have a root
        return [None], [(values[1].double() * upstreams[0].double()).abs() if name != "relu" else None, None]

    def factors(values, wanted, upstreams):
        up, upstream = values[1].double().abs(), upstreams[0].double().abs()
        return [up], [up * upstream, upstream]
    for dtype in FLOATS:
        def case(shape, layouts, **more):
            inputs = [Input(random_values(shape, dtype, generator), layout) for layout in layouts]
            return Case(op, inputs, reference, attributes, dtype=dtype, sizes=sizes, factors=factors, bars=GATED_BARS,
                        upstream_layout=rng.choice(LAYOUTS), **more)
        for layout in LAYOUTS:
            for shape in [(3, 4, 5), (33, 20), (9,), (300, 401)]:
                yield case(shape, (layout, rng.choice(LAYOUTS)))
        for shape in SHAPES + [random_shape(rng) for _ in range(count)]:
            yield case(shape, (rng.choice(LAYOUTS), rng.choice(LAYOUTS)))
    yield from refusals(op, FLOATS, 2)


def where_cases(op, rng, generator, count):
    for dtype in support.DTYPES:
        def case(shapes, layouts, constants=(False, False), label=""):
            condition = Input(torch.randint(0, 2, shapes[0], generator=generator).to(torch.bool), layouts[0])
            pairs = zip(shapes[1:], layouts[1:], constants)
            a, b = (Input(random_values(() if k else s, dtype, generator), l, constant=k) for s, l, k in pairs)
            broadcast = not shapes[0] == shapes[1] == shapes[2]
            return Case(op, [condition, a, b], torch.where, dtype=dtype, label=label, kind="exact",
                        gradient_kind="sum" if broadcast else None, sizes=by_terms(torch.where) if broadcast else None)

        triples = [((4, 5), ) * 3, ((4, 1), (5, ), (4, 5)), ((), (4, 5), (4, 5)), ((4, 5), (), ()), ((), (), ()),
                   ((0, ), (0, ), (1, )), ((2, 1, 3), (4, 1), (1, 3)), ((1, ), (1, ), (1, )),
                   ((40, 70), (70, ), (40, 1))]
        for shapes in triples:
            for layout in LAYOUTS:
                yield case(shapes, (rng.choice(LAYOUTS), layout, rng.choice(LAYOUTS)))
        if dtype != "bool":
            yield case(((4, 5), (4, 5), ()), ("dense", "dense", "dense"), (False, True), "constant")
            yield case(((4, 5), (), (4, 5)), ("general", "dense", "general"), (True, False), "constant")
        for _ in range(count):
            shape = random_shape(rng)
            yield case((shape, shape, shape), [rng.choice(LAYOUTS) for _ in range(3)], label="random shape")


def cast_cases(op, rng, generator, count):
    for source in support.DTYPES:
        for target in support.DTYPES:
            def case(values, layout, label=""):
                reference = lambda x: _convert(x, source, target)
                kind = "exact" if source not in FLOATS or target not in FLOATS else "ulp"
                return Case(op, [Input(values, layout)], reference, {"dtype": support.DTYPES.index(target)},
                            f"from {source} {label}".strip(), kind=kind, dtype=target, bars={d: 0.5 for d in FLOATS},
                            gradient_kind="ulp", gradient_dtype="f64" if source == "f64" else "f32")
            for layout in LAYOUTS:
                yield case(random_values((3, 4, 5), source, generator), layout)
            for shape in ((), (0, 2), (1,), random_shape(rng), (70, 90)):
                yield case(random_values(shape, source, generator), rng.choice(LAYOUTS))
            if source in FLOATS and target in FLOATS + ["bool"]:
                yield case(special_values(source), "dense", "special values")
                yield case(bit_patterns(source, generator), "dense", "bit patterns")


def _convert(x, source, target):
    if source in FLOATS and target in FLOATS:
        return x * 1.0  # in f64 the exact value; tarn rounds it to the target once
    return x.to(support.TORCH[source]).to(support.TORCH[target])


OPS = {
    **{name: unary_cases for name in UNARY},
    **{name: binary_cases for name in (*BINARY, *COMPARE)}, "where": where_cases, "swiglu": swiglu_cases,
    "gated": gated_cases,
    "cast": cast_cases}
