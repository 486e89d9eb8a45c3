"""What the tests share: random values from the seed of the run, comparisons, memory in use."""
import os
import random
import unittest
import zlib

import numpy as np
import torch

import tarn
from tarn._library import lib
from tarn._types import device_of

SEED = int(os.environ["TARN_PARITY_SEED"])
TORCH = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32,
         "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool}


class Case(unittest.TestCase):
    """Draws are those of the seed and the test's name, whichever tests run."""

    def setUp(self):
        key = zlib.crc32(f"{SEED}/{self.id()}".encode())
        self.random = random.Random(key)
        self.generator = torch.Generator().manual_seed(key)
        tarn.seed(key)

    def shape(self, rank=None, most=6, least=1):
        rank = self.random.randint(0, 4) if rank is None else rank
        return tuple(self.random.randint(least, most) for _ in range(rank))

    def values(self, *shape, dtype=torch.float64):
        if dtype.is_floating_point:
            return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(dtype)
        high = 2 if dtype == torch.bool else 100
        return torch.randint(0, high, shape, generator=self.generator).to(dtype)

    def close(self, got, wanted, tolerance=1e-12, what=""):
        got = torch.from_dlpack(got.detach()) if isinstance(got, tarn.Tensor) else torch.as_tensor(got)
        self.assertEqual(tuple(got.shape), tuple(wanted.shape), what)
        wanted = wanted.detach()
        scale = max(1.0, float(wanted.double().abs().max())) if wanted.numel() else 1.0
        error = float((got.double() - wanted.double()).abs().max()) if wanted.numel() else 0.0
        self.assertLessEqual(error, tolerance * scale, f"{what}; seed {SEED}")

    def same(self, got, wanted, what=""):
        got = torch.from_dlpack(got.detach())
        self.assertEqual(got.dtype, wanted.dtype, what)
        self.assertTrue(torch.equal(got, wanted), f"{what}: {got} is not {wanted}; seed {SEED}")


def to_tarn(values, requires_grad=False):
    """A tensor with a copy of torch's values."""
    return tarn.tensor(values.detach(), requires_grad=requires_grad)


def blocks():
    """Blocks of memory in use on the CPU."""
    return lib.tarn_memory_of(device_of("cpu")).blocks


__all__ = ["Case", "SEED", "TORCH", "blocks", "np", "tarn", "to_tarn", "torch"]
