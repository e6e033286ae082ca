// A C++ consumer of the installed headers and libraries, on the fake driver: prints what it saw.
#include <kiln/kiln.hpp>

#include <iostream>

#include "fake_driver.h"

struct kiln_family;
extern "C" const kiln_family* kiln_toy_family(void);

int main() {
  fake_reset();
  kiln_options options = KILN_OPTIONS_INIT;
  options.resolve = fake_resolve;
  kiln::Runtime runtime(options);
  runtime.register_family(kiln_toy_family());
  kiln::Runtime moved(std::move(runtime));
  kiln::Operation mix = moved.operation("toy.mix");
  kiln_queue queue = kiln::cuda_queue(fake_stream(FAKE_NVIDIA, 0, 0));
  void* memory = reinterpret_cast<void*>(0x10000);
  kiln::Tensor x(memory, KILN_FP16, {300, 64}), y(memory, KILN_FP16, {300, 64}, {64, 1});
  kiln::CallOptions call;
  call.workspace_bytes = mix.workspace_size(queue, {x, y, nullptr, 1, 1, false, 0.5f});
  call.workspace = reinterpret_cast<void*>(0x20000);
  mix.prepare(queue, {x, y, nullptr, 1, 1, false, 0.5});
  mix.launch(queue, {x, y, nullptr, 1, 1, false, 0.5}, call);
  std::string sentence;
  try {
    mix.launch(queue, {x, y, nullptr, 1, 1, 7, 0.5}, call);
  } catch (const kiln::Error& error) {
    sentence = std::string(error.name()) + " " + error.what();
  }
  fake_fail("hipInit", 1, 999, 0);
  std::string problem;
  if (moved.devices(&problem).size() != 5 || problem.find("hipInit") == std::string::npos) return 2;
  fake_fail("hipInit", 1, 999, 0);
  try {
    moved.devices();
    return 3;
  } catch (const kiln::Error& error) {
    if (error.status() != KILN_E_DRIVER) return 4;
  }
  if (moved.devices(&problem).size() != 10 || !problem.empty()) return 5;
  std::cout << kiln_version() << ' ' << moved.devices().size() << ' ' << moved.variants("", "sm_90").size() << ' '
            << mix.explain(queue, {x, y, nullptr, 1, 1, false, 0.5}).at(0).specialization << ' ' << fake_launches()
            << ' ' << sentence << '\n';
  return fake_loaded() == 2 ? 0 : 1;
}
