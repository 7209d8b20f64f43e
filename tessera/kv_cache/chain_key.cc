#include "tessera/kv_cache/chain_key.h"

#include <openssl/evp.h>

#include <bit>
#include <cstring>
#include <memory>
#include <string_view>

#include "tessera/base/check.h"

namespace tessera::kv_cache {

namespace {

static_assert(std::endian::native == std::endian::little, "chain keys hash integers as they lie in memory");

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    // Looked up once: the implicit look-up of EVP_sha256() costs more than hashing a page's tokens.
    static const EVP_MD* const kAlgorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    TESSERA_CHECK(context_ != nullptr && kAlgorithm != nullptr, "OpenSSL has no SHA-256");
    TESSERA_CHECK(EVP_DigestInit_ex(context_.get(), kAlgorithm, nullptr) == 1);
  }
  void add(const void* data, std::size_t bytes) { TESSERA_CHECK(EVP_DigestUpdate(context_.get(), data, bytes) == 1); }
  template <typename T>
  void add_integer(T value) {
    add(&value, sizeof(value));
  }
  void add_text(std::string_view text) {
    add_integer(static_cast<std::uint64_t>(text.size()));
    add(text.data(), text.size());
  }
  ChainKey finish() {
    ChainKey key;
    unsigned int bytes = 0;
    TESSERA_CHECK(EVP_DigestFinal_ex(context_.get(), key.data(), &bytes) == 1 && bytes == key.size());
    return key;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

ChainKey root_chain_key(const PrefixScope& scope, std::int32_t page_size) {
  Sha256 hash;
  hash.add_text("tessera prefix 1");
  hash.add_text(scope.tenant);
  hash.add_text(scope.model_digest);
  hash.add_integer(static_cast<std::uint8_t>(scope.format));
  hash.add_integer(static_cast<std::uint8_t>(scope.provenance));
  hash.add_integer(static_cast<std::uint32_t>(page_size));
  return hash.finish();
}

ChainKey sha256_chain_key(const ChainKey& parent, std::span<const std::int32_t> tokens) {
  Sha256 hash;
  hash.add(parent.data(), parent.size());
  hash.add(tokens.data(), tokens.size_bytes());
  return hash.finish();
}

PageOwner chain_owner(const ChainKey& key) {
  std::uint64_t first = 0;
  std::memcpy(&first, key.data(), sizeof(first));
  return owner_of_chain(first);
}

}  // namespace tessera::kv_cache
