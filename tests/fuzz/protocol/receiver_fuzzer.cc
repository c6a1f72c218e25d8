// A connection to an engine whose every word comes from anywhere: messages, each behind its length in two bytes.
// Whatever a publisher says, without its bytes no version goes live, and once it is gone no session is left.
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/grpc/grpc_log_internal.h"
#include "base/log.h"
#include "bridge/send/publish_session.h"
#include "bridge/session/grpc/session_codec.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "engine_side/weight_receiver.h"
#include "tests/support/sample_messages/sample_messages.h"

namespace bascule {
namespace {

// The publisher's end: what it says is given, and nobody hears what it is told.
class FuzzedChannel final : public ControlChannel {
 public:
  explicit FuzzedChannel(std::string_view script) : script_(script) {}
  Status Send(const SessionMessage&) override { return OkStatus(); }
  Result<SessionMessage> Receive(Deadline) override {
    if (script_.size() < 2) return Status::Unavailable("peer_lost", "the script is over");
    std::uint16_t length = 0;
    std::memcpy(&length, script_.data(), sizeof length);
    const std::string_view message = script_.substr(sizeof length, length);
    script_.remove_prefix(sizeof length + message.size());
    return DecodeSessionMessage(message);
  }
  void StopReceiving() override { script_ = {}; }
  void Cancel() override { script_ = {}; }
  std::string peer() const override { return "fuzzer"; }

 private:
  std::string_view script_;
};

class ZeroSource final : public WeightSource {
 public:
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int, int tensor) const override { return memory_[static_cast<std::size_t>(tensor)].data(); }

 private:
  const Layout layout_ = PlainLayout(SampleLayout().tensors);
  const std::vector<std::vector<std::byte>> memory_ = std::vector(2, std::vector<std::byte>(48));
};

// An engine with a version live.
class Engine {
 public:
  Engine() {
    WeightReceiverOptions options;
    options.layout = PlainLayout(SampleLayout().tensors);
    options.listeners = {listener_.get()};
    receiver_ = WeightReceiver::Create(std::move(options), hooks_).value();
    Load();
  }

  void Serve(std::string_view script) {
    FuzzedChannel channel(script);
    (void)receiver_->Serve(channel);
    const ReceiverStatus status = receiver_->status();
    CHECK(status.live == live_ && !status.session);
    CHECK(receiver_->DigestLive()->totals == digests_);
  }

 private:
  void Load() {
    const auto listening =
        control_.Listen("engine", [this](ControlChannel& channel) { (void)receiver_->Serve(channel); }).value();
    LoopbackDialer dialer(network_);
    const ZeroSource source;
    ConnectionOptions connection;
    connection.address = "engine";
    connection.control = &control_;
    connection.transports = {&dialer};
    const SendReport report = PublishOnce(source, std::move(connection), {.run = "run", .number = 1, .new_run = true},
                                          Deadline::After(Clock::Real(), std::chrono::minutes(1)));
    CHECK(report.status.ok());
    live_ = receiver_->status().live;
    digests_ = receiver_->DigestLive()->totals;
  }

  LoopbackControl control_;
  LoopbackNetwork network_;
  IdleHooks hooks_;
  std::unique_ptr<LoopbackListener> listener_ = LoopbackListener::Create(network_, "engine").value();
  std::unique_ptr<WeightReceiver> receiver_;
  std::optional<WeightVersion> live_;
  std::vector<TensorDigest> digests_;
};

}  // namespace
}  // namespace bascule

// What protobuf has to say of each bad message would be most of the time.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  bascule::RouteGrpcLog();
  bascule::SetLogLevel(bascule::LogLevel::kOff);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static bascule::Engine engine;
  engine.Serve({reinterpret_cast<const char*>(data), size});
  return 0;
}
