// Errors, devices, memory, arrays, compiled functions.
#include "common.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>

namespace fl {

namespace {

thread_local std::string last_error;
thread_local std::optional<mx::Stream> current;
std::atomic<int64_t> live{0};

struct Closure {
  std::function<std::vector<mx::array>(const std::vector<mx::array>&)> call;
};

// The caller's function with its context, which lives as long as any copy of the function does.
struct Function {
  fl_function run;
  void* context;
  fl_release release;
  size_t n_out;

  ~Function() {
    if (release) {
      release(context);
    }
  }

  std::vector<mx::array> operator()(const std::vector<mx::array>& in) const {
    std::vector<fl_array> handles, results(n_out, nullptr);
    for (const auto& x : in) {
      handles.push_back(adopt(x));
    }
    int status = run(context, handles.data(), handles.size(), results.data(), n_out);
    for (auto handle : handles) {
      fl_array_free(handle);
    }
    std::vector<mx::array> out;
    for (auto handle : results) {
      if (handle) {
        out.push_back(get(handle));
        fl_array_free(handle);
      }
    }
    if (status != 0 || out.size() != n_out) {
      throw std::runtime_error(status ? fl_error() : "the function left a result out");
    }
    return out;
  }
};

// The oldest versions accepted can only copy.
template <typename D>
mx::array wrap(void* data, mx::Shape shape, mx::Dtype dtype, const D& release) {
  if constexpr (std::is_constructible_v<mx::array, void*, mx::Shape, mx::Dtype, const D&>) {
    return mx::array(data, std::move(shape), dtype, release);
  } else {
    size_t bytes = dtype.size();
    for (auto n : shape) {
      bytes *= n;
    }
    return [&](auto size) {
      auto buffer = mx::allocator::malloc(size);
      std::memcpy(buffer.raw_ptr(), data, size);
      release(data);
      return mx::array(buffer, std::move(shape), dtype);
    }(bytes);
  }
}

} // namespace

mx::Stream stream() {
  if (!current) {
    throw std::runtime_error("this thread has chosen no device");
  }
  return *current;
}

int keep_error(const char* message) {
  last_error = message;
  return 1;
}

fl_array adopt(mx::array value) {
  auto handle = reinterpret_cast<fl_array>(new mx::array(std::move(value)));
  live.fetch_add(1, std::memory_order_relaxed);
  return handle;
}

mx::Dtype dtype_of(int code) {
  switch (code) {
#define CASE(CODE, DTYPE) \
  case CODE: \
    return DTYPE;
    FL_DTYPES(CASE)
#undef CASE
  }
  throw std::invalid_argument("element type " + std::to_string(code) + " is unknown");
}

int code_of(mx::Dtype dtype) {
#define CASE(CODE, DTYPE) \
  if (dtype == DTYPE) { \
    return CODE; \
  }
  FL_DTYPES(CASE)
#undef CASE
  return -1;
}

} // namespace fl

using namespace fl;

const char* fl_error() {
  return last_error.c_str();
}

int fl_fail(const char* message) {
  return keep_error(message);
}

const char* fl_version(int compiled) {
  static const std::string headers = std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." +
      std::to_string(MLX_VERSION_PATCH);
  return compiled ? headers.c_str() : mx::version();
}

static mx::Device device_of(int is_gpu, int index) {
  return mx::Device(is_gpu ? mx::Device::gpu : mx::Device::cpu, index);
}

int fl_device_count(int is_gpu, int64_t* out) {
  return guard([&] {
#if MLX_VERSION_NUMERIC >= 31000
    *out = mx::device_count(is_gpu ? mx::Device::gpu : mx::Device::cpu);
#else
    *out = mx::is_available(device_of(is_gpu, 0)) ? 1 : 0;
#endif
  });
}

int fl_device_info(int is_gpu, int index, char* text, size_t len) {
  return guard([&] {
    std::ostringstream out;
#if MLX_VERSION_NUMERIC >= 31000
    const auto& info = mx::device_info(device_of(is_gpu, index));
    std::map<std::string, std::variant<std::string, size_t>> sorted(info.begin(), info.end());
    for (const auto& [key, value] : sorted) {
      out << key << '=';
      std::visit([&](const auto& v) { out << v; }, value);
      out << '\n';
    }
#endif
    std::strncpy(text, out.str().c_str(), len);
    text[len - 1] = '\0';
  });
}

int fl_use_device(int is_gpu, int index) {
  return guard([&] {
    auto device = device_of(is_gpu, index);
    if (!mx::is_available(device)) {
      throw std::runtime_error("this build of MLX offers no such device");
    }
    // By default MLX multiplies f32 matrices with 10 bits of mantissa (TF32), unlike PyTorch. The
    // setting must precede the first product.
    setenv("MLX_ENABLE_TF32", "0", /* overwrite */ 0);
    current = mx::new_stream(device);
    // MLX keys compiled functions by the thread's default stream. A default stream created later
    // would cause retracing.
    mx::default_stream(mx::default_device());
  });
}

int fl_synchronize() {
  return guard([&] { mx::synchronize(stream()); });
}

int fl_fuse_nothing() {
  return guard([&] { mx::set_compile_mode(mx::CompileMode::no_fuse); });
}

int fl_memory(Memory op, uint64_t value, uint64_t* out) {
  return guard([&] {
    *out = 0;
    switch (op) {
      case Memory::Active: *out = mx::get_active_memory(); break;
      case Memory::Peak: *out = mx::get_peak_memory(); break;
      case Memory::Cache: *out = mx::get_cache_memory(); break;
      case Memory::Limit: *out = mx::get_memory_limit(); break;
      case Memory::SetLimit: *out = mx::set_memory_limit(value); break;
      case Memory::SetCacheLimit: *out = mx::set_cache_limit(value); break;
      case Memory::SetWiredLimit: *out = mx::set_wired_limit(value); break;
      case Memory::ClearCache: mx::clear_cache(); break;
      case Memory::ResetPeak: mx::reset_peak_memory(); break;
    }
  });
}

int64_t fl_live_arrays() {
  return live.load(std::memory_order_relaxed);
}

int fl_array_new(void* data, fl_ints shape, int dtype, fl_release release, void* context, fl_array* out) {
  // The constructor may throw before it takes over the deleter, or after it has run it: the owner
  // is released once.
  struct Owner {
    fl_release release;
    void* context;
    ~Owner() {
      release(context);
    }
  };
  std::shared_ptr<Owner> owner(new Owner{release, context});
  std::function<void(void*)> done = [owner](void*) mutable { owner.reset(); };
  owner.reset();
  return make(out, [&] { return wrap(data, shape_of(shape), dtype_of(dtype), done); });
}

int fl_array_clone(fl_array a, fl_array* out) {
  return make(out, [&] { return get(a); });
}

void fl_array_free(fl_array a) {
  if (a) {
    live.fetch_sub(1, std::memory_order_relaxed);
    delete &get(a);
  }
}

int fl_array_spec(fl_array a, int64_t* dims, size_t len, size_t* rank, int* dtype) {
  return guard([&] {
    const auto& shape = get(a).shape();
    *rank = shape.size();
    *dtype = code_of(get(a).dtype());
    for (size_t i = 0; i < std::min(len, shape.size()); ++i) {
      dims[i] = shape[i];
    }
  });
}

int fl_array_data(fl_array a, const void** data, size_t* bytes) {
  return guard([&] {
    auto& x = get(a);
    evaluate({x}, /* is_async */ false);
    if (x.size() > 0 && !x.flags().row_contiguous) {
      throw std::runtime_error("the array is not row-major");
    }
    *data = x.size() > 0 ? x.data<char>() : nullptr;
    *bytes = x.nbytes();
  });
}

// Threads of several devices compile in turn. MLX before 0.32.2 does not lock its cache of compiled
// functions, and MLX before 0.32.1 does not lock its stack of traces. The mutex is recursive
// because a trace may free other compiled functions.
static std::recursive_mutex& compiling() {
  static std::recursive_mutex mutex;
  return mutex;
}

int fl_compile(fl_function function, void* context, fl_release release, size_t n_out, fl_closure* out) {
  std::shared_ptr<Function> body(new Function{function, context, release, n_out});
  return guard([&] {
    std::lock_guard turn(compiling());
    std::function<std::vector<mx::array>(const std::vector<mx::array>&)> call = [body](const auto& in) { return (*body)(in); };
    *out = reinterpret_cast<fl_closure>(new Closure{mx::compile(std::move(call))});
  });
}

int fl_closure_call(fl_closure closure, fl_arrays in, fl_array* out) {
  return guard([&] {
    std::lock_guard turn(compiling());
    auto results = reinterpret_cast<Closure*>(closure)->call(arrays_of(in));
    for (size_t i = 0; i < results.size(); ++i) {
      out[i] = adopt(std::move(results[i]));
    }
  });
}

void fl_closure_free(fl_closure closure) {
  std::lock_guard turn(compiling());
  delete reinterpret_cast<Closure*>(closure);
}
