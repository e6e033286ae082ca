/* The hazards' own: outstanding accesses of a wave, and who touched each word of LDS. */
#ifndef EMU_HAZARDS_H
#define EMU_HAZARDS_H

#include "machine.h"

enum { QUEUE = 64, DOUBTS = 8 * EMU_LANES };

/* An outstanding memory instruction. */
struct entry {
  uint32_t ticket; /* rising with each memory instruction of the wave */
  uint32_t pc;
  uint8_t family; /* enum emu_family */
  bool scalar;    /* returns in any order */
  bool shared;    /* flat: in the queues of two counters; */
  bool last;      /* of which it has left one */
  bool lds;       /* touches LDS */
  bool copy;      /* from memory to LDS, by vmcnt */
  uint8_t ranges;
  struct emu_range range[2]; /* registers that will be written */
};

struct emu_hazards {
  struct queue {
    uint32_t count;
    struct entry entry[QUEUE]; /* the oldest first */
  } queue[EMU_COUNTERS];
  uint8_t vgpr[EMU_VGPRS], sgpr[EMU_SGPRS]; /* outstanding results of each register */
  uint32_t pending;                         /* their sum */
  uint32_t copies;                          /* outstanding copies to LDS */
  uint32_t ticket;
  uint64_t written[EMU_VGPRS]; /* lanes that something wrote */
  /* Barriers: at each that the wave reached, the first ticket that was not done; and how many it went on from. */
  uint32_t* complete;
  uint32_t signals, room, passed;
  struct emu_waits* waits;
  uint32_t doubtful; /* words that this instruction writes and another wave wrote */
  struct doubt {
    uint32_t word, bytes, old;
    int other, lane;
  } doubt[DOUBTS];
};

/* wait_states.c: what was written lately by what. Times count wait states: an instruction is one, s_nop N is N + 1. */
struct emu_waits {
  uint32_t now;
  struct lately {
    uint32_t vector, matrix, source_c, store; /* when last written by the VALU, by a matrix instruction; read as C by
                                                 one; read as the data of a store of more than 64 bits */
    uint16_t first;                           /* of the matrix instruction's result */
    uint8_t words;
    uint8_t how; /* enum emu_matrix of it */
    uint8_t passes, source_c_passes;
    uint8_t kind;                    /* flags of the VALU's instruction: see wait_states.c */
    uint32_t valus, transcendentals; /* gfx11: how many there had been when a transcendental instruction wrote it */
  } vgpr[EMU_VGPRS];
  uint32_t sgpr[EMU_SGPRS];        /* when last written by the VALU */
  uint32_t m0;                     /* when last written by the SALU */
  uint32_t valus, transcendentals; /* executed so far */
  uint32_t arrived; /* gfx11: how many transcendental instructions had been executed when all results were waited for */
};

struct emu_lds_word {
  uint32_t readers, writers; /* waves, as bits, that touched it; how, is in lds_reads and lds_writes */
  uint32_t written;          /* bytes, as bits, that something wrote */
};
struct emu_touch {
  uint32_t ticket : 28, bytes : 4;
};

enum emu_counter emu_counter_of(const struct emu_wave* wave, const struct emu_instruction* in);

void emu_waits_reset(struct emu_waits* waits);
void emu_waits_before(struct emu_wave* wave, const struct emu_instruction* in);
void emu_waits_after(struct emu_wave* wave, const struct emu_instruction* in);

/* races.c: LDS between waves. */
void emu_races_after(struct emu_wave* wave);
bool emu_races_create(struct emu_machine* machine);
void emu_races_reset(struct emu_machine* machine);
void emu_races_destroy(struct emu_machine* machine);

#endif
