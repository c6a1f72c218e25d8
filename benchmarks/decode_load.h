// Keeps an engine decoding, and notes when its tokens come.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/worker.h"
#include "engine_side/decode/decode_engine.h"

namespace bascule {

class DecodeLoad {
 public:
  struct Tokens {
    std::size_t count = 0;
    double seconds = 0;
    std::vector<double> gap_ms;       // between two tokens of a request
    std::vector<double> flip_gap_ms;  // of those, where a flip lay between the two
    double PerSecond() const { return static_cast<double>(count) / seconds; }
  };

  // A request has at most so much key/value state: its prompt and all of its tokens but the last.
  static constexpr int kPromptTokens = 4, kNewTokens = 64;

  // So many requests at once, one after another. `engine` is borrowed.
  DecodeLoad(DecodeEngine& engine, int requests);
  ~DecodeLoad();

  // Tokens since the last call, or since the beginning.
  Tokens Take();
  // Requests that the engine refused or could not go on with are nothing to measure.
  Status status() const;

 private:
  class Ledger;
  class Request;
  void Keep(int requests, const std::stop_token& stop);

  DecodeEngine& engine_;
  const std::shared_ptr<Ledger> ledger_;  // shared with the engine, which keeps it until a request's end has been told
  Worker worker_;
};

}  // namespace bascule
