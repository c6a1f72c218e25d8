// Shows how far a long write to disk has come, and stops it on Ctrl-C.
//
// Thread-safety: confined to the thread that starts the write.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "checkpoint/artifact.h"
#include "tools/command.h"

namespace bascule {

class WriteProgress {
 public:
  WriteProgress(Program& program, std::string what)
      : program_(program), what_(std::move(what)), bar_(!program.out.json()) {}

  WriteControl control() {
    return {.stop = program_.interrupt.token(),
            .on_start = [this](std::int64_t total) { total_bytes_ = total; },
            .on_bytes = [this](std::int64_t more) { Add(more); }};
  }
  // A write that Ctrl-C stopped was interrupted, and nothing else.
  Outcome Explained(const Status& status) const {
    return program_.interrupt.requested() ? Outcome(InterruptedError()) : Outcome(status);
  }

 private:
  void Add(std::int64_t more) {
    const std::int64_t done = done_bytes_ += more;
    if (std::this_thread::get_id() == drawer_) bar_.Draw(what_, done, total_bytes_);
  }

  Program& program_;
  const std::string what_;
  ProgressBar bar_;
  const std::thread::id drawer_ = std::this_thread::get_id();
  std::int64_t total_bytes_ = 0;
  std::atomic<std::int64_t> done_bytes_ = 0;
};

}  // namespace bascule
