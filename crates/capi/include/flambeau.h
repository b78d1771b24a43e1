/* Flambeau's C interface: run ExecuTorch programs and models from C99 and C++.
 *
 * Rules that hold for every function:
 *
 * - Errors. A function that can fail returns an error, or NULL for success. The caller owns the
 *   error and frees it with flb_error_free. No function aborts, throws, or lets a panic of the
 *   library pass.
 * - Handles. A function that makes an object writes its handle through `out`, and writes NULL
 *   there when it fails. The caller owns the object and frees it once with the function named
 *   after its type. The free functions accept NULL. An object keeps alive what it needs: an
 *   engine may be freed before the programs that were opened on it.
 * - Threads. Any thread may call any function. A handle may be used by several threads at once;
 *   what must take turns waits inside. Only freeing needs care: no other thread may use the
 *   handle during that call or after it.
 * - Arguments. Pointers to arguments are read during the call only, unless the function borrows
 *   memory and says so. Texts are UTF-8 and end with a zero byte.
 * - Results. A pointer that is not a new handle belongs to the object it was asked of. It stays
 *   valid until that object is freed. Getters accept NULL in the place of their handle and
 *   return 0, NULL or an empty text.
 * - Callbacks must not throw exceptions, must not leave by longjmp, and must not free an object
 *   that the running call uses.
 * - Processes. A process that was forked must not use handles that were made before the fork.
 * - Structs that begin with `struct_size` grow in later versions. Set that field to sizeof of
 *   the struct. */
#ifndef FLAMBEAU_H
#define FLAMBEAU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32) && !defined(FLB_STATIC)
#define FLB_API __declspec(dllimport)
#else
#define FLB_API
#endif

#if defined(__GNUC__)
#define FLB_NODISCARD __attribute__((warn_unused_result))
#else
#define FLB_NODISCARD
#endif

/* ---- Versions ---- */

/* Version of the binary interface that this header describes. It changes when compiled programs
 * no longer fit; additions leave it. */
#define FLB_ABI_VERSION 1

/* FLB_ABI_VERSION of the library that was loaded. A program may refuse to go on when it differs
 * from the header's. Any thread. */
FLB_API uint32_t flb_abi_version(void);

/* The library's version, such as "0.1.0". The text is constant and never freed. Any thread. */
FLB_API const char *flb_version(void);

/* ---- Errors ---- */

typedef struct flb_error flb_error;

typedef uint32_t flb_error_kind;
enum {
  FLB_ERROR_NONE = 0,      /* No error: the kind of NULL. */
  FLB_ERROR_LOAD = 1,      /* An engine, a program, a method or a model cannot be loaded. */
  FLB_ERROR_INPUT = 2,     /* An argument does not fit. */
  FLB_ERROR_EXECUTION = 3, /* A run has failed. */
  FLB_ERROR_BUG = 4        /* A panic was caught. The object that was used may refuse more calls. */
};

/* The kind of an error; FLB_ERROR_NONE for NULL. Any thread. */
FLB_API flb_error_kind flb_error_get_kind(const flb_error *error);

/* The error's text, which may have several lines. It belongs to the error. Any thread. */
FLB_API const char *flb_error_get_text(const flb_error *error);

/* Frees an error; NULL does nothing. No other thread may use it. */
FLB_API void flb_error_free(flb_error *error);

/* ---- Engines ---- */

typedef struct flb_engine flb_engine;

/* Makes an engine, chosen by flags of the `flambeau` command, such as {"--engine", "cpu",
 * "--threads", "4"}. Without flags it is the CPU engine on all cores. With `--profile` it measures
 * each step. An engine has threads of its own; one is enough for a process. The caller owns
 * `*out`. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_engine_new(
    const char *const *flags, size_t flag_count, flb_engine **out);

/* The engine's name, such as "cpu". It belongs to the engine. Any thread. */
FLB_API const char *flb_engine_name(const flb_engine *engine);

/* Frees the handle. Programs and models keep the engine for as long as they need it. No other
 * thread may use the handle. */
FLB_API void flb_engine_free(flb_engine *engine);

/* ---- Tensors ---- */

/* Elements in the host's memory, row-major, outermost size first. A tensor never changes, so
 * threads may share it freely. */
typedef struct flb_tensor flb_tensor;

/* Types of elements, with the numbers of ExecuTorch's ScalarType. */
typedef int32_t flb_dtype;
enum {
  FLB_DTYPE_U8 = 0,
  FLB_DTYPE_I8 = 1,
  FLB_DTYPE_I16 = 2,
  FLB_DTYPE_I32 = 3,
  FLB_DTYPE_I64 = 4,
  FLB_DTYPE_F16 = 5,
  FLB_DTYPE_F32 = 6,
  FLB_DTYPE_F64 = 7,
  FLB_DTYPE_C32 = 8, /* Real and imaginary part in f16. */
  FLB_DTYPE_C64 = 9, /* Real and imaginary part in f32. */
  FLB_DTYPE_BOOL = 11,
  FLB_DTYPE_BF16 = 15,
  FLB_DTYPE_F8E5M2 = 23,
  FLB_DTYPE_F8E4M3 = 24,
  FLB_DTYPE_U16 = 27,
  FLB_DTYPE_U32 = 28,
  FLB_DTYPE_U64 = 29,
  FLB_DTYPE_F8E8M0 = 44
};

/* Bytes of one element; 0 for a number without a type. Any thread. */
FLB_API size_t flb_dtype_size(flb_dtype dtype);

/* The type's name, such as "f32"; an empty text for a number without a type. The text is
 * constant. Any thread. */
FLB_API const char *flb_dtype_name(flb_dtype dtype);

/* Tells the owner of borrowed memory that it is no longer read. The library calls it once, from
 * any thread. */
typedef void (*flb_release)(void *context);

/* Makes a tensor with a copy of `size` bytes at `data`. `size` must be what type and shape ask
 * for. The caller owns `*out`. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_tensor_copy(
    flb_dtype dtype, const size_t *shape, size_t rank, const void *data, size_t size,
    flb_tensor **out);

/* Makes a tensor that reads `size` bytes at `data` where they lie. `data` must be a multiple of
 * the size of an element. The memory stays the caller's. It must live and must not change until
 * `release(context)` is called; that happens once in any case, also when this function fails.
 * Where `release` is NULL, the memory must stay until all handles that share the tensor are
 * freed and no run uses it. Outputs of runs never lie in this memory. The caller owns `*out`.
 * Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_tensor_borrow(
    flb_dtype dtype, const size_t *shape, size_t rank, const void *data, size_t size,
    flb_release release, void *context, flb_tensor **out);

/* Makes another handle to the same elements, without a copy; for example to keep an output
 * beyond its flb_values. The caller owns `*out`. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_tensor_share(const flb_tensor *tensor, flb_tensor **out);

/* Type of the elements; -1 for NULL. Any thread. */
FLB_API flb_dtype flb_tensor_dtype(const flb_tensor *tensor);

/* Number of dimensions. Any thread. */
FLB_API size_t flb_tensor_rank(const flb_tensor *tensor);

/* Sizes, outermost first: an array of flb_tensor_rank numbers that belongs to the tensor. Any
 * thread. */
FLB_API const size_t *flb_tensor_shape(const flb_tensor *tensor);

/* Number of elements. Any thread. */
FLB_API size_t flb_tensor_count(const flb_tensor *tensor);

/* Bytes of all elements. Any thread. */
FLB_API size_t flb_tensor_size(const flb_tensor *tensor);

/* The elements, aligned to their size. They belong to the tensor and are never written to. Any
 * thread. */
FLB_API const void *flb_tensor_data(const flb_tensor *tensor);

/* Frees the handle, and the elements with the last handle that shares them. No other thread may
 * use the handle. */
FLB_API void flb_tensor_free(flb_tensor *tensor);

/* ---- Values ---- */

typedef uint32_t flb_value_kind;
enum {
  FLB_VALUE_NONE = 0,
  FLB_VALUE_TENSOR = 1,
  FLB_VALUE_INTEGER = 2,
  FLB_VALUE_BOOLEAN = 3,
  FLB_VALUE_NUMBER = 4,
  FLB_VALUE_TEXT = 5
};

/* An argument or a result of a method. It owns nothing: pointers in it belong to the caller, or
 * to the flb_values it came from. */
typedef struct flb_value {
  flb_value_kind kind; /* Tells which member of `as` is set. */
  union {
    const flb_tensor *tensor;
    int64_t integer;
    int32_t boolean; /* 0 is false, all else is true. */
    double number;
    const char *text;
  } as;
} flb_value;

/* The results of a run. */
typedef struct flb_values flb_values;

/* Number of values. Any thread. */
FLB_API size_t flb_values_count(const flb_values *values);

/* Writes value number `index` to `*out`. Its tensor or text belongs to `values`, and nothing is
 * copied. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_values_get(
    const flb_values *values, size_t index, flb_value *out);

/* Frees the values with their tensors and texts. No other thread may use them. */
FLB_API void flb_values_free(flb_values *values);

/* ---- Programs and methods ---- */

/* A .pte program on an engine. */
typedef struct flb_program flb_program;

/* One entry point of a program, ready to run, with state of its own. */
typedef struct flb_method flb_method;

/* Opens a program. The file is mapped, so it must not change while the program or a method of it
 * lives. `data_path` names a .ptd file with weights, or is NULL. The caller owns `*out`. Any
 * thread. */
FLB_API FLB_NODISCARD flb_error *flb_program_open(
    const flb_engine *engine, const char *path, const char *data_path, flb_program **out);

/* Opens a program from a copy of `size` bytes. `data_path` as above. The caller owns `*out`. Any
 * thread. */
FLB_API FLB_NODISCARD flb_error *flb_program_from_bytes(
    const flb_engine *engine, const void *data, size_t size, const char *data_path,
    flb_program **out);

/* Opens a program from `size` bytes, which are read where they lie. The memory must live and
 * must not change until `release(context)` is called; that happens once in any case, also when
 * this function fails. Where `release` is NULL, the memory must stay until the program and all
 * its methods are freed. At a multiple of 64 bytes, no weight is copied. The caller owns `*out`.
 * Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_program_borrow(
    const flb_engine *engine, const void *data, size_t size, const char *data_path,
    flb_release release, void *context, flb_program **out);

/* Number of methods, constant ones included. Any thread. */
FLB_API size_t flb_program_method_count(const flb_program *program);

/* Name of method number `index`, or NULL. It belongs to the program. Any thread. */
FLB_API const char *flb_program_method_name(const flb_program *program, size_t index);

/* Frees the handle. Methods keep what they need of the program. No other thread may use the
 * handle. */
FLB_API void flb_program_free(flb_program *program);

/* Loads a method. Each call gives one with state of its own; weights are shared. The caller owns
 * `*out`. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_method_load(
    const flb_program *program, const char *name, flb_method **out);

/* What a method takes or gives. Pointers belong to the method. */
typedef struct flb_value_info {
  size_t struct_size;     /* The caller sets it to sizeof(flb_value_info). */
  flb_value_kind kind;    /* Of the value. */
  flb_dtype dtype;        /* Of tensors; -1 for other kinds. */
  size_t rank;            /* Of tensors. */
  const size_t *sizes;    /* The largest sizes, `rank` of them; SIZE_MAX without a limit. */
  const uint8_t *is_open; /* For each size: 1 if smaller ones fit as well. */
  const char *name;       /* In the exported program, or NULL. */
  const char *text;       /* In words, such as "f32[..64, 4]". */
} flb_value_info;

/* Number of inputs. Any thread. */
FLB_API size_t flb_method_input_count(const flb_method *method);

/* Number of outputs. Any thread. */
FLB_API size_t flb_method_output_count(const flb_method *method);

/* Describes input number `index` in `*info`, whose `struct_size` is set. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_method_input(
    const flb_method *method, size_t index, flb_value_info *info);

/* Describes output number `index` in `*info`, whose `struct_size` is set. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_method_output(
    const flb_method *method, size_t index, flb_value_info *info);

/* Runs a method on `count` inputs. Tensors are read where they lie; a method that keeps state
 * copies them. The results are in `*out`, which the caller owns, and share no memory with the
 * inputs. Any thread; threads that share a method take turns. Methods that were loaded by
 * different calls run at the same time. */
FLB_API FLB_NODISCARD flb_error *flb_method_run(
    const flb_method *method, const flb_value *inputs, size_t count, flb_values **out);

/* Sets the state of a method back to what loading left. Any thread; waits for a run in progress. */
FLB_API FLB_NODISCARD flb_error *flb_method_reset(const flb_method *method);

/* Copies the tensor that the program calls `name`, such as a buffer, as it is now. The caller
 * owns `*out`. Any thread; waits for a run in progress. */
FLB_API FLB_NODISCARD flb_error *flb_method_attribute(
    const flb_method *method, const char *name, flb_tensor **out);

/* Frees the method with its state. No other thread may use it. */
FLB_API void flb_method_free(flb_method *method);

/* ---- Language models ---- */

/* A language model with its tokenizer. Each answer has a sequence of its own, so threads do not
 * wait for one another's answers. */
typedef struct flb_language_model flb_language_model;

/* Loads a model: a .pte program, a folder or GGUF file of weights, or a name on the Hugging Face
 * hub. Weights are exported once, into a cache. `flags` are flags of `flambeau generate` that
 * concern models, such as {"--qlinear", "none"}. The caller owns `*out`. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_language_model_load(
    const flb_engine *engine, const char *model, const char *const *flags, size_t flag_count,
    flb_language_model **out);

/* Most tokens of prompt and answer together; 0 if the program does not say. Any thread. */
FLB_API size_t flb_language_model_context(const flb_language_model *model);

/* 1 if the model has a chat template, which flb_chat needs; else 0. Any thread. */
FLB_API int32_t flb_language_model_can_chat(const flb_language_model *model);

/* Frees the model. No other thread may use it, and no answer may be in progress. */
FLB_API void flb_language_model_free(flb_language_model *model);

/* Takes the next piece of an answer; the text lives during the call. It is called after each
 * step, on the thread that asked for the answer, with an empty text where a step gives none. A
 * result other than 0 ends the answer. */
typedef int32_t (*flb_on_text)(void *context, const char *text);

/* How an answer is written. Zero is the default of each field. */
typedef struct flb_generation_options {
  size_t struct_size;       /* The caller sets it to sizeof(flb_generation_options). */
  size_t max_new_tokens;    /* 0 means 256; the context may end earlier. */
  uint64_t seed;            /* Fixes what is drawn; 0 takes another one each time. */
  size_t top_k;             /* Sample from so many of the likeliest tokens; 0 means all. */
  const char *const *stop;  /* Texts that end the answer and are not part of it. */
  size_t stop_count;        /* Number of those texts. */
  const char *schema;       /* A JSON schema that the answer will follow, or NULL. */
  float temperature;        /* 0 takes the likeliest token each time. */
  float top_p;              /* Sample from this mass of probability; 0 means all, as 1 does. */
  float min_p;              /* Drop tokens less likely than this times the likeliest one. */
  float repetition_penalty; /* On tokens that occurred already; 0 means none, as 1 does. */
  int32_t ignore_eos;       /* Not 0: treat the model's end of text as any other token. */
  int32_t reserved;         /* 0. */
  const char *adapters;     /* LoRA adapters to apply, such as "calm:0.5 facts", or "none". Without
                             * a scale, it is 1. NULL applies all at their default scales. */
} flb_generation_options;

/* A message of a conversation. The texts belong to the caller. */
typedef struct flb_message {
  const char *role; /* Such as "system", "user" or "assistant". */
  const char *content;
} flb_message;

/* An answer, with numbers about it. */
typedef struct flb_generation flb_generation;

typedef uint32_t flb_finish;
enum {
  FLB_FINISH_STOP = 1,     /* The model ended its text, or a stop text came. */
  FLB_FINISH_LENGTH = 2,   /* `max_new_tokens` is reached. */
  FLB_FINISH_CONTEXT = 3,  /* The model's context is full. */
  FLB_FINISH_CANCELLED = 4 /* The callback ended the answer. */
};

/* Continues a prompt as it is. `options` may be NULL for the defaults, and `on_text` may be
 * NULL. `context` is handed to `on_text`. The text that earlier prompts have in common with this
 * one is not computed again. The caller owns `*out`. Any thread; returns when the answer has
 * ended. */
FLB_API FLB_NODISCARD flb_error *flb_generate(
    const flb_language_model *model, const char *prompt, const flb_generation_options *options,
    flb_on_text on_text, void *context, flb_generation **out);

/* Answers a conversation of `message_count` messages, by the model's chat template. Otherwise as
 * flb_generate. */
FLB_API FLB_NODISCARD flb_error *flb_chat(
    const flb_language_model *model, const flb_message *messages, size_t message_count,
    const flb_generation_options *options, flb_on_text on_text, void *context,
    flb_generation **out);

/* The whole answer. It belongs to the generation. Any thread. */
FLB_API const char *flb_generation_text(const flb_generation *generation);

/* Why the answer ended; 0 for NULL. Any thread. */
FLB_API flb_finish flb_generation_finish(const flb_generation *generation);

/* Tokens of the answer, one that ended it included. They belong to the generation. Any thread. */
FLB_API const uint32_t *flb_generation_tokens(const flb_generation *generation);

/* Number of those tokens. Any thread. */
FLB_API size_t flb_generation_token_count(const flb_generation *generation);

/* Tokens of the prompt that had to be computed. Any thread. */
FLB_API size_t flb_generation_prompt_count(const flb_generation *generation);

/* Tokens per second after the first one; 0 if there were fewer than two. Any thread. */
FLB_API double flb_generation_tokens_per_second(const flb_generation *generation);

/* Frees the generation with its text. No other thread may use it. */
FLB_API void flb_generation_free(flb_generation *generation);

/* ---- Speech ---- */

/* A model of speech with its tokenizer. */
typedef struct flb_speech_model flb_speech_model;

/* Loads a model of speech: a .pte program, a folder or file of weights, or a name on the Hugging
 * Face hub. `flags` are flags of `flambeau transcribe` that concern models. The caller owns
 * `*out`. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_speech_model_load(
    const flb_engine *engine, const char *model, const char *const *flags, size_t flag_count,
    flb_speech_model **out);

/* Frees the model. No other thread may use it. */
FLB_API void flb_speech_model_free(flb_speech_model *model);

/* A word with its times in seconds. */
typedef struct flb_word {
  double start;
  double end;
  const char *text;
} flb_word;

/* A stretch of speech with its times in seconds. Pointers belong to the transcript. In a
 * callback they live during the call. */
typedef struct flb_segment {
  size_t struct_size; /* Where the caller owns the struct, it sets sizeof(flb_segment). */
  double start;
  double end;
  const char *text;
  const flb_word *words; /* Empty unless `flags` ask for words. */
  size_t word_count;
} flb_segment;

/* Takes the next segment, on the thread that asked for the transcript. A result other than 0
 * ends the transcription. The transcript then holds the segments so far. The callback must not
 * use the same model. */
typedef int32_t (*flb_on_segment)(void *context, const flb_segment *segment);

typedef struct flb_transcript flb_transcript;

/* Transcribes a recording in a file. `flags` are flags of `flambeau transcribe` about speech,
 * such as {"--language", "fr", "--word-timestamps"}. `on_segment` may be NULL; `context` is
 * handed to it. The caller owns `*out`. Any thread; threads that share a model take turns. */
FLB_API FLB_NODISCARD flb_error *flb_transcribe_file(
    const flb_speech_model *model, const char *path, const char *const *flags, size_t flag_count,
    flb_on_segment on_segment, void *context, flb_transcript **out);

/* Transcribes samples of the shape [samples] or [samples, channels], `rate` of them a second.
 * Floats are from -1 to 1. Integers of 8 bits are unsigned; integers of 16 and 32 bits are
 * signed. The samples are read where they lie. Otherwise as flb_transcribe_file. */
FLB_API FLB_NODISCARD flb_error *flb_transcribe_samples(
    const flb_speech_model *model, const flb_tensor *samples, uint32_t rate,
    const char *const *flags, size_t flag_count, flb_on_segment on_segment, void *context,
    flb_transcript **out);

/* Fills `data` with at most `size` bytes of samples and returns their number; 0 ends the recording.
 * It may wait for sound. It is called on the thread that asked for the transcript. */
typedef size_t (*flb_read)(void *context, void *data, size_t size);

/* Transcribes samples that a callback reads, for example from a microphone: `channels` interleaved
 * ones of the type `sample`, `rate` of each a second. `context` is handed to both callbacks.
 * Otherwise as flb_transcribe_samples. */
FLB_API FLB_NODISCARD flb_error *flb_transcribe_stream(
    const flb_speech_model *model, flb_dtype sample, uint32_t rate, uint32_t channels,
    flb_read read, const char *const *flags, size_t flag_count, flb_on_segment on_segment,
    void *context, flb_transcript **out);

/* The whole text. It belongs to the transcript. Any thread. */
FLB_API const char *flb_transcript_text(const flb_transcript *transcript);

/* Code of the language, such as "en", or NULL where it is not known. It belongs to the
 * transcript. Any thread. */
FLB_API const char *flb_transcript_language(const flb_transcript *transcript);

/* The transcript as JSON with the names of OpenAI's `verbose_json`. It belongs to the
 * transcript. Any thread. */
FLB_API const char *flb_transcript_json(const flb_transcript *transcript);

/* Seconds that were heard. Any thread. */
FLB_API double flb_transcript_seconds(const flb_transcript *transcript);

/* Number of segments. Any thread. */
FLB_API size_t flb_transcript_segment_count(const flb_transcript *transcript);

/* Writes segment number `index` to `*segment`, whose `struct_size` is set. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_transcript_segment(
    const flb_transcript *transcript, size_t index, flb_segment *segment);

/* Frees the transcript with its texts. No other thread may use it. */
FLB_API void flb_transcript_free(flb_transcript *transcript);

/* ---- Delegates ---- */

/* The payload of one call to ExecuTorch's MLX backend, ready to run, with state of its own. It
 * is for runtimes that read .pte files by themselves, such as ExecuTorch. */
typedef struct flb_delegate flb_delegate;

/* Memory that a callback lends. It must live and must not change until the library calls
 * `release(context)`, once. Where `release` is NULL, it must stay until the delegate is freed. */
typedef struct flb_lent {
  const void *data;
  size_t size;
  flb_release release;
  void *context;
} flb_lent;

/* Lends the weights under a key: writes them to `*lent` and returns 0. Another result says that
 * there are none. */
typedef int32_t (*flb_find)(void *context, const char *key, flb_lent *lent);

/* Loads a delegate from its payload of `size` bytes, which are read during the call only. `find`
 * is called with `context` during the call, once for each weight at least; it may be NULL where
 * there are no weights. The caller owns `*out`. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_delegate_load(
    const flb_engine *engine, const void *payload, size_t size, flb_find find, void *context,
    flb_delegate **out);

/* State that delegates share. Delegates that were loaded with it keep it. */
typedef struct flb_state flb_state;

/* Makes an empty state. The caller owns `*out`. Any thread. */
FLB_API FLB_NODISCARD flb_error *flb_state_new(flb_state **out);

/* Frees the handle. Delegates keep the state. No other thread may use the handle. */
FLB_API void flb_state_free(flb_state *state);

/* How a delegate is loaded. Zero and NULL are the defaults. */
typedef struct flb_delegate_options {
  size_t struct_size;     /* The caller sets it to sizeof(flb_delegate_options). */
  const flb_state *state; /* Buffers of one name are one in all delegates of a state. */
  const char *kv_cache;   /* As `--kv-cache` of `flambeau run`, for programs that keep no cache. */
} flb_delegate_options;

/* As flb_delegate_load, with options, which may be NULL and are read during the call only. Any
 * thread. */
FLB_API FLB_NODISCARD flb_error *flb_delegate_load_with(
    const flb_engine *engine, const void *payload, size_t size, flb_find find, void *context,
    const flb_delegate_options *options, flb_delegate **out);

/* Number of inputs. Any thread. */
FLB_API size_t flb_delegate_input_count(const flb_delegate *delegate);

/* Number of outputs. Any thread. */
FLB_API size_t flb_delegate_output_count(const flb_delegate *delegate);

/* Runs a delegate on `count` inputs, tensors and integers of 32 bits in the order of the
 * backend's call. The results are in `*out`, in that order too; the caller owns it. Any thread;
 * threads that share a delegate take turns. */
FLB_API FLB_NODISCARD flb_error *flb_delegate_run(
    const flb_delegate *delegate, const flb_value *inputs, size_t count, flb_values **out);

/* Sets the state of a delegate back to what loading left. Any thread; waits for a run in
 * progress. */
FLB_API FLB_NODISCARD flb_error *flb_delegate_reset(const flb_delegate *delegate);

/* Tells of one step: the nodes that it ran, its start in nanoseconds of the process, and the
 * nanoseconds that it took. `name` is valid during the call. */
typedef void (*flb_on_step)(void *context, const char *name, uint64_t start, uint64_t time);

/* Calls `on_step` for each step of the runs since the last call, in order. There are none unless
 * the engine was made with the flag `--profile`. Any thread; waits for a run in progress. */
FLB_API FLB_NODISCARD flb_error *flb_delegate_take_steps(
    const flb_delegate *delegate, flb_on_step on_step, void *context);

/* Frees the delegate with its state. No other thread may use it. */
FLB_API void flb_delegate_free(flb_delegate *delegate);

#ifdef __cplusplus
}
#endif

#endif
