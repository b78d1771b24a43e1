// ExecuTorch's backend `MLXBackend` over Flambeau. Compile this file into a library or a program
// that links ExecuTorch and Flambeau. Use the headers of the same ExecuTorch. It needs neither
// exceptions nor RTTI.
//
// It registers itself when it is loaded. It has these options, for programs that are loaded later.
//
//   engine       text, such as "mlx"; "cpu" is the default
//   threads      integer; by default all cores
//   share_state  boolean: buffers of one name are one in all methods of a program
//   kv_cache     text, as `--kv-cache` of `flambeau run`, for programs that keep no cache
//
// A load may set the last two as runtime specifications.
#include "values.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/platform/platform.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace {

using executorch::runtime::ArrayRef;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendOption;
using executorch::runtime::BackendOptionContext;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::EventTracer;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::NamedDataMap;
using executorch::runtime::Result;
using executorch::runtime::Span;
using flambeau::refuse;
using flambeau::report;

// The last error of this thread.
thread_local char last_error[2048] = "";

void tell(const char *what, const char *text) {
  std::snprintf(last_error, sizeof last_error, "%s%s%s", what, *what == '\0' ? "" : ": ", text);
  ET_LOG(Error, "MLXBackend: %s", last_error);
}

}  // namespace

namespace flambeau {

Error report(const char *what, flb_error *error) {
  const flb_error_kind kind = flb_error_get_kind(error);
  tell(what, flb_error_get_text(error));
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

Error refuse(Error code, const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  tell("", text);
  return code;
}

}  // namespace flambeau

namespace {

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

// State that the methods of one loaded program share.
struct Group {
  const NamedDataMap *program;
  // Hashes of the delegates. A delegate that comes again belongs to another load of its method.
  std::vector<uint64_t> members;
  size_t users = 0;
  flb_state *state = nullptr;
};

struct Delegate {
  flb_delegate *delegate = nullptr;
  Group *group = nullptr;
};

uint64_t hash_of(const char *method, const FreeableBuffer &payload) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](const void *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
      hash = (hash ^ static_cast<const unsigned char *>(data)[i]) * 0x100000001b3u;
    }
  };
  add(method == nullptr ? "" : method, method == nullptr ? 0 : std::strlen(method));
  add(payload.data(), payload.size());
  return hash;
}

// Options of the backend.
struct Options {
  std::string engine = "cpu";
  std::string threads;
  bool share_state = false;
  std::string kv_cache;

  // False if there is no such option.
  bool set(const char *key, const BackendOption &option) {
    const auto *text = std::get_if<std::array<char, executorch::runtime::kMaxOptionValueLength>>(
        &option.value);
    const auto *number = std::get_if<int>(&option.value);
    const auto *flag = std::get_if<bool>(&option.value);
    if (text != nullptr) {
      return set_text(key, std::string(text->data(), strnlen(text->data(), text->size())).c_str());
    }
    if (number != nullptr && std::strcmp(key, "threads") == 0) {
      threads = std::to_string(*number);
      return true;
    }
    if (flag != nullptr && std::strcmp(key, "share_state") == 0) {
      share_state = *flag;
      return true;
    }
    return false;
  }

  bool set_text(const char *key, const char *value) {
    const bool is_true = std::strcmp(value, "true") == 0;
    if (std::strcmp(key, "engine") == 0) {
      engine = value;
    } else if (std::strcmp(key, "threads") == 0) {
      threads = value;
    } else if (std::strcmp(key, "kv_cache") == 0) {
      kv_cache = value;
    } else if (std::strcmp(key, "share_state") == 0 &&
               (is_true || std::strcmp(value, "false") == 0)) {
      share_state = is_true;
    } else {
      return false;
    }
    return true;
  }
};

struct Step {
  std::string name;
  uint64_t start;
  uint64_t time;
};

void add_step(void *context, const char *name, uint64_t start, uint64_t time) {
  static_cast<std::vector<Step> *>(context)->push_back({name, start, time});
}

// Logs the steps of the run that has just ended.
void trace(EventTracer *tracer, const flb_delegate *delegate) {
  const auto now = executorch::runtime::pal_current_ticks();
  const auto ratio = executorch::runtime::pal_ticks_to_ns_multiplier();
  std::vector<Step> steps;
  if (flb_error *error = flb_delegate_take_steps(delegate, add_step, &steps)) {
    report("measuring", error);
    return;
  }
  if (steps.empty()) {
    return;
  }
  const uint64_t end = steps.back().start + steps.back().time;
  const auto ticks = [&](uint64_t moment) {
    const uint64_t before = moment < end ? end - moment : 0;
    return now - before * ratio.denominator / ratio.numerator;
  };
  for (const Step &step : steps) {
    executorch::runtime::event_tracer_log_profiling_delegate(
        tracer, step.name.c_str(), executorch::runtime::kUnsetDelegateDebugIntId,
        ticks(step.start), ticks(step.start + step.time));
  }
}

class Backend final : public executorch::runtime::BackendInterface {
 public:
  bool is_available() const override { return flb_abi_version() == FLB_ABI_VERSION; }

  Result<DelegateHandle *> init(BackendInitContext &context, FreeableBuffer *processed,
                                ArrayRef<CompileSpec> specs) const override {
    (void)specs;
    const std::lock_guard<std::mutex> lock(mutex_);
    Options options = options_;
    for (const BackendOption &spec : context.runtime_specs()) {
      if (std::strcmp(spec.key, "engine") == 0 || std::strcmp(spec.key, "threads") == 0 ||
          !options.set(spec.key, spec)) {
        return refuse(Error::InvalidArgument, "a load has no option %s of this type", spec.key);
      }
    }
    flb_engine *engine = nullptr;
    if (const Error error = engine_for(context.event_tracer() != nullptr, &engine);
        error != Error::Ok) {
      return error;
    }
    auto *delegate = new (std::nothrow) Delegate;
    if (delegate == nullptr) {
      return Error::MemoryAllocationFailed;
    }
    Error outcome = Error::Ok;
    if (options.share_state) {
      outcome = join(context, *processed, &delegate->group);
    }
    if (outcome == Error::Ok) {
      outcome = load(context, *processed, options, engine, *delegate);
    }
    if (outcome != Error::Ok) {
      leave(delegate->group);
      delete delegate;
      return outcome;
    }
    processed->Free();
    return delegate;
  }

  Error execute(BackendExecutionContext &context, DelegateHandle *handle,
                Span<EValue *> args) const override {
    const flb_delegate *delegate = static_cast<Delegate *>(handle)->delegate;
    const size_t input_count = flb_delegate_input_count(delegate);
    const size_t output_count = flb_delegate_output_count(delegate);
    if (args.size() != input_count + output_count) {
      return refuse(Error::InvalidArgument, "%zu arguments, expected %zu inputs and %zu outputs",
                    args.size(), input_count, output_count);
    }
    flambeau::Inputs inputs;
    for (size_t i = 0; i < input_count; i++) {
      if (const Error error = inputs.add(*args[i], input_count); error != Error::Ok) {
        return error;
      }
    }
    flb_values *results = nullptr;
    if (flb_error *error = flb_delegate_run(delegate, inputs.values(), inputs.count(), &results)) {
      return report("running", error);
    }
    if (EventTracer *tracer = context.event_tracer()) {
      trace(tracer, delegate);
    }
    Error outcome = Error::Ok;
    for (size_t i = 0; i < output_count && outcome == Error::Ok; i++) {
      flb_value result;
      flb_error *error = flb_values_get(results, i, &result);
      outcome = error != nullptr ? report("a result", error)
                                 : flambeau::store(result, *args[input_count + i]);
    }
    flb_values_free(results);
    return outcome;
  }

  Error set_option(BackendOptionContext &context, const Span<BackendOption> &options) override {
    (void)context;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const BackendOption &option : options) {
      if (!options_.set(option.key, option)) {
        return refuse(Error::InvalidArgument, "there is no option %s of this type", option.key);
      }
    }
    forget_engines();
    return Error::Ok;
  }

  Error set_text(const char *key, const char *value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!options_.set_text(key, value)) {
      return refuse(Error::InvalidArgument, "there is no option %s that may be %s", key, value);
    }
    forget_engines();
    return Error::Ok;
  }

  void destroy(DelegateHandle *handle) const override {
    auto *delegate = static_cast<Delegate *>(handle);
    flb_delegate_free(delegate->delegate);
    const std::lock_guard<std::mutex> lock(mutex_);
    leave(delegate->group);
    delete delegate;
  }

 private:
  // The functions below are called with the lock held.

  // Delegates that are loaded keep their engine.
  void forget_engines() const {
    for (flb_engine *&engine : engines_) {
      flb_engine_free(engine);
      engine = nullptr;
    }
  }

  // Gives the engine, which is made at its first use. One that measures is slower.
  Error engine_for(bool measures, flb_engine **out) const {
    flb_engine *&engine = engines_[measures ? 1 : 0];
    if (engine == nullptr) {
      std::vector<const char *> flags = {"--engine", options_.engine.c_str()};
      if (!options_.threads.empty()) {
        flags.insert(flags.end(), {"--threads", options_.threads.c_str()});
      }
      if (measures) {
        flags.push_back("--profile");
      }
      if (flb_error *error = flb_engine_new(flags.data(), flags.size(), &engine)) {
        return report("the engine", error);
      }
    }
    *out = engine;
    return Error::Ok;
  }

  static Error load(BackendInitContext &context, const FreeableBuffer &payload,
                    const Options &options, const flb_engine *engine, Delegate &delegate) {
    flb_delegate_options wish = {};
    wish.struct_size = sizeof wish;
    wish.state = delegate.group == nullptr ? nullptr : delegate.group->state;
    wish.kv_cache = options.kv_cache.empty() ? nullptr : options.kv_cache.c_str();
    // ExecuTorch hands out a const map, and `find` reads it only.
    void *data = const_cast<NamedDataMap *>(context.get_named_data_map());
    flb_error *error = flb_delegate_load_with(engine, payload.data(), payload.size(), find, data,
                                              &wish, &delegate.delegate);
    return error == nullptr ? Error::Ok : report("loading", error);
  }

  // Gives the state of the program that is being loaded. Its named data tell programs apart.
  Error join(BackendInitContext &context, const FreeableBuffer &payload, Group **out) const {
    const NamedDataMap *program = context.get_named_data_map();
    const uint64_t hash = hash_of(context.get_method_name(), payload);
    for (Group *group : groups_) {
      bool is_known = group->program != program || program == nullptr;
      for (const uint64_t member : group->members) {
        is_known = is_known || member == hash;
      }
      if (!is_known) {
        group->members.push_back(hash);
        group->users += 1;
        *out = group;
        return Error::Ok;
      }
    }
    auto *group = new (std::nothrow) Group{program, {hash}, 1, nullptr};
    if (group == nullptr) {
      return Error::MemoryAllocationFailed;
    }
    if (flb_error *error = flb_state_new(&group->state)) {
      delete group;
      return report("the state", error);
    }
    groups_.push_back(group);
    *out = group;
    return Error::Ok;
  }

  void leave(Group *group) const {
    if (group == nullptr || --group->users > 0) {
      return;
    }
    for (size_t i = 0; i < groups_.size(); i++) {
      if (groups_[i] == group) {
        groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      }
    }
    flb_state_free(group->state);
    delete group;
  }

  mutable std::mutex mutex_;
  // Without and with measurements.
  mutable flb_engine *engines_[2] = {nullptr, nullptr};
  mutable std::vector<Group *> groups_;
  Options options_;
};

// ExecuTorch keeps the pointer for as long as the process lives, so it is never destroyed.
Backend &backend() {
  static auto *const kept = new Backend;
  return *kept;
}

const Error registered = executorch::runtime::register_backend({"MLXBackend", &backend()});

}  // namespace

#define FLAMBEAU_EXPORT extern "C" __attribute__((visibility("default")))

// ExecuTorch's code of the registration: 0, or 18 where another backend has the name.
FLAMBEAU_EXPORT int32_t flambeau_executorch_registered(void);

// Sets an option by its text: for `share_state` "true" or "false". Gives ExecuTorch's error code.
FLAMBEAU_EXPORT int32_t flambeau_executorch_set_option(const char *key, const char *value);

// The text of this thread's last error, which lives until the next one.
FLAMBEAU_EXPORT const char *flambeau_executorch_last_error(void);

int32_t flambeau_executorch_registered(void) {
  return static_cast<int32_t>(registered);
}

int32_t flambeau_executorch_set_option(const char *key, const char *value) {
  return static_cast<int32_t>(backend().set_text(key, value));
}

const char *flambeau_executorch_last_error(void) {
  return last_error;
}
