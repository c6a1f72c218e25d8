#include "model/quantization.h"

#include <gtest/gtest.h>

namespace bascule {
namespace {

Result<Quantization> Read(const std::string& quantization_config) {
  const Result<ConfigReader> reader =
      ConfigReader::Parse(fmt::format(R"({{"quantization_config": {}}})", quantization_config));
  EXPECT_TRUE(reader.ok()) << quantization_config;
  if (!reader.ok()) return reader.status();
  return ReadQuantization(*reader);
}

// The text of a compressed-tensors config with one group.
std::string CompressedTensors(const std::string& format, const std::string& weights, const std::string& more = "") {
  return fmt::format(
      R"({{"quant_method": "compressed-tensors", "format": "{}",
           "config_groups": {{"group_0": {{"targets": ["Linear"], "weights": {}}}}}{}}})",
      format, weights, more);
}

TEST(QuantizationTest, EveryPublishedFormIsRead) {
  const struct {
    std::string config;
    const char* text;
  } table[] = {
      {"null", ""},
      {Fp8BlockConfigJson(), "fp8 [Linear: fp8 128x128 weight_scale_inv]"},
      {R"({"quant_method": "fp8", "weight_block_size": [64, 256]})", "fp8 [Linear: fp8 64x256 weight_scale_inv]"},
      {R"({"quant_method": "fp8", "activation_scheme": "static", "kv_cache_scheme": "static"})",
       "fp8 [Linear: fp8 allxall weight_scale input_scale] kv_scales"},
      {CompressedTensors("float-quantized", R"({"num_bits": 8, "type": "float", "strategy": "channel"})"),
       "compressed-tensors [Linear: fp8 1xall weight_scale]"},
      {CompressedTensors("float-quantized",
                         R"({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]})"),
       "compressed-tensors [Linear: fp8 128x128 weight_scale]"},
      {CompressedTensors("int-quantized", R"({"num_bits": 8, "strategy": "channel", "symmetric": false})"),
       "compressed-tensors [Linear: int8 1xall weight_scale weight_zero_point]"},
      {CompressedTensors("pack-quantized", R"({"num_bits": 4, "type": "int", "group_size": 32, "actorder": "weight"})"),
       "compressed-tensors [Linear: packed int4 1x32 weight_scale]"},
      {CompressedTensors("pack-quantized", R"({"num_bits": 8, "type": "int", "strategy": "channel"})",
                         R"(, "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"})"),
       "compressed-tensors [Linear: packed int8 1xall weight_scale] kv_scales"},
  };
  for (const auto& row : table) {
    const Result<Quantization> quantization = Read(row.config);
    ASSERT_TRUE(quantization.ok()) << row.config << quantization.status().ToString();
    EXPECT_EQ(quantization->ToString(), row.text) << row.config;
  }
}

TEST(QuantizationTest, TheListOfModulesToLeaveAloneHasThreeNames) {
  for (const char* key : {"modules_to_not_convert", "ignored_layers", "ignore"}) {
    const Result<Quantization> quantization =
        Read(fmt::format(R"({{"quant_method": "fp8", "{}": ["lm_head", "re:.*gate$"]}})", key));

    ASSERT_TRUE(quantization.ok()) << quantization.status().ToString();
    EXPECT_EQ(quantization->ignored, (std::vector<std::string>{"lm_head", "re:.*gate$"}));
    EXPECT_NE(quantization->ToString().find(" ignored=2:"), std::string::npos);
  }
  EXPECT_TRUE(Read(R"({"quant_method": "fp8", "modules_to_not_convert": null})")->ignored.empty());
  EXPECT_TRUE(Read(R"({"quant_method": "fp8", "modules_to_not_convert": []})")->ignored.empty());
}

TEST(QuantizationTest, WhatIsMadeHereIsReadAsWhatItIs) {
  const Result<Quantization> quantization = Read(Fp8BlockConfigJson());

  ASSERT_TRUE(quantization.ok());
  EXPECT_EQ(*quantization, Fp8BlockQuantization());
}

TEST(QuantizationTest, MethodsAndFormatsWhoseTensorsAreNotKnownAreRefusedByName) {
  const std::string refused[][2] = {
      {R"({"quant_method": "gptq", "bits": 4})", "gptq"},
      {R"({"bits": 4})", "missing"},
      {R"({"quant_method": "mxfp4"})", "mxfp4"},
      {R"({"quant_method": "fp8", "fmt": "e5m2"})", "e5m2"},
      {R"({"quant_method": "fp8", "fmt": "e4m3fnuz"})", "e4m3fnuz"},
      {R"({"quant_method": "fp8", "activation_scheme": "other"})", "activation_scheme"},
      {CompressedTensors("nvfp4-pack-quantized", R"({"num_bits": 4, "type": "float"})"), "nvfp4"},
      {CompressedTensors("pack-quantized", R"({"num_bits": 3, "type": "int"})"), "3 bits"},
      {CompressedTensors("float-quantized", R"({"num_bits": 8, "type": "int"})"), "int of 8 bits"},
      {CompressedTensors("int-quantized", R"({"num_bits": 8, "strategy": "token"})"), "strategy"},
      {CompressedTensors("pack-quantized", R"({"num_bits": 4, "actorder": "group"})"), "actorder"},
      {CompressedTensors("int-quantized", R"({"num_bits": 8})", R"(, "sparsity_config": {"format": "sparse-24"})"),
       "sparsity_config"},
      {CompressedTensors("int-quantized", R"({"num_bits": 8})", R"(, "kv_cache_scheme": {"strategy": "channel"})"),
       "kv_cache_scheme"},
  };
  for (const auto& [config, named] : refused) {
    const Status status = Read(config).status();

    EXPECT_EQ(status.reason(), "unsupported_quantization") << config;
    EXPECT_NE(status.message().find(named), std::string::npos) << status.ToString();
  }
}

TEST(QuantizationTest, ValuesThatAreNotWhatTheirKeyAsksForAreRefusedWithTheKey) {
  const std::string refused[][2] = {
      {R"({"quant_method": 3})", "quant_method"},
      {R"([])", "quantization_config"},
      {R"({"quant_method": "fp8", "weight_block_size": [128]})", "weight_block_size"},
      {R"({"quant_method": "fp8", "weight_block_size": [0, 128]})", "weight_block_size"},
      {R"({"quant_method": "fp8", "weight_block_size": [128, 99999999]})", "weight_block_size"},
      {R"({"quant_method": "fp8", "ignore": ["lm_head", null]})", "ignore"},
      {R"({"quant_method": "fp8", "ignore": [""]})", "pattern"},
      {R"({"quant_method": "fp8", "ignore": ["re:("]})", "pattern"},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})", "config_groups"},
      {CompressedTensors("pack-quantized", R"({"num_bits": 4, "group_size": -1})"), "group_size"},
      {CompressedTensors("float-quantized", R"({"num_bits": 8, "type": "float", "strategy": "block",
                                                "block_structure": "128y128"})"),
       "block_structure"},
  };
  for (const auto& [config, named] : refused) {
    const Status status = Read(config).status();

    EXPECT_EQ(status.reason(), "bad_config") << config << status.ToString();
    EXPECT_NE(status.message().find(named), std::string::npos) << status.ToString();
  }
}

}  // namespace
}  // namespace bascule
