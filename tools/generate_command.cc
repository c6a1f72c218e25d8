// bascule generate: one rollout, tokens in and tokens out.
#include <nlohmann/json.hpp>

#include "engine_side/decode/grpc/rollout_client.h"
#include "tools/kv_option.h"
#include "tools/peer.h"

namespace bascule {
namespace {

struct GenerateOptions {
  std::string address;
  Duration timeout = std::chrono::minutes(10);
  GenerateRequest request;
  bool stream = false;
};

Json SpansJson(const Rollout& rollout) {
  Json spans = Json::array();
  for (const RolloutSpan& span : rollout.spans) {
    spans.push_back({{"begin", span.begin}, {"end", span.end}, {"version", span.version}, {"kv_epoch", span.kv_epoch}});
  }
  return spans;
}

// A float widens to a double without loss, and that is printed so that it reads back as the same number.
Json RolloutJson(const Rollout& rollout) {
  return {{"tokens", rollout.tokens},
          {"logprobs", rollout.logprobs},
          {"spans", SpansJson(rollout)},
          {"finish", FinishName(rollout.finish)}};
}

std::string TokensText(const Rollout& rollout) {
  std::string text;
  for (const std::int32_t token : rollout.tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text;
}

std::string RolloutText(const Rollout& rollout) {
  std::string text = fmt::format("tokens    {}\nfinish    {}", TokensText(rollout), FinishName(rollout.finish));
  for (const RolloutSpan& span : rollout.spans) {
    text += fmt::format("\nversion   {} made tokens {} to {}{}", span.version, span.begin, span.end - 1,
                        span.kv_epoch == span.version ? "" : fmt::format(" (KV epoch {})", span.kv_epoch));
  }
  return text;
}

Status GenerateOne(Program& program, const GenerateOptions& options, RolloutClient& client, Deadline deadline) {
  const auto on_piece = [&](const Rollout& piece) {
    if (!options.stream) return;
    if (program.out.json()) {
      program.out.PrintObject(Json{{"tokens", piece.tokens}, {"logprobs", piece.logprobs}});
    } else {
      program.out.PrintText(TokensText(piece));
    }
  };
  const auto rollout = client.Generate(options.request, deadline, program.interrupt.token(), on_piece);
  if (!rollout.ok() && program.interrupt.requested()) return InterruptedError();
  RETURN_IF_ERROR(rollout.status());
  if (program.out.json()) {
    program.out.PrintObject(RolloutJson(*rollout));
  } else {
    program.out.PrintText(RolloutText(*rollout));
  }
  return OkStatus();
}

Outcome RunGenerate(Program& program, const GenerateOptions& options) {
  const Deadline deadline = Deadline::After(Clock::Real(), options.timeout);
  const auto client = RolloutClient::Connect(options.address, Deadline::After(Clock::Real(), kAnswerTimeout));
  if (!client.ok()) return {client.status(), options.address, ""};
  return {GenerateOne(program, options, **client, deadline), options.address, ""};
}

}  // namespace

Command GenerateCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "generate", "Generates one rollout from token ids.",
                                "bascule generate 127.0.0.1:7000 --tokens 1,2,3 --max-new 32 --stream");
  auto options = std::make_shared<GenerateOptions>();
  AddPeer(*app, options->address);
  AddTokens(*app, "--tokens", options->request.prompt, "the prompt")->required();
  app->add_option("--max-new", options->request.max_new_tokens, "new tokens, unless a stop token comes")
      ->capture_default_str()
      ->check(AtLeast(1));
  app->add_option("--temperature", options->request.temperature, "0 is greedy")
      ->capture_default_str()
      ->check(AtLeast(0));
  AddNumber(*app, "--seed", options->request.seed, "of the random numbers; the same seed, the same tokens");
  AddTokens(*app, "--stop", options->request.stop, "ends after one of these");
  AddKvPolicy(*app, options->request.kv_policy, "what becomes of it when the version changes; default: the engine's");
  app->add_flag("--stream", options->stream, "print each piece as it comes");
  AddDuration(*app, "--timeout", options->timeout, "of the whole rollout");
  return {app, [options](Program& program) { return RunGenerate(program, *options); }};
}

}  // namespace bascule
