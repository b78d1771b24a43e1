// Element by element, reductions, orders.
#include "common.h"

using namespace fl;

static mx::array row_major(const mx::array& x, mx::StreamOrDevice s) {
  return mx::contiguous(x, false, s);
}

int fl_unary(Unary op, fl_array x, fl_array* out) {
  return make(out, [&]() -> mx::array {
    switch (op) {
#define CASE(NAME, FUNCTION) \
  case Unary::NAME: \
    return FUNCTION(get(x), stream());
      FL_UNARY(CASE)
#undef CASE
    }
    throw std::invalid_argument("function is unknown");
  });
}

int fl_binary(Binary op, fl_array a, fl_array b, fl_array* out) {
  return make(out, [&]() -> mx::array {
    switch (op) {
#define CASE(NAME, FUNCTION) \
  case Binary::NAME: \
    return FUNCTION(get(a), get(b), stream());
      FL_BINARY(CASE)
#undef CASE
    }
    throw std::invalid_argument("function is unknown");
  });
}

int fl_where(fl_array condition, fl_array x, fl_array y, fl_array* out) {
  return make(out, [&] { return mx::where(get(condition), get(x), get(y), stream()); });
}

int fl_round(fl_array x, int decimals, fl_array* out) {
  return make(out, [&] { return mx::round(get(x), decimals, stream()); });
}

int fl_astype(fl_array x, int dtype, fl_array* out) {
  return make(out, [&] { return mx::astype(get(x), dtype_of(dtype), stream()); });
}

int fl_view(fl_array x, int dtype, fl_array* out) {
  return make(out, [&] { return mx::view(get(x), dtype_of(dtype), stream()); });
}

int fl_reduce(Reduce op, fl_array x, fl_ints list, int keepdims, int ddof, fl_array* out) {
  return make(out, [&]() -> mx::array {
    const auto& a = get(x);
    auto axes = ints_of(list);
    bool keep = keepdims != 0;
    auto s = stream();
    switch (op) {
      case Reduce::Sum: return mx::sum(a, axes, keep, s);
      case Reduce::Prod: return mx::prod(a, axes, keep, s);
      case Reduce::Max: return mx::max(a, axes, keep, s);
      case Reduce::Min: return mx::min(a, axes, keep, s);
      case Reduce::Mean: return mx::mean(a, axes, keep, s);
      case Reduce::Var: return mx::var(a, axes, keep, ddof, s);
      case Reduce::Std: return mx::std(a, axes, keep, ddof, s);
      case Reduce::Any: return mx::any(a, axes, keep, s);
      case Reduce::All: return mx::all(a, axes, keep, s);
      case Reduce::LogSumExp: return mx::logsumexp(a, axes, keep, s);
    }
    throw std::invalid_argument("reduction is unknown");
  });
}

int fl_arg_reduce(ArgReduce op, fl_array x, int axis, int keepdims, fl_array* out) {
  return make(out, [&]() -> mx::array {
    switch (op) {
      case ArgReduce::Max: return mx::argmax(get(x), axis, keepdims != 0, stream());
      case ArgReduce::Min: return mx::argmin(get(x), axis, keepdims != 0, stream());
    }
    throw std::invalid_argument("reduction is unknown");
  });
}

int fl_order(Order op, fl_array x, int axis, fl_array* out) {
  return make(out, [&]() -> mx::array {
    switch (op) {
      case Order::Sort: return mx::sort(get(x), axis, stream());
      case Order::Argsort: return mx::argsort(get(x), axis, stream());
    }
    throw std::invalid_argument("order is unknown");
  });
}

int fl_cumsum(fl_array x, int axis, int reverse, int inclusive, fl_array* out) {
  return make(out, [&] { return mx::cumsum(get(x), axis, reverse != 0, inclusive != 0, stream()); });
}

int fl_softmax(fl_array x, int axis, int precise, fl_array* out) {
  return make(out, [&] { return mx::softmax(get(x), axis, precise != 0, stream()); });
}
