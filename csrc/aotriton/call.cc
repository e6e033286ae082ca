#include "call.h"

#include "kiln/family.h"

namespace kiln_aotriton {

hipError_t refuse_version() {
  kiln_set_error(KILN_E_NEWER_CALLER, "aotriton: params_version is not one that this library reads");
  return hipErrorInvalidSymbol;
}

hipError_t check_options(const attn_options* options) {
  if (options && options->force_backend_index > 0)
    return refuse(KILN_E_UNSUPPORTED,
                  "aotriton: force_backend_index must be 0, or below for any; there is one backend");
  return hipSuccess;
}

hipError_t split_heads(const Layout& layout, int64_t rows, kiln_tensor* lse) {
  const int64_t lines = lse->sizes[0], length = lse->sizes[1], line = lse->strides[0], step = lse->strides[1];
  int64_t wanted;
  bool by_sequence = !__builtin_mul_overflow(layout.batch, layout.heads, &wanted) && lines == wanted;
  if (!by_sequence && !(layout.packed && lines == layout.heads))
    return refuse(
        KILN_E_ARGUMENT,
        "aotriton: the log-sum-exp must have a row for each head of each batch, or of each sequence; of compact "
        "sequences it may have one for each head, with all their rows");
  if (!layout.packed && length < rows)
    return refuse(KILN_E_ARGUMENT, "aotriton: the log-sum-exp has fewer columns than Q, or Max_seqlen_q, has rows");
  lse->rank = 3;
  lse->sizes[0] = by_sequence ? layout.batch : 1;
  lse->sizes[1] = layout.heads;
  lse->sizes[2] = layout.packed ? length : rows;
  lse->strides[0] = static_cast<int64_t>(static_cast<uint64_t>(layout.heads) * static_cast<uint64_t>(line));
  lse->strides[1] = line;
  lse->strides[2] = step;
  return hipSuccess;
}

hipError_t mask_of(int8_t causal_type, int32_t left, int32_t right, const Lengths& lengths, Window* out) {
  *out = {-1, -1, 0};
  if (causal_type == CausalType::None) return hipSuccess;
  if (causal_type != CausalType::WindowedAttention)
    return refuse(KILN_E_UNSUPPORTED, "aotriton: causal_type must be None or WindowedAttention");
  if (find_window(left, right, lengths, out)) return hipSuccess;
  return refuse(
      KILN_E_UNSUPPORTED,
      "aotriton: no kernel takes this window_left and window_right: counted from the first row and key, or from "
      "the last where all sequences have the same lengths, both must be 0 or more");
}

}  // namespace kiln_aotriton
