// ExecuTorch's backend `MLXBackend` over Flambeau. Compile this file into a program that links
// ExecuTorch and Flambeau, against the headers of the ExecuTorch that runs it. It needs neither
// exceptions nor RTTI.
//
// It registers itself when the program starts. The engine is made when the first delegate loads.
// Before that, the backend options `engine` (a text such as "mlx") and `threads` (an integer)
// choose it. By default it is the CPU engine on all cores.
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/util/dim_order_util.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/platform/log.h>
#include <flambeau.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <variant>

namespace {

using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::ArrayRef;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendOption;
using executorch::runtime::BackendOptionContext;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::NamedDataMap;
using executorch::runtime::Result;
using executorch::runtime::Span;

// The most dimensions of a tensor that crosses to Flambeau.
constexpr size_t kMaxRank = 16;

// Logs an error, frees it, and gives ExecuTorch's code for it.
Error report(const char *what, flb_error *error) {
  const flb_error_kind kind = flb_error_get_kind(error);
  ET_LOG(Error, "MLXBackend: %s: %s", what, flb_error_get_text(error));
  flb_error_free(error);
  switch (kind) {
    case FLB_ERROR_LOAD:
      return Error::DelegateInvalidCompatibility;
    case FLB_ERROR_INPUT:
      return Error::InvalidArgument;
    default:
      return Error::Internal;
  }
}

void free_buffer(void *context) {
  delete static_cast<FreeableBuffer *>(context);
}

// Lends the weights under a key. Flambeau frees the buffer when it no longer reads it.
int32_t find(void *context, const char *key, flb_lent *lent) {
  const auto *data = static_cast<const NamedDataMap *>(context);
  if (data == nullptr) {
    return 1;
  }
  Result<FreeableBuffer> found = data->get_data(key);
  if (!found.ok()) {
    return 1;
  }
  auto *buffer = new (std::nothrow) FreeableBuffer(std::move(found.get()));
  if (buffer == nullptr) {
    return 1;
  }
  *lent = {buffer->data(), buffer->size(), free_buffer, buffer};
  return 0;
}

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
      ET_LOG(Error, "MLXBackend: input %zu is neither a tensor nor an integer", count_);
      return Error::InvalidArgument;
    }
    count_ += 1;
    return Error::Ok;
  }

  const flb_value *values() const { return values_; }
  size_t count() const { return count_; }

 private:
  // A tensor that reads ExecuTorch's memory during the call.
  static Error borrow(const Tensor &tensor, flb_tensor **out) {
    const auto sizes = tensor.sizes();
    const auto order = tensor.dim_order();
    if (sizes.size() > kMaxRank ||
        !executorch::runtime::is_contiguous_dim_order(order.data(), order.size())) {
      ET_LOG(Error, "MLXBackend: an input is not contiguous, or has more than 16 dimensions");
      return Error::NotSupported;
    }
    size_t shape[kMaxRank] = {};
    for (size_t i = 0; i < sizes.size(); i++) {
      shape[i] = static_cast<size_t>(sizes[i]);
    }
    flb_error *error = flb_tensor_borrow(
        static_cast<flb_dtype>(tensor.scalar_type()), shape, sizes.size(), tensor.const_data_ptr(),
        tensor.nbytes(), nullptr, nullptr, out);
    return error == nullptr ? Error::Ok : report("an input", error);
  }

  flb_value *values_ = nullptr;
  size_t count_ = 0;
};

// Copies a result to where ExecuTorch keeps it.
Error store(const flb_value &result, EValue &output) {
  if (result.kind == FLB_VALUE_INTEGER) {
    output = EValue(result.as.integer);
    return Error::Ok;
  }
  if (result.kind != FLB_VALUE_TENSOR || !output.isTensor()) {
    ET_LOG(Error, "MLXBackend: an output is of another kind than its result");
    return Error::InvalidArgument;
  }
  Tensor &tensor = output.toTensor();
  const size_t rank = flb_tensor_rank(result.as.tensor);
  if (rank > kMaxRank ||
      flb_tensor_dtype(result.as.tensor) != static_cast<flb_dtype>(tensor.scalar_type())) {
    ET_LOG(Error, "MLXBackend: an output has another element type than its result");
    return Error::InvalidArgument;
  }
  SizesType sizes[kMaxRank] = {};
  for (size_t i = 0; i < rank; i++) {
    sizes[i] = static_cast<SizesType>(flb_tensor_shape(result.as.tensor)[i]);
  }
  const Error resized = executorch::runtime::resize_tensor(tensor, {sizes, rank});
  if (resized != Error::Ok) {
    return resized;
  }
  const size_t size = flb_tensor_size(result.as.tensor);
  if (tensor.nbytes() != size) {
    return Error::Internal;
  }
  if (size > 0) {
    std::memcpy(tensor.mutable_data_ptr(), flb_tensor_data(result.as.tensor), size);
  }
  return Error::Ok;
}

class Backend final : public executorch::runtime::BackendInterface {
 public:
  bool is_available() const override { return flb_abi_version() == FLB_ABI_VERSION; }

  Result<DelegateHandle *> init(BackendInitContext &context, FreeableBuffer *processed,
                                ArrayRef<CompileSpec> specs) const override {
    (void)specs;
    flb_delegate *delegate = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const Error error = make_engine(); error != Error::Ok) {
        return error;
      }
      // ExecuTorch hands out a const map, and `find` reads it only.
      void *data = const_cast<NamedDataMap *>(context.get_named_data_map());
      flb_error *error = flb_delegate_load(engine_, processed->data(), processed->size(), find,
                                           data, &delegate);
      if (error != nullptr) {
        return report("loading", error);
      }
    }
    processed->Free();
    return delegate;
  }

  Error execute(BackendExecutionContext &context, DelegateHandle *handle,
                Span<EValue *> args) const override {
    (void)context;
    auto *delegate = static_cast<flb_delegate *>(handle);
    const size_t input_count = flb_delegate_input_count(delegate);
    const size_t output_count = flb_delegate_output_count(delegate);
    if (args.size() != input_count + output_count) {
      ET_LOG(Error, "MLXBackend: %zu arguments, expected %zu inputs and %zu outputs", args.size(),
             input_count, output_count);
      return Error::InvalidArgument;
    }
    Inputs inputs;
    for (size_t i = 0; i < input_count; i++) {
      if (const Error error = inputs.add(*args[i], input_count); error != Error::Ok) {
        return error;
      }
    }
    flb_values *results = nullptr;
    if (flb_error *error = flb_delegate_run(delegate, inputs.values(), inputs.count(), &results)) {
      return report("running", error);
    }
    Error outcome = Error::Ok;
    for (size_t i = 0; i < output_count && outcome == Error::Ok; i++) {
      flb_value result;
      flb_error *error = flb_values_get(results, i, &result);
      outcome = error != nullptr ? report("a result", error)
                                 : store(result, *args[input_count + i]);
    }
    flb_values_free(results);
    return outcome;
  }

  Error set_option(BackendOptionContext &context, const Span<BackendOption> &options) override {
    (void)context;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const BackendOption &option : options) {
      const auto *text = std::get_if<std::array<char, executorch::runtime::kMaxOptionValueLength>>(
          &option.value);
      const auto *number = std::get_if<int>(&option.value);
      if (std::strcmp(option.key, "engine") == 0 && text != nullptr) {
        std::snprintf(name_, sizeof name_, "%s", text->data());
      } else if (std::strcmp(option.key, "threads") == 0 && number != nullptr) {
        std::snprintf(threads_, sizeof threads_, "%d", *number);
      } else {
        ET_LOG(Error, "MLXBackend: there is no option %s of this type", option.key);
        return Error::InvalidArgument;
      }
      // Delegates that are loaded keep theirs.
      flb_engine_free(engine_);
      engine_ = nullptr;
    }
    return Error::Ok;
  }

  void destroy(DelegateHandle *handle) const override {
    flb_delegate_free(static_cast<flb_delegate *>(handle));
  }

 private:
  // Makes the engine if there is none; the caller holds the lock.
  Error make_engine() const {
    if (engine_ != nullptr) {
      return Error::Ok;
    }
    const char *const flags[4] = {"--engine", name_, "--threads", threads_};
    flb_error *error = flb_engine_new(flags, threads_[0] == '\0' ? 2 : 4, &engine_);
    return error == nullptr ? Error::Ok : report("the engine", error);
  }

  mutable std::mutex mutex_;
  mutable flb_engine *engine_ = nullptr;
  char name_[256] = "cpu";
  char threads_[16] = "";
};

// ExecuTorch keeps the pointer for as long as the process lives.
Backend backend;

const Error registered = executorch::runtime::register_backend({"MLXBackend", &backend});

}  // namespace

// ExecuTorch's code of the registration: 0, or 18 where another backend has the name.
extern "C" __attribute__((visibility("default"))) int32_t flambeau_executorch_registered(void);

int32_t flambeau_executorch_registered(void) {
  return static_cast<int32_t>(registered);
}
