#include "parallel/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <random>

namespace tessera::parallel {
namespace {

std::string failure_of(const char* call) { return std::string(call) + ": " + std::strerror(errno); }

/// The link target that /proc shows for a descriptor of the memory with that name.
std::string target_of(const std::string& name) { return "/memfd:" + name + " (deleted)"; }

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes) : bytes_(bytes) {
  std::random_device random;
  char name[32];
  std::snprintf(name, sizeof name, "tessera-%08x%08x", random(), random());
  file_ = ::memfd_create(name, MFD_CLOEXEC);
  if (file_ < 0) {
    fault_ = failure_of("memfd_create");
  } else if (::ftruncate(file_, static_cast<off_t>(bytes)) != 0) {
    fault_ = failure_of("ftruncate");
  } else {
    std::snprintf(address_.data(), address_.size(), "/proc/%ld/fd/%d %s", static_cast<long>(::getpid()), file_, name);
  }
  map(bytes, file_);
}

SharedMemory::SharedMemory(std::size_t bytes, const Address& address) : bytes_(bytes), address_(address) {
  const int file = open_of_other();
  map(bytes, file);
  if (file >= 0) ::close(file);
}

/// A descriptor of the memory at the address; sets the fault on failure.
int SharedMemory::open_of_other() {
  const std::string text(address_.data(), ::strnlen(address_.data(), address_.size()));
  const std::size_t space = text.find(' ');
  if (space == std::string::npos) {
    fault_ = "the process that creates the memory could not";
    return -1;
  }
  // Another container may know the process by another number, and by this one a process with files of its own.
  const std::string path = text.substr(0, space);
  char target[128];
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  if (length < 0) {
    fault_ = failure_of(path.c_str());
    return -1;
  }
  if (std::string(target, static_cast<std::size_t>(length)) != target_of(text.substr(space + 1))) {
    fault_ = path + " is something else here";
    return -1;
  }
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) {
    fault_ = failure_of(path.c_str());
  } else if (status.st_size != static_cast<off_t>(bytes_)) {
    fault_ = path + " has another length";
  }
  return file;
}

SharedMemory::~SharedMemory() {
  close_to_others();
  ::munmap(data_, bytes_);
}

void SharedMemory::close_to_others() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

void SharedMemory::map(std::size_t bytes, int file) {
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  data_ = MAP_FAILED;
  if (fault_.empty()) {
    data_ = ::mmap(nullptr, bytes, kAccess, MAP_SHARED, file, 0);
    if (data_ == MAP_FAILED) fault_ = failure_of("mmap");
  }
  if (data_ == MAP_FAILED) data_ = ::mmap(nullptr, bytes, kAccess, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data_ == MAP_FAILED) throw std::bad_alloc();
}

}  // namespace tessera::parallel
