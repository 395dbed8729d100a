/// What the fuzz targets share. A target gives one input to a reader, which must take it or refuse it by a Failure with
/// one of the reader's codes and a next action; whatever else happens ends the process.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>

#include "errors.hpp"

/// libFuzzer's entry point; replay.cpp calls it, too.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace tessera::fuzz {

inline void require(bool holds, std::string_view what) {
  if (holds) return;
  std::cerr << "fuzz: " << what << std::endl;
  std::abort();
}

/// Whether a sentence about a fault has a part that says what to do.
inline bool names_action(std::string_view message) {
  for (const std::string_view mark : {". ", "; ", ": use ", "  "}) {
    if (message.find(mark) != std::string_view::npos) return true;
  }
  return false;
}

template <class Work>
void take_or_refuse(std::initializer_list<Exit> codes, const Work& work) {
  try {
    work();
  } catch (const Failure& failure) {
    bool is_right = false;
    for (const Exit code : codes) is_right = is_right || failure.code() == code;
    require(is_right, "code " + std::to_string(static_cast<int>(failure.code())) + ": " + failure.what());
    require(names_action(failure.what()), std::string("names no action: ") + failure.what());
  } catch (const std::exception& exception) {
    require(false, std::string("not a Failure: ") + exception.what());
  }
}

/// A folder of this process (TMPDIR says where), removed at its end.
inline const std::filesystem::path& scratch_folder() {
  struct Folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("tessera_fuzz_" + std::to_string(::getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder folder;
  return folder.path;
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  require(static_cast<bool>(file.flush()), "cannot write " + path.string());
}

inline std::string text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace tessera::fuzz
