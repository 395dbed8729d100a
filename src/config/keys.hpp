/// The one table of deck keys. The reader, the printer of resolved decks, `--explain`, suggestions and tests walk it.
///
/// A key is a dotted name, the member of `Settings` it sets, its legal values, a unit and a meaning. Its default is
/// that of a default-constructed `Settings`, so it is given in settings.hpp and nowhere else. The rows: key_table.cpp.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/settings.hpp"

namespace tessera::config {

/// Access to one member of Settings.
template <class Value>
struct Access {
  Value& (*edit)(Settings&);
  const Value& (*read)(const Settings&);
};

/// The same for a member of any enum type; `Word` pairs its enumerators with what a deck writes.
struct EnumAccess {
  void (*edit)(Settings&, int);
  int (*read)(const Settings&);
};

using Field =
    std::variant<Access<bool>, Access<std::int64_t>, Access<std::uint64_t>, Access<double>, Access<std::string>,
                 Access<std::vector<std::int64_t>>, Access<std::vector<std::string>>, EnumAccess>;

struct Word {
  std::string_view text;
  int value;  // of the enumerator; unused where the member is text
};

/// The largest integer of TOML, 2^63 - 1; as a double it is 2^63.
constexpr double kMaxInteger = static_cast<double>(std::numeric_limits<std::int64_t>::max());

/// Constraints on a value beyond its type; for a list, on every element.
struct Legal {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is not legal
  bool below_max = false;  // max itself is not legal
  bool not_empty = false;  // lists and text
  bool is_path = false;    // text: resolved against the deck's folder, or the current directory in an override
  std::span<const Word> words = {};  // text and enums: nothing else is legal
};

struct Key {
  std::string_view name;  // "section.key"
  Field field;
  Legal legal;
  std::string_view unit;     // "-": none
  std::string_view meaning;  // one or more sentences; the first one stands alone in lists

  std::string_view section() const { return name.substr(0, name.find('.')); }
  std::string_view leaf() const { return name.substr(name.find('.') + 1); }
};

constexpr std::size_t kMaxTextBytes = 4000;  // of a text value as it stands in a deck, so that its line stays bounded

/// All keys, section by section, in the order in which decks are printed.
std::span<const Key> all_keys();

const Key* find_key(std::string_view name);  // nullptr if there is none of this name
bool is_section(std::string_view name);
std::vector<std::string_view> section_names();
/// "" if nothing is near; a known leaf in another section counts as near.
std::string nearest_key(std::string_view name);

/// The key's value as TOML, such that reading it back gives the same bits.
std::string value_text(const Key& key, const Settings& settings);

/// The overrides that give `deck` the values of `wanted`: " model.d_model=128 ...", "" if none. Omits model.size, which
/// only names keys that are compared.
std::string overrides_to(const Settings& wanted, const Settings& deck);

/// "integer", "list of words", ...; and what is legal, in words ("1 or more", "fp32 tf32 bf16 fp16").
std::string type_text(const Key& key);
bool takes_list(const Key& key);
std::string legal_text(const Key& key);

/// What is wrong with this key's value in `settings`; nothing if it is legal.
std::optional<std::string> violation(const Key& key, const Settings& settings);

/// "train.steps: 100 -> 200" for every key under `prefix` ("model.", or all) whose value differs, except `model.size`,
/// whose numbers are compared themselves.
std::vector<std::string> differences(const Settings& before, const Settings& after, std::string_view prefix = "");

}  // namespace tessera::config
