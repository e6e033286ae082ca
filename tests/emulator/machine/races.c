/*
 * Words of LDS that waves share: each access of one wave must be over for the next of another, which only a barrier
 * makes so, and only where the first had waited for its access before it reached the barrier.
 *
 * Of every word and wave the last reading and the last writing are kept: which of its bytes, and the wave's ticket.
 * Where two waves write a word with nothing between, it is no race if the bytes stay the same: compilers let several
 * waves store what all of them have computed.
 */
#include <stdlib.h>
#include <string.h>

#include "hazards.h"

enum { BYTES = 4 };

/* Whether another wave's access is over for this one: that wave reached a barrier with it done, and this one went on
   from that barrier. */
static bool ordered(const struct emu_wave* wave, uint32_t other, uint32_t ticket) {
  const struct emu_hazards* its = wave->machine->wave[other].hazards;
  uint32_t passed = wave->hazards->passed;
  return passed && passed <= its->signals && ticket < its->complete[passed - 1];
}

/* The first wave of `waves` that has touched one of these bytes, and is not ordered; -1 if none is. */
static int unordered(const struct emu_wave* wave, uint32_t waves, const struct emu_touch* touch, uint32_t bytes) {
  for (waves &= ~(1u << wave->number); waves; waves &= waves - 1) {
    int other = __builtin_ctz(waves);
    if (touch[other].bytes & bytes && !ordered(wave, (uint32_t)other, touch[other].ticket)) return other;
  }
  return -1;
}

static void race(struct emu_wave* wave, int lane, uint32_t word, int other, const char* mine, const char* its) {
  emu_fault(wave, EMU_RACE, lane, 4ull * word,
            "LDS at 0x%x is %s here and %s by wave %d, with no barrier between that both reached with it done",
            4 * word, mine, its, other);
}

/* Remembers an access. An older one of the same wave counts still if its bytes may be outstanding or unseen. */
static void touched(const struct emu_wave* wave, struct emu_touch* touch, uint32_t bytes) {
  const struct emu_hazards* hazards = wave->hazards;
  bool seen = hazards->signals && touch->ticket < hazards->complete[hazards->signals - 1];
  touch->bytes = seen ? bytes : touch->bytes | bytes;
  touch->ticket = hazards->ticket;
}

/* A word that others wrote too: what it held is compared with what it holds after the instruction. */
static void doubt(struct emu_wave* wave, int lane, uint32_t word, uint32_t bytes, int other) {
  struct emu_hazards* hazards = wave->hazards;
  if (hazards->doubtful == DOUBTS) {
    emu_fault(wave, EMU_RACE, lane, 4ull * word, "an instruction writes too many words that other waves wrote too");
    return;
  }
  struct doubt* made = &hazards->doubt[hazards->doubtful++];
  *made = (struct doubt){.word = word, .bytes = bytes, .other = other, .lane = lane};
  memcpy(&made->old, wave->machine->lds + 4 * word, 4);
}

void emu_races_after(struct emu_wave* wave) {
  struct emu_hazards* hazards = wave->hazards;
  for (uint32_t k = 0; k < hazards->doubtful; k++) {
    const struct doubt* doubt = &hazards->doubt[k];
    const uint8_t *old = (const uint8_t*)&doubt->old, *now = wave->machine->lds + 4 * doubt->word;
    for (int byte = 0; byte < BYTES; byte++)
      if (doubt->bytes >> byte & 1 && old[byte] != now[byte])
        race(wave, doubt->lane, doubt->word, doubt->other, "written", "written with another value");
  }
  hazards->doubtful = 0;
}

/* A wave's own copy from memory to LDS that is still on its way: its accesses to LDS come in order, but not with that.
 */
static bool on_its_way(const struct emu_wave* wave, const struct emu_touch* own, uint32_t bytes) {
  if (!wave->hazards->copies || !(own->bytes & bytes)) return false;
  const struct queue* queue = &wave->hazards->queue[EMU_VM];
  for (uint32_t k = 0; k < queue->count; k++)
    if (queue->entry[k].copy && queue->entry[k].ticket == own->ticket) return true;
  return false;
}

static void read_word(struct emu_wave* wave, int lane, uint32_t k, uint32_t bytes) {
  struct emu_machine* machine = wave->machine;
  struct emu_lds_word* word = &machine->lds_words[k];
  int other = unordered(wave, word->writers, machine->lds_writes + (size_t)k * machine->waves, bytes);
  if (other >= 0) race(wave, lane, k, other, "read", "written");
  if (word->writers >> wave->number & 1 &&
      on_its_way(wave, machine->lds_writes + (size_t)k * machine->waves + wave->number, bytes))
    emu_fault(wave, EMU_OUTSTANDING, lane, 4ull * k,
              "LDS at 0x%x is read while a copy from memory to it is outstanding (vmcnt): a wait is missing", 4 * k);
  if (bytes & ~word->written) {
    machine->report->unwritten++;
    if (machine->launch->flags & EMU_FAULT_UNWRITTEN)
      emu_fault(wave, EMU_UNWRITTEN, lane, 4ull * k, "LDS at 0x%x is read, which nothing wrote", 4 * k);
  }
  touched(wave, machine->lds_reads + (size_t)k * machine->waves + wave->number, bytes);
  word->readers |= 1u << wave->number;
}

static void write_word(struct emu_wave* wave, int lane, uint32_t k, uint32_t bytes) {
  struct emu_machine* machine = wave->machine;
  struct emu_lds_word* word = &machine->lds_words[k];
  struct emu_touch* reads = machine->lds_reads + (size_t)k * machine->waves;
  struct emu_touch* writes = machine->lds_writes + (size_t)k * machine->waves;
  int other = unordered(wave, word->readers, reads, bytes);
  if (other >= 0) race(wave, lane, k, other, "written", "read");
  other = unordered(wave, word->writers, writes, bytes);
  if (other >= 0)
    doubt(wave, lane, k, bytes, other);
  else if (bytes == 15)
    word->readers = word->writers = 0; /* all that was before is over for this wave, and so for who comes after it */
  touched(wave, &writes[wave->number], bytes);
  word->writers |= 1u << wave->number;
  word->written |= bytes;
}

void emu_hazards_lds(struct emu_wave* wave, int lane, uint32_t address, uint32_t bytes, bool write) {
  if (wave->machine->launch->flags & EMU_NO_HAZARDS) return;
  for (uint32_t at = address; at < address + bytes;) {
    uint32_t from = at % BYTES, count = BYTES - from < address + bytes - at ? BYTES - from : address + bytes - at;
    uint32_t mask = ((1u << count) - 1) << from;
    if (write)
      write_word(wave, lane, at / BYTES, mask);
    else
      read_word(wave, lane, at / BYTES, mask);
    at += count;
  }
}

/* ---- barriers --------------------------------------------------------------------------------------------------- */

void emu_hazards_signal(struct emu_wave* wave) {
  struct emu_hazards* hazards = wave->hazards;
  uint32_t done = hazards->ticket + 1; /* every access so far, but for those that are outstanding */
  for (int counter = 0; counter < EMU_COUNTERS; counter++)
    for (uint32_t k = 0; k < hazards->queue[counter].count; k++) {
      const struct entry* entry = &hazards->queue[counter].entry[k];
      if (entry->lds && entry->ticket < done) done = entry->ticket;
    }
  if (hazards->signals == hazards->room) {
    uint32_t room = hazards->room ? 2 * hazards->room : 256;
    uint32_t* grown = realloc(hazards->complete, room * sizeof *grown);
    if (!grown) {
      emu_fault(wave, EMU_PROGRAM, -1, 0, "memory ran out");
      return;
    }
    hazards->complete = grown;
    hazards->room = room;
  }
  hazards->complete[hazards->signals++] = done;
}

void emu_hazards_passed(struct emu_wave* wave) { wave->hazards->passed = wave->awaited; }

/* ---- life ------------------------------------------------------------------------------------------------------- */

static size_t words_of(const struct emu_machine* machine) { return (machine->lds_size + 3) / BYTES + 1; }

bool emu_races_create(struct emu_machine* machine) {
  size_t words = words_of(machine);
  machine->lds_words = calloc(words, sizeof *machine->lds_words);
  machine->lds_reads = calloc(words * machine->waves, sizeof *machine->lds_reads);
  machine->lds_writes = calloc(words * machine->waves, sizeof *machine->lds_writes);
  return machine->lds_words && machine->lds_reads && machine->lds_writes;
}

void emu_races_reset(struct emu_machine* machine) {
  size_t words = words_of(machine);
  memset(machine->lds_words, 0, words * sizeof *machine->lds_words);
  memset(machine->lds_reads, 0, words * machine->waves * sizeof *machine->lds_reads);
  memset(machine->lds_writes, 0, words * machine->waves * sizeof *machine->lds_writes);
}

void emu_races_destroy(struct emu_machine* machine) {
  free(machine->lds_words);
  free(machine->lds_reads);
  free(machine->lds_writes);
}
