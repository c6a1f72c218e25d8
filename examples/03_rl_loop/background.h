// A value that a thread of its own makes while its owner does something else.
//
// Thread-safety: confined to its owner.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/worker.h"

namespace bascule::rl_loop {

template <typename T>
class Background {
 public:
  // `make` returns soon after its token asks it to, which destruction does.
  Background(std::string name, std::function<Result<T>(std::stop_token)> make) : made_(std::make_unique<Made>()) {
    made_->worker = Worker(std::move(name), [made = made_.get(), make = std::move(make)](std::stop_token stop) {
      made->value.emplace(make(std::move(stop)));
    });
  }

  // Waits for the value. Once.
  Result<T> Take(const std::stop_token& stop) {
    const std::stop_callback forward(stop, [this] { made_->worker.RequestStop(); });
    made_->worker.Join();
    return std::move(*made_->value);
  }

 private:
  struct Made {
    std::optional<Result<T>> value;
    Worker worker;  // last, so that it ends first
  };
  std::unique_ptr<Made> made_;
};

}  // namespace bascule::rl_loop
