"""Tests of the oracles themselves: values worked out by hand, and laws that must hold. Run: python3 -m unittest."""

import json
import math
import os
import pathlib
import random
import shutil
import struct
import tempfile
import unittest

import digest_oracle
import fixtures
import fp8_oracle
import safetensors_io
from safetensors_io import FormatError, Tensor

try:
    import numpy
except ImportError:
    numpy = None
else:
    import forward_oracle

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

needs_numpy = unittest.skipIf(numpy is None, "needs the PyPI package numpy")


class WithTempDir(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="bascule_oracles_"))
        self.addCleanup(shutil.rmtree, self.dir)


def file_bytes(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Fp8Test(WithTempDir):
    def test_codes_have_the_values_of_the_format(self):
        self.assertEqual(len(fp8_oracle.VALUES), 127)
        self.assertEqual(fp8_oracle.VALUES[:3], [0, 2.0**-9, 2.0**-8])
        self.assertEqual([fp8_oracle.VALUES[code] for code in (0x08, 0x38, 0x77, 0x7E)], [2.0**-6, 1.0, 240.0, 448.0])

    def test_ties_go_to_even_codes_and_beyond_448_is_448(self):
        for value, code in ((1.0625, 0x38), (1.1875, 0x3A), (-1.0625, 0xB8), (2.0**-10, 0), (3 * 2.0**-10, 2)):
            self.assertEqual(fp8_oracle.code_of_value(value), code, value)
        for value, code in ((500.0, 0x7E), (-1e30, 0xFE), (0.0, 0), (-0.0, 0x80)):
            self.assertEqual(fp8_oracle.code_of_value(value), code, value)

    def test_a_matrix_typed_by_hand_is_quantised_by_blocks(self):
        columns = 130
        row = [448.0] + [1.0] * 127 + [-2.0, 0.0]
        data = b"".join(struct.pack("<f", value)[2:] for value in row)

        codes, scales = fp8_oracle.quantised(1, columns, data)

        self.assertEqual(codes, bytes([0x7E] + [0x38] * 127 + [0xFE, 0x00]))
        self.assertEqual(struct.unpack("<2f", scales), (1.0, fp8_oracle.fp32(2 / 448)))

    @unittest.skipIf(ml_dtypes is None, "needs the PyPI package ml_dtypes")
    def test_every_half_float_rounds_as_ml_dtypes_rounds_it(self):
        halves = numpy.arange(1 << 16, dtype=numpy.uint16).view(numpy.float16)
        halves = halves[numpy.abs(halves.astype(numpy.float32)) < 464]  # where it does not become NaN
        theirs = halves.astype(numpy.float32).astype(ml_dtypes.float8_e4m3fn).view(numpy.uint8)
        self.assertEqual([fp8_oracle.code_of_value(float(half)) for half in halves], theirs.tolist())


class SafetensorsTest(WithTempDir):
    def read(self, content):
        path = self.dir / "x.safetensors"
        path.write_bytes(content)
        return safetensors_io.read_file(path)

    def test_a_file_typed_by_hand_is_read(self):
        header = b'{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'

        tensors, metadata = self.read(bytes([len(header)]) + bytes(7) + header + b"\x01\x02\x03")

        self.assertEqual(list(tensors), ["a"])
        self.assertEqual(tensors["a"][:2], ("U8", (3,)))
        self.assertEqual(bytes(tensors["a"].data), b"\x01\x02\x03")
        self.assertEqual(metadata, {"k": "v"})

    def test_what_is_written_is_read_again(self):
        written = [
            ("b/\u00e9", "BF16", (2, 3), bytes(range(12))),
            ("scalar", "F32", (), b"abcd"),
            ("none", "I64", (0, 5), b""),
            ("blocks", "U8", (5,), [b"ab", b"cde"]),
        ]

        safetensors_io.write_file(self.dir / "y.safetensors", written, {"format": "pt"})

        tensors, metadata = safetensors_io.read_file(self.dir / "y.safetensors")
        self.assertEqual(metadata, {"format": "pt"})
        self.assertEqual([(n, t.dtype, t.shape) for n, t in tensors.items()], [w[:3] for w in written])
        self.assertEqual([bytes(t.data) for t in tensors.values()], [bytes(range(12)), b"abcd", b"", b"abcde"])

    def test_wrong_length_of_data_is_not_written(self):
        with self.assertRaisesRegex(ValueError, "tensor a: got 2 bytes, want 3"):
            safetensors_io.write_file(self.dir / "z.safetensors", [("a", "U8", (3,), b"xy")])

    def test_bad_files_are_refused(self):
        def entry(begin, end, dtype="U8", shape=None):
            return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}

        one = b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
        cases = {
            "empty file": (b"", "empty file"),
            "short": (b"\x01\x02", "too short"),
            "length past the end": (struct.pack("<Q", 100) + b"{}", "does not fit"),
            "huge length": (struct.pack("<Q", 2**63) + b"{}", "does not fit"),
            "pointer file": (b"version https://git-lfs.github.com/spec/v1\n", "does not fit"),
            "not JSON": (file_bytes(b"{x"), "not JSON"),
            "not UTF-8": (file_bytes(b'{"\xff":1}'), "not UTF-8"),
            "a list": (file_bytes([]), "not a JSON object"),
            "duplicate": (file_bytes(b"{" + one + b"," + one + b"}", b"x"), "twice"),
            "gap": (file_bytes({"a": entry(0, 1), "b": entry(2, 3)}, b"xyz"), "begins at 2, want 1"),
            "overlap": (file_bytes({"a": entry(0, 2), "b": entry(1, 3)}, b"xyz"), "begins at 1, want 2"),
            "data left over": (file_bytes({"a": entry(0, 1)}, b"xy"), "tensors end at 1"),
            "data missing": (file_bytes({"a": entry(0, 3)}, b"xy"), "tensors end at 3"),
            "shape too big": (file_bytes({"a": entry(0, 2, shape=[3])}, b"xy"), "does not take"),
            "shape overflows": (file_bytes({"a": entry(0, 0, shape=[2**32, 2**32])}), "does not take"),
            "negative": (file_bytes({"a": entry(0, 2, shape=[-1, -2])}, b"xy"), "bad shape"),
            "true is no number": (file_bytes({"a": entry(0, 1, shape=[True])}, b"x"), "bad shape"),
            "dtype": (file_bytes({"a": entry(0, 1, dtype="u8")}, b"x"), "unknown dtype"),
            "key": (file_bytes({"a": {**entry(0, 1), "more": 1}}, b"x"), "exactly"),
            "metadata": (file_bytes({"__metadata__": {"a": 1}}), "map of strings"),
        }
        for name, (content, message) in cases.items():
            with self.subTest(name), self.assertRaisesRegex(FormatError, message):
                self.read(content)


class DigestTest(unittest.TestCase):
    def digest(self, data, name="w", dtype="U8", shape=None):
        return digest_oracle.tensor_digest(name, dtype, (len(data),) if shape is None else shape, data)

    def lanes(self, data, name="w", shape=(1,)):
        return digest_oracle.lanes_plain(digest_oracle.lane_seeds(name, "U8", shape), data)

    def test_mix_gives_the_published_splitmix64_sequence(self):
        sequence = [digest_oracle.mix(n * digest_oracle.GOLDEN & digest_oracle.MASK) for n in (1, 2, 3)]

        self.assertEqual(sequence, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F])

    def test_fixed_values(self):
        long = bytes((i * 7 + i // 256) % 256 for i in range(10001))

        self.assertEqual(
            self.digest(b"\x01\0\0\0", "a"), "a8d763239ec48c132bca98fd52ebe3b59d4501dd61a95b291463047f0a72608d"
        )
        self.assertEqual(
            self.digest(long, "x.weight", shape=(73, 137)),
            "c50edef1444c6515bb3a9fab86af7ed1b7d657303ac4b8037bb7d7711fabd7d7",
        )

    def test_a_byte_weighs_its_key_shifted_by_its_place_in_the_word(self):
        data = random.Random(1).randbytes(9003)
        seeds = digest_oracle.lane_seeds("w", "U8", (9003,))
        want = [0] * 4
        for lane in range(4):
            for p, byte in enumerate(data):
                a = digest_oracle.mix((seeds[lane] + ((p >> 12) + 1) * 0x9E3779B97F4A7C15) % 2**64) | 1
                index = lane * 1024 + ((p & 4095) >> 2) + 1
                b = digest_oracle.mix((0x42617363756C65 + index * 0x9E3779B97F4A7C15) % 2**64) >> 32 | 1
                want[lane] = (want[lane] + a * (b << 8 * (p & 3)) * byte) % 2**64

        self.assertEqual(digest_oracle.lanes_plain(seeds, data), want)

    def test_pieces_add_up_to_the_whole(self):
        rng = random.Random(2)
        data = rng.randbytes(10000)
        cuts = [0, *sorted(rng.sample(range(1, 10000), 7)), 10000]
        total = [0] * 4
        for begin, end in zip(cuts, cuts[1:]):
            alone = bytes(begin) + data[begin:end] + bytes(10000 - end)
            total = [(t + p) % 2**64 for t, p in zip(total, self.lanes(alone))]

        self.assertEqual(total, self.lanes(data))

    def test_any_changed_byte_shows_in_every_lane(self):
        data = bytearray(random.Random(3).randbytes(5000))
        before = self.lanes(data)
        for position in (0, 1, 3, 4095, 4096, 4097, 4999):
            data[position] ^= 0x80
            self.assertTrue(all(a != b for a, b in zip(before, self.lanes(data))), position)
            data[position] ^= 0x80

    def test_identity_is_part_of_the_digest(self):
        data = random.Random(4).randbytes(64)
        variants = [
            self.digest(data, "w", "U8", (64,)),
            self.digest(data, "v", "U8", (64,)),
            self.digest(data, "w", "I8", (64,)),
            self.digest(data, "w", "U8", (8, 8)),
            self.digest(data, "w", "U8", (64, 1)),
            self.digest(data[32:] + data[:32], "w", "U8", (64,)),
        ]

        self.assertEqual(len(set(variants)), len(variants))

    def test_no_bytes_and_zero_bytes_have_digest_zero(self):
        self.assertEqual(self.digest(b""), "0" * 64)
        self.assertEqual(self.digest(bytes(5000)), "0" * 64)

    def test_version_digest_is_the_hash_of_the_sorted_listing(self):
        tensors = {"b": Tensor("U8", (), b"\x01"), "a": Tensor("F32", (1, 1), b"\0\0\x80\x3f")}
        a, b = self.digest(b"\0\0\x80\x3f", "a", "F32", (1, 1)), self.digest(b"\x01", "b", "U8", ())
        listing = f"a\nF32\n1,1\n{a}\nb\nU8\n\n{b}\n".encode()

        version, by_name = digest_oracle.digests(tensors)

        self.assertEqual(version, digest_oracle.hashlib.sha256(listing).hexdigest())
        self.assertEqual(by_name, {"a": a, "b": b})

    def test_a_tied_equal_head_is_not_listed(self):
        embedding = Tensor("U8", (2,), b"xy")
        base = {"model.embed_tokens.weight": embedding}
        equal, other = {**base, "lm_head.weight": embedding}, {**base, "lm_head.weight": Tensor("U8", (2,), b"xz")}
        tied = {"tie_word_embeddings": True}

        want = digest_oracle.digests(base, tied)
        self.assertEqual(digest_oracle.digests(equal, tied), want)
        self.assertIn("lm_head.weight", digest_oracle.digests(equal, {})[1])
        self.assertIn("lm_head.weight", digest_oracle.digests(other, tied)[1])

    CASTS = {
        0x3F800000: 0x3F80,  # 1
        0x3F808000: 0x3F80,  # A tie goes to the even neighbour, below
        0x3F818000: 0x3F82,  # and above.
        0x3F808001: 0x3F81,
        0x3F807FFF: 0x3F80,
        0x7F7FFFFF: 0x7F80,  # The largest float becomes infinity.
        0xFF800000: 0xFF80,
        0x7F800001: 0x7FC0,  # A signalling NaN turns quiet
        0xFFC12345: 0xFFC1,  # and keeps its sign and upper payload.
        0x7FFFFFFF: 0x7FFF,
        0x80000000: 0x8000,
        0x00000001: 0x0000,
        0x00008001: 0x0001,  # A denormal stays one.
        0x007F8000: 0x0080,
    }

    def test_fp32_to_bf16(self):
        data = struct.pack(f"<{len(self.CASTS)}I", *self.CASTS)

        dtype, out = digest_oracle.convert("F32", data, "bf16")

        self.assertEqual(dtype, "BF16")
        self.assertEqual(list(struct.unpack(f"<{len(self.CASTS)}H", out)), list(self.CASTS.values()))
        self.assertEqual(digest_oracle._cast_plain(data, narrow=True), out)

    def test_bf16_to_fp32_is_exact_and_comes_back(self):
        every = struct.pack("<65536H", *range(65536))

        dtype, out = digest_oracle.convert("BF16", every, "fp32")

        self.assertEqual((dtype, struct.unpack_from("<I", out, 4 * 0x3F80)), ("F32", (0x3F800000,)))
        self.assertEqual(digest_oracle._cast_plain(every, narrow=False), out)
        back = struct.unpack("<65536H", digest_oracle.convert("F32", out, "bf16")[1])
        is_signalling = [bits & 0x7FFF > 0x7F80 and not bits & 0x40 for bits in range(65536)]
        self.assertEqual(list(back), [bits | 0x40 * s for bits, s in enumerate(is_signalling)])

    def test_floats_without_a_rule_are_refused_and_integers_stay(self):
        with self.assertRaisesRegex(ValueError, "F16"):
            digest_oracle.convert("F16", b"\0\0", "bf16")
        self.assertEqual(digest_oracle.convert("I64", bytes(8), "bf16"), ("I64", bytes(8)))

    @needs_numpy
    def test_numpy_and_plain_python_agree(self):
        rng = random.Random(5)
        seeds = digest_oracle.lane_seeds("n", "U8", (1,))
        for size in (0, 1, 3, 4, 4095, 4096, 4097, 3 * 4096, 20001):
            data = rng.randbytes(size)
            for at_once in (1, 2, 256):
                with self.subTest(size=size, at_once=at_once):
                    want = digest_oracle.lanes_plain(seeds, data)
                    self.assertEqual(digest_oracle.lanes_numpy(seeds, data, at_once), want)


class FixturesTest(WithTempDir):
    def make(self, kind, version=1, **options):
        out = self.dir / f"{kind}-{version}-{len(list(self.dir.iterdir()))}"
        fixtures.write_checkpoint(out, fixtures.SPECS[kind], version, **options)
        return out

    def test_dense_has_the_sizes_of_the_table(self):
        tensors = safetensors_io.read_checkpoint(self.make("dense"))

        self.assertEqual(len(tensors), 1 + 2 * 9 + 1 + 1)
        self.assertEqual({t.dtype for t in tensors.values()}, {"BF16"})
        want = {
            "model.embed_tokens.weight": (130, 64),
            "model.layers.1.self_attn.q_proj.weight": (64, 64),
            "model.layers.1.self_attn.k_proj.weight": (32, 64),
            "model.layers.1.self_attn.v_proj.weight": (32, 64),
            "model.layers.1.self_attn.o_proj.weight": (64, 64),
            "model.layers.1.mlp.gate_proj.weight": (96, 64),
            "model.layers.1.mlp.up_proj.weight": (96, 64),
            "model.layers.1.mlp.down_proj.weight": (64, 96),
            "model.layers.1.input_layernorm.weight": (64,),
            "model.layers.1.post_attention_layernorm.weight": (64,),
            "model.norm.weight": (64,),
            "lm_head.weight": (130, 64),
        }
        self.assertEqual({name: tensors[name].shape for name in want}, want)

    def test_the_kinds_differ_in_what_they_are_named_for(self):
        names = {kind: set(fixtures.shapes(spec)) for kind, spec in fixtures.SPECS.items()}

        self.assertEqual(names["dense"] - names["tied"], {"lm_head.weight"})
        self.assertEqual(len(names["bias"] - names["dense"]), 2 * 3)
        self.assertEqual(len(names["qk-norm"] - names["dense"]), 2 * 2)
        self.assertEqual(
            digest_oracle.version_digest(self.make("tied")), digest_oracle.version_digest(self.make("tied-head"))
        )

    def test_every_tensor_differs_between_versions_and_from_every_other(self):
        contents = set()
        for version in (1, 2):
            contents |= {bytes(t.data) for t in safetensors_io.read_checkpoint(self.make("qk-norm", version)).values()}

        self.assertEqual(len(contents), 2 * len(fixtures.shapes(fixtures.SPECS["qk-norm"])))

    def test_an_element_depends_on_row_and_column_alone(self):
        large = fixtures.hash_fill("a.weight", (8, 16), 1, "F32")
        fewer_rows = fixtures.hash_fill("a.weight", (3, 16), 1, "F32")

        self.assertEqual(large[: len(fewer_rows)], fewer_rows)
        self.assertEqual(len(set(struct.unpack("<128I", large))), 128)

    def test_values_have_sensible_sizes_and_no_nan(self):
        values = struct.unpack("<65536f", fixtures.hash_fill("a_proj.weight", (256, 256), 3, "F32"))
        norms = struct.unpack("<256f", fixtures.hash_fill("norm.weight", (256,), 3, "F32"))

        self.assertTrue(all(math.isfinite(v) and v != 0 for v in values))
        self.assertTrue(0.8 / 16 < math.sqrt(sum(v * v for v in values) / len(values)) < 1.25 / 16)
        self.assertTrue(abs(sum(values) / len(values)) < 0.001)
        self.assertTrue(all(0.5 <= v < 2 for v in norms))

    def test_shards_hold_the_same_checkpoint(self):
        sharded = self.make("dense", shard_count=3)

        self.assertEqual(len(safetensors_io.checkpoint_files(sharded)), 3)
        self.assertEqual(digest_oracle.version_digest(sharded), digest_oracle.version_digest(self.make("dense")))

    def test_the_same_call_gives_the_same_bytes(self):
        for fill in ("hash", "normal"):
            first, second = (self.make("dense", 4, fill=fill) / "model.safetensors" for _ in range(2))
            self.assertEqual(first.read_bytes(), second.read_bytes())

    def test_normal_fill_is_normal(self):
        data = b"".join(fixtures.NormalFill(1, "F32").blocks("a.weight", (400, 256)))
        values = struct.unpack(f"<{400 * 256}f", data)

        self.assertEqual(len({values[256 * row : 256 * (row + 1)] for row in range(400)}), 400)
        self.assertAlmostEqual(math.sqrt(sum(v * v for v in values) / len(values)) * 16, 1, delta=0.02)

    def test_sized_comes_close_to_the_asked_size(self):
        for size in (10**6, 10**7, 10**8, 12 * 10**8, 5 * 10**9):
            with self.subTest(size):
                self.assertAlmostEqual(2 * fixtures.element_count(fixtures.sized_spec(size)) / size, 1, delta=0.01)

    def test_sizes_are_parsed(self):
        sizes = [fixtures.parse_bytes(text) for text in ("1.2GB", "64MiB", "100MB", "7B", "9")]

        self.assertEqual(sizes, [1200000000, 1 << 26, 10**8, 7, 9])

    @needs_numpy
    def test_greedy_decoding_is_finite_and_depends_on_the_version(self):
        for kind in ("dense", "tied", "bias", "qk-norm"):
            with self.subTest(kind):
                answers = [
                    forward_oracle.greedy(forward_oracle.Model(self.make(kind, version)), [1, 2, 3], 8)
                    for version in (1, 2)
                ]
                self.assertTrue(all(math.isfinite(x) for answer in answers for x in answer["logprobs"]))
                self.assertNotEqual(answers[0]["tokens"], answers[1]["tokens"])


@needs_numpy
class ForwardTest(WithTempDir):
    TINY = fixtures.Spec(layers=1, hidden=2, heads=1, kv_heads=1, head_dim=2, ffn=2, vocab=3)

    def model(self, spec=TINY, precision="float64", **weights):
        """A model whose weights are zero but for the norms, which are one, and `weights` (by the end of the name)."""
        tensors = []
        for name, shape in fixtures.shapes(spec).items():
            short = name.removeprefix("model.layers.0.").removesuffix(".weight").replace(".", "_")
            value = weights.get(short, numpy.full(shape, float("norm" in name)))
            value = numpy.asarray(value, dtype="<f4")
            self.assertEqual(value.shape, shape)
            tensors.append((name, "F32", shape, value.tobytes()))
        out = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        safetensors_io.write_file(out / "model.safetensors", tensors)
        (out / "config.json").write_text(json.dumps({**fixtures.config_of(spec, "F32"), "rms_norm_eps": 0.5}))
        return forward_oracle.Model(out, precision)

    def test_without_layers_at_work_the_logits_are_norm_times_head(self):
        model = self.model(
            model_embed_tokens=[[0, 0], [3, 4], [1, 0]], model_norm=[1, 2], lm_head=[[1, 0], [0, 1], [1, 1]]
        )

        logits = model.logits([1])

        # The mean square is 12.5 and eps 0.5, so [3, 4] becomes [3, 4] / sqrt(13) * [1, 2].
        root = math.sqrt(13)
        numpy.testing.assert_allclose(logits, [[3 / root, 8 / root, 11 / root]], rtol=1e-12)

    def test_attention_of_zero_queries_is_the_mean_of_the_past(self):
        model = self.model(self_attn_v_proj=[[1, 0], [0, 1]], self_attn_o_proj=[[1, 0], [0, 1]])
        x = numpy.array([[1.0, 2.0], [3.0, 6.0], [5.0, 1.0]])

        numpy.testing.assert_allclose(model.attention("model.layers.0", x), [[1, 2], [2, 4], [3, 3]], rtol=1e-12)

    def test_attention_by_hand(self):
        identity = [[1, 0], [0, 1]]
        model = self.model(
            self_attn_q_proj=identity, self_attn_k_proj=identity, self_attn_v_proj=identity, self_attn_o_proj=identity
        )
        x = numpy.array([[1.0, 0.0], [0.0, 1.0]])

        mixed = model.attention("model.layers.0", x)

        # At position 1 the pair (0, 1) turns by one radian to (-sin 1, cos 1); (1, 0) at position 0 stays.
        scores = numpy.array([-math.sin(1), 1]) / math.sqrt(2)
        weights = numpy.exp(scores) / numpy.exp(scores).sum()
        numpy.testing.assert_allclose(mixed, [[1, 0], [weights[0], weights[1]]], rtol=1e-12)

    def test_rotation_pairs_the_halves_and_depends_on_distance_only(self):
        unit = numpy.zeros((1, 3, 4))
        unit[0, :, 1] = 1
        turned = forward_oracle.rotate(unit, [1, 0.1])

        # Element 1 pairs with element 3, and turns by 0.1 a position.
        numpy.testing.assert_allclose(turned[0, 2], [0, math.cos(0.2), 0, math.sin(0.2)], rtol=1e-12)
        rng = numpy.random.default_rng(0)
        q, k = (numpy.repeat(rng.normal(size=(1, 1, 4)), 9, axis=1) for _ in range(2))
        dots = forward_oracle.rotate(q, [1, 0.1])[0] @ forward_oracle.rotate(k, [1, 0.1])[0].T
        numpy.testing.assert_allclose(dots[2:, 2:], dots[:-2, :-2], rtol=1e-9)

    def test_llama3_keeps_short_waves_divides_long_ones_and_blends_between(self):
        # Wavelengths 2 pi, 20 pi, 200 pi, 2000 pi against bounds 256 / 8 = 32 and 256 / 1 = 256: kept, blended, divided.
        rope = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0,
                "original_max_position_embeddings": 256}  # fmt: skip
        config = {"rope_theta": 10000.0, "rope_scaling": rope}

        got = forward_oracle.rope_frequencies(config, 8)

        smooth = (256 / (20 * math.pi) - 1) / 7
        numpy.testing.assert_allclose(got, [1, 0.1 * ((1 - smooth) / 4 + smooth), 0.01 / 4, 0.001 / 4], rtol=1e-12)

    def test_rope_frequencies_without_scaling_are_powers_of_theta(self):
        for config in ({"rope_theta": 100.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}):
            numpy.testing.assert_allclose(forward_oracle.rope_frequencies(config, 4), [1, 0.1], rtol=1e-12)

    def test_a_window_of_two_hides_all_but_the_last_two_positions(self):
        spec = fixtures.replace(self.TINY, model_type="mistral", extra=(("sliding_window", 2),))
        model = self.model(spec, self_attn_v_proj=[[1, 0], [0, 1]], self_attn_o_proj=[[1, 0], [0, 1]])
        x = numpy.array([[1.0, 2.0], [3.0, 6.0], [5.0, 2.0]])

        numpy.testing.assert_allclose(model.attention("model.layers.0", x), [[1, 2], [2, 4], [4, 4]], rtol=1e-12)

    def test_feed_forward_by_hand(self):
        model = self.model(mlp_gate_proj=[[1, 0], [0, 1]], mlp_up_proj=[[0, 1], [1, 0]], mlp_down_proj=[[1, 0], [0, 2]])

        got = model.feed_forward("model.layers.0", numpy.array([[2.0, -3.0]]))

        silu = [2 / (1 + math.exp(-2)), -3 / (1 + math.exp(3))]
        numpy.testing.assert_allclose(got, [[silu[0] * -3, 2 * silu[1] * 2]], rtol=1e-12)

    def test_head_norm_makes_queries_and_keys_of_unit_mean_square(self):
        spec = fixtures.replace(self.TINY, model_type="qwen3", qk_norm=True)
        model = self.model(spec, self_attn_q_proj=[[1, 0], [0, 1]], self_attn_q_norm=[1, 3])

        heads = model.heads("model.layers.0", "q", 1, numpy.array([[3.0, 4.0]]))

        numpy.testing.assert_allclose(heads, [[[3 / math.sqrt(13), 12 / math.sqrt(13)]]], rtol=1e-12)

    def test_a_later_token_changes_no_earlier_logit(self):
        model = forward_oracle.Model(self.dense(), "float64")

        numpy.testing.assert_allclose(model.logits([5, 6, 7, 8])[:3], model.logits([5, 6, 7]), rtol=1e-9)

    def test_grouped_heads_equal_repeated_heads(self):
        grouped = forward_oracle.Model(self.dense(), "float64")
        full = forward_oracle.Model(self.dense(), "float64")
        full.kv_head_count = full.head_count
        for kind in ("k", "v"):
            for layer in range(2):
                name = f"model.layers.{layer}.self_attn.{kind}_proj.weight"
                heads = full.weights[name].reshape(2, 16, 64)
                full.weights[name] = numpy.stack([heads[0], heads[0], heads[1], heads[1]]).reshape(64, 64)

        numpy.testing.assert_allclose(full.logits([1, 2, 3]), grouped.logits([1, 2, 3]), rtol=1e-9)

    def test_both_precisions_agree(self):
        place = self.dense()
        single, double = (forward_oracle.Model(place, p) for p in ("float32", "float64"))

        numpy.testing.assert_allclose(single.logits([9, 8, 7]), double.logits([9, 8, 7]), atol=1e-4)
        self.assertEqual(single.logits([1]).dtype, numpy.float32)

    def test_log_probabilities_add_up_to_one(self):
        logprobs = forward_oracle.log_softmax(numpy.array([[1000.0, 1001.0, -5.0]]))

        self.assertAlmostEqual(float(numpy.exp(logprobs).sum()), 1)
        self.assertAlmostEqual(float(logprobs[0, 1] - logprobs[0, 0]), 1)

    def test_greedy_takes_the_lowest_of_equal_tokens_and_stops(self):
        model = self.model()

        answer = forward_oracle.greedy(model, [2], 5, stop=[0])

        self.assertEqual((answer["tokens"], answer["finish"]), ([0], "stop"))
        self.assertAlmostEqual(answer["logprobs"][0], -math.log(3))
        self.assertEqual(answer["margins"], [0])

    def test_prompt_log_probabilities_are_those_of_greedy_steps(self):
        model = forward_oracle.Model(self.dense(), "float64")
        answer = forward_oracle.greedy(model, [4, 5], 4)

        scored = forward_oracle.prompt_logprobs(model, [4, 5, *answer["tokens"]])

        numpy.testing.assert_allclose(scored[1:], answer["logprobs"], rtol=1e-9)

    def dense(self):
        out = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        fixtures.write_checkpoint(out, fixtures.DENSE, 1)
        return out

    @unittest.skipUnless(
        os.environ.get("BASCULE_REAL_CHECKPOINT"), "BASCULE_REAL_CHECKPOINT does not name the output of real_checkpoint"
    )
    def test_the_real_checkpoint_knows_the_capital_of_france(self):
        prompt = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712]
        prompt += [8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]

        model = forward_oracle.Model(os.environ["BASCULE_REAL_CHECKPOINT"])
        answer = forward_oracle.greedy(model, prompt, 12, stop=[2])

        self.assertEqual(answer["tokens"], [504, 3575, 282, 4649, 314, 7042, 30, 2])  # The capital of France is Paris.


if __name__ == "__main__":
    unittest.main()
