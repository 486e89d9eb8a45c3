"""Memory shared by DLPack lives exactly as long as it is used, in whatever order both sides let go."""
import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest.mock
import weakref

from support import Case, blocks, np, tarn, torch
from tarn import _dlpack

# A producer whose deleter is puts(): the memory and the struct, which starts with DLPack's version 1, outlive Python,
# and each deletion prints a line, whatever the interpreter has cleared by then.
AT_EXIT = """
import ctypes, sys
import tarn
from tarn._library import kept, lib
memory = ctypes.create_string_buffer(256)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
address = ctypes.addressof(memory)
ctypes.c_uint32.from_address(address).value = 1                                                     # major
ctypes.c_void_p.from_address(address + 16).value = ctypes.cast(ctypes.CDLL(None).puts, ctypes.c_void_p).value
ctypes.c_void_p.from_address(address + 32).value = address + 128                                    # data
ctypes.c_int32.from_address(address + 40).value = 1                                                 # on the CPU
ctypes.c_uint32.from_address(address + 52).value = 2 | 32 << 8 | 1 << 16                            # f32
x = tarn.Tensor._wrap(kept(lib.tarn_dlpack_import, address))
class Cycle: pass
ways = {
    "global": lambda: globals().update(capsule=x.__dlpack__(), other=x.__dlpack__(max_version=(1, 0))),
    "module": lambda: setattr(tarn, "capsule", x.__dlpack__()),
    "builtin": lambda: setattr(sys.modules["builtins"], "capsule", x.__dlpack__()),
    "cycle": lambda: [setattr(node := Cycle(), "me", node), setattr(node, "capsule", x.__dlpack__())],
    "consumed": lambda: globals().update(capsule=(made := x.__dlpack__()), other=tarn.from_dlpack(made)),
}
ways[sys.argv[1]]()
"""


class Array(np.ndarray):
    """An array whose end can be watched."""


def watched(shape=(4, )):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape).view(Array)
    return array, weakref.ref(array)


class Layouts(Case):
    """Strides, dtypes, read-only memory."""

    def test_views_of_numpy_and_torch(self):
        x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
        views = [x, x.T, x[:, ::-1], x[::-1, 1, ::2, ::-2], x[..., 3], x[1:1], x[:, :, :1, 2]]
        for view in views:
            self.assertEqual(tarn.from_dlpack(view).tolist(), view.tolist())
        for view in (torch.from_numpy(x).permute(3, 0, 2, 1), torch.ones(2, 1).expand(2, 3), torch.tensor(3.0)):
            shared = tarn.from_dlpack(view)
            self.assertEqual(shared.tolist(), view.tolist())
            self.assertEqual(shared.data_ptr, view.data_ptr())

    def test_views_of_tensors(self):
        x = tarn.arange(60, dtype="f32").reshape(3, 4, 5)
        for view in (x, x.permute(2, 0, 1), x[:, 1:3, ::2], x[1, 2], x[0, 0, 0], x.reshape(60)[:0]):
            self.assertEqual(torch.from_dlpack(view).tolist(), view.tolist())
            self.assertEqual(np.from_dlpack(view).tolist(), view.tolist())
        self.assertEqual(np.from_dlpack(x.flip([0, 2])).tolist(), x.flip([0, 2]).tolist())
        self.assertEqual(x.__dlpack_device__(), (1, 0))

    def test_read_only_memory_is_copied_or_refused(self):
        x = np.arange(4, dtype=np.float32)
        x.flags.writeable = False
        shared = tarn.from_dlpack(x)
        shared.fill_(7)
        self.assertEqual(x.tolist(), [0, 1, 2, 3])
        self.assertEqual(shared.tolist(), [7, 7, 7, 7])
        with self.assertRaisesRegex(BufferError, "read-only"):
            tarn.from_dlpack(x, copy=False)

    def test_copies_on_request(self):
        x = np.ones(3, dtype=np.float32)
        copied = tarn.from_dlpack(x, copy=True)
        x[0] = 5
        self.assertEqual(copied.tolist(), [1, 1, 1])
        y = tarn.ones(3)
        taken = tarn.from_dlpack(y.__dlpack__(copy=True))
        y.fill_(2)
        self.assertEqual(taken.tolist(), [1, 1, 1])

    def test_what_cannot_be_shared(self):
        with self.assertRaisesRegex(tarn.DtypeError, "int of 16 bits"):
            tarn.from_dlpack(np.ones(2, np.int16))
        with self.assertRaisesRegex(tarn.DtypeError, "complex"):
            tarn.from_dlpack(np.ones(2, np.complex64))
        with self.assertRaisesRegex(BufferError, "detach"):
            torch.from_dlpack(tarn.ones(2, requires_grad=True))
        with self.assertRaisesRegex(TypeError, "float"):
            tarn.ones(2, dtype="bf16").numpy()
        with self.assertRaises(BufferError):
            tarn.ones(2).__dlpack__(dl_device=(2, 0))
        with self.assertRaises(AttributeError):
            tarn.from_dlpack([1, 2])
        gc.collect()


class Lifetimes(Case):
    """No leak, no use after the end."""

    def test_an_array_lives_as_long_as_its_tensors(self):
        array, ref = watched((3, 4))
        shared = tarn.from_dlpack(array)
        view = shared[1:, ::2]
        del array, shared
        gc.collect()
        self.assertIsNotNone(ref())
        self.assertEqual(view.tolist(), [[4, 6], [8, 10]])
        del view
        gc.collect()
        self.assertIsNone(ref())

    def test_a_tape_keeps_memory(self):
        array, ref = watched()
        x = tarn.ones(4, requires_grad=True)
        y = (x * tarn.from_dlpack(array)).sum()
        del array
        gc.collect()
        self.assertIsNotNone(ref())
        y.backward()
        self.assertEqual(x.grad.tolist(), [0, 1, 2, 3])
        del y
        gc.collect()
        self.assertIsNone(ref())

    def test_tensors_outlive_their_python_objects(self):
        before = blocks()
        x = tarn.arange(1000, dtype="f32")
        kept = [torch.from_dlpack(x), np.from_dlpack(x[10:]), x.numpy()]
        del x
        gc.collect()
        filler = [tarn.zeros(1000) for _ in range(20)]
        self.assertEqual(float(kept[0][999]), 999)
        self.assertEqual(kept[1][0], 10)
        self.random.shuffle(kept)
        while kept:
            kept.pop()
            gc.collect()
        del filler
        self.assertEqual(blocks(), before)

    def test_an_unused_capsule_is_released(self):
        before = blocks()
        for version in (None, (1, 0)):
            capsule = tarn.ones(100).__dlpack__(max_version=version)
            self.assertEqual(blocks(), before + 1)
            del capsule
            self.assertEqual(blocks(), before)

    def test_a_consumer_that_refuses_a_capsule_frees_it(self):
        """Its exception is pending when the capsule ends, and must be the one that is seen."""
        before = blocks()
        for _ in range(3):
            with self.assertRaisesRegex((BufferError, RuntimeError), "(?i)dtype|data type|unsupported|not supported"):
                np.from_dlpack(tarn.ones(10, dtype="bf16"))
            self.assertEqual(blocks(), before)

    def test_a_consumer_that_raises_midway_leaks_nothing(self):
        def consumer(x, version):
            capsule = x.__dlpack__(max_version=version)
            self.assertEqual(blocks(), before + 1)
            raise LookupError(str(capsule))

        before = blocks()
        for version in (None, (1, 0)):
            with self.assertRaises(LookupError):
                consumer(tarn.ones(10), version)
            self.assertEqual(blocks(), before)

    def test_an_error_while_a_capsule_is_made_leaks_nothing(self):
        before = blocks()
        for version in (None, (1, 0)):
            with unittest.mock.patch.object(_dlpack, "_new", side_effect=MemoryError):
                with self.assertRaises(MemoryError):
                    tarn.ones(10).__dlpack__(max_version=version)
            self.assertEqual(blocks(), before)

    def test_consumed_capsules_free_once(self):
        before = blocks()
        for version in (None, (1, 0)):
            for consume in (torch.from_dlpack, tarn.from_dlpack):
                capsule = tarn.ones(10).__dlpack__(max_version=version)
                taken = consume(capsule)
                del capsule
                self.assertEqual(blocks(), before + 1)
                self.assertEqual(taken.tolist(), [1] * 10)
                del taken
                self.assertEqual(blocks(), before)
        taken = np.from_dlpack(tarn.ones(10))
        self.assertEqual(taken.tolist(), [1] * 10)
        del taken
        self.assertEqual(blocks(), before)

    def test_capsules_end_with_the_interpreter(self):
        path = os.pathsep.join(filter(None, [os.path.dirname(os.path.dirname(tarn.__file__)),
                                             os.environ.get("PYTHONPATH")]))
        for way in ("global", "module", "builtin", "cycle", "consumed"):
            done = subprocess.run([sys.executable, "-X", "dev", "-c", AT_EXIT, way], capture_output=True, check=False,
                                  env={**os.environ, "PYTHONPATH": path}, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, b""), way)
            self.assertEqual(done.stdout, b"\x01\n", way)

    def test_a_capsule_is_used_once(self):
        for version in (None, (1, 0)):
            capsule = tarn.ones(2).__dlpack__(max_version=version)
            self.assertEqual(tarn.from_dlpack(capsule).tolist(), [1, 1])
            with self.assertRaisesRegex(ValueError, "already been used"):
                tarn.from_dlpack(capsule)

    def test_a_refused_capsule_is_released(self):
        array = np.ones(2, np.int16).view(Array)
        ref = weakref.ref(array)
        with self.assertRaises(tarn.DtypeError):
            tarn.from_dlpack(array)
        del array
        gc.collect()
        self.assertIsNone(ref())

    def test_many_rounds_in_any_order(self):
        before, refs = blocks(), []
        for _ in range(100):
            array, ref = watched()
            things = [array, tarn.from_dlpack(array), torch.from_dlpack(tarn.from_dlpack(array))]
            things += [tarn.from_dlpack(things[2]), things[1] + 1, things[1].numpy()]
            del array
            refs.append(ref)
            self.random.shuffle(things)
            while things:
                things.pop()
        gc.collect()
        self.assertEqual([ref() for ref in refs if ref() is not None], [])
        self.assertEqual(blocks(), before)

    def test_cycles_and_threads(self):
        before = blocks()

        class Node:
            """Part of a cycle."""

        def work():
            for _ in range(50):
                node = Node()
                node.me, node.tensor = node, tarn.ones(16)
                node.array = node.tensor.numpy()
                node.again = tarn.from_dlpack(node.array)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        self.assertEqual(blocks(), before)

    def test_a_parameter_that_moves_leaves_shared_memory_alone(self):
        array, ref = watched()
        module = tarn.nn.Module.__new__(type("Own", (tarn.nn.Module, ), {"forward": lambda self, x: x * self.weight}))
        tarn.nn.Module.__init__(module)
        module.weight = tarn.nn.Parameter(tarn.from_dlpack(array))
        seen = torch.from_dlpack(module.weight.detach())
        optimizer = tarn.optim.SGD(module, lr=1.0)
        module(tarn.ones(4)).sum().backward()
        optimizer.step()
        self.assertEqual(module.weight.tolist(), [-1, 0, 1, 2])
        self.assertEqual(seen.tolist(), [0, 1, 2, 3])
        del array, seen
        gc.collect()
        self.assertIsNone(ref())

    def test_the_deleter_may_be_called_without_python(self):
        before = blocks()
        capsule = tarn.ones(10).__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(capsule, b"dltensor")
        ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b"used_dltensor")
        del capsule
        self.assertEqual(blocks(), before + 1)
        deleter = ctypes.c_void_p.from_address(address + 56).value
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(address)
        self.assertEqual(blocks(), before)
