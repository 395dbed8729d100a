/// What the rows of a table of keys are written with: members, legal values, words.
#pragma once

#include <span>
#include <string_view>
#include <type_traits>

#include "config/keys.hpp"
#include "config/settings.hpp"

namespace tessera::config {

template <class Pointer>
struct MemberOf;
template <class Value, class Owner>
struct MemberOf<Value Owner::*> {
  using Type = Value;
  using Class = Owner;
};

/// The field behind one member of one section: at<&Settings::model, &Model::d_model>().
template <auto Section, auto Member>
Field at() {
  using Value = typename MemberOf<decltype(Member)>::Type;
  if constexpr (std::is_enum_v<Value>) {
    return EnumAccess{[](Settings& s, int value) { s.*Section.*Member = static_cast<Value>(value); },
                      [](const Settings& s) { return static_cast<int>(s.*Section.*Member); }};
  } else {
    return Access<Value>{[](Settings& s) -> Value& { return s.*Section.*Member; },
                         [](const Settings& s) -> const Value& { return s.*Section.*Member; }};
  }
}

/// The same of a section that another room adds: in<&lab::Bench::warmup>().
template <auto Member>
Field in() {
  using Value = typename MemberOf<decltype(Member)>::Type;
  using Section = typename MemberOf<decltype(Member)>::Class;
  if constexpr (std::is_enum_v<Value>) {
    return EnumAccess{[](Settings& s, int value) { s.section<Section>().*Member = static_cast<Value>(value); },
                      [](const Settings& s) { return static_cast<int>(s.section<Section>().*Member); }};
  } else {
    return Access<Value>{[](Settings& s) -> Value& { return s.section<Section>().*Member; },
                         [](const Settings& s) -> const Value& { return s.section<Section>().*Member; }};
  }
}

constexpr Legal any() { return {}; }
constexpr Legal at_least(double min) { return {.min = min}; }
constexpr Legal between(double min, double max) { return {.min = min, .max = max}; }
constexpr Legal above(double min, double max) { return {.min = min, .max = max, .above_min = true}; }
constexpr Legal fraction() { return {.min = 0, .max = 1, .below_max = true}; }
constexpr Legal path() { return {.is_path = true}; }
constexpr Legal not_empty(Legal legal = {}) {
  legal.not_empty = true;
  return legal;
}
constexpr Legal words(std::span<const Word> list) { return {.words = list}; }

template <class Enum>
constexpr Word word(std::string_view text, Enum value) {
  return {text, static_cast<int>(value)};
}
constexpr Word word(std::string_view text) { return {text, 0}; }

inline constexpr double kMaxTokens = 1 << 24;    // T: positions stay exact in float
inline constexpr double kMaxVocab = 2147483647;  // token ids are int32
inline constexpr double kMaxSteps = 1e12;

}  // namespace tessera::config
