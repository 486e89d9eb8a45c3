"""Tensors: to and from Python, NumPy and PyTorch, operators, indexing, gradients, errors."""
import copy
import gc
import pickle
import threading

from support import TORCH, Case, blocks, np, tarn, to_tarn, torch

BINARY = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
          "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
          "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "%": lambda a, b: a % b,
          "maximum": lambda a, b: a.maximum(b), "minimum": lambda a, b: a.minimum(b)}
UNARY = {name: lambda x, name=name: getattr(x, name)()
         for name in "abs sign square sqrt rsqrt reciprocal exp exp2 log log2 sin cos tanh erf sigmoid relu".split()}
REDUCED = ["sum", "mean", "prod", "max", "min", "var"]


class Values(Case):
    """Creation and conversion."""

    def test_dtypes_go_through_torch_and_back(self):
        for name, dtype in TORCH.items():
            given = self.values(*self.shape(), dtype=dtype)
            made = tarn.tensor(given)
            self.assertEqual(str(made.dtype), name)
            self.assertEqual(made.shape, tuple(given.shape))
            self.same(made, given, name)
            if name not in ("bf16", "f16"):
                self.assertEqual(made.tolist(), given.tolist())

    def test_numpy_shares_memory_both_ways(self):
        for dtype in (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.bool_):
            array = np.ones((2, 3), dtype)
            shared = tarn.from_dlpack(array)
            array[1, 2] = 0
            self.assertEqual(float(shared[1, 2]), 0)
            view = shared.numpy()
            self.assertEqual(view.dtype, array.dtype)
            view[0, 0] = 0
            self.assertEqual(array[0, 0], 0)
            self.assertTrue((np.asarray(shared) == array).all())

    def test_lists_infer_their_dtype(self):
        self.assertEqual(tarn.tensor([1, 2]).dtype, tarn.int64)
        self.assertEqual(tarn.tensor([1, 2.5]).dtype, tarn.float32)
        self.assertEqual(tarn.tensor([True, False]).dtype, tarn.bool_)
        self.assertEqual(tarn.tensor([]).shape, (0, ))
        self.assertEqual(tarn.tensor([[], []]).shape, (2, 0))
        self.assertEqual(tarn.tensor(2**62 + 1).item(), 2**62 + 1)
        self.assertEqual(tarn.tensor([[1, 2], [3, 4]], dtype="bf16").tolist(), [[1, 2], [3, 4]])
        for uneven in ([[1, 2], [3]], [1, [2]], [[1], 2]):
            with self.assertRaisesRegex(ValueError, "uneven"):
                tarn.tensor(uneven)

    def test_creation(self):
        self.same(tarn.zeros(2, 3), torch.zeros(2, 3))
        self.same(tarn.ones((2, 3), dtype="i64"), torch.ones(2, 3, dtype=torch.int64))
        self.same(tarn.full((2, 2), 1.5, "f64"), torch.full((2, 2), 1.5, dtype=torch.float64))
        self.same(tarn.arange(5), torch.arange(5))
        self.same(tarn.arange(1, 2, 0.25), torch.arange(1, 2, 0.25))
        self.same(tarn.eye(2, 3), torch.eye(2, 3))
        tarn.seed(3)
        first = tarn.randn(1000)
        tarn.seed(3)
        self.assertEqual(first.tolist(), tarn.randn(1000).tolist())
        self.assertLess(abs(float(first.mean())), 0.2)

    def test_the_text_of_a_tensor(self):
        self.assertEqual(repr(tarn.tensor([1.0, 2.5])), "tensor([1.  2.5], dtype=f32)")
        self.assertIn("requires_grad", repr(tarn.ones(1, requires_grad=True)))


class Operations(Case):
    """Operators with random shapes."""

    def test_two_operands_broadcast(self):
        for name, function in BINARY.items():
            shape = self.shape()
            tail = shape[self.random.randint(0, len(shape)):]
            other = tuple(1 if self.random.random() < 0.3 else size for size in tail)
            a, b = self.values(*shape), self.values(*other)
            wanted = getattr(torch, name)(a, b) if name in ("maximum", "minimum") else function(a, b)
            self.close(function(to_tarn(a), to_tarn(b)), wanted, what=f"{name} {shape} {other}")

    def test_numbers_adapt(self):
        x = self.values(3, 2)
        y = to_tarn(x)
        for got, wanted in ((2 + y, 2 + x), (2 - y, 2 - x), (y - 2, x - 2), (3 * y, 3 * x), (1 / y, 1 / x),
                            (y / 4, x / 4), (abs(y)**1.5, x.abs()**1.5), (2**y, 2**x), (-y, -x)):
            self.close(got, wanted)
        self.assertEqual((tarn.tensor([5, 7]) % 3).tolist(), [2, 1])
        with self.assertRaises(TypeError):
            y + "text"  # pylint: disable=pointless-statement

    def test_arrays_are_operands_on_either_side(self):
        x, y = self.values(3, 4, dtype=torch.float32), self.values(4, 4, dtype=torch.float32)
        for function in (lambda a, b: a + b[:3], lambda a, b: b[:3] - a, lambda a, b: a @ b, lambda a, b: b @ a.T,
                         lambda a, b: a / b[0], lambda a, b: a > b[1], lambda a, b: b[2] % a):
            wanted = function(x, y) if function(x, y).dtype == torch.bool else function(x.double(), y.double())
            self.close(function(to_tarn(x), y.numpy()), wanted, 1e-5)
        self.close(to_tarn(x) * y[:3], (x * y[:3]).double(), 1e-5)  # of PyTorch
        own = to_tarn(x, requires_grad=True)
        (np.ones((3, 4), np.float32) * own).sum().backward()
        self.assertEqual(own.grad.tolist(), np.ones((3, 4)).tolist())
        own = to_tarn(x)
        own += y.numpy()[:3]
        self.close(own, (x + y[:3]).double(), 1e-6)
        with self.assertRaisesRegex(tarn.DtypeError, "i64 and f32"):
            np.arange(4) + tarn.ones(4)  # pylint: disable=expression-not-assigned
        with self.assertRaises(TypeError):
            "text" + tarn.ones(4)  # pylint: disable=expression-not-assigned

    def test_numbers_of_numpy_adapt(self):
        for number in (np.float32(2), np.float64(2), np.int64(2), np.bool_(True), np.array(2.0)):
            for made in (number * tarn.ones(2), tarn.ones(2) * number):
                self.assertIsInstance(made, tarn.Tensor)
                self.assertEqual((made.tolist(), made.dtype), ([float(number)] * 2, tarn.float32))

    def test_large_integers_are_exact(self):
        x, large = tarn.tensor([2**60, 5]), 2**53 + 1
        self.assertEqual((x + large).tolist(), [2**60 + large, 5 + large])
        self.assertEqual((large - x).tolist(), [large - 2**60, large - 5])
        self.assertEqual((x == 2**60).tolist(), [True, False])
        with self.assertRaises(TypeError):
            x + 2**64  # pylint: disable=expression-not-assigned,pointless-statement

    def test_copies_and_pickles(self):
        """Two objects of Python must not free one handle."""
        before = blocks()
        x = tarn.arange(4, dtype="f32")
        same, other = copy.copy(x), copy.deepcopy({"a": x, "b": x})
        x.fill_(7)
        self.assertEqual(same.tolist(), [7] * 4)
        self.assertEqual(other["a"].tolist(), [0, 1, 2, 3])
        self.assertIs(other["a"], other["b"])
        del x
        self.assertEqual(same.tolist(), [7] * 4)
        layer = tarn.nn.Linear(2, 2)
        optimizer = tarn.optim.SGD(layer, lr=0.1)
        for value in (same, layer, optimizer, tarn.Tokenizer.of_bytes()):
            with self.assertRaisesRegex(TypeError, "pickled"):
                pickle.dumps(value)
        for value in (layer, optimizer, [tarn.nn.Sequential(tarn.nn.Linear(1, 1))]):
            with self.assertRaisesRegex(TypeError, "copied"):
                copy.deepcopy(value)
        with self.assertRaisesRegex(TypeError, "detach"):
            copy.deepcopy(layer["weight"])
        del same, other, layer, optimizer, value
        gc.collect()
        self.assertEqual(blocks(), before)

    def test_one_operand(self):
        for name, function in UNARY.items():
            x = self.values(*self.shape()).abs() + 0.1
            self.close(function(to_tarn(x)), function(x), what=name)

    def test_reductions(self):
        for name in REDUCED:
            x = self.values(*self.shape(3, least=2))
            axes = tuple(self.random.sample(range(3), self.random.randint(1, 2)))
            keepdim = self.random.random() < 0.5
            wanted = x
            if name in ("prod", "max", "min"):
                for axis in sorted(axes, reverse=True):
                    wanted = getattr(wanted, name)(axis, keepdim=keepdim)
                    wanted = wanted if name == "prod" else wanted.values
            else:
                wanted = getattr(x, name)(axes, keepdim=keepdim)
            self.close(getattr(to_tarn(x), name)(axes, keepdim=keepdim), wanted, what=f"{name} {axes}")
            self.close(getattr(to_tarn(x), name)(), getattr(x, name)(), what=name)

    def test_products(self):
        for shapes in (((3, 4), (4, 5)), ((4, ), (4, )), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2))):
            a, b = (self.values(*shape) for shape in shapes)
            self.close(to_tarn(a) @ to_tarn(b), a @ b, what=str(shapes))

    def test_in_place(self):
        x = self.values(2, 3)
        y = to_tarn(x)
        z = y
        y += 2
        y *= to_tarn(x)
        self.assertIs(y, z)
        self.close(z, (x + 2) * x)

    def test_functions(self):
        f = tarn.functional
        x, y = self.values(2, 5), self.values(2, 5)
        self.close(f.softmax(to_tarn(x)), x.softmax(-1))
        self.close(f.gelu(to_tarn(x)), torch.nn.functional.gelu(x))
        self.close(f.gelu(to_tarn(x), "tanh"), torch.nn.functional.gelu(x, approximate="tanh"))
        self.close(tarn.where(to_tarn(x) > 0, to_tarn(x), to_tarn(y)), torch.where(x > 0, x, y))
        self.close(tarn.concat([to_tarn(x), to_tarn(y)], 1), torch.cat([x, y], 1))
        self.close(tarn.stack([to_tarn(x), to_tarn(y)]), torch.stack([x, y]))
        for got, wanted in zip(f.split(to_tarn(x), [2, 3], 1), x.split([2, 3], 1)):
            self.close(got, wanted)
        for got, wanted in zip(f.topk(to_tarn(x), 3), x.topk(3)):
            self.close(got, wanted)
        self.close(f.apply("layernorm", to_tarn(x), epsilon=1e-3)[0],
                   torch.nn.functional.layer_norm(x, (5, ), eps=1e-3))
        self.assertIn("matmul", f.operations())
        with self.assertRaisesRegex(ValueError, "no operation 'matmull'"):
            f.apply("matmull", to_tarn(x))

    def test_attention_and_convolution(self):
        f = tarn.functional
        q, k, v = (self.values(2, 3, 5, 4) for _ in range(3))
        self.close(f.attention(to_tarn(q), to_tarn(k), to_tarn(v), causal=True),
                   torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        x, w, b = self.values(2, 3, 8, 7), self.values(4, 3, 3, 2), self.values(4)
        self.close(f.conv2d(to_tarn(x), to_tarn(w), to_tarn(b), stride=(2, 1), padding=1),
                   torch.nn.functional.conv2d(x, w, b, stride=(2, 1), padding=1))
        self.close(f.max_pool2d(to_tarn(x), 2), torch.nn.functional.max_pool2d(x, 2))


class Indexing(Case):
    """Indices as NumPy takes them."""

    def key(self, sizes):
        parts = []
        for size in sizes[:self.random.randint(0, len(sizes))]:
            kind = self.random.choice("iisssn")
            if kind == "n":
                parts.append(None)
            if kind == "i":
                parts.append(self.random.randint(-min(sizes), min(sizes) - 1))  # an ellipsis may move it
            else:
                ends = [self.random.choice([None, self.random.randint(-size - 2, size + 2)]) for _ in "be"]
                parts.append(slice(*ends, self.random.choice([None, 1, 2, 3, -1, -2])))
        if self.random.random() < 0.3:
            parts.insert(self.random.randint(0, len(parts)), Ellipsis)
        return tuple(parts)

    def test_reading(self):
        for _ in range(300):
            x = self.values(*self.shape(3)).numpy()
            key = self.key(x.shape)
            got = tarn.from_dlpack(x)[key]
            self.assertEqual(got.shape, x[key].shape, (x.shape, key))
            self.assertEqual(got.tolist(), x[key].tolist(), (x.shape, key))

    def test_writing(self):
        for _ in range(100):
            x = self.values(*self.shape(3)).numpy()
            y, key = tarn.tensor(x), self.key(x.shape)
            if x[key].size == 0:
                continue
            value = self.values(*x[key].shape[-1:]).numpy() if x[key].ndim and self.random.random() < 0.7 else 2.5
            x[key] = value
            y[key] = value if isinstance(value, float) else tarn.tensor(value)
            self.assertEqual(y.tolist(), x.tolist(), key)

    def test_index_tensors_and_iteration(self):
        x = self.values(5, 4)
        index = torch.tensor([[4, 0], [2, 2]])
        self.close(to_tarn(x)[to_tarn(index)], x[index])
        self.close(to_tarn(x)[:, tarn.tensor([1, 3])], x[:, [1, 3]])
        for row, wanted in zip(to_tarn(x), x):
            self.close(row, wanted)
        self.assertEqual(len(to_tarn(x)), 5)

    def test_lists_and_arrays_are_indices_and_values(self):
        x, wanted = tarn.arange(12).reshape((3, 4)), torch.arange(12).reshape(3, 4)
        for key in ([0, 2], np.array([2, 0, 2]), (slice(None), [1, -1 + 4]), (1, np.array([3, 0])), np.int64(2)):
            self.same(x[key], wanted[key])
        y = tarn.zeros(2, 3)
        y[0] = np.arange(3)
        y[1, 1:] = [8, 9]
        self.assertEqual(y.tolist(), [[0, 1, 2], [0, 8, 9]])
        y[:, 0] = np.float32(4)
        self.assertEqual(y[:, 0].tolist(), [4, 4])
        self.assertEqual(y.copy_(np.ones((2, 3))).tolist(), [[1] * 3] * 2)
        with self.assertRaisesRegex(TypeError, "index tensor is not supported"):
            y[[0, 1]] = 3
        with self.assertRaisesRegex(TypeError, "bool; i64 or i32"):
            y[y > 1]  # pylint: disable=pointless-statement
        with self.assertRaisesRegex(TypeError, "index of type str"):
            y["a"]  # pylint: disable=pointless-statement

    def test_shapes_may_be_tuples(self):
        x = tarn.arange(6)
        self.assertEqual(x.reshape((2, 3)).tolist(), x.reshape(2, 3).tolist())
        self.assertEqual(x.reshape([2, -1]).permute((1, 0)).shape, (3, 2))
        self.assertEqual(x.expand((2, 6)).shape, (2, 6))
        self.assertEqual((x.argmax().item(), x.reshape(2, 3).argmin().item()), (5, 0))
        self.assertEqual(f"{tarn.tensor(1.25):.1f} {x[1]:d}", "1.2 1")
        self.assertEqual(f"{x[:2]}", str(x[:2]))
        self.assertEqual(tarn.tensor([np.ones(2), [1, 2]]).tolist(), [[1, 1], [1, 2]])
        self.assertEqual(tarn.tensor([x[:2], x[2:4]]).dtype, tarn.int64)
        with self.assertRaisesRegex(TypeError, "dtype is <class 'numpy.float32'>"):
            tarn.zeros(2, dtype=np.float32)

    def test_bad_indices_are_errors(self):
        x = tarn.zeros(2, 3)
        for key in (2, -3, (0, 3), (0, 0, 0)):
            with self.assertRaises(IndexError):
                x[key]  # pylint: disable=pointless-statement
        for key in ("a", 1.5, tarn.ones(2)):
            with self.assertRaises(TypeError):
                x[key]  # pylint: disable=pointless-statement


class Gradients(Case):
    """Autograd next to torch's."""

    def test_gradients_of_expressions(self):
        for _ in range(20):
            n, k, m = (self.random.randint(1, 5) for _ in range(3))
            a, b, c = self.values(n, k), self.values(k, m), self.values(m)
            given = [t.clone().requires_grad_() for t in (a, b, c)]
            own = [to_tarn(t, requires_grad=True) for t in (a, b, c)]

            def expression(x, y, z):
                hidden = ((x @ y) * 0.5 + z).tanh()
                return (hidden[:, ::2].square().sum() - (hidden.exp() / (1 + z.square())).mean())

            expression(*given).backward()
            expression(*own).backward()
            for got, wanted in zip(own, given):
                self.close(got.grad, wanted.grad, 1e-10)

    def test_gradients_accumulate_and_drop(self):
        x = tarn.ones(3, requires_grad=True)
        self.assertIsNone(x.grad)
        x.sum().backward()
        (2 * x).sum().backward()
        self.assertEqual(x.grad.tolist(), [3, 3, 3])
        x.zero_grad()
        self.assertIsNone(x.grad)
        y = x * 3
        y.backward(tarn.tensor([1.0, 2.0, 3.0]), retain_graph=True)
        y.backward(tarn.tensor([1.0, 2.0, 3.0]))
        self.assertEqual(x.grad.tolist(), [6, 12, 18])
        with self.assertRaises(tarn.Error):
            y.backward(tarn.ones(3))

    def test_no_grad(self):
        x = tarn.ones(2, requires_grad=True)
        with tarn.no_grad():
            self.assertFalse((x * 2).requires_grad)

        @tarn.no_grad()
        def inside():
            return x * 2

        self.assertFalse(inside().requires_grad)
        self.assertTrue((x * 2).requires_grad)
        self.assertFalse(x.detach().requires_grad)


class Errors(Case):
    """The library's sentences as exceptions."""

    def test_kinds(self):
        with self.assertRaisesRegex(tarn.ShapeError, r"inner sizes differ: \[2, 3\] @ \[4, 2\]"):
            tarn.ones(2, 3) @ tarn.ones(4, 2)  # pylint: disable=expression-not-assigned
        with self.assertRaises(ValueError):
            tarn.ones(2).reshape(3)
        with self.assertRaises(tarn.DtypeError):
            tarn.ones(2) + tarn.ones(2, dtype="f64")  # pylint: disable=expression-not-assigned
        with self.assertRaises(tarn.DeviceError):
            tarn.ones(2, device="cuda:99")
        with self.assertRaises(tarn.Error) as caught:
            tarn.tensor([1.0]).to_dtype("f33")
        self.assertIn("f33", str(caught.exception))
        with self.assertRaises(OSError):
            tarn.Safetensors("/nonexistent/file.safetensors")
        self.assertEqual((tarn.ones(2) + 1).tolist(), [2, 2])

    def test_each_thread_has_its_own(self):
        failures = []

        def work():
            try:
                for _ in range(200):
                    try:
                        tarn.ones(2) @ tarn.ones(3)  # pylint: disable=expression-not-assigned
                    except tarn.ShapeError:
                        pass
                    if (tarn.ones(4) * 2).sum().item() != 8:
                        failures.append("wrong sum")
            except BaseException as error:  # pylint: disable=broad-except
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_nothing_stays_behind(self):
        before = blocks()
        x = tarn.randn(10, 10, requires_grad=True)
        for _ in range(50):
            ((x @ x).relu().sum() + x[2:, ::3].sum()).backward()
            tarn.functional.mse_loss(x, tarn.zeros(10, 10)).backward()
            x.zero_grad()
        del x
        self.assertEqual(blocks(), before)
