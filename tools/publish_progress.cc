#include "tools/publish_progress.h"

#include <nlohmann/json.hpp>

namespace bascule {

constexpr Duration kPatience = std::chrono::milliseconds(500);

void PublishProgress::Update() {
  if (!bar_.visible()) return;
  const Deadline soon = Deadline::After(Clock::Real(), kPatience);
  if (client_ == nullptr) {
    auto connected = VersionStatusClient::Connect(replica_, soon);
    if (!connected.ok()) return;
    client_ = std::move(*connected);
  }
  const auto status = client_->GetStatus(soon, {});
  if (!status.ok()) return;
  const Json& session = status->value("session", Json());
  if (!session.is_object()) return;
  bar_.Draw(session.value("state", ""), session.value("received_bytes", std::int64_t{0}),
            session.value("total_bytes", std::int64_t{0}));
}

}  // namespace bascule
