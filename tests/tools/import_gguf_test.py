"""tools/import_gguf.py on small GGUF files that the gguf package's own writer makes.

How the right answer is known: quantized blocks are packed here from chosen bytes and read back by the definition of
each format in ggml (block_q8_0, block_q4_0, block_q4_1), in double; BF16 is chosen by distance to its two neighbours;
the rows of q and k are moved one at a time by the definition of the two rotary conventions.

Usage: import_gguf_test.py IMPORTER
"""

import contextlib
import importlib.util
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import gguf
import numpy as np

IMPORTER = pathlib.Path(sys.argv[1])
Type = gguf.GGMLQuantizationType
SEED = 20240607
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<user>", "a", "b", "ab", "abab", "c"]
TOKEN_TYPES = [3, 3, 4, 1, 1, 1, 1, 1]
BLOCK = 32


def load_importer():
    spec = importlib.util.spec_from_file_location("import_gguf", IMPORTER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


importer = load_importer()


# ---- Formats, by their definitions ---------------------------------------------------------------------------------


def half(value):
    """A float16 as two bytes, and what these bytes are worth."""
    packed = struct.pack("<e", value)
    return packed, struct.unpack("<e", packed)[0]


def random_row(rng, kind, columns):
    """One row of a tensor: its bytes in the file, and its values in double."""
    if kind == Type.F32:
        values = rng.standard_normal(columns).astype("<f4")
        return values.tobytes(), values.astype(np.float64)
    if kind == Type.F16:
        values = rng.standard_normal(columns).astype("<f2")
        return values.tobytes(), values.astype(np.float64)
    if kind == Type.BF16:
        upper = (rng.standard_normal(columns).astype("<f4").view("<u4") >> 16).astype("<u2")
        return upper.tobytes(), (upper.astype("<u4") << 16).view("<f4").astype(np.float64)
    data, values = b"", []
    for _ in range(columns // BLOCK):
        scale_bytes, scale = half(rng.uniform(-0.1, 0.1))
        data += scale_bytes
        if kind == Type.Q8_0:  # A scale, then 32 signed bytes.
            quants = [int(q) for q in rng.integers(-128, 128, BLOCK)]
            data += struct.pack("<32b", *quants)
            values += [scale * q for q in quants]
            continue
        centre, minimum = 8, 0.0  # Q4_0: a scale; codes are centred on 8.
        if kind == Type.Q4_1:  # A scale and a minimum; codes begin at 0.
            minimum_bytes, minimum = half(rng.uniform(-1, 1))
            data += minimum_bytes
            centre = 0
        packed = [int(q) for q in rng.integers(0, 256, BLOCK // 2)]
        data += bytes(packed)
        # Low nibbles are the first half of the block, high nibbles the second.
        codes = [q % 16 for q in packed] + [q // 16 for q in packed]
        # Nothing is added where there is no minimum: the sign of a zero stays.
        values += [scale * (q - centre) + minimum if kind == Type.Q4_1 else scale * (q - centre) for q in codes]
    return data, np.array(values)


def nearest_bf16(value):
    """The bits of the BF16 nearest to a float32; of two that are equally near, the one with an even mantissa."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    below = bits >> 16

    def worth(upper):
        return struct.unpack("<f", struct.pack("<I", upper << 16))[0]

    to_below, to_above = abs(float(value) - worth(below)), abs(worth(below + 1) - float(value))
    if to_below == to_above:
        return below if below % 2 == 0 else below + 1
    return below if to_below < to_above else below + 1


def bf16_bits(values):
    singles = np.asarray(values, dtype=np.float64).astype(np.float32)
    return np.array([nearest_bf16(v) for v in singles.ravel()], dtype="<u2").reshape(singles.shape)


def halves_from_pairs(rows, heads):
    """In GGUF rows 2i and 2i + 1 of a head rotate together; in Hugging Face's order rows i and i + head_dim / 2 do."""
    out = np.empty_like(rows)
    for head in range(heads):
        for i in range(HEAD_DIM // 2):
            for part in range(2):
                out[head * HEAD_DIM + part * HEAD_DIM // 2 + i] = rows[head * HEAD_DIM + 2 * i + part]
    return out


# ---- A model ---------------------------------------------------------------------------------------------------------


def metadata():
    """Key to (the writer's method, value)."""
    return {
        "llama.embedding_length": ("add_uint32", HIDDEN),
        "llama.attention.head_count": ("add_uint32", HEADS),
        "llama.attention.head_count_kv": ("add_uint32", KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": ("add_float32", 1e-5),
        "llama.block_count": ("add_uint32", LAYERS),
        "llama.context_length": ("add_uint32", 512),
        "llama.feed_forward_length": ("add_uint32", FFN),
        "llama.rope.dimension_count": ("add_uint32", HEAD_DIM),
        "llama.rope.freq_base": ("add_float32", 123456.7),
        "tokenizer.ggml.model": ("add_string", "gpt2"),
        "tokenizer.ggml.pre": ("add_string", "smollm"),
        "tokenizer.ggml.tokens": ("add_array", list(TOKENS)),
        "tokenizer.ggml.token_type": ("add_array", list(TOKEN_TYPES)),
        "tokenizer.ggml.merges": ("add_array", ["a b", "ab ab"]),
        "tokenizer.ggml.bos_token_id": ("add_uint32", 1),
        "tokenizer.ggml.eos_token_id": ("add_uint32", 0),
        "tokenizer.ggml.padding_token_id": ("add_uint32", 2),
        "tokenizer.chat_template": ("add_string", "{{ messages }}"),
    }


# GGUF name, Hugging Face name, rows (None: a vector), columns, heads whose rows are permuted, kind in layers 0 and 1.
LAYER_TENSORS = (
    ("attn_norm", "input_layernorm", None, HIDDEN, 0, (Type.F32, Type.F32)),
    ("attn_q", "self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN, HEADS, (Type.Q4_0, Type.F32)),
    ("attn_k", "self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN, KV_HEADS, (Type.Q8_0, Type.Q4_1)),
    ("attn_v", "self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN, 0, (Type.Q4_1, Type.BF16)),
    ("attn_output", "self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, 0, (Type.F16, Type.Q8_0)),
    ("ffn_norm", "post_attention_layernorm", None, HIDDEN, 0, (Type.F32, Type.F16)),
    ("ffn_gate", "mlp.gate_proj", FFN, HIDDEN, 0, (Type.Q4_0, Type.F16)),
    ("ffn_up", "mlp.up_proj", FFN, HIDDEN, 0, (Type.Q4_1, Type.Q8_0)),
    ("ffn_down", "mlp.down_proj", HIDDEN, FFN, 0, (Type.Q8_0, Type.Q4_0)),
)


class Model:
    """Tensors as the file has them, and what the importer must make of them."""

    def __init__(self, untied=False):
        rng = np.random.default_rng(SEED)
        self.stored = {}  # GGUF name to (kind, array for the writer).
        self.expected = {}  # Hugging Face name to BF16 bits.
        specs = [("token_embd", "model.embed_tokens", len(TOKENS), HIDDEN, 0, Type.Q8_0),
                 ("output_norm", "model.norm", None, HIDDEN, 0, Type.F32)]
        if untied:
            specs.append(("output", "lm_head", len(TOKENS), HIDDEN, 0, Type.Q4_0))
        for layer in range(LAYERS):
            for source, name, rows, columns, heads, kinds in LAYER_TENSORS:
                specs.append((f"blk.{layer}.{source}", f"model.layers.{layer}.{name}", rows, columns, heads,
                              kinds[layer]))
        for source, name, rows, columns, heads, kind in specs:
            drawn = [random_row(rng, kind, columns) for _ in range(rows or 1)]
            data = np.stack([np.frombuffer(raw, dtype=np.uint8) for raw, _ in drawn])
            values = np.stack([row for _, row in drawn])
            if heads:
                values = halves_from_pairs(values, heads)
            if rows is None:
                data, values = data[0], values[0]
            if kind in (Type.F32, Type.F16):
                data = data.view(np.float32 if kind == Type.F32 else np.float16)
            self.stored[f"{source}.weight"] = (kind, data)
            self.expected[f"{name}.weight"] = bf16_bits(values)


def write_gguf(path, model, meta, architecture="llama"):
    writer = gguf.GGUFWriter(path, architecture)
    for key, (method, value) in meta.items():
        getattr(writer, method)(key, value)
    for name, (kind, data) in model.stored.items():
        writer.add_tensor(name, data, raw_dtype=None if data.dtype != np.uint8 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", entry
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], dtype="<u2").reshape(entry["shape"])
    return tensors


class ImportTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.source = pathlib.Path(self.folder.name) / "model.gguf"
        self.out = pathlib.Path(self.folder.name) / "out" / "model"

    def run_importer(self, *arguments):
        """The importer's exit status and what it said."""
        said, kept = io.StringIO(), sys.argv
        sys.argv = [str(IMPORTER), *arguments]
        try:
            with contextlib.redirect_stderr(said):
                status = importer.main()
        finally:
            sys.argv = kept
        return status, said.getvalue()

    def import_source(self):
        return self.run_importer(str(self.source), "--out", str(self.out))

    def refuse(self, words):
        status, said = self.import_source()
        self.assertEqual(status, 1, said)
        self.assertIn(words, said)
        # Nothing appears, complete or not.
        self.assertEqual(list(self.out.parent.iterdir()) if self.out.parent.exists() else [], [], said)

    def write(self, model=None, change=None, **options):
        meta = metadata()
        if change is not None:
            change(meta)
        write_gguf(self.source, model or Model(), meta, **options)

    def set(self, key, value, method=None):
        """Writes the model with one key changed, or removed when the value is None."""
        meta = metadata()
        if value is None:
            del meta[key]
        else:
            meta[key] = (method or meta[key][0], value)
        write_gguf(self.source, Model(), meta)


class Conversion(ImportTest):
    def check_tensors(self, model):
        tensors = read_safetensors(self.out / "model.safetensors")
        self.assertEqual(tensors.keys(), model.expected.keys())
        for name, bits in model.expected.items():
            np.testing.assert_array_equal(tensors[name], bits, err_msg=f"{name}, seed {SEED}")

    def test_every_format_by_its_definition(self):
        model = Model()
        self.write(model)
        status, said = self.import_source()
        self.assertEqual(status, 0, said)
        self.check_tensors(model)

    def test_untied_head(self):
        model = Model(untied=True)
        self.write(model)
        self.assertEqual(self.import_source()[0], 0)
        self.check_tensors(model)
        self.assertIs(json.loads((self.out / "config.json").read_text())["tie_word_embeddings"], False)

    def test_rounds_to_nearest_and_ties_to_even(self):
        model = Model()
        # One unit of BF16 at 1 is 2^-7: below, at and above the middle, next to an even and next to an odd neighbour.
        unit = 2.0**-7
        values = np.ones(HIDDEN, dtype=np.float32)
        values[:8] = [1 + unit * 0.5, 1 + unit * 1.5, 1 + unit * 0.5001, 1 + unit * 1.4999, -(1 + unit * 0.5), 0.0, -0.0,
                      2 - unit / 4]
        model.stored["output_norm.weight"] = (Type.F32, values)
        self.write(model)
        self.assertEqual(self.import_source()[0], 0)
        bits = read_safetensors(self.out / "model.safetensors")["model.norm.weight"]
        self.assertEqual([int(b) for b in bits[:8]],
                         [0x3F80, 0x3F82, 0x3F81, 0x3F81, 0xBF80, 0x0000, 0x8000, 0x4000])

    def test_config_tokenizer_and_the_other_files(self):
        self.write()
        # Once as a person runs it.
        subprocess.run([sys.executable, str(IMPORTER), str(self.source), "--out", str(self.out)], check=True,
                       capture_output=True)
        config = json.loads((self.out / "config.json").read_text())
        wanted = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
                  "intermediate_size": FFN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
                  "head_dim": HEAD_DIM, "num_hidden_layers": LAYERS, "max_position_embeddings": 512,
                  "vocab_size": len(TOKENS), "rms_norm_eps": 1e-05, "rope_theta": 123456.7, "rope_scaling": None,
                  "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu", "bos_token_id": 1,
                  "eos_token_id": 0, "pad_token_id": 2, "attention_bias": False, "mlp_bias": False}
        self.assertEqual({key: config.get(key, "absent") for key in wanted}, wanted)
        generation = json.loads((self.out / "generation_config.json").read_text())
        self.assertEqual(generation, {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2})
        tokenizer = json.loads((self.out / "tokenizer.json").read_text())
        self.assertEqual(tokenizer["model"]["vocab"], {token: i for i, token in enumerate(TOKENS)})
        self.assertEqual(tokenizer["model"]["merges"], ["a b", "ab ab"])
        self.assertEqual([(t["id"], t["content"], t["special"]) for t in tokenizer["added_tokens"]],
                         [(0, "<|endoftext|>", True), (1, "<|im_start|>", True), (2, "<user>", False)])
        named = json.loads((self.out / "tokenizer_config.json").read_text())
        self.assertEqual((named["bos_token"], named["eos_token"], named["pad_token"], named["chat_template"]),
                         ("<|im_start|>", "<|endoftext|>", "<user>", "{{ messages }}"))

    def test_defaults_that_the_format_defines(self):
        def change(meta):
            del meta["llama.rope.freq_base"], meta["llama.rope.dimension_count"], meta["tokenizer.chat_template"]

        self.write(change=change)
        self.assertEqual(self.import_source()[0], 0)
        self.assertEqual(json.loads((self.out / "config.json").read_text())["rope_theta"], 10000.0)
        self.assertNotIn("chat_template", json.loads((self.out / "tokenizer_config.json").read_text()))

    def test_replaces_a_model_as_a_whole_or_not_at_all(self):
        self.write()
        self.assertEqual(self.import_source()[0], 0)
        (self.out / "left_over").write_text("old")
        self.set("tokenizer.ggml.pre", "other")
        self.assertEqual(self.import_source()[0], 1)
        self.assertTrue((self.out / "left_over").exists())
        self.write()
        self.assertEqual(self.import_source()[0], 0)
        self.assertFalse((self.out / "left_over").exists())
        self.assertEqual(list(self.out.parent.iterdir()), [self.out])


class Refusals(ImportTest):
    def test_a_folder_that_is_no_model_is_not_replaced(self):
        self.write()
        self.out.mkdir(parents=True)
        (self.out / "precious").write_text("x")
        status, said = self.import_source()
        self.assertEqual(status, 1)
        self.assertIn("is not a model folder: not replaced", said)
        self.assertTrue((self.out / "precious").exists())

    def test_files_that_are_no_gguf(self):
        self.refuse("No such file")
        for data in (b"", b"GG", b"no GGUF, but long enough to be read as one's header" * 4):
            self.source.write_bytes(data)
            self.refuse("not a readable GGUF file")

    def test_packages_without_a_model(self):
        for package, words in (("no_such_package_here", "is not installed"), ("numpy", "holds 0 GGUF files")):
            status, said = self.run_importer("--package", package, "--out", str(self.out))
            self.assertEqual(status, 1)
            self.assertIn(words, said)

    def test_truncated_anywhere(self):
        self.write()
        whole = self.source.read_bytes()
        rng = np.random.default_rng(SEED)
        cuts = [4, 8, 23, 24, 30, 60, len(whole) - 1] + [int(c) for c in rng.integers(1, len(whole) - 1, 60)]
        for cut in cuts:
            self.source.write_bytes(whole[:cut])
            with self.subTest(cut=cut, of=len(whole), seed=SEED):
                self.refuse("not a readable GGUF file")

    def patch_type(self, code):
        """Overwrites the type of tensor output_norm.weight (a vector: name, u32 rank, u64 extent, u32 type)."""
        self.write()
        data = bytearray(self.source.read_bytes())
        name = b"output_norm.weight"
        at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4 + 8
        self.assertEqual(struct.unpack_from("<I", data, at), (int(Type.F32),))
        struct.pack_into("<I", data, at, code)
        self.source.write_bytes(data)

    def test_unknown_tensor_types(self):
        self.patch_type(250)
        self.refuse("not a readable GGUF file")
        self.patch_type(int(Type.I32))
        self.refuse("tensor 'output_norm.weight' is stored as I32")

    def test_other_architectures(self):
        self.write(architecture="qwen2")
        self.refuse("general.architecture is 'qwen2', expected 'llama'")

    def test_missing_metadata(self):
        optional = {"llama.attention.head_count_kv", "llama.rope.dimension_count", "llama.rope.freq_base",
                    "tokenizer.chat_template"}
        for key in metadata().keys() - optional:
            with self.subTest(key=key):
                self.set(key, None)
                self.refuse(f"metadata key '{key}' is missing")

    def test_metadata_that_is_not_understood(self):
        for key, method, value, words in (
            ("llama.rope.scaling.type", "add_string", "linear", "'llama.rope.scaling.type' describes something"),
            ("llama.expert_count", "add_uint32", 8, "'llama.expert_count' describes something"),
            ("llama.embedding_length", "add_string", "64", "is str, expected int"),
            ("llama.embedding_length", "add_bool", True, "is bool, expected int"),
            ("llama.attention.head_count", "add_uint32", 5, "do not divide each other"),
            ("llama.attention.head_count_kv", "add_uint32", 3, "do not divide each other"),
            ("llama.attention.head_count_kv", "add_uint32", 0, "do not divide each other"),
            ("llama.rope.dimension_count", "add_uint32", 8, "llama.rope.dimension_count is 8"),
            ("llama.attention.key_length", "add_uint32", 32, "key_length differs from the head size 16"),
            ("llama.attention.value_length", "add_uint32", 32, "value_length differs from the head size 16"),
            ("tokenizer.ggml.model", "add_string", "llama", "tokenizer.ggml.model is 'llama'"),
            ("tokenizer.ggml.pre", "add_string", "qwen2", "tokenizer.ggml.pre is 'qwen2'"),
            ("tokenizer.ggml.add_space_prefix", "add_bool", True, "add_space_prefix is true, expected false"),
            ("tokenizer.ggml.add_bos_token", "add_bool", True, "add_bos_token is true, expected false"),
            ("tokenizer.ggml.add_eos_token", "add_bool", True, "add_eos_token is true, expected false"),
            ("tokenizer.ggml.token_type", "add_array", TOKEN_TYPES[:-1], "has 7 entries for 8 tokens"),
            ("tokenizer.ggml.token_type", "add_array", [6, *TOKEN_TYPES[1:]], "token 0 '<|endoftext|>' has type 6"),
            ("tokenizer.ggml.tokens", "add_array", [*TOKENS[:-1], "a"], "holds the same token twice"),
            ("tokenizer.ggml.merges", "add_array", ["ab"], "merge 'ab' is not two tokens"),
            ("tokenizer.ggml.merges", "add_array", ["a b c"], "merge 'a b c' is not two tokens"),
            ("tokenizer.ggml.merges", "add_array", ["b a"], "merge 'b a' needs the token 'ba'"),
            ("tokenizer.ggml.eos_token_id", "add_uint32", 8, "special token id 8 is outside the vocabulary of 8"),
        ):
            with self.subTest(key=key, value=value):
                self.set(key, value, method)
                self.refuse(words)

    def test_tensors_that_do_not_fit(self):
        vector = np.ones(HIDDEN, dtype=np.float32)

        def damaged(value):
            values = vector.copy()
            values[5] = value
            return Type.F32, values

        for name, stored, words in (
            ("blk.1.attn_k.weight", None, "1 tensors are missing, the first is 'blk.1.attn_k.weight'"),
            ("blk.0.attn_q.bias", (Type.F32, vector), "1 tensors are not of this architecture"),
            ("blk.2.attn_norm.weight", (Type.F32, vector), "the first is 'blk.2.attn_norm.weight'"),
            ("output_norm.weight", (Type.F32, vector[:-1]), "has shape [63], expected [64]"),
            ("output_norm.weight", damaged(np.nan), "holds values that are not finite"),
            ("output_norm.weight", damaged(np.inf), "holds values that are not finite"),
            ("output_norm.weight", damaged(3.4e38), "holds values that BF16 cannot represent"),
        ):
            with self.subTest(name=name, words=words):
                model = Model()
                if stored is None:
                    del model.stored[name]
                else:
                    model.stored[name] = stored
                self.write(model)
                self.refuse(words)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
