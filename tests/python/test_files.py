"""Files: safetensors and GGUF next to the packages of their makers."""
import tempfile
from pathlib import Path

import gguf
import safetensors.numpy
import safetensors.torch

from support import TORCH, Case, np, tarn, to_tarn, torch


class Files(Case):
    """Reading and writing."""

    def setUp(self):
        super().setUp()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name) / "file"

    def test_safetensors_of_others(self):
        given = {f"x.{name}": self.values(*self.shape(), dtype=dtype) for name, dtype in TORCH.items()}
        safetensors.torch.save_file(given, self.path, {"made": "by others"})
        with tarn.Safetensors(self.path) as file:
            self.assertEqual(set(file), set(given))
            self.assertEqual(file.metadata, {"made": "by others"})
            self.assertIn("x.f32", file)
            self.assertNotIn("y", file)
            kept = file["x.bf16"]
            with self.assertRaises(KeyError):
                file["y"]  # pylint: disable=pointless-statement
        self.same(kept, given["x.bf16"])
        with self.assertRaisesRegex(ValueError, "closed"):
            file["x.f32"]  # pylint: disable=pointless-statement
        for name, tensor in tarn.load_file(self.path).items():
            self.same(tensor, given[name], name)

    def test_safetensors_for_others(self):
        given = {name: self.values(*self.shape(2), dtype=dtype) for name, dtype in TORCH.items()}
        tarn.save_file({name: to_tarn(value) for name, value in given.items()}, self.path, {"key": "värde"})
        for name, value in safetensors.torch.load_file(self.path).items():
            self.assertTrue(torch.equal(value, given[name]), name)
        with safetensors.safe_open(self.path, "pt") as file:
            self.assertEqual(file.metadata()["key"], "värde")

    def test_gguf(self):
        writer = gguf.GGUFWriter(str(self.path), "llama")
        writer.add_uint32("a.count", 7)
        writer.add_uint64("a.large", 2**63 - 1)
        writer.add_float32("a.real", 0.5)
        writer.add_bool("a.truth", True)
        writer.add_string("a.text", "naïve \0 \N{GRINNING FACE}")
        writer.add_array("a.numbers", [1, -2, 3])
        writer.add_array("a.reals", [0.5, 1.5])
        writer.add_array("a.words", ["one", "zwei", "", "a\0b"])
        plain = self.values(3, 64, dtype=torch.float32).numpy()
        packed = gguf.quants.quantize(plain, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("plain", plain)
        writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with tarn.GGUF(self.path) as file:
            found = file.metadata
            tensors = dict(file)
            self.assertEqual(file.dtype_name("packed"), "Q8_0")
        wanted = {"a.count": 7, "a.large": 2**63 - 1, "a.real": 0.5, "a.truth": True, "a.numbers": [1, -2, 3],
                  "a.text": "naïve \0 \N{GRINNING FACE}", "a.reals": [0.5, 1.5], "a.words": ["one", "zwei", "", "a\0b"]}
        self.assertEqual({key: found.get(key) for key in wanted}, wanted)
        self.assertEqual(tensors["plain"].tolist(), plain.tolist())
        self.assertEqual(tensors["packed"].dtype, tarn.DType.Q8_0)
        opened = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
        self.assertTrue((tensors["packed"].float().numpy() == opened).all())

    def test_damaged_files_are_errors(self):
        self.path.write_bytes(np.arange(100, dtype=np.uint8).tobytes())
        for kind in (tarn.Safetensors, tarn.GGUF):
            with self.assertRaises(tarn.FormatError):
                kind(self.path)
