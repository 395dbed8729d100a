#include "model/hooks.hpp"

namespace tessera::model {

void walk_forward(const ParamTable& table, Pass pass, Hooks& hooks) {
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    hooks.before(pass, unit);
    hooks.after(pass, unit);
  }
}

void walk(const ParamTable& table, const Segments& segments, Hooks& hooks) {
  const auto visit = [&](Pass pass, int unit) {
    hooks.before(pass, unit);
    hooks.after(pass, unit);
  };
  const int head = static_cast<int>(segments.blocks) + 1;
  for (int unit = 0; unit < head; ++unit) visit(Pass::forward, unit);
  hooks.before(Pass::forward, head);
  hooks.before(Pass::backward, head);
  hooks.after(Pass::forward, head);

  int param = static_cast<int>(table.params().size()) - 1;
  for (int unit = head; unit >= 0; --unit) {
    const int block = unit - 1;
    const bool is_recomputed = unit > 0 && unit < head && segments.ends(block);
    if (is_recomputed) {
      for (int earlier = segments.first(block); earlier < block; ++earlier) visit(Pass::recompute, earlier + 1);
      hooks.before(Pass::recompute, unit);
    }
    if (unit < head) hooks.before(Pass::backward, unit);
    if (is_recomputed) hooks.after(Pass::recompute, unit);
    for (; param >= 0 && table.params()[param].unit == unit; --param) hooks.gradient_enqueued(param);
    hooks.progress();
    hooks.after(Pass::backward, unit);
  }
}

}  // namespace tessera::model
