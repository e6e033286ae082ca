// A runtime is opened without a lock, by the first caller, and never closed: at the process's end nothing must call
// a driver, and before it the last call is not known. So the library is never unloaded either.
#include "open.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "errors.h"

namespace kiln_aotriton {
namespace {

struct Process {
  kiln_t kiln;
  std::atomic<const Machine*> machine;  // NULL: not looked for yet
};

std::atomic<Process*> process;

// Puts `made` in the place of `expected`, or drops it where another thread was first.
template <typename T, typename Drop>
void publish(std::atomic<T*>& place, T* expected, T* made, Drop drop) {
  if (!place.compare_exchange_strong(expected, made, std::memory_order_acq_rel)) drop(made);
}

// Packages of PyTorch take the folder aotriton.images along, and not kiln.images, for which it stands. "" if there is
// no need to name it: packs beside the library are found anyway.
void find_packs(const char* library, char* folder, size_t size) {
  char path[PATH_MAX];
  folder[0] = 0;
  if (!realpath(library, path)) return;
  char* slash = strrchr(path, '/');
  snprintf(slash, sizeof path - static_cast<size_t>(slash - path), "/kiln.images");
  if (access(path, F_OK) == 0 || strchr(path, ':')) return;
  *slash = 0;
  int length = snprintf(folder, size, "%s/aotriton.images", path);
  if (length < 0 || static_cast<size_t>(length) >= size) folder[0] = 0;
}

kiln_status open_kiln(kiln_t* out) {
  kiln_options options = KILN_OPTIONS_INIT;
  char folder[PATH_MAX] = "";
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&open_kiln), &self) && self.dli_fname) {
    dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);  // never unloaded
    find_packs(self.dli_fname, folder, sizeof folder);
  }
  if (folder[0]) options.pack_path = folder;
  return kiln_open(&options, out);
}

void drop(Process* made) {
  kiln_close(made->kiln);
  free(made);
}

// Opens a runtime in the place of `old`, NULL at first. A runtime of the parent's is left as it is: another thread may
// be about to find out that it is the parent's.
kiln_status replace(Process* old) {
  Process* made = static_cast<Process*>(calloc(1, sizeof *made));
  if (!made) return KILN_E_OUT_OF_MEMORY;
  kiln_status status = open_kiln(&made->kiln);
  if (status == KILN_OK)
    publish(process, old, made, drop);
  else
    free(made);
  return status;
}

// "gfx90a" and "sm_90" as aotriton::Gpu: the name's digits are read as hexadecimal ones. 0 stands for what has no such
// name.
uint64_t gpu_of(int32_t vendor, const char* target) {
  bool amd = vendor == KILN_VENDOR_AMD;
  const char* digits = target + 3;  // behind "gfx", "sm_"
  if (strncmp(target, amd ? "gfx" : "sm_", 3) != 0) return 0;
  char* end;
  unsigned long architecture = strtoul(digits, &end, 16);
  if (end == digits || *end || architecture > 0xFFFF) return 0;
  return gpu_number(amd, architecture);
}

// Machines by vendor.
struct Machines {
  Machine* nvidia;
  Machine* amd;
};

int32_t note(const kiln_device* device, void* user) {
  Machines* machines = static_cast<Machines*>(user);
  Machine* machine = device->vendor == KILN_VENDOR_AMD ? machines->amd : machines->nvidia;
  if (device->ordinal < 0 || device->ordinal >= kMaxDevices) return 0;
  if (machine->driver.device_count <= device->ordinal) machine->driver.device_count = device->ordinal + 1;
  machine->devices[device->ordinal] = {device->multiprocessors, gpu_of(device->vendor, device->target)};
  return 0;
}

struct Asked {
  int32_t vendor, ordinal;
  Facts facts;
};

int32_t note_one(const kiln_device* device, void* user) {
  Asked* asked = static_cast<Asked*>(user);
  if (device->vendor != asked->vendor || device->ordinal != asked->ordinal) return 0;
  asked->facts = {device->multiprocessors, gpu_of(device->vendor, device->target)};
  return 1;
}

// Looks for devices, before a family is registered: their packs are not wanted yet.
kiln_status look(kiln_t kiln, Machine** out) {
  Machine* both = static_cast<Machine*>(calloc(2, sizeof *both));
  if (!both) return KILN_E_OUT_OF_MEMORY;
  Machines machines = {&both[0], &both[1]};
  kiln_status status = kiln_devices(kiln, note, &machines);
  int32_t vendor = machines.amd->driver.device_count ? KILN_VENDOR_AMD : KILN_VENDOR_NVIDIA;
  if (vendor == KILN_VENDOR_AMD) both[0] = both[1];
  if (!both[0].driver.device_count) {
    free(both);
    return status == KILN_OK ? KILN_E_NO_DEVICE : status;
  }
  both[0].driver.vendor = vendor;
  find_entries(&both[0].driver);
  *out = both;
  return KILN_OK;
}

// KILN_E_FORKED: the runtime is the parent's.
kiln_status make_ready(Process& from, Session* out) {
  out->kiln = from.kiln;
  if (!from.machine.load(std::memory_order_acquire)) {
    Machine* made;
    kiln_status status = look(from.kiln, &made);
    if (status != KILN_OK) return status;
    publish<const Machine>(from.machine, nullptr, made, [](const Machine* late) { free(const_cast<Machine*>(late)); });
  }
  out->machine = from.machine.load(std::memory_order_acquire);
  return kiln_register_family(from.kiln, kiln_flash_family());
}

}  // namespace

Facts ask(const Session& session, int32_t ordinal) {
  Asked asked = {session.machine->driver.vendor, ordinal, {}};
  kiln_devices(session.kiln, note_one, &asked);
  return asked.facts;
}

hipError_t enter(Session* out) {
  Process* useless = nullptr;  // known to be the parent's; at first, what stands there before anything was opened
  kiln_status status;
  do {
    Process* now = process.load(std::memory_order_acquire);
    if (now == useless) {
      if ((status = replace(useless)) != KILN_OK) break;
      now = process.load(std::memory_order_acquire);
    }
    status = make_ready(*now, out);
    useless = now;
  } while (status == KILN_E_FORKED);
  if (status == KILN_E_OUT_OF_MEMORY) return refuse(status, "aotriton: the host is out of memory");
  return status == KILN_E_NO_DEVICE ? hipErrorNoDevice : error_of(status);
}

}  // namespace kiln_aotriton
