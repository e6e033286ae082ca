/* The record: fake_driver.h has its lines. */
#include "fake_internal.h"

#include <stdarg.h>
#include <sys/uio.h>
#include <unistd.h>

typedef struct Text {
  char* data;
  size_t size, room;
} Text;

static Text record; /* under fake_lock */
static FILE* file;
static int recording;
static __thread Text notes; /* of the call that is under way; freed when it ends */

static char* grow(Text* text, size_t more) {
  if (text->room - text->size <= more) {
    text->room = 2 * text->room + more + 256;
    text->data = realloc(text->data, text->room);
    if (!text->data) abort();
  }
  return text->data + text->size;
}

__attribute__((format(printf, 2, 0))) static void add(Text* text, const char* format, va_list words) {
  va_list copy;
  va_copy(copy, words);
  int size = vsnprintf(NULL, 0, format, copy);
  va_end(copy);
  vsnprintf(grow(text, (size_t)size), (size_t)size + 1, format, words);
  text->size += (size_t)size;
}

__attribute__((format(printf, 2, 3))) static void print(Text* text, const char* format, ...) {
  va_list words;
  va_start(words, format);
  add(text, format, words);
  va_end(words);
}

void fake_begin(void) { notes.size = 0; }

void fake_note(const char* format, ...) {
  if (!recording) return;
  print(&notes, ", ");
  va_list words;
  va_start(words, format);
  add(&notes, format, words);
  va_end(words);
}

static void add_digits(Text* text, const void* bytes, size_t size) {
  static const char digits[] = "0123456789abcdef";
  char* to = grow(text, 2 * size + 1);
  for (size_t i = 0; i < size; ++i) {
    unsigned char byte = ((const unsigned char*)bytes)[i];
    to[2 * i] = digits[byte >> 4], to[2 * i + 1] = digits[byte & 15];
  }
  text->size += 2 * size;
}

void fake_note_bytes(const char* name, const void* bytes, size_t size) {
  if (!recording) return;
  print(&notes, ", \"%s\": \"", name);
  add_digits(&notes, bytes, size);
  print(&notes, "\"");
}

int fake_note_arguments(const Image* image, const void* const* arguments) {
  if (!recording) return 1;
  print(&notes, ", \"arguments\": [");
  for (int i = 0; i < image->count; ++i) {
    /* Too few pointers are a caller's mistake that is to be told, not one to end the process by. */
    size_t size = image->parameters[i].size;
    char bytes[size + 1];
    struct iovec to = {bytes, size}, from = {(void*)(uintptr_t)arguments[i], size};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)size) return 0;
    print(&notes, i ? ", \"" : "\"");
    add_digits(&notes, bytes, size);
    print(&notes, "\"");
  }
  print(&notes, "]");
  return 1;
}

void fake_note_image(const Image* image) {
  if (!recording) return;
  print(&notes, ", \"symbol\": \"%s\", \"static\": %d, \"parameters\": [", image->symbol, image->fixed);
  for (int i = 0; i < image->count; ++i)
    print(&notes, "%s[%u, %u]", i ? ", " : "", image->parameters[i].offset, image->parameters[i].size);
  print(&notes, "]");
}

int fake_end(int vendor, const char* name, int result) {
  int device = fake_current_device(vendor);
  pthread_mutex_lock(&fake_lock);
  if (recording) {
    size_t begin = record.size;
    print(&record, "{\"call\": \"%s\", \"result\": %d, \"device\": %d", name, result, device);
    if (!result && notes.size) print(&record, "%.*s", (int)notes.size, notes.data);
    print(&record, "}\n");
    if (file) fwrite(record.data + begin, 1, record.size - begin, file), fflush(file);
  }
  pthread_mutex_unlock(&fake_lock);
  free(notes.data);
  notes = (Text){NULL, 0, 0};
  if (vendor == FAKE_AMD && result) fake_remember(result);
  return result;
}

void fake_open_record(const char* path) {
  file = fopen(path, "w");
  if (!file) perror(path), abort();
}

void fake_forget_record(void) {
  record.size = 0;
  recording = 1;
}

EXPORT void fake_set_recording(int on) { recording = on; }

EXPORT const char* fake_record(uint64_t* bytes) {
  *bytes = record.size;
  return record.data;
}

EXPORT void fake_mark(const char* text) {
  fake_begin();
  Text plain = {NULL, 0, 0};
  for (; *text; ++text) print(&plain, "%c", *text == '"' || *text == '\\' || *text < ' ' ? '?' : *text);
  fake_note("\"text\": \"%.*s\", \"cuda_device\": %d", (int)plain.size, plain.data, fake_current_device(FAKE_NVIDIA));
  free(plain.data);
  fake_end(FAKE_AMD, "mark", 0);
}
