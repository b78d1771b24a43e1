// Arguments of ExecuTorch's calls as values of Flambeau, and results in the places that ExecuTorch
// has for them.
#pragma once

#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/util/dim_order_util.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/platform/log.h>
#include <flambeau.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace flambeau {

using executorch::aten::SizesType;
using executorch::aten::StridesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;

// The most dimensions of a tensor that crosses to Flambeau.
constexpr size_t kMaxRank = 16;

// Logs an error, keeps its text for the thread, frees it, and gives ExecuTorch's code for it.
Error report(const char *what, flb_error *error);

// The same for an error of the backend itself.
Error refuse(Error code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Copies a tensor between its own layout and row-major memory.
class Layout {
 public:
  explicit Layout(const Tensor &tensor) : tensor_(tensor) {}

  bool is_row_major() const {
    const auto order = tensor_.dim_order();
    return executorch::runtime::is_contiguous_dim_order(order.data(), order.size());
  }

  // `rows` has the elements in row-major order.
  void read(void *rows) const {
    char *out = static_cast<char *>(rows);
    walk(0, 0, [&](size_t at, size_t size) {
      std::memcpy(out, static_cast<const char *>(tensor_.const_data_ptr()) + at, size);
      out += size;
    });
  }

  void write(const void *rows) const {
    const char *in = static_cast<const char *>(rows);
    walk(0, 0, [&](size_t at, size_t size) {
      std::memcpy(static_cast<char *>(tensor_.mutable_data_ptr()) + at, in, size);
      in += size;
    });
  }

 private:
  // Calls `visit` with the place of each element, in row-major order.
  template <typename Visit>
  void walk(size_t axis, size_t element, const Visit &visit) const {
    const size_t size = static_cast<size_t>(tensor_.element_size());
    if (axis == static_cast<size_t>(tensor_.dim())) {
      visit(element * size, size);
      return;
    }
    const auto stride = static_cast<size_t>(tensor_.strides()[axis]);
    for (SizesType i = 0; i < tensor_.sizes()[axis]; i++) {
      walk(axis + 1, element + static_cast<size_t>(i) * stride, visit);
    }
  }

  const Tensor &tensor_;
};

// The inputs of a call, as Flambeau reads them.
class Inputs {
 public:
  ~Inputs() {
    for (size_t i = 0; i < count_; i++) {
      if (values_[i].kind == FLB_VALUE_TENSOR) {
        flb_tensor_free(const_cast<flb_tensor *>(values_[i].as.tensor));
      }
    }
    std::free(values_);
  }

  Error add(const EValue &input, size_t capacity) {
    if (values_ == nullptr) {
      values_ = static_cast<flb_value *>(std::calloc(capacity, sizeof(flb_value)));
      if (values_ == nullptr) {
        return Error::MemoryAllocationFailed;
      }
    }
    flb_value &value = values_[count_];
    if (input.isInt()) {
      value.kind = FLB_VALUE_INTEGER;
      value.as.integer = input.toInt();
    } else if (input.isTensor()) {
      flb_tensor *tensor = nullptr;
      if (const Error error = borrow(input.toTensor(), &tensor); error != Error::Ok) {
        return error;
      }
      value.kind = FLB_VALUE_TENSOR;
      value.as.tensor = tensor;
    } else {
      return refuse(Error::InvalidArgument, "input %zu is neither a tensor nor an integer", count_);
    }
    count_ += 1;
    return Error::Ok;
  }

  const flb_value *values() const { return values_; }
  size_t count() const { return count_; }

 private:
  // A tensor that reads ExecuTorch's memory during the call, or a copy in row-major order.
  static Error borrow(const Tensor &tensor, flb_tensor **out) {
    const auto sizes = tensor.sizes();
    if (sizes.size() > kMaxRank) {
      return refuse(Error::NotSupported, "an input has %zu dimensions, at most 16 are taken",
                    sizes.size());
    }
    size_t shape[kMaxRank] = {};
    for (size_t i = 0; i < sizes.size(); i++) {
      shape[i] = static_cast<size_t>(sizes[i]);
    }
    const void *data = tensor.const_data_ptr();
    void *copy = nullptr;
    const Layout layout(tensor);
    if (!layout.is_row_major() && tensor.nbytes() > 0) {
      copy = std::malloc(tensor.nbytes());
      if (copy == nullptr) {
        return Error::MemoryAllocationFailed;
      }
      layout.read(copy);
      data = copy;
    }
    flb_error *error = flb_tensor_borrow(static_cast<flb_dtype>(tensor.scalar_type()), shape,
                                         sizes.size(), data, tensor.nbytes(),
                                         copy == nullptr ? nullptr : std::free, copy, out);
    return error == nullptr ? Error::Ok : report("an input", error);
  }

  flb_value *values_ = nullptr;
  size_t count_ = 0;
};

// Copies a result to where ExecuTorch keeps it.
inline Error store(const flb_value &result, EValue &output) {
  if (result.kind == FLB_VALUE_INTEGER) {
    output = EValue(result.as.integer);
    return Error::Ok;
  }
  if (result.kind != FLB_VALUE_TENSOR || !output.isTensor()) {
    return refuse(Error::InvalidArgument, "an output is of another kind than its result");
  }
  Tensor &tensor = output.toTensor();
  const size_t rank = flb_tensor_rank(result.as.tensor);
  if (rank > kMaxRank ||
      flb_tensor_dtype(result.as.tensor) != static_cast<flb_dtype>(tensor.scalar_type())) {
    return refuse(Error::InvalidArgument, "an output has another element type than its result");
  }
  SizesType sizes[kMaxRank] = {};
  for (size_t i = 0; i < rank; i++) {
    sizes[i] = static_cast<SizesType>(flb_tensor_shape(result.as.tensor)[i]);
  }
  const Error resized = executorch::runtime::resize_tensor(tensor, {sizes, rank});
  if (resized != Error::Ok) {
    return refuse(resized, "an output is too small for its result");
  }
  const size_t size = flb_tensor_size(result.as.tensor);
  if (tensor.nbytes() != size) {
    return refuse(Error::Internal, "an output has %zu bytes, and its result %zu",
                  tensor.nbytes(), size);
  }
  const Layout layout(tensor);
  if (size > 0 && !layout.is_row_major()) {
    layout.write(flb_tensor_data(result.as.tensor));
  } else if (size > 0) {
    std::memcpy(tensor.mutable_data_ptr(), flb_tensor_data(result.as.tensor), size);
  }
  return Error::Ok;
}

}  // namespace flambeau
