/* Program flow: SOPP, and what changes where a wave goes on. */
#include "operands.h"

static void go(struct emu_wave* wave, const struct emu_instruction* in, bool taken) {
  if (!taken) return;
  if (in->target < 0)
    emu_fault(wave, EMU_PROGRAM, -1, 0, "a branch leaves the program");
  else
    wave->next = (uint32_t)in->target;
}

#define BRANCH(name, condition) \
  static void name(struct emu_wave* wave, const struct emu_instruction* in) { go(wave, in, condition); }
BRANCH(branch, true)
BRANCH(if_scc0, !wave->scc)
BRANCH(if_scc1, wave->scc)
BRANCH(if_vccz, !(emu_pair(wave, EMU_VCC) & wave->machine->full))
BRANCH(if_vccnz, emu_pair(wave, EMU_VCC) & wave->machine->full)
BRANCH(if_execz, !emu_exec(wave))
BRANCH(if_execnz, emu_exec(wave))

/* Far branches: the address behind an instruction, of the kernel's first one, and a jump to one. */
static void address_behind(struct emu_wave* wave, const struct emu_instruction* in) {
  emu_write_scalar(wave, &in->operand[0], in->pc + in->size);
}
static void jump(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct emu_program* program = wave->machine->program;
  uint64_t wanted = emu_scalar(wave, &in->operand[0]);
  uint32_t low = 0, high = program->count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (program->instructions[middle].pc < wanted)
      low = middle + 1;
    else
      high = middle;
  }
  if (low < program->count && program->instructions[low].pc == wanted)
    wave->next = low;
  else
    emu_fault(wave, EMU_PROGRAM, -1, wanted, "a jump leads to where no instruction is");
}

static void end(struct emu_wave* wave, const struct emu_instruction* in) {
  (void)in;
  wave->done = true;
}
static void nothing(struct emu_wave* wave, const struct emu_instruction* in) { (void)wave, (void)in; }
static void outside(struct emu_wave* wave, const struct emu_instruction* in) {
  (void)in;
  emu_fault(wave, EMU_PROGRAM, -1, 0, "execution ran past the end of the program");
}

static void signal(struct emu_wave* wave, const struct emu_instruction* in) {
  (void)in;
  if (wave->signalled) {
    emu_fault(wave, EMU_BARRIER, -1, 0, "a wave signals a barrier twice before the others have reached it");
    return;
  }
  wave->signalled = true;
  wave->awaited = wave->machine->barriers + 1;
  emu_hazards_signal(wave);
}
static void wait(struct emu_wave* wave, const struct emu_instruction* in) {
  (void)in;
  wave->waits = true;
}
static void barrier(struct emu_wave* wave, const struct emu_instruction* in) {
  signal(wave, in);
  wait(wave, in);
}

#define FLOW(name, run, flags) {name, "", run, 0, flags, EMU_BRANCH, 0, 0}
#define OTHER(name) {name, "", nothing, 0, 0, EMU_OTHER, 0, 0}
#define STALL(name, flags) {name, "", nothing, 0, flags, EMU_OTHER, 0, 0}

const struct emu_op emu_branch_ops[] = {
    FLOW("s_branch", branch, 0),
    FLOW("s_cbranch_scc0", if_scc0, EMU_READS_SCC),
    FLOW("s_cbranch_scc1", if_scc1, EMU_READS_SCC),
    FLOW("s_cbranch_vccz", if_vccz, EMU_READS_VCC),
    FLOW("s_cbranch_vccnz", if_vccnz, EMU_READS_VCC),
    FLOW("s_cbranch_execz", if_execz, 0),
    FLOW("s_cbranch_execnz", if_execnz, 0),
    FLOW("s_getpc_b64", address_behind, 0),
    FLOW("s_setpc_b64", jump, EMU_NO_RESULT),
    FLOW("s_endpgm", end, 0),
    FLOW("s_code_end", outside, 0),
    FLOW("s_barrier", barrier, 0),
    FLOW("s_barrier_signal", signal, 0),
    FLOW("s_barrier_wait", wait, 0),
    /* The waits are the hazards' (in->wait); the others only change how fast a program runs. */
    OTHER("s_waitcnt"),
    OTHER("s_waitcnt_vscnt"),
    OTHER("s_waitcnt_vmcnt"),
    OTHER("s_waitcnt_lgkmcnt"),
    OTHER("s_waitcnt_expcnt"),
    STALL("s_waitcnt_depctr", EMU_WAITS_VALU),
    STALL("s_wait_alu", EMU_WAITS_VALU),
    OTHER("s_wait_idle"),
    OTHER("s_wait_loadcnt"),
    OTHER("s_wait_storecnt"),
    OTHER("s_wait_samplecnt"),
    OTHER("s_wait_bvhcnt"),
    OTHER("s_wait_expcnt"),
    OTHER("s_wait_dscnt"),
    OTHER("s_wait_kmcnt"),
    OTHER("s_wait_loadcnt_dscnt"),
    OTHER("s_wait_storecnt_dscnt"),
    STALL("s_nop", EMU_STALLS),
    OTHER("s_sleep"),
    OTHER("s_setprio"),
    OTHER("s_clause"),
    OTHER("s_delay_alu"),
    OTHER("s_set_inst_prefetch_distance"),
    OTHER("s_inst_prefetch"),
    OTHER("s_icache_inv"),
    OTHER("s_sendmsg"),
    {0},
};
