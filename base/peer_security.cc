#include "base/peer_security.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "base/private_file.h"

namespace bascule {
namespace {

constexpr std::size_t kMaxPemBytes = 1 << 20;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Reading(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free);
}

// A key with a pass phrase cannot be used by a server that starts by itself; nobody is asked for one.
int NoPassPhrase(char*, int, int, void*) { return -1; }

Status BadFile(const std::string& path, std::string_view why) {
  ERR_clear_error();
  return Status::InvalidArgument("bad_tls_file", fmt::format("{}: {}", path, why));
}

Status BadOptions(std::string_view why) { return Status::InvalidArgument("bad_tls_options", std::string(why)); }

Result<Certificate> FirstCertificate(const std::string& path, const std::string& pem) {
  Certificate certificate(PEM_read_bio_X509(Reading(pem).get(), nullptr, &NoPassPhrase, nullptr), &X509_free);
  if (certificate == nullptr) return BadFile(path, "no certificate in PEM form");
  return certificate;
}

Result<std::string> ReadAuthority(const std::string& path) {
  ASSIGN_OR_RETURN(std::string pem, ReadSmallFile(path, kMaxPemBytes));
  RETURN_IF_ERROR(FirstCertificate(path, pem).status());
  return pem;
}

Result<TlsIdentity> ReadIdentity(const std::string& certificate_path, const std::string& key_path) {
  TlsIdentity identity;
  if (certificate_path.empty() && key_path.empty()) return identity;
  if (certificate_path.empty() || key_path.empty()) return BadOptions("a certificate and its key go together");
  ASSIGN_OR_RETURN(identity.certificate_pem, ReadSmallFile(certificate_path, kMaxPemBytes));
  ASSIGN_OR_RETURN(identity.key_pem, ReadPrivateFile(key_path, kMaxPemBytes));
  ASSIGN_OR_RETURN(const Certificate certificate, FirstCertificate(certificate_path, identity.certificate_pem));
  const Key key(PEM_read_bio_PrivateKey(Reading(identity.key_pem).get(), nullptr, &NoPassPhrase, nullptr),
                &EVP_PKEY_free);
  if (key == nullptr) return BadFile(key_path, "no private key in PEM form without a pass phrase");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return BadFile(key_path, fmt::format("not the key of {}", certificate_path));
  }
  return identity;
}

}  // namespace

Result<ClientSecurity> ReadClientSecurity(const ClientSecurityFiles& files) {
  ClientSecurity security;
  ASSIGN_OR_RETURN(security.identity, ReadIdentity(files.certificate, files.key));
  const bool wants_tls = !security.identity.empty() || !files.server_name.empty();
  if (wants_tls && files.ca.empty()) return BadOptions("TLS to a server needs the CA that vouches for it");
  if (!files.ca.empty()) {
    ASSIGN_OR_RETURN(security.ca_pem, ReadAuthority(files.ca));
  }
  if (!files.token.empty()) RETURN_IF_ERROR(CheckToken(files.token));
  security.server_name = files.server_name;
  security.token = files.token;
  return security;
}

Result<ServerSecurity> ReadServerSecurity(const ServerSecurityFiles& files) {
  ServerSecurity security;
  ASSIGN_OR_RETURN(security.identity, ReadIdentity(files.certificate, files.key));
  if (!files.client_ca.empty()) {
    if (security.identity.empty()) return BadOptions("certificates of clients need a certificate of the server");
    ASSIGN_OR_RETURN(security.client_ca_pem, ReadAuthority(files.client_ca));
  }
  if (!files.tokens.empty()) {
    ASSIGN_OR_RETURN(TokenTable tokens, TokenTable::Read(files.tokens));
    security.tokens = std::make_shared<const TokenTable>(std::move(tokens));
  }
  return security;
}

}  // namespace bascule
