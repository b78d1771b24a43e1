/* Holds values, state and threads to what flambeau.h promises: state LANGUAGE_MODEL.pte */
#include <flambeau.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

enum { THREADS = 3, STEPS = 12 };

/* The only result of a constant method. */
static flb_value constant(const flb_program *program, const char *name, flb_values **held) {
  flb_method *method = NULL;
  flb_value value;
  ok(flb_method_load(program, name, &method));
  REQUIRE(flb_method_input_count(method) == 0 && flb_method_output_count(method) == 1);
  ok(flb_method_run(method, NULL, 0, held));
  flb_method_free(method);
  ok(flb_values_get(*held, 0, &value));
  return value;
}

static void constants(const flb_program *program) {
  flb_values *held = NULL;
  flb_value value = constant(program, "get_model_type", &held);
  REQUIRE(value.kind == FLB_VALUE_TEXT && strcmp(value.as.text, "llama") == 0);
  flb_values_free(held);
  value = constant(program, "get_vocab_size", &held);
  REQUIRE(value.kind == FLB_VALUE_INTEGER && value.as.integer == 16);
  flb_values_free(held);
  value = constant(program, "use_kv_cache", &held);
  REQUIRE(value.kind == FLB_VALUE_BOOLEAN && value.as.boolean == 1);
  flb_values_free(held);
}

/* The logits after a token at a position. The memory of the inputs changes afterwards. */
static flb_tensor *step(const flb_method *method, int64_t token, int64_t position) {
  const size_t shape[2] = {1, 1};
  flb_tensor *inputs[2] = {NULL, NULL};
  ok(flb_tensor_borrow(FLB_DTYPE_I64, shape, 2, &token, 8, NULL, NULL, &inputs[0]));
  ok(flb_tensor_borrow(FLB_DTYPE_I64, shape, 1, &position, 8, NULL, NULL, &inputs[1]));
  flb_value values[2] = {{.kind = FLB_VALUE_TENSOR, .as = {.tensor = inputs[0]}},
                         {.kind = FLB_VALUE_TENSOR, .as = {.tensor = inputs[1]}}};
  flb_values *results = NULL;
  ok(flb_method_run(method, values, 2, &results));
  flb_tensor_free(inputs[0]);
  flb_tensor_free(inputs[1]);
  token = position = -1;
  flb_tensor *logits = NULL;
  ok(flb_values_get(results, 0, &values[0]));
  ok(flb_tensor_share(values[0].as.tensor, &logits));
  flb_values_free(results);
  return logits;
}

/* Whether two tensors are equal; frees the second. */
static int same(const flb_tensor *a, flb_tensor *b) {
  size_t size = flb_tensor_size(a);
  REQUIRE(size > 0 && size == flb_tensor_size(b));
  int equal = memcmp(flb_tensor_data(a), flb_tensor_data(b), size) == 0;
  flb_tensor_free(b);
  return equal;
}

static void state(const flb_program *program) {
  flb_method *first = NULL;
  flb_method *other = NULL;
  flb_tensor *none = NULL;
  ok(flb_method_load(program, "forward", &first));
  ok(flb_method_load(program, "forward", &other));
  flb_tensor *alone = step(first, 5, 1);
  ok(flb_method_reset(first));
  flb_tensor_free(step(first, 4, 0));
  flb_tensor *after = step(first, 5, 1);
  /* A method has state of its own, and a reset sets it back. */
  REQUIRE(!same(alone, step(first, 5, 1)));
  REQUIRE(same(after, step(first, 5, 1)));
  REQUIRE(same(alone, step(other, 5, 1)));
  ok(flb_method_reset(first));
  REQUIRE(same(alone, step(first, 5, 1)));
  fails(flb_method_attribute(first, "no.such.buffer", &none), FLB_ERROR_INPUT, "no.such.buffer");
  flb_tensor_free(alone);
  flb_tensor_free(after);
  flb_method_free(first);
  flb_method_free(other);
}

typedef struct {
  const flb_language_model *model;
  const char *prompt;
  const char *expected;
} work;

static void *write_answers(void *context) {
  const work *job = context;
  flb_generation_options options = {
      .struct_size = sizeof options, .max_new_tokens = STEPS, .ignore_eos = 1};
  for (int i = 0; i < 4; i++) {
    flb_generation *answer = NULL;
    ok(flb_generate(job->model, job->prompt, &options, NULL, NULL, &answer));
    REQUIRE(flb_generation_token_count(answer) == STEPS);
    REQUIRE(strcmp(flb_generation_text(answer), job->expected) == 0);
    flb_generation_free(answer);
  }
  return NULL;
}

/* Answers that are written at the same time are those that are written alone. */
static void answers(const flb_engine *engine, const char *path) {
  const char *const prompts[THREADS] = {"the cat sat", "where is a dog ?", "a mat"};
  flb_language_model *model = NULL;
  ok(flb_language_model_load(engine, path, NULL, 0, &model));
  flb_generation *alone[THREADS];
  work jobs[THREADS];
  pthread_t threads[THREADS];
  flb_generation_options options = {
      .struct_size = sizeof options, .max_new_tokens = STEPS, .ignore_eos = 1};
  for (int i = 0; i < THREADS; i++) {
    ok(flb_generate(model, prompts[i], &options, NULL, NULL, &alone[i]));
    jobs[i] = (work){model, prompts[i], flb_generation_text(alone[i])};
  }
  for (int i = 0; i < THREADS; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, write_answers, &jobs[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    REQUIRE(pthread_join(threads[i], NULL) == 0);
    flb_generation_free(alone[i]);
  }
  flb_language_model_free(model);
}

int main(int argc, char **argv) {
  REQUIRE(argc == 2);
  flb_engine *engine = NULL;
  flb_program *program = NULL;
  ok(flb_engine_new(NULL, 0, &engine));
  ok(flb_program_open(engine, argv[1], NULL, &program));
  constants(program);
  state(program);
  answers(engine, argv[1]);
  flb_program_free(program);
  flb_engine_free(engine);
  puts("all hold");
  return 0;
}
