#include "tessera/weights/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <span>

#include "tessera/base/check.h"

namespace tessera::weights {

namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    TESSERA_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  // The length goes first, so that no two lists of fields are the same bytes.
  void field(std::span<const std::uint8_t> bytes) {
    std::array<std::uint8_t, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::uint8_t>(bytes.size() >> (8 * i));
    update(length);
    update(bytes);
  }
  void field(std::string_view text) {
    field(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
  }
  std::array<std::uint8_t, 32> finish() {
    std::array<std::uint8_t, 32> out{};
    TESSERA_CHECK(EVP_DigestFinal_ex(context_.get(), out.data(), nullptr) == 1);
    return out;
  }

 private:
  void update(std::span<const std::uint8_t> bytes) {
    TESSERA_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

void CheckpointDigest::add(const Tensor& tensor) {
  if (entries_.contains(tensor.name)) return;
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(tensor.data.data(), tensor.data.size()));
  Entry entry{std::string(base::dtype_name(tensor.dtype)), shape_text(tensor.shape), {}};
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), entry.hash.begin());
  entries_.emplace(tensor.name, std::move(entry));
}

std::string CheckpointDigest::finish() const {
  Sha256 sha;
  sha.field(config_text_);
  for (const auto& [name, entry] : entries_) {
    sha.field(name);
    sha.field(entry.dtype);
    sha.field(entry.shape);
    sha.field(entry.hash);
  }
  std::string hex;
  for (const std::uint8_t byte : sha.finish()) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace tessera::weights
