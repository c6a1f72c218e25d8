#include "base/net_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <string_view>

namespace bascule {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";

Status BadAddress(const std::string& text, std::string_view why) {
  return Status::InvalidArgument("bad_address",
                                 fmt::format("\"{}\": {}; want host:port, [v6]:port or unix:/path", text, why));
}

std::optional<std::uint16_t> ParsePort(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return port;
}

// A name or an IPv4 address. What else a resolver might take stays out: it could not be told from the rest of the text.
bool IsHostName(std::string_view host) {
  return std::ranges::all_of(host, [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '-' || c == '_'; });
}

// With an optional zone: "fe80::1%eth0".
bool IsIpv6(std::string_view host) {
  const std::size_t percent = host.find('%');
  if (percent != std::string_view::npos) {
    const std::string_view zone = host.substr(percent + 1);
    if (zone.empty() || !IsHostName(zone)) return false;
  }
  in6_addr parsed;
  return inet_pton(AF_INET6, std::string(host.substr(0, percent)).c_str(), &parsed) == 1;
}

// The one spelling of an address in digits, of all that a resolver takes: "0" is 0.0.0.0 and "::0" is "::", so that
// none of them passes for another. Names, and addresses with a zone, stay.
std::string InOneSpelling(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  char text[INET6_ADDRSTRLEN];
  if (inet_aton(host.c_str(), &v4) != 0) return inet_ntop(AF_INET, &v4, text, sizeof text);
  if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return host;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return inet_ntop(AF_INET, &v6.s6_addr[12], text, sizeof text);
  return inet_ntop(AF_INET6, &v6, text, sizeof text);
}

}  // namespace

Result<NetAddress> NetAddress::Parse(const std::string& text) {
  NetAddress address;
  if (text.starts_with(kUnixPrefix)) {
    address.unix_path = text.substr(kUnixPrefix.size());
    if (!address.unix_path.starts_with('/')) return BadAddress(text, "the path is not absolute");
    if (address.unix_path.find('\0') != std::string::npos) return BadAddress(text, "the path has a zero byte");
    if (address.unix_path.size() >= sizeof(sockaddr_un::sun_path)) return BadAddress(text, "the path is too long");
    return address;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return BadAddress(text, "no port");
  const std::optional<std::uint16_t> port = ParsePort(std::string_view(text).substr(colon + 1));
  if (!port) return BadAddress(text, "the port is no number from 0 to 65535");
  address.port = *port;
  address.host = text.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
    if (!IsIpv6(address.host)) return BadAddress(text, "no IPv6 address in the brackets");
  } else if (address.host.find(':') != std::string::npos) {
    return BadAddress(text, "an IPv6 address needs brackets");
  } else if (!IsHostName(address.host)) {
    return BadAddress(text, "a host has letters, digits, '.', '-' and '_'");
  }
  if (address.host.empty()) return BadAddress(text, "no host");
  address.host = InOneSpelling(address.host);
  return address;
}

bool NetAddress::is_loopback() const {
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == IN_LOOPBACKNET;
  return host == "::1" || host == "localhost";
}

std::string NetAddress::ToString() const {
  if (is_unix()) return std::string(kUnixPrefix) + unix_path;
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace bascule
