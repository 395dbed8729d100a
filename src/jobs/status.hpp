/// <directory>/status: one line that says how far a training run is, for `watch cat`.
///
///     running   step 120/400   30 %  00:41 left  loss 2.3121  val 2.4012  80.0k tokens/s  at 12:31:05  job 17
///
/// For rank 0. A line that cannot be written is lost: run.h5, which lies beside it, tells of a full disk.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace tessera::jobs {

class Status {
 public:
  static constexpr const char* kName = "status";
  static constexpr double kEvery_s = 1;

  explicit Status(const std::filesystem::path& directory) : path_(directory / kName) {}

  /// Replaces the line, `state` first. A reader sees the old one or the new one.
  void write(const std::string& state, const std::string& progress);

  /// Whether the last line is older than kEvery_s.
  bool is_due() const;

 private:
  std::filesystem::path path_;
  std::chrono::steady_clock::time_point written_{};
};

}  // namespace tessera::jobs
