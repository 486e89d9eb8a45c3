"""Attention, rotary positions and the fused rows of language models in torch's f64, and their cases."""
import math

import torch
import torch.nn.functional as F

from case import Case, FLOATS, Input, LAYOUTS
from ops_elementwise import cast, random_values, refusals
from ops_index import indices, long
from ops_products import REDUCTIONS, norm_sizes

# ---- attention -------------------------------------------------------------------------------------------------------
# -----------------


def allowed(batches, rows, keys, causal, lengths, starts=None, window=0):
    """(B, 1, T, S): which keys each row attends to. Rows stand at the end of the keys that are there, and look no
    further back than their start and their window."""
    valid = torch.full((batches,), keys) if lengths is None else long(lengths).reshape(-1).expand(batches)
    key, row = torch.arange(keys), torch.arange(rows)
    mask = (key < valid[:, None]).unsqueeze(1).expand(batches, rows, keys)
    if causal:
        mask = mask & (key[None, None, :] <= (valid[:, None] - rows + row)[:, :, None])
    if window:
        mask = mask & (key[None, None, :] > (valid[:, None] - rows + row - window)[:, :, None])
    if starts is not None:
        mask = mask & (key[None, None, :] >= long(starts)[:, :, None])
    return mask.unsqueeze(1)


def by_hand(q, k, v, mask, scale, softcap=0):
    """With soft caps, and rows of 0 where there is nothing to attend to."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    some = mask.any(-1, keepdim=True) & ~(scores.masked_fill(~mask, -math.inf) == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~mask & some, -math.inf), -1)
    weights = torch.where(some, weights, 0)
    return weights @ v, weights


def attention(q, k, v, lengths, causal, scale, starts=None, window=0, softcap=0):
    mask = allowed(q.shape[0], q.shape[2], k.shape[2], causal, lengths, starts, window)
    if softcap or not mask.any(-1).all() or k.shape[2] == 0:
        return by_hand(q, k, v, mask, scale, softcap)[0]
    if causal and lengths is None and starts is None and not window and q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


def sizes_of(q, k, v, g, mask, scale, softcap=0):
    """The roots of the sums of squared terms of y, gq, gk and gv: gradients of scores are differences, p (dp - sum of p
    dp). A score is a sum too, and what it loses its exponential loses as a share: where a score or its own terms are
    large, so is what a weight may be off (at 300 half a unit in the last place of f32 is 1.5e-5 already). So is g @ v,
    and where it is nearly 0 its terms count. gq is the sum of p dp k less the product of two sums, of p dp and of p k,
    which counts as a whole: what the first of them is off, it is off for every key. A soft cap only makes scores
    smaller; its derivative is off by what 1 is off, so that gradients of scores count as without it."""
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    _, p = by_hand(q, k, v, mask, scale, softcap)
    terms, score = ((q * q) @ (wide_k * wide_k).transpose(-1, -2)).sqrt(), (q @ wide_k.transpose(-1, -2)).abs()
    p = p * (scale * torch.maximum(terms, score)).clamp(min=1)
    dp = torch.maximum((g @ wide_v.transpose(-1, -2)).abs(), ((g * g) @ (wide_v * wide_v).transpose(-1, -2)).sqrt())
    mean = (p * dp).sum(-1, keepdim=True)
    ds = (p * (dp + mean) * scale) ** 2
    fold = lambda t: t.unflatten(1, (k.shape[1], group)).sum(2)
    root = lambda t: t.sqrt()
    return [root((p * p) @ (wide_v * wide_v))], [
        torch.maximum(root(ds @ (wide_k * wide_k)),
                      mean * (p @ wide_k).abs() * scale),
        root(fold(ds.transpose(-1, -2) @ (q * q))),
        root(fold((p * p).transpose(-1, -2) @ (g * g)))]


def documents(batches, rows, keys, rng, dtype):
    """Starts (B, T) of documents of random lengths beside each other."""
    def row():
        starts, longest = [], rng.randint(1, rows + 1)
        while len(starts) < rows:
            starts += [max(0, keys - rows) + len(starts)] * rng.randint(1, longest)
        return [min(start, keys) for start in starts[:rows]]
    return torch.tensor([row() for _ in range(batches)], dtype=dtype).reshape(batches, rows)


def attention_case(op, shapes, dtype, layouts, rng, generator, causal, scale, lengths=None, starts=None, window=0,
                   softcap=0.0, **more):
    depth = shapes[0][3]
    used = scale or 1 / math.sqrt(depth)
    inputs = [Input(random_values(s, dtype, generator), l) for s, l in zip((shapes[0], shapes[1], shapes[1]), layouts)]
    if lengths is not None or starts is not None:
        inputs.append(Input(lengths, rng.choice(["dense", "general"])))
    if starts is not None:
        inputs.append(Input(starts, rng.choice(["dense", "general"])))
    def sizes(values, wanted, upstreams):
        q, k, v = (x.to(torch.float64) for x in values[:3])
        mask = allowed(q.shape[0], q.shape[2], k.shape[2], causal, values[3] if len(values) > 3 else None, starts,
                       window)
        results, gradients = sizes_of(q, k, v, upstreams[0].to(torch.float64), mask, abs(used), softcap)
        return results, gradients + [None] * (len(values) - 3)

    attributes = {"causal": int(causal), "scale": scale}
    attributes.update({name: value for name, value in (("window", window), ("softcap", softcap)) if value})
    return Case(op, inputs, lambda q, k, v, n=None, s=None: attention(q, k, v, n, causal, used, s, window, softcap),
                attributes, kind="sum", dtype=dtype, sizes=sizes,
                upstream_layout=rng.choice(LAYOUTS), rounds_inside=True, **more)


SHAPES = [((2, 3, 5, 4), (2, 3, 5, 4)), ((1, 1, 1, 1), (1, 1, 1, 1)), ((2, 4, 7, 8), (2, 2, 7, 8)),
          ((1, 6, 3, 5), (1, 1, 9, 5)), ((2, 2, 9, 3), (2, 1, 4, 3)), ((1, 2, 70, 64), (1, 2, 70, 64)),
          ((2, 2, 1, 16), (2, 2, 33, 16)), ((1, 1, 130, 33), (1, 1, 150, 33)), ((2, 2, 0, 4), (2, 2, 3, 4)),
          ((0, 2, 3, 4), (0, 1, 3, 4)), ((2, 2, 3, 4), (2, 2, 0, 4))]


def limited_cases(op, shapes, dtype, pick, rng, generator):
    """Windows and soft caps, alone and together, with lengths and starts."""
    batches, rows, keys = shapes[0][0], shapes[0][2], shapes[1][2]
    window = lambda: rng.choice([1, rng.randint(1, max(keys, 1)), rng.randint(1, max(keys // 3, 1)), keys + 5])
    cap = lambda: rng.choice([0.5, 1.0, 3.0, 50.0])
    lengths = torch.randint(0, keys + 1, (rng.choice([1, batches]),), generator=generator)
    starts = documents(batches, rows, keys, rng, torch.int32) if 0 not in shapes[0] + shapes[1] else None
    for limits in ({"window": window()}, {"softcap": cap()}, {"window": window(), "softcap": cap()}):
        yield attention_case(op, shapes, dtype, pick(), rng, generator, "window" in limits or rng.random() < 0.5,
                             rng.choice([0.0, 0.7]), **limits)
    yield attention_case(op, shapes, dtype, pick(), rng, generator, True, 0.0, lengths, window=window(),
                         softcap=rng.choice([0.0, cap()]), label="lengths")
    if starts is not None:
        yield attention_case(op, shapes, dtype, pick(), rng, generator, True, 0.0, rng.choice([None, lengths]), starts,
                             window=window(), softcap=rng.choice([0.0, cap()]), label="starts")


def attention_cases(op, rng, generator, count):
    def pick(n=3):
        return [rng.choice(LAYOUTS) for _ in range(n)]
    def draw():
        kv, group, rows = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 60)
        depth, keys, batches = rng.choice([1, 3, 8, 17, 64]), rng.choice([rows, rng.randint(1, 90)]), rng.randint(1, 3)
        return (batches, kv * group, rows, depth), (batches, kv, keys, depth)
    for dtype in FLOATS:
        for shapes in SHAPES + [draw() for _ in range(count)]:
            for causal in (False, True):
                yield attention_case(op, shapes, dtype, pick(), rng, generator, causal,
                                     rng.choice([0.0, 0.7 / math.sqrt(shapes[0][3])]))
            for form in ("each", "one"):
                count_of = shapes[1][0] if form == "each" else 1
                lengths = torch.randint(0, shapes[1][2] + 1, (count_of, ),
                                        generator=generator).to(rng.choice([torch.int32, torch.int64]))
                yield attention_case(op, shapes, dtype, pick(), rng, generator,
                                     rng.random() < 0.5, 0.0, lengths, label=f"lengths, {form}")
            if 0 not in shapes[0] + shapes[1]:
                starts = documents(shapes[0][0], shapes[0][2], shapes[1][2], rng, rng.choice([torch.int32,
                                                                                              torch.int64]))
                yield attention_case(op, shapes, dtype, pick(), rng, generator,
                                     rng.random() < 0.7, 0.0, starts=starts, label="starts")
                lengths = torch.randint(0, shapes[1][2] + 1, (1,), generator=generator)
                yield attention_case(op, shapes, dtype, pick(), rng, generator,
                                     rng.random() < 0.7, 0.0, lengths, starts, label="lengths and starts")
            yield from limited_cases(op, shapes, dtype, pick, rng, generator)
        for shapes in (((1, 4, 150, 256), (1, 2, 150, 256)), ((2, 2, 1, 256), (2, 1, 300, 256)),
                       ((1, 2, 3, 200), (1, 1, 70, 200)), ((1, 3, 300, 80), (1, 1, 300, 80))):
            yield attention_case(op, shapes, dtype, pick(), rng, generator, True, 0.0)
            yield from limited_cases(op, shapes, dtype, pick, rng, generator)
        yield attention_case(op, ((1, 2, 40, 8), (1, 1, 2600, 8)), dtype, pick(), rng, generator, True, 0.0,
                             window=rng.randint(1930, 2590), label="window of several chunks", terms=2590)
        for layout in LAYOUTS:
            yield attention_case(op, ((2, 4, 20, 6), (2, 2, 20, 6)), dtype, [layout] * 3, rng, generator, True, 0.0)
        yield attention_case(op, ((1, 2, 3, 4), (1, 1, 4000, 4)), dtype, pick(), rng, generator, True, 0.0,
                             label="long rows", terms=4000)
        for number in (math.nan, math.inf):
            case = attention_case(op, ((1, 2, 5, 4), (1, 2, 5, 4)), dtype, ["dense"] * 3, rng, generator, False, 0.0,
                                  label=f"with {number}")
            case.inputs[0].values[0, 1, 2, 3] = number
            yield case


# ---- packed ----------------------------------------------------------------------------------------------------------
# -----------------


def packed_cases(op, rng, generator, count):
    def unpack(qkv, heads, kv_heads):
        depth = qkv.shape[2] // (heads + 2 * kv_heads)
        q, k, v = qkv.split([heads * depth, kv_heads * depth, kv_heads * depth], -1)
        return [x.unflatten(2, (n, depth)).transpose(1, 2) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads))]

    def case(shape, heads, kv_heads, dtype, layout, starts=None, window=0, softcap=0.0):
        causal, depth = window > 0 or rng.random() < 0.5, shape[2] // (heads + 2 * kv_heads)
        scale = rng.choice([0.0, 0.3])
        used = scale or 1 / math.sqrt(depth)
        merge = lambda y: y.transpose(1, 2).flatten(2)
        def sizes(values, wanted, upstreams):
            q, k, v = unpack(values[0].to(torch.float64), heads, kv_heads)
            g = upstreams[0].to(torch.float64).unflatten(2, (heads, depth)).transpose(1, 2)
            mask = allowed(shape[0], shape[1], shape[1], causal, None, starts, window)
            results, gradients = sizes_of(q, k, v, g, mask, used, softcap)
            return [merge(results[0])], [torch.cat([merge(x) for x in gradients], -1)] + [None] * (len(values) - 1)

        attributes = {
            "heads": heads, "kv_heads": kv_heads if kv_heads != heads else 0, "causal": int(causal), "scale": scale}
        attributes.update({name: value for name, value in (("window", window), ("softcap", softcap)) if value})
        inputs = [Input(random_values(shape, dtype, generator), layout)
                 ] + ([Input(None), Input(starts, "dense")] if starts is not None else [])
        return Case(op, inputs,
                    lambda x, n=None, s=None: merge(
                        attention(*unpack(x, heads, kv_heads), n, causal, used, s, window, softcap)),
                    attributes, kind="sum", dtype=dtype, sizes=sizes, upstream_layout=rng.choice(LAYOUTS),
                    rounds_inside=True)
    for dtype in FLOATS:
        for layout in LAYOUTS:
            yield case((2, 5, 24), 2, 2, dtype, layout)
            yield case((2, 9, 40), 4, 2, dtype, layout)
            yield case((2, 40, 40), 4, 2, dtype, layout, documents(2, 40, 40, rng, torch.int32))
            yield case((2, 40, 40), 4, 2, dtype, layout, None, rng.randint(1, 39), rng.choice([0.0, 2.0]))
            yield case((2, 40, 40), 4, 2, dtype, layout, documents(2, 40, 40, rng, torch.int32), rng.randint(1, 39),
                       rng.choice([0.0, 2.0]))
        for _ in range(count):
            kv_heads, group, depth = rng.randint(1, 3), rng.randint(1, 3), rng.choice([1, 4, 32])
            width = (kv_heads * group + 2 * kv_heads) * depth
            yield case((rng.randint(1, 3), rng.randint(1, 70), width), kv_heads * group, kv_heads, dtype,
                       rng.choice(LAYOUTS))
    yield from refusals(op, FLOATS, attributes={"heads": 1})


# ---- rotary positions
# -----------------------------------------------------------------------------------------------------------------

PLAIN, LINEAR, LLAMA3, DYNAMIC, YARN = range(5)


def frequencies(dims, options):
    """rope.py compares the formulas with transformers'; these are the kernels' angles."""
    base, pairs = options.get("base", 10000.0), torch.arange(0, dims, 2, dtype=torch.float64)
    if options.get("scaling", PLAIN) == DYNAMIC:
        grown = options["factor"] * max(1.0, options["length"] / options["original"]) - (options["factor"] - 1)
        base *= grown ** (dims / (dims - 2))
    f = base ** (-pairs / dims)
    if options.get("scaling", PLAIN) == YARN:
        bounds = [dims * math.log(options["original"] / (rotations * 2 * math.pi)) / (2 * math.log(base))
                  for rotations in (32, 1)]
        low, high = max(math.floor(bounds[0]), 0), min(math.ceil(bounds[1]), dims - 1)
        ramp = ((pairs / 2 - low) / (high - low or 0.001)).clamp(0, 1)
        return f / options["factor"] * ramp + f * (1 - ramp)
    if options.get("scaling", PLAIN) == LINEAR:
        return f / options["factor"]
    if options.get("scaling", PLAIN) == LLAMA3:  # as Hugging Face's transformers has it
        factor, low, high, original = (options[k] for k in ("factor", "low", "high", "original"))
        wavelength = 2 * math.pi / f
        scaled = torch.where(wavelength > original / low, f / factor, f)
        smooth = (original / wavelength - low) / (high - low)
        blended = (1 - smooth) * f / factor + smooth * f
        between = (wavelength <= original / low) & (wavelength >= original / high)
        return torch.where(between, blended, scaled)
    return f


def magnitude(options):
    """The factor of cos and sin."""
    of_yarn = 0.1 * math.log(options.get("factor", 1)) + 1 if options.get("scaling", PLAIN) == YARN else 1
    return options.get("attention_factor", 0) or of_yarn


def turn(x, positions, options):
    axis, depth = options.get("axis", 1), x.shape[3]
    dims = options.get("dims", depth)
    place = torch.arange(x.shape[axis]) if positions is None else long(positions)
    angle = place.to(torch.float64)[..., None] * frequencies(dims, options)
    angle = angle.expand(x.shape[0], *angle.shape[-2:]).unsqueeze(3 - axis)
    c, s = (magnitude(options) * of for of in (angle.cos(), angle.sin()))
    part, rest = x[..., :dims], x[..., dims:]
    if options.get("interleaved"):
        a, b = part[..., 0::2], part[..., 1::2]
        turned = torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)
    else:
        a, b = part.chunk(2, -1)
        turned = torch.cat([a * c - b * s, b * c + a * s], -1)
    return torch.cat([turned, rest], -1)


def rope_cases(op, rng, generator, count):
    def options():
        made = {
            "axis": rng.choice([1, 2]), "base": rng.choice([10000.0, 500000.0, 100.0]),
            "interleaved": rng.randint(0, 1)}
        made["scaling"] = rng.choice([PLAIN, LINEAR, LLAMA3, DYNAMIC, YARN])
        made.update({
            "factor": rng.choice([2.0, 8.0]), "low": 1.0, "high": rng.choice([4.0, 2.0]),
            "original": rng.choice([64, 8192]), "length": rng.choice([5, 100, 9000]),
            "attention_factor": rng.choice([0.0, 0.0, 1.5])})
        return made
    for dtype in FLOATS:
        for _ in range(30 + 3 * count):
            o, depth = options(), rng.choice([2, 6, 16, 64, 80])
            if rng.random() < 0.4:
                o["dims"] = rng.randrange(2, depth + 1, 2)
            if o.get("dims", depth) == 2 and o["scaling"] == DYNAMIC:
                o["scaling"] = PLAIN
            shape = (rng.randint(1, 3), rng.randint(1, 20), rng.randint(1, 6), depth)
            inputs = [Input(random_values(shape, dtype, generator), rng.choice(LAYOUTS))]
            length, kind = shape[o["axis"]], rng.choice([None, "all", "each"])
            if kind:
                inputs.append(
                    Input(
                        indices((length, ) if kind == "all" else (shape[0], length), rng.choice([10, 1000]),
                                rng.choice(["i64", "i32"]), generator), rng.choice(LAYOUTS)))
            def sizes(values, wanted, upstreams, o=o):
                pair = lambda t: turn_sizes(t.to(torch.float64), o)
                return [pair(values[0])], [pair(upstreams[0])] + [None] * (len(values) - 1)

            yield Case(op, inputs, lambda x, p=None, o=o: turn(x, p, o), o, kind="sum", dtype=dtype, sizes=sizes,
                       upstream_layout=rng.choice(LAYOUTS))
    yield from refusals(op, FLOATS)


def turn_sizes(x, o):
    """Each result is a sum of two terms no longer than the pair."""
    dims = o.get("dims", x.shape[3])
    part, rest = (magnitude(o) * x[..., :dims]) ** 2, x[..., dims:].abs()
    if o.get("interleaved"):
        both = (part[..., 0::2] + part[..., 1::2]).sqrt().repeat_interleave(2, -1)
    else:
        a, b = part.chunk(2, -1)
        both = (a + b).sqrt().repeat(1, 1, 1, 2)
    return torch.cat([both, rest], -1)


# ---- the norm of a sum
# ----------------------------------------------------------------------------------------------------------------


def residual_norm_cases(op, rng, generator, count):
    for dtype in FLOATS:
        def case(shape, given, rms, layouts):
            epsilon, name = rng.choice([1e-5, 1e-3]), "rmsnorm" if rms else "layernorm"
            x = random_values(shape, dtype, generator)
            inputs = [Input(x, layouts[0]), Input(random_values(shape, dtype, generator), layouts[1])]
            inputs += [
                Input(random_values(shape[-1:], dtype, generator), rng.choice(LAYOUTS)) if g else Input(None)
                for g in given]
            def rounded(x, delta):
                """The sum is a result of its own, of that dtype; the gradient passes its rounding by."""
                total = x + delta
                return total + (cast(total.detach(), dtype).to(torch.float64) - total.detach())
            def reference(x, delta, weight=None, bias=None):
                total = rounded(x, delta)
                if not rms:
                    return F.layer_norm(total, total.shape[-1:], weight, bias, epsilon), total
                y = total * torch.rsqrt((total * total).mean(-1, keepdim=True) + epsilon)
                return (y if weight is None else y * (offset + weight)), total
            offset = rng.choice([0.0, 1.0]) if rms else 0
            def sizes(values, wanted, upstreams):
                total = rounded(values[0].to(torch.float64), values[1].to(torch.float64))
                results, gradients = norm_sizes(name, epsilon, offset)([total, *values[2:]], wanted, upstreams[:1])
                gx = (gradients[0] ** 2 + upstreams[1].to(torch.float64) ** 2).sqrt()
                return results + [None], [gx, gx, *gradients[1:]]

            attributes = {"rms": int(rms), "epsilon": epsilon} | ({"offset": offset} if offset else {})
            return Case(op, inputs, reference, attributes, kind="sum", dtype=dtype, outputs=2,
                        sizes=sizes, upstream_layout=rng.choice(LAYOUTS))
        drawn = [(rng.randint(1, 30), rng.randint(16, 200)) for _ in range(count)]
        for shape in [(6, 9), (3, 4, 50), (1, 30), (40, 300), (30,), (0, 4)] + drawn:
            for layout in LAYOUTS:
                rms = rng.random() < 0.5
                given = rng.choice([(), (True,)] if rms else [(), (True,), (True, True), (False, True)])
                yield case(shape, given, rms, (layout, rng.choice(LAYOUTS)))


# ---- the last layer and its loss
# ------------------------------------------------------------------------------------------------------


def linear_loss_cases(op, rng, generator, count):
    """In f32 and f64: what comes between is rounded, as the two operations one by one do."""
    for dtype in ("f32", "f64"):
        drawn = [(rng.randint(1, 30), rng.randint(2, 40), rng.randint(2, 99)) for _ in range(count)]
        for shape in [(6, 5, 7), (1, 1, 3), (40, 16, 70), (200, 8, 3), (2, 9, 16, 50), (0, 4, 5)] + drawn:
            for layout in LAYOUTS:
                *lead, depth, classes = shape
                smoothing, reduction, ignored = rng.choice([0.0, 0.1
                                                           ]), rng.choice(REDUCTIONS), rng.choice([None, None, 1, -100])
                target = indices(tuple(lead), classes, rng.choice(["i64", "i32"]), generator)
                if ignored == -100 and target.numel():
                    target[..., ::3] = -100
                if ignored is not None and reduction == "mean" and not (target != ignored).any():
                    ignored, target = None, target.clamp(min=0)
                softcap = rng.choice([None, None, 4.0, 30.0])
                attributes = {"label_smoothing": smoothing, "reduction": REDUCTIONS.index(reduction)}
                if ignored is not None:
                    attributes["ignore_index"] = ignored
                if softcap is not None:
                    attributes["softcap"] = softcap

                def reference(x, weight, target, smoothing=smoothing, reduction=reduction, ignored=ignored,
                              classes=classes, softcap=softcap):
                    flat = F.cross_entropy(capped(x @ weight.T, softcap).reshape(-1, classes),
                                           long(target).reshape(-1), label_smoothing=smoothing, reduction=reduction,
                                           ignore_index=-1000 if ignored is None else ignored)
                    return flat.reshape(target.shape) if reduction == "none" else flat
                inputs = [
                    Input(random_values((*lead, depth), dtype, generator), layout),
                    Input(random_values((classes, depth), dtype, generator) / math.sqrt(depth), rng.choice(LAYOUTS)),
                    Input(target, rng.choice(LAYOUTS))]
                yield Case(op, inputs, reference, attributes, kind="sum", dtype=dtype,
                           sizes=linear_loss_sizes(attributes))


def capped(logits, softcap):
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def linear_loss_sizes(attributes):
    """gx = glogits @ weight, gweight = glogitsᵀ @ x, where glogits = g · (p - t): rows of weight that are alike cancel,
    as the gradients of a row's logits sum to 0, and so do a likelihood p and its target t, where a row is sure of
    itself. A soft cap multiplies glogits by its derivative."""
    def sizes(values, wanted, upstreams):
        x, weight, target = values[0].to(torch.float64).flatten(0, -2), values[1].to(torch.float64), long(
            values[2]).reshape(-1)
        softcap = attributes.get("softcap")
        logits = capped(x @ weight.T, softcap)
        # PyTorch's 1 - tanh² cancels where the cap is reached
        factor = 1 if softcap is None else (1 - (logits / softcap) ** 2).clamp(min=0.01)
        counted = target != attributes.get("ignore_index", -1000)
        likely, smoothing, classes = torch.softmax(logits, -1), attributes["label_smoothing"], weight.shape[0]
        meant = F.one_hot(torch.where(counted, target, 0), classes) * (1 - smoothing) + smoothing / classes
        g = upstreams[0].to(torch.float64).reshape(-1) / (counted.sum() if REDUCTIONS[attributes["reduction"]] == "mean"
                                                          else 1) * counted
        squares = (g[:, None] * factor) ** 2 * (likely ** 2 + meant ** 2)
        return [None], [(squares @ weight ** 2).sqrt().reshape(values[0].shape), (squares.T @ x ** 2).sqrt(), None]
    return sizes


# ---- paged -----------------------------------------------------------------------------------------------------------
# -----------------

PAGE = 64  # tokens


def paged_reference(scale, window, softcap):
    def one(q, k, v, table, starts, lengths):
        y, kv_heads = torch.zeros_like(q), k.shape[2]
        for n, (pages, length) in enumerate(zip(table.tolist(), lengths.tolist())):
            begin, end = starts[n].item(), starts[n + 1].item()
            keys, values = (x[pages].flatten(0, 1)[:length].repeat_interleave(q.shape[1] // kv_heads, 1)
                            for x in (k, v))
            for row in range(begin, end):
                last = length - (end - row) + 1  # keys up to its own
                first = max(last - window, 0) if window else 0
                if last > first:
                    scores = capped(scale * torch.einsum("hd,khd->hk", q[row], keys[first:last]), softcap or None)
                    y[row] = torch.einsum("hk,khd->hd", torch.softmax(scores, -1), values[first:last])
        return y
    return one


def paged_cases(op, rng, generator, count):
    """Sequences of any length with some of their rows, whose pages lie anywhere."""
    for dtype in FLOATS:
        for _ in range(4 + count):
            sequences, kv_heads, size = rng.randint(1, 4), rng.randint(1, 2), rng.choice([3, 8, 16, 40])
            heads, most = kv_heads * rng.randint(1, 4), rng.randint(1, 3)
            lengths = [rng.randint(1, most * PAGE) for _ in range(sequences)]
            rows = [rng.choice([1, 1, rng.randint(0, min(length, 20))]) for length in lengths]
            starts = [sum(rows[:n]) for n in range(sequences + 1)]
            pages = list(range(sequences * most + 2))
            rng.shuffle(pages)
            table = [pages[n * most:(n + 1) * most] for n in range(sequences)]
            scale, window, softcap = rng.choice([0.0, 0.3]), rng.choice([0, 0, 1, 70]), rng.choice([0.0, 0.0, 2.0])
            attributes = {"scale": scale, "window": window, "softcap": softcap}
            integers = [Input(torch.tensor(x, dtype=rng.choice([torch.int32, torch.int64])))
                        for x in (table, starts, lengths)]
            floats = [Input(random_values(shape, dtype, generator), rng.choice(LAYOUTS)) for shape in (
                (starts[-1] + rng.randint(0, 1), heads, size), *2 * [(len(pages), PAGE, kv_heads, size)])]
            yield Case(op, floats + integers, paged_reference(scale or 1 / math.sqrt(size), window, softcap),
                       attributes, kind="sum", dtype=dtype)


OPS = {
    "attention": attention_cases, "attention_packed": packed_cases, "attention_paged": paged_cases, "rope": rope_cases,
    "residual_norm": residual_norm_cases, "linear_cross_entropy": linear_loss_cases}
