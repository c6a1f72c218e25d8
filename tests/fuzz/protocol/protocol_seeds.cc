// protocol_seeds DIRECTORY: writes what the protocol's fuzzers start from, a folder a fuzzer.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "bascule/v1/rollout.pb.h"
#include "bascule/v1/transfer.pb.h"
#include "bridge/bucket/bucket_format.h"
#include "bridge/plan/planner.h"
#include "bridge/session/grpc/fleet_codec_internal.h"
#include "bridge/session/grpc/session_codec.h"
#include "bridge/transport/cuda_ipc/messages.h"
#include "bridge/transport/nccl/messages.h"
#include "checkpoint/artifact_manifest.h"
#include "checkpoint/layout_file.h"
#include "engine_side/cache_daemon/messages.h"
#include "tests/support/sample_messages/sample_messages.h"
#include "trainer_side/decision_text_internal.h"

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

template <typename T>
std::string BytesOf(const T& message) {
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

void WriteFleet(Seeds& seeds) {
  const WeightVersion version{"run", 7, SampleHash(1)};
  seeds.Write("fleet_message_fuzzer", ToProto(FleetHeartbeat{.address = "10.0.0.2:7000",
                                                             .instance = InstanceId{5},
                                                             .live = version,
                                                             .ready = true,
                                                             .last_error = Status::DataLoss("reason", "text")})
                                          .SerializeAsString());
  v1::JoinResponse welcome;
  ToProto(FleetWelcome{.required = version, .holders = {"[::1]:7001"}, .heartbeat = std::chrono::seconds(2)}, welcome);
  seeds.Write("fleet_message_fuzzer", welcome.SerializeAsString());
}

void WriteLocalMessages(Seeds& seeds) {
  const std::string fuzzer = "local_message_fuzzer";
  const RouteHello route{
      .connection = 1, .route = {.sender_rank = 0, .engine_rank = 1}, .frame_bytes = 4096, .credits = 4};
  seeds.Write(fuzzer, BytesOf(ToShm(route)));
  seeds.Write(fuzzer, BytesOf(ToShm(Status::Unavailable("peer_lost", "text"))));
  seeds.Write(fuzzer, BytesOf(ToShm(1, BucketAck{2, 1, BucketVerdict::kGood})));
  seeds.Write(fuzzer, BytesOf(CudaIpcHello{.route = ToShm(route)}));
  seeds.Write(fuzzer, ToAddress(CudaIpcAddress{.devices = {DeviceUuid{}}, .path = "/run/engine.sock"}));
  seeds.Write(fuzzer, BytesOf(NcclWords{.payload_bytes = 64}));
  seeds.Write(fuzzer,
              ToAddress(NcclAddress{
                  .devices = {DeviceUuid{}}, .version = "2.28.9", .carrier = {TransportKind::kGrpc, "host:5000"}}));
  seeds.Write(fuzzer, BytesOf(CacheHello{}));
  seeds.Write(fuzzer, BytesOf(CacheWelcome{}));
  seeds.Write(fuzzer,
              BytesOf(CacheVersion{.number = 7, .manifest_bytes = 64, .rank_count = 2, .run = ToRunText("run")}));
  seeds.Write(fuzzer, BytesOf(EngineReport{.live_number = 7, .live_run = ToRunText("run")}));
}

// What ends with a hash goes without: the fuzzers add the right one.
std::string Unsealed(std::string text, std::string_view mark) {
  text.resize(text.rfind(mark));
  return text;
}

void WriteFiles(Seeds& seeds) {
  seeds.Write("model_config_fuzzer",
              R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"intermediate_size":96,)"
              R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"vocab_size":130,)"
              R"("rms_norm_eps":1e-5,"rope_theta":10000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,)"
              R"("low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64},)"
              R"("tie_word_embeddings":false,"max_position_embeddings":512,"hidden_act":"silu"})");
  seeds.Write(
      "model_config_fuzzer",
      R"({"architectures":["Qwen3MoeForCausalLM"],"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
      R"("num_key_value_heads":2,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":32,"vocab_size":130,)"
      R"("mlp_only_layers":[0],"quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128],)"
      R"("modules_to_not_convert":["lm_head"]}})");
  ArtifactManifest manifest;
  manifest.fingerprint = {.architecture = "model", .dtype = "BF16", .quantization = "none"};
  manifest.layout = manifest.stored = PlainLayout(SampleLayout().tensors);
  manifest.digests.resize(manifest.layout.tensors.size());
  manifest.version_digest = VersionDigestOf(manifest.layout.tensors, manifest.digests);
  manifest.ranks = {{.file = "rank-0.safetensors", .bytes = 64}};
  seeds.Write("artifact_manifest_fuzzer", Unsealed(WriteArtifactManifest(manifest), ",\"sha256\""));
  const CommitDecision decision{
      .version = {"run 1%", 7, SampleHash(1)}, .replicas = {"a:1", "b:2"}, .live = {"a:1"}, .taken_back = true};
  seeds.Write("journal_fuzzer", Unsealed(DecisionText(decision), "end "));
}

void WriteAll(const std::string& root) {
  std::filesystem::remove_all(root);
  Seeds seeds(root);
  WriteSessions(seeds);
  WriteFrames(seeds);
  WriteRequests(seeds);
  WriteFleet(seeds);
  WriteLocalMessages(seeds);
  WriteFiles(seeds);
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
