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
#define OTHER(name, types, run) {name, types, run, 0, 0, EMU_OTHER, 0, 0}

const struct emu_op emu_branch_ops[] = {
    FLOW("s_branch", branch, 0),
    FLOW("s_cbranch_scc0", if_scc0, EMU_READS_SCC),
    FLOW("s_cbranch_scc1", if_scc1, EMU_READS_SCC),
    FLOW("s_cbranch_vccz", if_vccz, EMU_READS_VCC),
    FLOW("s_cbranch_vccnz", if_vccnz, EMU_READS_VCC),
    FLOW("s_cbranch_execz", if_execz, 0),
    FLOW("s_cbranch_execnz", if_execnz, 0),
    FLOW("s_endpgm", end, 0),
    FLOW("s_code_end", outside, 0),
    FLOW("s_barrier", barrier, 0),
    FLOW("s_barrier_signal", signal, 0),
    FLOW("s_barrier_wait", wait, 0),
    /* The waits are the hazards' (in->wait); the others only change how fast a program runs. */
    OTHER("s_waitcnt", "", nothing),
    OTHER("s_waitcnt_vscnt", "", nothing),
    OTHER("s_waitcnt_vmcnt", "", nothing),
    OTHER("s_waitcnt_lgkmcnt", "", nothing),
    OTHER("s_waitcnt_expcnt", "", nothing),
    OTHER("s_waitcnt_depctr", "", nothing),
    OTHER("s_wait_alu", "", nothing),
    OTHER("s_wait_idle", "", nothing),
    OTHER("s_wait_loadcnt", "", nothing),
    OTHER("s_wait_storecnt", "", nothing),
    OTHER("s_wait_samplecnt", "", nothing),
    OTHER("s_wait_bvhcnt", "", nothing),
    OTHER("s_wait_expcnt", "", nothing),
    OTHER("s_wait_dscnt", "", nothing),
    OTHER("s_wait_kmcnt", "", nothing),
    OTHER("s_wait_loadcnt_dscnt", "", nothing),
    OTHER("s_wait_storecnt_dscnt", "", nothing),
    OTHER("s_nop", "", nothing),
    OTHER("s_sleep", "", nothing),
    OTHER("s_setprio", "", nothing),
    OTHER("s_clause", "", nothing),
    OTHER("s_delay_alu", "", nothing),
    OTHER("s_set_inst_prefetch_distance", "", nothing),
    OTHER("s_inst_prefetch", "", nothing),
    OTHER("s_icache_inv", "", nothing),
    OTHER("s_sendmsg", "", nothing),
    {0},
};
