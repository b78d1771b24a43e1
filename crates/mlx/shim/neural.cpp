// Products, convolutions and fused functions behind the operations' table, and custom kernels.
#include "common.h"

namespace fl {

using Optional = std::optional<mx::array>;

static mx::array quantized_matmul(const mx::array& x, const fl_quantized& w, bool transpose, mx::StreamOrDevice s) {
  return mx::quantized_matmul(x, get(w.w), get(w.scales), maybe(w.biases), transpose, w.group_size, w.bits, w.mode, s);
}

// Versions of MLX differ by optional parameters in the middle of a list; a template calls the
// existing form.

template <typename A>
mx::array gather_qmm(
    const A& x, const fl_quantized& w, const Optional& lhs, const Optional& rhs, bool transpose, bool sorted,
    mx::StreamOrDevice s) {
  std::optional<A> none, biases = maybe(w.biases);
  const A &codes = get(w.w), &scales = get(w.scales);
  std::string mode = w.mode;
  int group = w.group_size;
  if constexpr (requires { mx::gather_qmm(x, codes, scales, none, none, none, true, group, group, mode, none, true, s); }) {
    return mx::gather_qmm(x, codes, scales, biases, lhs, rhs, transpose, group, w.bits, mode, none, sorted, s);
  } else {
    return mx::gather_qmm(x, codes, scales, biases, lhs, rhs, transpose, group, w.bits, mode, sorted, s);
  }
}

template <typename A>
mx::array dequantize(const A& codes, const fl_quantized& w, mx::StreamOrDevice s) {
  std::optional<A> none, biases = maybe(w.biases);
  std::optional<mx::Dtype> kept;
  const A& scales = get(w.scales);
  std::string mode = w.mode;
  int group = w.group_size;
  if constexpr (requires { mx::dequantize(codes, scales, none, group, group, mode, none, kept, s); }) {
    return mx::dequantize(codes, scales, biases, group, w.bits, mode, none, kept, s);
  } else {
    return mx::dequantize(codes, scales, biases, group, w.bits, mode, kept, s);
  }
}

static mx::array dequantize(const fl_quantized& w, mx::StreamOrDevice s) {
  return dequantize(get(w.w), w, s);
}

template <typename A>
mx::array attention(
    const A& q, const A& k, const A& v, float scale, const std::string& mode, const Optional& mask, mx::StreamOrDevice s) {
  std::optional<A> none;
  if constexpr (requires { mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, none, none, false, s); }) {
    return mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, mask, none, false, s);
  } else {
    return mx::fast::scaled_dot_product_attention(q, k, v, scale, mode, mask, none, s);
  }
}

static mx::array conv(
    const mx::array& x, const mx::array& w, const fl_conv_axes& axes, int groups, bool flip, mx::StreamOrDevice s) {
  return mx::conv_general(
      x, w, ints_of(axes.stride), ints_of(axes.pad_low), ints_of(axes.pad_high), ints_of(axes.kernel_dilation),
      ints_of(axes.input_dilation), groups, flip, s);
}

static mx::array rope(
    const mx::array& x, int dims, bool traditional, float base, float scale, const mx::array& offset, const Optional& freqs,
    mx::StreamOrDevice s) {
  auto theta = freqs ? std::nullopt : std::optional<float>(base);
  return mx::fast::rope(x, dims, traditional, theta, scale, offset, freqs, s);
}

} // namespace fl

using namespace fl;

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
