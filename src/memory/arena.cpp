#include "memory/arena.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "errors.hpp"
#include "kernels/core/words.hpp"

namespace tessera::memory {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // absent, or the word "max"
}

/// The number after `key` in a file of lines "key number" or "key: number unit".
std::optional<std::int64_t> number_behind(const std::string& key, const fs::path& path) {
  std::ifstream file(path);
  for (std::string word; file >> word; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    std::int64_t value = 0;
    if (word == key && file >> value) return value;
  }
  return std::nullopt;
}

/// How the two versions of control groups name things; v1 has a hierarchy per controller.
struct ControlGroups {
  const char *mount, *limit, *usage, *cache;
};
constexpr ControlGroups kVersion1{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file"};
constexpr ControlGroups kVersion2{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

/// A group's remaining memory: its limit minus its usage, except reclaimable file cache.
std::optional<std::int64_t> left_in(const fs::path& group, const ControlGroups& names) {
  const auto limit = number_in(group / names.limit);
  if (!limit) return std::nullopt;
  const std::int64_t used = number_in(group / names.usage).value_or(0);
  const std::int64_t cache = number_behind(names.cache, group / "memory.stat").value_or(0);
  return std::max<std::int64_t>(*limit - std::max<std::int64_t>(used - cache, 0), 0);
}

/// The rest of a limit of this process after `used` pages; without a limit, the largest number.
std::int64_t left_of_limit(decltype(RLIMIT_AS) limit, std::int64_t used_pages) {
  rlimit now{};
  if (getrlimit(limit, &now) != 0 || now.rlim_cur == RLIM_INFINITY) return std::numeric_limits<std::int64_t>::max();
  return std::max<std::int64_t>(static_cast<std::int64_t>(now.rlim_cur) - used_pages * sysconf(_SC_PAGESIZE), 0);
}

/// The least that this process's limits leave of its address space and data.
std::int64_t left_to_process(const fs::path& root) {
  std::int64_t size = 0, resident = 0, shared = 0, text = 0, unused = 0, data = 0;
  std::ifstream(root / "proc/self/statm") >> size >> resident >> shared >> text >> unused >> data;  // pages
  return std::min(left_of_limit(RLIMIT_AS, size), left_of_limit(RLIMIT_DATA, data));
}

/// The least of the system's available memory and the control groups' remainders.
std::int64_t left_on_host(const fs::path& root) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  if (const auto kib = number_behind("MemAvailable:", root / "proc/meminfo")) least = *kib * 1024;

  // Lines "number:controllers:path"; without controllers it is version 2. The group and all its ancestors limit it.
  // A container may not see its path under the mount: then the mount itself is its group.
  std::ifstream membership(root / "proc/self/cgroup");
  for (std::string line; std::getline(membership, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_version_2 = controllers == ",,";
    if (!is_version_2 && controllers.find(",memory,") == std::string::npos) continue;
    const ControlGroups& names = is_version_2 ? kVersion2 : kVersion1;
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();; group = group.parent_path()) {
      if (const auto left = left_in(root / names.mount / group, names)) least = std::min(least, *left);
      if (group.empty()) break;
    }
  }
  return least;
}

}  // namespace

std::int64_t HostMemory::of_each(int ranks_on_host) const {
  return std::max<std::int64_t>(std::min(shared / ranks_on_host, own) - kLibraryBytes, 0);
}

HostMemory host_memory(const fs::path& root) { return {left_on_host(root), left_to_process(root)}; }

std::int64_t available_host_bytes(int ranks_on_host) { return host_memory().of_each(ranks_on_host); }

void require_host_memory(const Layout& layout, int ranks_on_host, const std::string& advice) {
  const std::int64_t rank_bytes = layout.total_bytes() + layout.arena_bytes(Space::host);
  const std::int64_t available = available_host_bytes(ranks_on_host);
  if (rank_bytes <= available) return;
  throw Failure(Exit::out_of_memory,
                "this deck needs {} of memory on this host ({} x {}), but {} are available beside the {} per rank that "
                "are left to MPI, BLAS and HDF5\n{}{}",
                readable_bytes(static_cast<double>(rank_bytes) * ranks_on_host), counted(ranks_on_host, "rank"),
                readable_bytes(rank_bytes), readable_bytes(static_cast<double>(available) * ranks_on_host),
                readable_bytes(kLibraryBytes), layout.table(), advice);
}

void refuse_arena(const Layout& layout, Space space, const std::exception& refusal) {
  if (exit_of(refusal) != Exit::out_of_memory) throw;
  const char* advice = space == Space::device
                           ? "another process has taken the memory meanwhile: free it, or make train.micro_batch_size "
                             "or the model smaller"
                           : "another process has taken the host's memory meanwhile: free it, or keep less there "
                             "(another parallel.offload, or parallel.shard over more ranks)";
  throw Failure(Exit::out_of_memory, "{}\n{}\n{}", refusal.what(), layout.table(), advice);
}

template <class MemorySpace>
Arena::Block<MemorySpace>::Block(const Layout& layout, Space space, const char* label) {
  if (layout.arena_bytes(space) == 0 && space != Space::device) return;
  try {
    bytes = Bytes(Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(label)),
                  layout.arena_bytes(space) + Layout::kAlignment);
  } catch (const std::exception& refusal) {
    refuse_arena(layout, space, refusal);
  }
  Kokkos::deep_copy(bytes, static_cast<unsigned char>(0xFF));
  // A View's data follow a header, so they are only half as aligned as the layout promises.
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  base = bytes.data() + (Layout::kAlignment - address % Layout::kAlignment) % Layout::kAlignment;
}

Arena::Arena(const Layout& layout)
    : layout_(&layout), device_(layout, Space::device, "tessera::arena"), host_(layout, Space::host, "tessera::host") {}

void Arena::keep_until_exit() {
  if constexpr (!kernels::kIsHost<kernels::Device>)
    new auto(device_.bytes);  // one reference more, which nobody gives back
}

}  // namespace tessera::memory
