#include "hub/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace loopspec::hub {

struct Digest::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest(bool sha256, int64_t size)
    : state_(std::make_unique<State>()), sha256_(sha256), size_(size) {
  Reset();
}

Digest::~Digest() = default;

void Digest::Reset() {
  LOOPSPEC_CHECK(EVP_DigestInit_ex(state_->context, sha256_ ? EVP_sha256() : EVP_sha1(), nullptr) ==
                 1);
  if (sha256_) return;
  const std::string head = fmt::format("blob {}", size_);
  Add(head.c_str(), head.size() + 1);  // git's header ends with a zero
}

void Digest::Add(const void* data, size_t size) {
  LOOPSPEC_CHECK(EVP_DigestUpdate(state_->context, data, size) == 1);
}

std::string Digest::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int count = 0;
  LOOPSPEC_CHECK(EVP_DigestFinal_ex(state_->context, bytes.data(), &count) == 1);
  std::string out;
  for (unsigned int i = 0; i < count; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

}  // namespace loopspec::hub
