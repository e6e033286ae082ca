// Where packs are searched for, and which are trusted.
#include <stdio.h>
#include <unistd.h>

#include "runtime.h"

namespace kiln {
namespace {

// The search for one pack: folder after folder, until one is right.
struct Search {
  Search(Family& family, const kiln_pack_table& pack, const Trust& trust) : family(family), pack(pack), trust(trust) {}

  Family& family;
  const kiln_pack_table& pack;
  const Trust& trust;
  Pack* found = nullptr;
  kiln_status status = KILN_E_PACK_NOT_FOUND;  // of the first file that was there and not right
  FixedText<1024> sentence;                    // its sentence
  FixedText<1400> looked;
};

// True when the search is over.
bool look_in(Search& search, const char* folder, size_t length, const char* below) {
  if (length == 0) return false;
  char path[4096];
  int n = snprintf(path, sizeof path, "%.*s%s/%s", static_cast<int>(length), folder, below, search.pack.file);
  const Options& options = search.family.runtime->options;
  if (n < 0 || static_cast<size_t>(n) >= sizeof path) {
    FixedText<160> name;  // as much of it as tells which it is
    name.add("%.60s... (%zu characters, too long for a path)", folder, length);
    search.looked.add("%s%s", search.looked.length() ? ", " : "", name.c_str());
    log(options, KILN_LOG_WARNING, "passed over: the folder %s", name.c_str());
    return false;
  }
  search.looked.add("%s%.*s%s", search.looked.length() ? ", " : "", static_cast<int>(length), folder, below);
  kiln_status status = open_pack(path, search.pack.target, search.trust, &search.found);
  if (status == KILN_OK) {
    log(options, KILN_LOG_INFO, "opened %s", path);
    return true;
  }
  if (status == KILN_E_PACK_NOT_FOUND) {
    path[length] = '\0';
    // A path that was given may be mistyped; the one beside the library was not given.
    if (!*below && access(path, F_OK) != 0)
      log(options, KILN_LOG_WARNING, "passed over: the folder %s does not exist", path);
    return false;
  }
  // Going on is no fallback: a pack of the right digest is the same pack wherever it lies.
  log(options, KILN_LOG_WARNING, "passed over: %s", kiln_error());
  if (search.status == KILN_E_PACK_NOT_FOUND) {
    search.status = status;
    search.sentence.add("%s", kiln_error());
  }
  return status == KILN_E_OUT_OF_MEMORY;
}

bool look_in_list(Search& search, const char* folders) {
  while (folders) {
    const char* end = strchr(folders, ':');
    size_t length = end ? static_cast<size_t>(end - folders) : strlen(folders);
    if (look_in(search, folders, length, "")) return true;
    folders = end ? end + 1 : nullptr;
  }
  return false;
}

// Another family of the same release may have opened this very pack.
Pack* find_open(kiln_runtime& runtime, const Trust& trust, const char* target) {
  for (Pack* pack = runtime.packs; pack; pack = pack->next)
    for (int32_t i = 0; i < trust.count; ++i)
      if (memcmp(pack->digest, trust.digests[i], 32) == 0 && strcmp(pack->string(pack->counts->target), target) == 0)
        return pack;
  return nullptr;
}

kiln_status search_pack(Family& family, const kiln_pack_table& table, const Trust& trust, Pack** out) {
  kiln_runtime& runtime = *family.runtime;
  if ((*out = find_open(runtime, trust, table.target))) return KILN_OK;
  Search search(family, table, trust);
  bool over = look_in_list(search, runtime.options.pack_path) || look_in_list(search, runtime.options.environment) ||
              (family.folder && look_in(search, family.folder, strlen(family.folder), "/kiln.images"));
  if (search.found) {
    *out = search.found;
    search.found->next = runtime.packs;
    runtime.packs = search.found;
    return KILN_OK;
  }
  if (over) return out_of_memory();
  if (search.status != KILN_E_PACK_NOT_FOUND) return fail(search.status, "%s", search.sentence.c_str());
  return fail(
      KILN_E_PACK_NOT_FOUND,
      "there is no pack %s in %s; name its folder in kiln_options.pack_path or KILN_PACK_PATH, or put it beside "
      "the library in kiln.images/",
      table.file, search.looked.c_str());
}

}  // namespace

kiln_status get_pack(Family& family, int32_t number, Pack** out) {
  std::atomic<Pack*>& slot = family.packs[number];
  if ((*out = slot.load(std::memory_order_acquire))) return KILN_OK;
  kiln_runtime& runtime = *family.runtime;
  Lock lock(runtime.lock);
  if ((*out = slot.load(std::memory_order_relaxed))) return KILN_OK;
  const kiln_pack_table& table = family.table->packs[number];
  const Options& options = runtime.options;
  size_t most = static_cast<size_t>(options.trusted_count) + 1;
  uint8_t (*digests)[32] = reinterpret_cast<uint8_t (*)[32]>(allocate<uint8_t>(most * 32));
  if (!digests) return out_of_memory();
  Trust trust = {digests, 0, family.table->version, options.keys, options.key_count};
  if (table.has_index_digest) memcpy(digests[trust.count++], table.index_digest, 32);
  for (int32_t i = 0; i < options.trusted_count; ++i) memcpy(digests[trust.count++], options.trusted[i], 32);
  kiln_status status = search_pack(family, table, trust, out);
  free(digests);
  if (status == KILN_OK) slot.store(*out, std::memory_order_release);
  return status;
}

}  // namespace kiln
