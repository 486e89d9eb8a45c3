"""A case: one operation on given inputs, forward and every gradient, in tarn and in torch's f64. And the layout
classes."""
import dataclasses
import random
from typing import Callable, Optional

import torch

import compare
import support
import tarn

FLOATS = ["f32", "bf16", "f16", "f64"]
INTEGERS = ["i32", "i64", "u8"]
LAYOUTS = ["dense", "rows", "permuted", "general", "zero"]
JUNK = {"i32": 1 << 30, "i64": 1 << 60, "u8": 201,
        "bool": True}  # lies between the elements that a view picks; NaN for floats


@dataclasses.dataclass
class Input:
    values: Optional[torch.Tensor]  # in the operation's dtype; None for an operand that is left out
    layout: str = "dense"
    constant: bool = False          # a tarn_scalar()
    smooth: bool = True             # a gradient is wanted, where the dtype has one


@dataclasses.dataclass
class Case:
    op: str
    inputs: list
    reference: Callable             # torch tensors (floats in f64) -> a tensor or a tuple of them
    attributes: dict = dataclasses.field(default_factory=dict)
    label: str = ""
    kind: str = "ulp"               # how results are compared: ulp, sum or exact
    gradient_kind: Optional[str] = None
    outputs: int = 1
    upstream: str = "normal"        # or "special": with zeros, infinities and NaN
    given: Optional[torch.Tensor] = None  # the upstream gradient itself, in the dtype of the result
    upstream_layout: str = "dense"
    bars: Optional[dict] = None     # in ulps, where they are not compare.ULPS
    sizes: Optional[Callable] = None  # sizes of sums' terms, see by_squares() and by_terms()
    factors: Optional[Callable] = None  # like sizes: what a number that was rounded is multiplied with
    terms: int = 0                  # how many terms a sum has
    rounds_inside: bool = False     # on a GPU the terms of 16-bit sums are rounded to that dtype, for its tensor cores
    dtype: str = "f32"              # the dtype whose precision counts
    result_dtype: Optional[str] = None    # the same for results, where it is another
    gradient_dtype: Optional[str] = None  # the same for gradients, where it is another
    refused: bool = False           # tarn must refuse it as a wrong dtype
    check: Optional[
        Callable] = None  # compares in its own way: (inputs, outputs, upstreams, gradients) -> list of verdicts

    def title(self):
        shapes = " ".join(str(list(i.values.shape)) if i.values is not None else "none" for i in self.inputs)
        layouts = "/".join("constant" if i.constant else i.layout for i in self.inputs if i.values is not None)
        attributes = " ".join(f"{k}={v}" for k, v in self.attributes.items())
        return " ".join(x for x in (self.op, self.dtype, layouts, shapes, attributes, self.label) if x)


# ---- layouts ---------------------------------------------------------------------------------------------------------
# -----------------


def _junk(shape, dtype):
    return torch.full(shape, JUNK.get(support.NAME[dtype], float("nan")), dtype=dtype)


def _rows(values, rng):
    begin = [rng.randint(0, 2) for _ in values.shape]
    base = _junk([n + b + 2 for n, b in zip(values.shape, begin)], values.dtype)
    end = [b + n for b, n in zip(begin, values.shape)]
    base[tuple(slice(b, e) for b, e in zip(begin, end))] = values
    return support.tensor(base)[tuple(slice(b, e) for b, e in zip(begin, end))]


def _order(rank, rng):
    order = list(range(rank))
    while rank > 1 and order == sorted(order):
        rng.shuffle(order)
    return order


def _permuted(values, rng):
    order = _order(values.ndim, rng)
    inverse = [order.index(i) for i in range(values.ndim)]
    return support.tensor(values.permute(inverse)).permute(*order)


def _channels_last(values, rng):
    """Images [N, C, H, W] that lie in memory as [N, H, W, C]."""
    return support.tensor(values.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _general(values, rng):
    """Steps, reversed axes (negative strides) and another order of axes, all at once."""
    order = _order(values.ndim, rng)
    inverse = [order.index(i) for i in range(values.ndim)]
    inner = values.permute(inverse)
    flips = [i for i in range(values.ndim) if rng.random() < 0.5] or [rng.randrange(values.ndim)]
    steps = [rng.randint(1, 3) for _ in inner.shape]
    steps[-1] = max(steps[-1], 2)
    base = _junk([n * s for n, s in zip(inner.shape, steps)], values.dtype)
    base[tuple(slice(None, None, s) for s in steps)] = inner.flip(flips)
    strided = support.tensor(base)[tuple(slice(None, None, s) for s in steps)]
    return strided.flip(flips).permute(*order)


def _repeated(values, rng):
    """The values with some axes repeating their first element, and the shape before the repetition."""
    wide = [i for i, n in enumerate(values.shape) if n > 1]
    chosen = [i for i in wide if rng.random() < 0.5] or ([rng.choice(wide)] if wide else [])
    for axis in chosen:
        values = values.narrow(axis, 0, 1)
    return values


def _zero(values, shape):
    return support.tensor(values).expand(*shape)


def place(values, layout, rng):
    """A tarn tensor of that layout class, and the values it holds (a zero stride repeats some)."""
    if layout == "zero" and values.numel():
        few = _repeated(values, rng)
        return _zero(few, values.shape), few.expand(values.shape).contiguous()
    if values.ndim == 0 or layout in ("dense", "zero"):
        return support.tensor(values), values
    return {"rows": _rows, "permuted": _permuted, "general": _general,
            "channels last": _channels_last}[layout](values, rng), values


# ---- running ---------------------------------------------------------------------------------------------------------
# -----------------


def _wide(values):
    return values.to(torch.float64) if values is not None and values.is_floating_point() else values


def _as_tuple(results):
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _needs_gradient(case, entry):
    return entry.values is not None and entry.values.is_floating_point() and entry.smooth and not entry.constant


def upstream_for(values, dtype, kind, generator):
    made = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    if kind == "special" and made.numel():
        flat = made.flatten()
        special = torch.tensor([0.0, float("inf"), -float("inf"), float("nan"), 1e30, 1e-30], dtype=torch.float64)
        flat[::3] = special[torch.arange(flat[::3].numel()) % 6]
        made = flat.reshape(values.shape)
    return made.to(support.TORCH[dtype])


def in_torch(function, inputs, wanted, upstreams):
    """Outputs and gradients of a function in f64. Upstreams are called with the outputs' templates."""
    wide = [_wide(v).detach().clone().requires_grad_(w) if w else _wide(v) for v, w in zip(inputs, wanted)]
    outputs = _as_tuple(function(*wide))
    given = upstreams(outputs) if callable(upstreams) else upstreams
    pairs = [(y, _wide(g)) for y, g in zip(outputs, given) if g is not None and y.requires_grad]
    if pairs:
        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
    gradients = [
        v.grad if w and v.grad is not None else torch.zeros_like(v) if w else None for v, w in zip(wide, wanted)]
    return [y.detach() for y in outputs], given, gradients


def run(case, seed, differentiable):
    """Runs a case; returns a list of verdicts."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    inputs, values = [], []
    for entry in case.inputs:
        if entry.values is None:
            x, seen = None, None
        elif entry.constant:
            x, seen = support.made("scalar", float(entry.values)), entry.values
        else:
            x, seen = place(entry.values, entry.layout, rng)
        inputs.append(x)
        values.append(seen)
    if case.refused:
        return [_refusal(case, inputs)]
    wanted = [differentiable and _needs_gradient(case, e) for e in case.inputs]
    for x, want in zip(inputs, wanted):
        if want:
            x.requires_grad_()
    made = support.apply(case.op, inputs, case.attributes, case.outputs)
    got = [None if y is None else support.read(y) for y in made]
    draw = lambda outputs: [
        case.given if case.given is not None else upstream_for(y, support.NAME[g.dtype], case.upstream, generator)
        if g.is_floating_point() else None for y, g in zip(outputs, got)]
    if case.check:
        upstreams = draw(got)
    else:
        expected, upstreams, expected_gradients = in_torch(case.reference, values, wanted, draw)
    gradients = _gradients(case, made, inputs, wanted, upstreams, rng)
    if case.check:
        return case.check(values, got, upstreams, gradients)
    unknown = [None] * len(upstreams), [None] * len(values)
    sizes = case.sizes(values, wanted, upstreams) if case.sizes else unknown
    factors = case.factors(values, wanted, upstreams) if case.factors else unknown
    verdicts = [_judge(case, case.kind, g, e, s, f, f"output {i}" if len(expected) > 1 else "result")
                for i, (g, e, s, f) in enumerate(zip(got, expected, sizes[0], factors[0]))]
    if len(expected) != len([g for g in got if g is not None]):
        verdicts.append(
            compare.Verdict(False,
                            text=f"tarn makes {len([g for g in got if g is not None])} results, torch {len(expected)}"))
    kind = case.gradient_kind or case.kind
    for i, (g, e, s, f) in enumerate(zip(gradients, expected_gradients, sizes[1], factors[1])):
        if e is not None:
            verdicts.append(
                _judge(case, kind, torch.zeros_like(e) if g is None else g, e, s, f, f"gradient of input {i}"))
    return verdicts


def _refusal(case, inputs):
    try:
        support.apply(case.op, inputs, case.attributes, case.outputs)
    except tarn.Error as error:
        good = error.code == "dtype"
        return compare.Verdict(good, text="" if good else f"refused as {error.code}, not as dtype: {error}")
    return compare.Verdict(False, text="tarn takes a dtype that the table does not list: add it there")


def _gradients(case, made, inputs, wanted, upstreams, rng):
    if not any(wanted):
        return [None] * len(inputs)
    walked = [(y, g) for y, g in zip(made, upstreams) if y is not None and g is not None]
    for i, (y, g) in enumerate(walked):
        # zero strides would change the values torch has had
        layout = case.upstream_layout if case.upstream_layout != "zero" else "dense"
        y.backward(place(g, layout, rng)[0], retain_graph=i + 1 < len(walked))
    return [support.gradient(x) if w else None for x, w in zip(inputs, wanted)]


# ---- how large the terms of a sum are: the root of the sum of their squares, for outputs and gradients; None where it
# is not known -----


def by_squares(reference):
    """For sums of products (the reference is linear in each input): the same of squares sums the squared terms."""
    def sizes(values, wanted, upstreams):
        square = lambda v: _wide(v) ** 2 if v is not None and v.is_floating_point() else v
        results, _, gradients = in_torch(reference, [square(v) for v in values], wanted, [square(g) for g in upstreams])
        root = lambda v: v.sqrt() if v is not None and v.is_floating_point() else None
        return [root(v) for v in results], [root(v) for v in gradients]
    return sizes


def by_upstream(values, wanted, upstreams):
    """For element-wise derivatives that have a root: there they are differences of terms about as large as the upstream
    gradient."""
    return [None], [_wide(upstreams[0]).abs()]


def by_terms(reference):
    """For broadcast operands of an element-wise operation: their gradients are sums of the gradients of the expanded
    ones."""
    def sizes(values, wanted, upstreams):
        shape = torch.broadcast_shapes(*(v.shape for v in values))
        _, _, gradients = in_torch(reference, [v.expand(shape) for v in values], wanted, upstreams)
        return [None] * len(upstreams), [
            (g * g).sum_to_size(v.shape).sqrt() if g is not None else None for g, v in zip(gradients, values)]
    return sizes


def _judge(case, kind, got, expected, size, factor, label):
    is_gradient = label.startswith("gradient")
    dtype = (case.gradient_dtype if is_gradient else case.result_dtype) or case.dtype
    if got is None:
        return compare.Verdict(False, text=f"{label}: tarn makes none")
    if not expected.is_floating_point() or kind == "exact":
        if expected.is_floating_point():
            expected = expected.to(support.TORCH[dtype])
        return compare.exact(got, expected, label)
    if not is_gradient and got.dtype != support.TORCH[dtype]:
        return compare.Verdict(False, text=f"{label}: tarn's dtype is {support.NAME[got.dtype]}, expected {dtype}")
    if kind == "sum":
        rounded = is_gradient or (case.rounds_inside and support.device().type != "cpu")
        return compare.summed(got, expected, dtype, size, case.terms, label, rounded_terms=rounded)
    return compare.elementwise(got, expected, dtype, label, case.bars or compare.ULPS, size, factor)
