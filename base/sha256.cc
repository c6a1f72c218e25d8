#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/hex.h"
#include "base/status.h"

namespace bascule {

std::string Hash256::ToHex() const { return HexOf(bytes); }

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  Context() { CHECK(evp != nullptr && EVP_DigestInit_ex(evp, EVP_sha256(), nullptr) == 1); }
  ~Context() { EVP_MD_CTX_free(evp); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;

void Sha256::Add(std::string_view text) { Add(std::as_bytes(std::span(text))); }

void Sha256::Add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

void Sha256::AddU64(std::uint64_t number) {
  std::array<std::byte, 8> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number >> (8 * i));
  Add(bytes);
}

Hash256 Sha256::Finish() {
  Hash256 hash;
  unsigned length = 0;
  CHECK(EVP_DigestFinal_ex(context_->evp, reinterpret_cast<unsigned char*>(hash.bytes.data()), &length) == 1);
  CHECK(length == hash.bytes.size());
  return hash;
}

Hash256 Sha256Of(std::string_view text) {
  Sha256 hash;
  hash.Add(text);
  return hash.Finish();
}

}  // namespace bascule
