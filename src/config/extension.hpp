/// What a room above the product adds to decks: its jobs, its keys, their rules, and tables that describe rows.
///
/// There is one such room, the laboratory. main registers it before the first deck is read; a build without it
/// registers nothing, and refuses the laboratory's words by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/job_traits.hpp"
#include "config/keys.hpp"
#include "config/renamed_keys.hpp"

namespace tessera::config {

class Rules;      // rules.hpp
class RowTables;  // row_tables.hpp

struct Extension {
  std::vector<JobTraits> jobs = {};
  std::string_view jobs_meaning = {};  // what the jobs do: ends the meaning of job.kind
  std::vector<Key> keys = {};          // listed after the product's
  std::vector<RenamedKeys> renamed = {};
  void (*check)(const Settings&, Rules&) = nullptr;       // adds the faults of a deck that is no table of rows
  std::shared_ptr<RowTables> (*make_tables)() = nullptr;  // for one deck
  std::string (*tables_text)(const Settings&) = nullptr;  // these tables as a deck has them
};

/// Registers the room. Throws std::logic_error the second time, or after extension() has been called.
void extend(Extension extension);

const Extension& extension();

/// Whether a job, section or key of this name is the laboratory's, and this build was made without it.
bool is_left_out(std::string_view name);

inline constexpr std::string_view kLeftOut = "belongs to the laboratory, which this build was made without";
inline constexpr std::string_view kHowToHaveIt = "a build by scripts/build (CMake option TESSERA_ENABLE_LAB=ON)";

}  // namespace tessera::config
