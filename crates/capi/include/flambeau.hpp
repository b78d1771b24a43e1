// Flambeau's C++17 interface: thin owners over flambeau.h, in one header.
//
// - Errors of the library are thrown as flambeau::Error. Destructors and getters throw nothing.
// - Objects own their handles: they can be moved, and are freed at the end of their scope.
//   Tensors can be copied as well; copies share their elements.
// - Threads may share const objects. Moving, assigning and destroying need the object alone.
// - Views, such as Tensor::data and Values::operator[], stay valid as long as their owner.
// - Exceptions of callbacks end the running call and are thrown again from it.
#ifndef FLAMBEAU_HPP
#define FLAMBEAU_HPP

#include <flambeau.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace flambeau {

// An error of the library: its text is what(), its kind is kind().
class Error : public std::runtime_error {
 public:
  Error(flb_error_kind kind, const std::string &text) : std::runtime_error(text), kind_(kind) {}
  flb_error_kind kind() const noexcept { return kind_; }

 private:
  flb_error_kind kind_;
};

namespace detail {

// Frees handles of one type.
template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T *handle) const noexcept {
    Free(handle);
  }
};

template <typename T, auto Free>
using Handle = std::unique_ptr<T, Deleter<Free>>;

// Throws an error, if there is one, and frees it.
inline void check(flb_error *error) {
  if (error != nullptr) {
    Handle<flb_error, flb_error_free> owned(error);
    throw Error(flb_error_get_kind(error), flb_error_get_text(error));
  }
}

// Pointers to texts, for the time that these live.
inline std::vector<const char *> pointers(const std::vector<std::string> &texts) {
  std::vector<const char *> list;
  list.reserve(texts.size());
  for (const std::string &text : texts) {
    list.push_back(text.c_str());
  }
  return list;
}

template <typename T>
struct DType;
#define FLAMBEAU_DTYPE(type, code)                 \
  template <>                                      \
  struct DType<type> {                             \
    static constexpr flb_dtype value = code;       \
  };
FLAMBEAU_DTYPE(std::uint8_t, FLB_DTYPE_U8)
FLAMBEAU_DTYPE(std::int8_t, FLB_DTYPE_I8)
FLAMBEAU_DTYPE(std::int16_t, FLB_DTYPE_I16)
FLAMBEAU_DTYPE(std::uint16_t, FLB_DTYPE_U16)
FLAMBEAU_DTYPE(std::int32_t, FLB_DTYPE_I32)
FLAMBEAU_DTYPE(std::uint32_t, FLB_DTYPE_U32)
FLAMBEAU_DTYPE(std::int64_t, FLB_DTYPE_I64)
FLAMBEAU_DTYPE(std::uint64_t, FLB_DTYPE_U64)
FLAMBEAU_DTYPE(float, FLB_DTYPE_F32)
FLAMBEAU_DTYPE(double, FLB_DTYPE_F64)
FLAMBEAU_DTYPE(bool, FLB_DTYPE_BOOL)
#undef FLAMBEAU_DTYPE

}  // namespace detail

// The number of the element type that stores a C++ type.
template <typename T>
inline constexpr flb_dtype dtype_of = detail::DType<std::remove_cv_t<T>>::value;

// Elements that a tensor or another owner keeps: a pointer and a count.
template <typename T>
class View {
 public:
  View(const T *data, std::size_t size) noexcept : data_(data), size_(size) {}
  const T *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  const T *begin() const noexcept { return data_; }
  const T *end() const noexcept { return data_ + size_; }
  const T &operator[](std::size_t index) const noexcept { return data_[index]; }

 private:
  const T *data_;
  std::size_t size_;
};

using Shape = std::vector<std::size_t>;

// A tensor in the host's memory. It never changes.
class Tensor {
 public:
  // Takes over a handle.
  explicit Tensor(flb_tensor *handle) noexcept : handle_(handle) {}

  Tensor(const Tensor &other) : handle_(share(other.get())) {}
  Tensor(Tensor &&) noexcept = default;
  Tensor &operator=(const Tensor &other) {
    handle_.reset(share(other.get()));
    return *this;
  }
  Tensor &operator=(Tensor &&) noexcept = default;

  // A copy of bytes.
  static Tensor copy(flb_dtype dtype, const Shape &shape, const void *data, std::size_t size) {
    flb_tensor *handle = nullptr;
    detail::check(flb_tensor_copy(dtype, shape.data(), shape.size(), data, size, &handle));
    return Tensor(handle);
  }

  // A copy of elements.
  template <typename T>
  static Tensor copy(const Shape &shape, std::initializer_list<T> elements) {
    return copy(dtype_of<T>, shape, elements.begin(), elements.size() * sizeof(T));
  }

  // Reads the elements of a vector, which moves into the tensor, without a copy.
  template <typename T>
  static Tensor take(const Shape &shape, std::vector<T> elements) {
    static_assert(!std::is_same_v<T, bool>, "a vector of bool has no array of elements");
    auto owner = std::make_unique<std::vector<T>>(std::move(elements));
    const void *data = owner->data();
    const std::size_t size = owner->size() * sizeof(T);
    const auto release = [](void *context) { delete static_cast<std::vector<T> *>(context); };
    flb_tensor *handle = nullptr;
    detail::check(flb_tensor_borrow(dtype_of<T>, shape.data(), shape.size(), data, size, release,
                                    owner.release(), &handle));
    return Tensor(handle);
  }

  // Refers to memory without a copy. The memory must stay unchanged until all copies of the tensor
  // are destroyed.
  template <typename T>
  static Tensor borrow(const Shape &shape, const T *data, std::size_t count) {
    flb_tensor *handle = nullptr;
    detail::check(flb_tensor_borrow(dtype_of<T>, shape.data(), shape.size(), data,
                                    count * sizeof(T), nullptr, nullptr, &handle));
    return Tensor(handle);
  }

  flb_dtype dtype() const noexcept { return flb_tensor_dtype(get()); }
  View<std::size_t> shape() const noexcept {
    return {flb_tensor_shape(get()), flb_tensor_rank(get())};
  }
  std::size_t count() const noexcept { return flb_tensor_count(get()); }
  std::size_t size() const noexcept { return flb_tensor_size(get()); }
  const void *bytes() const noexcept { return flb_tensor_data(get()); }

  // The elements. They must be of that type.
  template <typename T>
  View<T> data() const {
    if (dtype() != dtype_of<T>) {
      throw Error(FLB_ERROR_INPUT, std::string("the elements are ") + flb_dtype_name(dtype()) +
                                       ", not " + flb_dtype_name(dtype_of<T>));
    }
    return {static_cast<const T *>(bytes()), count()};
  }

  const flb_tensor *get() const noexcept { return handle_.get(); }

 private:
  static flb_tensor *share(const flb_tensor *tensor) {
    flb_tensor *handle = nullptr;
    detail::check(flb_tensor_share(tensor, &handle));
    return handle;
  }

  detail::Handle<flb_tensor, flb_tensor_free> handle_;
};

// An argument of a method. It does not own its tensor or text.
class Value {
 public:
  Value() noexcept { raw_.kind = FLB_VALUE_NONE; }
  Value(const Tensor &tensor) noexcept {
    raw_.kind = FLB_VALUE_TENSOR;
    raw_.as.tensor = tensor.get();
  }
  Value(bool value) noexcept {
    raw_.kind = FLB_VALUE_BOOLEAN;
    raw_.as.boolean = value ? 1 : 0;
  }
  template <typename T, typename = std::enable_if_t<std::is_integral_v<T>>>
  Value(T value) noexcept {
    raw_.kind = FLB_VALUE_INTEGER;
    raw_.as.integer = static_cast<std::int64_t>(value);
  }
  Value(double value) noexcept {
    raw_.kind = FLB_VALUE_NUMBER;
    raw_.as.number = value;
  }
  Value(const char *text) noexcept {
    raw_.kind = FLB_VALUE_TEXT;
    raw_.as.text = text;
  }

  const flb_value &raw() const noexcept { return raw_; }

 private:
  flb_value raw_{};
};

// The results of a run.
class Values {
 public:
  explicit Values(flb_values *handle) noexcept : handle_(handle) {}

  std::size_t size() const noexcept { return flb_values_count(handle_.get()); }

  // A result; its tensor or text belongs to these values.
  flb_value operator[](std::size_t index) const {
    flb_value value;
    detail::check(flb_values_get(handle_.get(), index, &value));
    return value;
  }

  // A result that is a tensor, as an owner of its own.
  Tensor tensor(std::size_t index) const {
    const flb_value value = (*this)[index];
    if (value.kind != FLB_VALUE_TENSOR) {
      throw Error(FLB_ERROR_INPUT, "result " + std::to_string(index) + " is no tensor");
    }
    flb_tensor *handle = nullptr;
    detail::check(flb_tensor_share(value.as.tensor, &handle));
    return Tensor(handle);
  }

 private:
  detail::Handle<flb_values, flb_values_free> handle_;
};

// What computes. Programs and models keep the engine that they were opened on.
class Engine {
 public:
  // `flags` are flags of the command, such as {"--engine", "cpu", "--threads", "4"}.
  explicit Engine(const std::vector<std::string> &flags = {}) {
    const std::vector<const char *> list = detail::pointers(flags);
    flb_engine *handle = nullptr;
    detail::check(flb_engine_new(list.data(), list.size(), &handle));
    handle_.reset(handle);
  }

  std::string_view name() const noexcept { return flb_engine_name(get()); }
  const flb_engine *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<flb_engine, flb_engine_free> handle_;
};

// An entry point of a program, with state of its own. Threads that share one take turns.
class Method {
 public:
  explicit Method(flb_method *handle) noexcept : handle_(handle) {}

  std::size_t input_count() const noexcept { return flb_method_input_count(get()); }
  std::size_t output_count() const noexcept { return flb_method_output_count(get()); }

  flb_value_info input(std::size_t index) const {
    flb_value_info info{};
    info.struct_size = sizeof info;
    detail::check(flb_method_input(get(), index, &info));
    return info;
  }

  flb_value_info output(std::size_t index) const {
    flb_value_info info{};
    info.struct_size = sizeof info;
    detail::check(flb_method_output(get(), index, &info));
    return info;
  }

  Values run(const std::vector<Value> &inputs) const {
    std::vector<flb_value> raw;
    raw.reserve(inputs.size());
    for (const Value &input : inputs) {
      raw.push_back(input.raw());
    }
    flb_values *handle = nullptr;
    detail::check(flb_method_run(get(), raw.data(), raw.size(), &handle));
    return Values(handle);
  }

  // Sets the state back to what loading left.
  void reset() const { detail::check(flb_method_reset(get())); }

  // A copy of the current contents of the tensor with this name in the program.
  Tensor attribute(const std::string &name) const {
    flb_tensor *handle = nullptr;
    detail::check(flb_method_attribute(get(), name.c_str(), &handle));
    return Tensor(handle);
  }

  const flb_method *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<flb_method, flb_method_free> handle_;
};

// A .pte program on an engine.
class Program {
 public:
  // Maps a file. `data_path` names a .ptd file with weights, or is empty.
  Program(const Engine &engine, const std::string &path, const std::string &data_path = {}) {
    flb_program *handle = nullptr;
    const char *data = data_path.empty() ? nullptr : data_path.c_str();
    detail::check(flb_program_open(engine.get(), path.c_str(), data, &handle));
    handle_.reset(handle);
  }

  std::vector<std::string> method_names() const {
    std::vector<std::string> names(flb_program_method_count(handle_.get()));
    for (std::size_t i = 0; i < names.size(); i++) {
      names[i] = flb_program_method_name(handle_.get(), i);
    }
    return names;
  }

  // Loads a method; each call gives one with state of its own.
  Method load(const std::string &name = "forward") const {
    flb_method *handle = nullptr;
    detail::check(flb_method_load(handle_.get(), name.c_str(), &handle));
    return Method(handle);
  }

 private:
  detail::Handle<flb_program, flb_program_free> handle_;
};

// How an answer is written.
struct GenerationOptions {
  std::size_t max_new_tokens = 256;  // The context may end earlier.
  std::uint64_t seed = 0;            // Fixes what is drawn; 0 takes another one each time.
  std::size_t top_k = 0;             // Sample from so many of the likeliest tokens; 0 means all.
  std::vector<std::string> stop;     // Texts that end the answer and are not part of it.
  std::string schema;                // A JSON schema that the answer will follow, or empty.
  float temperature = 0;             // 0 takes the likeliest token each time.
  float top_p = 1;                   // Sample from this mass of probability.
  float min_p = 0;                   // Drop tokens less likely than this times the likeliest one.
  float repetition_penalty = 1;      // On tokens that occurred already.
  bool ignore_eos = false;           // Treat the model's end of text as any other token.
  std::string adapters;              // LoRA adapters to apply, such as "calm:0.5 facts", or "none".
                                     // Empty applies all at their default scales.
};

// A message of a conversation; roles are such as "system", "user" and "assistant".
struct Message {
  std::string role;
  std::string content;
};

// An answer, with numbers about it.
struct Generation {
  std::string text;
  flb_finish finish;
  std::vector<std::uint32_t> tokens;  // One that ended the answer included.
  std::size_t prompt_count;           // Tokens of the prompt that had to be computed.
  double tokens_per_second;           // After the first one; 0 if there were fewer than two.
};

// Gets the text of each step, which may be empty; false ends the answer.
using OnText = std::function<bool(std::string_view)>;

namespace detail {

// A callback for C, and the exception that ended it.
template <typename Function>
struct Call {
  const Function &function;
  std::exception_ptr thrown;

  // The result for C: 0 to go on.
  template <typename... Arguments>
  std::int32_t operator()(Arguments &&...arguments) noexcept {
    try {
      return !function || function(std::forward<Arguments>(arguments)...) ? 0 : 1;
    } catch (...) {
      thrown = std::current_exception();
      return 1;
    }
  }

  // Throws the exception again, if there was one.
  void rethrow() const {
    if (thrown) {
      std::rethrow_exception(thrown);
    }
  }
};

}  // namespace detail

// A language model with its tokenizer. Threads do not wait for one another's answers.
class LanguageModel {
 public:
  // Loads a program, a folder or file of weights, or a name on the Hugging Face hub. `flags` are
  // flags of `flambeau generate` that concern models.
  LanguageModel(const Engine &engine, const std::string &model,
                const std::vector<std::string> &flags = {}) {
    const std::vector<const char *> list = detail::pointers(flags);
    flb_language_model *handle = nullptr;
    detail::check(
        flb_language_model_load(engine.get(), model.c_str(), list.data(), list.size(), &handle));
    handle_.reset(handle);
  }

  // Most tokens of prompt and answer together; 0 if the program does not say.
  std::size_t context() const noexcept { return flb_language_model_context(handle_.get()); }
  bool can_chat() const noexcept { return flb_language_model_can_chat(handle_.get()) != 0; }

  // Continues a prompt as it is.
  Generation generate(const std::string &prompt, const GenerationOptions &options = {},
                      const OnText &on_text = {}) const {
    return answer(options, on_text, [&](const flb_generation_options *raw, void *context,
                                        flb_generation **out) {
      return flb_generate(handle_.get(), prompt.c_str(), raw, call, context, out);
    });
  }

  // Answers a conversation, by the model's chat template.
  Generation chat(const std::vector<Message> &messages, const GenerationOptions &options = {},
                  const OnText &on_text = {}) const {
    std::vector<flb_message> list;
    list.reserve(messages.size());
    for (const Message &message : messages) {
      list.push_back({message.role.c_str(), message.content.c_str()});
    }
    return answer(options, on_text, [&](const flb_generation_options *raw, void *context,
                                        flb_generation **out) {
      return flb_chat(handle_.get(), list.data(), list.size(), raw, call, context, out);
    });
  }

 private:
  static std::int32_t call(void *context, const char *text) {
    return (*static_cast<detail::Call<OnText> *>(context))(std::string_view(text));
  }

  template <typename Ask>
  static Generation answer(const GenerationOptions &options, const OnText &on_text, Ask ask) {
    const std::vector<const char *> stop = detail::pointers(options.stop);
    flb_generation_options raw{};
    raw.struct_size = sizeof raw;
    raw.max_new_tokens = options.max_new_tokens;
    raw.seed = options.seed;
    raw.top_k = options.top_k;
    raw.stop = stop.data();
    raw.stop_count = stop.size();
    raw.schema = options.schema.empty() ? nullptr : options.schema.c_str();
    raw.temperature = options.temperature;
    raw.top_p = options.top_p;
    raw.min_p = options.min_p;
    raw.repetition_penalty = options.repetition_penalty;
    raw.ignore_eos = options.ignore_eos ? 1 : 0;
    raw.adapters = options.adapters.empty() ? nullptr : options.adapters.c_str();
    detail::Call<OnText> context{on_text, nullptr};
    flb_generation *handle = nullptr;
    detail::check(ask(&raw, &context, &handle));
    const detail::Handle<flb_generation, flb_generation_free> owned(handle);
    context.rethrow();
    const std::uint32_t *tokens = flb_generation_tokens(handle);
    return {flb_generation_text(handle), flb_generation_finish(handle),
            std::vector<std::uint32_t>(tokens, tokens + flb_generation_token_count(handle)),
            flb_generation_prompt_count(handle), flb_generation_tokens_per_second(handle)};
  }

  detail::Handle<flb_language_model, flb_language_model_free> handle_;
};

// A word with its times in seconds.
struct Word {
  double start;
  double end;
  std::string text;
};

// A stretch of speech with its times in seconds.
struct Segment {
  double start;
  double end;
  std::string text;
  std::vector<Word> words;  // Empty unless flags ask for words.
};

struct Transcript {
  std::string text;
  std::string language;  // A code such as "en", or empty where it is not known.
  std::string json;      // The transcript with the names of OpenAI's `verbose_json`.
  double seconds;        // Time that was heard.
  std::vector<Segment> segments;
};

// Gets each segment; false ends the transcription. It must not use the same model.
using OnSegment = std::function<bool(const Segment &)>;

// Fills memory with at most so many bytes of samples and returns their number.
// 0 ends the recording.
using Read = std::function<std::size_t(void *, std::size_t)>;

// A model of speech with its tokenizer. Threads that share one take turns.
class SpeechModel {
 public:
  // Loads a program, a folder or file of weights, or a name on the Hugging Face hub. `flags` are
  // flags of `flambeau transcribe` that concern models.
  SpeechModel(const Engine &engine, const std::string &model,
              const std::vector<std::string> &flags = {}) {
    const std::vector<const char *> list = detail::pointers(flags);
    flb_speech_model *handle = nullptr;
    detail::check(
        flb_speech_model_load(engine.get(), model.c_str(), list.data(), list.size(), &handle));
    handle_.reset(handle);
  }

  // Transcribes a file. `flags` are flags of `flambeau transcribe` about speech.
  Transcript transcribe(const std::string &path, const std::vector<std::string> &flags = {},
                        const OnSegment &on_segment = {}) const {
    return listen(flags, on_segment, [&](const char *const *list, std::size_t count, void *context,
                                         flb_transcript **out) {
      return flb_transcribe_file(handle_.get(), path.c_str(), list, count, call, context, out);
    });
  }

  // Transcribes samples of the shape [samples] or [samples, channels], `rate` of them a second.
  Transcript transcribe(const Tensor &samples, std::uint32_t rate,
                        const std::vector<std::string> &flags = {},
                        const OnSegment &on_segment = {}) const {
    return listen(flags, on_segment, [&](const char *const *list, std::size_t count, void *context,
                                         flb_transcript **out) {
      return flb_transcribe_samples(handle_.get(), samples.get(), rate, list, count, call, context,
                                    out);
    });
  }

  // Transcribes samples of type T that `read` gives, `rate` of each of the interleaved channels a
  // second.
  template <typename T>
  Transcript transcribe_stream(std::uint32_t rate, std::uint32_t channels, const Read &read,
                               const std::vector<std::string> &flags = {},
                               const OnSegment &on_segment = {}) const {
    return listen(
        flags, on_segment,
        [&](const char *const *list, std::size_t count, void *context, flb_transcript **out) {
          return flb_transcribe_stream(handle_.get(), dtype_of<T>, rate, channels, fill, list,
                                       count, call, context, out);
        },
        &read);
  }

 private:
  // The callbacks of a transcription, and the exception that ended it.
  struct Calls {
    const OnSegment &on_segment;
    const Read *read;
    std::exception_ptr thrown;
  };

  static Segment owned(const flb_segment &raw) {
    Segment segment{raw.start, raw.end, raw.text, {}};
    for (std::size_t i = 0; i < raw.word_count; i++) {
      segment.words.push_back({raw.words[i].start, raw.words[i].end, raw.words[i].text});
    }
    return segment;
  }

  static std::int32_t call(void *context, const flb_segment *raw) noexcept {
    auto &calls = *static_cast<Calls *>(context);
    try {
      const bool goes_on = !calls.on_segment || calls.on_segment(owned(*raw));
      return goes_on && calls.thrown == nullptr ? 0 : 1;
    } catch (...) {
      calls.thrown = std::current_exception();
      return 1;
    }
  }

  static std::size_t fill(void *context, void *data, std::size_t size) noexcept {
    auto &calls = *static_cast<Calls *>(context);
    try {
      return (*calls.read)(data, size);
    } catch (...) {
      calls.thrown = std::current_exception();
      return 0;
    }
  }

  template <typename Ask>
  static Transcript listen(const std::vector<std::string> &flags, const OnSegment &on_segment,
                           Ask ask, const Read *read = nullptr) {
    const std::vector<const char *> list = detail::pointers(flags);
    Calls calls{on_segment, read, nullptr};
    flb_transcript *handle = nullptr;
    flb_error *error = ask(list.data(), list.size(), &calls, &handle);
    const detail::Handle<flb_transcript, flb_transcript_free> held(handle);
    if (calls.thrown) {
      flb_error_free(error);
      std::rethrow_exception(calls.thrown);
    }
    detail::check(error);
    const char *language = flb_transcript_language(handle);
    Transcript transcript{flb_transcript_text(handle), language == nullptr ? "" : language,
                          flb_transcript_json(handle), flb_transcript_seconds(handle), {}};
    for (std::size_t i = 0; i < flb_transcript_segment_count(handle); i++) {
      flb_segment raw{};
      raw.struct_size = sizeof raw;
      detail::check(flb_transcript_segment(handle, i, &raw));
      transcript.segments.push_back(owned(raw));
    }
    return transcript;
  }

  detail::Handle<flb_speech_model, flb_speech_model_free> handle_;
};

}  // namespace flambeau

#endif
