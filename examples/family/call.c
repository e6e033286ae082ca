/* An operation of one's own family, called by its name from plain C: norm.rms_norm of this folder's recipe.
 *
 * Needs a release that was built with KILN_RECIPES=examples/family/recipe.yaml, and a GPU's driver, nothing else.
 *   cc call.c -I kiln/include -L kiln/lib -lkiln_norm -lkiln -ldl -lm -Wl,-rpath,kiln/lib -o call
 *
 * Exit code 0: the answer is right. 1: it is not, or a call failed. 77: there is no GPU here that the release serves.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kiln/norm.h>

enum { ROWS = 5, COLUMNS = 1000, NO_GPU = 77 };
static const double EPS = 1e-6;

static void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

/* ---- device memory, from the driver's own library ---------------------------------------------------------------- */

static void* driver; /* NULL: no GPU; host memory then stands in, which nothing will touch */
static int32_t vendor = KILN_VENDOR_NVIDIA;

static void* entry(const char* nvidia, const char* amd) {
  const char* name = vendor == KILN_VENDOR_NVIDIA ? nvidia : amd;
  void* address = dlsym(driver, name);
  if (!address) fail(name, "the driver lacks it");
  return address;
}

/* Takes device 0 of a vendor: makes its context current on this thread. */
static void take_gpu(void) {
  void* context;
  if ((driver = dlopen("libcuda.so.1", RTLD_NOW))) {
    if (((int (*)(unsigned))entry("cuInit", ""))(0) == 0 &&
        ((int (*)(void**, int))entry("cuDevicePrimaryCtxRetain", ""))(&context, 0) == 0 &&
        ((int (*)(void*))entry("cuCtxSetCurrent", ""))(context) == 0)
      return;
  }
  if ((driver = dlopen("libamdhip64.so", RTLD_NOW)) || (driver = dlopen("libamdhip64.so.6", RTLD_NOW))) {
    vendor = KILN_VENDOR_AMD;
    if (((int (*)(int))entry("", "hipSetDevice"))(0) == 0) return;
  }
  vendor = KILN_VENDOR_NVIDIA;
  driver = NULL;
}

static void* allocate(size_t bytes) {
  void* address = NULL;
  if (!driver) return malloc(bytes);
  if (((int (*)(void**, size_t))entry("cuMemAlloc_v2", "hipMalloc"))(&address, bytes)) fail("the driver", "no memory");
  return address;
}

static void copy(void* to, const void* from, size_t bytes, int is_to_device) {
  int status = 0;
  if (!driver)
    memcpy(to, from, bytes);
  else if (vendor == KILN_VENDOR_NVIDIA)
    status = ((int (*)(void*, const void*, size_t))entry(is_to_device ? "cuMemcpyHtoD_v2" : "cuMemcpyDtoH_v2", ""))(
        to, from, bytes);
  else
    status = ((int (*)(void*, const void*, size_t, int))entry("", "hipMemcpy"))(to, from, bytes, is_to_device ? 1 : 2);
  if (status) fail("the driver", "a copy failed");
}

/* ---- a contiguous tensor of bfloat16 ----------------------------------------------------------------------------- */

static double from_bf16(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Numbers between -2 and 2, `rows` times `columns` of them; rows 0: a vector. */
static kiln_tensor make_tensor(uint16_t* host, int64_t rows, int64_t columns) {
  kiln_tensor tensor;
  int64_t count = (rows ? rows : 1) * columns, i;
  static uint32_t state = 42;
  for (i = 0; i < count; ++i) {
    float value = (float)((state = state * 1664525u + 1013904223u) >> 8) * (4.0f / 16777216.0f) - 2.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    host[i] = (uint16_t)(bits >> 16);
  }
  memset(&tensor, 0, sizeof tensor);
  tensor.data = allocate((size_t)count * sizeof *host);
  tensor.dtype = KILN_BF16;
  tensor.rank = rows ? 2 : 1;
  tensor.sizes[0] = rows ? rows : columns;
  tensor.sizes[1] = rows ? columns : 0;
  tensor.strides[0] = rows ? columns : 1;
  tensor.strides[1] = rows ? 1 : 0;
  copy(tensor.data, host, (size_t)count * sizeof *host, 1);
  return tensor;
}

int main(void) {
  static uint16_t x_host[ROWS * COLUMNS], w_host[COLUMNS], out_host[ROWS * COLUMNS];
  take_gpu();
  kiln_tensor x = make_tensor(x_host, ROWS, COLUMNS), w = make_tensor(w_host, 0, COLUMNS);
  kiln_tensor out = make_tensor(out_host, ROWS, COLUMNS);

  kiln_t kiln;
  if (kiln_open(NULL, &kiln)) fail("kiln_open", kiln_error());
  if (kiln_register_family(kiln, kiln_norm_family())) fail("kiln_register_family", kiln_error());
  kiln_operation operation;
  if (kiln_find_operation(kiln, "norm.rms_norm", &operation)) fail("kiln_find_operation", kiln_error());

  /* In the order of kiln/norm.h: x, w, out, total, eps. The total is not wanted here. */
  kiln_argument arguments[5];
  memset(arguments, 0, sizeof arguments);
  arguments[0].kind = arguments[1].kind = arguments[2].kind = KILN_ARG_TENSOR;
  arguments[0].value.tensor = &x;
  arguments[1].value.tensor = &w;
  arguments[2].value.tensor = &out;
  arguments[3].kind = KILN_ARG_ABSENT;
  arguments[4].kind = KILN_ARG_FLOAT;
  arguments[4].value.real = EPS;

  kiln_queue queue = KILN_QUEUE_INIT(vendor, NULL);
  kiln_call call = KILN_CALL_INIT;
  call.operation = operation;
  call.queue = &queue;
  call.arguments = arguments;
  call.argument_count = 5;
  kiln_status status = kiln_workspace_size(&call, &call.workspace_bytes);
  if (status == KILN_OK) {
    call.workspace = allocate(call.workspace_bytes);
    status = kiln_launch(&call);
  }
  if (status == KILN_E_NO_DEVICE) {
    printf("no GPU that this release serves: %s\n", kiln_error());
    return NO_GPU;
  }
  if (status) fail("norm.rms_norm", kiln_error());
  copy(out_host, out.data, sizeof out_host, 0);
  if (kiln_close(kiln)) fail("kiln_close", kiln_error());

  double largest = 0;
  for (int row = 0; row < ROWS; ++row) {
    double squares = 0;
    for (int i = 0; i < COLUMNS; ++i) squares += pow(from_bf16(x_host[row * COLUMNS + i]), 2);
    for (int i = 0; i < COLUMNS; ++i) {
      double expected = from_bf16(x_host[row * COLUMNS + i]) / sqrt(squares / COLUMNS + EPS) * from_bf16(w_host[i]);
      double error = fabs(from_bf16(out_host[row * COLUMNS + i]) - expected);
      largest = error <= largest ? largest : error; /* NaN stays */
    }
  }
  /* Half a unit in the last place of a bfloat16 below 4 is 2^-7. */
  printf("kiln %s: norm.rms_norm of %d x %d: largest error %.2e: %s\n", kiln_version(), ROWS, COLUMNS, largest,
         largest <= 0.01 ? "right" : "WRONG");
  return largest <= 0.01 ? 0 : 1;
}
