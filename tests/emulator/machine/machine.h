/*
 * An executor of AMD code objects: the state of a wave, the record of an instruction, and how the files meet.
 *
 *   machine.c              launches: work-groups, waves, schedules, initial contents; single.c: without any of it
 *   program.c              records made ready: opcodes looked up, constants made bits, registers listed
 *   operands.c             sources fetched and results written: neg, abs, clamp, omod, op_sel, SDWA, DPP
 *   scalar.c, branch.c     SALU and program flow
 *   vector*.c, convert.c   VALU, as tables of functions over rows of lanes; conversions between formats
 *   matrix*.c              MFMA and WMMA
 *   memory.c and its kin   vector_memory.c, buffer.c, atomics.c, scalar_memory.c, lds.c
 *   hazards.c              results that are outstanding, registers that nothing wrote
 *   races.c                words of LDS that waves share, barriers
 *   wait_states.c          instructions that need others between them
 *
 * A program is decoded once, in Python (decode.py), into `struct emu_instruction`; nothing here reads encodings.
 * Words of a vector register lie lane after lane, so that a 64-bit value of lanes is two rows one after the other.
 */
#ifndef EMU_MACHINE_H
#define EMU_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#define EMU_EXPORT __attribute__((visibility("default")))

enum {
  EMU_LANES = 64,  /* of a row; a wave32 leaves the upper half alone */
  EMU_VGPRS = 512, /* v0 to v255, then a0 to a255 */
  EMU_SGPRS = 128, /* numbered as operands are encoded: s0 up, then the names below */
  EMU_OPERANDS = 6,
  EMU_WAVES = 32, /* of a work-group, at most */
};

/* Numbers of scalar registers with names. m0 and null are given those of gfx11 on every target. */
enum {
  EMU_FLAT_SCRATCH = 102,
  EMU_XNACK_MASK = 104,
  EMU_VCC = 106,
  EMU_TTMP = 108,
  EMU_NULL = 124,
  EMU_M0 = 125,
  EMU_EXEC = 126
};

enum emu_kind {
  EMU_NONE,    /* "off", or no operand at all */
  EMU_VGPR,    /* index: 0 to 511, AGPRs from 256 on */
  EMU_SGPR,    /* index: 0 to 127; `null` reads as 0 and drops what is written */
  EMU_INTEGER, /* bits: an inline integer, sign-extended, or a literal */
  EMU_FLOAT,   /* an inline floating-point constant: `value`; program.c puts the bits that the opcode's type asks for */
  EMU_SPECIAL, /* index: enum emu_special */
};
enum emu_special {
  EMU_SCC,
  EMU_VCCZ,
  EMU_EXECZ,
  EMU_SHARED_BASE,
  EMU_SHARED_LIMIT,
  EMU_PRIVATE_BASE,
  EMU_PRIVATE_LIMIT
};

/* SDWA: which part of a word. */
enum emu_part { EMU_DWORD, EMU_BYTE_0, EMU_BYTE_1, EMU_BYTE_2, EMU_BYTE_3, EMU_WORD_0, EMU_WORD_1 };
enum emu_unused { EMU_UNUSED_PAD, EMU_UNUSED_SEXT, EMU_UNUSED_PRESERVE };

struct emu_operand {
  uint8_t kind;  /* enum emu_kind */
  uint8_t words; /* registers, of 32 bits */
  uint16_t index;
  uint8_t neg, abs, sext; /* modifiers written around it */
  uint8_t part; /* enum emu_part: SDWA's selection, or v0.l (WORD_0), v0.h (WORD_1) of gfx11's 16-bit registers */
  uint64_t bits;
  double value;
};

/* Modifiers that are on or off. */
enum emu_flag {
  EMU_CLAMP = 1 << 0,
  EMU_LDS = 1 << 1, /* buffer and global loads that write LDS */
  EMU_OFFEN = 1 << 2,
  EMU_IDXEN = 1 << 3,
  EMU_SC0 = 1 << 4, /* glc of gfx90a and gfx11; th:TH_ATOMIC_RETURN of gfx12: an atomic returns the old value */
  EMU_SC1 = 1 << 5,
  EMU_NT = 1 << 6,
  EMU_GDS = 1 << 7,
  EMU_TFE = 1 << 8,
  EMU_BOUND_CTRL = 1 << 9,
  EMU_FETCH_INVALID = 1 << 10, /* fi:1 */
  EMU_SDWA = 1 << 11,
  EMU_DPP = 1 << 12,
  EMU_DUAL = 1 << 13,      /* the first half of a VOPD: the next record reads what stood before this one wrote */
  EMU_OP_SEL_HI = 1 << 14, /* op_sel_hi was written; else VOP3P takes all ones */
  EMU_BEYOND = 1 << 15,    /* found by emu_program_prepare: names a vector register that is not allocated */
  EMU_LAST_USE = 1 << 16,  /* th:TH_LOAD_LU of gfx12: nothing reads these bytes of scratch again */
};

enum emu_dpp {
  EMU_QUAD_PERM = 1, /* dpp_value: four selections of two bits, lane 0 lowest */
  EMU_ROW_SHL,
  EMU_ROW_SHR,
  EMU_ROW_ROR,
  EMU_WAVE_SHL,
  EMU_WAVE_ROL,
  EMU_WAVE_SHR,
  EMU_WAVE_ROR,
  EMU_ROW_MIRROR,
  EMU_ROW_HALF_MIRROR,
  EMU_ROW_BCAST,
  EMU_ROW_NEWBCAST,
  EMU_ROW_SHARE,
  EMU_ROW_XMASK,
  EMU_DPP8, /* dpp_value: eight selections of three bits, lane 0 lowest */
};

/* Counters of outstanding work. gfx9: VM (loads and stores), LGKM, EXP. gfx10 and gfx11: also VS, of stores.
   gfx12: LOAD is VM, STORE is VS, DS is LGKM, KM its own. */
enum emu_counter { EMU_VM, EMU_LGKM, EMU_EXP, EMU_VS, EMU_KM, EMU_SAMPLE, EMU_BVH, EMU_COUNTERS };

struct emu_op;
struct emu_wave;
struct emu_machine;

/* One instruction, as decode.py writes it (ctypes has the same layout). Operands stand as in LLVM's text, a result
   first. */
struct emu_instruction {
  const struct emu_op* op; /* filled by emu_program_prepare */
  uint32_t pc;             /* bytes, from the kernel's first instruction */
  uint32_t size;           /* bytes; 0 for the second half of a VOPD */
  uint32_t opcode;         /* emu_find_op's answer, or UINT32_MAX: unknown, a fault where it is executed */
  uint32_t text;           /* offset of its text in the program's `texts` */
  uint32_t flags;          /* enum emu_flag */
  int32_t target;          /* of a branch: index of an instruction, -1 if there is none */
  int32_t offset, offset1; /* bytes as written: offset:, offset0: (in `offset`) and offset1: */
  uint32_t dpp_value;
  uint8_t dpp, row_mask, bank_mask; /* enum emu_dpp; four bits each */
  uint8_t operands;
  uint8_t omod;                              /* 0 none, 1 mul:2, 2 mul:4, 3 div:2 */
  uint8_t op_sel, op_sel_hi, neg_lo, neg_hi; /* bit k: of source k; op_sel bit (number of sources): of the result */
  uint8_t dst_part, dst_unused;              /* SDWA */
  uint8_t cbsz, abid, blgp;                  /* MFMA */
  int8_t wait[EMU_COUNTERS]; /* of s_waitcnt and its kin: at most so many outstanding; -1: not waited for */
  uint8_t family;            /* enum emu_family */
  int32_t immediate; /* of s_nop; bitop3's table; s_setreg's register and bits; 1: s_waitcnt_depctr with va_vdst(0) */
  struct emu_operand operand[EMU_OPERANDS];

  /* Filled by emu_program_prepare: how many operands are results, how many sources; where the sources' letters begin
     in op->types; ranges of registers read and written, for the hazards. */
  uint8_t results, sources, first_source;
  uint8_t matrix; /* enum emu_matrix */
  char precision; /* the letter of op->types by which MODE's fields are chosen */
  uint8_t reads, writes;
  struct emu_range {
    uint16_t kind, first, count;
    uint16_t half; /* gfx11, gfx12: 1 the lower half of the register alone, 2 the upper; else 0 */
  } read[EMU_OPERANDS + 3], write[4];
};

/* Matrix units: of f64; of f32 sources on gfx942 and gfx950 (SGEMM); of all else. */
enum emu_matrix { EMU_NO_MATRIX, EMU_XDL, EMU_SGEMM, EMU_DGEMM };

enum emu_family {
  EMU_SALU,
  EMU_BRANCH,
  EMU_VALU,
  EMU_MATRIX,
  EMU_LDS_ACCESS,
  EMU_VECTOR_MEMORY,
  EMU_SCALAR_MEMORY,
  EMU_OTHER
};

/* A row function computes all lanes. A source of 64 bits is a row of low words, then one of high words; of 16 bits:
   words with a zero upper half. `d` is scratch, masked into the result afterwards; where the opcode also reads its
   result (v_fmac), that is the last source. */
typedef void emu_lanes(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c);
typedef void emu_run_function(struct emu_wave* wave, const struct emu_instruction* instruction);

enum emu_op_flag {
  EMU_READS_RESULT = 1 << 0, /* the result is a source too (v_fmac, v_dot2c, v_swap) */
  EMU_WRITES_VCC = 1 << 1,   /* without naming it */
  EMU_READS_VCC = 1 << 2,
  EMU_WRITES_SCC = 1 << 3,
  EMU_READS_SCC = 1 << 4,
  EMU_WRITES_EXEC = 1 << 5,
  EMU_READS_M0 = 1 << 6,
  EMU_IGNORES_EXEC = 1 << 7,
  EMU_NO_RESULT = 1 << 8, /* the first operand is a source: stores, s_cmp, ds_write */
  EMU_TRANSCENDENTAL = 1 << 9,
  EMU_KEEPS_HIGH = 1 << 10, /* a 16-bit result leaves the upper half, on gfx9 too */
  /* What a memory instruction raises. */
  EMU_LOADS = 1 << 11, /* returns data to registers (or LDS), and counts as a load */
  EMU_STORES = 1 << 12,
  EMU_ATOMIC = 1 << 13,    /* counts as a load with EMU_SC0, else as a store */
  EMU_SCALAR = 1 << 14,    /* SMEM: returns out of order */
  EMU_LDS_COUNT = 1 << 15, /* counts on LGKM */
  EMU_FLAT = 1 << 16,      /* counts on VM (VS) and on LGKM */
  /* For the wait states. */
  EMU_READS_LANE = 1 << 17,   /* v_readlane, v_readfirstlane */
  EMU_SELECTS_LANE = 1 << 18, /* v_readlane, v_writelane: the third operand is a lane's number */
  EMU_DOT = 1 << 19,
  EMU_STALLS = 1 << 20,     /* s_nop: so many wait states more, as the immediate says */
  EMU_LOW_DATA = 1 << 22,   /* memory: its data are the lower halves of registers */
  EMU_HIGH_DATA = 1 << 23,  /* the upper halves */
  EMU_WAITS_VALU = 1 << 21, /* where the immediate is 1: for all results of the VALU */
};

/* A scalar function: `scc` is in and out. */
typedef uint64_t emu_scalar_function(uint64_t a, uint64_t b, uint32_t* scc);

/*
 * An opcode, by its name without _e32, _e64, _dpp, _sdwa. `types` has a letter for each operand of LLVM's text, results
 * before "=", sources behind: "f=ff", "um=uum", "=ss".
 *   f f32   h f16   b bf16   d f64   u i 32 bits   w 16 bits   q 64 bits   m a mask of lanes (a row of 0 and 1)
 *   p two of 16 bits (f16 where `lanes` says so)   P two f32   s S scalars of 32 and 64 bits   k 16 bits, sign-extended
 *   . anything, left alone
 */
struct emu_op {
  const char* name;
  const char* types;
  emu_run_function* run; /* executes it; for the VALU: emu_valu, which calls `lanes` */
  emu_lanes* lanes;
  uint32_t flags;              /* enum emu_op_flag */
  uint8_t family;              /* enum emu_family */
  uint8_t passes;              /* MFMA: passes of four clocks, for the wait states */
  emu_scalar_function* scalar; /* SALU: what emu_salu calls */
};

/* Each file's opcodes; each table ends with a null name. */
extern const struct emu_op emu_scalar_ops[], emu_branch_ops[], emu_vector_ops[], emu_vector3_ops[],
    emu_vector_compare_ops[], emu_vector_packed_ops[], emu_vector_lane_ops[], emu_convert_ops[], emu_matrix_ops[],
    emu_memory_ops[], emu_scalar_memory_ops[], emu_lds_ops[];

/* ---- faults ----------------------------------------------------------------------------------------------------- */

enum emu_check {
  EMU_OK,
  EMU_UNKNOWN,     /* an instruction, operand or modifier that the executor does not know */
  EMU_ADDRESS,     /* memory that no region has, LDS beyond the allocation, a misaligned access */
  EMU_OUTSTANDING, /* a register used while a load into it is outstanding */
  EMU_RACE,        /* words shared by waves without a barrier between */
  EMU_BARRIER,     /* a barrier that not all waves reach */
  EMU_WAIT_STATES, /* instructions that need others between them */
  EMU_UNWRITTEN,   /* a register or a word of LDS read that nothing wrote */
  EMU_ENDLESS,     /* more instructions than the launch may take */
  EMU_PROGRAM,     /* execution left the program; a reserved setting */
};

struct emu_fault {
  uint32_t check;       /* enum emu_check */
  uint32_t instruction; /* index */
  uint32_t pc;
  uint32_t group[3];
  uint32_t wave;
  int32_t lane;     /* -1: of no lane */
  uint64_t address; /* of memory or LDS, else 0 */
  char why[256];    /* one sentence */
};

/* Records the launch's first fault; the wave stops. `lane` is -1 where it is of no lane. */
void emu_fault(struct emu_wave* wave, enum emu_check check, int lane, uint64_t address, const char* why, ...)
    __attribute__((format(printf, 5, 6)));

/* ---- programs and launches -------------------------------------------------------------------------------------- */

enum emu_target { EMU_GFX90A, EMU_GFX942, EMU_GFX950, EMU_GFX1100, EMU_GFX1151, EMU_GFX1200, EMU_GFX1201 };

struct emu_program {
  uint32_t target;    /* enum emu_target */
  uint32_t wave_size; /* 32 or 64 */
  uint32_t count;
  uint32_t entry;               /* index of the first instruction executed */
  uint32_t plain_entry;         /* the same where no arguments are preloaded: before the code that loads them */
  uint32_t vgprs, agprs, sgprs; /* allocated */
  uint32_t lds;                 /* static, bytes */
  uint32_t scratch;             /* private segment of a lane, bytes */
  uint32_t mode;                /* the MODE register's float bits: round 0:3, denormals 4:7, then dx10_clamp 8, ieee 9,
                                   fp16_ovfl 23 */
  uint32_t properties;          /* kernel_code_properties of the descriptor */
  uint32_t rsrc2;               /* compute_pgm_rsrc2: which SGPRs are set up */
  uint32_t preload;             /* user SGPRs filled with kernel arguments, first of them at dword `preload_offset` */
  uint32_t preload_offset;
  uint32_t kernarg; /* bytes that the descriptor says */
  uint32_t texts_size;
  struct emu_instruction* instructions;
  const char* texts;  /* zero-terminated strings */
  uint64_t* executed; /* by instruction, waves summed: coverage */
};

struct emu_region {
  uint64_t base, size;
  uint32_t writable;
  uint32_t id; /* the caller's */
};

struct emu_launch {
  const struct emu_program* program;
  uint32_t grid[3], block[3]; /* work-groups; work-items of a group */
  uint32_t dynamic_lds;
  uint32_t kernarg_size;
  const uint8_t* kernarg;
  const struct emu_region* regions; /* sorted by base, not touching */
  uint32_t region_count;
  uint32_t flags;         /* enum emu_launch_flag */
  uint64_t schedule_seed; /* 0: waves and groups in order */
  uint64_t contents_seed; /* of registers and LDS; 0: zeros */
  uint64_t limit;         /* instructions of a wave, 0: 2^32 */
};
enum emu_launch_flag {
  EMU_FAULT_UNWRITTEN = 1, /* EMU_UNWRITTEN is a fault; else only counted */
  EMU_NO_HAZARDS = 2,      /* no check of counters, races and wait states */
};

struct emu_report {
  struct emu_fault fault; /* check 0: none */
  uint64_t instructions;  /* executed, waves summed */
  uint64_t unwritten;     /* reads of what nothing wrote */
};

/* Index of an opcode by its name, or UINT32_MAX. */
EMU_EXPORT uint32_t emu_find_op(const char* name);
/* sizeof of the structs by number, for the Python side to compare: 0 operand, 1 instruction, 2 program, 3 launch,
   4 report. */
EMU_EXPORT uint32_t emu_layout(uint32_t which);
/* Makes the records ready. 0, or the index of an instruction + 1 whose operands do not fit its opcode. */
EMU_EXPORT uint32_t emu_program_prepare(struct emu_program* program);
/* Runs a launch to its end or first fault; returns the fault's check. */
EMU_EXPORT uint32_t emu_run(const struct emu_launch* launch, struct emu_report* report);

/* ---- the state of a machine ------------------------------------------------------------------------------------- */

struct emu_lds_word; /* the hazards' own, as the next two */
struct emu_touch;
struct emu_hazards;

struct emu_machine {
  const struct emu_launch* launch;
  const struct emu_program* program;
  struct emu_report* report;
  uint64_t full;     /* EXEC with every lane of a wave */
  uint32_t waves;    /* of a group */
  uint32_t barriers; /* that all waves of the group have reached, so far */
  uint32_t group[3];
  uint8_t* lds;
  uint32_t lds_size;                        /* bytes allocated */
  struct emu_lds_word* lds_words;           /* who touched each word */
  struct emu_touch *lds_reads, *lds_writes; /* by word and wave */
  struct emu_wave* wave;                    /* [waves] */
  struct emu_region* regions;               /* the launch's and the arguments', sorted by base */
  uint32_t region_count;
  const struct emu_region* last_region; /* found last */
  uint8_t* kernarg;                     /* the arguments, where the program reads them */
  uint64_t ordinal;                     /* of the group in its grid */
  uint64_t random;
  uint32_t control; /* what the processor's control word of floating point was set to */
};

struct emu_wave {
  uint32_t vgpr[EMU_VGPRS][EMU_LANES];
  uint32_t sgpr[EMU_SGPRS]; /* EXEC, VCC and M0 too: emu_exec() and its kin read them */
  uint32_t scc;
  uint32_t mode;          /* as struct emu_program's */
  uint32_t next, current; /* indices of instructions */
  uint32_t number;        /* in its group */
  bool done;
  bool waits;       /* at a barrier, until machine->barriers passes `awaited` */
  bool signalled;   /* has reached the barrier that the others have still to reach */
  uint32_t awaited; /* barriers that must be complete for the wave to go on */
  uint8_t* scratch; /* private segments, lane after lane, program->scratch bytes each */
  uint64_t executed;
  struct emu_machine* machine;
  struct emu_hazards* hazards;
};

static inline uint64_t emu_pair(const struct emu_wave* wave, unsigned index) {
  return wave->sgpr[index] | (uint64_t)wave->sgpr[index + 1] << 32;
}
/* Lanes that are on. */
static inline uint64_t emu_exec(const struct emu_wave* wave) { return emu_pair(wave, EMU_EXEC) & wave->machine->full; }

/* ---- operands.c: for every file that executes ------------------------------------------------------------------- */

/* A source's word k (0 low) over the lanes: the register's row itself, or `scratch` filled. No modifiers applied. */
const uint32_t* emu_row(struct emu_wave* wave, const struct emu_operand* operand, unsigned k, uint32_t* scratch);
/* A scalar source, `operand->words` words or two of a constant. */
uint64_t emu_scalar(struct emu_wave* wave, const struct emu_operand* operand);
/* Writes a scalar result of `operand->words` words. */
void emu_write_scalar(struct emu_wave* wave, const struct emu_operand* operand, uint64_t value);
/* Writes word k of a vector result in the lanes of `mask`. */
void emu_write_row(struct emu_wave* wave, const struct emu_operand* operand, unsigned k, uint64_t mask,
                   const uint32_t* row);
/* The VALU's run function: fetches by op->types, calls op->lanes, writes. */
emu_run_function emu_valu;

/* ---- memory.c: for the hazards ---------------------------------------------------------------------------------- */

/* Host memory of `bytes` bytes that one region has, else a fault and null. */
uint8_t* emu_memory_at(struct emu_wave* wave, int lane, uint64_t address, uint32_t bytes, bool write);
/* The same of LDS: checks the allocation, and tells the hazards of the access. */
uint8_t* emu_lds_at(struct emu_wave* wave, int lane, uint32_t address, uint32_t bytes, bool write);

/* ---- hazards.c -------------------------------------------------------------------------------------------------- */

/* Called before an instruction executes, and after it; a memory instruction's results become outstanding then. */
void emu_hazards_before(struct emu_wave* wave, const struct emu_instruction* instruction);
void emu_hazards_after(struct emu_wave* wave, const struct emu_instruction* instruction);
/* Called by emu_lds_at, before the bytes are read or written. */
void emu_hazards_lds(struct emu_wave* wave, int lane, uint32_t address, uint32_t bytes, bool write);
/* A wave reaches a barrier, and goes on from one. */
void emu_hazards_signal(struct emu_wave* wave);
void emu_hazards_passed(struct emu_wave* wave);
/* Of a machine with program and launch set; false without memory. Then before each group; and at the end. */
bool emu_hazards_create(struct emu_machine* machine);
void emu_hazards_reset(struct emu_machine* machine);
void emu_hazards_destroy(struct emu_machine* machine);

#endif
