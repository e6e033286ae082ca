// Runs each entry once on a stand-in for the driver, as backend.h has them: what it launched is compared outside.
//
//   program <driver> <vendor>    the stand-in's path; 1 for NVIDIA, 2 for AMD
//
// Prints a line for each call, its name and its hipError_t, which stands in the record as a mark before it. As a shared
// object it is the same by run_all (test_aotriton_together.py).
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "backend.h"

namespace {

using namespace backend;

constexpr std::intptr_t kStep = 0x100000;
constexpr int kBatch = 2, kHeads = 4, kHeadsKv = 2, kRows = 100, kKeys = 120, kWidth = 64, kWidthV = 56;

Tensor at(int number, std::vector<std::int64_t> sizes, aotriton::DType dtype = aotriton::kBFloat16) {
  return empty(kStep * number, std::move(sizes), dtype);
}

Layer dense() {
  Layer layer;
  layer.q = at(1, {kBatch, kRows, kHeads, kWidth});
  layer.k = at(2, {kBatch, kKeys, kHeadsKv, kWidth});
  layer.v = at(3, {kBatch, kKeys, kHeadsKv, kWidthV});
  layer.out = at(4, {kBatch, kRows, kHeads, kWidthV});
  layer.lse = at(5, {kBatch * kHeads, kRows}, aotriton::kFloat32);
  layer.mask = empty(0, {0, 0, 0, 0}, aotriton::kBFloat16);
  layer.philox.seed_tensor = at(40, {}, aotriton::kInt64);  // without dropout there is nothing in them
  layer.philox.offset_tensor = at(41, {}, aotriton::kInt64);
  return layer;
}

Layer packed() {
  Layer layer = dense();
  layer.q = at(1, {1, 250, kHeads, kWidth});
  layer.k = at(2, {1, 300, kHeadsKv, kWidth});
  layer.v = at(3, {1, 300, kHeadsKv, kWidthV});
  layer.out = at(4, {1, 250, kHeads, kWidthV});
  layer.lse = at(5, {3 * kHeads, kRows}, aotriton::kFloat32);
  layer.sequences = Sequences{at(50, {4}, aotriton::kInt32), at(51, {4}, aotriton::kInt32), kRows, kKeys};
  return layer;
}

Gradients gradients(const Layer& layer) {
  Gradients out;
  out.dout = at(20, layer.out.sizes);
  out.dq = at(21, layer.q.sizes);
  out.dk = at(22, layer.k.sizes);
  out.dv = at(23, layer.v.sizes);
  out.delta = at(30, layer.lse.sizes, aotriton::kFloat32);
  return out;
}

Layer captured(Layer layer) {
  layer.dropout = 0.25f;
  layer.philox.captured = true;
  layer.philox.seed = reinterpret_cast<const std::int64_t*>(kStep * 44);
  layer.philox.offset = reinterpret_cast<const std::int64_t*>(kStep * 45);
  layer.philox.offset_in_graph = 5;
  return layer;
}

template <typename F>
F find(void* library, const char* name) {
  void* address = dlsym(library, name);
  if (!address) std::abort();
  return reinterpret_cast<F>(address);
}

struct Run {
  void (*mark)(const char*);
  hipStream_t stream;
  bool failed = false;

  void report(const char* name, hipError_t error) {
    std::printf("%s\t%d\n", name, static_cast<int>(error));
    failed |= error != hipSuccess;
  }
};
#define RUN(name, call) (run.mark(name), run.report(name, call))

#ifdef HAS_FLAT
void run_flat(Run& run) {
  Tensor counter = at(60, {1}, aotriton::kInt32);
  Layer layer = dense();
  RUN("forward", forward_v2(layer, counter, run.stream));
  layer.causal = true;
  RUN("forward, causal", forward_v2(layer, counter, run.stream));
  RUN("backward, causal", backward_v2(layer, gradients(layer), false, run.stream));
  Layer graph = captured(dense());
  graph.mask = at(46, {kBatch, kHeads, kRows, kKeys});
  RUN("forward, captured", forward_v2(graph, counter, run.stream));
  RUN("backward, captured", backward_v2(graph, gradients(graph), true, run.stream));
  Layer biased = dense();
  biased.bias = at(9, {kBatch, kHeads, kRows, kKeys});
  Gradients to = gradients(biased);
  to.dbias = at(10, {kBatch, kHeads, kRows, kKeys});
  RUN("forward, bias", forward_v2(biased, counter, run.stream));
  RUN("backward, bias", backward_v2(biased, to, false, run.stream));
  Layer sequences = packed();
  sequences.causal = true;
  RUN("forward, packed", forward_v2(sequences, counter, run.stream));
  RUN("backward, packed", backward_v2(sequences, gradients(sequences), false, run.stream));
#ifndef AOTRITONS_OWN
  RUN("forward of 0.8", forward_of_0_8(dense(), run.stream));
  RUN("forward of 0.8, packed", forward_of_0_8(packed(), run.stream));
#endif
}
#endif

void run_structured(Run& run) {
  Tensor counter = at(60, {1}, aotriton::kInt32);
  Layer layer = dense();
  Lazy delta{at(30, layer.lse.sizes, aotriton::kFloat32)}, dq_acc{at(31, layer.q.sizes, aotriton::kFloat32)};
  RUN("v3 forward", forward_v3(layer, counter, run.stream));
  RUN("v3 backward", backward_v3(layer, gradients(layer), Name::attn_bwd, &delta, &dq_acc, run.stream));
  layer.causal = true;
  RUN("v3 forward, causal", forward_v3(layer, counter, run.stream));
  RUN("v3 backward, causal", backward_v3(layer, gradients(layer), Name::aiter_bwd, &delta, &dq_acc, run.stream));
  Layer window = dense();
  window.left = 8;
  RUN("v3 forward, window", forward_v3(window, counter, run.stream));
  RUN("v3 backward, window", backward_v3(window, gradients(window), Name::attn_bwd, &delta, &dq_acc, run.stream));
  Layer sequences = captured(packed());
  sequences.right = 3;
  Lazy long_delta{at(30, sequences.lse.sizes, aotriton::kFloat32)};
  RUN("v3 forward, packed", forward_v3(sequences, counter, run.stream));
  RUN("v3 backward, packed",
      backward_v3(sequences, gradients(sequences), Name::attn_bwd, &long_delta, &dq_acc, run.stream));
  Layer graph = captured(dense());
  graph.mask = at(46, {kBatch, kHeads, kRows, kKeys});
  RUN("mask", aotriton::v2::flash::debug_simulate_encoded_softmax(view(graph.mask), 0.25f, graph.philox.seed_view(),
                                                                  graph.philox.offset_view(), 5, run.stream));
  if (delta.made || long_delta.made || dq_acc.made) run.report("lazy tensors", hipErrorUnknown);
}

// What needs no device.
#ifndef AOTRITONS_OWN
static_assert(aotriton::cdiv<std::uint32_t>(7, 2) == 4);
#endif
static_assert(aotriton::CAT32(0x1002, 0x942) == 0x10020942);
static_assert(aotriton::GPU_AMD_ARCH_GFX90A_MOD0 == 0x1002090a0000);
static_assert(AOTRITON_VERSION_MAJOR == 0 && AOTRITON_VERSION_MINOR >= 11 && !AOTRITON_ENABLE_SUFFIX);
static_assert(std::is_same_v<aotriton::Stream, aotriton::StreamTemplate<hipStream_t>>);
static_assert(std::is_convertible_v<hipStream_t, aotriton::Stream>);
constexpr int kVersions[] = {aotriton::v3::flash::attn_fwd_params::kVersion,
                             aotriton::v3::flash::attn_bwd_params::kVersion};
static_assert(AOTRITON_VERSION_MINOR >= 14   ? kVersions[0] == 4 && kVersions[1] == 7
              : AOTRITON_VERSION_MINOR >= 12 ? kVersions[0] == 3 && kVersions[1] == 6
                                             : kVersions[0] == 1 && kVersions[1] == 3);

bool views_are_right() {
#if AOTRITON_VERSION_MINOR < 12
  static_assert(aotriton::v2::kSkipGPUCall == -2);
  aotriton::v2::flash::FwdExtraArguments forward;
  aotriton::v2::flash::BwdExtraArguments backward;
  aotriton::v2::flash::FusedBwdExtraArguments fused;
  (void)forward, (void)backward, (void)fused;
#endif
  TensorView<3> three(64, {2, 3, 4}, {12, 4, 1}, aotriton::kFloat16);
  TensorView<4> nothing, null = TensorView<4>::get_null_tensor(aotriton::kFloat16);
  TensorView<0> one(64, aotriton::kInt64);
  bool sizes = three.size(2) == 4 && three.stride(0) == 12 && three.sizes()[1] == 3 && three.strides()[1] == 4 &&
               three.size_ptr()[0] == 2 && three.stride_ptr()[2] == 1;
  bool kernel = *static_cast<void**>(three.kparam_data_ptr()) == three.data_ptr() &&
                *static_cast<std::uint64_t*>(three.kparam_stride(1)) == 4 &&
                *static_cast<void**>(one.kparam_data_ptr()) == one.data_ptr();
  bool none = three && one && !nothing && !null && null.dtype() == aotriton::kFloat16 && one.size(0) == 1 &&
              one.sizes().empty();
  int disposed = 0;
#if AOTRITON_VERSION_MINOR >= 12
  aotriton::LazyTensor<2> lazy;
  lazy.dispose = [](aotriton::LazyTensor<2>* self) { ++*static_cast<int*>(self->cookie); };
#else
  aotriton::LazyTensor<2> lazy;
  lazy.dispose = [](void* cookie) { ++*static_cast<int*>(cookie); };
#endif
  lazy.cookie = &disposed;
  lazy.free();
  lazy.free();
  return sizes && kernel && none && disposed == 1 && lazy && !aotriton::LazyTensor<4>{};
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int run_all(void* driver, int vendor) {
  if (!views_are_right()) return 2;
  auto make_stream = find<void* (*)(std::int32_t, int, int)>(driver, "fake_stream");
  Run run{find<void (*)(const char*)>(driver, "fake_mark"), static_cast<hipStream_t>(make_stream(vendor, 0, 1))};
  RUN("check_gpu", aotriton::v2::flash::check_gpu(run.stream));
  bool amd = vendor == 2;
  if (aotriton::getGpuFromStream(run.stream) !=
          (amd ? aotriton::GPU_AMD_ARCH_GFX942_MOD0 : static_cast<aotriton::Gpu>(0x10de00900000)) ||
      aotriton::getMultiProcessorCount(run.stream) != (amd ? 304 : 132) ||
      aotriton::isArchExperimentallySupported(run.stream))
    return 4;
#if AOTRITON_VERSION_MINOR >= 12 && !defined(COMMON_ALONE)
  if (aotriton::isArchTechPreview(run.stream)) return 5;
#endif
#ifdef HAS_FLAT
  run_flat(run);
#endif
  run_structured(run);
  run.mark("end");
  std::fflush(stdout);
  if (overwritten) std::fprintf(stderr, "%d bytes beside structures were overwritten\n", overwritten);
  return overwritten ? 6 : run.failed;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* driver = dlopen(argv[1], RTLD_NOW);
  return driver ? run_all(driver, std::atoi(argv[2])) : 3;
}
