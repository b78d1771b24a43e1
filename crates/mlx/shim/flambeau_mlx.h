// The C interface that Flambeau loads at run time. Operations with one result array are in
// operations.cpp, generated from Flambeau's table of operations. This header declares the rest.
//
// Every function returns 0, or 1 with a message in fl_error() of the same thread; no exception
// leaves. Array handles are owned by the caller and freed with fl_array_free. Element types are
// ExecuTorch's ScalarType numbers. The enums and the supported element types are in codes.h,
// generated from Flambeau's enums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codes.h"

#if defined(_WIN32)
#define FL_API extern "C" __declspec(dllexport)
#else
#define FL_API extern "C" __attribute__((visibility("default")))
#endif

using fl_array = struct fl_array_*;
using fl_closure = struct fl_closure_*;
using fl_kernel = struct fl_kernel_*;

// A list of integers: sizes, axes, strides.
struct fl_ints {
  const int64_t* data;
  size_t len;
};

// A list of borrowed arrays.
struct fl_arrays {
  const fl_array* data;
  size_t len;
};

// The function that fl_compile compiles: reads `in` and writes new handles to the `n_out` places of
// `out`. Returns non-zero, after fl_fail, on failure.
using fl_function = int (*)(void* context, const fl_array* in, size_t n_in, fl_array* out, size_t n_out);
using fl_release = void (*)(void* context);

// Quantized weights; biases may be null, mode is MLX's name of the format.
struct fl_quantized {
  fl_array w;
  fl_array scales;
  fl_array biases;
  int32_t group_size;
  int32_t bits;
  const char* mode;
};

// A convolution, axis by axis.
struct fl_conv_axes {
  fl_ints stride;
  fl_ints pad_low;
  fl_ints pad_high;
  fl_ints kernel_dilation;
  fl_ints input_dilation;
};

// Names and text of a custom kernel; `is_cuda` selects the language.
struct fl_kernel_text {
  int32_t is_cuda;
  const char* name;
  const char* source;
  const char* header;
  const char* const* inputs;
  size_t n_inputs;
  const char* const* outputs;
  size_t n_outputs;
  int32_t row_contiguous;
  int32_t atomic_outputs;
  int32_t shared_memory;
};

// One launch of a custom kernel. Shapes of results are concatenated.
struct fl_launch {
  const int64_t* shapes;
  const size_t* ranks;
  const int32_t* dtypes;
  size_t n_outputs;
  int32_t grid[3];
  int32_t threads[3];
  const char* const* template_names;
  const TemplateKind* template_kinds;
  const int32_t* template_values;
  size_t n_templates;
  int32_t has_init;
  float init;
};

// core.cpp: errors, devices, memory, arrays, evaluation
FL_API const char* fl_error();
FL_API int fl_fail(const char* message);
FL_API const char* fl_version(int compiled);
FL_API int fl_device_count(int is_gpu, int64_t* out);
FL_API int fl_device_info(int is_gpu, int index, char* text, size_t len);
FL_API int fl_use_device(int is_gpu, int index);
FL_API int fl_synchronize();
FL_API int fl_fuse_nothing();
FL_API int fl_memory(Memory op, uint64_t value, uint64_t* out);
FL_API int64_t fl_live_arrays();
FL_API int fl_array_new(void* data, fl_ints shape, int dtype, fl_release release, void* context, fl_array* out);
FL_API int fl_array_clone(fl_array a, fl_array* out);
FL_API void fl_array_free(fl_array a);
FL_API int fl_array_spec(fl_array a, int64_t* dims, size_t len, size_t* rank, int* dtype);
FL_API int fl_array_data(fl_array a, const void** data, size_t* bytes);
FL_API int fl_eval(fl_arrays list, int is_async);
FL_API int fl_compile(fl_function function, void* context, fl_release release, size_t n_out, fl_closure* out);
FL_API int fl_closure_call(fl_closure closure, fl_arrays in, fl_array* out);
FL_API void fl_closure_free(fl_closure closure);

// neural.cpp: custom kernels
FL_API int fl_kernel_new(const fl_kernel_text* text, fl_kernel* out);
FL_API int fl_kernel_call(fl_kernel kernel, fl_arrays in, const fl_launch* launch, fl_array* out);
FL_API void fl_kernel_free(fl_kernel kernel);
