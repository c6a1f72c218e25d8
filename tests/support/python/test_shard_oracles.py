"""The oracles of sharding are tested themselves: on sizes that one can check by hand, and against the forward pass."""

import pathlib
import tempfile
import unittest

import numpy

import architectures
import forward_oracle
import safetensors_io
import shard_oracle
import sharded_forward

TOKENS = [1, 129, 64, 7, 100, 0, 63]
RANKS = (1, 2, 3, 4, 6, 8)
# Kinds whose whole tensors forward_oracle can read as well.
WHOLE = ("llama", "llama-biases", "llama-tied", "mistral", "qwen2", "qwen3", "one-kv-head", "three-kv-heads",
         "twelve-heads")  # fmt: skip


def as_numbers(held):
    """{name: (dtype, bits)} as float64."""
    return {
        name: forward_oracle.as_array(safetensors_io.Tensor(dtype, bits.shape, bits.tobytes()), numpy.dtype("float64"))
        for name, (dtype, bits) in held.items()
    }


class PartsTest(unittest.TestCase):
    def test_more_ranks_than_kv_heads_share_a_head_with_their_neighbours(self):
        heads = numpy.arange(6).reshape(6, 1)  # two heads of three rows

        self.assertEqual([part.ravel().tolist() for part in shard_oracle.kv_parts(heads, 2, 4)],
                         [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]])  # fmt: skip
        self.assertEqual(
            [part.ravel().tolist() for part in shard_oracle.kv_parts(heads, 2, 2)], [[0, 1, 2], [3, 4, 5]]
        )
        with self.assertRaises(shard_oracle.Refused):
            shard_oracle.kv_parts(heads, 2, 3)

    def test_the_vocabulary_is_padded_and_then_cut(self):
        ranks = shard_oracle.vocabulary_parts(numpy.arange(1, 131).reshape(130, 1), 4)

        self.assertEqual([len(rank) for rank in ranks], [48] * 4)
        self.assertEqual(ranks[2].ravel().tolist(), [*range(97, 131), *[0] * 14])
        self.assertFalse(ranks[3].any())


class ShardedForwardTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def checkpoint(self, kind):
        path = pathlib.Path(self.directory.name) / kind
        architectures.write_checkpoint(kind, path)
        return path

    def logits(self, checkpoint, count, expert_parallel=False):
        """Of `count` ranks; None where the sizes do not divide."""
        oracle = shard_oracle.Oracle(checkpoint)
        try:
            held = oracle.ranks(count, expert_parallel)
        except shard_oracle.Refused:
            return None
        ranks = [as_numbers(rank) for rank in held]
        return sharded_forward.ShardedModel(oracle.config, ranks, expert_parallel).logits(TOKENS)

    def test_any_number_of_ranks_gives_what_one_gives(self):
        for kind in architectures.KINDS:
            checkpoint = self.checkpoint(kind)
            whole = self.logits(checkpoint, 1)
            self.assertGreater(numpy.ptp(whole), 0.1)
            for count in RANKS:
                for expert_parallel in (False, True):
                    with self.subTest(kind, count=count, expert_parallel=expert_parallel):
                        logits = self.logits(checkpoint, count, expert_parallel)
                        if logits is not None:
                            numpy.testing.assert_allclose(logits, whole, rtol=1e-9, atol=1e-9)

    def test_one_rank_gives_what_the_whole_model_gives(self):
        for kind in WHOLE:
            with self.subTest(kind):
                checkpoint = self.checkpoint(kind)
                whole = forward_oracle.Model(checkpoint, "float64").logits(TOKENS)
                numpy.testing.assert_allclose(self.logits(checkpoint, 1), whole, rtol=1e-9, atol=1e-9)

    def test_ranks_in_another_order_give_something_else(self):
        checkpoint = self.checkpoint("llama")
        oracle = shard_oracle.Oracle(checkpoint)
        held = oracle.ranks(2)
        for name in ("model.layers.0.self_attn.qkv_proj.weight", "model.layers.1.mlp.down_proj.weight"):
            swapped = [dict(held[0]), dict(held[1])]
            swapped[0][name], swapped[1][name] = held[1][name], held[0][name]
            ranks = [as_numbers(rank) for rank in swapped]
            logits = sharded_forward.ShardedModel(oracle.config, ranks).logits(TOKENS)
            self.assertFalse(numpy.allclose(logits, self.logits(checkpoint, 1)))


if __name__ == "__main__":
    unittest.main()
