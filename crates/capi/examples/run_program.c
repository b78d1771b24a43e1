/* Runs the method `forward` of a program on rows of numbers: run_program MODEL.pte NUMBER... */
#include <flambeau.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program if there is an error. */
static void check(flb_error *error) {
  if (error != NULL) {
    fprintf(stderr, "error: %s\n", flb_error_get_text(error));
    flb_error_free(error);
    exit(1);
  }
}

static void describe(const char *what, const flb_value_info *info) {
  printf("%s %s: %s\n", what, info->name != NULL ? info->name : "?", info->text);
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: run_program MODEL.pte NUMBER...\n");
    return 2;
  }
  flb_engine *engine = NULL;
  flb_program *program = NULL;
  flb_method *forward = NULL;
  check(flb_engine_new(NULL, 0, &engine));
  check(flb_program_open(engine, argv[1], NULL, &program));
  check(flb_method_load(program, "forward", &forward));

  flb_value_info info = {.struct_size = sizeof info};
  check(flb_method_output(forward, 0, &info));
  describe("output", &info);
  check(flb_method_input(forward, 0, &info));
  describe("input", &info);
  if (info.kind != FLB_VALUE_TENSOR || info.dtype != FLB_DTYPE_F32 || info.rank != 2) {
    fprintf(stderr, "the program does not take rows of f32\n");
    return 1;
  }

  /* The tensor reads the numbers where they lie. */
  size_t count = (size_t)argc - 2;
  size_t shape[2] = {count / info.sizes[1], info.sizes[1]};
  float *numbers = malloc((count + 1) * sizeof *numbers);
  if (numbers == NULL) {
    return 1;
  }
  for (size_t i = 0; i < count; i++) {
    numbers[i] = strtof(argv[i + 2], NULL);
  }
  flb_tensor *x = NULL;
  size_t size = count * sizeof *numbers;
  check(flb_tensor_borrow(FLB_DTYPE_F32, shape, 2, numbers, size, free, numbers, &x));

  flb_value input;
  input.kind = FLB_VALUE_TENSOR;
  input.as.tensor = x;
  flb_values *results = NULL;
  check(flb_method_run(forward, &input, 1, &results));
  flb_value output;
  check(flb_values_get(results, 0, &output));

  /* The numbers of the result belong to `results`. */
  const flb_tensor *y = output.as.tensor;
  const float *elements = flb_tensor_data(y);
  for (size_t i = 0; i < flb_tensor_count(y); i++) {
    printf("%.7g\n", (double)elements[i]);
  }

  flb_values_free(results);
  flb_tensor_free(x);
  flb_method_free(forward);
  flb_program_free(program);
  flb_engine_free(engine);
  return 0;
}
