/* A program's records made ready: opcodes looked up, constants made bits, registers read and written listed. */
#include <stdlib.h>

#include "rows.h"

static const struct emu_op* const tables[] = {
    emu_scalar_ops,         emu_branch_ops,        emu_vector_ops,        emu_vector3_ops,
    emu_vector_compare_ops, emu_vector_packed_ops, emu_vector_lane_ops,   emu_convert_ops,
    emu_matrix_ops,         emu_memory_ops,        emu_scalar_memory_ops, emu_lds_ops,
};
enum { TABLES = sizeof tables / sizeof *tables, TABLE_SHIFT = 16 };

/* Names that later generations gave to the same instruction. Where a name changed its meaning there is none. */
static const struct {
  const char *name, *meant;
} aliases[] = {
    {"v_add_nc_u32", "v_add_u32"},
    {"v_sub_nc_u32", "v_sub_u32"},
    {"v_subrev_nc_u32", "v_subrev_u32"},
    {"v_add_co_ci_u32", "v_addc_co_u32"},
    {"v_sub_co_ci_u32", "v_subb_co_u32"},
    {"v_subrev_co_ci_u32", "v_subbrev_co_u32"},
    {"v_max_num_f32", "v_max_f32"},
    {"v_min_num_f32", "v_min_f32"},
    {"v_max_num_f16", "v_max_f16"},
    {"v_min_num_f16", "v_min_f16"},
    {"v_max3_num_f32", "v_max3_f32"},
    {"v_min3_num_f32", "v_min3_f32"},
    {"v_pk_max_num_f16", "v_pk_max_f16"},
    {"v_pk_min_num_f16", "v_pk_min_f16"},
    {"v_mad_co_u64_u32", "v_mad_u64_u32"},
    {"v_mad_co_i64_i32", "v_mad_i64_i32"},
    {"v_lshl_add_u64", "v_lshl_add_u64"},
    {"v_fma_legacy_f32", "v_fma_legacy_f32"},
    {"v_cvt_pk_rtz_f16_f32", "v_cvt_pkrtz_f16_f32"},
    {"v_xor_add_u32", "v_xad_u32"},
    {"s_add_co_u32", "s_add_u32"},
    {"s_add_co_i32", "s_add_i32"},
    {"s_add_co_ci_u32", "s_addc_u32"},
    {"s_sub_co_u32", "s_sub_u32"},
    {"s_sub_co_i32", "s_sub_i32"},
    {"s_sub_co_ci_u32", "s_subb_u32"},
    {"s_addk_co_i32", "s_addk_i32"},
    {"s_and_not1_b32", "s_andn2_b32"},
    {"s_and_not1_b64", "s_andn2_b64"},
    {"s_or_not1_b32", "s_orn2_b32"},
    {"s_or_not1_b64", "s_orn2_b64"},
    {"s_and_not1_saveexec_b32", "s_andn2_saveexec_b32"},
    {"s_and_not1_saveexec_b64", "s_andn2_saveexec_b64"},
    {"s_or_not1_saveexec_b32", "s_orn2_saveexec_b32"},
    {"s_or_not1_saveexec_b64", "s_orn2_saveexec_b64"},
    {"s_and_not0_saveexec_b32", "s_andn1_saveexec_b32"},
    {"s_and_not0_saveexec_b64", "s_andn1_saveexec_b64"},
    {"s_ctz_i32_b32", "s_ff1_i32_b32"},
    {"s_ctz_i32_b64", "s_ff1_i32_b64"},
    {"s_clz_i32_u32", "s_flbit_i32_b32"},
    {"s_clz_i32_u64", "s_flbit_i32_b64"},
    {"v_ffbh_u32", "v_clz_i32_u32"},
    {"v_ffbl_b32", "v_ctz_i32_b32"},
    {"s_min_num_f32", "s_min_f32"},
    {"s_max_num_f32", "s_max_f32"},
};

static uint32_t find(const char* name) {
  for (uint32_t table = 0; table < TABLES; table++)
    for (uint32_t row = 0; tables[table][row].name; row++)
      if (!strcmp(tables[table][row].name, name)) return table << TABLE_SHIFT | row;
  return UINT32_MAX;
}

uint32_t emu_find_op(const char* name) {
  for (size_t k = 0; k < sizeof aliases / sizeof *aliases; k++)
    if (!strcmp(aliases[k].name, name)) return find(aliases[k].meant);
  return find(name);
}

uint32_t emu_layout(uint32_t which) {
  static const uint32_t sizes[] = {sizeof(struct emu_operand), sizeof(struct emu_instruction),
                                   sizeof(struct emu_program), sizeof(struct emu_launch), sizeof(struct emu_report)};
  return which < sizeof sizes / sizeof *sizes ? sizes[which] : 0;
}

/* ---- constants -------------------------------------------------------------------------------------------------- */

static void make_bits(struct emu_operand* operand, char letter) {
  if (operand->kind == EMU_INTEGER) {
    bool negative = operand->bits >> 63; /* an inline integer below zero is written with a sign */
    if (letter == 'k') operand->bits = (uint64_t)(int64_t)(int16_t)operand->bits;
    if (letter == 'd' && !negative && operand->bits > 64) operand->bits <<= 32; /* a literal is the upper half */
    if (letter == 'P') operand->bits = (uint32_t)operand->bits | operand->bits << 32;
    return;
  }
  switch (letter) {
    case 'd':
    case 'q':
    case 'S':
      operand->bits = emu_bits64(operand->value);
      return;
    case 'h':
    case 'w':
    case 'p':
      operand->bits = emu_bits16(operand->value);
      return;
    case 'b':
      operand->bits = emu_bits32((float)operand->value) >> 16;
      return;
    case 'P':
      operand->bits = emu_bits32((float)operand->value) * 0x100000001ull;
      return;
    default:
      operand->bits = emu_bits32((float)operand->value);
  }
}

/* ---- registers -------------------------------------------------------------------------------------------------- */

static void add_range(struct emu_range* ranges, uint8_t* count, uint8_t room, struct emu_range range) {
  if (*count < room && range.count) ranges[(*count)++] = range;
}
static void reads(struct emu_instruction* in, struct emu_range range) {
  add_range(in->read, &in->reads, sizeof in->read / sizeof *in->read, range);
}
static void writes(struct emu_instruction* in, struct emu_range range) {
  add_range(in->write, &in->writes, sizeof in->write / sizeof *in->write, range);
}
static bool is_register(const struct emu_operand* operand) {
  return operand->kind == EMU_VGPR || (operand->kind == EMU_SGPR && operand->index != EMU_NULL);
}

static bool is_memory(const struct emu_op* op) {
  return op->family == EMU_LDS_ACCESS || op->family == EMU_VECTOR_MEMORY || op->family == EMU_SCALAR_MEMORY;
}

/* Which half of its register operand k is, where the two are waited for apart. */
static uint16_t half_of(const struct emu_instruction* in, int k, uint32_t target) {
  if (target < EMU_GFX1100 || in->operand[k].kind != EMU_VGPR) return 0;
  if (in->operand[k].part == EMU_WORD_0) return 1;
  if (in->operand[k].part == EMU_WORD_1) return 2;
  /* Of what is stored, the address stands first, but not of buffers. */
  int data = in->op->flags & EMU_STORES && strncmp(in->op->name, "buffer", 6) ? 1 : 0;
  if (!is_memory(in->op) || k != data) return 0;
  return in->op->flags & EMU_LOW_DATA ? 1 : in->op->flags & EMU_HIGH_DATA ? 2 : 0;
}

static void list_registers(struct emu_instruction* in, uint32_t wave_words, uint32_t target) {
  uint32_t flags = in->op->flags;
  in->reads = in->writes = 0;
  for (int k = 0; k < in->operands; k++) {
    const struct emu_operand* operand = &in->operand[k];
    if (!is_register(operand)) continue;
    struct emu_range range = {operand->kind, operand->index, operand->words, half_of(in, k, target)};
    if (k < in->results) writes(in, range);
    if (k >= in->results || flags & EMU_READS_RESULT) reads(in, range);
  }
  if (flags & EMU_READS_VCC) reads(in, (struct emu_range){EMU_SGPR, EMU_VCC, (uint16_t)wave_words, 0});
  if (flags & EMU_WRITES_VCC) writes(in, (struct emu_range){EMU_SGPR, EMU_VCC, (uint16_t)wave_words, 0});
  if (flags & EMU_READS_M0 || in->flags & EMU_LDS) reads(in, (struct emu_range){EMU_SGPR, EMU_M0, 1, 0});
}

/* ---- instructions ----------------------------------------------------------------------------------------------- */

/* VOP3P takes the high halves for high results where op_sel_hi is not written. */
static bool is_packed(const struct emu_op* op) { return strpbrk(op->types, "pP") != 0; }

static uint8_t results_of(const struct emu_instruction* in) {
  const struct emu_op* op = in->op;
  if (is_memory(op)) {
    if (op->flags & EMU_NO_RESULT) return 0;
    if (op->flags & EMU_ATOMIC && !(in->flags & EMU_SC0) && op->family == EMU_VECTOR_MEMORY) return 0;
    if (in->flags & EMU_LDS) return 0;
    return 1;
  }
  const char* sign = strchr(op->types, '=');
  uint8_t results = sign ? (uint8_t)(sign - op->types) : op->flags & EMU_NO_RESULT ? 0 : in->operands > 0;
  /* v_cmpx names no result from gfx10 on. */
  if (op->flags & EMU_WRITES_EXEC && sign && results && in->operands == strlen(sign + 1)) return 0;
  return results;
}

/* Of the result where it is floating-point, else (a comparison, a conversion to integers) of a source. */
static char precision_of(const char* types) {
  size_t at = types ? strcspn(types, "fPhdp") : 0;
  return types && types[at] ? types[at] : 'f';
}

static uint8_t matrix_of(const char* name, uint32_t target) {
  size_t length = strlen(name);
  if (strstr(name, "_f64_")) return EMU_DGEMM;
  bool single = !strcmp(name + length - 3, "f32") && name[length - 4] != 'x';
  return single && target != EMU_GFX90A ? EMU_SGEMM : EMU_XDL;
}

static bool prepare(struct emu_instruction* in, const struct emu_program* program) {
  if (in->opcode == UINT32_MAX) {
    in->op = 0;
    return true;
  }
  const struct emu_op* op = in->op = &tables[in->opcode >> TABLE_SHIFT][in->opcode & ((1u << TABLE_SHIFT) - 1)];
  in->family = op->family;
  in->results = results_of(in);
  in->precision = precision_of(op->types);
  in->matrix = op->family == EMU_MATRIX ? matrix_of(op->name, program->target) : EMU_NO_MATRIX;
  const char* sign = op->types ? strchr(op->types, '=') : 0;
  in->first_source = sign ? (uint8_t)(sign + 1 - op->types) : 0;
  uint8_t sources = sign ? (uint8_t)strlen(sign + 1) : (uint8_t)(in->operands - in->results);
  uint32_t wave_words = program->wave_size / 32;
  /* v_dual_cndmask_b32 leaves VCC out. */
  if (sign && sources == 3 && sign[3] == 'm' && in->operands + 1 == in->results + sources)
    in->operand[in->operands++] =
        (struct emu_operand){.kind = EMU_SGPR, .words = (uint8_t)wave_words, .index = EMU_VCC};
  in->sources = sources;
  if (sign && in->operands != in->results + sources) return false;
  if (op->types && is_packed(op) && !(in->flags & EMU_OP_SEL_HI)) in->op_sel_hi = 7;
  for (int k = 0; k < in->operands; k++) {
    struct emu_operand* operand = &in->operand[k];
    char letter = sign && k >= in->results ? sign[1 + k - in->results] : 's';
    if (operand->kind == EMU_INTEGER || operand->kind == EMU_FLOAT) make_bits(operand, letter);
    if (!is_register(operand)) continue;
    uint32_t last = (uint32_t)operand->index + operand->words;
    if (last > (operand->kind == EMU_VGPR ? EMU_VGPRS : EMU_SGPRS)) return false;
    if (operand->kind == EMU_VGPR && (operand->index < 256 ? last > program->vgprs : last - 256 > program->agprs))
      in->flags |= EMU_BEYOND;
  }
  list_registers(in, wave_words, program->target);
  return true;
}

uint32_t emu_program_prepare(struct emu_program* program) {
  for (uint32_t k = 0; k < program->count; k++)
    if (!prepare(&program->instructions[k], program)) return k + 1;
  return 0;
}
