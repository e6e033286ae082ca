/* Attention forward from plain C: random tensors, the answer compared with a reference in double precision.
 *
 * Needs a release of Kiln and a GPU's driver, nothing else; the driver is found at run time.
 *   cc attention.c -I kiln/include -L kiln/lib -lkiln_flash -lkiln -ldl -lm -Wl,-rpath,kiln/lib -o attention
 *
 * Exit code 0: the answer is right. 1: it is not, or a call failed. 77: there is no GPU here that the release serves.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kiln/flash.h>

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, QUERIES = 300, KEYS = 300, WIDTH = 64, CAUSAL = 1 };
enum { NO_GPU = 77 };

/* ---- device memory, from the driver's own library ---------------------------------------------------------------- */

typedef struct gpu {
  int32_t vendor;
  void* library;
} gpu;

static void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void check(int status, const char* what) {
  char text[32];
  snprintf(text, sizeof text, "error %d", status);
  if (status) fail(what, text);
}

static void* entry(const gpu* gpu, const char* name) {
  void* address = dlsym(gpu->library, name);
  if (!address) fail(name, "the driver lacks it");
  return address;
}

/* Takes device 0 of a vendor: makes its context current on this thread. Returns 0 if there is none. */
static int take_nvidia(gpu* gpu) {
  gpu->vendor = KILN_VENDOR_NVIDIA;
  gpu->library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!gpu->library) return 0;
  void* context;
  if (((int (*)(unsigned))entry(gpu, "cuInit"))(0)) return 0;
  if (((int (*)(void**, int))entry(gpu, "cuDevicePrimaryCtxRetain"))(&context, 0)) return 0;
  return ((int (*)(void*))entry(gpu, "cuCtxSetCurrent"))(context) == 0;
}

static int take_amd(gpu* gpu) {
  gpu->vendor = KILN_VENDOR_AMD;
  gpu->library = dlopen("libamdhip64.so", RTLD_NOW);
  if (!gpu->library) gpu->library = dlopen("libamdhip64.so.6", RTLD_NOW);
  if (!gpu->library) return 0;
  return ((int (*)(int))entry(gpu, "hipSetDevice"))(0) == 0;
}

static void* allocate(const gpu* gpu, size_t bytes) {
  void* address = NULL;
  const char* name = gpu->vendor == KILN_VENDOR_NVIDIA ? "cuMemAlloc_v2" : "hipMalloc";
  check(((int (*)(void**, size_t))entry(gpu, name))(&address, bytes), name);
  return address;
}

static void copy_in(const gpu* gpu, void* device, const void* host, size_t bytes) {
  if (gpu->vendor == KILN_VENDOR_NVIDIA)
    check(((int (*)(void*, const void*, size_t))entry(gpu, "cuMemcpyHtoD_v2"))(device, host, bytes), "cuMemcpyHtoD");
  else
    check(((int (*)(void*, const void*, size_t, int))entry(gpu, "hipMemcpy"))(device, host, bytes, 1), "hipMemcpy");
}

/* Waits for the work on the null stream first. */
static void copy_out(const gpu* gpu, void* host, const void* device, size_t bytes) {
  if (gpu->vendor == KILN_VENDOR_NVIDIA)
    check(((int (*)(void*, const void*, size_t))entry(gpu, "cuMemcpyDtoH_v2"))(host, device, bytes), "cuMemcpyDtoH");
  else
    check(((int (*)(void*, const void*, size_t, int))entry(gpu, "hipMemcpy"))(host, device, bytes, 2), "hipMemcpy");
}

/* ---- bfloat16 and random numbers --------------------------------------------------------------------------------- */

static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double from_bf16(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Uniform in [-2, 2). */
static float next_random(void) {
  static uint64_t state = 42;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (float)(state >> 40) * (4.0f / 16777216.0f) - 2.0f;
}

/* ---- a contiguous tensor [BATCH, heads, rows, WIDTH] on the host and on the device ------------------------------- */

typedef struct array {
  uint16_t* host;
  size_t bytes;
  kiln_tensor view;
} array;

static array make_array(const gpu* gpu, int64_t heads, int64_t rows) {
  array a;
  size_t count = (size_t)(BATCH * heads * rows * WIDTH);
  a.bytes = count * sizeof *a.host;
  a.host = malloc(a.bytes);
  if (!a.host) fail("malloc", "no memory");
  for (size_t i = 0; i < count; ++i) a.host[i] = to_bf16(next_random());
  memset(&a.view, 0, sizeof a.view);
  a.view.data = allocate(gpu, a.bytes);
  a.view.dtype = KILN_BF16;
  a.view.rank = 4;
  int64_t sizes[] = {BATCH, heads, rows, WIDTH};
  int64_t strides[] = {heads * rows * WIDTH, rows * WIDTH, WIDTH, 1};
  memcpy(a.view.sizes, sizes, sizeof sizes);
  memcpy(a.view.strides, strides, sizeof strides);
  copy_in(gpu, a.view.data, a.host, a.bytes);
  return a;
}

static const uint16_t* row_of(const array* a, int batch, int head, int row) {
  return a->host + batch * a->view.strides[0] + head * a->view.strides[1] + row * a->view.strides[2];
}

/* One row of the answer; returns its log-sum-exp. */
static double reference_row(const array* q, const array* k, const array* v, int batch, int head, int row, double* out) {
  static double weights[KEYS];
  int head_kv = head / (HEADS / HEADS_KV), seen = CAUSAL && row + 1 < KEYS ? row + 1 : KEYS;
  const uint16_t* query = row_of(q, batch, head, row);
  double top = -INFINITY, sum = 0;
  for (int j = 0; j < seen; ++j) {
    const uint16_t* key = row_of(k, batch, head_kv, j);
    weights[j] = 0;
    for (int d = 0; d < WIDTH; ++d) weights[j] += from_bf16(query[d]) * from_bf16(key[d]);
    weights[j] /= sqrt((double)WIDTH);
    if (weights[j] > top) top = weights[j];
  }
  for (int d = 0; d < WIDTH; ++d) out[d] = 0;
  for (int j = 0; j < seen; ++j) {
    double weight = exp(weights[j] - top);
    sum += weight;
    for (int d = 0; d < WIDTH; ++d) out[d] += weight * from_bf16(row_of(v, batch, head_kv, j)[d]);
  }
  for (int d = 0; d < WIDTH; ++d) out[d] /= sum;
  return top + log(sum);
}

int main(void) {
  gpu gpu;
  if (!take_nvidia(&gpu) && !take_amd(&gpu)) {
    printf("no GPU: neither NVIDIA's driver nor AMD's HIP runtime has a device here\n");
    return NO_GPU;
  }

  array q = make_array(&gpu, HEADS, QUERIES), k = make_array(&gpu, HEADS_KV, KEYS),
        v = make_array(&gpu, HEADS_KV, KEYS);
  array out = make_array(&gpu, HEADS, QUERIES);
  static float lse_host[BATCH][HEADS][QUERIES];
  kiln_tensor lse;
  memset(&lse, 0, sizeof lse);
  lse.data = allocate(&gpu, sizeof lse_host);
  lse.dtype = KILN_FP32;
  lse.rank = 3;
  lse.sizes[0] = BATCH, lse.sizes[1] = HEADS, lse.sizes[2] = QUERIES;
  lse.strides[0] = HEADS * QUERIES, lse.strides[1] = QUERIES, lse.strides[2] = 1;

  kiln_t kiln;
  if (kiln_open(NULL, &kiln)) fail("kiln_open", kiln_error());
  kiln_queue queue = KILN_QUEUE_INIT(gpu.vendor, NULL);
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  params.q = &q.view;
  params.k = &k.view;
  params.v = &v.view;
  params.out = &out.view;
  params.lse = &lse;
  params.causal = CAUSAL;
  kiln_status status = kiln_attn_fwd(kiln, &queue, &params);
  if (status == KILN_E_NO_DEVICE) {
    printf("no GPU that this release serves: %s\n", kiln_error());
    return NO_GPU;
  }
  if (status) fail("kiln_attn_fwd", kiln_error());
  copy_out(&gpu, out.host, out.view.data, out.bytes);
  copy_out(&gpu, lse_host, lse.data, sizeof lse_host);
  if (kiln_close(kiln)) fail("kiln_close", kiln_error());

  double out_error = 0, lse_error = 0, expected[WIDTH];
  for (int batch = 0; batch < BATCH; ++batch)
    for (int head = 0; head < HEADS; ++head)
      for (int row = 0; row < QUERIES; ++row) {
        double expected_lse = reference_row(&q, &k, &v, batch, head, row, expected);
        lse_error = fmax(lse_error, fabs(lse_host[batch][head][row] - expected_lse));
        for (int d = 0; d < WIDTH; ++d) {
          double error = fabs(from_bf16(row_of(&out, batch, head, row)[d]) - expected[d]);
          out_error = error <= out_error ? out_error : error; /* NaN stays */
        }
      }
  /* Half a unit in the last place of a bfloat16 below 2 is 2^-8; the weights are rounded to bfloat16 too. */
  int right = out_error <= 0.01 && lse_error <= 1e-4;
  printf("kiln %s: attention of %d x %d x %d x %d: largest error of out %.2e, of log-sum-exp %.2e: %s\n",
         kiln_version(), BATCH, HEADS, QUERIES, WIDTH, out_error, lse_error, right ? "right" : "WRONG");
  return right ? 0 : 1;
}
