// What compute-sanitizer's racecheck says of three programs without a race, and of one with. In `whole` and `part`, one
// half of a block writes a byte of shared memory, all of the block pass barrier 1, and the other half read it. In
// `part` the writers have passed barrier 0 before, alone, as the first partition of Triton's warp_specialize does for
// its own synchronization. In `phases`, one thread writes a number and arrives at an mbarrier, whose phase ends by
// that; the four warps of a consumer, and the two that transpose values for fp8, wait for the phase, read the number,
// meet with their like, and one of them arrives at another mbarrier, for whose phase the writer waits before it writes
// again. So do producers of the Hopper kernels tell others of tiles. The two warps also read what the other one wrote,
// and meet before and after. `race` is the same, but for these: they do not meet in between.
//   nvcc -arch=sm_90 barrier.cu -o barrier && compute-sanitizer --tool racecheck ./barrier whole|part|phases|race
#include <cstdint>
#include <cstdio>
#include <cstring>

enum { kHalf = 128, kPair = 64, kTiles = 6 };

template <bool kPart>
__global__ void signal(int* out) {
  __shared__ volatile unsigned char state;
  if (threadIdx.x < kHalf) {
    if (kPart) asm volatile("barrier.sync 0, 128;" ::: "memory");
    state = 4;
    asm volatile("barrier.sync 1;" ::: "memory");
  } else {
    asm volatile("barrier.sync 1;" ::: "memory");
    out[threadIdx.x - kHalf] = state;
  }
}

__device__ uint32_t address(const void* x) { return uint32_t(__cvta_generic_to_shared(x)); }

__device__ void arrive(const uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

__device__ void wait(const uint64_t* barrier, int phase) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra.uni again; }" ::
          "r"(address(barrier)),
      "r"(phase)
      : "memory");
}

template <bool kRace>
__global__ void phases(int* out) {
  __shared__ volatile int tile, words[kPair];
  __shared__ uint64_t full, empty;
  const int thread = threadIdx.x, of_pair = thread - kHalf;
  if (thread == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full)) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(address(&empty)) : "memory");
  }
  __syncthreads();
  int sum = 0;
  if (thread < kHalf) {
    for (int i = 0; i < kTiles; ++i) {
      wait(&full, i & 1);
      sum += tile;
      asm volatile("barrier.sync 2, 128;" ::: "memory");
      if (thread == 0) arrive(&empty);
    }
    out[thread] = sum;
  } else if (of_pair < kPair) {
    for (int i = 0; i < kTiles; ++i) {
      wait(&full, i & 1);
      words[of_pair] = tile;
      if (!kRace) asm volatile("barrier.sync 3, 64;" ::: "memory");
      sum += words[of_pair ^ 32];
      asm volatile("barrier.sync 3, 64;" ::: "memory");
      if (of_pair == 0) arrive(&empty);
    }
    out[thread] = sum;
  } else if (of_pair == kPair) {
    for (int i = 0; i < kTiles; ++i) {
      wait(&empty, (i & 1) ^ 1);
      tile = i;
      arrive(&full);
    }
  }
}

int main(int count, char** words) {
  int* out;
  cudaMalloc(&out, (kHalf + kPair) * sizeof *out);
  const char* word = count == 2 ? words[1] : "";
  if (!strcmp(word, "part"))
    signal<true><<<4, 2 * kHalf>>>(out);
  else if (!strcmp(word, "whole"))
    signal<false><<<4, 2 * kHalf>>>(out);
  else if (!strcmp(word, "phases"))
    phases<false><<<4, kHalf + kPair + 32>>>(out);
  else if (!strcmp(word, "race"))
    phases<true><<<4, kHalf + kPair + 32>>>(out);
  else
    return fprintf(stderr, "usage: barrier whole|part|phases|race\n"), 2;
  const cudaError_t error = cudaDeviceSynchronize();
  printf("%s: %s\n", word, cudaGetErrorString(error));
  return error != cudaSuccess;
}
