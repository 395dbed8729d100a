#include "config/extension.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace tessera::config {
namespace {

struct Registered {
  Extension extension;
  bool is_there = false;  // somebody has registered one
  bool is_read = false;   // tables may have been made from it
};

Registered& registered() {
  static Registered only;
  return only;
}

}  // namespace

void extend(Extension extension) {
  Registered& only = registered();
  if (only.is_there || only.is_read) throw std::logic_error("config: register one extension, before the first deck");
  only.extension = std::move(extension);
  only.is_there = true;
}

const Extension& extension() {
  registered().is_read = true;
  return registered().extension;
}

bool is_left_out(std::string_view name) {
  const std::string_view section = name.substr(0, name.find('.'));
  return !registered().is_there && (section == "bench" || section == "experiment");
}

std::vector<const JobTraits*> all_jobs() {
  std::vector<const JobTraits*> jobs;
  for (const JobTraits& job : kJobs) jobs.push_back(&job);
  for (const JobTraits& job : extension().jobs) jobs.push_back(&job);
  return jobs;
}

const JobTraits& traits_of(JobKind kind) {
  for (const JobTraits* job : all_jobs()) {
    if (job->kind == kind) return *job;
  }
  throw std::logic_error("config: a job.kind that no room has registered");
}

const std::vector<RenamedKeys>& renamed_keys() {
  static const std::vector<RenamedKeys> table = [] {
    std::vector<RenamedKeys> rows = product_renamed_keys();
    rows.insert(rows.end(), extension().renamed.begin(), extension().renamed.end());
    return rows;
  }();
  return table;
}

const RenamedKeys* find_renamed(std::string_view key) {
  for (const RenamedKeys& row : renamed_keys()) {
    if (std::find(row.old.begin(), row.old.end(), key) != row.old.end()) return &row;
  }
  return nullptr;
}

}  // namespace tessera::config
