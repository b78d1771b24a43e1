// Functions of the operation table that need several MLX calls: elementwise, reductions, sorting,
// creation.
#include "common.h"

namespace fl {

static mx::array row_major(const mx::array& x, mx::StreamOrDevice s) {
  return mx::contiguous(x, false, s);
}

static mx::array unary(const mx::array& x, Unary op, mx::StreamOrDevice s) {
  switch (op) {
#define CASE(NAME, FUNCTION) \
  case Unary::NAME: \
    return FUNCTION(x, s);
    FL_UNARY(CASE)
#undef CASE
  }
  throw std::invalid_argument("function is unknown");
}

static mx::array binary(const mx::array& a, Binary op, const mx::array& b, mx::StreamOrDevice s) {
  switch (op) {
#define CASE(NAME, FUNCTION) \
  case Binary::NAME: \
    return FUNCTION(a, b, s);
    FL_BINARY(CASE)
#undef CASE
  }
  throw std::invalid_argument("function is unknown");
}

static mx::array reduce(
    const mx::array& x, Reduce op, const std::vector<int>& axes, bool keepdims, int ddof, mx::StreamOrDevice s) {
  switch (op) {
    case Reduce::Sum: return mx::sum(x, axes, keepdims, s);
    case Reduce::Prod: return mx::prod(x, axes, keepdims, s);
    case Reduce::Max: return mx::max(x, axes, keepdims, s);
    case Reduce::Min: return mx::min(x, axes, keepdims, s);
    case Reduce::Mean: return mx::mean(x, axes, keepdims, s);
    case Reduce::Var: return mx::var(x, axes, keepdims, ddof, s);
    case Reduce::Std: return mx::std(x, axes, keepdims, ddof, s);
    case Reduce::Any: return mx::any(x, axes, keepdims, s);
    case Reduce::All: return mx::all(x, axes, keepdims, s);
    case Reduce::LogSumExp: return mx::logsumexp(x, axes, keepdims, s);
  }
  throw std::invalid_argument("reduction is unknown");
}

static mx::array arg_reduce(const mx::array& x, ArgReduce op, int axis, bool keepdims, mx::StreamOrDevice s) {
  switch (op) {
    case ArgReduce::Max: return mx::argmax(x, axis, keepdims, s);
    case ArgReduce::Min: return mx::argmin(x, axis, keepdims, s);
  }
  throw std::invalid_argument("reduction is unknown");
}

static mx::array order(const mx::array& x, Order op, int axis, mx::StreamOrDevice s) {
  switch (op) {
    case Order::Sort: return mx::sort(x, axis, s);
    case Order::Argsort: return mx::argsort(x, axis, s);
  }
  throw std::invalid_argument("order is unknown");
}

static mx::array pad(
    const mx::array& x, const mx::Shape& low, const mx::Shape& high, const mx::array& value, const char* mode,
    mx::StreamOrDevice s) {
  std::vector<int> axes(low.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    axes[i] = static_cast<int>(i);
  }
  return mx::pad(x, axes, low, high, value, mode, s);
}

static mx::array full(const mx::Shape& shape, double value, mx::Dtype dtype, mx::StreamOrDevice s) {
  return mx::full(shape, scalar(value, dtype), dtype, s);
}

static mx::array random_bits(const mx::array& key, const mx::Shape& shape, int width, mx::StreamOrDevice s) {
  return mx::random::bits(shape, width, key, s);
}

} // namespace fl
