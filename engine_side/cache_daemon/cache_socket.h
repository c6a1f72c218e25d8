// The daemon's end of the socket: greets engines of its own user, hands each what is live and every later version once
// it has reported on the one before, and notes who is there. One thread serves them all and waits for none: a caller
// that says nothing, the wrong thing or too much loses its place, and no other notices.
//
// Thread-safety: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "base/worker.h"
#include "bridge/transport/shm/message_socket.h"
#include "engine_side/cache_daemon/messages.h"
#include "engine_side/cache_daemon/version_store.h"

namespace bascule {

// An engine that is attached, as it has reported.
struct AttachedEngine {
  int pid = 0;
  std::chrono::system_clock::time_point since;
  std::string run;  // of what it has live; empty until its first report
  std::uint64_t number = 0;
  Status last_error;
};

struct CacheSocketOptions {
  std::string path;  // see ListenAtChosenPath
  InstanceId instance;
  std::function<CachePhase()> phase;
  Clock* clock = &Clock::Real();
};

class CacheSocket {
 public:
  // `store` is borrowed. Serves from now on.
  //
  // as ListenAtChosenPath; ResourceExhausted "descriptors"
  static Result<std::unique_ptr<CacheSocket>> Create(CacheSocketOptions options, const VersionStore& store);
  ~CacheSocket();  // hangs up and removes the socket

  // What is live has changed, or its phase has.
  void Changed();
  std::vector<AttachedEngine> engines() const EXCLUDES(mu_);

 private:
  struct Caller;

  CacheSocket(CacheSocketOptions options, const VersionStore& store, UniqueFd listening, UniqueFd stop,
              UniqueFd changed);
  // The body of the thread.
  void Listen();
  void TakeCallers(std::list<Caller>& callers);
  void WaitForDescriptors();
  // What a caller has said. An error: it loses its place.
  Status Hear(Caller& caller);
  Status Greet(Caller& caller);
  Status HearReport(Caller& caller);
  Status HandOut(Caller& caller);
  void Show(const std::list<Caller>& callers) EXCLUDES(mu_);

  const CacheSocketOptions options_;
  const VersionStore& store_;
  const UniqueFd listening_;
  const UniqueFd stop_;     // an eventfd, readable once the socket goes
  const UniqueFd changed_;  // an eventfd, readable after Changed
  mutable Mutex mu_;
  std::vector<AttachedEngine> engines_ GUARDED_BY(mu_);
  Worker worker_;
};

}  // namespace bascule
