// The C ABI of libaotlm_native, loaded with ctypes by aotlm/native/__init__.py.
//
// Plain structs and pointers only: no exception and no C++ type crosses this border.
// Whoever changes a struct or a signature raises AOTLM_NATIVE_ABI here and in the loader.

#ifndef AOTLM_NATIVE_H_
#define AOTLM_NATIVE_H_

#include <stdint.h>

#if defined(_WIN32)
#define AOTLM_API __declspec(dllexport)
#else
#define AOTLM_API __attribute__((visibility("default")))
#endif

#define AOTLM_NATIVE_ABI 1

extern "C" {

// How the next token of one sequence is chosen.
struct aotlm_sample_row {
  uint64_t seed;               // of the request
  uint64_t position;           // index of the new token among the completion's tokens
  const int32_t* tokens;       // [num_tokens] prompt, then completion; for the penalties
  const int32_t* bias_ids;     // [num_bias] each in [0, vocab)
  const float* bias_values;    // [num_bias] added to the logits; -inf forbids a token
  int32_t num_tokens;
  int32_t num_prompt_tokens;   // presence and frequency count only what follows the prompt
  int32_t num_bias;
  int32_t top_k;               // 0: off
  int32_t num_logprobs;        // -1: no logprobs at all; k: also the k most likely tokens
  float temperature;           // 0: greedy
  float top_p;                 // 1: off
  float min_p;                 // 0: off
  float repetition_penalty;    // 1: off
  float presence_penalty;      // 0: off
  float frequency_penalty;     // 0: off
};

enum aotlm_sample_status {
  AOTLM_SAMPLE_OK = 0,
  AOTLM_SAMPLE_NOT_FINITE = 1,  // a logit is NaN or +inf
  AOTLM_SAMPLE_NO_TOKEN = 2,    // every token is forbidden
  AOTLM_SAMPLE_NO_MEMORY = 3,
};

struct aotlm_sample_result {
  int32_t token;    // -1 unless status is OK
  int32_t status;   // aotlm_sample_status
  float logprob;    // natural log, of the unmodified logits; 0 when num_logprobs is -1
};

AOTLM_API int32_t aotlm_native_abi(void);

// Uniform in [0, 1) that depends on its arguments only (Philox 4x32-10).
AOTLM_API double aotlm_uniform(uint64_t seed, uint64_t position);

// Samples every row of logits [batch, vocab]; rows do not influence each other.
// top_ids and top_logprobs are [batch, top_stride] and may be null when no row asks for
// the most likely tokens; a row fills its first min(num_logprobs, vocab) places.
AOTLM_API void aotlm_sample(const float* logits, int64_t batch, int64_t vocab,
                            const aotlm_sample_row* rows, aotlm_sample_result* results,
                            int32_t* top_ids, float* top_logprobs, int64_t top_stride);

}  // extern "C"

#endif  // AOTLM_NATIVE_H_
