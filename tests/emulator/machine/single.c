/* Instructions by themselves, for the tests of each: from a wave's state that the caller gives to what it becomes. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"
#include "operands.h"

/* What the caller gives and gets back. */
struct emu_state {
  uint32_t* vgpr; /* EMU_VGPRS rows of EMU_LANES */
  uint32_t* sgpr; /* EMU_SGPRS, EXEC with them */
  uint8_t* lds;
  uint8_t* scratch;  /* of each lane, the program's bytes */
  uint32_t lds_size; /* bytes */
  uint32_t scc, mode;
};

/* Executes the launch's program once from its first record to its last, in one wave and without hazards. 0, or what
   faulted, as emu_run. */
EMU_EXPORT uint32_t emu_run_records(const struct emu_launch* launch, struct emu_state* state,
                                    struct emu_report* report) {
  const struct emu_program* program = launch->program;
  struct emu_machine machine = {.launch = launch, .program = program, .report = report};
  memset(report, 0, sizeof *report);
  struct emu_wave* wave = 0;
  if (posix_memalign((void**)&wave, 64, sizeof *wave)) return report->fault.check = EMU_PROGRAM;
  memset(wave, 0, sizeof *wave);
  machine.full = program->wave_size == 64 ? ~0ull : 0xffffffffull;
  machine.waves = 1;
  machine.wave = wave;
  machine.lds = state->lds;
  machine.lds_size = state->lds_size;
  machine.regions = (struct emu_region*)launch->regions;
  machine.region_count = launch->region_count;
  machine.control = UINT32_MAX;
  wave->machine = &machine;
  wave->scratch = state->scratch;
  wave->scc = state->scc;
  wave->mode = state->mode;
  memcpy(wave->vgpr, state->vgpr, sizeof wave->vgpr);
  memcpy(wave->sgpr, state->sgpr, sizeof wave->sgpr);
  if (emu_hazards_create(&machine)) {
    emu_hazards_reset(&machine);
    for (uint32_t k = 0; k < program->count && !report->fault.check; k++) {
      const struct emu_instruction* in = &program->instructions[k];
      wave->current = k;
      if (in->op)
        in->op->run(wave, in);
      else
        emu_fault(wave, EMU_UNKNOWN, -1, 0, "an instruction that the executor does not know");
    }
  }
  emu_float_default(wave);
  memcpy(state->vgpr, wave->vgpr, sizeof wave->vgpr);
  memcpy(state->sgpr, wave->sgpr, sizeof wave->sgpr);
  state->scc = wave->scc;
  state->mode = wave->mode;
  emu_hazards_destroy(&machine);
  free(wave);
  return report->fault.check;
}
