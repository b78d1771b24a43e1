// Runs programs in ExecuTorch's runtime with Flambeau as its MLX backend:
// executorch MLP.pte LANGUAGE_MODEL.pte TOKEN...
// It prints the results of the first, and the tokens that the second adds to the given ones.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using executorch::extension::Module;
using executorch::extension::make_tensor_ptr;
using executorch::runtime::Error;

extern "C" int32_t flambeau_executorch_registered(void);

#define REQUIRE(condition)                                                           \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

// Prints the results for one row and for two.
static void run_mlp(const char *path) {
  Module module(path, Module::LoadMode::Mmap);
  for (const int rows : {1, 2}) {
    const auto numbers = rows == 1 ? std::vector<float>{0.5f, -1, 0, 2}
                                   : std::vector<float>{0.5f, -1, 0, 2, 1, 1, 1, 1};
    const auto x = make_tensor_ptr({rows, 4}, numbers);
    const auto result = module.forward(x);
    REQUIRE(result.ok() && result->size() == 1);
    const auto y = result->at(0).toTensor();
    REQUIRE(y.size(0) == rows && y.size(1) == 2);
    for (ssize_t i = 0; i < y.numel(); i++) {
      std::printf("%.6f\n", static_cast<double>(y.const_data_ptr<float>()[i]));
    }
  }
  const auto wide = make_tensor_ptr({1, 5}, std::vector<float>(5));
  REQUIRE(!module.forward(wide).ok());
}

// The place of the largest of some numbers in bf16.
static std::int64_t likeliest(const void *logits, std::size_t count) {
  std::int64_t best = 0;
  float largest = -INFINITY;
  for (std::size_t i = 0; i < count; i++) {
    std::uint16_t half;
    std::memcpy(&half, static_cast<const char *>(logits) + 2 * i, 2);
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float number;
    std::memcpy(&number, &bits, 4);
    if (number > largest) {
      largest = number;
      best = static_cast<std::int64_t>(i);
    }
  }
  return best;
}

// Prints the tokens that a language model adds. Its caches are state of the delegate.
static void generate(const char *path, std::vector<std::int64_t> tokens) {
  Module module(path, Module::LoadMode::Mmap);
  std::int64_t position = 0;
  for (int step = 0; step < 8; step++) {
    const int count = static_cast<int>(tokens.size());
    std::vector<std::int64_t> positions(tokens.size());
    for (std::int64_t &place : positions) {
      place = position++;
    }
    const auto result =
        module.forward({make_tensor_ptr({1, count}, tokens), make_tensor_ptr({count}, positions)});
    REQUIRE(result.ok() && result->at(0).isTensor());
    const auto logits = result->at(0).toTensor();
    REQUIRE(logits.scalar_type() == executorch::aten::ScalarType::BFloat16);
    tokens = {likeliest(logits.const_data_ptr(), static_cast<std::size_t>(logits.numel()))};
    std::printf("%d\n", static_cast<int>(tokens[0]));
  }
}

int main(int argc, char **argv) {
  REQUIRE(argc >= 4);
  REQUIRE(flambeau_executorch_registered() == 0);
  auto *backend = executorch::runtime::get_backend_class("MLXBackend");
  REQUIRE(backend != nullptr && backend->is_available());

  executorch::runtime::BackendOptions<1> options;
  options.set_option("threads", 2);
  REQUIRE(executorch::runtime::set_option("MLXBackend", options.view()) == Error::Ok);
  executorch::runtime::BackendOptions<1> wrong;
  wrong.set_option("colour", 2);
  REQUIRE(executorch::runtime::set_option("MLXBackend", wrong.view()) == Error::InvalidArgument);

  run_mlp(argv[1]);
  std::vector<std::int64_t> tokens;
  for (int i = 3; i < argc; i++) {
    tokens.push_back(std::atoi(argv[i]));
  }
  generate(argv[2], tokens);
  return 0;
}
