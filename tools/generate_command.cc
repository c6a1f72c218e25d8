// bascule generate: rollouts of one prompt, tokens in and tokens out.
#include <fmt/ranges.h>

#include <algorithm>
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
  std::optional<std::uint32_t> samples;
  bool stream = false;
  bool details = false;
  SecurityOptions security;
};

Json SpansJson(const Rollout& rollout) {
  Json spans = Json::array();
  for (const RolloutSpan& span : rollout.spans) {
    spans.push_back({{"begin", span.begin}, {"end", span.end}, {"version", span.version}, {"kv_epoch", span.kv_epoch}});
  }
  return spans;
}

Json TopJson(const Rollout& rollout) {
  Json tops = Json::array();
  for (const std::vector<TokenLogprob>& of_token : rollout.top) {
    Json& top = tops.emplace_back(Json::array());
    for (const TokenLogprob& probable : of_token) {
      top.push_back({{"token", probable.id}, {"logprob", probable.logprob}});
    }
  }
  return tops;
}

Json DetailsJson(const Rollout& rollout) {
  Json gaps = Json::array();
  for (const FlipGap& gap : rollout.flip_gaps) gaps.push_back({{"token", gap.token}, {"gap_us", UsOf(gap.gap)}});
  Json prompt;  // null: there was no token
  if (rollout.prompt) {
    prompt = {{"shared_tokens", rollout.prompt->shared_tokens},
              {"version", rollout.prompt->version},
              {"kv_epoch", rollout.prompt->kv_epoch}};
  }
  return {{"reason", rollout.reason.empty() ? Json(nullptr) : Json(rollout.reason)},
          {"flip_gaps", std::move(gaps)},
          {"prompt", std::move(prompt)}};
}

// A float widens to a double without loss, and that is printed so that it reads back as the same number.
Json RolloutJson(const GenerateOptions& options, const Rollout& rollout) {
  Json object = {{"tokens", rollout.tokens},
                 {"logprobs", rollout.logprobs},
                 {"spans", SpansJson(rollout)},
                 {"finish", FinishName(rollout.finish)}};
  if (options.request.top_logprobs > 0) object["top_logprobs"] = TopJson(rollout);
  if (options.request.prompt_logprobs) {
    object["prompt_logprobs"] = rollout.prompt ? rollout.prompt->logprobs : std::vector<float>();
  }
  if (options.details) object.update(DetailsJson(rollout));
  return object;
}

template <typename T>
std::string ListText(const std::vector<T>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

// Each token, and beside it those that were most probable there.
std::string TopText(const Rollout& rollout) {
  std::vector<std::vector<std::string>> rows = {{"TOKEN", "LOGPROB", "MOST PROBABLE"}};
  for (std::size_t i = 0; i < std::min(rollout.tokens.size(), rollout.top.size()); ++i) {
    std::string top;
    for (const TokenLogprob& probable : rollout.top[i]) {
      top += fmt::format("{}{} ({:.4g})", top.empty() ? "" : "  ", probable.id, probable.logprob);
    }
    rows.push_back({std::to_string(rollout.tokens[i]), fmt::format("{:.4g}", rollout.logprobs[i]), std::move(top)});
  }
  return TableText(rows);
}

std::string DetailsText(const Rollout& rollout) {
  std::string text;
  if (rollout.prompt) text += fmt::format("\nshared    {} tokens of the prompt", rollout.prompt->shared_tokens);
  for (const FlipGap& gap : rollout.flip_gaps) {
    text += fmt::format("\nflip      before token {}: {:.0f} µs since the one before", gap.token, UsOf(gap.gap));
  }
  return text;
}

std::string RolloutText(const GenerateOptions& options, const Rollout& rollout) {
  std::string text = fmt::format("tokens    {}\nfinish    {}{}", ListText(rollout.tokens), FinishName(rollout.finish),
                                 rollout.reason.empty() ? "" : fmt::format(" ({})", rollout.reason));
  for (const RolloutSpan& span : rollout.spans) {
    text += fmt::format("\nversion   {} made tokens {} to {}{}", span.version, span.begin, span.end - 1,
                        span.kv_epoch == span.version ? "" : fmt::format(" (KV epoch {})", span.kv_epoch));
  }
  if (options.request.prompt_logprobs && rollout.prompt) {
    text += "\nprompt    log-probabilities from its second token on: " + ListText(rollout.prompt->logprobs);
  }
  if (options.details) text += DetailsText(rollout);
  if (options.request.top_logprobs > 0) text += "\n" + TopText(rollout);
  return text;
}

// With --samples every line says which sample it is of. False once nobody reads them.
bool PrintOfSample(Program& program, const GenerateOptions& options, std::size_t index, Json object,
                   const std::string& text) {
  const std::size_t sample = options.request.sample + index;
  if (!program.out.json()) {
    return program.out.PrintText(options.samples ? fmt::format("sample    {}\n{}", sample, text) : text);
  }
  if (options.samples) object["sample"] = sample;
  return program.out.PrintObject(object);
}

using OnPiece = std::function<void(std::size_t index, const Rollout& piece)>;

Result<std::vector<Rollout>> Ask(RolloutClient& client, const GenerateOptions& options, Deadline deadline,
                                 std::stop_token stop, const OnPiece& on_piece) {
  if (options.samples) {
    return client.GenerateSamples(options.request, *options.samples, deadline, std::move(stop), on_piece);
  }
  ASSIGN_OR_RETURN(Rollout only, client.Generate(options.request, deadline, std::move(stop),
                                                 [&](const Rollout& piece) { on_piece(0, piece); }));
  return std::vector<Rollout>{std::move(only)};
}

Status Generate(Program& program, const GenerateOptions& options, RolloutClient& client, Deadline deadline) {
  std::stop_source stop;
  const std::stop_callback interrupted(program.interrupt.token(), [&stop] { stop.request_stop(); });
  const auto on_piece = [&](std::size_t index, const Rollout& piece) {
    if (!options.stream) return;
    const Json object = {{"tokens", piece.tokens}, {"logprobs", piece.logprobs}};
    if (!PrintOfSample(program, options, index, object, ListText(piece.tokens))) stop.request_stop();
  };
  const auto rollouts = Ask(client, options, deadline, stop.get_token(), on_piece);
  if (!rollouts.ok() && program.interrupt.requested()) return InterruptedError();
  if (!rollouts.ok() && stop.stop_requested()) return OkStatus();  // nobody reads it
  RETURN_IF_ERROR(rollouts.status());
  for (std::size_t index = 0; index < rollouts->size(); ++index) {
    const Rollout& rollout = (*rollouts)[index];
    PrintOfSample(program, options, index, RolloutJson(options, rollout), RolloutText(options, rollout));
  }
  return OkStatus();
}

Outcome RunGenerate(Program& program, const GenerateOptions& options) {
  const Deadline deadline = Deadline::After(Clock::Real(), options.timeout);
  ASSIGN_OR_RETURN(const ClientSecurity security, ClientSecurityOf(options.security));
  const auto client = RolloutClient::Connect(options.address, Deadline::After(Clock::Real(), kAnswerTimeout), security);
  if (!client.ok()) return {client.status(), options.address, ""};
  return {Generate(program, options, **client, deadline), options.address, ""};
}

void AddSampling(CLI::App& app, GenerateRequest& request) {
  app.add_option("--temperature", request.temperature, "0 is greedy")->capture_default_str()->check(AtLeast(0));
  AddNumber(app, "--seed", request.seed, "of the random numbers; the same seed, the same tokens");
  app.add_option("--top-k", request.top_k, "draws from so many most probable tokens; 0 from all")
      ->capture_default_str()
      ->check(AtLeast(0));
  app.add_option("--top-p", request.top_p, "draws from the fewest most probable tokens with this probability in all")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  AddTokens(app, "--stop", request.stop, "ends after one of these");
  app.add_option("--min-new", request.min_new_tokens, "no stop token before so many others")
      ->capture_default_str()
      ->check(AtLeast(0));
}

void AddVersions(CLI::App& app, GenerateRequest& request) {
  AddKvPolicy(app, request.kv_policy, "what becomes of it when the version changes; default: the engine's");
  AddNumber(app, "--max-staleness", request.max_staleness,
            "ends as too_stale at a flip that leaves its oldest token more than so many versions behind");
  AddNumber(app, "--min-start-version", request.min_start_version, "waits until this version or a newer one is live");
}

void AddAnswer(CLI::App& app, GenerateOptions& options) {
  app.add_option("--top-logprobs", options.request.top_logprobs,
                 "beside each token the so many most probable ones, with their log-probabilities")
      ->check(CLI::Range(0, static_cast<int>(kMaxTopLogprobs)));
  app.add_flag("--prompt-logprobs", options.request.prompt_logprobs,
               "log-probabilities of the prompt's tokens, but for the first");
  app.add_flag("--details", options.details,
               "why it was cancelled, the time between two tokens where a flip lay, what the prompt shared");
  app.add_flag("--stream", options.stream, "print each piece as it comes");
}

}  // namespace

Command GenerateCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "generate", "Generates rollouts from token ids.",
                                "bascule generate 127.0.0.1:7000 --tokens 1,2,3 --max-new 32 --stream");
  auto options = std::make_shared<GenerateOptions>();
  AddPeer(*app, options->address);
  AddTokens(*app, "--tokens", options->request.prompt, "the prompt")->required();
  app->add_option("--max-new", options->request.max_new_tokens, "new tokens, unless a stop token comes")
      ->capture_default_str()
      ->check(AtLeast(1));
  AddSampling(*app, options->request);
  app->add_option("--samples", options->samples, "rollouts of the prompt, which is computed once; a line each")
      ->check(AtLeast(1));
  app->add_option("--sample", options->request.sample, "number of the first; each has random numbers of its own")
      ->capture_default_str();
  AddVersions(*app, options->request);
  AddAnswer(*app, *options);
  app->add_option("--client", options->request.client, "in whose name; names take turns. Default: the connection");
  AddDuration(*app, "--time-limit", options->request.time_limit, "after which the engine ends it as cancelled");
  AddDuration(*app, "--timeout", options->timeout, "of the whole answer, after which this program gives up");
  AddClientSecurity(*app, options->security);
  return {app, [options](Program& program) { return RunGenerate(program, *options); }};
}

}  // namespace bascule
