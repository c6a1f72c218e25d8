// A member's share of one session: opens its routes, sends its buckets, sends again what is asked for. Of a session on
// request it sends what is fetched, portion by portion.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/worker.h"
#include "bridge/send/bucket_packer.h"
#include "bridge/send/send_pacer.h"
#include "bridge/send/send_pipeline.h"
#include "bridge/session/messages.h"

namespace bascule {

// What a member has of a connection between leader and replica; sessions use it one after another.
struct MemberConnection {
  std::string replica;
  std::shared_ptr<const Plan> plan;  // shared with the cache
  std::vector<std::unique_ptr<BucketSender>>
      routes;     // one per route of the plan, null for those of others; or none yet
  CastSet casts;  // of these
};

// Thread-safety: confined to one thread, except has_news.
class MemberSession {
 public:
  // Borrows all. Waits at most `connect_timeout` for each route. `on_news` is called from another thread when has_news
  // has become true.
  MemberSession(MemberConnection& connection, const WeightSource& source, const GroupSend& terms,
                TransportDialer& dialer, Duration connect_timeout, SendPacer* pacer, Clock& clock,
                std::function<void()> on_news);
  ~MemberSession();  // cancels what is under way, and joins

  // Nothing is under way, and there is no news: the routes can be used by another session.
  bool idle() const { return !worker_.joinable(); }
  // The buckets that were begun are acknowledged, or there is a failure.
  bool has_news() const { return has_news_; }
  // GroupSent or Abort, once for every piece of news. Nothing of the source is read any more before SendAgain. Of a
  // session on request nothing before all is fetched; what was fetched meanwhile is begun.
  std::optional<SessionMessage> TakeNews();
  // Nothing while buckets are under way: they may be the same.
  //
  // InvalidArgument "unexpected_message"  a session on request
  // DataLoss "bad_message"                a bucket that is not this rank's
  Status SendAgain(const std::vector<std::uint32_t>& buckets);
  // InvalidArgument "unexpected_message"  not a session on request
  // DataLoss "bad_message"                buckets outside the plan
  Status Fetch(const GroupFetch& fetch);
  void Cancel();
  std::uint64_t connection() const { return terms_.connection; }

 private:
  // Starts a thread that does `work` and then has news.
  void Start(std::function<Status()> work);
  Status Open() EXCLUDES(mu_);
  Status OpenRoutes();
  Status SendAll();
  void StartFetched();
  SessionMessage Sent() const;

  MemberConnection& connection_;
  const GroupSend terms_;
  const Deadline deadline_;
  TransportDialer& dialer_;
  const Duration connect_timeout_;
  Clock& clock_;
  const std::function<void()> on_news_;
  const BucketPacker packer_;
  std::deque<GroupFetch> fetched_;  // not begun
  bool all_fetched_ = false;
  std::atomic<bool> has_news_ = false;
  std::atomic<bool> cancelled_ = false;
  Status status_;  // of the thread that runs; of the owner once there is news
  Mutex mu_;       // Guards the pipeline against being cancelled while it is made.
  std::optional<SendPipeline> pipeline_;
  SendPacer* const pacer_;
  Worker worker_;
};

}  // namespace bascule
