// Common declarations of the shim's parts.
#pragma once

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flambeau_mlx.h"

#include "mlx/array.h"
#include "mlx/compile.h"
#include "mlx/device.h"
#include "mlx/dtype.h"
#include "mlx/fast.h"
#include "mlx/memory.h"
#include "mlx/ops.h"
#include "mlx/random.h"
#include "mlx/stream.h"
#include "mlx/transforms.h"
#include "mlx/version.h"

namespace fl {

namespace mx = mlx::core;

// The stream that fl_use_device chose for this thread.
mx::Stream stream();

// Keeps the message for fl_error().
int keep_error(const char* message);

// Runs an entry and turns its exceptions into a status and a message.
template <typename F>
int guard(F&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    return keep_error(e.what());
  } catch (...) {
    return keep_error("an exception of unknown type");
  }
}

inline mx::array& get(fl_array handle) {
  return *reinterpret_cast<mx::array*>(handle);
}

inline std::optional<mx::array> maybe(fl_array handle) {
  return handle ? std::optional<mx::array>(get(handle)) : std::nullopt;
}

// Computes the arrays and all their inputs. On MLX's CPU backend, refuses a step that would exceed
// the memory limit.
void evaluate(const std::vector<mx::array>& wanted, bool is_async);

// A new handle; the count of live ones grows.
fl_array adopt(mx::array value);

// Runs an entry with one array as its result.
template <typename F>
int make(fl_array* out, F&& body) {
  return guard([&] { *out = adopt(body()); });
}

mx::Dtype dtype_of(int code);
int code_of(mx::Dtype dtype);

inline mx::Shape shape_of(fl_ints list) {
  return mx::Shape(list.data, list.data + list.len);
}

inline mx::Strides strides_of(fl_ints list) {
  return mx::Strides(list.data, list.data + list.len);
}

inline std::vector<int> ints_of(fl_ints list) {
  return std::vector<int>(list.data, list.data + list.len);
}

inline std::vector<mx::array> arrays_of(fl_arrays list) {
  std::vector<mx::array> out;
  out.reserve(list.len);
  for (size_t i = 0; i < list.len; ++i) {
    out.push_back(get(list.data[i]));
  }
  return out;
}

// A scalar of any element type.
inline mx::array scalar(double value, mx::Dtype dtype) {
  return mx::issubdtype(dtype, mx::floating) ? mx::array(static_cast<float>(value), dtype)
                                             : mx::array(static_cast<int64_t>(value), dtype);
}

} // namespace fl
