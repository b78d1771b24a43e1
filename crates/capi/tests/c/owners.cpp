// Holds the owners of flambeau.hpp to what the header says: owners PROGRAM CACHE LANGUAGE SPEECH
// RECORDING
#include <flambeau.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define REQUIRE(condition)                                                        \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                               \
    }                                                                             \
  } while (0)

// The error of a call.
template <typename Call>
static flambeau::Error error_of(Call call) {
  try {
    call();
  } catch (const flambeau::Error &error) {
    return error;
  }
  REQUIRE(false);
  std::abort();
}

static bool contains(const flambeau::Error &error, const char *word) {
  return std::string(error.what()).find(word) != std::string::npos;
}

static void tensors() {
  auto a = flambeau::Tensor::copy<std::int64_t>({2, 2}, {1, 2, 3, 4});
  const flambeau::Tensor b = a;
  REQUIRE(a.bytes() == b.bytes() && b.shape().size() == 2 && b.shape()[1] == 2 && b.count() == 4);
  const flambeau::Tensor c = std::move(a);
  a = c;
  REQUIRE(a.data<std::int64_t>()[3] == 4 && a.dtype() == FLB_DTYPE_I64 && a.size() == 32);
  const auto wrong = error_of([&] { (void)c.data<float>(); });
  REQUIRE(wrong.kind() == FLB_ERROR_INPUT && contains(wrong, "the elements are i64, not f32"));
  REQUIRE(contains(error_of([] { flambeau::Tensor::copy<float>({3}, {1, 2}); }), "12 bytes, found 8"));

  std::vector<double> numbers{1, 2, 3};
  const double *place = numbers.data();
  const auto taken = flambeau::Tensor::take({3}, std::move(numbers));
  REQUIRE(taken.bytes() == place);
  const float borrowed[2] = {5, 6};
  REQUIRE(flambeau::Tensor::borrow({2}, borrowed, 2).data<float>().data() == borrowed);
  error_of([] { flambeau::Tensor::take({4}, std::vector<double>(3)); });
}

static void programs(const flambeau::Engine &engine, const char *path) {
  REQUIRE(engine.name() == "cpu");
  const auto missing = error_of([&] { flambeau::Program(engine, "missing.pte"); });
  REQUIRE(missing.kind() == FLB_ERROR_LOAD && contains(missing, "missing.pte"));
  flambeau::Program program(engine, path);
  REQUIRE(program.method_names() == std::vector<std::string>{"forward"});
  const flambeau::Method forward = program.load();
  program = flambeau::Program(engine, path);
  REQUIRE(forward.input_count() == 1 && forward.output(0).sizes[1] == 2);
  const auto x = flambeau::Tensor::copy<float>({2, 4}, {0.5f, -1, 0, 2, 1, 1, 1, 1});
  const flambeau::Values results = forward.run({x});
  REQUIRE(results.size() == 1 && results[0].kind == FLB_VALUE_TENSOR);
  const auto y = results.tensor(0).data<float>();
  REQUIRE(y.size() == 4 && y[2] > 0.5877f && y[2] < 0.5879f);
  REQUIRE(contains(error_of([&] { forward.run({3}); }), "the integer 3"));
  REQUIRE(contains(error_of([&] { forward.run({true}); }), "the boolean true"));
  REQUIRE(contains(error_of([&] { forward.run({0.5}); }), "the number 0.5"));
  REQUIRE(contains(error_of([&] { forward.run({"text"}); }), "the string"));
  REQUIRE(contains(error_of([&] { forward.run({flambeau::Value()}); }), "none"));
  forward.reset();
}

static void answers(const flambeau::Engine &engine, const char *name, const char *cache) {
  const flambeau::LanguageModel model(engine, name, {"--cache-dir", cache});
  REQUIRE(model.context() == 64 && model.can_chat());
  flambeau::GenerationOptions options;
  options.max_new_tokens = 6;
  options.ignore_eos = true;
  std::string pieces;
  const auto collect = [&](std::string_view piece) {
    pieces += piece;
    return true;
  };
  const flambeau::Generation whole = model.generate("the cat sat on", options, collect);
  REQUIRE(whole.finish == FLB_FINISH_LENGTH && whole.tokens.size() == 6 && whole.text == pieces);
  REQUIRE(model.generate("the cat sat on", options).text == whole.text);

  const auto refuse = [](std::string_view) { return false; };
  REQUIRE(model.chat({{"user", "a dog ?"}}, options, refuse).finish == FLB_FINISH_CANCELLED);
  std::string thrown;
  try {
    model.chat({{"user", "a dog ?"}}, options,
               [](std::string_view) -> bool { throw std::runtime_error("enough"); });
  } catch (const std::runtime_error &error) {
    thrown = error.what();
  }
  REQUIRE(thrown == "enough");
  options.top_p = 2;
  REQUIRE(contains(error_of([&] { model.generate("a dog", options); }), "top_p"));
}

static void transcripts(const flambeau::Engine &engine, char **args, const char *cache) {
  const flambeau::SpeechModel model(engine, args[0], {"--cache-dir", cache});
  std::string heard;
  const auto collect = [&](const flambeau::Segment &segment) {
    heard += segment.text;
    return true;
  };
  const auto whole = model.transcribe(args[1], {"--word-timestamps"}, collect);
  REQUIRE(whole.segments.size() == 1 && heard == whole.text && !whole.segments[0].words.empty());
  REQUIRE(whole.language.empty() && whole.seconds > 0.49 && whole.json.find("words") > 0);
  const auto quiet = flambeau::Tensor::take({8000}, std::vector<float>(8000));
  REQUIRE(model.transcribe(quiet, 16000).seconds > 0.49);
  std::vector<std::int16_t> noise(8000, 100);
  std::size_t place = 0;
  const auto read = [&](void *data, std::size_t size) {
    const std::size_t count = std::min(size / 2, noise.size() - place);
    std::copy_n(noise.data() + place, count, static_cast<std::int16_t *>(data));
    place += count;
    return 2 * count;
  };
  REQUIRE(model.transcribe_stream<std::int16_t>(16000, 1, read).seconds > 0.49);
  bool is_thrown = false;
  try {
    const auto fail = [](void *, std::size_t) -> std::size_t { throw 4; };
    model.transcribe_stream<std::int16_t>(16000, 1, fail);
  } catch (int number) {
    is_thrown = number == 4;
  }
  REQUIRE(is_thrown);
  is_thrown = false;
  try {
    model.transcribe(args[1], {}, [](const flambeau::Segment &) -> bool { throw 5; });
  } catch (int number) {
    is_thrown = number == 5;
  }
  REQUIRE(is_thrown);
}

int main(int argc, char **argv) {
  REQUIRE(argc == 6);
  const flambeau::Engine engine({"--threads", "2"});
  tensors();
  programs(engine, argv[1]);
  answers(engine, argv[3], argv[2]);
  transcripts(engine, argv + 4, argv[2]);
  std::puts("all hold");
  return 0;
}
