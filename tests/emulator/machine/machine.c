/* Launches: work-groups and their waves, in an order drawn by a seed, on registers and LDS filled by another. */
#include <fenv.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "operands.h"
#include "rows.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* ---- numbers drawn ---------------------------------------------------------------------------------------------- */

/* xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016). */
static uint64_t draw(uint64_t* state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545f4914f6cdd1dull;
}
static uint64_t seeded(uint64_t seed, uint64_t salt) {
  uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15ull ^ (salt + 1) * 0xbf58476d1ce4e5b9ull;
  state = state ? state : 1;
  for (int k = 0; k < 4; k++) draw(&state);
  return state;
}
static void fill_words(uint32_t* words, size_t count, uint64_t seed, uint64_t* state) {
  if (!seed) {
    memset(words, 0, 4 * count);
    return;
  }
  for (size_t k = 0; k < count; k++) words[k] = (uint32_t)(draw(state) >> 32);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

void emu_fault(struct emu_wave* wave, enum emu_check check, int lane, uint64_t address, const char* why, ...) {
  struct emu_machine* machine = wave->machine;
  struct emu_fault* fault = &machine->report->fault;
  if (fault->check) return;
  fault->check = check;
  fault->instruction = wave->current;
  fault->pc = wave->current < machine->program->count ? machine->program->instructions[wave->current].pc : 0;
  memcpy(fault->group, machine->group, sizeof fault->group);
  fault->wave = wave->number;
  fault->lane = lane;
  fault->address = address;
  va_list list;
  va_start(list, why);
  vsnprintf(fault->why, sizeof fault->why, why, list);
  va_end(list);
}

/* ---- rounding and subnormal numbers ----------------------------------------------------------------------------- */

void emu_float_default(struct emu_wave* wave) {
#ifdef __SSE__
  if (wave->machine->control != 0x1f80) _mm_setcsr(wave->machine->control = 0x1f80);
#else
  (void)wave;
#endif
}

void emu_float_mode(struct emu_wave* wave, char letter) {
#ifdef __SSE__
  /* MODE has two fields of rounding (nearest, up, down, towards zero) and of subnormals kept (sources, results): for
     f32, and for f16 and f64. The processor's word has its rounding (nearest, down, up, towards zero) in bits 13 and
     14, the flush of results in 15, of sources in 6. */
  static const uint32_t roundings[] = {0x0000, 0x4000, 0x2000, 0x6000};
  bool single = letter == 'f' || letter == 'P';
  uint32_t round = wave->mode >> (single ? 0 : 2) & 3, subnormals = wave->mode >> (single ? 4 : 6) & 3;
  uint32_t wanted = 0x1f80 | roundings[round] | (subnormals & 2 ? 0 : 0x8000) | (subnormals & 1 ? 0 : 0x0040);
  if (wanted != wave->machine->control) _mm_setcsr(wave->machine->control = wanted);
#else
  bool single = letter == 'f' || letter == 'P';
  uint32_t asked = wave->mode >> (single ? 0 : 2) & 0x33;
  if (asked != 0x30)
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "this processor is not made to round or flush as the program's MODE asks");
#endif
}

/* ---- waves ------------------------------------------------------------------------------------------------------ */

/* kernel_code_properties: which user SGPRs are set up, in this order. */
enum {
  PRIVATE_BUFFER = 1,
  DISPATCH_PTR = 2,
  QUEUE_PTR = 4,
  KERNARG_PTR = 8,
  DISPATCH_ID = 16,
  FLAT_SCRATCH_INIT = 32,
  PRIVATE_SIZE = 64
};
/* compute_pgm_rsrc2. */
enum {
  USER_SGPRS_SHIFT = 1,
  GROUP_X = 1 << 7,
  GROUP_Y = 1 << 8,
  GROUP_Z = 1 << 9,
  GROUP_INFO = 1 << 10,
  PRIVATE_OFFSET = 1
};

static unsigned set_pair(struct emu_wave* wave, unsigned at, uint64_t value) {
  wave->sgpr[at] = (uint32_t)value;
  wave->sgpr[at + 1] = (uint32_t)(value >> 32);
  return at + 2;
}

/* Whether the launch's hardware fills SGPRs with the arguments that a program wants so. By even seeds it does not: that
 * is older firmware, which begins before the code that loads them. */
static bool preloads(const struct emu_launch* launch) { return !launch->contents_seed || launch->contents_seed % 2; }

static void set_up_scalars(struct emu_wave* wave) {
  struct emu_machine* machine = wave->machine;
  const struct emu_program* program = machine->program;
  const struct emu_launch* launch = machine->launch;
  uint32_t asked = program->properties, rsrc2 = program->rsrc2;
  unsigned at = 0;
  if (asked & PRIVATE_BUFFER) {
    /* A descriptor of the wave's private segments: lanes lie program->scratch bytes apart (stride, and add lane). */
    set_pair(wave, 0, (uint64_t)(uintptr_t)wave->scratch | (uint64_t)program->scratch << 48);
    set_pair(wave, 2, (uint64_t)EMU_LANES * program->scratch | 1ull << (32 + 23));
    at = 4;
  }
  if (asked & DISPATCH_PTR) at += 2;
  if (asked & QUEUE_PTR) at += 2;
  if (asked & KERNARG_PTR) at = set_pair(wave, at, (uint64_t)(uintptr_t)machine->kernarg);
  if (asked & DISPATCH_ID) at += 2;
  if (asked & FLAT_SCRATCH_INIT) at += 2;
  if (asked & PRIVATE_SIZE) wave->sgpr[at++] = program->scratch;
  for (uint32_t k = 0; k < program->preload && preloads(launch); k++) {
    uint32_t offset = 4 * (program->preload_offset + k);
    uint32_t word = 0;
    if (offset + 4 <= launch->kernarg_size) memcpy(&word, machine->kernarg + offset, 4);
    wave->sgpr[at++] = word;
  }
  at = rsrc2 >> USER_SGPRS_SHIFT & 31;
  if (program->target >= EMU_GFX1200) {
    /* gfx12 hands them over in trap registers: y and z share ttmp7, the wave's number in its group is in ttmp8. */
    wave->sgpr[EMU_TTMP + 9] = machine->group[0];
    wave->sgpr[EMU_TTMP + 7] = (machine->group[1] & 0xffff) | machine->group[2] << 16;
    wave->sgpr[EMU_TTMP + 8] = wave->number << 25;
  } else {
    if (rsrc2 & GROUP_X) wave->sgpr[at++] = machine->group[0];
    if (rsrc2 & GROUP_Y) wave->sgpr[at++] = machine->group[1];
    if (rsrc2 & GROUP_Z) wave->sgpr[at++] = machine->group[2];
    if (rsrc2 & GROUP_INFO) at++;
    if (rsrc2 & PRIVATE_OFFSET) wave->sgpr[at++] = 0; /* the descriptor is the wave's own */
  }
  set_pair(wave, EMU_EXEC, 0);
}

static void start(struct emu_machine* machine, uint32_t number) {
  struct emu_wave* wave = &machine->wave[number];
  const struct emu_launch* launch = machine->launch;
  const struct emu_program* program = machine->program;
  uint64_t contents = seeded(launch->contents_seed, number + 64ull * machine->ordinal);
  fill_words(wave->vgpr[0], (size_t)program->vgprs * EMU_LANES, launch->contents_seed, &contents);
  fill_words(wave->vgpr[256], (size_t)program->agprs * EMU_LANES, launch->contents_seed, &contents);
  fill_words(wave->sgpr, EMU_SGPRS, launch->contents_seed, &contents);
  if (program->scratch)
    fill_words((uint32_t*)wave->scratch, (size_t)program->scratch / 4 * EMU_LANES, launch->contents_seed, &contents);
  wave->machine = machine;
  wave->number = number;
  wave->scc = launch->contents_seed ? (uint32_t)draw(&contents) & 1 : 0;
  wave->mode = program->mode;
  wave->next = preloads(launch) ? program->entry : program->plain_entry;
  wave->done = wave->waits = wave->signalled = false;
  wave->awaited = 0;
  wave->executed = 0;
  set_up_scalars(wave);
  uint32_t x = launch->block[0], y = launch->block[1], items = x * y * launch->block[2];
  uint64_t exec = 0;
  for (uint32_t lane = 0; lane < program->wave_size; lane++) {
    uint32_t item = number * program->wave_size + lane;
    if (item >= items) break;
    exec |= 1ull << lane;
    wave->vgpr[0][lane] = item % x | item / x % y << 10 | item / x / y << 20;
  }
  set_pair(wave, EMU_EXEC, exec);
}

/* Executes one instruction, or both halves of a VOPD, which read before either writes. */
static void step(struct emu_wave* wave, bool checked) {
  const struct emu_program* program = wave->machine->program;
  uint32_t index = wave->current = wave->next++;
  if (index >= program->count) {
    emu_fault(wave, EMU_PROGRAM, -1, 0, "execution ran past the end of the program");
    return;
  }
  const struct emu_instruction* in = &program->instructions[index];
  program->executed[index]++;
  wave->executed++;
  if (!in->op) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "an instruction that the executor does not know: %s",
              program->texts + in->text);
    return;
  }
  if (in->flags & EMU_BEYOND) {
    emu_fault(wave, EMU_PROGRAM, -1, 0, "names a vector register beyond those that are allocated, v0 to v%u%s",
              program->vgprs - 1, program->agprs ? " and the accumulation registers" : "");
    return;
  }
  if (checked) emu_hazards_before(wave, in);
  if (in->flags & EMU_DUAL) {
    uint32_t old[EMU_LANES], new[EMU_LANES], *row = wave->vgpr[in->operand[0].index];
    const struct emu_instruction* second = in + 1;
    if (checked) emu_hazards_before(wave, second);
    memcpy(old, row, sizeof old);
    in->op->run(wave, in);
    memcpy(new, row, sizeof new);
    memcpy(row, old, sizeof old);
    program->executed[++index]++;
    wave->current = index;
    wave->next++;
    if (second->op)
      second->op->run(wave, second);
    else
      emu_fault(wave, EMU_UNKNOWN, -1, 0, "an instruction that the executor does not know: %s",
                program->texts + second->text);
    memcpy(row, new, sizeof new);
    if (checked) emu_hazards_after(wave, second);
  } else {
    in->op->run(wave, in);
  }
  if (checked) emu_hazards_after(wave, in);
}

/* ---- work-groups ------------------------------------------------------------------------------------------------ */

/* Where every wave that has not ended has signalled, the barrier is complete. */
static void complete_barrier(struct emu_machine* machine) {
  bool any = false;
  for (uint32_t k = 0; k < machine->waves; k++) {
    const struct emu_wave* wave = &machine->wave[k];
    if (!wave->done && !wave->signalled) return;
    any |= wave->signalled;
  }
  if (!any) return;
  for (uint32_t k = 0; k < machine->waves; k++) {
    struct emu_wave* wave = &machine->wave[k];
    if (wave->done) {
      for (uint32_t j = 0; j < machine->waves; j++)
        if (machine->wave[j].signalled)
          emu_fault(&machine->wave[j], EMU_BARRIER, -1, 0, "wave %u ended without reaching this barrier", k);
      return;
    }
  }
  machine->barriers++;
  for (uint32_t k = 0; k < machine->waves; k++) machine->wave[k].signalled = false;
}

static bool can_run(struct emu_wave* wave) {
  if (wave->done) return false;
  if (wave->waits) {
    if (wave->machine->barriers < wave->awaited) return false;
    wave->waits = false;
    emu_hazards_passed(wave);
  }
  return true;
}

static void run_group(struct emu_machine* machine) {
  const struct emu_launch* launch = machine->launch;
  bool checked = !(launch->flags & EMU_NO_HAZARDS);
  uint64_t limit = launch->limit ? launch->limit : 1ull << 32, lds = seeded(launch->contents_seed, ~machine->ordinal);
  fill_words((uint32_t*)machine->lds, (machine->lds_size + 3) / 4, launch->contents_seed, &lds);
  machine->barriers = 0;
  for (uint32_t k = 0; k < machine->waves; k++) start(machine, k);
  emu_hazards_reset(machine);
  const struct emu_fault* fault = &machine->report->fault;
  for (uint32_t turn = 0;; turn++) {
    uint32_t runnable[EMU_WAVES], count = 0;
    for (uint32_t k = 0; k < machine->waves; k++)
      if (can_run(&machine->wave[k])) runnable[count++] = k;
    if (!count) break;
    struct emu_wave* wave = &machine->wave[runnable[launch->schedule_seed ? draw(&machine->random) % count : 0]];
    /* Without a seed a wave runs until it must wait; with one, some instructions. */
    uint64_t quantum = launch->schedule_seed ? 1 + draw(&machine->random) % 200 : UINT64_MAX;
    while (quantum-- && !wave->done && !wave->waits && !fault->check) {
      step(wave, checked);
      if (wave->executed > limit)
        emu_fault(wave, EMU_ENDLESS, -1, 0, "a wave took more than %llu instructions", (unsigned long long)limit);
    }
    if (!fault->check) complete_barrier(machine);
    if (fault->check) break;
  }
  for (uint32_t k = 0; k < machine->waves; k++) {
    machine->report->instructions += machine->wave[k].executed;
    if (!machine->wave[k].done && !fault->check)
      emu_fault(&machine->wave[k], EMU_BARRIER, -1, 0, "a wave waits for a barrier that others never reach");
  }
}

/* The order of groups: a walk by a step that has no factor in common with their number. */
static uint64_t common(uint64_t a, uint64_t b) { return b ? common(b, a % b) : a; }

static void run_groups(struct emu_machine* machine) {
  const struct emu_launch* launch = machine->launch;
  uint64_t groups = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2], first = 0, stride = 1;
  if (launch->schedule_seed && groups > 1) {
    first = draw(&machine->random) % groups;
    do stride = 1 + draw(&machine->random) % groups;
    while (common(stride, groups) != 1);
  }
  for (uint64_t k = 0; k < groups && !machine->report->fault.check; k++) {
    uint64_t group = (first + k * stride) % groups;
    machine->ordinal = group;
    machine->group[0] = (uint32_t)(group % launch->grid[0]);
    machine->group[1] = (uint32_t)(group / launch->grid[0] % launch->grid[1]);
    machine->group[2] = (uint32_t)(group / launch->grid[0] / launch->grid[1]);
    run_group(machine);
  }
}

enum { OWN = UINT32_MAX }; /* the id of a region that is not the caller's */

static int by_base(const void* left, const void* right) {
  uint64_t a = ((const struct emu_region*)left)->base, b = ((const struct emu_region*)right)->base;
  return (a > b) - (a < b);
}

/* Regions: the caller's; the arguments, which a program reads as memory; and the waves' private segments. */
static bool add_regions(struct emu_machine* machine) {
  const struct emu_launch* launch = machine->launch;
  machine->kernarg = calloc(1, launch->kernarg_size + 64);
  uint32_t count = launch->region_count;
  machine->regions = calloc(count + 1 + EMU_WAVES, sizeof *machine->regions);
  if (!machine->kernarg || !machine->regions) return false;
  memcpy(machine->kernarg, launch->kernarg, launch->kernarg_size);
  memcpy(machine->regions, launch->regions, count * sizeof *machine->regions);
  machine->regions[count++] = (struct emu_region){(uint64_t)(uintptr_t)machine->kernarg, launch->kernarg_size, 0, OWN};
  for (uint32_t k = 0; k < machine->waves && machine->program->scratch; k++)
    machine->regions[count++] = (struct emu_region){(uint64_t)(uintptr_t)machine->wave[k].scratch,
                                                    (uint64_t)EMU_LANES * machine->program->scratch, 1, OWN};
  qsort(machine->regions, count, sizeof *machine->regions, by_base);
  machine->region_count = count;
  return true;
}

static bool set_up(struct emu_machine* machine) {
  const struct emu_program* program = machine->program;
  const struct emu_launch* launch = machine->launch;
  uint32_t items = launch->block[0] * launch->block[1] * launch->block[2];
  machine->full = program->wave_size == 64 ? ~0ull : 0xffffffffull;
  machine->waves = (items + program->wave_size - 1) / program->wave_size;
  machine->lds_size = program->lds + launch->dynamic_lds;
  machine->random = seeded(launch->schedule_seed, 1);
  machine->control = UINT32_MAX;
  if (machine->waves > EMU_WAVES) return false;
  if (posix_memalign((void**)&machine->wave, 64, machine->waves * sizeof *machine->wave)) return false;
  memset(machine->wave, 0, machine->waves * sizeof *machine->wave);
  machine->lds = calloc(1, machine->lds_size + 16);
  if (!machine->lds) return false;
  for (uint32_t k = 0; k < machine->waves; k++) {
    machine->wave[k].machine = machine;
    if (program->scratch && !(machine->wave[k].scratch = calloc(EMU_LANES, program->scratch))) return false;
  }
  return add_regions(machine) && emu_hazards_create(machine);
}

uint32_t emu_run(const struct emu_launch* launch, struct emu_report* report) {
  struct emu_machine machine = {.launch = launch, .program = launch->program, .report = report};
  memset(report, 0, sizeof *report);
#ifdef __SSE__
  uint32_t control = _mm_getcsr();
#endif
  if (set_up(&machine)) {
    run_groups(&machine);
  } else {
    report->fault.check = EMU_PROGRAM;
    snprintf(report->fault.why, sizeof report->fault.why,
             "the launch has more than %d waves in a group, or memory ran out", EMU_WAVES);
  }
#ifdef __SSE__
  _mm_setcsr(control);
#endif
  emu_hazards_destroy(&machine);
  for (uint32_t k = 0; machine.wave && k < machine.waves; k++) free(machine.wave[k].scratch);
  free(machine.wave);
  free(machine.lds);
  free(machine.kernarg);
  free(machine.regions);
  return report->fault.check;
}
