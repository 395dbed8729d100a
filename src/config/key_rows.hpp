/// The vocabulary for rows of a table of keys: members, legal values, words.
#pragma once

#include <array>
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

/// The field behind `Member` of the section that `section_of` finds in settings, constant or not.
template <auto Member, class SectionOf>
Field field(SectionOf) {
  using Value = typename MemberOf<decltype(Member)>::Type;
  if constexpr (std::is_enum_v<Value>) {
    return EnumAccess{[](Settings& s, int value) { SectionOf{}(s).*Member = static_cast<Value>(value); },
                      [](const Settings& s) { return static_cast<int>(SectionOf{}(s).*Member); }};
  } else {
    return Access<Value>{[](Settings& s) -> Value& { return SectionOf{}(s).*Member; },
                         [](const Settings& s) -> const Value& { return SectionOf{}(s).*Member; }};
  }
}

/// One member of one section: at<&Settings::model, &Model::d_model>().
template <auto Section, auto Member>
Field at() {
  return field<Member>([](auto& s) -> auto& { return s.*Section; });
}

/// The same of a section that another room adds: in<&lab::Bench::warmup>().
template <auto Member>
Field in() {
  using Section = typename MemberOf<decltype(Member)>::Class;
  return field<Member>([](auto& s) -> auto& { return s.template section<Section>(); });
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

/// The words of an enum's enumerators, of which `kLast` is the last, in their order.
template <auto kLast, class... Texts>
constexpr std::array<Word, sizeof...(Texts)> in_order(const Texts&... texts) {
  static_assert(sizeof...(Texts) == static_cast<std::size_t>(kLast) + 1, "a word for each enumerator");
  int value = 0;
  return {Word{texts, value++}...};
}

inline constexpr double kMaxTokens = 1 << 24;    // T: positions stay exact in float
inline constexpr double kMaxVocab = 2147483647;  // token ids are int32
inline constexpr double kMaxSteps = 1e12;

}  // namespace tessera::config
