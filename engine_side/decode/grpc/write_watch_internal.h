// Ends calls whose client takes nothing. A write to a stream waits, by itself, for as long as the connection lives, and
// a client that reads nothing keeps its connection alive all the same.
//
// Thread-safety: thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <stop_token>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/worker.h"

namespace bascule {

class WriteWatch {
 public:
  explicit WriteWatch(Duration patience);

  // Does `write`, a write to the stream of `context`, and returns what it does. When it takes longer than the patience,
  // by up to a quarter more, the call is cancelled, which ends the write with false.
  template <typename Write>
  bool Bound(grpc::ServerContext& context, const Write& write) EXCLUDES(mu_) {
    const Pending pending(*this, context);
    return write();
  }

 private:
  struct Waiting {
    grpc::ServerContext* context = nullptr;
    TimePoint until;
  };
  // Is on the list as long as its write lasts, and with it the context.
  class Pending {
   public:
    Pending(WriteWatch& watch, grpc::ServerContext& context) : watch_(watch), number_(watch.Add(context)) {}
    ~Pending() { watch_.Remove(number_); }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

   private:
    WriteWatch& watch_;
    const std::uint64_t number_;
  };

  std::uint64_t Add(grpc::ServerContext& context) EXCLUDES(mu_);
  void Remove(std::uint64_t number) EXCLUDES(mu_);
  void CancelOverdue() EXCLUDES(mu_);

  const Duration patience_;
  Mutex mu_;
  std::uint64_t last_number_ GUARDED_BY(mu_) = 0;
  std::map<std::uint64_t, Waiting> waiting_ GUARDED_BY(mu_);  // by number, which is by time
  Worker worker_;
};

}  // namespace bascule
