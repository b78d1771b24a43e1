// Creation, views, joins, indexing.
#include "common.h"

using namespace fl;

int fl_full(fl_ints shape, double value, int dtype, fl_array* out) {
  return make(out, [&] { return mx::full(shape_of(shape), scalar(value, dtype_of(dtype)), dtype_of(dtype), stream()); });
}

int fl_arange(double start, double stop, double step, int dtype, fl_array* out) {
  return make(out, [&] { return mx::arange(start, stop, step, dtype_of(dtype), stream()); });
}

int fl_random_bits(fl_ints shape, int width, fl_array key, fl_array* out) {
  return make(out, [&] { return mx::random::bits(shape_of(shape), width, get(key), stream()); });
}

int fl_reform(Reform op, fl_array x, fl_ints list, fl_array* out) {
  return make(out, [&]() -> mx::array {
    const auto& a = get(x);
    switch (op) {
      case Reform::Reshape: return mx::reshape(a, shape_of(list), stream());
      case Reform::Transpose: return mx::transpose(a, ints_of(list), stream());
      case Reform::BroadcastTo: return mx::broadcast_to(a, shape_of(list), stream());
      case Reform::ExpandDims: return mx::expand_dims(a, ints_of(list), stream());
      case Reform::Squeeze: return mx::squeeze(a, ints_of(list), stream());
      case Reform::Tile: return mx::tile(a, ints_of(list), stream());
    }
    throw std::invalid_argument("operation is unknown");
  });
}

int fl_as_strided(fl_array x, fl_ints shape, fl_ints strides, uint64_t offset, fl_array* out) {
  return make(out, [&] { return mx::as_strided(get(x), shape_of(shape), strides_of(strides), offset, stream()); });
}

int fl_slice(fl_array x, fl_ints start, fl_ints stop, fl_ints step, fl_array* out) {
  return make(out, [&] { return mx::slice(get(x), shape_of(start), shape_of(stop), shape_of(step), stream()); });
}

int fl_slice_update(fl_array x, fl_array update, fl_ints start, fl_ints stop, fl_ints step, fl_array* out) {
  return make(out, [&] {
    return mx::slice_update(get(x), get(update), shape_of(start), shape_of(stop), shape_of(step), stream());
  });
}

int fl_slice_at(fl_array x, fl_array start, fl_ints axes, fl_ints sizes, fl_array* out) {
  return make(out, [&] { return mx::slice(get(x), get(start), ints_of(axes), shape_of(sizes), stream()); });
}

int fl_slice_update_at(fl_array x, fl_array update, fl_array start, fl_ints axes, fl_array* out) {
  return make(out, [&] { return mx::slice_update(get(x), get(update), get(start), ints_of(axes), stream()); });
}

int fl_join(Join op, fl_arrays list, int axis, fl_array* out) {
  return make(out, [&]() -> mx::array {
    switch (op) {
      case Join::Concatenate: return mx::concatenate(arrays_of(list), axis, stream());
      case Join::Stack: return mx::stack(arrays_of(list), axis, stream());
    }
    throw std::invalid_argument("operation is unknown");
  });
}

int fl_pad(fl_array x, fl_ints low, fl_ints high, fl_array value, const char* mode, fl_array* out) {
  return make(out, [&] {
    std::vector<int> axes(low.len);
    for (size_t i = 0; i < low.len; ++i) {
      axes[i] = static_cast<int>(i);
    }
    return mx::pad(get(x), axes, shape_of(low), shape_of(high), get(value), mode, stream());
  });
}

int fl_repeat(fl_array x, int repeats, int axis, fl_array* out) {
  return make(out, [&] { return mx::repeat(get(x), repeats, axis, stream()); });
}

int fl_triangle(Triangle op, fl_array x, int k, fl_array* out) {
  return make(out, [&]() -> mx::array {
    switch (op) {
      case Triangle::Tril: return mx::tril(get(x), k, stream());
      case Triangle::Triu: return mx::triu(get(x), k, stream());
    }
    throw std::invalid_argument("operation is unknown");
  });
}

int fl_roll(fl_array x, int shift, int axis, fl_array* out) {
  return make(out, [&] { return mx::roll(get(x), shift, axis, stream()); });
}

int fl_along_axis(Indexing op, fl_array x, fl_array indices, fl_array values, int axis, fl_array* out) {
  return make(out, [&]() -> mx::array {
    switch (op) {
      case Indexing::Take: return mx::take(get(x), get(indices), axis, stream());
      case Indexing::TakeAlongAxis: return mx::take_along_axis(get(x), get(indices), axis, stream());
      case Indexing::ScatterAdd: return mx::scatter_add_axis(get(x), get(indices), get(values), axis, stream());
    }
    throw std::invalid_argument("operation is unknown");
  });
}

int fl_gather(fl_array x, fl_arrays indices, fl_ints axes, fl_ints sizes, fl_array* out) {
  return make(out, [&] { return mx::gather(get(x), arrays_of(indices), ints_of(axes), shape_of(sizes), stream()); });
}

int fl_scatter(fl_array x, fl_arrays indices, fl_array updates, fl_ints axes, fl_array* out) {
  return make(out, [&] { return mx::scatter(get(x), arrays_of(indices), get(updates), ints_of(axes), stream()); });
}
