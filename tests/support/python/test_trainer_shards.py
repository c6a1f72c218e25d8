"""The oracle of sharded trainers is tested itself, on sizes that one can check by hand."""

import types
import unittest

import numpy

import trainer_shards


def model_of(config, **tensors):
    tensors = {name: numpy.asarray(array, "u1") for name, array in tensors.items()}
    return types.SimpleNamespace(config=config, tensors=tensors, dtypes=dict.fromkeys(tensors, "U8"))


class TrainerShardsTest(unittest.TestCase):
    def test_a_flat_parameter_is_cut_by_element_and_padded(self):
        shards = trainer_shards.flat_shards([numpy.arange(4).reshape(2, 2), numpy.arange(4, 7)], 3)

        self.assertEqual([shard[:3].tolist() for shard in shards[:2]], [[0, 1, 2], [3, 4, 5]])
        self.assertEqual([len(shard) for shard in shards], [3, 3, 3])
        self.assertEqual(shards[2][0], 6)

    def test_the_last_chunks_may_be_empty(self):
        self.assertEqual([len(part) for part in trainer_shards.chunk(numpy.arange(5), 4)], [2, 2, 1, 0])

    def test_fully_sharding_cuts_what_tensor_parallelism_left(self):
        held = trainer_shards.mesh(model_of({}, **{"a.q_proj.weight": [[row] for row in range(8)]}), 2, 2)

        self.assertEqual([rank["a.q_proj.weight"][1].ravel().tolist() for rank in held],
                         [[0, 1], [4, 5], [2, 3], [6, 7]])  # fmt: skip

    def test_query_groups_follow_each_other(self):
        config = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
        layer = "model.layers.0."
        matrix = lambda *values: [[value] for value in values]  # noqa: E731
        tensors = {
            layer + "self_attn.q_proj.weight": matrix(10, 11, 12, 13),
            layer + "self_attn.k_proj.weight": matrix(20, 21),
            layer + "self_attn.v_proj.weight": matrix(30, 31),
            layer + "self_attn.o_proj.weight": [[1, 2]],
            layer + "mlp.gate_proj.weight": matrix(40, 41),
            layer + "mlp.up_proj.weight": matrix(50, 51),
            layer + "mlp.down_proj.weight": [[60, 61]],
            **{name: [0] for name in (layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight",
                                      "model.norm.weight")},
            "model.embed_tokens.weight": matrix(*range(130)),
        }  # fmt: skip
        held = trainer_shards.Megatron(model_of(config, **tensors), 2, tp=2, pp=1, vpp=1, ep=1, etp=2).held
        of = lambda name: [rank[name][1].ravel().tolist() for rank in held]  # noqa: E731

        self.assertEqual(of("decoder.layers.0.self_attention.linear_qkv.weight"), [[10, 11, 20, 30], [12, 13, 21, 31]])
        self.assertEqual(of("decoder.layers.0.mlp.linear_fc1.weight"), [[40, 50], [41, 51]])
        self.assertEqual(of("decoder.layers.0.mlp.linear_fc2.weight"), [[60], [61]])
        self.assertEqual(of("embedding.word_embeddings.weight"), [[*range(128)], [128, 129, *[0x5A] * 126]])


if __name__ == "__main__":
    unittest.main()
