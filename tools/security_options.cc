#include "tools/security_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace bascule {
namespace {

constexpr const char* kGroup = "Security";

CLI::Option* AddText(CLI::App& app, const std::string& name, std::string& target, const std::string& what) {
  return app.add_option(name, target, what)->group(kGroup);
}

CLI::Option* AddFile(CLI::App& app, const std::string& name, std::string& target, const std::string& what) {
  return AddText(app, name, target, what)->type_name("FILE");
}

struct IdentityOptions {
  CLI::Option* certificate;
  CLI::Option* key;
};

IdentityOptions AddIdentity(CLI::App& app, SecurityOptions& options, const std::string& what) {
  const IdentityOptions added = {AddFile(app, "--tls-cert", options.certificate, what),
                                 AddFile(app, "--tls-key", options.key, "the private key of --tls-cert")};
  added.certificate->needs(added.key);
  added.key->needs(added.certificate);
  return added;
}

CLI::Option* AddTrust(CLI::App& app, SecurityOptions& options) {
  CLI::Option* ca = AddFile(app, "--tls-ca", options.ca, "who may vouch for servers; with it, TLS is used")
                        ->envname("BASCULE_TLS_CA");
  AddText(app, "--tls-server-name", options.server_name,
          "the name in the server's certificate, if not the address's host")
      ->type_name("NAME")
      ->envname("BASCULE_TLS_SERVER_NAME")
      ->needs(ca);
  return ca;
}

void AddDoor(CLI::App& app, SecurityOptions& options, const IdentityOptions& identity) {
  AddFile(app, "--tls-client-ca", options.client_ca, "who may vouch for callers, which then need a certificate")
      ->needs(identity.certificate);
  AddFile(app, "--token-file", options.token_file,
          "lines TOKEN ROLE[,ROLE] with roles read, generate, operate, publish; callers send theirs in BASCULE_TOKEN");
}

}  // namespace

void AddClientSecurity(CLI::App& app, SecurityOptions& options) {
  CLI::Option* const ca = AddTrust(app, options);
  const IdentityOptions identity = AddIdentity(app, options, "shown to servers that ask for a certificate");
  identity.certificate->envname("BASCULE_TLS_CERT")->needs(ca);
  identity.key->envname("BASCULE_TLS_KEY");
}

void AddServerSecurity(CLI::App& app, SecurityOptions& options) {
  const IdentityOptions identity = AddIdentity(app, options, "the server's certificate chain; with it, TLS is wanted");
  AddDoor(app, options, identity);
}

void AddBothSecurity(CLI::App& app, SecurityOptions& options) {
  AddTrust(app, options);
  const IdentityOptions identity =
      AddIdentity(app, options, "shown to servers that ask for a certificate, and served with --listen");
  identity.certificate->envname("BASCULE_TLS_CERT");
  identity.key->envname("BASCULE_TLS_KEY");
  AddDoor(app, options, identity);
}

Result<ClientSecurity> ClientSecurityOf(const SecurityOptions& options) {
  const char* const token = std::getenv(kTokenVariable);
  // Without a CA there is no TLS to show a certificate in: it is the server's.
  const bool calls_with_tls = !options.ca.empty();
  Result<ClientSecurity> security = ReadClientSecurity({.ca = options.ca,
                                                        .certificate = calls_with_tls ? options.certificate : "",
                                                        .key = calls_with_tls ? options.key : "",
                                                        .server_name = options.server_name,
                                                        .token = token == nullptr ? "" : token});
  if (security.status().reason() == "bad_token") return security.status().WithContext(kTokenVariable);
  return security;
}

Result<ServerSecurity> ServerSecurityOf(const SecurityOptions& options) {
  return ReadServerSecurity({.certificate = options.certificate,
                             .key = options.key,
                             .client_ca = options.client_ca,
                             .tokens = options.token_file});
}

}  // namespace bascule
