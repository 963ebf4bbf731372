// The passes over a whole row of logits, written so that a compiler vectorizes them.
//
// Each works on blocks of kBlock elements and leaves one figure per block: whoever looks for
// large logits afterwards skips the blocks that hold none.

#ifndef AOTLM_ROW_MATH_H_
#define AOTLM_ROW_MATH_H_

#include <cstdint>

namespace aotlm {

constexpr int64_t kBlock = 64;

inline int64_t num_blocks(int64_t n) { return (n + kBlock - 1) / kBlock; }

struct RowScan {
  float max;     // -inf for an empty row
  bool has_nan;
};

// Writes the maximum of each block to block_max [num_blocks(n)].
RowScan scan_row(const float* x, int64_t n, float* block_max);

// weights[i] = exp((x[i] - max) * inverse_temperature), block_sums their sum per block.
// Relative error of exp about 2e-7; weights under exp(-87) are 0. Returns the total.
double exp_row(const float* x, int64_t n, float max, float inverse_temperature, float* weights,
               double* block_sums);

}  // namespace aotlm

#endif  // AOTLM_ROW_MATH_H_
