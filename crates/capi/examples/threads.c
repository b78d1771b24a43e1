/* Runs the method `forward` from several threads: threads MODEL.pte
 * Each thread has a method of its own and uses one that all share. All must give the same. */
#include <flambeau.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, RUNS = 50, ROWS = 16 };

typedef struct {
  const flb_program *program;
  const flb_method *shared;  /* Threads take turns with it. */
  const flb_tensor *input;   /* Tensors never change, so threads read them together. */
  const flb_tensor *expected;
  int differences;
} work;

static void check(flb_error *error) {
  if (error != NULL) {
    fprintf(stderr, "error: %s\n", flb_error_get_text(error));
    flb_error_free(error);
    exit(1);
  }
}

/* The first result of a run, as a handle of its own. */
static flb_tensor *run(const flb_method *method, const flb_tensor *input) {
  flb_value argument = {.kind = FLB_VALUE_TENSOR, .as = {.tensor = input}};
  flb_values *results = NULL;
  check(flb_method_run(method, &argument, 1, &results));
  flb_value first;
  check(flb_values_get(results, 0, &first));
  flb_tensor *tensor = NULL;
  check(flb_tensor_share(first.as.tensor, &tensor));
  flb_values_free(results);
  return tensor;
}

static int is_equal(const flb_tensor *a, const flb_tensor *b) {
  size_t size = flb_tensor_size(a);
  return size == flb_tensor_size(b) && memcmp(flb_tensor_data(a), flb_tensor_data(b), size) == 0;
}

static void *compute(void *context) {
  work *job = context;
  flb_method *own = NULL;
  check(flb_method_load(job->program, "forward", &own));
  for (int i = 0; i < RUNS; i++) {
    flb_tensor *found = run(i % 2 == 0 ? own : job->shared, job->input);
    job->differences += !is_equal(found, job->expected);
    flb_tensor_free(found);
  }
  flb_method_free(own);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: threads MODEL.pte\n");
    return 2;
  }
  flb_engine *engine = NULL;
  flb_program *program = NULL;
  flb_method *shared = NULL;
  check(flb_engine_new(NULL, 0, &engine));
  check(flb_program_open(engine, argv[1], NULL, &program));
  check(flb_method_load(program, "forward", &shared));
  flb_value_info info = {.struct_size = sizeof info};
  check(flb_method_input(shared, 0, &info));

  size_t shape[2] = {ROWS, info.sizes[1]};
  size_t count = shape[0] * shape[1];
  float *numbers = malloc(count * sizeof *numbers);
  if (numbers == NULL) {
    return 1;
  }
  for (size_t i = 0; i < count; i++) {
    numbers[i] = (float)(i % 7) - 3.0f;
  }
  /* The thread that frees the last handle calls `free`. */
  flb_tensor *input = NULL;
  check(flb_tensor_borrow(FLB_DTYPE_F32, shape, 2, numbers, count * sizeof *numbers, free,
                          numbers, &input));
  flb_tensor *expected = run(shared, input);

  work jobs[THREADS];
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    jobs[i] = (work){program, shared, input, expected, 0};
    if (pthread_create(&threads[i], NULL, compute, &jobs[i]) != 0) {
      return 1;
    }
  }
  int differences = 0;
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    differences += jobs[i].differences;
  }
  printf("%d threads, %d runs each, %d differences\n", THREADS, RUNS, differences);

  flb_tensor_free(expected);
  flb_tensor_free(input);
  flb_method_free(shared);
  flb_program_free(program);
  flb_engine_free(engine);
  return differences == 0 ? 0 : 1;
}
