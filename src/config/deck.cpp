#include "config/deck.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/deck_file.hpp"
#include "config/extension.hpp"
#include "config/faults.hpp"
#include "config/job_numbers.hpp"
#include "config/renamed_keys.hpp"
#include "config/row_tables.hpp"
#include "config/rules.hpp"
#include "config/text.hpp"
#include "config/toml.hpp"

namespace tessera::config {
namespace {

namespace fs = std::filesystem;

/// The node's value if its TOML type is the member's; an integer also serves as a float.
template <class Value>
std::optional<Value> converted(const toml::node& node) {
  if constexpr (std::is_same_v<Value, std::uint64_t>) {
    const auto* value = node.as_integer();
    if (value == nullptr || value->get() < 0) return std::nullopt;
    return static_cast<std::uint64_t>(value->get());
  } else if constexpr (std::is_same_v<Value, double>) {
    if (const auto* integer = node.as_integer()) return static_cast<double>(integer->get());
    const auto* value = node.as_floating_point();
    return value != nullptr ? std::optional(value->get()) : std::nullopt;
  } else {
    const auto* value = node.as<Value>();
    return value != nullptr ? std::optional<Value>(value->get()) : std::nullopt;
  }
}

/// "the integer 3", "a list".
std::string describe(const toml::node& node) {
  if (const auto* value = node.as_string()) {
    const std::string& text = value->get();
    return text.size() <= 60 ? "the string " + toml_string(text) : fmt::format("a string of {} bytes", text.size());
  }
  if (const auto* value = node.as_integer()) return fmt::format("the integer {}", value->get());
  if (const auto* value = node.as_floating_point()) return "the float " + toml_number(value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "the boolean true" : "the boolean false";
  return node.is_array() ? "a list" : node.is_table() ? "a table" : "a date or time";
}

class Reader {
 public:
  Reader(std::string name, fs::path folder, bool is_stored = false)
      : name_(std::move(name)), folder_(std::move(folder)), is_stored_(is_stored) {}

  Deck read(std::string_view text, const std::vector<std::string>& overrides) {
    read_deck(text);
    for (const std::string& override_text : overrides) read_override(override_text);
    return finish();
  }

 private:
  struct Given {  // one value, with where it came from
    const toml::node& node;
    Where where;
    Origin origin;
  };

  struct OldKey {  // one that this build does not have
    OldValue value;
    Where where;
  };

  Where at(const toml::source_region& source) const {
    const auto [line, column] = source.begin;
    return {fmt::format("{}:{}:{}", name_, line, column), line, column};
  }

  void read_deck(std::string_view text) {
    require_deck_text(text, name_);
    text_ = text;
    toml::table root;
    try {
      root = toml::parse(text);
    } catch (const toml::parse_error& error) {
      refuse_deck(at(error.source()).text, fmt::format("is not TOML: {}; correct the line", error.description()));
    }
    if (root.empty()) refuse_deck(name_, "contains no key; start from one of the decks in input/");
    for (const auto& [key, node] : root) {
      if (const auto* table = node.as_table(); table != nullptr && is_section(key.str())) {
        read_section(key.str(), *table);
      } else if (is_section(key.str())) {
        faults_.add({at(key.source()), std::string(key.str()), fmt::format("is a section, given {}", describe(node)),
                     fmt::format("[{}] with its keys below", key.str()), ""});
      } else if (is_left_out(key.str())) {
        if (!is_stored_)
          faults_.add({at(key.source()), std::string(key.str()), std::string(kLeftOut), std::string(kHowToHaveIt), ""});
      } else if (node.is_table()) {
        const std::vector<std::string_view> known = section_names();
        faults_.add({at(key.source()), std::string(key.str()), "unknown section",
                     fmt::format("{}", fmt::join(known, " ")), nearest(key.str(), known)});
      } else {
        refuse_unknown(at(key.source()), std::string(key.str()));
      }
    }
  }

  void read_section(std::string_view section, const toml::table& table) {
    for (const auto& [leaf, node] : table) {
      const std::string name = fmt::format("{}.{}", section, leaf.str());
      if (tables_ && tables_->has(name)) {
        tables_->read(
            name, node, [&](const toml::node& n) { return at(n.source()); }, settings_, faults_, false);
      } else if (is_old(name, node)) {
        read_old(name, node, at(leaf.source()));
      } else if (const Key* key = find_key(name)) {
        assign(*key, {node, at(node.source()), Origin::deck});
      } else {
        refuse_unknown(at(leaf.source()), name);
      }
    }
  }

  void read_override(std::string_view text) {
    const auto equals = text.find('=');
    std::string name(text.substr(0, equals));
    name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
    if (equals == std::string_view::npos) {
      faults_.add({kCommandLine, std::string(text), "is not an override", "section.key=value", nearest_key(name)});
      return;
    }
    const Key* key = find_key(name);
    if (key == nullptr && find_renamed(name) == nullptr && !(tables_ && tables_->has(name))) {
      refuse_unknown(kCommandLine, name);
      return;
    }
    const std::string right(text.substr(equals + 1));
    toml::table table;
    std::string error;
    try {
      table = toml::parse("value = " + right);
      if (table.size() != 1) error = "another key after a line break";  // the value was text, not TOML
    } catch (const toml::parse_error& caught) {
      error = caught.description();
    }
    if (!error.empty()) {
      if (std::optional<Fault> fault = override_fault(key, right, error)) {
        if (key != nullptr) return refuse(*key, Origin::command_line, kCommandLine, std::move(*fault));
        fault->where = kCommandLine;
        fault->key = name;
        return faults_.add(std::move(*fault));
      }
      table = toml::table{{"value", right}};
    }
    const bool is_swept = key != nullptr && tables_ && tables_->sweeps(name, settings_);
    if (!is_swept && is_old(name, *table.get("value"))) {
      read_old(name, *table.get("value"), kCommandLine);
    } else if (key == nullptr) {
      tables_->read(
          name, *table.get("value"), [](const toml::node&) { return kCommandLine; }, settings_, faults_, true);
    } else if (is_swept) {
      const auto value = tables_->sweep(name, *table.get("value"), settings_, faults_);
      if (value) assign_text(*key, *value, kCommandLine, Origin::command_line);  // for rows that take it from no list
    } else {
      assign(*key, {*table.get("value"), kCommandLine, Origin::command_line});
    }
  }

  /// Of keys that are scalars now, lists are the old spelling.
  bool is_old(const std::string& name, const toml::node& node) const {
    const Key* key = find_key(name);
    return find_renamed(name) != nullptr && (key == nullptr || (node.is_array() && !takes_list(*key)));
  }

  void read_old(const std::string& name, const toml::node& node, const Where& where) {
    OldKey key{{element_texts(node)}, where};
    if (is_stored_ && where.text != kCommandLine.text) {
      std::istringstream lines(text_);
      std::string line;
      for (auto number = node.source().end.line; number > 0; --number) std::getline(lines, line);
      key.value.is_default = line.ends_with("# default");
    }
    old_[name] = std::move(key);
  }

  /// Refuses a person's old keys, once for those that are read together; translates a file's.
  void translate_old() {
    for (const RenamedKeys& row : renamed_keys()) {
      OldValues stored, written;
      for (const std::string_view name : row.old) {
        const auto key = old_.find(name);
        if (key == old_.end()) continue;
        const bool is_written = !is_stored_ || key->second.where.text == kCommandLine.text;
        (is_written ? written : stored).insert({key->first, key->second.value});
      }
      if (!stored.empty()) translate(row, stored);
      if (!written.empty()) refuse_old(row, written);
    }
  }

  void refuse_old(const RenamedKeys& row, const OldValues& given) {
    const NewSpelling now = row.now(given);
    std::vector<std::string> names;  // in the row's order
    for (const std::string_view name : row.old)
      if (given.contains(name)) names.emplace_back(name);
    const Where& where = old_.at(names.front()).where;
    const std::string others = fmt::format("{}", fmt::join(names.begin() + 1, names.end(), ", "));
    faults_.add(
        {where, names.front(), "is an old spelling" + (others.empty() ? "" : ", with " + others), text_of(now), ""});
    for (const auto& assignment : now.keys)  // so that no rule judges the default in its place
      if (const Key* key = find_key(assignment.key)) sources_[key->name] = {Origin::deck, where, true};
  }

  void translate(const RenamedKeys& row, const OldValues& given) {
    const std::string_view job = traits_of(settings_.job.kind).name;
    if (!row.jobs.empty() && std::find(row.jobs.begin(), row.jobs.end(), job) == row.jobs.end()) return;
    const bool is_default =
        std::all_of(given.begin(), given.end(), [](const auto& old) { return old.second.is_default; });
    bool is_whole = true;
    for (const auto& [name, values] : row.now(given).keys) {
      const Key* key = find_key(name);
      is_whole = is_whole && key != nullptr && values.size() == 1;
      if (!is_whole || sources_.contains(name)) continue;
      assign_text(*key, values.front(), old_.at(given.begin()->first).where, Origin::deck);
      if (is_default) sources_.erase(name);
    }
    if (is_whole || is_default) return;
    for (const auto& [name, value] : given)
      dropped_.push_back(fmt::format("{} = [{}]", name, fmt::join(value.values, ", ")));
  }

  void refuse_unknown(const Where& where, const std::string& name) {
    if (is_left_out(name)) return faults_.add({where, name, std::string(kLeftOut), std::string(kHowToHaveIt), ""});
    const std::string section = name.substr(0, name.find('.'));
    std::string legal;
    for (const Key& key : all_keys())
      if (key.section() == section) legal += (legal.empty() ? "" : " ") + std::string(key.leaf());
    if (legal.empty()) legal = "section.key";
    const std::string shown = toml_string(name.substr(0, 200));  // on one line, whatever the deck holds
    faults_.add({where, shown.substr(1, shown.size() - 2), "unknown key", legal, nearest_key(name)});
  }

  void assign(const Key& key, const Given& given) {
    const Settings before = settings_;
    std::optional<Fault> fault = store(key, given);
    sources_[key.name] = {given.origin, given.where, false};
    if (!fault) return;
    settings_ = before;
    refuse(key, given.origin, given.where, std::move(*fault));
  }

  void refuse(const Key& key, Origin origin, const Where& where, Fault fault) {
    sources_[key.name] = {origin, where, true};
    fault.where = where;
    fault.key = key.name;
    faults_.add(std::move(fault));
  }

  std::optional<Fault> store(const Key& key, const Given& given) {
    auto fault = std::visit([&](const auto& access) { return store_as(key, access, given); }, key.field);
    if (fault) return fault;
    if (const auto wrong = violation(key, settings_)) return Fault{{}, "", *wrong, legal_text(key), ""};
    return std::nullopt;
  }

  template <class Value>
  std::optional<Fault> store_as(const Key& key, const Access<Value>& access, const Given& given) {
    auto value = converted<Value>(given.node);
    if (!value) return wrong_type(key, given);
    if constexpr (std::is_same_v<Value, std::string>) {
      if (key.legal.is_path && !first_bad_utf8(*value))
        value = resolved_path(*value, given.origin == Origin::command_line ? working_directory() : folder_);
      if (key.legal.is_path && names_a_home(*value))
        return Fault{{}, "", fmt::format("{} begins with ~, which only a shell replaces", toml_string(*value)),
                     "the folder's whole name, or \"$HOME/...\" on a command line", ""};
      if (const auto fault = word_fault(key, *value)) return fault;
    }
    access.edit(settings_) = std::move(*value);
    return std::nullopt;
  }

  template <class Element>
  std::optional<Fault> store_as(const Key& key, const Access<std::vector<Element>>& access, const Given& given) {
    const auto* array = given.node.as_array();
    if (array == nullptr) return wrong_type(key, given);
    std::vector<Element> values;
    for (const toml::node& node : *array) {
      const auto element = converted<Element>(node);
      if (!element)
        return wrong_type(key, {node, given.where, given.origin}, fmt::format("element {} ", values.size() + 1));
      values.push_back(*element);
    }
    access.edit(settings_) = std::move(values);
    return std::nullopt;
  }

  std::optional<Fault> store_as(const Key& key, const EnumAccess& access, const Given& given) {
    const auto text = converted<std::string>(given.node);
    if (!text) return wrong_type(key, given);
    if (auto fault = word_fault(key, *text)) return fault;
    for (const Word& word : key.legal.words)
      if (word.text == *text) access.edit(settings_, word.value);
    return std::nullopt;
  }

  Fault wrong_type(const Key& key, const Given& given, std::string_view element = "") const {
    std::string legal = typed_legal_text(key);
    const bool is_text = std::holds_alternative<Access<std::string>>(key.field);
    if (is_text && given.origin == Origin::command_line) legal += quoting_advice(key);
    if (given.origin == Origin::command_line && given.node.is_array() && traits_of(settings_.job.kind).has_rows())
      legal += "; a list is for a key of an experiment's product";
    return {{}, "", fmt::format("{}is {}", element, describe(given.node)), legal, ""};
  }

  std::optional<Fault> word_fault(const Key& key, const std::string& text) const {
    if (key.legal.words.empty()) return std::nullopt;
    std::vector<std::string_view> words;
    for (const Word& word : key.legal.words) {
      if (word.text == text) return std::nullopt;
      words.push_back(word.text);
    }
    const std::string shown = text.size() <= 60 ? toml_string(text) : fmt::format("a string of {} bytes", text.size());
    if (key.name == "job.kind" && is_left_out(text))
      return Fault{{}, "", fmt::format("{} {}", shown, kLeftOut), std::string(kHowToHaveIt), ""};
    return Fault{{},
                 "",
                 fmt::format("{} is not a word of this key", shown),
                 fmt::format("{}", fmt::join(words, " ")),
                 nearest(text, words)};
  }

  // --- result -------------------------------------------------------------------------------------------------------

  std::string resolved() const {
    const auto mark = [&](const Key& key) {
      const auto source = sources_.find(key.name);
      if (source == sources_.end()) return "  # default";
      if (source->second.origin == Origin::size) return "  # from model.size";
      if (source->second.origin == Origin::row) return "  # of this row";
      return source->second.origin == Origin::command_line ? "  # command line" : "";
    };
    const bool has_rows = traits_of(settings_.job.kind).has_rows();
    std::string text =
        has_rows ? "# The keys of the experiment that were given, and the tables of its rows. Readable as a deck.\n"
                 : "# Every key of the run; unmarked ones were given in the deck. Readable as a deck.\n";
    std::string_view section;
    for (const Key& key : all_keys()) {
      if (has_rows && !sources_.contains(key.name) && key.name != "job.directory") continue;
      if (key.section() != section) text += fmt::format("\n[{}]\n", section = key.section());
      text += fmt::format("{} = {}{}\n", key.leaf(), value_text(key, settings_), mark(key));
    }
    return extension().tables_text == nullptr ? text : text + extension().tables_text(settings_);
  }

  void settle_directory() {
    if (settings_.job.directory.empty()) {
      const fs::path stem = fs::path(name_).stem();
      const fs::path name = stem == "deck" ? folder_.lexically_normal().filename() : stem;  // NAME/deck.toml is NAME's
      settings_.job.directory = (working_directory() / "runs" / name).lexically_normal().string();
    }
    if (!is_stored_) {
      for (std::string* path : {&settings_.job.directory, &settings_.job.output}) *path = with_job_numbers(*path);
    }
    if (first_bad_utf8(settings_.job.directory))
      refuse_deck(name_, "job.directory would not be UTF-8 text; give the run another folder");
  }

  Deck finish() {
    translate_old();
    if (traits_of(settings_.job.kind).has_rows()) return finish_rows();
    apply_size(settings_, sources_);
    apply_prompts(settings_, sources_);
    check_rules(settings_, sources_, name_, faults_);
    if (!is_stored_) check_named_files(settings_, sources_, name_, faults_);
    faults_.throw_if_any(name_);
    settle_directory();
    return {settings_, resolved(), name_, {}, dropped_};
  }

  // --- rows ---------------------------------------------------------------------------------------------------------

  Deck finish_rows() {
    settle_directory();
    std::vector<DeckRow> rows;
    std::set<std::string> seen;  // faults: one that all rows have is shown once, as is one of the command line
    for (const Fault& fault : faults_.all()) seen.insert(line(fault));
    for (const DescribedRow& row : tables_->rows(settings_, sources_, name_, faults_))
      rows.push_back(finish_row(row, rows.size(), seen, faults_));
    faults_.throw_if_any(name_);
    return {settings_, resolved(), name_, std::move(rows), dropped_};
  }

  DeckRow finish_row(const DescribedRow& row, std::size_t number, std::set<std::string>& seen, Faults& faults) const {
    Reader reader = *this;
    reader.faults_ = {};
    std::map<std::string, std::string> given;
    for (const DescribedRow::Value& value : row.values) {
      const auto source = sources_.find(value.key);
      const bool is_overridden = source != sources_.end() && source->second.origin == Origin::command_line;
      if (value.is_common && is_overridden) continue;
      reader.assign_text(*find_key(value.key), value.value, value.where, Origin::row);
      if (!value.is_common) given[value.key] = value.value;
    }
    tables_->check_row(row, reader.settings_, reader.faults_);
    tables_->forget(reader.settings_, reader.sources_);
    Job& job = reader.settings_.job;
    if (!given.contains("job.kind")) job.kind = row.kind;
    job.directory =
        (fs::path(settings_.job.directory) / "rows" / row_folder(static_cast<std::int64_t>(number) + 1, row.name))
            .string();
    job.overwrite = false;
    for (const char* key : {"job.kind", "job.directory"}) reader.sources_[key] = {Origin::row, {name_}, false};
    reader.sources_.erase("job.overwrite");
    apply_size(reader.settings_, reader.sources_);
    apply_prompts(reader.settings_, reader.sources_);
    check_rules(reader.settings_, reader.sources_, name_, reader.faults_);
    for (Fault fault : reader.faults_.all()) {
      if (!seen.insert(line(fault)).second) continue;
      fault.wrong += fmt::format(" (row {})", row.name);
      faults.add(std::move(fault));
    }
    return {row.name, std::move(given), reader.settings_, reader.resolved(), row.is_chosen};
  }

  void assign_text(const Key& key, const std::string& value, const Where& where, Origin origin) {
    toml::table table = toml::parse("value = " + value);
    if (takes_list(key) && !table.get("value")->is_array()) table = toml::parse("value = [" + value + "]");
    assign(key, {*table.get("value"), where, origin});
  }

  std::string name_;
  fs::path folder_;
  bool is_stored_;
  std::string text_;  // of the deck
  std::map<std::string, OldKey, std::less<>> old_;
  std::vector<std::string> dropped_;
  Settings settings_;
  Sources sources_;
  Faults faults_;
  std::shared_ptr<RowTables> tables_ = extension().make_tables == nullptr ? nullptr : extension().make_tables();
};

}  // namespace

std::string row_folder(std::int64_t number, std::string_view name) { return fmt::format("{:04}_{}", number, name); }

Deck parse_deck(std::string_view text, std::string_view name, const std::vector<std::string>& overrides,
                const fs::path& folder) {
  return Reader(std::string(name), folder.empty() ? working_directory() : fs::absolute(folder)).read(text, overrides);
}

Deck parse_stored_deck(std::string_view text, std::string_view name, const std::vector<std::string>& overrides) {
  return Reader(std::string(name), working_directory(), true).read(text, overrides);
}

Deck load_deck(const fs::path& file, const std::vector<std::string>& overrides) {
  const std::string text = read_deck_file(file);
  return parse_deck(text, file.string(), overrides, (working_directory() / file).parent_path());
}

}  // namespace tessera::config
