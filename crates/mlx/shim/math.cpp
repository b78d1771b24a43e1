// Element by element, reductions, orders.
#include "common.h"

using namespace fl;

using Unary = mx::array (*)(const mx::array&, mx::StreamOrDevice);
using Binary = mx::array (*)(const mx::array&, const mx::array&, mx::StreamOrDevice);

static mx::array dense(const mx::array& x, mx::StreamOrDevice s) {
  return mx::contiguous(x, false, s);
}

static const Unary UNARY[] = {
    mx::abs,    mx::negative, mx::sign,   mx::floor,   mx::ceil,   mx::square,  mx::sqrt,        mx::rsqrt,
    mx::reciprocal, mx::exp,  mx::expm1,  mx::log,     mx::log2,   mx::log10,   mx::log1p,       mx::sin,
    mx::cos,    mx::tan,      mx::arcsin, mx::arccos,  mx::arctan, mx::sinh,    mx::cosh,        mx::tanh,
    mx::arcsinh, mx::arccosh, mx::arctanh, mx::erf,    mx::sigmoid, mx::logical_not, mx::bitwise_invert, mx::isnan,
    dense,
};

static const Binary BINARY[] = {
    mx::add,       mx::subtract,     mx::multiply,  mx::divide,      mx::floor_divide, mx::remainder,  mx::power,
    mx::maximum,   mx::minimum,      mx::arctan2,   mx::logaddexp,   mx::less,         mx::less_equal, mx::greater,
    mx::greater_equal, [](const mx::array& a, const mx::array& b, mx::StreamOrDevice s) { return mx::equal(a, b, s); },
    mx::not_equal, mx::logical_and,  mx::logical_or, mx::bitwise_and, mx::bitwise_or,  mx::bitwise_xor, mx::left_shift,
    mx::right_shift, mx::matmul,
};

template <typename T, size_t N>
static T pick(const T (&table)[N], int op) {
  if (op < 0 || static_cast<size_t>(op) >= N) {
    throw std::invalid_argument("operation " + std::to_string(op) + " is unknown");
  }
  return table[op];
}

int fl_unary(int op, fl_array x, fl_array* out) {
  return make(out, [&] { return pick(UNARY, op)(get(x), stream()); });
}

int fl_binary(int op, fl_array a, fl_array b, fl_array* out) {
  return make(out, [&] { return pick(BINARY, op)(get(a), get(b), stream()); });
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

int fl_reduce(int op, fl_array x, fl_ints list, int keepdims, int ddof, fl_array* out) {
  return make(out, [&]() -> mx::array {
    const auto& a = get(x);
    auto axes = ints_of(list);
    bool keep = keepdims != 0;
    auto s = stream();
    switch (op) {
      case 0: return mx::sum(a, axes, keep, s);
      case 1: return mx::prod(a, axes, keep, s);
      case 2: return mx::max(a, axes, keep, s);
      case 3: return mx::min(a, axes, keep, s);
      case 4: return mx::mean(a, axes, keep, s);
      case 5: return mx::var(a, axes, keep, ddof, s);
      case 6: return mx::std(a, axes, keep, ddof, s);
      case 7: return mx::any(a, axes, keep, s);
      case 8: return mx::all(a, axes, keep, s);
      case 9: return mx::logsumexp(a, axes, keep, s);
      default: throw std::invalid_argument("reduction is unknown");
    }
  });
}

int fl_arg_reduce(int op, fl_array x, int axis, int keepdims, fl_array* out) {
  return make(out, [&] {
    return op == 0 ? mx::argmax(get(x), axis, keepdims != 0, stream()) : mx::argmin(get(x), axis, keepdims != 0, stream());
  });
}

int fl_order(int op, fl_array x, int kth, int axis, fl_array* out) {
  return make(out, [&]() -> mx::array {
    switch (op) {
      case 0: return mx::sort(get(x), axis, stream());
      case 1: return mx::argsort(get(x), axis, stream());
      case 2: return mx::partition(get(x), kth, axis, stream());
      case 3: return mx::argpartition(get(x), kth, axis, stream());
      default: throw std::invalid_argument("order is unknown");
    }
  });
}

int fl_cumsum(fl_array x, int axis, int reverse, int inclusive, fl_array* out) {
  return make(out, [&] { return mx::cumsum(get(x), axis, reverse != 0, inclusive != 0, stream()); });
}

int fl_softmax(fl_array x, int axis, int precise, fl_array* out) {
  return make(out, [&] { return mx::softmax(get(x), axis, precise != 0, stream()); });
}
