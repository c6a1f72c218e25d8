#include "tests/unit/decode/reference_decoder.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace bascule {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;  // a row a position

Matrix Linear(const Matrix& x, const std::vector<float>& w, const std::vector<float>& bias = {}) {
  Matrix y;
  for (const Vector& row : x) {
    Vector& out = y.emplace_back(w.size() / row.size());
    for (std::size_t o = 0; o < out.size(); ++o) {
      if (!bias.empty()) out[o] = bias[o];
      for (std::size_t i = 0; i < row.size(); ++i) out[o] += row[i] * w[o * row.size() + i];
    }
  }
  return y;
}

// The product of a module, with its bias where the model has one.
Matrix Module(const Matrix& x, const LogicalWeights& weights, const std::string& name) {
  const auto bias = weights.find(name + ".bias");
  return Linear(x, weights.at(name + ".weight"), bias == weights.end() ? std::vector<float>{} : bias->second);
}

void Normalise(double* x, std::size_t size, const std::vector<float>& w, double eps) {
  double square = 0;
  for (std::size_t i = 0; i < size; ++i) square += x[i] * x[i];
  const double scale = 1 / std::sqrt(square / static_cast<double>(size) + eps);
  for (std::size_t i = 0; i < size; ++i) x[i] *= scale * w[i];
}

Matrix Normalised(Matrix x, const std::vector<float>& w, double eps) {
  for (Vector& row : x) Normalise(row.data(), row.size(), w, eps);
  return x;
}

// Radians a position. Llama 3's scaling as its authors published it: by wavelength.
double Frequency(const ModelConfig& config, std::size_t i) {
  const double size = static_cast<double>(config.head_size);
  const double frequency = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / size);
  if (config.rope_scaling != "llama3") return frequency;
  const RopeStretch& stretch = config.rope_stretch;
  const double wavelength = 2 * std::acos(-1.0) / frequency;
  if (wavelength < stretch.original_positions / stretch.high_frequency_factor) return frequency;
  if (wavelength > stretch.original_positions / stretch.low_frequency_factor) return frequency / stretch.factor;
  const double smooth = (stretch.original_positions / wavelength - stretch.low_frequency_factor) /
                        (stretch.high_frequency_factor - stretch.low_frequency_factor);
  return (1 - smooth) * frequency / stretch.factor + smooth * frequency;
}

void Rotate(double* head, const ModelConfig& config, double position) {
  const auto size = static_cast<std::size_t>(config.head_size);
  for (std::size_t i = 0; i < size / 2; ++i) {
    const double angle = position * Frequency(config, i);
    const double a = head[i], b = head[i + size / 2];
    head[i] = a * std::cos(angle) - b * std::sin(angle);
    head[i + size / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
}

// Mixed values of one query head at `position`.
void Attend(const double* query, const Matrix& keys, const Matrix& values, std::size_t offset, std::size_t size,
            std::size_t position, double* out) {
  Vector weight;
  double total = 0;
  for (std::size_t t = 0; t <= position; ++t) {
    double score = 0;
    for (std::size_t d = 0; d < size; ++d) score += query[d] * keys[t][offset + d];
    total += weight.emplace_back(std::exp(score / std::sqrt(static_cast<double>(size))));
  }
  for (std::size_t d = 0; d < size; ++d) {
    out[d] = 0;
    for (std::size_t t = 0; t <= position; ++t) out[d] += weight[t] / total * values[t][offset + d];
  }
}

Matrix Attention(const ModelConfig& config, const LogicalWeights& weights, const std::string& layer, const Matrix& x) {
  const auto size = static_cast<std::size_t>(config.head_size);
  const auto heads = static_cast<std::size_t>(config.query_heads), kv_heads = static_cast<std::size_t>(config.kv_heads);
  Matrix query = Module(x, weights, layer + "self_attn.q_proj");
  Matrix key = Module(x, weights, layer + "self_attn.k_proj");
  const Matrix value = Module(x, weights, layer + "self_attn.v_proj");
  for (std::size_t t = 0; t < x.size(); ++t) {
    const auto prepare = [&](double* head, const char* norm) {
      if (config.qk_norm) Normalise(head, size, weights.at(layer + norm), config.rms_norm_eps);
      Rotate(head, config, static_cast<double>(t));
    };
    for (std::size_t h = 0; h < heads; ++h) prepare(&query[t][h * size], "self_attn.q_norm.weight");
    for (std::size_t h = 0; h < kv_heads; ++h) prepare(&key[t][h * size], "self_attn.k_norm.weight");
  }
  Matrix mixed(x.size(), Vector(heads * size));
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      Attend(&query[t][h * size], key, value, h / (heads / kv_heads) * size, size, t, &mixed[t][h * size]);
    }
  }
  return Module(mixed, weights, layer + "self_attn.o_proj");
}

Matrix FeedForward(const LogicalWeights& weights, const std::string& layer, const Matrix& x) {
  Matrix gate = Module(x, weights, layer + "mlp.gate_proj");
  const Matrix up = Module(x, weights, layer + "mlp.up_proj");
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t i = 0; i < up[t].size(); ++i) gate[t][i] *= up[t][i] / (1 + std::exp(-gate[t][i]));
  }
  return Module(gate, weights, layer + "mlp.down_proj");
}

void AddTo(Matrix& x, const Matrix& y) {
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
  }
}

}  // namespace

std::vector<double> ReferenceLogprobs(const ModelConfig& config, const LogicalWeights& weights,
                                      const std::vector<std::int32_t>& tokens) {
  const std::vector<float>& embedding = weights.at("model.embed_tokens.weight");
  Matrix x;
  for (const std::int32_t token : tokens) {
    const auto row = embedding.begin() + token * config.hidden;
    x.emplace_back(row, row + config.hidden);
  }
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    AddTo(x, Attention(config, weights, layer,
                       Normalised(x, weights.at(layer + "input_layernorm.weight"), config.rms_norm_eps)));
    AddTo(x, FeedForward(weights, layer,
                         Normalised(x, weights.at(layer + "post_attention_layernorm.weight"), config.rms_norm_eps)));
  }
  const Matrix last = Normalised({x.back()}, weights.at("model.norm.weight"), config.rms_norm_eps);
  Vector logits = Linear(last, config.tied_head ? embedding : weights.at("lm_head.weight"))[0];
  double total = 0;
  const double largest = *std::max_element(logits.begin(), logits.end());
  for (const double logit : logits) total += std::exp(logit - largest);
  for (double& logit : logits) logit -= largest + std::log(total);
  return logits;
}

}  // namespace bascule
