// What compute-sanitizer's racecheck says of two programs without a race. In both, one half of a block writes a byte of
// shared memory, all of the block pass barrier 1, and the other half read it. In `part` the writers have passed
// barrier 0 before, alone, as the first partition of Triton's warp_specialize does for its own synchronization.
//   nvcc -arch=sm_90 barrier.cu -o barrier && compute-sanitizer --tool racecheck ./barrier whole|part
#include <cstdio>
#include <cstring>

enum { kHalf = 128 };

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

int main(int count, char** words) {
  int* out;
  cudaMalloc(&out, kHalf * sizeof *out);
  if (count == 2 && !strcmp(words[1], "part"))
    signal<true><<<4, 2 * kHalf>>>(out);
  else if (count == 2 && !strcmp(words[1], "whole"))
    signal<false><<<4, 2 * kHalf>>>(out);
  else
    return fprintf(stderr, "usage: barrier whole|part\n"), 2;
  const cudaError_t error = cudaDeviceSynchronize();
  printf("%s: %s\n", words[1], cudaGetErrorString(error));
  return error != cudaSuccess;
}
