// A named thread that is always joined: destruction asks it to stop and waits for it.
//
// Thread-safety: confined to its owner.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace bascule {

class Worker {
 public:
  Worker() = default;  // no thread
  // `name` shows in debuggers and /proc (the first 15 characters). `body` returns soon after its token asks it to.
  Worker(std::string name, std::function<void(std::stop_token)> body);

  void RequestStop() { thread_.request_stop(); }
  // Waits for the body to return. Nothing happens when there is no thread.
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  bool joinable() const { return thread_.joinable(); }

 private:
  std::jthread thread_;
};

}  // namespace bascule
