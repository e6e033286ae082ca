/*
 * Results that hardware does not wait for by itself: other instructions, or s_nop, must stand between. The numbers are
 * those of AMD's instruction set documents ("Manually Inserted Wait States") and of LLVM's hazard recognizer for gfx90a
 * and gfx942; gfx950 is held to gfx942's. gfx11 and gfx12 wait by themselves but for WMMA, and gfx11.0 (not 11.5) for
 * transcendental results.
 */
#include <string.h>

#include "hazards.h"

enum { TRANSCENDENTAL = 1, PARTIAL = 2, DOT = 4 }; /* `kind` of a register: how the VALU wrote it */
enum { START = 1000 };                             /* so that all times before a wave begins lie far back */

static bool is_cdna(const struct emu_wave* wave) { return wave->machine->program->target < EMU_GFX1100; }
static bool is_gfx940(const struct emu_wave* wave) {
  return is_cdna(wave) && wave->machine->program->target != EMU_GFX90A;
}
static bool is_vector(const struct emu_instruction* in) { return in->family == EMU_VALU; }
static bool is_memory(const struct emu_instruction* in) {
  return in->family == EMU_VECTOR_MEMORY || in->family == EMU_LDS_ACCESS;
}

/* A fault if fewer wait states than needed lie behind `then`, which is when the other instruction was over. */
static void need(struct emu_wave* wave, const struct emu_range* range, uint32_t k, uint32_t then, uint32_t needed,
                 const char* what) {
  uint32_t between = wave->hazards->waits->now - then;
  if (between >= needed) return;
  bool vector = range->kind == EMU_VGPR;
  uint32_t number = range->first + k;
  emu_fault(wave, EMU_WAIT_STATES, -1, 0, "%s%u: %s; %u wait states are needed between, there are %u",
            !vector         ? "s"
            : number >= 256 ? "a"
                            : "v",
            vector ? number & 255 : number, what, needed, between);
}

/* ---- matrix instructions ---------------------------------------------------------------------------------------- */

/* Of a result of a matrix instruction: read as A or B by another, or used by the VALU or by memory. */
static uint32_t after_matrix(uint8_t how, uint8_t passes, bool memory) {
  if (how == EMU_NO_MATRIX) return 0;
  if (how == EMU_DGEMM) return passes == 4 ? (memory ? 9 : 6) : (memory ? 18 : 11);
  return passes + (how == EMU_SGEMM ? 2 : 3);
}

/* Read as C: by the very registers it was written to, a matrix instruction hands its result on. */
static uint32_t after_matrix_as_c(const struct emu_wave* wave, const struct emu_instruction* in, uint8_t how,
                                  uint8_t passes, bool whole) {
  if (how == EMU_NO_MATRIX) return 0;
  bool gfx940 = is_gfx940(wave);
  if (!gfx940 && in->matrix != EMU_DGEMM && how == EMU_DGEMM) return 0;
  if (whole) {
    if (in->matrix == EMU_DGEMM && how == EMU_DGEMM && passes == 4) return 4;
    return gfx940 && passes == 2 ? 2 : 0;
  }
  if (how == EMU_DGEMM) return in->matrix == EMU_XDL && gfx940 ? 0 : passes == 4 ? 4 : 9;
  if (!gfx940) return passes + (in->matrix == EMU_DGEMM);
  if (in->matrix == EMU_XDL && how == EMU_SGEMM) return 0;
  return passes + (how == EMU_XDL);
}

/* The VALU overwrites what a matrix instruction reads as C. */
static uint32_t after_reading_c(uint8_t passes) { return passes - 1u; }

static void check_matrix_sources(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct emu_waits* waits = wave->hazards->waits;
  for (int r = 0; r < in->reads; r++) {
    const struct emu_range* range = &in->read[r];
    if (range->kind != EMU_VGPR) continue;
    const struct emu_operand* c = &in->operand[3];
    bool as_c = r == in->reads - 1 && c->kind == EMU_VGPR && c->index == range->first;
    for (uint32_t k = 0; k < range->count; k++) {
      const struct lately* reg = &waits->vgpr[range->first + k];
      if (!(reg->kind & DOT)) need(wave, range, k, reg->vector, 2, "a matrix instruction reads what the VALU wrote");
      bool whole = reg->first == range->first && reg->words == range->count;
      uint32_t needed =
          as_c ? after_matrix_as_c(wave, in, reg->how, reg->passes, whole) : after_matrix(reg->how, reg->passes, false);
      need(wave, range, k, reg->matrix, needed, "a matrix instruction reads what another one wrote");
    }
  }
  struct emu_range exec = {EMU_SGPR, EMU_EXEC, 1, 0};
  need(wave, &exec, 0, waits->sgpr[EMU_EXEC], 4, "a matrix instruction follows a write of EXEC by the VALU");
}

/* ---- the VALU and memory of gfx90a, gfx942, gfx950 -------------------------------------------------------------- */

static void check_vector_registers(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct emu_waits* waits = wave->hazards->waits;
  bool vector = is_vector(in), gfx940 = is_gfx940(wave);
  for (int r = 0; r < in->reads; r++) {
    const struct emu_range* range = &in->read[r];
    if (range->kind != EMU_VGPR) continue;
    for (uint32_t k = 0; k < range->count; k++) {
      const struct lately* reg = &waits->vgpr[range->first + k];
      need(wave, range, k, reg->matrix, after_matrix(reg->how, reg->passes, !vector),
           "used after a matrix instruction wrote it");
      if (!vector) continue;
      if (in->flags & EMU_DPP && r == 0) need(wave, range, k, reg->vector, 2, "DPP reads what the VALU wrote");
      if (gfx940 && reg->kind & TRANSCENDENTAL && !(in->op->flags & EMU_TRANSCENDENTAL))
        need(wave, range, k, reg->vector, 1, "the VALU reads a transcendental result");
      if (gfx940 && reg->kind & PARTIAL)
        need(wave, range, k, reg->vector, 1, "the VALU reads what was written in part");
      if (gfx940 && in->op->flags & EMU_READS_LANE)
        need(wave, range, k, reg->vector, 1, "a lane is read that the VALU wrote");
      if (reg->kind & DOT && !(in->op->flags & EMU_DOT))
        need(wave, range, k, reg->vector, 3, "the VALU reads a sum of products");
    }
  }
  for (int r = 0; r < in->writes; r++) {
    const struct emu_range* range = &in->write[r];
    if (range->kind != EMU_VGPR) continue;
    for (uint32_t k = 0; k < range->count; k++) {
      const struct lately* reg = &waits->vgpr[range->first + k];
      need(wave, range, k, reg->matrix, after_matrix(reg->how, reg->passes, false),
           "written after a matrix instruction wrote it");
      if (reg->source_c_passes)
        need(wave, range, k, reg->source_c, after_reading_c(reg->source_c_passes),
             "written after a matrix instruction reads it as C");
      if (vector)
        need(wave, range, k, reg->store, gfx940 ? 2 : 1, "written after a store of more than 64 bits reads it");
    }
  }
}

static void check_scalar_registers(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct emu_waits* waits = wave->hazards->waits;
  uint32_t flags = in->op->flags;
  struct emu_range exec = {EMU_SGPR, EMU_EXEC, 1, 0};
  if (is_vector(in)) {
    if (in->flags & EMU_DPP) need(wave, &exec, 0, waits->sgpr[EMU_EXEC], 5, "DPP follows a write of EXEC by the VALU");
    if (is_gfx940(wave) && flags & (EMU_READS_LANE | EMU_SELECTS_LANE))
      need(wave, &exec, 0, waits->sgpr[EMU_EXEC], 4, "a lane is read or written after a write of EXEC by the VALU");
  }
  for (int r = 0; r < in->reads; r++) {
    const struct emu_range* range = &in->read[r];
    if (range->kind != EMU_SGPR) continue;
    for (uint32_t k = 0; k < range->count; k++) {
      uint32_t then = waits->sgpr[range->first + k];
      if (in->family == EMU_VECTOR_MEMORY)
        need(wave, range, k, then, 5, "a memory instruction reads what the VALU wrote");
      if (!is_vector(in)) continue;
      if (is_gfx940(wave)) need(wave, range, k, then, 2, "the VALU reads a scalar that the VALU wrote");
      if (flags & EMU_READS_VCC) need(wave, range, k, then, 4, "v_div_fmas reads VCC, which the VALU wrote");
      const struct emu_operand* lane = &in->operand[2];
      if (flags & EMU_SELECTS_LANE && lane->kind == EMU_SGPR && lane->index == range->first)
        need(wave, range, k, then, 4, "the number of a lane was written by the VALU");
    }
  }
  struct emu_range m0 = {EMU_SGPR, EMU_M0, 1, 0};
  if (in->flags & EMU_LDS) need(wave, &m0, 0, waits->m0, 1, "a copy to LDS reads M0, which the SALU wrote");
}

/* ---- gfx11 and gfx12 -------------------------------------------------------------------------------------------- */

/* gfx11.0: a transcendental result needs a wait for VALU results (s_waitcnt_depctr va_vdst(0), or an access to memory),
   six instructions of the VALU, or two transcendental ones, before it is read. */
static void check_transcendental(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct emu_waits* waits = wave->hazards->waits;
  for (int r = 0; r < in->reads; r++) {
    const struct emu_range* range = &in->read[r];
    if (range->kind != EMU_VGPR) continue;
    for (uint32_t k = 0; k < range->count; k++) {
      const struct lately* reg = &waits->vgpr[range->first + k];
      if (!(reg->kind & TRANSCENDENTAL) || reg->transcendentals <= waits->arrived) continue;
      uint32_t valus = waits->valus - reg->valus, transcendentals = waits->transcendentals - reg->transcendentals;
      if (valus > 5 || transcendentals > 1) continue;
      emu_fault(wave, EMU_WAIT_STATES, -1, 0,
                "v%u: the VALU reads a transcendental result; a wait for it, six instructions of the VALU or two "
                "transcendental ones are needed between",
                range->first + k);
      return;
    }
  }
}

/* WMMA must not read as A or B what the WMMA right before it wrote: another instruction of the VALU stands between. */
static void check_wmma(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct emu_waits* waits = wave->hazards->waits;
  for (int r = 0; r < in->reads && r < 2; r++) {
    const struct emu_range* range = &in->read[r];
    const struct emu_operand* c = &in->operand[3];
    if (range->kind != EMU_VGPR || (c->kind == EMU_VGPR && c->index == range->first)) continue;
    for (uint32_t k = 0; k < range->count; k++) {
      const struct lately* reg = &waits->vgpr[range->first + k];
      if (reg->how != EMU_NO_MATRIX && reg->valus == waits->valus) {
        emu_fault(
            wave, EMU_WAIT_STATES, -1, 0,
            "v%u: WMMA reads as A or B what the WMMA before it wrote; an instruction of the VALU is needed between",
            range->first + k);
        return;
      }
    }
  }
}

/* ---- before and after ------------------------------------------------------------------------------------------- */

void emu_waits_reset(struct emu_waits* waits) {
  memset(waits, 0, sizeof *waits);
  waits->now = START;
}

void emu_waits_before(struct emu_wave* wave, const struct emu_instruction* in) {
  if (is_cdna(wave)) {
    if (in->family == EMU_MATRIX) check_matrix_sources(wave, in);
    if (is_vector(in) || is_memory(in)) {
      check_vector_registers(wave, in);
      check_scalar_registers(wave, in);
    }
  } else {
    if (is_vector(in) && wave->machine->program->target == EMU_GFX1100) check_transcendental(wave, in);
    if (in->family == EMU_MATRIX) check_wmma(wave, in);
  }
}

static void note_writes(struct emu_wave* wave, const struct emu_instruction* in) {
  struct emu_waits* waits = wave->hazards->waits;
  bool partial = in->flags & EMU_SDWA ? in->dst_part != EMU_DWORD : in->op_sel >> in->sources & 1 && is_vector(in);
  for (int r = 0; r < in->writes; r++) {
    const struct emu_range* range = &in->write[r];
    for (uint32_t k = 0; k < range->count; k++) {
      uint32_t number = range->first + k;
      if (range->kind == EMU_SGPR) {
        if (is_vector(in)) waits->sgpr[number] = waits->now;
        continue;
      }
      struct lately* reg = &waits->vgpr[number];
      reg->how = EMU_NO_MATRIX;
      reg->passes = reg->kind = 0;
      reg->valus = waits->valus;
      reg->transcendentals = waits->transcendentals;
      if (in->family == EMU_MATRIX) {
        reg->matrix = waits->now;
        reg->how = in->matrix;
        reg->passes = in->op->passes;
        reg->first = range->first;
        reg->words = (uint8_t)range->count;
      } else if (is_vector(in)) {
        reg->vector = waits->now;
        reg->kind = (in->op->flags & EMU_TRANSCENDENTAL ? TRANSCENDENTAL : 0) | (partial ? PARTIAL : 0) |
                    (in->op->flags & EMU_DOT ? DOT : 0);
      }
    }
  }
  if (is_vector(in) && in->op->flags & EMU_WRITES_EXEC) waits->sgpr[EMU_EXEC] = waits->now;
  const struct emu_operand* result = &in->operand[0];
  if (in->family == EMU_SALU && in->results && result->kind == EMU_SGPR && result->index == EMU_M0)
    waits->m0 = waits->now;
}

static void note_reads(struct emu_wave* wave, const struct emu_instruction* in) {
  struct emu_waits* waits = wave->hazards->waits;
  const struct emu_operand* operand = &in->operand[3];
  bool as_c = in->family == EMU_MATRIX && in->matrix != EMU_DGEMM && operand->kind == EMU_VGPR &&
              !(is_gfx940(wave) && in->matrix == EMU_SGEMM);
  bool wide_store = in->family == EMU_VECTOR_MEMORY && in->op->flags & EMU_STORES;
  if (as_c)
    for (uint32_t k = 0; k < operand->words; k++) {
      waits->vgpr[operand->index + k].source_c = waits->now;
      waits->vgpr[operand->index + k].source_c_passes = in->op->passes;
    }
  for (int r = 0; wide_store && r < in->reads; r++)
    if (in->read[r].kind == EMU_VGPR && in->read[r].count > 2)
      for (uint32_t k = 0; k < in->read[r].count; k++) waits->vgpr[in->read[r].first + k].store = waits->now;
}

void emu_waits_after(struct emu_wave* wave, const struct emu_instruction* in) {
  struct emu_waits* waits = wave->hazards->waits;
  waits->now += 1 + (in->op->flags & EMU_STALLS ? (uint32_t)in->immediate : 0);
  if (is_vector(in) || in->family == EMU_MATRIX) waits->valus++;
  if (in->op->flags & EMU_TRANSCENDENTAL) waits->transcendentals++;
  /* What leaves the vector registers for memory waits for the VALU by itself. */
  if (is_memory(in) || (in->op->flags & EMU_WAITS_VALU && in->immediate)) waits->arrived = waits->transcendentals;
  note_writes(wave, in);
  note_reads(wave, in);
}
