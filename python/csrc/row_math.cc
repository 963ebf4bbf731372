#include "row_math.h"

#include <cstring>
#include <limits>

// One library runs on every x86-64 and still uses the widest registers there are: the loader
// picks the clone. Needs ifunc (glibc) and level names (GCC 12); elsewhere the baseline must do.
// (`arch=haswell` and the like would match that one CPU model only.)
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && __GNUC__ >= 12 && \
    !defined(__clang__)
#define AOTLM_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define AOTLM_CLONES
#endif

// A call inside a clone would go to the baseline version and stop the vectorizer.
#if defined(__GNUC__)
#define AOTLM_INLINE inline __attribute__((always_inline))
#else
#define AOTLM_INLINE inline
#endif

namespace aotlm {
namespace {

constexpr int kLanes = 16;
static_assert(kBlock == 4 * kLanes, "scan_row takes four vectors a block");

AOTLM_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

AOTLM_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// exp(y) for y <= 0: 2^n * p(r), the polynomial of Cephes expf. The comparisons are made on the
// bits (larger means more negative): float selects would not vectorize without -fno-trapping-math.
AOTLM_INLINE float exp_nonpositive(float y) {
  constexpr uint32_t kLowest = 0xC2AE0000u;  // -87.0f, short of denormal results
  constexpr float kRound = 12582912.0f;      // 1.5 * 2^23: adding it rounds to an integer
  const uint32_t y_bits = bits_of(y);
  const float clamped = float_of(y_bits > kLowest ? kLowest : y_bits);
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  float r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float scale = float_of((bits_of(shifted) - 0x4B400000u + 127u) << 23);
  return float_of(y_bits > kLowest ? 0u : bits_of(p * scale));
}

}  // namespace

AOTLM_CLONES
RowScan scan_row(const float* __restrict x, int64_t n, float* __restrict block_max) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float row_max = kLowest;
  int32_t nan_lanes[kLanes] = {};
  const int64_t whole = n / kBlock;
  for (int64_t b = 0; b < whole; ++b) {
    const float* block = x + b * kBlock;
    float lanes[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      const float v0 = block[l];
      const float v1 = block[l + kLanes];
      const float v2 = block[l + 2 * kLanes];
      const float v3 = block[l + 3 * kLanes];
      const float m01 = v0 > v1 ? v0 : v1;
      const float m23 = v2 > v3 ? v2 : v3;
      lanes[l] = m01 > m23 ? m01 : m23;
      nan_lanes[l] |= (v0 != v0) | (v1 != v1) | (v2 != v2) | (v3 != v3);
    }
    float m = kLowest;
    for (int l = 0; l < kLanes; ++l) m = lanes[l] > m ? lanes[l] : m;
    block_max[b] = m;
    row_max = m > row_max ? m : row_max;
  }
  int32_t has_nan = 0;
  for (int l = 0; l < kLanes; ++l) has_nan |= nan_lanes[l];
  if (whole * kBlock < n) {
    float m = kLowest;
    for (int64_t i = whole * kBlock; i < n; ++i) {
      m = x[i] > m ? x[i] : m;
      has_nan |= x[i] != x[i] ? 1 : 0;
    }
    block_max[whole] = m;
    row_max = m > row_max ? m : row_max;
  }
  return RowScan{row_max, has_nan != 0};
}

AOTLM_CLONES
double exp_row(const float* __restrict x, int64_t n, float max, float inverse_temperature,
               float* __restrict weights, double* block_sums) {
  double total = 0.0;
  const int64_t whole = n / kBlock;
  for (int64_t b = 0; b < whole; ++b) {
    const float* block = x + b * kBlock;
    float* out = weights + b * kBlock;
    for (int64_t i = 0; i < kBlock; ++i) {
      out[i] = exp_nonpositive((block[i] - max) * inverse_temperature);
    }
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) lanes[l] += out[i + l];
    }
    double sum = 0.0;
    for (int l = 0; l < kLanes; ++l) sum += lanes[l];
    block_sums[b] = sum;
    total += sum;
  }
  if (whole * kBlock < n) {
    double sum = 0.0;
    for (int64_t i = whole * kBlock; i < n; ++i) {
      weights[i] = exp_nonpositive((x[i] - max) * inverse_temperature);
      sum += weights[i];
    }
    block_sums[whole] = sum;
    total += sum;
  }
  return total;
}

}  // namespace aotlm
