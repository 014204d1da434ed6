#include "pages.hpp"

#include <cinttypes>
#include <cstdio>

namespace fake_cuda {

bool can_be_locked(uintptr_t begin, std::size_t bytes, bool read_only) {
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return true;
  uintptr_t reached = page_of(begin);
  const uintptr_t end = page_after(begin + bytes);
  char line[512];
  while (reached < end && std::fgets(line, sizeof(line), maps) != nullptr) {
    uintptr_t first = 0, last = 0;
    char rights[5] = "";
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &first, &last, rights) != 3) continue;
    if (first > reached) break;  // nothing is mapped there
    if (last <= reached) continue;
    if (rights[0] != 'r' || (!read_only && rights[1] != 'w')) break;
    reached = last;
  }
  std::fclose(maps);
  return reached >= end;
}

}  // namespace fake_cuda
