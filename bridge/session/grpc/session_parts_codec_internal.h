// What several messages are made of, to protobuf and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "bascule/v1/session_parts.pb.h"
#include "bridge/session/messages.h"

namespace bascule {

inline constexpr std::size_t kMaxErrorTextBytes = std::size_t{64} << 10;

v1::Transport ToProto(TransportKind kind);
void ToProto(const TransportEndpoint& endpoint, v1::Endpoint* proto);
void ToProto(const PlanOptions& options, v1::PlanOptions* proto);
void ToProto(const FlipReport& report, v1::FlipReport* proto);
std::int64_t MicrosecondsOf(Duration time);

PlanOptions FromProto(const v1::PlanOptions& proto);
// Each: DataLoss "bad_message", with the field.
Result<TransportKind> TransportFromProto(std::string_view field, v1::Transport transport);
Result<TransportEndpoint> FromProto(std::string_view field, const v1::Endpoint& proto);
Result<FlipReport> FromProto(const v1::FlipReport& proto);
Result<Duration> TimeLeftFromProto(std::string_view field, std::int64_t microseconds);  // up to a year
Result<double> TimeFromProto(std::string_view field, double value);                     // finite, not negative
// An error of ours that came as text, into `failure`, with the first kMaxErrorTextBytes of its message.
Status FailureFromProto(std::string_view field, const std::string& code, const std::string& reason,
                        const std::string& message, Status& failure);

}  // namespace bascule
