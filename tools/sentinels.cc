#include "tools/sentinels.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace bascule {
namespace {

using Json = nlohmann::json;

Status Bad(const std::string& path, int line, const std::string& why) {
  return Status::InvalidArgument("bad_sentinels", fmt::format("{} line {}: {}", path, line, why));
}

bool AreTokens(const Json& tokens) {
  if (!tokens.is_array() || tokens.size() < 2) return false;
  for (const Json& token : tokens) {
    if (!token.is_number_integer() || token < 0 || token > std::numeric_limits<std::int32_t>::max()) return false;
  }
  return true;
}

bool AreLogprobs(const Json& logprobs, std::size_t count) {
  if (!logprobs.is_array() || logprobs.size() != count) return false;
  for (const Json& logprob : logprobs) {
    if (!logprob.is_number() || !std::isfinite(logprob.get<double>()) || logprob > 0) return false;
  }
  return true;
}

}  // namespace

Result<std::vector<Sentinel>> ReadSentinels(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Status::NotFound("no_such_file", path + ": no such file, or not readable");
  std::vector<Sentinel> sentinels;
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) return Bad(path, line, "no JSON object");
    const auto tokens = object.find("tokens");
    const auto logprobs = object.find("logprobs");
    if (tokens == object.end() || !AreTokens(*tokens)) return Bad(path, line, "\"tokens\" are two or more token ids");
    if (logprobs == object.end() || !AreLogprobs(*logprobs, tokens->size() - 1)) {
      return Bad(path, line, fmt::format("\"logprobs\" are {} numbers, none above 0", tokens->size() - 1));
    }
    sentinels.push_back({tokens->get<std::vector<std::int32_t>>(), logprobs->get<std::vector<double>>()});
  }
  if (sentinels.empty()) return Status::InvalidArgument("bad_sentinels", path + " has none");
  return sentinels;
}

Status CheckSentinel(std::size_t index, const Sentinel& sentinel, const std::vector<float>& logprobs, double bound) {
  if (logprobs.size() != sentinel.logprobs.size()) {
    return Status::DataLoss("sentinel_differs", fmt::format("sentinel {}: {} log-probabilities, not {}", index,
                                                            logprobs.size(), sentinel.logprobs.size()));
  }
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    const double difference = std::abs(double{logprobs[i]} - sentinel.logprobs[i]);
    if (difference <= bound) continue;  // never of a NaN
    return Status::DataLoss(
        "sentinel_differs",
        fmt::format("sentinel {}, token {}: log-probability {:.6g}, the trainer's is {:.6g}, at most "
                    "{:g} apart may they be",
                    index, i + 1, logprobs[i], sentinel.logprobs[i], bound));
  }
  return OkStatus();
}

}  // namespace bascule
