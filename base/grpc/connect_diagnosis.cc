#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/grpc/connect_diagnosis_internal.h"
#include "base/grpc/name_lookup_internal.h"
#include "base/unique_fd.h"

namespace bascule {
namespace {

constexpr Duration kPatience = std::chrono::seconds(3);
constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};

template <auto Free>
struct Freeing {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freeing<&BIO_free>>;
using Certificate = std::unique_ptr<X509, Freeing<&X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freeing<&EVP_PKEY_free>>;
using TlsContext = std::unique_ptr<SSL_CTX, Freeing<&SSL_CTX_free>>;
using Tls = std::unique_ptr<SSL, Freeing<&SSL_free>>;

Bio Reading(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

Status Unreachable(const NetAddress& address, std::string_view why) {
  return Status::Unavailable("peer_unreachable", fmt::format("nobody answers at {}{}", address.ToString(), why));
}

Status TlsFailed(std::string message) { return Status::Unauthenticated("tls_failed", std::move(message)); }

// A socket whose every step waits until `deadline` at most.
class Probe {
 public:
  Probe(Deadline deadline, Clock& clock) : deadline_(deadline), clock_(clock) {}

  // Whether somebody took the connection. Errors of LookUp.
  Result<bool> Connect(const NetAddress& address) {
    if (address.is_unix()) return ConnectUnix(address.unix_path);
    ASSIGN_OR_RETURN(const std::vector<SocketAddress> all, LookUp(address.host, address.port, deadline_, clock_));
    return std::ranges::any_of(all, [this](const SocketAddress& one) {
      return ConnectTo(one.bytes.ss_family, reinterpret_cast<const sockaddr*>(&one.bytes), one.size);
    });
  }

  bool Send(const char* bytes, std::size_t count) {
    while (count > 0) {
      const ssize_t sent = send(fd_.get(), bytes, count, MSG_NOSIGNAL);
      if (sent < 0 && !(Again() && Wait(POLLOUT))) return false;
      bytes += std::max<ssize_t>(sent, 0);
      count -= static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
    }
    return true;
  }

  // How many bytes came; 0 at the end of the connection or of the time.
  std::size_t Receive(std::span<char> into) {
    while (true) {
      const ssize_t got = recv(fd_.get(), into.data(), into.size(), 0);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (!Again() || !Wait(POLLIN)) return 0;
    }
  }

 private:
  static bool Again() { return errno == EAGAIN || errno == EINTR; }

  bool ConnectUnix(const std::string& path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, path.data(), std::min(path.size(), sizeof name.sun_path - 1));
    return ConnectTo(AF_UNIX, reinterpret_cast<const sockaddr*>(&name), sizeof name);
  }

  bool ConnectTo(int family, const sockaddr* address, socklen_t bytes) {
    fd_ = UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd_.valid()) return false;
    if (connect(fd_.get(), address, bytes) == 0) return true;
    if (errno != EINPROGRESS || !Wait(POLLOUT)) return false;
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }

  bool Wait(short event) {
    pollfd wanted{fd_.get(), event, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_.Left(clock_));
    return poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000))) > 0;
  }

  const Deadline deadline_;
  Clock& clock_;
  UniqueFd fd_;
};

// TLS as a client over a probe, through memory: OpenSSL itself never touches the socket.
class TlsProbe {
 public:
  TlsProbe(Probe& probe, const NetAddress& address, const ClientSecurity& security)
      : probe_(probe), context_(SSL_CTX_new(TLS_client_method())) {
    if (context_ != nullptr) Believe(security);
    if (context_ != nullptr) SSL_CTX_set_cert_cb(context_.get(), &NoteAsked, &asked_);
    if (context_ != nullptr) tls_.reset(SSL_new(context_.get()));
    if (tls_ == nullptr) return;
    SSL_set_bio(tls_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_alpn_protos(tls_.get(), kHttp2.data(), kHttp2.size());
    if (!security.ca_pem.empty()) ExpectName(address, security);
  }

  // False where it fails; verdict() says whether that is because of the server's certificate.
  bool Handshake() {
    return tls_ != nullptr && Pump([this] { return SSL_connect(tls_.get()); });
  }
  // Whether the server says anything but goodbye: with TLS 1.3 it looks at a client's certificate only after the
  // handshake.
  bool ReadsOn() {
    char first = 0;
    return Pump([this, &first] { return SSL_read(tls_.get(), &first, 1); });
  }

  // What is wrong with the server's certificate; empty where nothing is.
  std::string verdict() const {
    const long result = tls_ == nullptr ? X509_V_OK : SSL_get_verify_result(tls_.get());
    return result == X509_V_OK ? "" : X509_verify_cert_error_string(result);
  }
  // Whether the server has asked for a certificate of this side.
  bool asked() const { return asked_; }

 private:
  void Believe(const ClientSecurity& security) {
    SSL_CTX_set_verify(context_.get(), security.ca_pem.empty() ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
    const Bio authorities = Reading(security.ca_pem);
    while (const Certificate authority{PEM_read_bio_X509(authorities.get(), nullptr, nullptr, nullptr)}) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), authority.get());
    }
    if (security.identity.empty()) return;
    const Bio chain = Reading(security.identity.certificate_pem);
    if (const Certificate own{PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)}) {
      SSL_CTX_use_certificate(context_.get(), own.get());
    }
    while (X509* const issuer = PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)) {
      SSL_CTX_add_extra_chain_cert(context_.get(), issuer);  // which takes it over
    }
    const Bio key_text = Reading(security.identity.key_pem);
    if (const Key key{PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr)}) {
      SSL_CTX_use_PrivateKey(context_.get(), key.get());
    }
    ERR_clear_error();
  }

  void ExpectName(const NetAddress& address, const ClientSecurity& security) {
    const std::string host = address.is_unix() ? "localhost" : address.host;
    const std::string& name = security.server_name.empty() ? host : security.server_name;
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), name.c_str()) != 1) {
      SSL_set1_host(tls_.get(), name.c_str());
      SSL_set_tlsext_host_name(tls_.get(), name.c_str());
    }
    ERR_clear_error();
  }

  // Runs `step` and carries bytes between OpenSSL and the socket until it is done.
  template <typename Step>
  bool Pump(Step step) {
    std::array<char, 16 << 10> bytes{};
    while (true) {
      ERR_clear_error();
      const int result = step();
      const int error = SSL_get_error(tls_.get(), result);
      for (int n = 0; (n = BIO_read(SSL_get_wbio(tls_.get()), bytes.data(), bytes.size())) > 0;) {
        if (!probe_.Send(bytes.data(), static_cast<std::size_t>(n))) return false;
      }
      if (result > 0) return true;
      if (error != SSL_ERROR_WANT_READ) return false;
      const std::size_t got = probe_.Receive(bytes);
      if (got == 0) return false;
      BIO_write(SSL_get_rbio(tls_.get()), bytes.data(), static_cast<int>(got));
    }
  }

  static int NoteAsked(SSL*, void* asked) {
    *static_cast<bool*>(asked) = true;
    return 1;  // goes on with the certificate that there is, or without one
  }

  Probe& probe_;
  TlsContext context_;
  Tls tls_;
  bool asked_ = false;
};

Status OfPlaintext(const NetAddress& address, TlsProbe& tls) {
  if (!tls.Handshake()) return Unreachable(address, ", or nobody of ours");
  return TlsFailed(fmt::format("{} speaks TLS; to believe it, name the CA that vouches for it", address.ToString()));
}

Status OfTls(const NetAddress& address, TlsProbe& tls) {
  const bool shaken = tls.Handshake();
  if (const std::string verdict = tls.verdict(); !verdict.empty()) {
    return TlsFailed(fmt::format("the certificate of {} is not believed: {}", address.ToString(), verdict));
  }
  if (shaken && tls.ReadsOn()) return Unreachable(address, " for longer than a handshake");
  if (tls.asked()) {
    return TlsFailed(fmt::format("{} wants a certificate of this side, and does not believe the one it got or got none",
                                 address.ToString()));
  }
  if (shaken) return Unreachable(address, " after the handshake");
  return TlsFailed(fmt::format("{} does not speak TLS", address.ToString()));
}

}  // namespace

Status WhyNotConnected(const NetAddress& address, const ClientSecurity& security, Deadline deadline, Clock& clock) {
  Probe probe(std::min(deadline, Deadline::After(clock, kPatience)), clock);
  ASSIGN_OR_RETURN(const bool connected, probe.Connect(address));
  if (!connected) return Unreachable(address, "");
  TlsProbe tls(probe, address, security);
  return security.ca_pem.empty() ? OfPlaintext(address, tls) : OfTls(address, tls);
}

}  // namespace bascule
