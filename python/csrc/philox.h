// Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3" (SC11). No state: a request's stream is
// (seed, position), so what else is in the batch cannot change it.

#ifndef AOTLM_PHILOX_H_
#define AOTLM_PHILOX_H_

#include <cstdint>

namespace aotlm {

inline double philox_uniform(uint64_t seed, uint64_t position) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(position);
  uint32_t c1 = static_cast<uint32_t>(position >> 32);
  uint32_t c2 = 0;
  uint32_t c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const uint64_t bits = (uint64_t{c1} << 32) | c0;
  return static_cast<double>(bits >> 11) * (1.0 / 9007199254740992.0);  // 2^-53
}

}  // namespace aotlm

#endif  // AOTLM_PHILOX_H_
