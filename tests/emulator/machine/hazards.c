/*
 * What hardware shows only by chance: results used before the wait that guards them.
 *
 * Each wave keeps its outstanding memory instructions in the order in which they were issued, by counter. s_waitcnt
 * takes those away that must have returned by then: of the same kind they return in order; scalar loads in any order,
 * so that only a wait for none proves them; where scalar loads and LDS share a counter, an access to LDS is proven when
 * more have returned than there are scalar loads and older accesses.
 */
#include "hazards.h"

#include <stdlib.h>
#include <string.h>

static const char* const counter_names[] = {"vmcnt", "lgkmcnt", "expcnt", "vscnt", "kmcnt", "samplecnt", "bvhcnt"};

/* How many a counter can hold: where it is full, hardware waits for the oldest before it issues another. */
static uint32_t capacity(const struct emu_machine* machine, enum emu_counter counter) {
  bool narrow = machine->program->target < EMU_GFX1100;
  return counter == EMU_LGKM && narrow ? 15 : 63;
}

static struct queue* queue_of(struct emu_wave* wave, enum emu_counter counter) {
  return &wave->hazards->queue[counter];
}

static uint8_t* pending_of(struct emu_wave* wave, const struct emu_range* range) {
  return (range->kind == EMU_VGPR ? wave->hazards->vgpr : wave->hazards->sgpr) + range->first;
}

/* ---- queues ----------------------------------------------------------------------------------------------------- */

/* Takes the entry at place `at` (0 the oldest) out. A flat access is in two queues, and done when out of both. */
static void retire(struct emu_wave* wave, enum emu_counter counter, uint32_t at) {
  struct queue* queue = queue_of(wave, counter);
  struct entry entry = queue->entry[at];
  memmove(&queue->entry[at], &queue->entry[at + 1], (queue->count - at - 1) * sizeof entry);
  queue->count--;
  wave->hazards->copies -= entry.copy;
  if (entry.shared && !entry.last) {
    for (int other = 0; other < EMU_COUNTERS; other++)
      for (uint32_t k = 0; k < wave->hazards->queue[other].count; k++)
        if (wave->hazards->queue[other].entry[k].ticket == entry.ticket)
          wave->hazards->queue[other].entry[k].last = true;
    return;
  }
  for (int r = 0; r < entry.ranges; r++) {
    uint8_t* pending = pending_of(wave, &entry.range[r]);
    for (uint32_t k = 0; k < entry.range[r].count; k++) pending[k]--;
    wave->hazards->pending -= entry.range[r].count;
  }
}

static bool in_order(const struct entry* entry) { return !entry->scalar && !entry->shared; }

static void wait_for(struct emu_wave* wave, enum emu_counter counter, uint32_t left) {
  struct queue* queue = queue_of(wave, counter);
  if (queue->count <= left) return;
  if (left == 0) {
    while (queue->count) retire(wave, counter, 0);
    return;
  }
  uint32_t returned = queue->count - left, unordered = 0;
  for (uint32_t k = 0; k < queue->count; k++) unordered += !in_order(&queue->entry[k]);
  for (uint32_t k = 0; k < queue->count && returned > unordered;) {
    if (in_order(&queue->entry[k])) {
      retire(wave, counter, k);
      returned--;
    } else {
      k++;
    }
  }
}

static void push(struct emu_wave* wave, enum emu_counter counter, const struct entry* entry) {
  struct queue* queue = queue_of(wave, counter);
  if (queue->count >= capacity(wave->machine, counter)) wait_for(wave, counter, capacity(wave->machine, counter) - 1);
  if (queue->count == QUEUE) retire(wave, counter, 0);
  queue->entry[queue->count++] = *entry;
}

/* ---- registers -------------------------------------------------------------------------------------------------- */

static void use(struct emu_wave* wave, const struct emu_instruction* in, const struct emu_range* range, bool write) {
  struct emu_hazards* hazards = wave->hazards;
  const uint8_t* pending = pending_of(wave, range);
  for (uint32_t k = 0; k < range->count; k++) {
    if (!pending[k]) continue;
    for (int counter = 0; counter < EMU_COUNTERS; counter++) {
      const struct queue* queue = &hazards->queue[counter];
      for (uint32_t e = 0; e < queue->count; e++) {
        const struct entry* entry = &queue->entry[e];
        for (int r = 0; r < entry->ranges; r++) {
          const struct emu_range* its = &entry->range[r];
          if (its->kind != range->kind || range->first + k < its->first || range->first + k >= its->first + its->count)
            continue;
          if (its->half && range->half && its->half != range->half) continue;
          /* Results of one kind of access come in order, so that a later one may write where an earlier one will. */
          if (write && in_order(entry) && emu_counter_of(wave, in) == (enum emu_counter)counter &&
              in->family == entry->family)
            continue;
          emu_fault(wave, EMU_OUTSTANDING, -1, 0,
                    "%s%u is %s while the load at 0x%x into it is outstanding (%s): a wait is missing",
                    range->kind == EMU_SGPR   ? "s"
                    : range->first + k >= 256 ? "a"
                                              : "v",
                    range->kind == EMU_VGPR ? (range->first + k) & 255 : range->first + k, write ? "written" : "read",
                    entry->pc, counter_names[counter]);
          return;
        }
      }
    }
  }
}

/* The counter that a memory instruction raises first. */
enum emu_counter emu_counter_of(const struct emu_wave* wave, const struct emu_instruction* in) {
  uint32_t flags = in->op->flags, target = wave->machine->program->target;
  if (flags & EMU_SCALAR) return target >= EMU_GFX1200 ? EMU_KM : EMU_LGKM;
  if (flags & EMU_LDS_COUNT) return EMU_LGKM;
  bool stores = flags & EMU_STORES || (flags & EMU_ATOMIC && !(in->flags & EMU_SC0));
  return stores && target >= EMU_GFX1100 ? EMU_VS : EMU_VM;
}

/* A register's lanes that nothing wrote: counted, or a fault. */
static void check_written(struct emu_wave* wave, const struct emu_instruction* in) {
  if (in->family != EMU_VALU && in->family != EMU_VECTOR_MEMORY && in->family != EMU_LDS_ACCESS) return;
  uint64_t exec = emu_exec(wave);
  for (int r = 0; r < in->reads; r++) {
    const struct emu_range* range = &in->read[r];
    if (range->kind != EMU_VGPR) continue;
    for (uint32_t k = 0; k < range->count; k++) {
      if (!(exec & ~wave->hazards->written[range->first + k])) continue;
      wave->machine->report->unwritten++;
      if (wave->machine->launch->flags & EMU_FAULT_UNWRITTEN)
        emu_fault(wave, EMU_UNWRITTEN, __builtin_ctzll(exec & ~wave->hazards->written[range->first + k]), 0,
                  "%s%u is read, which nothing wrote", range->first + k >= 256 ? "a" : "v", (range->first + k) & 255);
    }
  }
}

static bool is_memory(const struct emu_instruction* in) {
  return in->family == EMU_LDS_ACCESS || in->family == EMU_VECTOR_MEMORY || in->family == EMU_SCALAR_MEMORY;
}

void emu_hazards_before(struct emu_wave* wave, const struct emu_instruction* in) {
  struct emu_hazards* hazards = wave->hazards;
  if (in->family == EMU_OTHER) {
    for (int counter = 0; counter < EMU_COUNTERS; counter++)
      if (in->wait[counter] >= 0) wait_for(wave, counter, (uint32_t)in->wait[counter]);
    return;
  }
  if (hazards->pending) {
    for (int r = 0; r < in->reads; r++) use(wave, in, &in->read[r], false);
    for (int r = 0; r < in->writes; r++) use(wave, in, &in->write[r], true);
  }
  check_written(wave, in);
  emu_waits_before(wave, in);
  if (is_memory(in)) hazards->ticket++;
}

void emu_hazards_after(struct emu_wave* wave, const struct emu_instruction* in) {
  struct emu_hazards* hazards = wave->hazards;
  uint64_t exec = in->family == EMU_MATRIX || in->op->flags & EMU_IGNORES_EXEC ? ~0ull : emu_exec(wave);
  for (int r = 0; r < in->writes; r++)
    if (in->write[r].kind == EMU_VGPR)
      for (uint32_t k = 0; k < in->write[r].count; k++) hazards->written[in->write[r].first + k] |= exec;
  if (hazards->doubtful) emu_races_after(wave);
  emu_waits_after(wave, in);
  uint32_t flags = in->op->flags;
  if (!is_memory(in) || !(flags & (EMU_LOADS | EMU_STORES | EMU_ATOMIC))) return;
  struct entry entry = {.ticket = hazards->ticket,
                        .pc = in->pc,
                        .family = in->family,
                        .scalar = (flags & EMU_SCALAR) != 0,
                        .lds = in->family == EMU_LDS_ACCESS || in->flags & EMU_LDS,
                        .shared = (flags & EMU_FLAT) != 0,
                        .copy = (in->flags & EMU_LDS) != 0};
  hazards->copies += entry.copy;
  for (int r = 0; r < in->writes && entry.ranges < 2; r++) {
    struct emu_range range = entry.range[entry.ranges++] = in->write[r];
    uint8_t* pending = pending_of(wave, &range);
    for (uint32_t k = 0; k < range.count; k++) pending[k]++;
    hazards->pending += range.count;
  }
  push(wave, emu_counter_of(wave, in), &entry);
  if (entry.shared) push(wave, EMU_LGKM, &entry);
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

bool emu_hazards_create(struct emu_machine* machine) {
  if (!emu_races_create(machine)) return false;
  for (uint32_t k = 0; k < machine->waves; k++)
    if (!(machine->wave[k].hazards = calloc(1, sizeof *machine->wave[k].hazards)) ||
        !(machine->wave[k].hazards->waits = calloc(1, sizeof(struct emu_waits))))
      return false;
  return true;
}

void emu_hazards_reset(struct emu_machine* machine) {
  emu_races_reset(machine);
  for (uint32_t k = 0; k < machine->waves; k++) {
    struct emu_hazards* hazards = machine->wave[k].hazards;
    uint32_t* complete = hazards->complete;
    uint32_t room = hazards->room;
    struct emu_waits* waits = hazards->waits;
    memset(hazards, 0, sizeof *hazards);
    hazards->complete = complete;
    hazards->room = room;
    hazards->waits = waits;
    emu_waits_reset(waits);
    hazards->written[0] = machine->full; /* the work-item's number */
  }
}

void emu_hazards_destroy(struct emu_machine* machine) {
  for (uint32_t k = 0; machine->wave && k < machine->waves; k++) {
    if (!machine->wave[k].hazards) continue;
    free(machine->wave[k].hazards->complete);
    free(machine->wave[k].hazards->waits);
    free(machine->wave[k].hazards);
  }
  emu_races_destroy(machine);
}
