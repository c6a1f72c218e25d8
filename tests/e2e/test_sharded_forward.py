"""The rank files of `bascule shard` compute what the whole model computes: outputs of column-parallel linears side by side,
outputs of row-parallel ones added."""

import functools
import unittest

from bascule_program import EndToEndTest, run, scratch

try:
    import numpy

    import architectures
    import forward_oracle
    import sharded_forward
except ImportError:  # numpy
    numpy = None

TOKENS = [1, 129, 64, 7, 100]
WHOLE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@functools.cache
def checkpoint(kind):
    path = scratch() / f"forward-{kind}"
    architectures.write_checkpoint(kind, path)
    return path


@functools.cache
def logits_of_ranks(kind, count):
    """By `count` rank files; None where the sizes do not divide."""
    out = scratch() / f"forward-{kind}-tp{count}"
    ended = run("shard", checkpoint(kind), "--tp", count, "--out", out)
    if ended.code == 1 and ended.error["reason"] == "does_not_divide":
        return None
    assert ended.code == 0, ended
    ranks = sharded_forward.read_ranks([out / f"rank-{rank}.safetensors" for rank in range(count)])
    return sharded_forward.ShardedModel(architectures.KINDS[kind], ranks).logits(TOKENS)


@unittest.skipIf(numpy is None, "needs the Python package numpy")
class ShardedForwardTest(EndToEndTest):
    def test_any_number_of_rank_files_gives_what_one_gives(self):
        for kind in architectures.KINDS:
            divided = 0
            for count in (2, 3, 4, 8):
                with self.subTest(kind, count=count):
                    logits = logits_of_ranks(kind, count)
                    if logits is not None:
                        divided += 1
                        numpy.testing.assert_allclose(logits, logits_of_ranks(kind, 1), rtol=1e-9, atol=1e-9)
            self.assertGreater(divided, 0, kind)

    def test_one_rank_file_gives_what_the_whole_checkpoint_gives(self):
        for kind, config in architectures.KINDS.items():
            # What the forward pass of whole checkpoints knows: these architectures, with heads of one size.
            if config["architectures"][0] in WHOLE and "v_head_dim" not in config:
                with self.subTest(kind):
                    whole = forward_oracle.Model(checkpoint(kind), "float64").logits(TOKENS)
                    numpy.testing.assert_allclose(logits_of_ranks(kind, 1), whole, rtol=1e-9, atol=1e-9)

    def test_stacked_and_separate_experts_are_the_same_version(self):
        stacked, separate = (
            self.run_ok("digest", checkpoint(kind), "--tensors").object for kind in ("mixtral-stacked", "mixtral")
        )

        self.assertIn("model.layers.0.block_sparse_moe.experts.7.w3.weight", separate["tensors"])
        self.assertEqual(stacked, separate)


if __name__ == "__main__":
    unittest.main()
