#include "io/checkpoint_detail.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <stdexcept>

#include "io/files.hpp"

namespace tessera::io::detail {
namespace fs = std::filesystem;

std::string step_name(std::int64_t step) { return fmt::format("step_{:08d}", step); }

namespace {
constexpr std::string_view kTemporary = ".tmp_", kDying = ".tmp_old_";
}
std::string temporary_name(std::int64_t step) { return std::string(kTemporary) + step_name(step); }
std::string dying_name(std::int64_t step) { return std::string(kDying) + step_name(step); }
std::optional<std::string> home_of_temporary(const std::string& name) {
  for (const std::string_view prefix : {kTemporary, kDying}) {
    if (name.starts_with(prefix) && step_of(name.substr(prefix.size()))) return name.substr(prefix.size());
  }
  return std::nullopt;
}

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with("step_") || name.size() < 13 || name.size() > 23) return {};
  if (!std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; })) return {};
  return std::stoll(name.substr(5));
}

std::vector<std::int64_t> steps_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto step = step_of(entry->path().filename().string());
    if (step && fs::exists(fs::symlink_status(entry->path() / "index.h5", error))) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

namespace {

/// Whether a file of that name in a checkpoint's folder is the checkpoint's.
bool is_of_checkpoint(const std::string& name) {
  if (name == "index.h5" || name == "index.xxh3" || name == "index.xxh3.tmp") return true;
  return name.starts_with("rank_") && name.ends_with(".h5") && name.size() >= 13 &&
         std::all_of(name.begin() + 5, name.end() - 3, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::vector<fs::path> entries_of(const fs::path& folder, std::string_view doing) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) throw file_failure(folder, doing, error.value());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool holds_files_of_checkpoint(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(folder, error))) return false;
  const auto entries = entries_of(folder, "reading the checkpoint");
  return std::any_of(entries.begin(), entries.end(), [](const fs::path& e) { return is_of_checkpoint(e.filename()); });
}

std::vector<fs::path> dismantle(const fs::path& folder, const fs::path& home) {
  std::vector<fs::path> foreign;
  std::error_code error;
  if (fs::is_symlink(folder, error)) {
    fs::remove(folder, error);
    if (error) throw file_failure(folder, "deleting the link", error.value());
    return foreign;
  }
  if (!fs::is_directory(folder, error)) return {folder};
  std::vector<fs::path> entries = entries_of(folder, "deleting the checkpoint");
  std::reverse(entries.begin(), entries.end());  // the index, which names the owner, last
  for (const fs::path& entry : entries) {
    if (is_of_checkpoint(entry.filename()) && !fs::is_directory(fs::symlink_status(entry, error))) {
      fs::remove(entry, error);
      if (error) throw file_failure(entry, "deleting the checkpoint", error.value());
    } else if (home == folder || fs::exists(fs::symlink_status(home / entry.filename(), error))) {
      foreign.push_back(entry);
    } else {
      make_folder(home);
      publish(entry, foreign.emplace_back(home / entry.filename()));
    }
  }
  if (!fs::is_empty(folder, error)) return foreign;
  fs::remove(folder, error);
  if (error) throw file_failure(folder, "deleting the checkpoint", error.value());
  return foreign;
}

std::vector<std::string> all_gather(const Peers& peers, const Peers::Work& work) {
  return peers.all_gather([&] {
    try {
      return work();
    } catch (const std::exception& fault) {
      const bool has_code = dynamic_cast<const Failure*>(&fault) || exit_of(fault) == Exit::out_of_memory;
      const std::string who = peers.ranks > 1 ? fmt::format("rank {}: ", peers.rank) : "";
      throw Failure(has_code ? exit_of(fault) : Exit::files, who + fault.what());
    }
  });
}

std::string checksum(const fs::path& path, const std::function<void()>& progress) {
  const InputFile file(path);
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<std::byte> block(std::size_t{1} << 20);
  for (std::int64_t first = 0; first < file.bytes(); first += static_cast<std::int64_t>(block.size())) {
    block.resize(std::min(block.size(), static_cast<std::size_t>(file.bytes() - first)));
    file.read(first, block);
    XXH3_64bits_update(state.get(), block.data(), block.size());
    if (first % kProgressBytes == 0) progress();
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

std::string listed_checksum(const fs::path& step_folder) { return read_text(step_folder / "index.xxh3").substr(0, 16); }

namespace {

/// Calls visit(name, member, is_optional) for each attribute: optional ones are left out if empty.
template <class State, class Visit>
void for_each_attribute(State& s, const Visit& visit) {
  visit("step", s.step, false);
  visit("sample_index", s.sample_index, false);
  visit("seed", s.seed, false);
  visit("loss_scale", s.loss_scale, false);
  visit("good_steps", s.good_steps, false);
  visit("optimizer_steps", s.optimizer_steps, false);
  visit("bad_steps", s.bad_steps, true);
  visit("left_out", s.left_out, true);
  visit("norms", s.norms, true);
  visit("ranks", s.ranks, false);
  visit("shard", s.shard, true);
  visit("deck", s.deck, false);
  visit("tokenisation", s.tokenisation, false);
  visit("corpus_tokens", s.corpus_tokens, false);
  visit("corpus_fingerprint", s.corpus_fingerprint, true);
  visit("gemm", s.gemm, false);
  visit("git_hash", s.git_hash, false);
  visit("run_id", s.run_id, true);
  visit("directory", s.directory, true);
}

void get(const h5::Object& root, const char* name, std::int64_t& value) { value = root.integer(name); }
void get(const h5::Object& root, const char* name, std::uint64_t& value) { value = root.natural(name); }
void get(const h5::Object& root, const char* name, double& value) { value = root.number(name); }
void get(const h5::Object& root, const char* name, std::string& value) { value = root.text(name); }

/// A list of numbers is a text, apart by single spaces.
template <class Number>
void get(const h5::Object& root, const char* name, std::vector<Number>& values) {
  const std::string text = root.text(name);
  const char *next = text.data(), *const end = next + text.size();
  while (next != end) {
    Number& value = values.emplace_back();
    const auto [after, error] = std::from_chars(next, end, value);
    if (error != std::errc() || (after != end && *after != ' ')) {
      throw std::invalid_argument(
          fmt::format("its {} are not numbers from '{}' on", name, std::string(next, std::min(end, next + 20))));
    }
    next = after == end ? end : after + 1;
  }
}

const auto& stored_form(const auto& value) { return value; }
template <class Number>
std::string stored_form(const std::vector<Number>& values) {
  return fmt::format("{}", fmt::join(values, " "));
}

}  // namespace

void write_state(h5::Object& root, const CheckpointState& state) {
  root.set_attribute("format", kFormat);
  root.set_attribute("format_version", kVersion);
  for_each_attribute(state, [&]<class Value>(const char* name, const Value& value, bool is_optional) {
    if (!is_optional || value != Value{}) root.set_attribute(name, stored_form(value));
  });
}

CheckpointState read_state(const h5::Object& root) {
  CheckpointState state;
  for_each_attribute(state, [&](const char* name, auto& value, bool is_optional) {
    if (!is_optional || root.has_attribute(name)) get(root, name, value);
  });
  return state;
}

}  // namespace tessera::io::detail
