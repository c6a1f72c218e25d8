// What a process proves to those it talks to, and what it asks of them: TLS and tokens. Without any of it, whoever
// reaches an address may call what is there. docs/security.md says what that defends against.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "base/token_table.h"

namespace bascule {

// A certificate chain, its own certificate first, and the private key of that one; PEM texts. Both, or neither.
struct TlsIdentity {
  std::string certificate_pem;
  std::string key_pem;
  bool empty() const { return certificate_pem.empty() && key_pem.empty(); }
};

// For whoever calls.
struct ClientSecurity {
  std::string ca_pem;       // who may vouch for servers; empty: plaintext
  TlsIdentity identity;     // shown to servers that ask for one; needs ca_pem
  std::string server_name;  // in the server's certificate; empty: the host of its address
  std::string token;        // sent with every call; empty: none. Never over plaintext to another host
};

// For whoever is called.
struct ServerSecurity {
  TlsIdentity identity;       // empty: plaintext
  std::string client_ca_pem;  // who may vouch for callers; empty: they need no certificate
  // Every call has to bring one of these, with the role that the call asks for. Null: anyone may call everything.
  // Shared: by all calls.
  std::shared_ptr<const TokenTable> tokens;
};

// The same as files. An empty path is a thing that is not wanted.
struct ClientSecurityFiles {
  std::string ca;
  std::string certificate;
  std::string key;
  std::string server_name;
  std::string token;  // itself, not a file
};

struct ServerSecurityFiles {
  std::string certificate;
  std::string key;
  std::string client_ca;
  std::string tokens;
};

// Reads and checks what is there, so that a wrong file is named now and not by the first call that fails.
//
// InvalidArgument "bad_tls_file"     no PEM of what it should hold, or a key that is not the certificate's
// InvalidArgument "bad_tls_options"  a certificate without a key, or one of them without what it needs
// InvalidArgument "bad_token"; and as ReadPrivateFile: of the key
Result<ClientSecurity> ReadClientSecurity(const ClientSecurityFiles& files);
// InvalidArgument "bad_tls_file" | "bad_tls_options"; and as TokenTable::Read and ReadPrivateFile
Result<ServerSecurity> ReadServerSecurity(const ServerSecurityFiles& files);

}  // namespace bascule
