#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include "base/grpc/grpc_credentials_internal.h"
#include "base/grpc/grpc_status.h"
#include "base/grpc/rpc_access.h"
#include "base/log.h"

namespace bascule {
namespace {

constexpr const char* kAuthorization = "authorization";
constexpr const char* kPath = ":path";
constexpr std::string_view kBearer = "Bearer ";

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

class SentToken final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit SentToken(const std::string& token) : header_(std::string(kBearer) + token) {}
  bool IsBlocking() const override { return false; }
  const char* GetType() const override { return "bascule_token"; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<std::string, std::string>* metadata) override {
    metadata->emplace(kAuthorization, header_);
    return grpc::Status::OK;
  }

 private:
  const std::string header_;
};

// Looked at once for each call of any service, unknown ones included, before any handler hears of it.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenCheck(std::shared_ptr<const TokenTable> tokens) : tokens_(std::move(tokens)) {}
  bool IsBlocking() const override { return false; }

  // What was checked is taken off, so that no handler sees a token.
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata* consumed,
                       OutputMetadata*) override {
    const auto path = metadata.find(kPath);
    const std::string_view rpc = path == metadata.end() ? std::string_view() : View(path->second);
    const auto [begin, end] = metadata.equal_range(kAuthorization);
    const bool one = begin != end && std::next(begin) == end;
    const Status verdict = one ? Check(View(begin->second), rpc) : Unauthenticated("the call brings no token");
    for (auto header = begin; header != end; ++header) {
      consumed->emplace(kAuthorization, std::string(View(header->second)));
    }
    if (!verdict.ok()) LogInfo("call_refused", "reason={} rpc={}", verdict.reason(), rpc.substr(0, kRpcTextBytes));
    return ToGrpc(verdict);
  }

 private:
  static constexpr std::size_t kRpcTextBytes = 128;

  static Status Unauthenticated(std::string why) { return Status::Unauthenticated("unauthenticated", std::move(why)); }

  Status Check(std::string_view header, std::string_view rpc) const {
    if (!header.starts_with(kBearer)) return Unauthenticated("the call brings no token");
    const std::optional<RoleSet> roles = tokens_->RolesOf(header.substr(kBearer.size()));
    if (!roles) return Unauthenticated("nobody here knows the token");
    const std::optional<Role> wanted = RoleOfRpc(rpc);
    if (!wanted) return Status::PermissionDenied("permission_denied", "no token gives the right to this call");
    if (roles->Has(*wanted)) return OkStatus();
    return Status::PermissionDenied(
        "permission_denied", fmt::format("the token lacks the role {}, which this call wants", RoleName(*wanted)));
  }

  const std::shared_ptr<const TokenTable> tokens_;
};

Status InTheClear(const NetAddress& address) {
  return Status::InvalidArgument(
      "token_in_the_clear",
      fmt::format("tokens at {} would travel unencrypted; they want TLS, or 127.0.0.1, [::1], localhost or a Unix "
                  "socket",
                  address.ToString()));
}

// Nothing: it leaves the host.
std::optional<grpc_local_connect_type> WithinHost(const NetAddress& address) {
  if (address.is_unix()) return UDS;
  return address.is_loopback() ? std::optional(LOCAL_TCP) : std::nullopt;
}

grpc::SslServerCredentialsOptions TlsOptionsOf(const ServerSecurity& security) {
  const bool mutual = !security.client_ca_pem.empty();
  grpc::SslServerCredentialsOptions options(mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                   : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  options.pem_root_certs = security.client_ca_pem;
  options.pem_key_cert_pairs.push_back({security.identity.key_pem, security.identity.certificate_pem});
  return options;
}

Result<std::shared_ptr<grpc::ServerCredentials>> TransportOf(const NetAddress& address,
                                                             const ServerSecurity& security) {
  if (!security.identity.empty()) return grpc::SslServerCredentials(TlsOptionsOf(security));
  if (security.tokens == nullptr) return grpc::InsecureServerCredentials();
  const auto within = WithinHost(address);
  if (!within) return InTheClear(address);
  return grpc::experimental::LocalServerCredentials(*within);
}

Result<std::shared_ptr<grpc::ChannelCredentials>> TransportOf(const NetAddress& address,
                                                              const ClientSecurity& security) {
  if (!security.ca_pem.empty()) {
    return grpc::SslCredentials({security.ca_pem, security.identity.key_pem, security.identity.certificate_pem});
  }
  if (security.token.empty()) return grpc::InsecureChannelCredentials();
  const auto within = WithinHost(address);
  if (!within) return InTheClear(address);
  return grpc::experimental::LocalCredentials(*within);
}

}  // namespace

Result<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const NetAddress& address,
                                                                        const ClientSecurity& security) {
  if (!security.token.empty()) RETURN_IF_ERROR(CheckToken(security.token));
  ASSIGN_OR_RETURN(auto transport, TransportOf(address, security));
  if (security.token.empty()) return transport;
  // No level of security is asked for here, because TransportOf has seen to it.
  return grpc::CompositeChannelCredentials(
      transport, grpc::experimental::MetadataCredentialsFromPlugin(std::make_unique<SentToken>(security.token),
                                                                   GRPC_SECURITY_NONE));
}

Result<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(const NetAddress& address,
                                                                      const ServerSecurity& security) {
  ASSIGN_OR_RETURN(auto credentials, TransportOf(address, security));
  if (security.tokens != nullptr) {
    credentials->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(security.tokens));
  }
  return credentials;
}

}  // namespace bascule
