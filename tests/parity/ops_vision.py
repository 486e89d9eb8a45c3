"""Operations on images in torch's f64, and their cases."""
import math

import torch
import torch.nn.functional as F

from case import Case, FLOATS, Input, LAYOUTS, by_squares, in_torch
from ops_elementwise import random_values, refusals

LAYOUTS_OF_IMAGES = LAYOUTS + ["channels last"]

# ---- convolution
# ----------------------------------------------------------------------------------------------------------------------

# x, weight, and options: kernels of every kind, strides and dilations that leave columns over, groups, images smaller
# than a vector and larger
CONVOLUTIONS = [
    ((2, 3, 7, 6), (4, 3, 3, 3), {}),
    ((2, 3, 7, 6), (4, 3, 3, 3), {"padding": (1, 1)}),
    ((2, 1, 9, 9), (32, 1, 3, 3), {}),
    ((1, 16, 8, 8), (16, 16, 3, 3), {"padding": (1, 1)}),
    ((2, 16, 9, 8), (32, 16, 3, 3), {"padding": (1, 1), "stride": (2, 2)}),
    ((2, 16, 9, 8), (33, 16, 1, 1), {"stride": (2, 2)}),
    ((3, 8, 5, 5), (10, 8, 1, 1), {}),
    ((2, 5, 11, 4), (3, 5, 5, 1), {"padding": (2, 0)}),
    ((2, 4, 12, 13), (6, 4, 2, 3), {"dilation": (3, 2), "padding": (1, 2)}),
    ((2, 4, 12, 13), (6, 4, 3, 3), {"dilation": (2, 3), "stride": (2, 2), "padding": (3, 3)}),
    ((2, 6, 8, 8), (9, 2, 3, 3), {"groups": 3, "padding": (1, 1)}),
    ((2, 8, 10, 9), (8, 1, 3, 3), {"groups": 8, "padding": (1, 1)}),
    ((2, 8, 10, 9), (16, 1, 3, 3), {"groups": 8, "stride": (2, 2)}),
    ((2, 40, 6, 6), (40, 1, 3, 3), {"groups": 40, "padding": (1, 1)}),
    ((2, 3, 16, 16), (12, 3, 4, 4), {"stride": (4, 4)}),
    ((2, 3, 16, 15), (5, 3, 2, 2), {"stride": (3, 5)}),
    ((2, 3, 3, 2), (2, 3, 3, 2), {}),
    ((2, 3, 2, 3), (2, 3, 2, 2), {"padding": (5, 4), "stride": (3, 2)}),
    ((2, 2, 1, 1), (2, 2, 1, 1), {"padding": (1, 1)}),
    ((0, 3, 7, 6), (4, 3, 3, 3), {"padding": (1, 1)}),
    ((2, 17, 30, 31), (49, 17, 3, 3), {"padding": (1, 1)}),
    ((1, 70, 20, 60), (65, 70, 3, 3), {"padding": (1, 1), "stride": (1, 2)}),
]


def convolution(options):
    return lambda x, w, bias=None: F.conv2d(x, w, bias, **options)


def random_convolution(rng):
    """Shapes and options that fit each other."""
    while True:
        groups = rng.choice([1, 1, 1, 2, 4])
        channels, outputs = groups * rng.randint(1, 6), groups * rng.randint(1, 12)
        kernel, dilation = [rng.randint(1, 4) for _ in range(2)], [rng.randint(1, 3) for _ in range(2)]
        padding, stride = [rng.randint(0, 3) for _ in range(2)], [rng.randint(1, 4) for _ in range(2)]
        size = [rng.randint(1, 20) for _ in range(2)]
        if all(n + 2 * p > d * (k - 1) for n, p, d, k in zip(size, padding, dilation, kernel)):
            options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
            return (rng.randint(1, 4), channels, *size), (outputs, channels // groups, *kernel), options


def conv2d_cases(op, rng, generator, count):
    for dtype in FLOATS:
        def case(x, w, options, layout, bias, **more):
            reference = convolution(options)
            inputs = [
                Input(random_values(x, dtype, generator), layout),
                Input(random_values(w, dtype, generator), rng.choice(LAYOUTS))]
            if bias:
                inputs.append(Input(random_values(w[:1], dtype, generator), rng.choice(LAYOUTS)))
            return Case(op, inputs, reference, options, kind="sum", dtype=dtype, sizes=by_squares(reference),
                        upstream_layout=rng.choice(["dense", "channels last", "general"]), **more)
        for x, w, options in CONVOLUTIONS:
            for layout in LAYOUTS_OF_IMAGES:
                yield case(x, w, options, layout, rng.random() < 0.5)
        for _ in range(4 * count):
            yield case(*random_convolution(rng), rng.choice(LAYOUTS_OF_IMAGES),
                       rng.random() < 0.5, label="random shape")
        for wanted in range(3):
            one = case((2, 3, 7, 6), (4, 3, 3, 3), {"padding": (1, 1)}, "dense", True, label=f"gradient {wanted} only")
            for i in range(3):
                one.inputs[i].smooth = i == wanted
            yield one


# x, weight, and options
TRANSPOSED = [
    ((2, 3, 7, 6), (3, 4, 3, 3), {}),
    ((2, 3, 7, 6), (3, 4, 2, 2), {"stride": (2, 2)}),
    ((2, 5, 4, 5), (5, 4, 4, 4), {"stride": (2, 2), "padding": (1, 1)}),
    ((2, 16, 5, 4), (16, 8, 3, 3), {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1)}),
    ((1, 4, 6, 5), (4, 6, 3, 2), {"stride": (3, 2), "output_padding": (2, 0), "dilation": (2, 3), "padding": (3, 1)}),
    ((2, 6, 5, 5), (6, 2, 3, 3), {"groups": 3, "padding": (1, 1)}),
    ((2, 8, 5, 6), (8, 1, 4, 4), {"groups": 8, "stride": (2, 2), "padding": (1, 1)}),
    ((2, 2, 1, 1), (2, 3, 4, 4), {}),
    ((0, 3, 4, 4), (3, 2, 2, 2), {"stride": (2, 2)}),
    ((1, 33, 9, 17), (33, 20, 4, 4), {"stride": (2, 2), "padding": (1, 1)}),
]
SEQUENCES = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((2, 3, 9), (4, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 6, 20), (8, 3, 4), {"groups": 2, "dilation": 3, "padding": 4}),
    ((3, 8, 17), (8, 1, 5), {"groups": 8, "padding": 2}),
    ((1, 40, 300), (33, 40, 3), {"padding": 1}),
    ((0, 3, 9), (4, 3, 3), {}),
]


def random_transposed(rng):
    """Shapes and options that fit each other."""
    while True:
        groups = rng.choice([1, 1, 2, 3])
        kernel, dilation = [rng.randint(1, 4) for _ in range(2)], [rng.randint(1, 3) for _ in range(2)]
        padding, stride = [rng.randint(0, 3) for _ in range(2)], [rng.randint(1, 4) for _ in range(2)]
        more, size = [rng.randint(0, s - 1) for s in stride], [rng.randint(1, 9) for _ in range(2)]
        if all((n - 1) * s - 2 * p + d * (k - 1) + m >= 0
               for n, s, p, d, k, m in zip(size, stride, padding, dilation, kernel, more)):
            channels = groups * rng.randint(1, 6)
            return ((rng.randint(1, 3), channels, *size), (channels, rng.randint(1, 6), *kernel), {
                "stride": stride, "padding": padding, "dilation": dilation, "output_padding": more, "groups": groups})


def random_sequence(rng):
    while True:
        groups, kernel, dilation = rng.choice([1, 1, 2, 4]), rng.randint(1, 5), rng.randint(1, 3)
        padding, length = rng.randint(0, 4), rng.randint(1, 40)
        if length + 2 * padding > dilation * (kernel - 1):
            channels = groups * rng.randint(1, 6)
            return ((rng.randint(1, 3), channels, length), (groups * rng.randint(1, 6), channels // groups, kernel), {
                "stride": rng.randint(1, 4), "padding": padding, "dilation": dilation, "groups": groups})


def more_convolution_cases(op, rng, generator, count):
    """conv_transpose2d and conv1d."""
    is_transposed = op == "conv_transpose2d"
    shapes, draw = (TRANSPOSED, random_transposed) if is_transposed else (SEQUENCES, random_sequence)
    layouts = LAYOUTS_OF_IMAGES if is_transposed else LAYOUTS
    for dtype in FLOATS:
        def case(x, w, options, layout, **more):
            reference = lambda x, w, bias=None: getattr(F, op)(x, w, bias, **options)
            inputs = [Input(random_values(x, dtype, generator), layout),
                      Input(random_values(w, dtype, generator), rng.choice(LAYOUTS))]
            if rng.random() < 0.5:
                outputs = w[1] * options.get("groups", 1) if is_transposed else w[0]
                inputs.append(Input(random_values((outputs, ), dtype, generator), rng.choice(LAYOUTS)))
            return Case(op, inputs, reference, options, kind="sum", dtype=dtype, sizes=by_squares(reference), **more)
        for x, w, options in shapes:
            for layout in layouts:
                yield case(x, w, options, layout)
        for _ in range(2 * count):
            yield case(*draw(rng), rng.choice(layouts), label="random shape")


# ---- pooling ---------------------------------------------------------------------------------------------------------
# -----------------

IMAGES = [(2, 3, 8, 8), (1, 1, 1, 1), (2, 5, 7, 9), (0, 3, 6, 6), (3, 40, 12, 11), (1, 2, 5, 300), (2, 70, 4, 4)]
POOLS = [
    {"kernel": (2, 2)},
    {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)},
    {"kernel": (3, 2), "stride": (1, 1)},
    {"kernel": (2, 3), "stride": (3, 1), "padding": (1, 1)},
    {"kernel": (3, 3), "stride": (2, 2), "ceil_mode": True},
    {"kernel": (3, 3), "stride": (2, 3), "padding": (1, 0), "ceil_mode": True},
    {"kernel": (1, 1), "stride": (2, 2)},
]


def fits(shape, options):
    for axis in range(2):
        kernel, padding = options["kernel"][axis], options.get("padding", (0, 0))[axis]
        window = options.get("dilation", (1, 1))[axis] * (kernel - 1) + 1
        if shape[2 + axis] + 2 * padding < window or padding > kernel // 2:
            return False
        if padding and shape[2 + axis] < options.get("dilation", (1, 1))[axis]:
            return False  # a window may lie outside the image altogether
    return True


def in_words_of_torch(op, options):
    words = {("kernel_size" if k == "kernel" else k): v for k, v in options.items() if k != "exclude_padding"}
    if op == "max_pool2d":
        return lambda x: F.max_pool2d(x, **words)
    return lambda x: F.avg_pool2d(x, count_include_pad=not options.get("exclude_padding", False), **words)


def pool_sizes(op, reference, options):
    """What a sum of terms of random signs would be: gradients of maxima are sums of upstream gradients, averages are
    sums of shares."""
    area = options["kernel"][0] * options["kernel"][1] if op == "avg_pool2d" else 1

    def sizes(values, wanted, upstreams):
        x, g = values[0].to(torch.float64), upstreams[0].to(torch.float64) ** 2
        _, _, gradients = in_torch(reference, [x], wanted, [g])
        results = [(reference(x * x) / area).sqrt()] if op == "avg_pool2d" else [None]
        return results, [None if v is None else (v / area).sqrt() for v in gradients]
    return sizes


def random_pool(op, rng):
    while True:
        options = {"kernel": [rng.randint(1, 4) for _ in range(2)], "stride": [rng.randint(1, 4) for _ in range(2)],
                   "padding": [rng.randint(0, 2) for _ in range(2)], "ceil_mode": rng.random() < 0.5}
        if op == "max_pool2d":
            options["dilation"] = [rng.randint(1, 3) for _ in range(2)]
        else:
            options["exclude_padding"] = rng.random() < 0.5
        shape = tuple(rng.randint(1, 6) for _ in range(2)) + tuple(rng.randint(1, 20) for _ in range(2))
        if fits(shape, options):
            return shape, options


def pool_cases(op, rng, generator, count):
    for dtype in FLOATS:
        def case(values, options, layout, **more):
            reference = in_words_of_torch(op, options)
            return Case(op, [Input(values, layout)], reference, options, kind="exact" if op == "max_pool2d" else "sum",
                        gradient_kind="sum", dtype=dtype, sizes=pool_sizes(op, reference, options),
                        upstream_layout=rng.choice(["dense", "channels last", "general"]), **more)

        listed = POOLS + ([{"kernel": (2, 2), "stride": (1, 1), "dilation": (2, 3)}, {
            "kernel": (15, 17), "stride": (4, 3), "padding": (7, 8)}, {
                "kernel": (16, 16), "stride": (5, 4), "padding": (8, 8)}] if op == "max_pool2d" else [{
                    "kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "exclude_padding": True, "ceil_mode": True}])
        for shape in IMAGES:
            for options in listed:
                for layout in LAYOUTS_OF_IMAGES:
                    if fits(shape, options):
                        yield case(random_values(shape, dtype, generator), options, layout)
        for _ in range(4 * count):
            shape, options = random_pool(op, rng)
            yield case(random_values(shape, dtype, generator), options, rng.choice(LAYOUTS_OF_IMAGES),
                       label="random shape")
        for layout in ("dense", "channels last"):
            for numbers in ((math.nan,), (math.inf, -math.inf), (-math.inf,), (math.nan, math.inf)):
                values = random_values((2, 3, 9, 8), dtype, generator)
                flat = values.reshape(-1)
                for i, number in enumerate(numbers):
                    flat[torch.randperm(flat.numel(), generator=generator)[:40]] = number
                values[0, 0] = numbers[0]
                yield case(flat.reshape(values.shape), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}, layout,
                           label=f"with {numbers}")
            ties = torch.randint(-1, 2, (2, 3, 9, 8), generator=generator).to(values.dtype)
            yield case(ties, {"kernel": (3, 3), "stride": (1, 1)}, layout, label="ties")
    yield from refusals(op, FLOATS, attributes={"kernel": (1, 1)})


def global_cases(op, rng, generator, count):
    reference = lambda x: F.adaptive_avg_pool2d(x, 1)
    for dtype in FLOATS:
        for shape in IMAGES + [tuple(rng.randint(1, 12) for _ in range(4)) for _ in range(count)]:
            for layout in LAYOUTS_OF_IMAGES:
                sizes = pool_sizes("avg_pool2d", reference, {"kernel": shape[2:]})
                yield Case(op, [Input(random_values(shape, dtype, generator), layout)], reference, kind="sum",
                           dtype=dtype, sizes=sizes)


# ---- upsampling
# ----------------------------------------------------------------------------------------------------------------------


def upsample_options(rng):
    """tarn's attributes and torch's arguments."""
    if rng.random() < 0.5:
        size = [rng.randint(1, 25), rng.randint(1, 25)]
        ours, theirs = {"size": size}, {"size": size}
    else:
        scale = [rng.choice([1.0, 2.0, 3.0, 4.0, rng.uniform(1, 3)]) for _ in range(2)]
        ours, theirs = {"scale_rows": scale[0], "scale_columns": scale[1]}, {"scale_factor": scale}
    mode = rng.randint(0, 1)
    corners = mode == 1 and rng.random() < 0.5
    return {**ours, "mode": mode, "align_corners": corners}, {
        **theirs, "mode": ("nearest", "bilinear")[mode], **({"align_corners": corners} if mode else {})}


def upsample_cases(op, rng, generator, count):
    for dtype in FLOATS:
        for _ in range(20 + 2 * count):
            shape = (rng.randint(1, 3), *(rng.randint(1, 12) for _ in range(3)))
            options, arguments = upsample_options(rng)
            reference = lambda x, arguments=arguments: F.interpolate(x, **arguments)
            yield Case(op, [Input(random_values(shape, dtype, generator), rng.choice(LAYOUTS_OF_IMAGES))], reference,
                       options, kind="sum", dtype=dtype, sizes=by_squares(reference))


OPS = {"conv2d": conv2d_cases, "conv_transpose2d": more_convolution_cases, "conv1d": more_convolution_cases,
       "max_pool2d": pool_cases, "avg_pool2d": pool_cases, "global_avg_pool2d": global_cases,
       "upsample": upsample_cases}
