"""The one comparer. A result in some dtype is held against torch's, computed in f64 from the same (rounded) inputs.

  ulp    element-wise results: the distance in units in the last place of the dtype, element by element
  sum    reductions, products, losses: |a - b| / max(|b|, rms(b), size), where `size` is the root of the sum of squared
      terms where a
         case gives it: what the sum would be if its terms had random signs. With few results rms(b) says nothing about
             cancellation.
  exact  integers, comparisons, movements: equal

NaN must meet NaN, infinity infinity of the same sign."""
import dataclasses
import math

import torch

DIGITS = {"f32": 24, "f64": 53, "bf16": 8, "f16": 11}
LOWEST_EXPONENT = {"f32": -126, "f64": -1022, "bf16": -126, "f16": -14}
LARGEST = {
    "f32": torch.finfo(torch.float32).max, "f64": torch.finfo(torch.float64).max,
    "bf16": torch.finfo(torch.bfloat16).max, "f16": torch.finfo(torch.float16).max}
F64_RELATIVE = 1e-12
ULPS = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "f64": F64_RELATIVE * 2.0 ** 52}
SUM = {"f32": 1e-5, "bf16": 1e-5, "f16": 1e-5, "f64": 1e-12}
LONG_SUM = {"f32": 1e-4, "bf16": 1e-4, "f16": 1e-4, "f64": 1e-11}
LONG = 10_000  # terms


@dataclasses.dataclass
class Verdict:
    good: bool
    error: float = 0.0  # the worst, in `unit`
    bar: float = 0.0
    unit: str = ""
    text: str = ""      # what is wrong, where it is

    def ratio(self):
        return self.error / self.bar if self.bar else 0.0


def ulp(values, dtype):
    """The spacing of `dtype` at each of the f64 `values`."""
    exponent = torch.frexp(values.abs())[1].to(torch.int64) - 1
    exponent = exponent.clamp(min=LOWEST_EXPONENT[dtype])
    exponent = torch.where(values == 0, torch.full_like(exponent, LOWEST_EXPONENT[dtype]), exponent)
    return torch.pow(torch.tensor(2.0, dtype=torch.float64), (exponent - (DIGITS[dtype] - 1)).to(torch.float64))


def _element(worst, got, expected, label):
    index = tuple(int(i) for i in torch.unravel_index(worst, got.shape)) if got.ndim else ()
    return f"{label}{list(index)}: tarn {got[index].item()!r}, torch {expected[index].item()!r}"


def _mismatch(got, expected, label):
    """Shape, NaN and infinity. Returns a text, or None when they fit."""
    if got.shape != expected.shape:
        return f"{label}: tarn's shape is {list(got.shape)}, torch's {list(expected.shape)}"
    if not got.is_floating_point():
        return None
    wrong = torch.isnan(got) != torch.isnan(expected)
    # An infinite expectation is exact; a finite one beyond the dtype's range is compared by distance.
    wrong |= torch.isinf(expected) & (got != expected) & ~torch.isnan(got)
    if wrong.any():
        return _element(wrong.flatten().to(torch.uint8).argmax(), got, expected, label)
    return None


def _within_range(values, dtype):
    """Infinity, and what lies beyond the range of the dtype, as the first number beyond it: so that distances stay
    finite."""
    if dtype == "f64":
        return values
    beyond = 2.0 ** (math.floor(math.log2(LARGEST[dtype])) + 1)
    return values.clamp(-beyond, beyond)


def exact(got, expected, label="result"):
    if got.shape != expected.shape:
        return Verdict(False, text=_mismatch(got, expected, label))
    if got.dtype != expected.dtype and not expected.is_floating_point():
        return Verdict(False, text=f"{label}: tarn's dtype is {got.dtype}, torch's {expected.dtype}")
    same = got.to(expected.dtype) == expected
    if expected.is_floating_point():
        same |= torch.isnan(got) & torch.isnan(expected)
    if same.all():
        return Verdict(True, 0.0, 1.0, "ulp" if expected.is_floating_point() else "")
    return Verdict(False, math.inf, 0.0, text=_element((~same).flatten().to(torch.uint8).argmax(), got, expected,
                                                       label))


def elementwise(got, expected, dtype, label="result", bars=ULPS, size=None, factor=None):
    """`got` of any float dtype with the precision of `dtype`, `expected` in f64. In f64 torch rounds as well: where the
    result is a difference of terms of `size`, 4 ulp of that are allowed. A number below the range of the dtype has few
    digits, and what is lost of it is multiplied by `factor`."""
    got = got.to(torch.float64)
    text = _mismatch(got, expected, label)
    if text:
        return Verdict(False, math.inf, bars[dtype], "ulp", text)
    if got.numel() == 0:
        return Verdict(True)
    a, b = _within_range(got, dtype), _within_range(expected, dtype)
    unit = ulp(b.nan_to_num(0.0), dtype)
    if dtype == "f64" and size is not None:
        unit = torch.maximum(unit, ulp(size.nan_to_num(0.0), dtype) * 4 / ULPS["f64"])
    if factor is not None:
        unit = torch.maximum(unit, factor.nan_to_num(0.0) * 2.0 ** (LOWEST_EXPONENT[dtype] - DIGITS[dtype] + 1))
    error = torch.where((a == b) | torch.isnan(b), torch.zeros_like(a), (a - b).abs() / unit)
    worst = error.flatten().argmax()
    largest = error.flatten()[worst].item()
    wrong = f"{_element(worst, got, expected, label)}: {largest:.3g} ulp of {dtype}, allowed {bars[dtype]:.3g}"
    text = "" if largest <= bars[dtype] else wrong
    return Verdict(not text, largest, bars[dtype], "ulp", text)


def summed(got, expected, dtype, size=None, terms=0, label="result", rounded_terms=False):
    """The same for reductions. In a half dtype: within 2 ulp of the exact sum; where the terms themselves were rounded
    to that dtype (a gradient that passed through another operation), within 2 ulp of the scale."""
    bar = (LONG_SUM if terms > LONG else SUM)[dtype]
    got = got.to(torch.float64)
    text = _mismatch(got, expected, label)
    if text:
        return Verdict(False, math.inf, bar, "rel", text)
    if got.numel() == 0:
        return Verdict(True)
    a, b = _within_range(got, dtype), _within_range(expected, dtype)
    finite = torch.where(torch.isfinite(b), b, torch.zeros_like(b))
    scale = torch.maximum(finite.abs(), (finite * finite).mean().sqrt())
    if size is not None:
        scale = torch.maximum(scale, torch.where(torch.isfinite(size), size, torch.zeros_like(size)))
    distance = torch.where((a == b) | torch.isnan(b), torch.zeros_like(a), (a - b).abs())
    if dtype in ("bf16", "f16"):
        bar, unit = ULPS[dtype], "ulp"
        unit_size = ulp(scale if rounded_terms else finite, dtype)
        error = distance / torch.maximum(unit_size, scale * SUM[dtype] / ULPS[dtype])
    else:
        unit = "rel"
        # 4 ulp of the smallest numbers: what a sum or product below the dtype's range may lose
        least = 4 * 2.0 ** (LOWEST_EXPONENT[dtype] - DIGITS[dtype] + 1)
        error = torch.where(distance <= least, torch.zeros_like(distance),
                            distance / scale.clamp(min=torch.finfo(torch.float64).tiny))
    worst = error.flatten().argmax()
    largest = error.flatten()[worst].item()
    text = "" if largest <= bar else (f"{_element(worst, got, expected, label)}: error {largest:.3g} {unit}, "
                                      f"allowed {bar:.3g}")
    return Verdict(not text, largest, bar, unit, text)


def relax(verdict, own):
    """What is beyond the bar may be no further from the truth than twice what torch is in the same dtype."""
    if verdict.good or not verdict.unit or verdict.error > 2 * own:
        return verdict
    return Verdict(True, verdict.error, 2 * own, verdict.unit)


def gradients(ours, truth, dtype, theirs=None):
    """Of a whole model, {name: gradient}: sums through many layers. One counts from 1e-6 of the largest one's size on,
    as some are truly 0. `theirs` are torch's in the same dtype, where its own distance from the truth is what can be
    asked for."""
    verdicts = [
        Verdict(set(ours) == set(truth), text=f"gradients of {sorted(set(ours) ^ set(truth))} are in one alone")]
    largest = max(g.square().mean().sqrt() for g in truth.values())
    for name in sorted(set(ours) & set(truth)):
        if ours[name] is None:
            verdicts.append(Verdict(False, text=f"tarn has no gradient of {name}"))
            continue
        floor = torch.full_like(truth[name], 1e-6 * largest)
        verdicts.append(summed(ours[name], truth[name], dtype, size=floor, terms=LONG + 1, label=f"gradient of {name}"))
    if theirs is None:
        return verdicts
    own = max(v.error for v in gradients(theirs, truth, dtype))
    return [relax(v, own) for v in verdicts]
