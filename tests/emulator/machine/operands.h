/* operands.c's own, for the files of SALU and VALU. */
#ifndef EMU_OPERANDS_H
#define EMU_OPERANDS_H

#include "machine.h"

/* A mask as a row of 0 and 1, and back. */
void emu_spread(uint32_t* row, uint64_t mask);
uint64_t emu_gather(const uint32_t* row);
/* Sets the processor to the rounding and to the subnormal numbers that MODE asks of results of this type. */
void emu_float_mode(struct emu_wave* wave, char letter);
/* To the nearest even, with subnormal numbers: where MODE does not matter. */
void emu_float_default(struct emu_wave* wave);
/* The SALU's run function: fetches, calls op->scalar, writes. */
emu_run_function emu_salu;

#endif
