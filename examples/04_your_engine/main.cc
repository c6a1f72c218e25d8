// Publishes three versions into an engine that is not ours while it decodes, and checks every token that it made: it is
// what the model of the token's version says after the tokens before it, worked out here from the weights themselves.
#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <random>

#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "examples/04_your_engine/your_engine.h"
#include "trainer_side/weight_publisher.h"

namespace {

using namespace bascule;

constexpr std::uint64_t kVersions = 3;
constexpr int kTokensOfEach = 20;
const std::vector<std::vector<int>> kPrompts = {{1, 2, 3, 4, 5, 6}, {7}, {9, 8}};

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(60)); }

// The trainer's tensors: small whole numbers, so that every sum is exact and the order of adding up does not matter.
struct Weights {
  std::vector<float> embedding = std::vector<float>(your::kVocab * your::kHidden);
  std::vector<float> head = embedding;

  void Train(std::uint64_t number) {
    std::mt19937 random(static_cast<std::uint32_t>(number));
    for (std::vector<float>* tensor : {&embedding, &head}) {
      for (float& element : *tensor) element = static_cast<float>(static_cast<int>(random() % 17) - 8);
    }
  }
  // The model without tables, states or caches.
  int Next(const std::deque<int>& last_tokens) const {
    std::vector<float> scores(your::kVocab);
    for (const int from : last_tokens) {
      for (int i = 0; i < your::kVocab * your::kHidden; ++i) {
        scores[static_cast<std::size_t>(i / your::kHidden)] +=
            embedding[static_cast<std::size_t>(from * your::kHidden + i % your::kHidden)] *
            head[static_cast<std::size_t>(i)];
      }
    }
    return static_cast<int>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  }
};

Result<TensorSource> Describe(const Weights& weights) {
  TensorSource source(/*trainer_ranks=*/1);
  const Dims shape = {your::kVocab, your::kHidden};
  for (const auto& [name, tensor] : {std::pair("embedding", &weights.embedding), std::pair("head", &weights.head)}) {
    RETURN_IF_ERROR(source.Add(0, {{name, DType::kF32, shape}, Box::Whole(shape), tensor->data()}));
  }
  return source;
}

// A request's tokens, one after another, under versions[number - 1]. Of long answers the first tokens of each version,
// where state of another would show, and some of the others.
Status CheckTokens(std::vector<int> tokens, const std::vector<your::Token>& made,
                   const std::vector<Weights>& versions) {
  std::uint64_t version = 0;
  int of_version = 0;
  for (const your::Token& token : made) {
    if (token.version < version) return Status::DataLoss("version_went_back");
    of_version = token.version == version ? of_version + 1 : 0;
    version = token.version;
    const std::size_t window = std::min<std::size_t>(your::kWindow, tokens.size());
    if (of_version < kTokensOfEach || tokens.size() % 101 == 0) {
      const int want = versions[version - 1].Next({tokens.end() - static_cast<std::ptrdiff_t>(window), tokens.end()});
      if (token.id != want) {
        return Status::DataLoss("wrong_token", fmt::format("token {} of version {} is {}, its model says {}",
                                                           tokens.size(), version, token.id, want));
      }
    }
    tokens.push_back(token.id);
  }
  return version == kVersions ? OkStatus() : Status::DataLoss("version_missing");
}

// Publishes `number`, and shows what the flip did to the engine's state.
Status Publish(WeightPublisher& publisher, std::uint64_t number) {
  ASSIGN_OR_RETURN(const auto handle, publisher.Publish({.number = number}));
  ASSIGN_OR_RETURN(const PublishReport report, handle->WaitCommitted(Soon()));
  const ReplicaReport& replica = report.replicas.front();
  RETURN_IF_ERROR(replica.status);
  const KvReport& kv = replica.flip.kv;
  fmt::print("version {} live before step {}: {} requests recompute {} tokens; cache \"{}\" dropped {}, kept {}\n",
             number, replica.flip.step, kv.recomputed, kv.recompute_tokens, kv.caches.at(0).cache, kv.caches[0].dropped,
             kv.caches[0].kept);
  const std::size_t running = number == 1 ? 0 : kPrompts.size() * (number - 1);
  const std::size_t cached = number == 1 ? 0 : kPrompts.size();
  const bool told = kv.recomputed == running && kv.caches[0].dropped == cached && kv.caches[0].kept == 0;
  return told ? OkStatus() : Status::DataLoss("state_kept", "the engine was to drop what the old version made");
}

Status Run() {
  your::Engine engine;
  LoopbackControl control;
  LoopbackNetwork network;
  ASSIGN_OR_RETURN(const auto listener, LoopbackListener::Create(network, "engine"));
  WeightReceiverOptions receiver_options = your::Engine::Weights();
  receiver_options.listeners = {listener.get()};
  ASSIGN_OR_RETURN(const auto receiver, WeightReceiver::Create(std::move(receiver_options), engine));
  ASSIGN_OR_RETURN(const auto address,
                   control.Listen("engine", [&](ControlChannel& channel) { (void)receiver->Serve(channel); }));

  Weights masters;
  ASSIGN_OR_RETURN(TensorSource source, Describe(masters));
  LoopbackDialer dialer(network);
  ASSIGN_OR_RETURN(
      const auto publisher,
      WeightPublisher::Create({.replicas = {"engine"}, .control = &control, .transports = {&dialer}, .run = "example"},
                              std::move(source)));
  std::vector<Weights> versions;
  std::vector<std::pair<int, std::vector<int>>> requests;
  engine.Start([&] { return receiver->AcquireLive(); });
  for (std::uint64_t number = 1; number <= kVersions; ++number) {
    masters.Train(number);
    versions.push_back(masters);
    RETURN_IF_ERROR(Publish(*publisher, number));
    // The same prompts again: what the old version cached of them must not be found.
    for (const std::vector<int>& prompt : kPrompts) requests.emplace_back(engine.Submit(prompt), prompt);
    for (const auto& [id, prompt] : requests) {
      if (!engine.Await(id, number, kTokensOfEach, Soon())) return Status::DeadlineExceeded("deadline", "no tokens");
    }
  }
  std::size_t tokens = 0;
  for (const auto& [id, prompt] : requests) {
    const std::vector<your::Token> made = engine.Finish(id);
    RETURN_IF_ERROR(CheckTokens(prompt, made, versions));
    tokens += made.size();
  }
  RETURN_IF_ERROR(receiver->DigestLive().status());
  fmt::print("{} tokens of {} requests, each as the model of its version says\n", tokens, requests.size());
  return OkStatus();
}

}  // namespace

int main() {
  const Status status = Run();
  if (!status.ok()) fmt::print(stderr, "your_engine: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}
