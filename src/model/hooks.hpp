/// What the model announces while it runs, unit by unit: the hinge between a model that knows no ranks and a
/// training step that communicates, measures and traces. Units are numbered as in ParamTable::units().
#pragma once

namespace tessera::model {

class Hooks {
 public:
  virtual ~Hooks() = default;
  virtual void before_forward(int /*unit*/) {}
  virtual void after_forward(int /*unit*/) {}
  virtual void before_backward(int /*unit*/) {}
  virtual void after_backward(int /*unit*/) {}  // the unit's gradients of this micro-step are complete
  virtual void tick(int /*tick*/) {}            // the step reached this moment of the layout's time line
  virtual void progress() {}                    // called often: a chance to poll communication
};

}  // namespace tessera::model
