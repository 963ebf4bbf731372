// Chooses the next token of each sequence from its logits.
//
// Order: penalties, logit bias, temperature, top-k, top-p (of what top-k left), min-p.
// Every filter keeps a prefix of the tokens sorted by (logit descending, id ascending), so
// the kept set is described by its last element alone. Nothing sorts the vocabulary: a lower
// bound on the logits of the prefix picks a few candidates, and only those are selected from.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "native.h"
#include "philox.h"
#include "row_math.h"

namespace aotlm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5f;  // under it 1 / temperature overflows float products

struct Candidate {
  float logit;
  float weight;
  int32_t id;
};

// The order in which tokens are kept.
inline bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Kept between calls so that a step allocates nothing; one per thread, so no locks.
struct Scratch {
  std::vector<float> logits, weights, block_max, bounds;
  std::vector<double> block_sums;
  std::vector<int32_t> counts;  // all 0 between rows
  std::vector<Candidate> candidates, order;

  void resize(int64_t vocab) {
    const std::size_t n = static_cast<std::size_t>(vocab);
    const std::size_t blocks = static_cast<std::size_t>(num_blocks(vocab));
    logits.resize(n);
    weights.resize(n);
    counts.resize(n, 0);
    block_max.resize(blocks);
    block_sums.resize(blocks);
  }
};

bool has_penalty(const aotlm_sample_row& row) {
  return row.num_tokens > 0 && (row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f ||
                                row.frequency_penalty != 0.0f);
}

// Divides or multiplies as in CTRL (Keskar et al. 2019); presence and frequency as OpenAI.
void apply_penalties(const aotlm_sample_row& row, std::vector<int32_t>& counts, int64_t vocab,
                     float* logits) {
  constexpr int32_t kSeen = 1 << 30;  // marks a token of the prompt; below it the count
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const int32_t id = row.tokens[i];
    if (id < 0 || id >= vocab) continue;
    int32_t& count = counts[static_cast<std::size_t>(id)];
    count = (i < row.num_prompt_tokens ? count : count + 1) | kSeen;
  }
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const int32_t id = row.tokens[i];
    if (id < 0 || id >= vocab) continue;
    int32_t& entry = counts[static_cast<std::size_t>(id)];
    if (entry == 0) continue;
    const int32_t count = entry & ~kSeen;
    float x = logits[id];
    x = x > 0.0f ? x / row.repetition_penalty : x * row.repetition_penalty;
    if (count > 0) {
      x -= row.presence_penalty + row.frequency_penalty * static_cast<float>(count);
    }
    logits[id] = x;
    entry = 0;
  }
}

void apply_bias(const aotlm_sample_row& row, int64_t vocab, float* logits) {
  for (int32_t i = 0; i < row.num_bias; ++i) {
    const int32_t id = row.bias_ids[i];
    if (id >= 0 && id < vocab) logits[id] += row.bias_values[i];
  }
}

int32_t first_equal(const float* x, const Scratch& s, float value) {
  std::size_t block = 0;
  while (s.block_max[block] != value) ++block;
  int64_t i = static_cast<int64_t>(block) * kBlock;
  while (x[i] != value) ++i;
  return static_cast<int32_t>(i);
}

// A logit that at least k tokens reach: the k-th largest of the block maxima.
float kth_bound(Scratch& s, int64_t k) {
  if (k > static_cast<int64_t>(s.block_max.size())) return -kInfinity;
  s.bounds = s.block_max;
  std::nth_element(s.bounds.begin(), s.bounds.begin() + (k - 1), s.bounds.end(),
                   [](float a, float b) { return a > b; });
  return s.bounds[static_cast<std::size_t>(k - 1)];
}

// Fills s.candidates with every token whose logit is at least `bound`, in id order.
void gather(const float* x, int64_t vocab, float bound, Scratch& s) {
  s.candidates.clear();
  for (std::size_t b = 0; b < s.block_max.size(); ++b) {
    if (s.block_max[b] < bound) continue;
    const int64_t begin = static_cast<int64_t>(b) * kBlock;
    const int64_t end = std::min(begin + kBlock, vocab);
    for (int64_t i = begin; i < end; ++i) {
      if (x[i] >= bound) {
        s.candidates.push_back({x[i], s.weights[static_cast<std::size_t>(i)], static_cast<int32_t>(i)});
      }
    }
  }
}

double mass(const Candidate* first, const Candidate* last) {
  double sum = 0.0;
  for (; first != last; ++first) sum += first->weight;
  return sum;
}

// How many of `order` [count], taken in order, reach `target`; halves the range each time, so
// the work is linear. Leaves the chosen ones in front. At least 1, at most `count`.
size_t nucleus_size(Candidate* order, std::size_t count, double target) {
  std::size_t low = 0;
  std::size_t high = count;
  double below = 0.0;
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    std::nth_element(order + low, order + middle, order + high, before);
    const double left = mass(order + low, order + middle);
    if (below + left >= target) {
      high = middle;
    } else {
      below += left;
      low = middle;
    }
  }
  return low + 1;
}

int32_t draw_from_all(const Scratch& s, int64_t vocab, double total, double uniform) {
  const double target = uniform * total;
  double sum = 0.0;
  int32_t last = -1;
  for (std::size_t b = 0; b < s.block_sums.size(); ++b) {
    if (sum + s.block_sums[b] <= target) {
      sum += s.block_sums[b];
      continue;
    }
    const int64_t begin = static_cast<int64_t>(b) * kBlock;
    const int64_t end = std::min(begin + kBlock, vocab);
    for (int64_t i = begin; i < end; ++i) {
      const float w = s.weights[static_cast<std::size_t>(i)];
      if (w > 0.0f) last = static_cast<int32_t>(i);
      sum += w;
      if (sum > target && w > 0.0f) return last;
    }
    return last;  // the block's float sum was rounded up: its last token
  }
  for (int64_t i = vocab - 1; i >= 0; --i) {
    if (s.weights[static_cast<std::size_t>(i)] > 0.0f) return static_cast<int32_t>(i);
  }
  return last;
}

// Draws from the candidates not after `cut`, in id order: the same on every platform,
// whatever order nth_element leaves.
int32_t draw_from_kept(const Scratch& s, const Candidate& cut, double uniform) {
  double total = 0.0;
  for (const Candidate& c : s.candidates) {
    if (!before(cut, c)) total += c.weight;
  }
  const double target = uniform * total;
  double sum = 0.0;
  int32_t last = cut.id;
  for (const Candidate& c : s.candidates) {
    if (before(cut, c) || c.weight <= 0.0f) continue;
    last = c.id;
    sum += c.weight;
    if (sum > target) break;
  }
  return last;
}

int32_t draw(const aotlm_sample_row& row, const float* x, int64_t vocab, float max, Scratch& s) {
  const double uniform = philox_uniform(row.seed, row.position);
  const float inverse_temperature = 1.0f / row.temperature;
  const double total =
      exp_row(x, vocab, max, inverse_temperature, s.weights.data(), s.block_sums.data());
  const bool use_top_k = row.top_k > 0 && row.top_k < vocab;
  const bool use_top_p = row.top_p < 1.0f;
  const bool use_min_p = row.min_p > 0.0f;
  if (!use_top_k && !use_top_p && !use_min_p) return draw_from_all(s, vocab, total, uniform);

  const double min_p_bound =
      use_min_p ? max + std::log(static_cast<double>(row.min_p)) * row.temperature : -kInfinity;
  double bound = -kInfinity;
  if (use_top_k) {
    bound = kth_bound(s, row.top_k);
  } else {
    if (use_top_p) {
      // Tokens less likely than (1 - top_p) / vocab weigh less than 1 - top_p together, so
      // none of them is needed; half of that leaves room for rounding.
      const double least = (1.0 - row.top_p) * total / static_cast<double>(vocab) * 0.5;
      bound = max + std::log(least) * row.temperature;
    }
    bound = std::max(bound, min_p_bound);
  }
  // Rounded down: a candidate too many is harmless, one too few is not.
  gather(x, vocab, std::nextafter(static_cast<float>(bound), -kInfinity), s);

  s.order = s.candidates;
  std::size_t kept = s.order.size();
  double kept_mass = total;
  if (use_top_k) {
    const std::size_t k = static_cast<std::size_t>(row.top_k);
    if (k < kept) {
      std::nth_element(s.order.begin(), s.order.begin() + static_cast<std::ptrdiff_t>(k), s.order.end(),
                       before);
      kept = k;
    }
    kept_mass = mass(s.order.data(), s.order.data() + kept);
  }
  if (use_top_p) kept = nucleus_size(s.order.data(), kept, row.top_p * kept_mass);
  if (use_min_p) {
    const auto end = std::partition(
        s.order.begin(), s.order.begin() + static_cast<std::ptrdiff_t>(kept),
        [min_p_bound](const Candidate& c) { return static_cast<double>(c.logit) >= min_p_bound; });
    kept = std::max<std::size_t>(1, static_cast<std::size_t>(end - s.order.begin()));
  }
  const Candidate cut = *std::max_element(s.order.begin(),
                                          s.order.begin() + static_cast<std::ptrdiff_t>(kept), before);
  return draw_from_kept(s, cut, uniform);
}

// Log-probabilities of the logits as they are; `s` holds their scan. Returns log-sum-exp.
double top_logprobs_of(const aotlm_sample_row& row, const float* x, int64_t vocab, float max,
                       Scratch& s, int32_t* top_ids, float* top_logprobs) {
  const double total = exp_row(x, vocab, max, 1.0f, s.weights.data(), s.block_sums.data());
  const double log_total = max + std::log(total);
  const int64_t k = std::min<int64_t>(row.num_logprobs, vocab);
  if (k > 0) {
    gather(x, vocab, kth_bound(s, k), s);
    std::partial_sort(s.candidates.begin(), s.candidates.begin() + k, s.candidates.end(), before);
    for (int64_t i = 0; i < k; ++i) {
      const Candidate& c = s.candidates[static_cast<std::size_t>(i)];
      top_ids[i] = c.id;
      top_logprobs[i] = static_cast<float>(c.logit - log_total);
    }
  }
  return log_total;
}

aotlm_sample_result sample_row(const aotlm_sample_row& row, const float* raw, int64_t vocab,
                               Scratch& s, int32_t* top_ids, float* top_logprobs) {
  aotlm_sample_result result{-1, AOTLM_SAMPLE_OK, 0.0f};
  RowScan scan = scan_row(raw, vocab, s.block_max.data());
  if (scan.has_nan || scan.max == kInfinity) {
    result.status = AOTLM_SAMPLE_NOT_FINITE;
    return result;
  }
  if (scan.max == -kInfinity) {
    result.status = AOTLM_SAMPLE_NO_TOKEN;
    return result;
  }
  double log_total = 0.0;
  if (row.num_logprobs >= 0) {
    log_total = top_logprobs_of(row, raw, vocab, scan.max, s, top_ids, top_logprobs);
  }
  const float* x = raw;
  const bool penalized = has_penalty(row);
  if (penalized || row.num_bias > 0) {
    std::copy(raw, raw + vocab, s.logits.begin());
    if (penalized) apply_penalties(row, s.counts, vocab, s.logits.data());
    apply_bias(row, vocab, s.logits.data());
    x = s.logits.data();
    scan = scan_row(x, vocab, s.block_max.data());
    if (scan.has_nan || scan.max == kInfinity) {
      result.status = AOTLM_SAMPLE_NOT_FINITE;
      return result;
    }
    if (scan.max == -kInfinity) {
      result.status = AOTLM_SAMPLE_NO_TOKEN;
      return result;
    }
  }
  const bool greedy = row.temperature < kGreedyBelow || row.top_k == 1;
  result.token = greedy ? first_equal(x, s, scan.max) : draw(row, x, vocab, scan.max, s);
  if (row.num_logprobs >= 0) result.logprob = static_cast<float>(raw[result.token] - log_total);
  return result;
}

}  // namespace
}  // namespace aotlm

extern "C" {

int32_t aotlm_native_abi(void) { return AOTLM_NATIVE_ABI; }

double aotlm_uniform(uint64_t seed, uint64_t position) {
  return aotlm::philox_uniform(seed, position);
}

void aotlm_sample(const float* logits, int64_t batch, int64_t vocab, const aotlm_sample_row* rows,
                  aotlm_sample_result* results, int32_t* top_ids, float* top_logprobs,
                  int64_t top_stride) {
  static thread_local aotlm::Scratch scratch;
  for (int64_t b = 0; b < batch; ++b) {
    try {
      scratch.resize(vocab);
      results[b] = aotlm::sample_row(rows[b], logits + b * vocab, vocab, scratch,
                                     top_ids == nullptr ? nullptr : top_ids + b * top_stride,
                                     top_logprobs == nullptr ? nullptr : top_logprobs + b * top_stride);
    } catch (const std::bad_alloc&) {
      results[b] = aotlm_sample_result{-1, AOTLM_SAMPLE_NO_MEMORY, 0.0f};
    }
  }
}

}  // extern "C"
