"""Image files against Pillow: PNG of every mode, depth and filter, interlaced ones too, JPEG, PGM and PPM; grey, colour
and other sizes. What Pillow cannot write (16-bit colour, interlaced rows, chosen filters) is written here by hand, and
still judged by what Pillow reads."""
import ctypes as c
import os
import random
import struct
import tempfile
import zlib

import numpy
from PIL import Image, ImageOps

import support
import tarn
from tarn import _c
from tarn._types import shape_struct

PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
          (0, 1, 1, 2)]  # left, top, across, down
DEPTHS = {0: [1, 2, 4, 8, 16], 2: [8, 16], 3: [1, 2, 4, 8], 4: [8, 16], 6: [8, 16]}  # by colour type
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def take(array):
    """The elements as a NumPy array; the memory goes back."""
    shape = tuple(array.shape.size[: array.shape.rank])
    values = numpy.ctypeslib.as_array(
        (c.c_uint8 * int(numpy.prod(shape))).from_address(array.data)).reshape(shape).copy()
    support.call("array_free", c.byref(array))
    return values


def load(path):
    array = _c.tarn_array()
    support.call("image_load", path, c.byref(array))
    return take(array)


def given(values):
    values = numpy.ascontiguousarray(values)
    return values, _c.tarn_array(values.ctypes.data, shape_struct(values.shape), int(tarn.uint8))


def planes(image):
    """A Pillow image of 8-bit modes as [C, H, W]."""
    values = numpy.asarray(image, dtype=numpy.uint8)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def same(ours, theirs):
    return "" if ours.shape == theirs.shape and (ours == theirs).all() else f"differs: {ours.shape} and {theirs.shape}"


# ---- PNG, written by hand
# ------------------------------------------------------------------------------------------------------


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def pack(row, depth):
    """A row of samples as bytes."""
    if depth == 16:
        return row.astype(">u2").tobytes()
    bits = ((row[:, None].astype(numpy.uint8) >> numpy.arange(depth - 1, -1, -1)) & 1).reshape(-1)
    return numpy.packbits(bits).tobytes()


def predict(kind, left, above, corner):
    if kind == 4:
        guess = left + above - corner
        return min((left, above, corner), key=lambda x: abs(guess - x))
    return (0, left, above, (left + above) // 2)[kind]


def filtered(rows, reach, rng):
    """Packed rows, each with a filter drawn at random."""
    made, above = b"", bytes(len(rows[0])) if rows else b""
    for row in rows:
        kind = rng.randrange(5)
        made += bytes([kind]) + bytes(
            (row[i] -
             predict(kind, row[i - reach] if i >= reach else 0, above[i], above[i - reach] if i >= reach else 0)) % 256
            for i in range(len(row)))
        above = row
    return made


def png(values, depth, colour, interlaced, rng, extra=b""):
    """A file of [H, W, samples] values; `extra` chunks come before the rows, which are cut into chunks anywhere."""
    height, width, samples = values.shape
    reach = max(1, samples * depth // 8)
    data = b""
    for left, top, across, down in PASSES if interlaced else [(0, 0, 1, 1)]:
        part = values[top::down, left::across]
        if part.shape[1]:
            data += filtered([pack(row.reshape(-1), depth) for row in part], reach, rng)
    data = zlib.compress(data, rng.randrange(10))
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
    parts = [data[a:b] for a, b in zip([0] + cuts, cuts + [len(data)])]
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"tEXt", b"Title\0x") + extra +
            b"".join(chunk(b"IDAT", p) for p in parts) + chunk(b"IEND", b""))


def as_pillow_reads(path, colour, depth, has_palette_alpha):
    """What tarn should make of a file, by way of Pillow. A single transparent colour is left out: Pillow mistakes it
    below 8 bits."""
    image = Image.open(path)
    if colour == 0 and depth == 16:
        return (numpy.asarray(image).astype(numpy.uint32) >> 8).astype(numpy.uint8)[None]
    if colour == 3:
        image = image.convert("RGBA" if has_palette_alpha else "RGB")
    return planes(image.convert("L" if colour == 0 else "LA") if colour in (0, 4) else image)


def check_png_kinds(folder, rng):
    """Every colour type and depth, plain and interlaced, with and without transparency, of many small sizes."""
    path = os.path.join(folder, "x.png")
    for colour, depths in DEPTHS.items():
        for depth in depths:
            for number in range(24):
                interlaced, transparent = number % 2, number % 3 == 0 and colour in (0, 2, 3)
                height, width = rng.randrange(1, 20), rng.randrange(1, 20)
                generator = numpy.random.default_rng(rng.randrange(1 << 32))
                count = rng.randrange(1, (1 << depth) + 1) if colour == 3 else 1 << depth
                values = generator.integers(0, count, (height, width, SAMPLES[colour]))
                extra = chunk(b"PLTE", generator.bytes(3 * count)) if colour == 3 else b""
                if transparent:
                    key = values[rng.randrange(height), rng.randrange(width)]
                    extra += chunk(
                        b"tRNS",
                        generator.bytes(rng.randrange(1, count +
                                                      1)) if colour == 3 else struct.pack(f">{len(key)}H", *key))
                with open(path, "wb") as file:
                    file.write(png(values, depth, colour, interlaced, rng, extra))
                theirs = as_pillow_reads(path, colour, depth, transparent)
                if transparent and colour != 3:
                    theirs = numpy.concatenate([
                        theirs, 255 * (values != key).any(2, keepdims=True).transpose(2, 0, 1).astype(numpy.uint8)])
                wrong = same(load(path), theirs)
                if wrong:
                    return (f"colour type {colour}, depth {depth}, interlaced {interlaced}, transparent {transparent}, "
                            f"{width} x {height}: {wrong}")
    return ""


def check_png_of_pillow(folder, rng):
    """What Pillow writes, in every mode that PNG has."""
    path = os.path.join(folder, "x.png")
    for mode in ["1", "L", "LA", "P", "RGB", "RGBA"] * 6:
        generator = numpy.random.default_rng(rng.randrange(1 << 32))
        height, width = rng.randrange(1, 120), rng.randrange(1, 120)
        channels = {"LA": 2, "RGB": 3, "RGBA": 4}.get(mode, 1)
        smooth = numpy.add.outer(numpy.arange(height), numpy.arange(width))[:, :, None] * numpy.arange(1, channels + 1)
        values = ((smooth + generator.integers(0, 9, (height, width, channels))) % 256).astype(numpy.uint8)
        image = Image.fromarray(values[:, :, 0] if channels == 1 else values, "L" if channels == 1 else mode)
        image = image.convert(mode) if mode == "1" else image.quantize(rng.randrange(2, 257)) if mode == "P" else image
        image.save(path, compress_level=rng.randrange(10), optimize=rng.random() < 0.5)
        wrong = same(load(path), planes(image.convert({"1": "L", "P": "RGB"}.get(mode, mode))))
        if wrong:
            return f"mode {mode}, {width} x {height}: {wrong}"
    return ""


def check_pnm(folder, rng):
    """All four kinds, with odd white space and comments, and any largest value."""
    path = os.path.join(folder, "x.pnm")
    for number in range(120):
        kind = rng.choice("2356")
        height, width, channels = rng.randrange(1, 30), rng.randrange(1, 30), 1 if kind in "25" else 3
        largest = rng.choice([255, 1, 15, 100, 127, 254, 256, 999, 65535])
        values = numpy.random.default_rng(rng.randrange(1 << 32)).integers(0, largest + 1, (height, width, channels))
        space = lambda: rng.choice([" ", "\n", "\t", "\r\n", "  ", "\n# a comment 1 2 3\n"])
        head = f"P{kind}{space()}{width}{space()}{height}{space()}{largest}"
        if kind in "23":
            body = "".join(f"{space()}{v}" for v in values.reshape(-1)).encode() + rng.choice([b"", b"\n"])
        else:
            body = b"\n" + values.astype(">u2" if largest > 255 else "u1").tobytes()
        with open(path, "wb") as file:
            file.write(head.encode() + body)
        ours, exact = load(path), ((2 * values * 255 + largest) // (2 * largest)).transpose(2, 0, 1)
        if same(ours, exact):
            return f"P{kind}, largest value {largest}, {width} x {height}: {same(ours, exact)}"
        if largest == 255 and same(ours, planes(Image.open(path))):
            return f"P{kind}, {width} x {height}: Pillow reads it differently"
    return ""


def check_convert(folder, rng):
    """Grey and colour as Pillow makes them, over white where there is transparency."""
    for channels in [1, 2, 3, 4] * 5:
        values = numpy.random.default_rng(rng.randrange(1 << 32)).integers(
            0, 256, (channels, rng.randrange(1, 40), rng.randrange(1, 40)), dtype=numpy.uint8)
        keep, array = given(values)
        colour = values[:3] if channels > 2 else numpy.repeat(values[:1], 3, 0)
        if channels in (2, 4):
            alpha = values[-1].astype(numpy.uint32)
            colour = ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(numpy.uint8)
        image = Image.fromarray(numpy.ascontiguousarray(colour.transpose(1, 2, 0)), "RGB")
        for to, theirs in ((1, planes(image.convert("L"))), (3, planes(image))):
            made = _c.tarn_array()
            support.call("image_convert", c.byref(array), to, c.byref(made))
            wrong = same(take(made), theirs)
            if wrong:
                return f"{channels} channels to {to}: {wrong}"
    return ""


def resized(values, height, width):
    keep, array = given(values)
    made = _c.tarn_array()
    support.call("image_resize", c.byref(array), height, width, c.byref(made))
    return take(made)


def check_resize(folder, rng):
    """Pillow's bilinear filter, pixel for pixel along each axis. Along both, rounding between the passes depends on
    their order, which Pillow chooses by the sizes: rows come first here, so that the results are one level apart at
    most."""
    for number in range(60):
        channels, largest = rng.randrange(1, 5), 70 if number < 50 else 700
        values = numpy.random.default_rng(rng.randrange(1 << 32)).integers(
            0, 256, (channels, rng.randrange(1, largest), rng.randrange(1, largest)), dtype=numpy.uint8)
        for height, width in ((values.shape[1], rng.randrange(1, 70)), (rng.randrange(1, 70), values.shape[2]),
                              (rng.randrange(1, 70), rng.randrange(1, 70))):
            ours = resized(values, height, width)
            theirs = numpy.stack([
                numpy.asarray(Image.fromarray(plane, "L").resize((width, height), Image.BILINEAR)) for plane in values])
            if height != values.shape[1] and width != values.shape[2]:
                if abs(ours.astype(int) - theirs).max() > 1:
                    return f"{values.shape} to {height} x {width}: {abs(ours.astype(int) - theirs).max()} levels apart"
                theirs = resized(resized(values, values.shape[1], width), height, width)
            wrong = same(ours, theirs)
            if wrong:
                return f"{values.shape} to {height} x {width}: {wrong}"
    return ""


def check_jpeg(folder, rng):
    """JPEG of Pillow: grey, colour with every subsampling, CMYK; baseline and progressive; restart markers; every
    orientation of EXIF. Pixels are equal: both use libjpeg-turbo."""
    path = os.path.join(folder, "x.jpg")
    for number in range(90):
        mode = ("L", "RGB", "CMYK")[number % 3]
        channels = {"L": 1, "RGB": 3, "CMYK": 4}[mode]
        height, width = rng.randrange(1, 90), rng.randrange(1, 90)
        smooth = numpy.add.outer(numpy.arange(height), numpy.arange(width))[:, :, None] * numpy.arange(1, channels + 1)
        noise = numpy.random.default_rng(rng.randrange(1 << 32)).integers(0, 40, (height, width, channels))
        values = ((smooth + noise) % 256).astype(numpy.uint8)
        image = Image.fromarray(values[:, :, 0] if channels == 1 else values, mode)
        exif = Image.Exif()
        exif[0x0112] = number % 9  # 0 is none
        options = {"quality": rng.randrange(1, 101), "progressive": rng.random() < 0.5, "exif": exif}
        if mode == "RGB":
            options["subsampling"] = rng.randrange(3)
        if rng.random() < 0.3:
            options["restart_marker_blocks"] = rng.randrange(1, 9)
        image.save(path, "JPEG", **options)
        theirs = ImageOps.exif_transpose(Image.open(path))
        wrong = same(load(path), planes(theirs.convert("RGB") if mode == "CMYK" else theirs))
        if wrong:
            return f"{mode}, {width} x {height}, {options}: {wrong}"
    return ""


CHECKS = {
    "kinds of PNG": check_png_kinds, "PNG of Pillow": check_png_of_pillow, "PGM and PPM": check_pnm,
    "JPEG of Pillow": check_jpeg,
    "grey and colour": check_convert, "other sizes": check_resize}


def run(seed):
    """Yields (check, what is wrong or "")."""
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            yield name, check(folder, random.Random(f"{seed}/{name}"))
