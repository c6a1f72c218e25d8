// What every command needs that asks a running engine or publisher.
//
// Thread-safety: confined to the main thread.
#pragma once

#include <memory>
#include <string>

#include "tools/command.h"
#include "tools/grpc/version_status_client.h"
#include "tools/options.h"
#include "tools/security_options.h"

namespace bascule {

struct PeerOptions {
  std::string address;
  Duration timeout = kAnswerTimeout;
  SecurityOptions security;
};

inline void AddPeerOptions(CLI::App& app, PeerOptions& options) {
  AddPeer(app, options.address);
  AddTimeout(app, options.timeout);
  AddClientSecurity(app, options.security);
}

// Connects and gives `ask` the client and the deadline; its error is reported with the peer's address.
template <typename Ask>
Outcome AskPeer(const PeerOptions& options, Ask ask) {
  const Deadline deadline = Deadline::After(Clock::Real(), options.timeout);
  ASSIGN_OR_RETURN(const ClientSecurity security, ClientSecurityOf(options.security));
  const auto client = VersionStatusClient::Connect(options.address, deadline, security);
  if (!client.ok()) return {client.status(), options.address, ""};
  return {ask(**client, deadline), options.address, ""};
}

}  // namespace bascule
