// Something that the sink of a request is to hear: what its prompt met, a token, or that the request ended. Made under
// the engine's lock, told outside of it.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "engine_side/decode/decode_engine.h"

namespace bascule {

struct Delivery {
  std::uint64_t request = 0;
  std::shared_ptr<GenerateSink> sink;  // shared with the request: it lives until OnFinish has returned
  std::optional<PromptReport> prompt;
  std::optional<GeneratedToken> token;
  FinishReason finish = FinishReason::kLength;  // without a prompt or a token
  Status why;

  void Tell() const {
    if (prompt) {
      sink->OnPrompt(*prompt);
    } else if (token) {
      sink->OnToken(*token);
    } else {
      sink->OnFinish(finish, why);
    }
  }
};

}  // namespace bascule
