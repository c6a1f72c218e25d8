// How a command proves who it is and whom it believes: the same options, variables and files for every command that
// talks to others.
//
//   --tls-ca, --tls-cert, --tls-key, --tls-server-name   of whoever calls; also BASCULE_TLS_CA, _CERT, _KEY, ...
//   --tls-cert, --tls-key, --tls-client-ca, --token-file of whoever is called
//   BASCULE_TOKEN                                        what a caller sends; never an option: `ps` shows those
//
// Thread-safety: confined to the main thread.
#pragma once

#include <string>

#include "base/peer_security.h"

namespace CLI {
class App;
}  // namespace CLI

namespace bascule {

inline constexpr const char* kTokenVariable = "BASCULE_TOKEN";

struct SecurityOptions {
  std::string ca;
  std::string certificate;
  std::string key;
  std::string server_name;
  std::string client_ca;
  std::string token_file;
};

void AddClientSecurity(CLI::App& app, SecurityOptions& options);
void AddServerSecurity(CLI::App& app, SecurityOptions& options);
// Of a command that calls and is called, with one certificate for both.
void AddBothSecurity(CLI::App& app, SecurityOptions& options);

// Reads the files. What they say is wrong names the file.
//
// As ReadClientSecurity
Result<ClientSecurity> ClientSecurityOf(const SecurityOptions& options);
// As ReadServerSecurity
Result<ServerSecurity> ServerSecurityOf(const SecurityOptions& options);

}  // namespace bascule
