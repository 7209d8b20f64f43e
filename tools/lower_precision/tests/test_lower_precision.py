"""tools/lower_precision: number formats against goldens of PyTorch and compressed-tensors, and whole checkpoints.

How the right answer is known: tests/goldens/lower_precision/formats.npz, which tools/oracles makes with the libraries
that own the formats; for checkpoints, a small one that is written and read back here by the definition of safetensors.
Runs under pytest and by itself.
"""

import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

TOOL = pathlib.Path(__file__).resolve().parents[1]
GOLDENS = TOOL.parents[1] / "tests" / "goldens" / "lower_precision" / "formats.npz"
sys.path.insert(0, str(TOOL))
import formats  # noqa: E402

SEED = 42
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 40, "hidden_size": 64,
    "num_hidden_layers": 3, "first_k_dense_replace": 1, "intermediate_size": 160, "moe_intermediate_size": 32,
    "num_attention_heads": 2, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "tie_word_embeddings": False,
}
SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I32": 4, "I64": 8}
MOE = ("gate_proj", "up_proj", "down_proj")


# ---- safetensors, by its definition ------------------------------------------------------------------------------


def write_file(path, tensors):
    """tensors: name to dtype, shape, bytes."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def read_folder(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            assert name not in tensors and end - begin == math.prod(entry["shape"]) * SIZES[entry["dtype"]], name
            tensors[name] = (entry["dtype"], tuple(entry["shape"]), data[begin:end])
    return tensors


def bf16_values(tensor):
    assert tensor[0] == "BF16"
    return (np.frombuffer(tensor[2], "<u2").astype(np.uint32) << 16).view(np.float32).reshape(tensor[1])


def shapes():
    c = CONFIG
    yield "model.embed_tokens.weight", (c["vocab_size"], 64)
    for i in range(3):
        at = f"model.layers.{i}."
        yield from ((at + n + ".weight", (64,)) for n in ("input_layernorm", "post_attention_layernorm"))
        for n, shape in (("q_a_proj", (24, 64)), ("q_b_proj", (32, 24)), ("kv_a_proj_with_mqa", (24, 64)),
                         ("kv_b_proj", (32, 16)), ("o_proj", (64, 16)), ("q_a_layernorm", (24,)), ("kv_a_layernorm", (16,))):
            yield f"{at}self_attn.{n}.weight", shape
        mlps = [("mlp.", 160)] if i == 0 else [(f"mlp.experts.{e}.", 32) for e in range(4)] + [("mlp.shared_experts.", 32)]
        for where, width in mlps:
            for kind in MOE:
                yield f"{at}{where}{kind}.weight", (64, width) if kind == "down_proj" else (width, 64)
        if i > 0:
            yield at + "mlp.gate.weight", (4, 64)
            yield at + "mlp.gate.e_score_correction_bias", (4,)
    yield "model.norm.weight", (64,)
    yield "lm_head.weight", (40, 64)


def make_source(folder, change=None, config=None):
    """A BF16 checkpoint in two shards, whose border separates no matter what."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(SEED)
    tensors = {}
    for name, shape in shapes():
        values = rng.standard_normal(shape).astype(np.float32) * np.float32(rng.uniform(0.01, 0.5))
        if name.endswith("bias"):
            tensors[name] = ("F32", shape, values.tobytes())
        else:
            tensors[name] = ("BF16", shape, (values.view(np.uint32) >> 16).astype("<u2").tobytes())
    if change is not None:
        change(tensors)
    names = list(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in shards.items():
        write_file(folder / file, {name: tensors[name] for name in held})
    index = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    (folder / "tokenizer.json").write_text('{"a": "\u00e9"}', encoding="utf-8")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "code.py").write_text("raise SystemExit")
    (folder / "tasks").mkdir()
    return folder


def run(source, out, *action):
    return subprocess.run([sys.executable, TOOL / "lower_precision.py", "--model", source, "--out", out, *action],
                          capture_output=True, text=True, timeout=300)


def rows_of_blocks(scales, shape):
    """Each element's factor."""
    rows, columns = np.indices(shape)
    return scales[rows // 128, columns // 128]


class Formats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with np.load(GOLDENS, allow_pickle=False) as file:
            cls.golden = dict(file)

    def test_e4m3_as_pytorch(self):
        np.testing.assert_array_equal(formats.to_e4m3(self.golden["f8_inputs"]), self.golden["f8_codes"])
        ours, theirs = formats.from_e4m3(np.arange(256, dtype=np.uint8)), self.golden["f8_values"]
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        real = ~np.isnan(theirs)
        np.testing.assert_array_equal(ours[real].view(np.uint32), theirs[real].view(np.uint32))
        self.assertEqual(int(real.sum()), 254)

    def test_bf16_as_pytorch(self):
        np.testing.assert_array_equal(formats.to_bf16(self.golden["f8_inputs"]), self.golden["bf16"])

    def test_groups_as_compressed_tensors(self):
        for bits in (4, 3, 2):
            whole, scales = formats.quantize_int(self.golden["group_inputs"], bits)
            np.testing.assert_array_equal(scales, self.golden[f"int{bits}_scales"])
            np.testing.assert_array_equal(whole, self.golden[f"int{bits}"])
            self.assertEqual(len(np.unique(whole)), 1 << bits)
            packed = formats.pack_int4(whole)
            np.testing.assert_array_equal(packed, self.golden[f"int{bits}_packed"])
            np.testing.assert_array_equal(formats.unpack_int4(packed), whole)
            ours = formats.dequantize_int(whole, scales)
            np.testing.assert_array_equal(ours.view(np.uint32), (self.golden[f"int{bits}_values"] + 0.0).view(np.uint32))

    def test_blocks(self):
        rng = np.random.default_rng(SEED)
        values = rng.standard_normal((200, 300)).astype(np.float32)
        values[128:, 256:] = 0
        scales = formats.block_scales(values)
        self.assertEqual(scales.shape, (2, 3))
        for (i, j), scale in np.ndenumerate(scales):
            block = values[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]
            self.assertEqual(scale, np.maximum(np.abs(block).max(), np.float32(1e-12)) / np.float32(448))
        read = formats.dequantize_f8(formats.quantize_f8(values, scales), scales)
        # Half of the last of four bits, or half of the smallest step.
        bound = np.maximum(np.abs(values) / 16, rows_of_blocks(scales, values.shape) / 1024) * (1 + 1e-6)
        self.assertTrue((np.abs(read - values) <= bound).all())


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self._scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self._scratch.cleanup)
        self.folder = pathlib.Path(self._scratch.name)
        self.source = make_source(self.folder / "source")
        self.before = read_folder(self.source)

    def made(self, name, *action, source=None):
        result = run(source or self.source, self.folder / name, *action)
        self.assertEqual(result.returncode, 0, result.stderr)
        after = read_folder(self.folder / name)
        index = json.loads((self.folder / name / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(after))
        self.assertEqual(index["metadata"]["total_size"], sum(len(data) for _, _, data in after.values()))
        return after, json.loads((self.folder / name / "config.json").read_text())

    def products(self):
        return [name for name in self.before if "_proj" in name]

    def same_but_products(self, after):
        for name, tensor in self.before.items():
            if "_proj" not in name:
                self.assertEqual(after[name], tensor, name)

    def test_folder_and_determinism(self):
        self.made("one", "--experts", "int3")
        self.made("two", "--experts", "int3")
        files = sorted(path.name for path in (self.folder / "one").iterdir())
        self.assertEqual(files, ["README.md", "chat_template.jinja", "config.json", "model-00001-of-00002.safetensors",
                                 "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"])
        for name in files:
            self.assertEqual((self.folder / "one" / name).read_bytes(), (self.folder / "two" / name).read_bytes(), name)
        self.assertEqual((self.folder / "one" / "tokenizer.json").read_bytes(), (self.source / "tokenizer.json").read_bytes())
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["one", "source", "two"])

    def test_experts(self):
        for name, bits in (("int4", 4), ("int3", 3), ("int2", 2)):
            after, config = self.made(name, "--experts", name)
            self.assertEqual(config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"], 4)
            self.same_but_products(after)
            levels = set()
            for module in self.products():
                if ".experts." not in module:
                    self.assertEqual(after[module], self.before[module], module)
                    continue
                values = bf16_values(self.before[module])
                rows, columns = values.shape
                self.assertNotIn(module, after)
                self.assertEqual(after[module + "_shape"], ("I64", (2,), struct.pack("<2q", rows, columns)))
                scales = bf16_values(after[module + "_scale"])
                words = np.frombuffer(after[module + "_packed"][2], "<u4").reshape(after[module + "_packed"][1])
                whole = np.zeros(values.shape)
                for column in range(columns):
                    whole[:, column] = ((words[:, column // 8] >> (4 * (column % 8))) & 15).astype(int) - 8
                levels |= set(whole.reshape(-1))
                wide = np.repeat(scales, 32, 1)
                ideal = np.clip(values / wide, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
                self.assertLessEqual(np.abs(whole - ideal).max(), 0.5 + 1e-5)
            self.assertEqual(levels, set(range(-(2 ** (bits - 1)), 2 ** (bits - 1))))

    def test_blocks_and_back(self):
        after, config = self.made("blocks", "--fp8-blocks")
        self.assertEqual(config["quantization_config"]["weight_block_size"], [128, 128])
        self.same_but_products(after)
        back, plain = self.made("back", "--bf16", source=self.folder / "blocks")
        self.assertNotIn("quantization_config", plain)
        self.same_but_products(back)
        for name in self.products():
            values, scales = bf16_values(self.before[name]), np.frombuffer(after[name + "_scale_inv"][2], "<f4")
            self.assertEqual(after[name][:2], ("F8_E4M3", values.shape))
            error = np.abs(bf16_values(back[name]) - values)
            self.assertTrue((error <= np.maximum(np.abs(values) * (2**-4 + 2**-8), scales.max() / 1024 * 1.01)).all(), name)

    def test_one_scale(self):
        self.made("blocks", "--fp8-blocks")
        for source in (None, self.folder / "blocks"):
            after, _ = self.made(f"one_{source is None}", "--fp8-one-scale", source=source)
            for layer in range(3):
                for kind in MOE:
                    ends = [f"mlp.experts.{e}.{kind}" for e in range(4)] if layer else [f"mlp.{kind}"]
                    names = [f"model.layers.{layer}.{end}.weight" for end in ends]
                    scales = np.concatenate([np.frombuffer(after[n + "_scale_inv"][2], "<f4") for n in names])
                    self.assertEqual(len(set(scales.tolist())), 1)
                    largest = max(np.abs(bf16_values(self.before[n])).max() for n in names)
                    self.assertAlmostEqual(float(scales[0]) * 448 / float(largest), 1, places=6)
            shared = "model.layers.1.mlp.shared_experts.up_proj.weight"
            expected = np.abs(bf16_values(self.before[shared])).max() / np.float32(448)
            self.assertAlmostEqual(float(np.frombuffer(after[shared + "_scale_inv"][2], "<f4")[0]) / float(expected), 1, places=6)

    def test_wrong_scale(self):
        for source_action, suffix in ((["--fp8-blocks"], "_scale_inv"), (["--experts", "int4"], "_scale")):
            sound, _ = self.made("sound" + suffix, *source_action)
            broken, _ = self.made("broken" + suffix, "--damage", "wrong-scale:2:4", source=self.folder / ("sound" + suffix))
            changed = {name for name in sound if sound[name] != broken[name]}
            self.assertEqual(changed, {f"model.layers.2.mlp.experts.{e}.down_proj.weight{suffix}" for e in range(4)})
            for name in changed:
                read = bf16_values if sound[name][0] == "BF16" else lambda t: np.frombuffer(t[2], "<f4").reshape(t[1])
                np.testing.assert_array_equal(read(broken[name]), read(sound[name]) * 4)
        dense, _ = self.made("dense", "--damage", "wrong-scale:0", source=self.folder / "sound_scale_inv")
        sound = read_folder(self.folder / "sound_scale_inv")
        self.assertEqual({n for n in sound if sound[n] != dense[n]}, {"model.layers.0.mlp.down_proj.weight_scale_inv"})

    def test_permute_experts(self):
        broken, _ = self.made("broken", "--damage", "permute-experts:1")
        for name, tensor in self.before.items():
            parts = name.split(".")
            if name.startswith("model.layers.1.mlp.experts."):
                parts[5] = str((int(parts[5]) + 1) % 4)
            self.assertEqual(broken[name], self.before[".".join(parts)], name)

    def test_refusals(self):
        gone, up = "model.norm.weight", "model.layers.1.mlp.experts.2.up_proj.weight"

        def set_nan(tensors):
            dtype, shape, data = tensors[up]
            tensors[up] = (dtype, shape, b"\xc0\x7f" + data[2:])

        sources = (
            ({"change": lambda t: t.pop(gone)}, {}, [gone, "missing"]),
            ({"change": lambda t: t.pop(up)}, {}, [up, "missing"]),
            ({"change": lambda t: t.update(extra=("F32", (1,), b"abcd"))}, {}, ["extra", "not of this architecture"]),
            ({"change": lambda t: t.update({up: ("F32", (32, 64), bytes(8192))})}, {}, [up, "F32", "BF16"]),
            ({"change": lambda t: t.update({up: ("BF16", (64, 32), bytes(4096))})}, {}, [up, "[32, 64]"]),
            ({"change": set_nan}, {}, [up, "not finite"]),
            ({"config": {"architectures": ["LlamaForCausalLM"]}}, {}, ["LlamaForCausalLM", "DeepseekV3ForCausalLM"]),
            ({"config": {"num_nextn_predict_layers": 1}}, {}, ["num_nextn_predict_layers"]),
            ({"config": {"hidden_size": -1}}, {}, ["hidden_size"]),
            ({"config": {"quantization_config": {"quant_method": "gptq"}}}, {}, ["quantization_config"]),
            ({"config": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}}, {}, ["weight_block_size"]),
        )
        for number, (arguments, _, words) in enumerate(sources):
            source = make_source(self.folder / f"bad{number}", **arguments)
            result = run(source, self.folder / "out", "--experts", "int4")
            self.assertEqual(result.returncode, 1, (words, result.stdout))
            self.assertTrue(all(w in result.stderr for w in words) and "Traceback" not in result.stderr, (words, result.stderr))
        cut = make_source(self.folder / "cut")
        shard = cut / "model-00002-of-00002.safetensors"
        shard.write_bytes(shard.read_bytes()[:-5])
        for source, action, words in (
            (self.source, ["--bf16"], ["bf16", "expected f8"]),
            (self.source, ["--damage", "wrong-scale:1"], ["expected f8 or int4"]),
            (self.source, ["--damage", "permute-experts:0"], ["layer 0 has no routed experts"]),
            (self.source, ["--damage", "permute-experts:3"], ["layer '3'", "0 to 2"]),
            (self.source, ["--damage", "permute-experts:1:2"], ["permute-experts:LAYER"]),
            (self.source, ["--damage", "scratch:1"], ["scratch:1"]),
            (cut, ["--experts", "int4"], ["model-00002-of-00002.safetensors"]),
            (self.folder / "nowhere", ["--experts", "int4"], ["config.json"]),
        ):
            result = run(source, self.folder / "out", *action)
            self.assertEqual(result.returncode, 1, (words, result.stdout))
            self.assertTrue(all(w in result.stderr for w in words) and "Traceback" not in result.stderr, (words, result.stderr))
        self.made("blocks", "--fp8-blocks")
        for factor in ("0", "-1", "nan", "much", "1e39"):
            result = run(self.folder / "blocks", self.folder / "out", "--damage", f"wrong-scale:1:{factor}")
            self.assertTrue(result.returncode == 1 and factor.split("e")[0] in result.stderr, (factor, result.stderr))
        existing = run(self.source, self.folder / "blocks", "--experts", "int4")
        self.assertTrue(existing.returncode == 1 and "exists already" in existing.stderr, existing.stderr)
        left = [p.name for p in self.folder.iterdir() if p.name.startswith((".", "out"))]
        self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
