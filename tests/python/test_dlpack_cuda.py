"""Memory of a GPU shared by DLPack between tarn and PyTorch, in both directions. Skipped without a GPU."""
import gc
import unittest

from support import SEED, TORCH, Case, lib, np, tarn, torch
from tarn._types import device_of

HAS_GPU = torch.cuda.is_available() and any(device.type == "cuda" for device in tarn.devices())


def in_use():
    """Blocks of memory in use on the GPU."""
    gc.collect()
    return lib.tarn_memory_of(device_of("cuda:0")).blocks


@unittest.skipUnless(HAS_GPU, "no GPU")
class Gpu(Case):
    """Values, addresses, streams and lifetimes."""

    def on_gpu(self, *shape, dtype=torch.float32):
        return self.values(*shape, dtype=dtype).cuda()

    def test_every_dtype_in_both_directions(self):
        for name, dtype in TORCH.items():
            x = self.on_gpu(5, 7, dtype=dtype)
            shared = tarn.from_dlpack(x)
            self.assertEqual((str(shared.device), str(shared.dtype)), ("cuda:0", name))
            self.assertEqual(shared.data_ptr, x.data_ptr())
            back = torch.from_dlpack(shared)
            self.assertEqual((back.device, back.dtype, back.data_ptr()), (x.device, dtype, x.data_ptr()))
            self.assertTrue(torch.equal(back, x), f"{name}; seed {SEED}")

    def test_views_keep_their_strides(self):
        x = self.on_gpu(2, 3, 4, 5)
        for view in (x, x.permute(3, 0, 2, 1), x[:, 1:3, ::2], x[1, 2], x[0, 0, 0, 0], x[1:1],
                     torch.ones(2, 1, device="cuda").expand(2, 3)):
            shared = tarn.from_dlpack(view)
            if view.numel():  # torch gives an empty tensor the address 0
                self.assertEqual(shared.data_ptr, view.data_ptr())
            self.assertEqual(shared.cpu().tolist(), view.tolist())
        y = tarn.arange(60, dtype="f32", device="cuda:0").reshape(3, 4, 5)
        for view in (y, y.permute(2, 0, 1), y[:, 1:3, ::2], y[1, 2], y[0, 0, 0], y.reshape(60)[:0]):
            self.assertEqual(torch.from_dlpack(view).tolist(), view.cpu().tolist())

    def test_writes_are_seen_by_the_other(self):
        x = tarn.zeros(1000, device="cuda:0")
        other = torch.from_dlpack(x)
        other.fill_(3)
        torch.cuda.synchronize()
        self.assertEqual(x.sum().item(), 3000)
        x += 1
        tarn.Device("cuda:0").synchronize()
        self.assertEqual(other.sum().item(), 4000)

    def test_work_that_is_queued_is_waited_for(self):
        """A producer's long work comes before what the consumer computes, on either side."""
        big = self.on_gpu(4096, 4096)
        for _ in range(3):
            wanted = big
            for _ in range(10):
                wanted = wanted @ big / 64
            shared = tarn.from_dlpack(wanted)  # torch's matmuls are still running
            self.assertEqual(shared.sum().item(), tarn.from_dlpack(wanted.clone()).sum().item())
            ours = tarn.from_dlpack(big)
            for _ in range(10):
                ours = ours @ tarn.from_dlpack(big) * (1 / 64)
            copied = torch.from_dlpack(ours).clone()  # and tarn's
            tarn.Device("cuda:0").synchronize()
            self.assertTrue(torch.equal(copied, torch.from_dlpack(ours)), f"seed {SEED}")
            torch.cuda.synchronize()

    def test_work_of_another_stream_of_torch_is_waited_for(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = self.on_gpu(4096, 4096)
            for _ in range(10):
                x = x @ x / 64
                x = x / x.abs().max()
            shared = tarn.from_dlpack(x)
        total = shared.abs().sum().item()
        torch.cuda.synchronize()
        self.assertAlmostEqual(total, x.abs().double().sum().item(), delta=1e-3 * total)

    def test_memory_lives_as_long_as_either_side_uses_it(self):
        before = in_use()
        x = tarn.arange(1000, dtype="f32", device="cuda:0")
        other = torch.from_dlpack(x)
        del x
        self.assertEqual(in_use(), before + 1)
        tarn.zeros(1000, device="cuda:0")
        self.assertEqual(other.sum().item(), 499500)
        torch.cuda.synchronize()
        del other
        self.assertEqual(in_use(), before)
        held = torch.cuda.memory_allocated()
        y = torch.arange(1000, dtype=torch.float32, device="cuda")
        shared = tarn.from_dlpack(y)
        del y
        gc.collect()
        torch.full((1000, ), 7.0, device="cuda")
        self.assertEqual(shared.sum().item(), 499500)
        del shared
        gc.collect()
        self.assertEqual(torch.cuda.memory_allocated(), held)

    def test_gradients_of_shared_memory(self):
        """Forward and backward on torch's memory: what torch computes in f64."""
        a, b = self.on_gpu(17, 33, dtype=torch.float64), self.on_gpu(33, 9, dtype=torch.float64)
        x, y = (tarn.from_dlpack(v).requires_grad_() for v in (a, b))
        ((x @ y).tanh()**2).mean().backward()
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        ((a @ b).tanh()**2).mean().backward()
        for got, wanted in ((x.grad, a.grad), (y.grad, b.grad)):
            error = (torch.from_dlpack(got) - wanted).abs().max().item()
            self.assertLess(error, 1e-12 * wanted.abs().max().item(), f"seed {SEED}")

    def test_what_cannot_be_shared(self):
        x = tarn.ones(3, device="cuda:0")
        with self.assertRaises(TypeError):
            x.numpy()
        with self.assertRaises((BufferError, RuntimeError, TypeError)):
            np.from_dlpack(x)
        with self.assertRaises(BufferError):
            x.__dlpack__(dl_device=(2, 99))
        self.assertEqual(x.__dlpack_device__(), (2, 0))
        host = tarn.from_dlpack(x.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
        self.assertEqual((str(host.device), host.tolist()), ("cpu", [1, 1, 1]))
        copy = tarn.from_dlpack(torch.ones(3, device="cuda"), copy=True)
        self.assertEqual((str(copy.device), copy.cpu().tolist()), ("cuda:0", [1, 1, 1]))
