/* Holds the library to what flambeau.h promises: contract MODEL.pte */
#include <flambeau.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

static int released = 0;

static void release(void *context) {
  *(int *)context += 1;
}

static void versions(void) {
  REQUIRE(flb_abi_version() == FLB_ABI_VERSION);
  REQUIRE(strlen(flb_version()) >= 5);
}

static void null_is_an_error_or_nothing(void) {
  flb_engine *engine = NULL;
  fails(flb_engine_new(NULL, 0, NULL), FLB_ERROR_INPUT, "`out` is NULL");
  fails(flb_engine_new(NULL, 1, &engine), FLB_ERROR_INPUT, "`flags` is NULL");
  fails(flb_values_get(NULL, 0, NULL), FLB_ERROR_INPUT, "NULL");
  REQUIRE(flb_tensor_dtype(NULL) == -1 && flb_tensor_shape(NULL) == NULL && flb_tensor_count(NULL) == 0);
  REQUIRE(flb_error_get_kind(NULL) == FLB_ERROR_NONE && strcmp(flb_error_get_text(NULL), "") == 0);
  flb_error_free(NULL);
  flb_engine_free(NULL);
  flb_tensor_free(NULL);
  flb_values_free(NULL);
  flb_program_free(NULL);
  flb_method_free(NULL);
}

static void tensors(void) {
  const int16_t numbers[6] = {1, 2, 3, 4, 5, 6};
  const size_t shape[2] = {2, 3};
  flb_tensor *copy = NULL;
  flb_tensor *other = NULL;
  ok(flb_tensor_copy(FLB_DTYPE_I16, shape, 2, numbers, sizeof numbers, &copy));
  ok(flb_tensor_share(copy, &other));
  REQUIRE(flb_tensor_data(copy) == flb_tensor_data(other) && flb_tensor_data(copy) != (const void *)numbers);
  flb_tensor_free(copy);
  REQUIRE(flb_tensor_rank(other) == 2 && flb_tensor_shape(other)[1] == 3 && flb_tensor_dtype(other) == FLB_DTYPE_I16);
  REQUIRE(flb_tensor_count(other) == 6 && flb_tensor_size(other) == 12);
  REQUIRE(memcmp(flb_tensor_data(other), numbers, sizeof numbers) == 0);
  flb_tensor_free(other);

  other = (flb_tensor *)&released;
  fails(flb_tensor_copy(FLB_DTYPE_I16, shape, 2, numbers, 11, &other), FLB_ERROR_INPUT, "12 bytes, found 11");
  REQUIRE(other == NULL);
  fails(flb_tensor_copy(10, shape, 2, numbers, sizeof numbers, &other), FLB_ERROR_INPUT, "number 10");
  const size_t large[2] = {SIZE_MAX, 2};
  fails(flb_tensor_copy(FLB_DTYPE_I16, large, 2, numbers, sizeof numbers, &other), FLB_ERROR_INPUT, "larger than memory");

  ok(flb_tensor_copy(FLB_DTYPE_F64, NULL, 0, &(double){2.5}, sizeof(double), &copy));
  REQUIRE(flb_tensor_rank(copy) == 0 && flb_tensor_count(copy) == 1 && *(const double *)flb_tensor_data(copy) == 2.5);
  flb_tensor_free(copy);
  const size_t none[1] = {0};
  ok(flb_tensor_copy(FLB_DTYPE_F32, none, 1, NULL, 0, &copy));
  REQUIRE(flb_tensor_count(copy) == 0);
  flb_tensor_free(copy);
}

static void borrowed_memory_is_released_once(void) {
  float numbers[4] = {1, 2, 3, 4};
  const size_t shape[1] = {4};
  flb_tensor *tensor = NULL;
  flb_tensor *other = NULL;
  released = 0;
  ok(flb_tensor_borrow(FLB_DTYPE_F32, shape, 1, numbers, sizeof numbers, release, &released, &tensor));
  REQUIRE(flb_tensor_data(tensor) == (const void *)numbers);
  ok(flb_tensor_share(tensor, &other));
  flb_tensor_free(tensor);
  REQUIRE(released == 0);
  flb_tensor_free(other);
  REQUIRE(released == 1);
  fails(flb_tensor_borrow(FLB_DTYPE_F32, shape, 1, numbers, 8, release, &released, &tensor), FLB_ERROR_INPUT, "16 bytes");
  REQUIRE(released == 2);
  fails(flb_tensor_borrow(FLB_DTYPE_U8, shape, 1, NULL, 4, release, &released, &tensor), FLB_ERROR_INPUT, "`data` is NULL");
  REQUIRE(released == 3);
  fails(flb_tensor_borrow(FLB_DTYPE_F32, shape, 1, numbers, 16, release, &released, NULL), FLB_ERROR_INPUT, "`out`");
  REQUIRE(released == 4);
  const size_t three[1] = {3};
  fails(flb_tensor_borrow(FLB_DTYPE_F32, three, 1, (char *)numbers + 2, 12, release, &released, &tensor), FLB_ERROR_INPUT,
        "multiple of 4");
  REQUIRE(released == 5);
}

static flb_value tensor_value(const flb_tensor *tensor) {
  flb_value value;
  value.kind = FLB_VALUE_TENSOR;
  value.as.tensor = tensor;
  return value;
}

/* Whether a method gives the numbers that PyTorch computes for one row. */
static void run_row(const flb_method *method) {
  const float row[4] = {0.5f, -1.0f, 0.0f, 2.0f};
  const size_t shape[2] = {1, 4};
  flb_tensor *x = NULL;
  flb_tensor *y = NULL;
  flb_values *results = NULL;
  flb_value output;
  released = 0;
  ok(flb_tensor_borrow(FLB_DTYPE_F32, shape, 2, row, sizeof row, release, &released, &x));
  const flb_value input = tensor_value(x);
  ok(flb_method_run(method, &input, 1, &results));
  flb_tensor_free(x);
  REQUIRE(released == 1);
  REQUIRE(flb_values_count(results) == 1);
  ok(flb_values_get(results, 0, &output));
  fails(flb_values_get(results, 1, &output), FLB_ERROR_INPUT, "no value 1");
  REQUIRE(output.kind == FLB_VALUE_TENSOR);
  ok(flb_tensor_share(output.as.tensor, &y));
  flb_values_free(results);
  const float *numbers = flb_tensor_data(y);
  REQUIRE(flb_tensor_count(y) == 2);
  REQUIRE(numbers[0] > 0.50053f && numbers[0] < 0.50054f && numbers[1] > 0.19053f && numbers[1] < 0.19054f);
  flb_tensor_free(y);
}

static void programs(const char *path) {
  flb_engine *engine = NULL;
  flb_program *program = NULL;
  flb_method *method = NULL;
  flb_values *results = NULL;
  const char *const wrong[2] = {"--engine", "tpu"};
  fails(flb_engine_new(wrong, 2, &engine), FLB_ERROR_LOAD, "tpu");
  const char *const flags[2] = {"--threads", "2"};
  ok(flb_engine_new(flags, 2, &engine));
  REQUIRE(strcmp(flb_engine_name(engine), "cpu") == 0);
  fails(flb_program_open(engine, "missing.pte", NULL, &program), FLB_ERROR_LOAD, "missing.pte");
  fails(flb_program_from_bytes(engine, "no program", 10, NULL, &program), FLB_ERROR_LOAD, "");
  ok(flb_program_open(engine, path, NULL, &program));
  REQUIRE(flb_program_method_count(program) == 1);
  REQUIRE(strcmp(flb_program_method_name(program, 0), "forward") == 0 && flb_program_method_name(program, 1) == NULL);
  fails(flb_method_load(program, "backward", &method), FLB_ERROR_LOAD, "backward");
  ok(flb_method_load(program, "forward", &method));
  flb_program_free(program);
  flb_engine_free(engine);

  run_row(method);
  ok(flb_method_reset(method));
  flb_value input;
  input.kind = FLB_VALUE_INTEGER;
  input.as.integer = 3;
  fails(flb_method_run(method, &input, 1, &results), FLB_ERROR_INPUT, "the integer 3");
  fails(flb_method_run(method, NULL, 0, &results), FLB_ERROR_INPUT, "takes 1 inputs, found 0");
  input.kind = 77;
  fails(flb_method_run(method, &input, 1, &results), FLB_ERROR_INPUT, "number 77");

  flb_value_info info = {.struct_size = sizeof info};
  ok(flb_method_input(method, 0, &info));
  REQUIRE(info.struct_size == sizeof info && info.kind == FLB_VALUE_TENSOR && info.dtype == FLB_DTYPE_F32);
  REQUIRE(info.rank == 2 && info.sizes[0] == 64 && info.is_open[0] == 1 && info.sizes[1] == 4 && info.is_open[1] == 0);
  REQUIRE(info.name == NULL && strcmp(info.text, "f32[..64, 4]") == 0);
  /* A caller with an older, shorter struct. */
  info.struct_size = offsetof(flb_value_info, rank);
  info.rank = 9;
  ok(flb_method_output(method, 0, &info));
  REQUIRE(info.rank == 9 && info.kind == FLB_VALUE_TENSOR && info.struct_size == offsetof(flb_value_info, rank));
  info.struct_size = 0;
  fails(flb_method_output(method, 0, &info), FLB_ERROR_INPUT, "struct_size");
  fails(flb_method_input(method, 1, &info), FLB_ERROR_INPUT, "no input 1");
  flb_method_free(method);
}

static void programs_in_memory(const char *path) {
  FILE *file = fopen(path, "rb");
  REQUIRE(file != NULL);
  static unsigned char bytes[1 << 20];
  size_t size = fread(bytes, 1, sizeof bytes, file);
  REQUIRE(fclose(file) == 0 && size > 0 && size < sizeof bytes);
  flb_engine *engine = NULL;
  flb_program *program = NULL;
  flb_method *method = NULL;
  ok(flb_engine_new(NULL, 0, &engine));

  ok(flb_program_from_bytes(engine, bytes, size, NULL, &program));
  ok(flb_method_load(program, "forward", &method));
  run_row(method);
  flb_method_free(method);
  flb_program_free(program);

  int unused = 0;
  ok(flb_program_borrow(engine, bytes, size, NULL, release, &unused, &program));
  ok(flb_method_load(program, "forward", &method));
  flb_program_free(program);
  run_row(method);
  REQUIRE(unused == 0);
  flb_method_free(method);
  REQUIRE(unused == 1);
  fails(flb_program_borrow(engine, bytes, 7, NULL, release, &unused, &program), FLB_ERROR_LOAD, "");
  REQUIRE(unused == 2);
  flb_engine_free(engine);
}

int main(int argc, char **argv) {
  REQUIRE(argc == 2);
  versions();
  null_is_an_error_or_nothing();
  tensors();
  borrowed_memory_is_released_once();
  programs(argv[1]);
  programs_in_memory(argv[1]);
  puts("all hold");
  return 0;
}
