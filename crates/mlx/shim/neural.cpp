// Products, convolutions, fused operations, custom kernels.
#include "common.h"

using namespace fl;

// Versions of MLX differ by optional parameters in the middle of a list; a template calls the form that is there.
namespace {

template <typename A>
mx::array gather_qmm(
    const A& x, const A& w, const A& scales, fl_array biases, fl_array lhs, fl_array rhs, bool transpose, const fl_quant& q,
    bool sorted) {
  std::optional<A> none;
  std::string mode = q.mode;
  if constexpr (requires {
                  mx::gather_qmm(x, w, scales, none, none, none, true, q.bits, q.bits, mode, none, true, stream());
                }) {
    return mx::gather_qmm(
        x, w, scales, maybe(biases), maybe(lhs), maybe(rhs), transpose, q.group_size, q.bits, mode, none, sorted, stream());
  } else {
    return mx::gather_qmm(
        x, w, scales, maybe(biases), maybe(lhs), maybe(rhs), transpose, q.group_size, q.bits, mode, sorted, stream());
  }
}

template <typename A>
mx::array dequantize(const A& w, const A& scales, fl_array biases, const fl_quant& q) {
  std::optional<A> none;
  std::optional<mx::Dtype> kept;
  std::string mode = q.mode;
  if constexpr (requires { mx::dequantize(w, scales, none, q.bits, q.bits, mode, none, kept, stream()); }) {
    return mx::dequantize(w, scales, maybe(biases), q.group_size, q.bits, mode, none, kept, stream());
  } else {
    return mx::dequantize(w, scales, maybe(biases), q.group_size, q.bits, mode, kept, stream());
  }
}

template <typename A>
mx::array attention(const A& q, const A& k, const A& v, float scale, const std::string& mode, fl_array mask) {
  std::optional<A> none;
  if constexpr (requires { mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, none, none, false, stream()); }) {
    return mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, maybe(mask), none, false, stream());
  } else {
    return mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, maybe(mask), none, stream());
  }
}

} // namespace

int fl_addmm(fl_array c, fl_array a, fl_array b, float alpha, float beta, fl_array* out) {
  return make(out, [&] { return mx::addmm(get(c), get(a), get(b), alpha, beta, stream()); });
}

int fl_gather_mm(fl_array a, fl_array b, fl_array lhs, fl_array rhs, int sorted, fl_array* out) {
  return make(out, [&] { return mx::gather_mm(get(a), get(b), maybe(lhs), maybe(rhs), sorted != 0, stream()); });
}

int fl_quantized_matmul(
    fl_array x, fl_array w, fl_array scales, fl_array biases, int transpose, fl_quant q, fl_array* out) {
  return make(out, [&] {
    return mx::quantized_matmul(
        get(x), get(w), get(scales), maybe(biases), transpose != 0, q.group_size, q.bits, q.mode, stream());
  });
}

int fl_gather_qmm(
    fl_array x, fl_array w, fl_array scales, fl_array biases, fl_array lhs, fl_array rhs, int transpose, fl_quant q,
    int sorted, fl_array* out) {
  return make(out, [&] { return gather_qmm(get(x), get(w), get(scales), biases, lhs, rhs, transpose != 0, q, sorted != 0); });
}

int fl_dequantize(fl_array w, fl_array scales, fl_array biases, fl_quant q, fl_array* out) {
  return make(out, [&] { return dequantize(get(w), get(scales), biases, q); });
}

int fl_conv(
    fl_array x, fl_array w, fl_ints stride, fl_ints pad_low, fl_ints pad_high, fl_ints kernel_dilation, fl_ints input_dilation,
    int groups, int flip, fl_array* out) {
  return make(out, [&] {
    return mx::conv_general(
        get(x), get(w), ints_of(stride), ints_of(pad_low), ints_of(pad_high), ints_of(kernel_dilation), ints_of(input_dilation),
        groups, flip != 0, stream());
  });
}

int fl_norm(Norm op, fl_array x, fl_array weight, fl_array bias, float eps, fl_array* out) {
  return make(out, [&]() -> mx::array {
    switch (op) {
      case Norm::Rms: return mx::fast::rms_norm(get(x), maybe(weight), eps, stream());
      case Norm::Layer: return mx::fast::layer_norm(get(x), maybe(weight), maybe(bias), eps, stream());
    }
    throw std::invalid_argument("norm is unknown");
  });
}

int fl_rope(fl_array x, int dims, int traditional, float base, float scale, fl_array offset, fl_array freqs, fl_array* out) {
  return make(out, [&] {
    auto theta = freqs ? std::nullopt : std::optional<float>(base);
    return mx::fast::rope(get(x), dims, traditional != 0, theta, scale, get(offset), maybe(freqs), stream());
  });
}

int fl_attention(fl_array q, fl_array k, fl_array v, float scale, const char* mode, fl_array mask, fl_array* out) {
  return make(out, [&] { return attention(get(q), get(k), get(v), scale, mode, mask); });
}

namespace {

struct Kernel {
  mx::fast::CustomKernelFunction call;
};

std::vector<std::string> names_of(const char* const* list, size_t len) {
  return std::vector<std::string>(list, list + len);
}

std::vector<std::pair<std::string, mx::fast::TemplateArg>> templates_of(const fl_launch& launch) {
  std::vector<std::pair<std::string, mx::fast::TemplateArg>> out;
  for (size_t i = 0; i < launch.n_templates; ++i) {
    int value = launch.template_values[i];
    mx::fast::TemplateArg arg = value;
    switch (launch.template_kinds[i]) {
      case TemplateKind::Int: break;
      case TemplateKind::Bool: arg = value != 0; break;
      case TemplateKind::DType: arg = dtype_of(value); break;
    }
    out.emplace_back(launch.template_names[i], arg);
  }
  return out;
}

} // namespace

int fl_kernel_new(const fl_kernel_text* t, fl_kernel* out) {
  return guard([&] {
    auto inputs = names_of(t->inputs, t->n_inputs), outputs = names_of(t->outputs, t->n_outputs);
    auto call = t->is_cuda
        ? mx::fast::cuda_kernel(t->name, inputs, outputs, t->source, t->header, t->row_contiguous != 0, t->shared_memory)
        : mx::fast::metal_kernel(
              t->name, inputs, outputs, t->source, t->header, t->row_contiguous != 0, t->atomic_outputs != 0);
    *out = reinterpret_cast<fl_kernel>(new Kernel{std::move(call)});
  });
}

int fl_kernel_call(fl_kernel kernel, fl_arrays in, const fl_launch* launch, fl_array* out) {
  return guard([&] {
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    const int64_t* at = launch->shapes;
    for (size_t i = 0; i < launch->n_outputs; ++i) {
      shapes.emplace_back(at, at + launch->ranks[i]);
      at += launch->ranks[i];
      dtypes.push_back(dtype_of(launch->dtypes[i]));
    }
    auto results = reinterpret_cast<Kernel*>(kernel)->call(
        arrays_of(in), shapes, dtypes, {launch->grid[0], launch->grid[1], launch->grid[2]},
        {launch->threads[0], launch->threads[1], launch->threads[2]}, templates_of(*launch),
        launch->has_init ? std::optional<float>(launch->init) : std::nullopt, false, stream());
    for (size_t i = 0; i < results.size(); ++i) {
      out[i] = adopt(std::move(results[i]));
    }
  });
}

void fl_kernel_free(fl_kernel kernel) {
  delete reinterpret_cast<Kernel*>(kernel);
}
