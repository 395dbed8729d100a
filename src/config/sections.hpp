/// Sections of a deck that rooms above the product add: a value of each type, at its defaults until it is set.
#pragma once

#include <any>
#include <map>
#include <typeindex>

namespace tessera::config {

/// A value type: copies are independent, and a section that was never set equals one with all defaults.
class Sections {
 public:
  template <class Section>
  const Section& get() const {
    static const Section kDefault{};
    const auto found = values_.find(typeid(Section));
    return found == values_.end() ? kDefault : *std::any_cast<Section>(&found->second.section);
  }

  template <class Section>
  Section& edit() {
    const auto are_equal = [](const Sections& a, const Sections& b) { return a.get<Section>() == b.get<Section>(); };
    Value& value = values_.try_emplace(typeid(Section), Value{Section{}, are_equal}).first->second;
    return *std::any_cast<Section>(&value.section);
  }

  friend bool operator==(const Sections& a, const Sections& b) {
    for (const Sections* with_types : {&a, &b}) {
      for (const auto& [type, value] : with_types->values_) {
        if (!value.are_equal(a, b)) return false;
      }
    }
    return true;
  }

 private:
  struct Value {
    std::any section;
    bool (*are_equal)(const Sections&, const Sections&);
  };
  std::map<std::type_index, Value> values_;
};

}  // namespace tessera::config
