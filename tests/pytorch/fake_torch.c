/* Stands for libtorch_cpu.so and libtorch_cuda.so: the functions of bindings/torch/shim.h over tensors that are plain
 * structures, so that the boxed kernels of libkiln_torch.so run without PyTorch and without a GPU. Tensors say that
 * they are on a device; what they hold is never read. Everything counts, and everything can fail. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  int32_t is_defined, layout, device_type, device, dtype;
  int32_t zeroed;
  int64_t dim, sizes[8], strides[8];
  void* data;
  int64_t storage; /* bytes of what the fake allocator gave, 0 where the test made it */
} Tensor;

typedef struct {
  size_t size;
  uint64_t items[64];
} List;

typedef void (*Kernel)(uint64_t*, uint64_t, uint64_t);

static struct {
  char name[64], key[32];
  Kernel kernel;
  uint64_t version;
} kernels[64];
static int kernel_count, tensor_count, guard_count, guards_made, guarded = -1;
static char schemas[64][1024];
static int schema_count;
static int32_t current_device;
static char fail_name[64];
static int fail_left;

static int fails(const char* name) { return strcmp(name, fail_name) == 0 && --fail_left == 0; }
#define MAY_FAIL \
  if (fails(__func__)) return 1

/* ---- for the test ---- */
void fake_fail(const char* name, int nth) { snprintf(fail_name, sizeof fail_name, "%s", name), fail_left = nth; }
void* fake_kernel(const char* name, const char* key) {
  for (int i = 0; i < kernel_count; ++i)
    if (!strcmp(kernels[i].name, name) && !strcmp(kernels[i].key, key)) return (void*)kernels[i].kernel;
  return NULL;
}
uint64_t fake_version(int i) { return kernels[i].version; }
const char* fake_schema(int i) { return i < schema_count ? schemas[i] : NULL; }
int fake_tensors(void) { return tensor_count; }
int fake_guards(void) { return guard_count; }
int fake_guards_made(void) { return guards_made; }
int fake_guarded(void) { return guarded; }
void fake_set_device(int32_t device) { current_device = device, guarded = -1, guards_made = 0; }
Tensor* fake_tensor(const Tensor* model) {
  Tensor* tensor = malloc(sizeof *tensor);
  *tensor = *model;
  ++tensor_count;
  return tensor;
}
List* fake_list(const uint64_t* items, size_t size) {
  List* list = calloc(1, sizeof *list);
  list->size = size;
  if (size) memcpy(list->items, items, size * sizeof *items);
  ++tensor_count; /* counted with them: what is left over is a leak */
  return list;
}

/* ---- registration: a library is its key ---- */
int32_t aoti_torch_library_init_def(const char* ns, const char* file, uint32_t line, void** out) {
  MAY_FAIL;
  (void)ns, (void)file, (void)line;
  *out = "DEF";
  return 0;
}
int32_t aoti_torch_library_init_impl(const char* ns, const char* key, const char* file, uint32_t line, void** out) {
  MAY_FAIL;
  (void)ns, (void)file, (void)line;
  *out = (void*)key;
  return 0;
}
int32_t aoti_torch_library_def(void* library, const char* schema) {
  (void)library;
  snprintf(schemas[schema_count++], sizeof schemas[0], "%s", schema);
  return 0;
}
int32_t torch_library_impl(void* library, const char* name, Kernel kernel, uint64_t version) {
  snprintf(kernels[kernel_count].name, sizeof kernels[0].name, "%s", name);
  snprintf(kernels[kernel_count].key, sizeof kernels[0].key, "%s", (const char*)library);
  kernels[kernel_count].version = version;
  kernels[kernel_count++].kernel = kernel;
  return 0;
}

int32_t torch_call_dispatcher(const char* name, const char* overload, uint64_t* stack, uint64_t version) {
  if (strncmp(name, "kiln_native::", 13) || *overload || !version || fails(__func__)) return 1;
  Kernel kernel = (Kernel)fake_kernel(name + 13, "CompositeExplicitAutograd");
  return kernel ? kernel(stack, 0, 1), 0 : 1;
}

/* ---- lists ---- */
int32_t torch_list_size(List* list, size_t* size) { return *size = list->size, 0; }
int32_t torch_list_get_item(List* list, size_t index, uint64_t* item) { return *item = list->items[index], 0; }
int32_t torch_delete_list(List* list) {
  --tensor_count;
  free(list);
  return 0;
}

/* ---- tensors ---- */
#define GET(function, type, field)              \
  int32_t function(Tensor* tensor, type* out) { \
    MAY_FAIL;                                   \
    *out = (type)tensor->field;                 \
    return 0;                                   \
  }
GET(aoti_torch_get_dim, int64_t, dim)
GET(aoti_torch_get_sizes, int64_t*, sizes)
GET(aoti_torch_get_strides, int64_t*, strides)
GET(aoti_torch_get_dtype, int32_t, dtype)
GET(aoti_torch_get_layout, int32_t, layout)
GET(aoti_torch_get_device_type, int32_t, device_type)
GET(aoti_torch_get_device_index, int32_t, device)
GET(torch_get_const_data_ptr, void*, data)
GET(torch_get_mutable_data_ptr, void*, data)

int32_t aoti_torch_zero_(Tensor* tensor) {
  MAY_FAIL;
  tensor->zeroed = 1;
  return 0;
}
int32_t aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                 int32_t device_type, int32_t device, Tensor** out) {
  static uintptr_t next = 0x7000000010; /* not aligned by 256, as an allocator that was plugged in need not */
  MAY_FAIL;
  Tensor tensor = {1, 70, device_type, device, dtype, 0, dim, {0}, {0}, (void*)next, 1};
  for (int64_t i = 0; i < dim; ++i) {
    tensor.sizes[i] = sizes[i], tensor.strides[i] = strides[i];
    tensor.storage *= sizes[i];
  }
  next += 0x100000;
  *out = fake_tensor(&tensor);
  return 0;
}
int32_t aoti_torch_new_uninitialized_tensor(Tensor** out) {
  Tensor tensor = {0};
  *out = fake_tensor(&tensor);
  return 0;
}
int32_t aoti_torch_delete_tensor_object(Tensor* tensor) {
  --tensor_count;
  memset(tensor, 0xEE, sizeof *tensor);
  free(tensor);
  return 0;
}

/* ---- devices ---- */
int32_t aoti_torch_get_current_device_index(int32_t* index) {
  MAY_FAIL;
  *index = current_device;
  return 0;
}
int32_t aoti_torch_create_device_guard(int32_t index, void** out) {
  MAY_FAIL;
  ++guard_count, ++guards_made;
  guarded = index;
  *out = &guard_count;
  return 0;
}
int32_t aoti_torch_delete_device_guard(void* guard) {
  (void)guard;
  --guard_count;
  return 0;
}
int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
  MAY_FAIL;
  *stream = (void*)(uintptr_t)(0x5000 + device);
  return 0;
}

/* Numbers of our own: nothing may rely on PyTorch's. */
int32_t aoti_torch_layout_strided(void) { return 70; }
int32_t aoti_torch_device_type_cpu(void) { return 40; }
int32_t aoti_torch_device_type_cuda(void) { return 41; }
int32_t aoti_torch_dtype_bool(void) { return 100; }
int32_t aoti_torch_dtype_uint8(void) { return 101; }
int32_t aoti_torch_dtype_int8(void) { return 102; }
int32_t aoti_torch_dtype_int16(void) { return 103; }
int32_t aoti_torch_dtype_int32(void) { return 104; }
int32_t aoti_torch_dtype_int64(void) { return 105; }
int32_t aoti_torch_dtype_float16(void) { return 106; }
int32_t aoti_torch_dtype_bfloat16(void) { return 107; }
int32_t aoti_torch_dtype_float32(void) { return 108; }
int32_t aoti_torch_dtype_float64(void) { return 109; }
int32_t aoti_torch_dtype_float8_e4m3fn(void) { return 110; }
int32_t aoti_torch_dtype_float8_e5m2(void) { return 111; }
int32_t aoti_torch_dtype_uint16(void) { return 112; }
int32_t aoti_torch_dtype_uint32(void) { return 113; }
int32_t aoti_torch_dtype_uint64(void) { return 114; }
