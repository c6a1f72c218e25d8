// protocol_seeds DIRECTORY: writes what the protocol's fuzzers start from, a folder a fuzzer.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "bascule/v1/rollout.pb.h"
#include "bascule/v1/transfer.pb.h"
#include "bridge/bucket/bucket_format.h"
#include "bridge/plan/planner.h"
#include "bridge/session/grpc/session_codec.h"
#include "checkpoint/layout_file.h"
#include "tests/support/sample_messages/sample_messages.h"

namespace bascule {
namespace {

class Seeds {
 public:
  explicit Seeds(std::string root) : root_(std::move(root)) {}
  void Write(const std::string& fuzzer, const std::string& bytes) {
    const std::string folder = root_ + "/" + fuzzer;
    std::filesystem::create_directories(folder);
    std::ofstream(fmt::format("{}/{}", folder, ++count_), std::ios::binary) << bytes;
  }

 private:
  const std::string root_;
  int count_ = 0;
};

std::string Framed(const SessionMessage& message) {
  const std::string bytes = EncodeSessionMessage(message);
  const auto length = static_cast<std::uint16_t>(bytes.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + bytes;
}

void WriteSessions(Seeds& seeds) {
  std::string all;
  for (const SessionMessage& message : OneMessageOfEach()) {
    seeds.Write("session_message_fuzzer", EncodeSessionMessage(message));
    all += Framed(message);
  }
  seeds.Write("receiver_fuzzer", all);
  // A publisher that the engine understands, as far as words go.
  const Layout layout = PlainLayout(SampleLayout().tensors);
  const Hello hello{.publisher = InstanceId{1}, .sender_layout = layout};
  Offer offer = std::get<Offer>(OneMessageOfEach()[2]);
  offer.manifest.run = "run";
  offer.manifest.number = 2;
  offer.manifest.new_run = false;
  offer.manifest.model.clear();
  offer.manifest.labels = {{"step", "7"}};
  offer.manifest.families.clear();
  offer.manifest.sender_layout = LayoutDigest(layout);
  offer.plan_digest = MakePlan(layout, layout, hello.plan_options)->digest;
  offer.transport = TransportKind::kLoopback;
  offer.frame_bytes = 4096;
  seeds.Write("receiver_fuzzer", Framed(hello) + Framed(offer));
  seeds.Write("receiver_fuzzer",
              Framed(hello) + Framed(offer) + Framed(Seal{offer.session}) + Framed(Flip{offer.session}));
}

void WriteFrames(Seeds& seeds) {
  std::vector<std::byte> frame(static_cast<std::size_t>(FrameBytes(2, 48)));
  SealBucketFrame({.session = SessionId{7}, .slice_count = 2, .payload_bytes = 48, .has_checksum = true}, frame);
  const std::string bytes(reinterpret_cast<const char*>(frame.data()), frame.size());
  seeds.Write("frame_fuzzer", '\0' + bytes);
  v1::Frame piece;
  piece.set_index(1);
  piece.set_frame_bytes(bytes.size());
  piece.set_piece(bytes);
  seeds.Write("frame_fuzzer", '\5' + piece.SerializeAsString());
  v1::Frame hello;
  hello.mutable_hello()->set_connection(1);
  hello.mutable_hello()->set_frame_bytes(4096);
  hello.mutable_hello()->set_credits(4);
  seeds.Write("frame_fuzzer", '\0' + hello.SerializeAsString());
}

void WriteRequests(Seeds& seeds) {
  v1::GenerateRequest request;
  for (int token = 0; token < 5; ++token) request.add_prompt(token);
  request.set_max_new_tokens(8);
  request.set_temperature(0.5F);
  request.set_top_p(0.9F);
  request.add_stop(2);
  request.set_kv_policy("keep");
  request.set_time_limit_ms(1000);
  seeds.Write("rollout_request_fuzzer", request.SerializeAsString());
}

void WriteAll(const std::string& root) {
  std::filesystem::remove_all(root);
  Seeds seeds(root);
  WriteSessions(seeds);
  WriteFrames(seeds);
  WriteRequests(seeds);
  seeds.Write("layout_file_fuzzer", WriteLayout(SampleLayout()));
  seeds.Write("layout_file_fuzzer", WriteLayout(PlainLayout(SampleLayout().tensors)));
  seeds.Write("token_file_fuzzer", "# who\n\nsesame~1 read\nsesame~2 generate,operate , publish\n");
  seeds.Write("token_file_fuzzer", "[::1]:7000");
}

}  // namespace
}  // namespace bascule

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: protocol_seeds DIRECTORY\n"), 2;
  bascule::WriteAll(argv[1]);
  return 0;
}
