/* Shared by the files of memory instructions: what an access moves, who has an address, atomic operations. */
#ifndef EMU_MEMORY_H
#define EMU_MEMORY_H

#include "machine.h"

/* Where the apertures of flat addresses begin: LDS and scratch, 4 GiB each. */
#define EMU_SHARED_APERTURE (1ull << 48)
#define EMU_PRIVATE_APERTURE (2ull << 48)

/* What one lane of an access moves. */
struct emu_access {
  uint8_t bytes;
  uint8_t half;   /* enum emu_half: where 8 or 16 bits lie in the register */
  bool is_signed; /* loads of less than 32 bits */
};
/* EMU_WHOLE: loads fill the word. Else they leave the other half as it was; stores take from that half. */
enum emu_half { EMU_WHOLE, EMU_LOW_HALF, EMU_HIGH_HALF };

/* A register for each 4 bytes. */
static inline unsigned emu_access_words(struct emu_access access) { return (access.bytes + 3u) / 4; }

/* True if `operand` is a range of that many vector registers; else a fault. */
bool emu_vector_operand(struct emu_wave* wave, const struct emu_operand* operand, unsigned words);
/* Reads lane `lane` from `from` into the registers from row `row` on, or writes it to `to`. */
void emu_load_lane(struct emu_wave* wave, unsigned row, int lane, struct emu_access access, const uint8_t* from);
void emu_store_lane(const struct emu_wave* wave, unsigned row, int lane, struct emu_access access, uint8_t* to);

/* Bytes of a lane's private segment, or a fault and null. */
uint8_t* emu_scratch_at(struct emu_wave* wave, int lane, uint64_t address, uint32_t bytes);

/* Operations of atomics, on 4 or 8 bytes. */
enum emu_atomic {
  EMU_SWAP,
  EMU_COMPARE_SWAP,
  EMU_ADD,
  EMU_SUB,
  EMU_REVERSE_SUB,
  EMU_SMIN,
  EMU_UMIN,
  EMU_SMAX,
  EMU_UMAX,
  EMU_AND,
  EMU_OR,
  EMU_XOR,
  EMU_INC,
  EMU_DEC,
  EMU_ADD_F,
  EMU_MIN_F,
  EMU_MAX_F,
  EMU_PK_ADD_F16,
  EMU_PK_ADD_BF16,
};
/* The value that memory gets. `old` is what it has; of EMU_COMPARE_SWAP `data` is stored if it equals `compare`. */
uint64_t emu_atomic(enum emu_atomic operation, unsigned bytes, uint64_t old, uint64_t data, uint64_t compare);

/* A buffer descriptor, of four scalars. */
struct emu_buffer {
  uint64_t base;
  uint32_t stride, records;       /* records: bytes, or elements of `stride` bytes where it is structured */
  uint32_t index_stride, element; /* of swizzled buffers */
  bool swizzled, add_lane, structured;
};
struct emu_buffer emu_buffer_of(const struct emu_wave* wave, const uint32_t* words);
/* Where `index` and `offset` (of the lane and the instruction) and `scalar` lie. False: out of range. */
bool emu_buffer_address(const struct emu_buffer* buffer, uint64_t index, uint64_t offset, uint32_t scalar,
                        uint32_t bytes, int lane, uint64_t* address);

#endif
