"""Modules and optimizers next to PyTorch's, with its parameters by name; modules of Python; ownership."""
import gc
import tempfile
from pathlib import Path

from support import Case, blocks, np, tarn, to_tarn, torch

nn, tnn = tarn.nn, torch.nn


def layers():
    """Name, ours, torch's, shape of x."""
    return [
        ("linear", nn.Linear(5, 3), tnn.Linear(5, 3), (2, 5)),
        ("linear without bias", nn.Linear(5, 3, bias=False), tnn.Linear(5, 3, bias=False), (2, 4, 5)),
        ("layernorm", nn.LayerNorm(6), tnn.LayerNorm(6), (2, 6)),
        ("rmsnorm", nn.RMSNorm(6), tnn.RMSNorm(6, eps=1e-6), (2, 6)),
        ("groupnorm", nn.GroupNorm(2, 4), tnn.GroupNorm(2, 4), (2, 4, 5)),
        ("instancenorm", nn.InstanceNorm(4), tnn.InstanceNorm2d(4), (2, 4, 3, 5)),
        ("batchnorm", nn.BatchNorm2d(3), tnn.BatchNorm2d(3), (4, 3, 5, 2)),
        ("conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), tnn.Conv1d(4, 6, 3, 2, 1, groups=2), (2, 4, 9)),
        ("conv2d", nn.Conv2d(3, 4, (3, 2), padding=(1, 0)), tnn.Conv2d(3, 4, (3, 2), padding=(1, 0)), (2, 3, 6, 5)),
        ("conv_transpose2d", nn.ConvTranspose2d(3, 4, 3, 2, 1, 1), tnn.ConvTranspose2d(3, 4, 3, 2, 1, 1), (2, 3, 4, 5)),
        ("max_pool2d", nn.MaxPool2d(2), tnn.MaxPool2d(2), (2, 3, 6, 4)),
        ("avg_pool2d", nn.AvgPool2d(3, 1, 1), tnn.AvgPool2d(3, 1, 1), (2, 3, 6, 4)),
        ("global_avg_pool2d", nn.GlobalAvgPool2d(), tnn.AdaptiveAvgPool2d(1), (2, 3, 6, 4)),
        ("upsample", nn.Upsample(scale=2), tnn.Upsample(scale_factor=2), (2, 3, 3, 4)),
        ("bilinear", nn.Upsample(size=(5, 7), mode="bilinear"), tnn.Upsample((5, 7), mode="bilinear"), (2, 3, 3, 4)),
        ("flatten", nn.Flatten(), tnn.Flatten(), (2, 3, 4)),
        ("max_pool2d ceil", nn.MaxPool2d(3, 2, 1, 2, True), tnn.MaxPool2d(3, 2, 1, 2, ceil_mode=True), (2, 3, 8, 7)),
        ("avg_pool2d ceil", nn.AvgPool2d(3, 2, 1, True, False), tnn.AvgPool2d(3, 2, 1, True, False), (2, 3, 8, 7)),
        ("lstm", nn.LSTM(4, 5, 2, bidirectional=True), tnn.LSTM(4, 5, 2, bidirectional=True), (6, 2, 4)),
        ("gru", nn.GRU(4, 5, batch_first=True), tnn.GRU(4, 5, batch_first=True), (2, 6, 4)),
        ("relu", nn.ReLU(), tnn.ReLU(), (3, 4)),
        ("gelu", nn.GELU(), tnn.GELU(), (3, 4)),
        ("gelu tanh", nn.GELU("tanh"), tnn.GELU("tanh"), (3, 4)),
        ("silu", nn.SiLU(), tnn.SiLU(), (3, 4)),
        ("tanh", nn.Tanh(), tnn.Tanh(), (3, 4)),
        ("sigmoid", nn.Sigmoid(), tnn.Sigmoid(), (3, 4)),
    ]


class Layers(Case):
    """Each layer, forward and backward."""

    def test_layers_equal_torchs(self):
        for name, ours, theirs, shape in layers():
            ours.load_state_dict(theirs.state_dict())
            x = self.values(*shape, dtype=torch.float32).requires_grad_()
            own = to_tarn(x, requires_grad=True)
            wanted = theirs(x)
            wanted = wanted[0] if isinstance(wanted, tuple) else wanted
            got = ours(own)
            self.close(got, wanted, 1e-5, name)
            upstream = self.values(*wanted.shape, dtype=torch.float32)
            wanted.backward(upstream)
            got.backward(to_tarn(upstream))
            self.close(own.grad, x.grad, 1e-5, f"{name}: gradient of x")
            theirs_by_name = dict(theirs.named_parameters())
            self.assertEqual({key for key, _ in ours.named_parameters()}, set(theirs_by_name), name)
            for key, parameter in ours.named_parameters():
                self.close(parameter.grad, theirs_by_name[key].grad, 1e-5, f"{name}: gradient of {key}")

    def test_an_embedding(self):
        ours, theirs = nn.Embedding(7, 3), tnn.Embedding(7, 3)
        ours.load_state_dict(theirs.state_dict())
        index = torch.tensor([[1, 6], [0, 1]])
        self.close(ours(to_tarn(index)), theirs(index), 0)

    def test_parameters_have_the_dtype_that_is_asked_for(self):
        made = [nn.Linear(3, 2, dtype="f64"), nn.Embedding(3, 2, dtype="f64"), nn.LayerNorm(4, dtype="f64"),
                nn.RMSNorm(4, dtype="f64"), nn.GroupNorm(2, 4, dtype="f64"),
                nn.InstanceNorm(4, affine=True, dtype="f64"), nn.BatchNorm2d(4, dtype="f64"),
                nn.Conv1d(4, 2, 3, dtype="f64"), nn.Conv2d(4, 2, 3, dtype="f64"),
                nn.ConvTranspose2d(4, 2, 3, dtype="f64"), nn.LSTM(4, 5, dtype="f64"), nn.GRU(4, 5, dtype="f64")]
        for layer in made:
            self.assertEqual({parameter.dtype for parameter in layer.parameters()}, {tarn.float64}, layer.kind)

    def test_a_sequence_in_parts_with_the_state_between_them(self):
        for kind, other in ((nn.LSTM, tnn.LSTM), (nn.GRU, tnn.GRU)):
            theirs = other(3, 4, 2, dtype=torch.float64)
            ours = kind(3, 4, 2, dtype="f64")
            ours.load_state_dict(theirs.state_dict())
            x = self.values(6, 2, 3).requires_grad_()
            own = to_tarn(x, requires_grad=True)
            wanted, last = theirs(x)
            first, state = ours.with_state(own[:2])
            second, state = ours.with_state(own[2:], state)
            self.close(tarn.concat([first, second]), wanted, what=ours.kind)
            for got, expected in zip(state if isinstance(state, tuple) else [state],
                                     last if isinstance(last, tuple) else [last]):
                self.close(got, expected, what=f"state of {ours.kind}")
            wanted.sum().backward()
            (first.sum() + second.sum()).backward()  # through the state too
            self.close(own.grad, x.grad, what=f"gradient of {ours.kind}")

    def test_a_resnet(self):
        network = nn.ResNet(18, 5).eval()
        self.assertEqual(network.num_parameters(), 11_179_077)
        self.assertEqual(network["layer4.1.bn2.running_var"].shape, (512, ))
        with tarn.no_grad():
            self.assertEqual(network(tarn.zeros(1, 3, 32, 32)).shape, (1, 5))
        with self.assertRaisesRegex(tarn.Error, "19 layers"):
            nn.ResNet(19, 5)

    def test_dropout_depends_on_the_mode(self):
        layer, x = nn.Dropout(0.5), tarn.ones(1000)
        self.assertTrue(layer.training)
        dropped = sum(value == 0 for value in layer(x).tolist())
        self.assertTrue(400 < dropped < 600)
        self.assertEqual(layer.eval()(x).tolist(), [1] * 1000)


class Net(nn.Module):
    """Two layers, a scale, and a switch that torch could have too."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.rest = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2))
        self.scale = nn.Parameter(tarn.full((2, ), 1.5))

    def forward(self, x, negate=False):
        y = self.rest(self.first(x).tanh()) * self.scale
        return -y if negate else y


class TorchNet(tnn.Module):
    """The same."""

    def __init__(self):
        super().__init__()
        self.scale = tnn.Parameter(torch.full((2, ), 1.5))
        self.first = tnn.Linear(4, 8)
        self.rest = tnn.Sequential(tnn.LayerNorm(8), tnn.Linear(8, 2))

    def forward(self, x):
        return self.rest(self.first(x).tanh()) * self.scale


class Training(Case):
    """Optimizers, step by step."""

    def batch(self, network, *shapes, dtype, least, loss):
        """Values with gradients of at least that size: the first step of Adam divides a gradient by itself, which makes
        the rounding of one near zero a large step."""
        while True:
            drawn = [self.values(*shape, dtype=dtype) for shape in shapes]
            found = torch.autograd.grad(loss(*drawn), list(network.parameters()))
            if min(float(gradient.abs().min()) for gradient in found) > least:
                return drawn

    def train(self, make_ours, make_theirs, tolerance=2e-4):
        ours, theirs = Net(), TorchNet()
        ours.load_state_dict(theirs.state_dict())
        mine, other = make_ours(ours), make_theirs(theirs)
        for step in range(10):
            x, y = self.batch(theirs, (6, 4), (6, 2), dtype=torch.float32, least=0 if step else 1e-5,
                              loss=lambda x, y: torch.nn.functional.mse_loss(theirs(x), y))
            loss = tarn.functional.mse_loss(ours(to_tarn(x)), to_tarn(y))
            loss.backward()
            norm = mine.clip_grad_norm(0.5)
            mine.step()
            other.zero_grad()
            wanted = torch.nn.functional.mse_loss(theirs(x), y)
            wanted.backward()
            self.close(norm, torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5), tolerance)
            other.step()
            self.close(loss, wanted, tolerance)
        for name, parameter in theirs.named_parameters():
            self.close(ours[name], parameter, tolerance, name)

    def test_sgd(self):
        self.train(lambda m: tarn.optim.SGD(m, lr=0.1, momentum=0.9, nesterov=True),
                   lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True))

    def test_adam(self):
        self.train(lambda m: tarn.optim.Adam(m, lr=0.01), lambda m: torch.optim.Adam(m.parameters(), lr=0.01))

    def test_adamw(self):
        self.train(lambda m: tarn.optim.AdamW(m, lr=0.01, weight_decay=0.1, decay_all=True),
                   lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1))

    def test_adam_in_f64_has_torchs_defaults(self):
        """The library's options are f32: 0.999 of these is not 0.999."""
        ours, theirs = nn.Linear(3, 2, dtype="f64"), tnn.Linear(3, 2, dtype=torch.float64)
        ours.load_state_dict(theirs.state_dict())
        mine, other = tarn.optim.Adam(ours, lr=0.5), torch.optim.Adam(theirs.parameters(), lr=0.5)
        for step in range(5):
            x, = self.batch(theirs, (4, 3), dtype=torch.float64, least=0 if step else 1e-3,
                            loss=lambda x: theirs(x).square().sum())
            ours(to_tarn(x)).square().sum().backward()
            theirs(x).square().sum().backward()
            mine.step()
            other.step()
            other.zero_grad()
        self.close(ours["weight"], theirs.weight, 1e-12)
        for wrong in ("beta1", "beta2", "epsilon"):  # 0 is the library's default
            with self.assertRaisesRegex(ValueError, f"{wrong} is 0"):
                tarn.optim.AdamW(nn.Linear(3, 2), lr=0.1, **{wrong: 0.0})

    def test_one_cycle(self):
        net = nn.Linear(2, 2)
        optimizer = tarn.optim.SGD(net, lr=1.0)
        optimizer.set_schedule("one_cycle", warmup_steps=4, total_steps=10, start_factor=0.25, final_factor=0.1)
        rates = []
        for _ in range(10):
            rates.append(optimizer.lr)
            net(tarn.ones(1, 2)).sum().backward()
            optimizer.step()
        self.assertAlmostEqual(rates[0], 0.25, 6)
        self.assertAlmostEqual(max(rates), 1.0, 6)
        self.assertAlmostEqual(rates[-1], 0.1, 6)

    def test_schedules_groups_and_averages(self):
        net = Net()
        optimizer = tarn.optim.AdamW(net, lr=0.5, groups=[{"names": "*.bias", "lr_scale": 0.0001, "no_decay": True}])
        optimizer.set_schedule("cosine", warmup_steps=2, total_steps=10, final_factor=0.1)
        self.assertAlmostEqual(optimizer.lr, 0.25)
        average = tarn.optim.EMA(optimizer, 0.9)
        before = net["first.weight"].tolist()
        for _ in range(3):
            net(tarn.ones(1, 4)).sum().backward()
            optimizer.step()
            average.update()
        trained = net["first.weight"].tolist()
        self.assertNotEqual(trained, before)
        with average:
            self.assertNotEqual(net["first.weight"].tolist(), trained)
        self.assertEqual(net["first.weight"].tolist(), trained)
        self.assertEqual(optimizer.steps, 3)
        with self.assertRaisesRegex(ValueError, "names, lr_scale"):
            tarn.optim.SGD(net, lr=1.0, groups=[{"name": "x"}])
        with self.assertRaisesRegex(ValueError, "schedule is 'cosinus'"):
            optimizer.set_schedule("cosinus")


class Modules(Case):
    """Trees of modules, files, ownership."""

    def test_a_python_module_in_one_of_the_library(self):
        net = Net()
        whole = nn.Sequential(net, nn.Tanh())
        x = tarn.randn(3, 4)
        self.close(whole(x), torch.from_dlpack(net(x).detach().clone()).tanh(), 1e-6)
        self.close(net(x, negate=True), -torch.from_dlpack(net(x).detach().clone()), 0)
        self.assertEqual([name for name, _ in whole.named_parameters()][0], "0.scale")
        self.assertIn("Net", whole.summary(3, 4))
        whole(x).sum().backward()
        self.assertIsNotNone(net.scale.grad)
        child = net.rest
        del net, whole
        gc.collect()
        self.assertEqual(child(tarn.ones(1, 8)).shape, (1, 2))  # its tree lives on

    def test_an_exception_in_forward_reaches_the_caller(self):

        class Bad(nn.Module):
            """Raises."""

            def forward(self, x):
                raise KeyError("inside")

        with self.assertRaisesRegex(KeyError, "inside"):
            nn.Sequential(Bad())(tarn.ones(1))
        with self.assertRaises(NotImplementedError):
            type("Empty", (nn.Module, ), {})()(tarn.ones(1))
        self.assertEqual((tarn.ones(1) + 1).item(), 2)

    def test_what_a_module_refuses(self):
        class Late(nn.Module):
            """Forgets the constructor of its base."""

            def __init__(self):  # pylint: disable=super-init-not-called
                self.layer = nn.Linear(1, 1)

        with self.assertRaisesRegex(AttributeError, r"Late: super\(\).__init__\(\) must be called"):
            Late()
        net = Net()
        for name in ("first", "scale"):
            with self.assertRaisesRegex(AttributeError, f"'{name}' cannot be deleted"):
                delattr(net, name)
        net.other = 3
        del net.other
        with self.assertRaisesRegex(TypeError, "SGD: the first argument is a list; it must be the module"):
            tarn.optim.SGD(net.parameters(), lr=0.1)
        with self.assertRaisesRegex(TypeError, "Sequential: a list is given for a module"):
            nn.Sequential([nn.Linear(1, 1)])
        with self.assertRaisesRegex(TypeError, "a ndarray is given for a tensor: tarn.tensor"):
            nn.Linear(2, 2)(np.ones((1, 2)))
        with self.assertRaisesRegex(TypeError, "a list is given for a tensor"):
            tarn.functional.cross_entropy(tarn.ones(2, 3), [0, 1])
        with self.assertRaisesRegex(TypeError, "a float is given for a tensor"):
            tarn.functional.where(tarn.ones(2) > 0, tarn.ones(2), 0.0)
        with self.assertRaisesRegex(ValueError, "one number, or two"):
            nn.Conv2d(1, 1, (3, 3, 3))
        with self.assertRaisesRegex(TypeError, "tarn_linear_with_sized: argument 1"):
            nn.Linear(2.0, 3)

    def test_a_module_has_one_parent(self):
        layer = nn.Linear(2, 2)
        whole = nn.Sequential(layer)
        for again in (lambda: nn.Sequential(layer), lambda: nn.Residual(layer), lambda: setattr(Net(), "more", layer)):
            with self.assertRaisesRegex(ValueError, "has a parent"):
                again()
        same = nn.ReLU()
        with self.assertRaisesRegex(ValueError, "has a parent"):
            nn.Sequential(same, same)
        self.assertEqual(whole(tarn.ones(1, 2)).shape, (1, 2))

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.safetensors"
            net, other = Net(), Net()
            net.save_weights(path)
            other.load_weights(path)
            for name, tensor in net.state_dict().items():
                self.same(other[name], torch.from_dlpack(tensor.detach()), name)
            with self.assertRaises(tarn.Error):
                nn.Linear(2, 2).load_weights(path)

    def test_state_dicts_must_match(self):
        with self.assertRaisesRegex(ValueError, "'bias' is missing"):
            nn.Linear(2, 2).load_state_dict({"weight": torch.ones(2, 2)})
        with self.assertRaises(tarn.ShapeError):
            nn.Linear(2, 2).load_state_dict({"weight": torch.ones(2, 3), "bias": torch.ones(2)})

    def test_a_refused_child_is_freed_once(self):
        gc.collect()
        before = blocks()
        net = Net()
        for name in ("first", "a.b"):
            child = nn.Linear(4, 3)
            with self.assertRaises(tarn.ArgumentError):
                net.add_module(name, child)
            with self.assertRaises(ValueError):
                net.add_module("second_name", child)
        with self.assertRaisesRegex(ValueError, "inside itself"):
            net.me = net
        net(tarn.ones(1, 4))
        del net, child
        gc.collect()
        self.assertEqual(blocks(), before)

    def test_what_is_borrowed_is_freed_last(self):
        freed = []
        module = tarn._library.Owner(1, freed.append)
        optimizer = tarn._library.Owner(2, freed.append, module)
        module.release()
        self.assertEqual(freed, [])
        optimizer.release()
        self.assertEqual(freed, [2, 1])
        del module, optimizer
        self.assertEqual(freed, [2, 1])

    def test_cycles_are_freed_in_any_order(self):
        gc.collect()
        before = blocks()
        for _ in range(20):
            holder = type("Holder", (), {})()
            holder.me, holder.net = holder, Net()
            holder.optimizer = tarn.optim.AdamW(holder.net, lr=0.1)
            holder.average = tarn.optim.EMA(holder.optimizer, 0.9)
            holder.net(tarn.ones(1, 4)).sum().backward()
            holder.optimizer.step()
        del holder
        gc.collect()
        self.assertEqual(blocks(), before)
