// Requests that wait for their turn, by client. Next comes the client of whose requests the fewest run; among equals
// the one whose first request has waited longest; of one client's requests the first come. Whoever asks for much waits
// behind himself.
//
// The queue is bounded in requests and in tokens. A client with less than its equal share of a full queue still finds
// room, so that nobody is locked out; all together never have more than twice the limits.
//
// Thread-safety: thread-compatible (the engine guards it).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"

namespace bascule {

struct AdmissionLimits {
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
};

// `Item` is what waits, moved in and out.
template <typename Item>
class AdmissionQueue {
 public:
  explicit AdmissionQueue(AdmissionLimits limits) : limits_(limits) {}

  // Whether `client` may add a request of that many tokens.
  bool HasRoom(const std::string& client, std::int64_t tokens) const {
    const auto found = clients_.find(client);
    const AdmissionLimits mine = found == clients_.end() ? AdmissionLimits{} : found->second.waiting;
    const std::int64_t others = waiting_clients_ - (mine.requests > 0 ? 1 : 0);
    const auto fits = [others](std::int64_t of_mine, std::int64_t of_all, std::int64_t limit) {
      if (of_all <= limit) return true;
      return others > 0 && of_mine <= limit / (others + 1) && of_all - limit <= limit;
    };
    return fits(mine.requests + 1, waiting_.requests + 1, limits_.requests) &&
           fits(mine.tokens + tokens, waiting_.tokens + tokens, limits_.tokens);
  }

  // A request begins to wait: it is counted until Admitted or Withdrawn, and queued.
  void Add(const std::string& client, std::int64_t tokens, Item item) {
    Count(clients_[client], 1, tokens);
    Queue(client, std::move(item));
  }
  // Puts one that was taken and is counted still behind all that are queued.
  void Queue(const std::string& client, Item item) {
    Change(client, [&](Client& its) { its.queued.emplace_back(++arrivals_, std::move(item)); });
  }
  // The head of the client that comes `skip` turns after the next one; null when there is none.
  Item* Head(std::size_t skip = 0) {
    if (skip >= turns_.size()) return nullptr;
    return &std::get<Client*>(*std::next(turns_.begin(), static_cast<std::ptrdiff_t>(skip)))->queued.front().second;
  }
  // Takes the first queued request of `client`, which is counted still.
  Item Take(const std::string& client) {
    Item taken;
    Change(client, [&](Client& its) {
      taken = std::move(its.queued.front().second);
      its.queued.pop_front();
    });
    return taken;
  }

  // A request of `client` that was counted runs now, or has ended without.
  void Admitted(const std::string& client, std::int64_t tokens) {
    Change(client, [&](Client& its) {
      Count(its, -1, -tokens);
      ++its.running;
    });
  }
  void Withdrawn(const std::string& client, std::int64_t tokens) {
    Change(client, [&](Client& its) { Count(its, -1, -tokens); });
  }
  // One that was admitted has ended.
  void Left(const std::string& client) {
    Change(client, [](Client& its) { --its.running; });
  }

  // Takes every queued request for which `condition` holds; they are counted still.
  template <typename Condition>
  std::vector<Item> TakeIf(Condition condition) {
    std::vector<Item> taken;
    turns_.clear();
    for (auto& [name, client] : clients_) {
      const auto first = std::stable_partition(client.queued.begin(), client.queued.end(),
                                               [&](const auto& queued) { return !condition(queued.second); });
      std::transform(first, client.queued.end(), std::back_inserter(taken),
                     [](auto& queued) { return std::move(queued.second); });
      client.queued.erase(first, client.queued.end());
      List(client);
    }
    return taken;
  }

  bool empty() const { return turns_.empty(); }                // nothing is queued
  std::int64_t requests() const { return waiting_.requests; }  // counted
  std::int64_t tokens() const { return waiting_.tokens; }      // likewise
  std::size_t clients() const { return clients_.size(); }      // with a request that is counted or runs

 private:
  struct Client {
    std::deque<std::pair<std::uint64_t, Item>> queued;  // by arrival
    AdmissionLimits waiting;
    std::int64_t running = 0;
  };

  void Count(Client& client, std::int64_t requests, std::int64_t tokens) {
    waiting_clients_ -= client.waiting.requests > 0 ? 1 : 0;
    client.waiting.requests += requests;
    client.waiting.tokens += tokens;
    waiting_.requests += requests;
    waiting_.tokens += tokens;
    waiting_clients_ += client.waiting.requests > 0 ? 1 : 0;
  }
  // Keeps the order of turns, and forgets clients that have nothing any more.
  template <typename What>
  void Change(const std::string& name, What what) {
    const auto found = clients_.find(name);
    CHECK(found != clients_.end());
    Client& client = found->second;
    if (!client.queued.empty()) turns_.erase({client.running, client.queued.front().first, &client});
    what(client);
    List(client);
    if (client.waiting.requests == 0 && client.running == 0) clients_.erase(found);
  }
  void List(Client& client) {
    if (!client.queued.empty()) turns_.insert({client.running, client.queued.front().first, &client});
  }

  const AdmissionLimits limits_;
  std::map<std::string, Client> clients_;
  std::set<std::tuple<std::int64_t, std::uint64_t, Client*>> turns_;  // of clients with a queued request
  AdmissionLimits waiting_;                                           // of all clients
  std::int64_t waiting_clients_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace bascule
