// Evaluation. MLX's CPU backend allocates beyond its limit until the system ends the process, so
// runs are checked first.
#include "common.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "mlx/primitives.h"

namespace fl {

namespace {

using Names = std::unordered_set<std::string_view>;

bool is_one_of(const mx::array& a, const Names& names) {
  return names.count(a.primitive().name()) > 0;
}

// Whether the result shares its input's storage.
bool is_view(const mx::array& a) {
  static const Names views{"AsStrided", "Broadcast", "BroadcastAxes", "Copy",  "CustomTransforms", "Depends",   "ExpandDims",
                           "Slice",     "Split",     "Squeeze",       "StopGradient",              "Transpose", "View"};
  return is_one_of(a, views);
}

// Whether the result shares its input's storage if the input is row-major.
bool is_reshaped(const mx::array& a) {
  static const Names reshapes{"Contiguous", "Flatten", "Reshape", "Unflatten"};
  return is_one_of(a, reshapes);
}

// Whether the result may overwrite an input of its size without other readers. A missing name only
// makes the estimate larger.
bool may_reuse(const mx::array& a) {
  static const Names reusing{"Abs",      "Add",      "AsType", "Ceil",   "Cos",     "Divide",     "Equal",         "Erf",
                             "Exp",      "Floor",    "Log",    "Maximum", "Minimum", "Multiply",   "Negative",      "Power",
                             "Round",    "Rsqrt",    "Select", "Sigmoid", "Sin",     "SliceUpdate", "SliceUpdate Sum", "Softmax",
                             "Sqrt",     "Square",   "Subtract", "Tanh",  "DynamicSliceUpdate"};
  return is_one_of(a, reusing);
}

size_t bytes_of(const mx::array& step) {
  size_t bytes = step.nbytes();
  for (const auto& sibling : step.siblings()) {
    bytes += sibling.nbytes();
  }
  return bytes;
}

// Bytes that a step allocates once its inputs are computed.
size_t taken_by(const mx::array& step) {
  const auto& inputs = step.inputs();
  if (is_view(step) || (is_reshaped(step) && inputs[0].flags().row_contiguous)) {
    return 0;
  }
  size_t bytes = bytes_of(step);
  auto is_free = [&](const mx::array& in) { return in.is_donatable() && in.nbytes() == bytes; };
  return may_reuse(step) && std::any_of(inputs.begin(), inputs.end(), is_free) ? 0 : bytes;
}

// The arrays to compute, one per step, in topological order.
std::vector<mx::array> steps_to(const std::vector<mx::array>& wanted) {
  std::vector<mx::array> steps;
  std::unordered_set<std::uintptr_t> seen;
  std::vector<std::pair<mx::array, size_t>> path;
  auto enter = [&](const mx::array& a) {
    if (a.status() != mx::array::Status::unscheduled || !a.has_primitive() || !seen.insert(a.id()).second) {
      return;
    }
    for (const auto& sibling : a.siblings()) {
      seen.insert(sibling.id());
    }
    path.emplace_back(a, 0);
  };
  for (const auto& a : wanted) {
    enter(a);
    while (!path.empty()) {
      auto& [top, next] = path.back();
      if (next < top.inputs().size()) {
        enter(top.inputs()[next++]);
      } else {
        steps.push_back(std::move(top));
        path.pop_back();
      }
    }
  }
  return steps;
}

bool fits(size_t bytes) {
  size_t active = mx::get_active_memory(), limit = mx::get_memory_limit();
  return active <= limit && bytes <= limit - active;
}

// Computes one array after the other, so each is freed after its last use. A handle held here would
// prevent that.
void evaluate_singly(std::vector<mx::array> steps) {
  std::reverse(steps.begin(), steps.end());
  while (!steps.empty()) {
    const auto& step = steps.back();
    if (size_t bytes = taken_by(step); !fits(bytes)) {
      throw std::runtime_error(std::string(step.primitive().name()) + " needs " + std::to_string(bytes) + " more bytes");
    }
    mx::eval(std::vector<mx::array>{step});
    steps.pop_back();
  }
}

} // namespace

void evaluate(const std::vector<mx::array>& wanted, bool is_async) {
  if (stream().device == mx::Device::cpu) {
    auto steps = steps_to(wanted);
    size_t bytes = 0;
    for (const auto& step : steps) {
      bytes += is_view(step) ? 0 : bytes_of(step);
    }
    if (!fits(bytes)) {
      return evaluate_singly(std::move(steps));
    }
  }
  is_async ? mx::async_eval(wanted) : mx::eval(wanted);
}

} // namespace fl

int fl_eval(fl_arrays list, int is_async) {
  return fl::guard([&] { fl::evaluate(fl::arrays_of(list), is_async); });
}
