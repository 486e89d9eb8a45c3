"""Batchnorm, alone and with relu, and groupnorm in torch's f64, and their cases."""
import math

import torch
import torch.nn.functional as F

from case import Case, FLOATS, Input, LAYOUTS
from ops_elementwise import cast, random_values

SHAPES = [(6, 4, 5, 5), (3, 2, 50), (40, 6), (2, 12, 7, 9), (5, 3, 2, 3, 4), (33, 4, 1, 1), (9, 64, 3, 3),
          (2, 4, 70, 40)]
GROUPS = {4: 2, 2: 1, 6: 3, 12: 4, 3: 3, 64: 8}


def vector(channels, dtype, generator, rng):
    """Of x's dtype, or f32 beside 16-bit x."""
    chosen = "f32" if dtype in ("bf16", "f16") and rng.random() < 0.5 else dtype
    return random_values((channels,), chosen, generator)


def measured(x, groups):
    """Mean and variance of each set of elements, in x's shape."""
    if groups is None:
        axes = [0] + list(range(2, x.ndim))
        return x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)
    y = x.reshape(x.shape[0], groups, -1)
    spread = lambda t: t.expand(y.shape).reshape(x.shape)
    return spread(y.mean(-1, keepdim=True)), spread(y.var(-1, correction=0, keepdim=True))


def shifted(x, groups):
    """x less its first element in each set, which changes nothing but the rounding of torch's means: equal elements
    then give exactly 0."""
    if x.numel() == 0:
        return x
    if groups is None:
        return x - x.detach()[(slice(0, 1), slice(None)) + (slice(0, 1),) * (x.ndim - 2)]
    y = x.reshape(x.shape[0], groups, -1)
    return (y - y.detach()[:, :, :1]).reshape(x.shape)


def mean_of(t, groups):
    if groups is None:
        return t.mean([0] + list(range(2, t.ndim)), keepdim=True)
    y = t.reshape(t.shape[0], groups, -1)
    return y.mean(-1, keepdim=True).expand(y.shape).reshape(t.shape)


def sizes_of(groups, epsilon, training):
    """y = n w + b with n = (x - mean) r; gx = r (wg - mean of wg - n (mean of wg n)); gw and gb sum over all but the
    channel."""
    def sizes(values, wanted, upstreams):
        x, w, b, *running = (v.to(torch.float64) if v is not None else None for v in values)
        g = upstreams[0].to(torch.float64)
        if x.numel() == 0:
            return [None], [None] * len(values)
        wide = lambda v: v.reshape([1, -1] + [1] * (x.ndim - 2))
        w = torch.ones(x.shape[1], dtype=torch.float64) if w is None else w
        b = torch.zeros(x.shape[1], dtype=torch.float64) if b is None else b
        mean, variance = measured(x, groups) if training else (wide(running[0]), wide(running[1]))
        r = torch.rsqrt(variance + epsilon)
        count = x.numel() // (x.shape[1] if groups is None else x.shape[0] * groups)
        n, wg, others = (x - mean) * r, wide(w) * g, [0] + list(range(2, x.ndim))
        results = [((n * wide(w)) ** 2 + wide(b) ** 2).sqrt()]
        term = lambda t: mean_of(t * t, groups) / count
        gx = r * (wg * wg + term(wg) + n * n * term(wg * n)).sqrt() if training else (r * wg).abs()
        total = lambda t: (t * t).sum(others).sqrt()
        return results, [gx, total(g * n), total(g), None, None][:len(values)]
    return sizes


def batchnorm_cases(op, rng, generator, count):
    for dtype in FLOATS:
        def case(shape, given, training, layout=None, values=None, **more):
            epsilon = rng.choice([1e-5, 1e-3, 1e-2])
            channels = shape[1]
            inputs = [
                Input(
                    random_values(shape, dtype, generator) if values is None else values, layout or
                    rng.choice(LAYOUTS))]
            inputs += [
                Input(vector(channels, dtype, generator, rng), rng.choice(LAYOUTS)) if g else Input(None)
                for g in given]
            if not training:
                inputs += [
                    Input(vector(channels, dtype, generator, rng), rng.choice(LAYOUTS), smooth=False),
                    Input(vector(channels, dtype, generator, rng).abs() + 0.5, rng.choice(LAYOUTS), smooth=False)]
            def reference(x, weight=None, bias=None, mean=None, variance=None):
                return F.batch_norm(
                    shifted(x, None) if training else x, mean, variance, weight, bias, training, 0.1, epsilon)
            return Case(op, inputs, reference, {"training": int(training), "epsilon": epsilon}, kind="sum", dtype=dtype,
                        sizes=sizes_of(None, epsilon, training), upstream_layout=rng.choice(LAYOUTS), **more)
        drawn = [tuple(rng.randint(2, 12) for _ in range(rng.randint(3, 4))) for _ in range(count)]
        for shape in SHAPES + drawn:
            for layout in LAYOUTS:
                yield case(shape, (rng.random() < 0.5, rng.random() < 0.5), rng.random() < 0.7, layout)
        for given in ((False, False), (True, False), (False, True), (True, True)):
            for training in (True, False):
                yield case((5, 7, 9), given, training, label="operands")
        yield case((0, 4, 3), (True, True), False, "dense", label="empty")
        values = random_values((5, 3, 8), dtype, generator)
        values[2, 1, 3], values[3, 2, 1] = math.nan, math.inf
        yield case((5, 3, 8), (True, True), True, "dense", values, label="NaN and infinity")
        for layout in ("dense", "permuted"):
            yield case((9, 4, 30), (True, True), True, layout,
                       cast(random_values((9, 4, 30), "f64", generator) + 100, dtype), label="far from zero")


def relu_sizes_of(epsilon, training, residual):
    """Those of batchnorm, with what is added among the terms and the gradient that relu lets through, which is the
    residual's own."""
    def sizes(values, wanted, upstreams):
        inner = values[:-1] if residual else values
        plain = sizes_of(None, epsilon, training)
        y = relu_reference(epsilon, training,
                           residual)(*(v.to(torch.float64) if v is not None else None for v in values))
        g = torch.where(y <= 0, 0.0, upstreams[0].to(torch.float64))
        results, gradients = plain(inner + [None] * (3 - len(inner)), wanted, [g])
        gradients = gradients[:len(inner)]
        if residual and results[0] is not None:
            results = [(results[0] ** 2 + values[-1].to(torch.float64) ** 2).sqrt()]
        return results, gradients + ([g.abs()] if residual else [])
    return sizes


def relu_reference(epsilon, training, residual, relu=F.relu):
    def reference(x, *more):
        more = list(more)
        past = more.pop() if residual else 0
        weight, bias, mean, variance = more + [None] * (4 - len(more))
        return relu(
            F.batch_norm(shifted(x, None) if training else x, mean, variance, weight, bias, training, 0.1, epsilon) +
            past)
    return reference


def upstream(inputs, epsilon, training, residual, dtype, generator):
    """A gradient that is 0 where relu's argument is so near 0 that its sign is a matter of rounding."""
    values = [i.values.to(torch.float64) if i.values is not None else None for i in inputs]
    argument = relu_reference(epsilon, training, residual, lambda t: t)(*values)
    g = torch.randn(argument.shape, generator=generator, dtype=torch.float64)
    return cast(torch.where(argument.abs() < 1e-3, 0.0, g), dtype)


def batchnorm_relu_cases(op, rng, generator, count):
    layouts = [layout for layout in LAYOUTS
               if layout != "zero"]  # which would change the values that the gradient is made for
    for dtype in FLOATS:
        def case(shape, given, training, residual, layout=None, values=None, **more):
            epsilon = rng.choice([1e-5, 1e-3, 1e-2])
            pick = lambda: rng.choice(layouts)
            inputs = [Input(random_values(shape, dtype, generator) if values is None else values, layout or pick())]
            inputs += [Input(vector(shape[1], dtype, generator, rng), pick()) if g else Input(None) for g in given]
            if not training:
                inputs += [Input(vector(shape[1], dtype, generator, rng), pick(), smooth=False),
                           Input(vector(shape[1], dtype, generator, rng).abs() + 0.5, pick(), smooth=False)]
            inputs += [Input(random_values(shape, dtype, generator), pick())] if residual else []
            plain = relu_reference(epsilon, training, residual)
            return Case(op, inputs, plain, {"training": int(training), "epsilon": epsilon, "residual": int(residual)},
                        kind="sum", dtype=dtype, given=upstream(inputs, epsilon, training, residual, dtype, generator),
                        sizes=relu_sizes_of(epsilon, training, residual), upstream_layout=pick(), **more)
        drawn = [tuple(rng.randint(2, 12) for _ in range(rng.randint(3, 4))) for _ in range(count)]
        for shape in SHAPES + drawn:
            for layout in layouts:
                yield case(shape, (rng.random() < 0.5, rng.random() < 0.5),
                           rng.random() < 0.7,
                           rng.random() < 0.5, layout)
        for given in ((False, False), (True, False), (False, True), (True, True)):
            for training in (True, False):
                for residual in (True, False):
                    yield case((5, 7, 9), given, training, residual, label="operands")
        yield case((0, 4, 3), (True, True), False, True, "dense", label="empty")
        values = random_values((5, 3, 8), dtype, generator)
        values[2, 1, 3], values[3, 2, 1] = math.nan, math.inf
        yield case((5, 3, 8), (True, True), True, True, "dense", values, label="NaN and infinity")
        for layout in ("dense", "permuted"):
            yield case((9, 4, 30), (True, True), True, True, layout,
                       cast(random_values((9, 4, 30), "f64", generator) + 100, dtype), label="far from zero")


def groupnorm_cases(op, rng, generator, count):
    for dtype in FLOATS:
        def case(shape, groups, given, layout=None, values=None, **more):
            epsilon = rng.choice([1e-5, 1e-3, 1e-2])
            inputs = [
                Input(
                    random_values(shape, dtype, generator) if values is None else values, layout or
                    rng.choice(LAYOUTS))]
            inputs += [
                Input(vector(shape[1], dtype, generator, rng), rng.choice(LAYOUTS)) if g else Input(None)
                for g in given]
            def reference(x, weight=None, bias=None):
                if weight is None and bias is not None:  # whose gradient torch 2.11 cannot make without a weight
                    weight = torch.ones_like(bias)
                return F.group_norm(shifted(x, groups), groups, weight, bias, epsilon)
            return Case(op, inputs, reference, {"groups": groups, "epsilon": epsilon}, kind="sum", dtype=dtype,
                        sizes=sizes_of(groups, epsilon, True), upstream_layout=rng.choice(LAYOUTS), **more)

        drawn = [
            (rng.randint(1, 9), rng.choice([4, 6, 12]), rng.randint(2, 12), rng.randint(1, 12)) for _ in range(count)]
        for shape in SHAPES + drawn:
            if math.prod(shape[2:]) * shape[1] // GROUPS[shape[1]] < 6:
                continue  # what is left of so few elements is mostly rounding of the input
            for layout in LAYOUTS:
                yield case(shape, GROUPS[shape[1]], (rng.random() < 0.5, rng.random() < 0.5), layout)
        for given in ((False, False), (True, False), (False, True), (True, True)):
            for groups in (1, 2, 6):
                yield case((5, 6, 9), groups, given, label="operands")
        yield case((0, 4, 3), 2, (True, True), "dense", label="empty")
        values = random_values((5, 4, 8), dtype, generator)
        values[2, 1, 3], values[3, 2, 1] = math.nan, math.inf
        yield case((5, 4, 8), 2, (True, True), "dense", values, label="NaN and infinity")
        for layout in ("dense", "permuted"):
            yield case((9, 4, 30), 2, (True, True), layout,
                       cast(random_values((9, 4, 30), "f64", generator) + 100, dtype), label="far from zero")


OPS = {"batchnorm": batchnorm_cases, "batchnorm_relu": batchnorm_relu_cases, "groupnorm": groupnorm_cases}
