"""Tests of scripts/chat_client, byte_level_bpe.py, real_checkpoint and plot_planning. Run: python3 -m unittest."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import xml.etree.ElementTree

try:
    import numpy
except ImportError:
    numpy = None

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import byte_level_bpe  # noqa: E402  (the folder of scripts is no package)


def load_script(name):
    loader = importlib.machinery.SourceFileLoader(name, str(SCRIPTS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def tiny_tokenizer(digits=True):
    """Bytes, three merges, and the chat's added tokens. "\u0120" stands for a space."""
    merges = ["h e", "l l", "he ll", "\u0120 hell"]
    vocab = {char: i for i, char in enumerate(sorted(byte_level_bpe.byte_alphabet().values()))}
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    added = []
    for content in ("<|im_start|>", "<|im_end|>"):
        added.append({"id": len(vocab), "content": content})
        vocab[content] = len(vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False}
    stages = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}
    return {
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": stages if digits else byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }


class TokenizerTest(unittest.TestCase):
    def setUp(self):
        self.description = tiny_tokenizer()
        self.tokenizer = byte_level_bpe.Tokenizer(self.description)
        self.vocab = self.description["model"]["vocab"]

    def texts(self, text):
        names = {i: token for token, i in self.vocab.items()}
        return [names[i] for i in self.tokenizer.encode(text)]

    def test_words_are_cut_as_gpt2_cuts_them(self):
        cases = {
            "I'll go": ["I", "'ll", " go"],
            "a  b": ["a", " ", " b"],
            "a \n b": ["a", " \n", " b"],
            "x \t": ["x", " \t"],
            " 12ab!?": [" 12", "ab", "!?"],
            "\u00e9t\u00e9 _ \u65e5": ["\u00e9t\u00e9", " _", " \u65e5"],
            "'s's": ["'s", "'s"],
        }
        for text, words in cases.items():
            self.assertEqual(list(byte_level_bpe.split_words(text)), words, text)

    def test_digits_stand_alone(self):
        self.assertEqual(list(byte_level_bpe.split_digits("a12 3")), ["a", "1", "2", " ", "3"])

    def test_merges_apply_by_rank(self):
        self.assertEqual(self.texts("hell hell"), ["hell", "\u0120hell"])
        self.assertEqual(self.texts("hel"), ["he", "l"])

    def test_added_tokens_are_whole(self):
        self.assertEqual(self.texts("<|im_end|>he"), ["<|im_end|>", "he"])

    def test_every_text_comes_back(self):
        for text in ("", "hello  world\n\n 12 \u00e9\U0001f642 '", "<|im_start|>user\nhi<|im_end|>"):
            self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), text)

    def test_a_cut_character_is_no_error(self):
        self.assertEqual(self.tokenizer.decode(self.tokenizer.encode("\u00e9")[:1]), "\ufffd")

    def test_a_tokenizer_of_another_kind_is_refused(self):
        for change in (
            {"normalizer": {"type": "NFC"}},
            {"model": {"type": "Unigram", "vocab": {}, "merges": []}},
            {"pre_tokenizer": {"type": "Metaspace"}},
        ):
            with self.assertRaises(ValueError):
                byte_level_bpe.Tokenizer({**self.description, **change})


class ChatClientTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="bascule_scripts_"))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
        self.tokenizer = byte_level_bpe.Tokenizer.from_file(self.dir / "tokenizer.json")

    def fake_bascule(self, lines, exit_code=0):
        """A program that notes its arguments and prints `lines`."""
        program = self.dir / "bascule"
        program.write_text(
            textwrap.dedent(
                f"""\
                #!{sys.executable}
                import json, sys
                json.dump(sys.argv[1:], open({str(self.dir / "argv")!r}, "w"))
                print({chr(10).join(map(json.dumps, lines))!r})
                sys.exit({exit_code})
                """
            )
        )
        program.chmod(0o755)
        return program

    def run_client(self, *arguments):
        command = [sys.executable, str(SCRIPTS / "chat_client"), str(self.dir), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def answer(self, tokens):
        spans = [{"begin": 0, "end": len(tokens), "version": 7, "kv_epoch": 7}]
        return {"tokens": tokens, "logprobs": [0.0] * len(tokens), "spans": spans, "finish": "stop"}

    def test_the_prompt_goes_out_in_tokens_and_the_answer_comes_back_in_words(self):
        end = self.tokenizer.id_of("<|im_end|>")
        words = self.tokenizer.encode("h\u00e9llo")
        program = self.fake_bascule(
            [{"tokens": words[:2]}, {"tokens": words[2:]}, {"tokens": [end]}, self.answer([*words, end])]
        )

        done = self.run_client("h:1", "hell", "--system", "S", "--max-new", "9", "--bascule", str(program))

        self.assertEqual((done.returncode, done.stdout), (0, "h\u00e9llo\n"), done.stderr)
        self.assertIn("version 7", done.stderr)
        argv = json.loads((self.dir / "argv").read_text())
        self.assertEqual(argv[:3], ["generate", "h:1", "--json"])
        sent = [int(token) for token in argv[argv.index("--tokens") + 1].split(",")]
        want = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhell<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(self.tokenizer.decode(sent), want)
        self.assertEqual(argv[argv.index("--stop") + 1], str(end))
        self.assertEqual(argv[argv.index("--max-new") + 1], "9")

    def test_json_adds_the_text(self):
        words = self.tokenizer.encode("hell")
        program = self.fake_bascule([self.answer(words)])

        done = self.run_client("h:1", "x", "--json", "--raw", "--bascule", str(program))

        self.assertEqual(json.loads(done.stdout), {**self.answer(words), "text": "hell"})
        argv = json.loads((self.dir / "argv").read_text())
        self.assertNotIn("--stream", argv)
        self.assertNotIn("--stop", argv)

    def test_the_exit_code_of_a_failed_engine_is_passed_on(self):
        program = self.fake_bascule([{"error": {"code": "unavailable"}}], exit_code=4)

        self.assertEqual(self.run_client("h:1", "x", "--bascule", str(program)).returncode, 4)
        self.assertEqual(self.run_client("h:1", "x", "--json", "--bascule", str(program)).returncode, 4)

    def test_usage_and_missing_files(self):
        self.assertEqual(self.run_client("h:1").returncode, 2)
        self.assertEqual(self.run_client("h:1", "x", "--bascule", "/nowhere/bascule").returncode, 1)
        (self.dir / "tokenizer.json").unlink()
        done = self.run_client("h:1", "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn("tokenizer.json: No such file", done.stderr)

    def test_tokens_without_an_engine(self):
        printed = self.run_client("--print-tokens", "hell", "--raw").stdout.strip()

        self.assertEqual(self.run_client("--decode", printed).stdout, "hell\n")


class RealCheckpointTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="bascule_scripts_"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.script = load_script("real_checkpoint")

    def run_script(self, *arguments, **environment):
        command = [sys.executable, str(SCRIPTS / "real_checkpoint"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})

    def test_without_pypi_it_skips_by_that_name_and_leaves_no_output(self):
        closed = "http://127.0.0.1:9/simple"

        done = self.run_script(
            self.dir / "out",
            "--cache",
            self.dir / "cache",
            PIP_INDEX_URL=closed,
            PIP_EXTRA_INDEX_URL="",
            PIP_NO_INDEX="",
        )

        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("SKIPPED: PyPI", done.stderr)
        self.assertFalse((self.dir / "out").exists())

    def test_a_directory_of_somebody_else_is_left_alone(self):
        (self.dir / "out").mkdir()
        (self.dir / "out" / "mine").write_text("x")

        done = self.run_script(self.dir / "out", "--cache", self.dir / "cache")

        self.assertEqual(done.returncode, 1)
        self.assertIn("was not made by this script", done.stderr)
        self.assertEqual((self.dir / "out" / "mine").read_text(), "x")

    def test_a_complete_output_is_left_alone_and_a_cut_one_is_not(self):
        out = self.dir / "out"
        self.script.write_output(out, 0, lambda folder: (folder / "config.json").write_text("{}"))

        done = self.run_script(out, "--cache", self.dir / "cache")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("already complete", done.stderr)
        (out / "config.json").write_text("")
        self.assertFalse(self.script.is_complete(out, 0))

    def test_a_failed_write_leaves_nothing(self):
        def fail(folder):
            (folder / "config.json").write_text("{}")
            raise OSError(28, "No space left on device")

        with self.assertRaises(OSError):
            self.script.write_output(self.dir / "out", 0, fail)

        self.assertEqual(list(self.dir.iterdir()), [])

    def test_names_are_mapped(self):
        names = ["token_embd.weight", "output_norm.weight", "blk.12.attn_q.weight", "blk.0.ffn_norm.weight"]

        self.assertEqual(
            [self.script.hugging_face_name(name) for name in names],
            [
                "model.embed_tokens.weight",
                "model.norm.weight",
                "model.layers.12.self_attn.q_proj.weight",
                "model.layers.0.post_attention_layernorm.weight",
            ],
        )
        with self.assertRaises(self.script.Failure):
            self.script.hugging_face_name("blk.0.attn_rot_embd.weight")

    @unittest.skipIf(numpy is None, "needs the PyPI package numpy")
    def test_the_row_permutation_is_undone(self):
        # Two heads of six rows: GGUF stores each head's rows 0..5 in the order 0 3 1 4 2 5.
        stored = numpy.array([[0], [3], [1], [4], [2], [5], [10], [13], [11], [14], [12], [15]])

        rows = self.script.undo_rope_permutation(stored, head_count=2)

        self.assertEqual(rows[:, 0].tolist(), [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15])

    @unittest.skipIf(numpy is None, "needs the PyPI package numpy")
    def test_bf16_rounds_to_nearest_even_and_keeps_nan(self):
        bits = numpy.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800001, 0x00008001], dtype=numpy.uint32)

        self.assertEqual(
            self.script.to_bf16(bits.view(numpy.float32)).tolist(), [0x3F80, 0x3F82, 0x7F80, 0x7FC0, 0x0001]
        )

    @unittest.skipIf(numpy is None, "needs the PyPI package numpy")
    def test_the_step_is_small_deterministic_and_keeps_zeros(self):
        weights = self.script.to_bf16(numpy.linspace(-1, 1, 40001, dtype=numpy.float32).reshape(1, -1))

        stepped, changed = self.script.take_step("w", weights)

        again, _ = self.script.take_step("w", weights)
        self.assertTrue(numpy.array_equal(stepped, again))
        self.assertTrue(0.005 < changed / weights.size < 0.2)
        wide = [(b.astype(numpy.uint32) << 16).view(numpy.float32) for b in (weights, stepped)]
        self.assertTrue(numpy.all(numpy.abs(wide[0] - wide[1]) <= 0.0079))


class PlotPlanningTest(unittest.TestCase):
    NAMES = ["8_layers_256x128", "16_layers_256x128", "1t_64x128", "1t_128x128", "1t_256x32", "1t_256x128"]

    def draw(self, rows):
        command = [sys.executable, str(SCRIPTS / "plot_planning")]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)

    def test_each_panel_has_the_plans_that_differ_in_its_size_alone(self):
        rows = [{"name": f"plan_moe_{name}", "value": 1 + i} for i, name in enumerate(self.NAMES)]
        rows.append({"name": "plan_moe_peak_memory", "value": 1.5})

        done = self.draw(rows)

        self.assertEqual(done.returncode, 0, done.stderr)
        root = xml.etree.ElementTree.fromstring(done.stdout)
        lines = [line.get("points").split() for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
        self.assertEqual([len(line) for line in lines], [3, 3, 2])
        # The plan of all ranks and layers is the last point of each, and the highest of all.
        self.assertEqual({line[-1].split(",")[0] for line in lines}, {"740.0"})
        self.assertEqual([line[-1].split(",")[1] for line in lines], ["44.0", "294.0", "544.0"])

    def test_rows_of_another_benchmark_are_refused(self):
        done = self.draw([{"name": "memcpy", "value": 9}])

        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("plan_moe", done.stderr)


if __name__ == "__main__":
    unittest.main()
