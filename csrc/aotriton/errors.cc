#include "errors.h"

#include "kiln/family.h"

namespace kiln_aotriton {
namespace {

constexpr struct {
  kiln_status status;
  hipError_t error;
} kErrors[] = {
    {KILN_OK, hipSuccess},
    {KILN_E_ARGUMENT, hipErrorInvalidValue},
    {KILN_E_UNSUPPORTED, hipErrorNotSupported},
    {KILN_E_NO_DEVICE, hipErrorNoBinaryForGpu},
    {KILN_E_DRIVER, hipErrorUnknown},
    {KILN_E_PACK_NOT_FOUND, hipErrorFileNotFound},
    {KILN_E_PACK_MISMATCH, hipErrorInvalidImage},
    {KILN_E_PACK_CORRUPT, hipErrorInvalidImage},
    {KILN_E_WORKSPACE, hipErrorInvalidValue},
    {KILN_E_NEWER_CALLER, hipErrorSharedObjectInitFailed},
    {KILN_E_FORKED, hipErrorNotInitialized},
    {KILN_E_OUT_OF_MEMORY, hipErrorOutOfMemory},
    {KILN_E_NOT_FOUND, hipErrorSharedObjectSymbolNotFound},
    {KILN_E_QUEUE, hipErrorInvalidHandle},
    {KILN_E_RANGE, hipErrorInvalidValue},
    {KILN_E_RESOURCES, hipErrorLaunchOutOfResources},
    {KILN_E_FAMILY, hipErrorSharedObjectInitFailed},
};

}  // namespace

hipError_t error_of(kiln_status status) {
  for (const auto& known : kErrors)
    if (known.status == status) return known.error;
  return hipErrorUnknown;
}

hipError_t refuse(kiln_status status, const char* sentence) { return error_of(kiln_set_error(status, sentence)); }

}  // namespace kiln_aotriton
