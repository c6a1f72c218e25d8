#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "base/grpc/name_lookup_internal.h"
#include "base/mutex.h"

namespace bascule {
namespace {

int Resolve(const std::string& host, int flags, std::vector<SocketAddress>& found) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) return error;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    SocketAddress& address = found.emplace_back();
    address.size = one->ai_addrlen;
    std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
  }
  freeaddrinfo(list);
  return 0;
}

void SetPort(SocketAddress& address, std::uint16_t port) {
  if (address.bytes.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(address.bytes).sin_port = htons(port);
  if (address.bytes.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(address.bytes).sin6_port = htons(port);
}

// One question, held by who asks and by the thread that waits for the resolver; the last of them drops it.
struct Question {
  Mutex mu;
  CondVar answered;
  std::optional<int> error GUARDED_BY(mu);
  std::vector<SocketAddress> found GUARDED_BY(mu);
};

void Ask(const Resolver& resolver, const std::string& host, Question& question) {
  std::vector<SocketAddress> found;
  const int error = resolver(host, found);
  MutexLock lock(question.mu);
  question.error = error;
  question.found = std::move(found);
  question.answered.NotifyAll();
}

// Nobody waits for the thread: it ends when the resolver does.
Status AskOnItsOwn(std::shared_ptr<Question> question, const std::string& host, Resolver resolver) {
  try {
    std::thread([question = std::move(question), host, resolver = std::move(resolver)] {
      Ask(resolver, host, *question);
    }).detach();
  } catch (const std::system_error& none) {
    return Status::ResourceExhausted("thread_limit", fmt::format("to look up {}: {}", host, none.what()));
  }
  return OkStatus();
}

Result<std::vector<SocketAddress>> Answer(Question& question, const std::string& host, Deadline deadline,
                                          Clock& clock) {
  MutexLock lock(question.mu);
  while (!question.error) {
    if (!clock.WaitUntil(question.answered, question.mu, deadline.point()) && !question.error) {
      return Status::Unavailable("name_unknown", fmt::format("{}: no resolver answered in time", host));
    }
  }
  if (*question.error == 0 && !question.found.empty()) return std::move(question.found);
  const int error = *question.error == 0 ? EAI_NONAME : *question.error;
  return Status::Unavailable("name_unknown", fmt::format("{}: {}", host, gai_strerror(error)));
}

}  // namespace

int ResolveBySystem(const std::string& host, std::vector<SocketAddress>& found) { return Resolve(host, 0, found); }

Result<std::vector<SocketAddress>> LookUp(const std::string& host, std::uint16_t port, Deadline deadline, Clock& clock,
                                          Resolver resolver) {
  std::vector<SocketAddress> found;
  if (Resolve(host, AI_NUMERICHOST, found) != 0) {
    const auto question = std::make_shared<Question>();
    RETURN_IF_ERROR(AskOnItsOwn(question, host, std::move(resolver)));
    ASSIGN_OR_RETURN(found, Answer(*question, host, deadline, clock));
  }
  for (SocketAddress& address : found) SetPort(address, port);
  return found;
}

}  // namespace bascule
