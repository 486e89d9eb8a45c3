"""ResNet-20 with weights trained by others, on 1,000 images of CIFAR-10: the file as it is, loaded by name in tarn and
written out in torch by hand. Image by image tarn gives torch's class, and logits that are no further from torch's in
f64 than twice torch's in f32, plus 1e-5 (TARN_TEST_DATA names a folder that holds cifar10/ and resnet20/)."""
import json
import os

import numpy
import torch

import compare
import support
import tarn

functional = torch.nn.functional
IMAGES, AT_ONCE, RIGHT = 1000, 250, 915
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def paths():
    """(images, weights), or None."""
    folder = os.environ.get("TARN_TEST_DATA", "")
    found = os.path.join(folder, "cifar10", "test_first1000.bin"), os.path.join(folder, "resnet20",
                                                                                "resnet20.safetensors")
    return found if folder and all(os.path.exists(path) for path in found) else None


def read_images(path):
    """(x [1000, 3, 32, 32] in f64, normalised, labels [1000])."""
    records = numpy.fromfile(path, numpy.uint8).reshape(IMAGES, 3073)
    x = torch.from_numpy(records[:, 1:].copy()).reshape(IMAGES, 3, 32, 32).double() / 255
    mean, deviation = (torch.tensor(values, dtype=torch.float64).reshape(3, 1, 1) for values in (MEAN, DEVIATION))
    return (x - mean) / deviation, torch.from_numpy(records[:, 0].astype(numpy.int64))


def read_weights(path):
    """Tensors by name, all f32; read without tarn, and without a package that is not everywhere where a device is."""
    with open(path, "rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {
        name: torch.frombuffer(bytearray(data[slice(*entry["data_offsets"])]),
                               dtype=torch.float32).reshape(entry["shape"]) for name, entry in head.items()
        if name != "__metadata__"}


# ---- torch -----------------------------------------------------------------------------------------------------------
# ---------------------


def conv_norm(w, x, conv, norm, stride=1):
    x = functional.conv2d(x, w[f"{conv}.weight"], stride=stride, padding=1)
    return functional.batch_norm(x,
                                 *(w[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")))


def block(w, x, name, stride):
    """The shortcut of a block that halves the image: every second pixel, with as many channels of zeros on either side
    as are missing."""
    body = conv_norm(w, conv_norm(w, x, f"{name}.conv1", f"{name}.bn1", stride).relu(), f"{name}.conv2", f"{name}.bn2")
    missing = body.shape[1] - x.shape[1]
    return (body + functional.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, missing // 2, missing // 2))).relu()


def torch_logits(weights, x, dtype):
    w, x = {name: value.to(dtype) for name, value in weights.items()}, x.to(dtype)
    x = conv_norm(w, x, "conv1", "bn1").relu()
    for stage in (1, 2, 3):
        for k in range(3):
            x = block(w, x, f"layer{stage}.{k}", 2 if stage > 1 and k == 0 else 1)
    return functional.linear(x.mean((2, 3)), w["linear.weight"], w["linear.bias"]).double()


# ---- tarn ------------------------------------------------------------------------------------------------------------
# ---------------------


def tarn_logits(path, x):
    handle = support.call("model_resnet20", 10, support.device())
    model = tarn.nn.Module._borrow(handle)
    try:
        support.call("module_load_sized", model, path, *support.options("module_load", allow_missing=True))
        model.eval()
        with tarn.no_grad():
            return torch.cat([support.read(model(support.tensor(part))).double() for part in x.float().split(AT_ONCE)])
    finally:
        support.call("module_free", handle)


# ---- both ------------------------------------------------------------------------------------------------------------
# -----------------------


def judge(ours, theirs, exact, labels):
    far, bar = (ours - exact).abs().max().item(), 2 * (theirs - exact).abs().max().item() + 1e-5
    other = (ours.argmax(1) != exact.argmax(1)).nonzero().flatten().tolist()
    right = (ours.argmax(1) == labels).sum().item()
    return [
        compare.Verdict(far <= bar, far, bar, "abs",
                        f"logits are {far:.2g} from torch's in f64, {bar:.2g} at most are wanted"),
        compare.Verdict(not other, text=f"images of another class than torch's: {other}"),
        compare.Verdict(right == RIGHT, text=f"{right} of {IMAGES} are right, {RIGHT} are wanted")]


def run(_seed):
    """Checks of (name, dtype, verdicts)."""
    if not paths():
        yield "real data", "f32", None
        return
    x, labels = read_images(paths()[0])
    weights = read_weights(paths()[1])
    exact, theirs = torch_logits(weights, x, torch.float64), torch_logits(weights, x, torch.float32)
    yield "1,000 images", "f32", judge(tarn_logits(paths()[1], x), theirs, exact, labels)
