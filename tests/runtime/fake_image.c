/* What images say of their kernel, as the vendors' drivers read it: its name, its static shared memory, and where each
 * parameter lies. Images are trusted to be whole: their digests are checked before a driver gets them. */
#include "fake_internal.h"

#include <elf.h>

enum { CUBIN = 190, HSACO = 224, NOTE_METADATA = 32 };
/* Attributes of .nv.info.<kernel>: u8 format, u8 attribute, then a u16 value or, in format 4, a u16 size and bytes. */
enum { SIZED = 4, PARAMETER_INFO = 0x17, WIDE_PARAMETER_INFO = 0x45 };
/* From sm_90 on the system has the first KiB of a block's shared memory: .nv.shared counts it, no launch does. */
enum { SYSTEM_SHARED = 1024 };

static const Elf64_Shdr* section(const uint8_t* code, int number) {
  const Elf64_Ehdr* elf = (const void*)code;
  return (const void*)(code + elf->e_shoff + (size_t)number * elf->e_shentsize);
}

static const char* section_name(const uint8_t* code, int number) {
  const Elf64_Ehdr* elf = (const void*)code;
  return (const char*)code + section(code, elf->e_shstrndx)->sh_offset + section(code, number)->sh_name;
}

/* How long a driver finds an ELF file to be: it is handed no size. */
static size_t elf_size(const uint8_t* code) {
  const Elf64_Ehdr* elf = (const void*)code;
  size_t end = elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize;
  for (int i = 0; i < elf->e_shnum; ++i) {
    const Elf64_Shdr* s = section(code, i);
    if (s->sh_type != SHT_NOBITS && s->sh_offset + s->sh_size > end) end = s->sh_offset + s->sh_size;
  }
  for (int i = 0; i < elf->e_phnum; ++i) {
    const Elf64_Phdr* p = (const void*)(code + elf->e_phoff + (size_t)i * elf->e_phentsize);
    if (p->p_offset + p->p_filesz > end) end = p->p_offset + p->p_filesz;
  }
  return end;
}

/* ---- NVIDIA ------------------------------------------------------------------------------------------------------ */

static int read_parameter(Image* image, const uint8_t* value, int wide) {
  uint16_t ordinal, offset;
  uint32_t size;
  memcpy(&ordinal, value + 4, 2), memcpy(&offset, value + 6, 2), memcpy(&size, value + 8, 4);
  if (ordinal >= PARAMETERS) return 0;
  image->parameters[ordinal] = (Parameter){offset, wide ? size : size >> 18};
  if (image->count <= ordinal) image->count = ordinal + 1;
  return 1;
}

static int read_cubin(const uint8_t* code, Image* image) {
  const Elf64_Ehdr* elf = (const void*)code;
  static const char info[] = ".nv.info.", shared[] = ".nv.shared.";
  unsigned sm = elf->e_ident[EI_ABIVERSION] < 8 ? elf->e_flags & 0xFF : elf->e_flags >> 8 & 0xFF;
  for (int i = 0; i < elf->e_shnum; ++i) {
    const char* name = section_name(code, i);
    const Elf64_Shdr* s = section(code, i);
    if (strncmp(name, shared, sizeof shared - 1) == 0)
      image->fixed = (int)s->sh_size - (sm >= 90 && s->sh_size >= SYSTEM_SHARED ? SYSTEM_SHARED : 0);
    if (strncmp(name, info, sizeof info - 1) != 0) continue;
    if (image->symbol[0]) return 0; /* a second kernel */
    snprintf(image->symbol, sizeof image->symbol, "%s", name + sizeof info - 1);
    const uint8_t *at = code + s->sh_offset, *end = at + s->sh_size;
    for (uint16_t size; at + 4 <= end; at += 4 + (at[0] == SIZED ? size : 0)) {
      memcpy(&size, at + 2, 2);
      if (at[0] == SIZED && (at[1] == PARAMETER_INFO || at[1] == WIDE_PARAMETER_INFO) &&
          !read_parameter(image, at + 4, at[1] == WIDE_PARAMETER_INFO))
        return 0;
    }
  }
  return image->symbol[0] != 0;
}

/* Of PTX the parameters are declared: ".entry name(" ".param .u64 .ptr ... name_param_0," ... ")". */
static int read_ptx(const char* text, Image* image) {
  const char* entry = strstr(text, ".entry ");
  if (!entry || sscanf(entry, ".entry %255[^( \n]", image->symbol) != 1) return 0;
  uint32_t offset = 0;
  const char* end = strchr(entry, ')');
  for (const char* at = entry; (at = strstr(at, ".param ")) && at < end; ++at) {
    char kind;
    unsigned bits, elements = 1;
    const char* last = at + strcspn(at, ",)");
    const char* type = at + strlen(".param ");
    unsigned align = 0;
    if (sscanf(type, ".align %u", &align) == 1) type = strchr(type + 1, '.');
    if (image->count == PARAMETERS || sscanf(type, ".%c%u", &kind, &bits) != 2) return 0;
    const char* bracket = memchr(at, '[', (size_t)(last - at));
    if (bracket) sscanf(bracket, "[%u]", &elements);
    if (!align) align = bits / 8;
    offset = (offset + align - 1) / align * align;
    image->parameters[image->count++] = (Parameter){offset, bits / 8 * elements};
    offset += bits / 8 * elements;
  }
  return 1;
}

/* ---- AMD: a map of MessagePack ----------------------------------------------------------------------------------- */

typedef struct Item {
  char kind;      /* 'i'nteger, 's'tring, 'a'rray, 'm'ap, or '?' */
  uint64_t value; /* of an integer; else how many bytes or elements follow */
  const uint8_t* text;
} Item;

/* Reads an item's head, and a string's body too. */
static Item read_item(const uint8_t** at) {
  uint8_t tag = *(*at)++;
  Item item = {'?', 0, NULL};
  int bytes = 0;
  if (tag < 0x80) return (Item){'i', tag, NULL};
  if (tag < 0xC0) {
    item.kind = tag < 0x90 ? 'm' : tag < 0xA0 ? 'a' : 's';
    item.value = tag & (tag < 0xA0 ? 15 : 31);
  } else if (tag >= 0xCC && tag <= 0xD3) {
    item.kind = 'i', bytes = 1 << ((tag - 0xCC) & 3);
  } else if (tag >= 0xD9 && tag <= 0xDB) {
    item.kind = 's', bytes = 1 << (tag - 0xD9);
  } else if (tag >= 0xDC && tag <= 0xDF) {
    item.kind = tag < 0xDE ? 'a' : 'm', bytes = tag & 1 ? 4 : 2;
  }
  for (int i = 0; i < bytes; ++i) item.value = item.value << 8 | *(*at)++;
  item.text = *at;
  if (item.kind == 's') *at += item.value;
  return item;
}

static void skip_item(const uint8_t** at) {
  Item item = read_item(at);
  uint64_t inner = item.kind == 'm' ? 2 * item.value : item.kind == 'a' ? item.value : 0;
  for (uint64_t i = 0; i < inner; ++i) skip_item(at);
}

static int is_text(const Item* item, const char* text) {
  return item->kind == 's' && item->value == strlen(text) && memcmp(item->text, text, item->value) == 0;
}

/* One of a kernel's .args. What the runtime itself fills in is not one of its parameters. */
static void read_argument(const uint8_t** at, Image* image) {
  Parameter parameter = {0, 0};
  int hidden = 0;
  for (uint64_t n = read_item(at).value; n; --n) {
    Item key = read_item(at);
    const uint8_t* value = *at;
    skip_item(at);
    Item item = read_item(&value);
    if (is_text(&key, ".offset")) parameter.offset = (uint32_t)item.value;
    if (is_text(&key, ".size")) parameter.size = (uint32_t)item.value;
    if (is_text(&key, ".value_kind")) hidden = item.value > 7 && memcmp(item.text, "hidden_", 7) == 0;
  }
  if (!hidden && image->count < PARAMETERS) image->parameters[image->count++] = parameter;
}

static void read_kernel(const uint8_t** at, Image* image) {
  for (uint64_t n = read_item(at).value; n; --n) {
    Item key = read_item(at);
    const uint8_t* value = *at;
    skip_item(at);
    Item item = read_item(&value);
    if (is_text(&key, ".name")) snprintf(image->symbol, sizeof image->symbol, "%.*s", (int)item.value, item.text);
    if (is_text(&key, ".group_segment_fixed_size")) image->fixed = (int)item.value;
    if (is_text(&key, ".args"))
      for (uint64_t i = 0; i < item.value; ++i) read_argument(&value, image);
  }
}

static int read_metadata(const uint8_t* at, Image* image) {
  for (uint64_t n = read_item(&at).value; n; --n) {
    Item key = read_item(&at);
    if (!is_text(&key, "amdhsa.kernels")) {
      skip_item(&at);
      continue;
    }
    if (read_item(&at).value != 1) return 0;
    read_kernel(&at, image);
  }
  return image->symbol[0] != 0;
}

static int read_hsaco(const uint8_t* code, Image* image) {
  const Elf64_Ehdr* elf = (const void*)code;
  for (int i = 0; i < elf->e_shnum; ++i) {
    const Elf64_Shdr* s = section(code, i);
    const Elf64_Nhdr* note = (const void*)(code + s->sh_offset);
    if (s->sh_type == SHT_NOTE && note->n_type == NOTE_METADATA)
      return read_metadata((const uint8_t*)(note + 1) + (note->n_namesz + 3) / 4 * 4, image);
  }
  return 0;
}

/* ---- any --------------------------------------------------------------------------------------------------------- */

static int read_fake(const char* text, Image* image) {
  enum { MAP_ALIGNMENT = 64 };
  int at = 0, n;
  uint32_t size, offset = 0;
  if (sscanf(text, "FAKE %255s %d%n", image->symbol, &image->fixed, &at) != 2) return 0;
  for (text += at; image->count < PARAMETERS && sscanf(text, "%u%n", &size, &n) == 1; text += n) {
    uint32_t align = size < MAP_ALIGNMENT ? size : MAP_ALIGNMENT;
    offset = (offset + align - 1) / align * align;
    image->parameters[image->count++] = (Parameter){offset, size};
    offset += size;
  }
  return 1;
}

size_t fake_read_image(const void* code, Image* image) {
  if (memcmp(code, "FAKE ", 5) == 0) return read_fake(code, image) ? strlen(code) + 1 : 0;
  if (memcmp(code, "\177ELF", 4) != 0) return strstr(code, ".version") && read_ptx(code, image) ? strlen(code) + 1 : 0;
  int machine = ((const Elf64_Ehdr*)code)->e_machine;
  int good = machine == CUBIN ? read_cubin(code, image) : machine == HSACO && read_hsaco(code, image);
  return good ? elf_size(code) : 0;
}
