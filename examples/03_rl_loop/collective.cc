#include "examples/03_rl_loop/collective.h"

#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace bascule::rl_loop {
namespace {

constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(60);

// torch throws; we do not.
Status Catch(const char* reason, const std::function<void()>& call) {
  try {
    call();
    return OkStatus();
  } catch (const c10::Error& error) {
    return Status::Unavailable(reason, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Status::Unavailable(reason, error.what());
  }
}

bool IsLoopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace

struct Collective::Torch {
  std::string host;
  c10::intrusive_ptr<c10d::TCPStore> store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

Collective::Collective(int rank, int size) : rank_(rank), size_(size), torch_(std::make_unique<Torch>()) {}
Collective::~Collective() = default;

Result<std::unique_ptr<Collective>> Collective::Open(const std::string& host, std::uint16_t port,
                                                     const TrainerGroup& group) {
  std::unique_ptr<Collective> made(new Collective(group.rank, group.world_size));
  if (made->size_ == 1) return made;
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = group.rank == 0;
  options.waitWorkers = false;
  options.timeout = kPatience;
  made->torch_->host = host;
  RETURN_IF_ERROR(
      Catch("rank_unreachable", [&] { made->torch_->store = c10::make_intrusive<c10d::TCPStore>(host, options); }));
  return made;
}

std::uint16_t Collective::port() const { return torch_->store ? torch_->store->getPort() : std::uint16_t{0}; }

Status Collective::Say(const std::string& key, const std::string& text) {
  if (size_ == 1) return OkStatus();
  return Catch("rank_unreachable",
               [&] { torch_->store->set(key, std::vector<std::uint8_t>(text.begin(), text.end())); });
}

Result<std::string> Collective::Hear(const std::string& key) {
  std::string text;
  RETURN_IF_ERROR(Catch("rank_unreachable", [&] {
    const std::vector<std::uint8_t> bytes = torch_->store->get(key);
    text.assign(bytes.begin(), bytes.end());
  }));
  return text;
}

Status Collective::Join() {
  if (size_ == 1) return OkStatus();
  return Catch("rank_unreachable", [this] {
    auto options = c10d::ProcessGroupGloo::Options::create(kPatience);
    options->threads = 1;
    options->devices.push_back(IsLoopback(torch_->host) ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                                        : c10d::ProcessGroupGloo::createDefaultDevice());
    torch_->group = c10::make_intrusive<c10d::ProcessGroupGloo>(torch_->store, rank_, size_, std::move(options));
  });
}

Result<at::Tensor> Collective::Gather(const at::Tensor& mine) {
  if (size_ == 1) return mine.clone();
  at::Tensor all = torch::empty({mine.numel() * size_}, mine.options());
  RETURN_IF_ERROR(Catch("rank_lost", [&] {
    std::vector<std::vector<at::Tensor>> outputs = {all.chunk(size_)};
    std::vector<at::Tensor> inputs = {mine};
    torch_->group->allgather(outputs, inputs)->wait();
  }));
  return all;
}

Status Collective::Sum(at::Tensor tensor) {
  if (size_ == 1) return OkStatus();
  return Catch("rank_lost", [&] {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    torch_->group->allreduce(tensors)->wait();
  });
}

Status Collective::Sum(std::span<double> numbers) {
  return Sum(torch::from_blob(numbers.data(), {std::ssize(numbers)}, torch::kFloat64));
}

}  // namespace bascule::rl_loop
