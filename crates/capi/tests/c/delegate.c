/* Holds delegates to what flambeau.h promises: delegate FOLDER
 * FOLDER has a file `payload`, and a file of weights for each key, with `_` for `/`. */
#include <flambeau.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

/* Weights that were lent and not given back. */
static int lent_out = 0;

static void give_back(void *context) {
  free(context);
  lent_out -= 1;
}

/* A file in memory of its own; NULL if it cannot be read. */
static void *contents(const char *folder, const char *name, size_t *size) {
  char path[4096];
  REQUIRE(strlen(folder) + strlen(name) + 2 < sizeof path);
  size_t start = (size_t)sprintf(path, "%s/", folder);
  for (size_t i = 0; i <= strlen(name); i++) {
    path[start + i] = name[i] == '/' ? '_' : name[i];
  }
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    return NULL;
  }
  void *bytes = malloc(1 << 16);
  REQUIRE(bytes != NULL);
  *size = fread(bytes, 1, 1 << 16, file);
  REQUIRE(fclose(file) == 0 && *size > 0 && *size < 1 << 16);
  return bytes;
}

static int32_t find(void *context, const char *key, flb_lent *lent) {
  void *bytes = contents(context, key, &lent->size);
  if (bytes == NULL) {
    return 1;
  }
  lent->data = bytes;
  lent->release = give_back;
  lent->context = bytes;
  lent_out += 1;
  return 0;
}

static int32_t find_nothing(void *context, const char *key, flb_lent *lent) {
  (void)context, (void)key, (void)lent;
  return 1;
}

int main(int argc, char **argv) {
  REQUIRE(argc == 2);
  flb_engine *engine = NULL;
  flb_delegate *delegate = NULL;
  ok(flb_engine_new(NULL, 0, &engine));
  size_t size = 0;
  void *payload = contents(argv[1], "payload", &size);
  REQUIRE(payload != NULL);
  fails(flb_delegate_load(engine, payload, 20, find, argv[1], &delegate), FLB_ERROR_LOAD, "");
  fails(flb_delegate_load(engine, payload, size, find_nothing, NULL, &delegate), FLB_ERROR_LOAD,
        "constant");
  fails(flb_delegate_load(engine, payload, size, NULL, NULL, &delegate), FLB_ERROR_LOAD,
        "constant");
  REQUIRE(lent_out == 0);
  ok(flb_delegate_load(engine, payload, size, find, argv[1], &delegate));
  REQUIRE(lent_out > 0);
  free(payload);
  flb_engine_free(engine);
  REQUIRE(flb_delegate_input_count(delegate) == 1 && flb_delegate_output_count(delegate) == 1);

  const float row[4] = {0.5f, -1.0f, 0.0f, 2.0f};
  const size_t shape[2] = {1, 4};
  flb_tensor *x = NULL;
  flb_values *results = NULL;
  flb_value value;
  ok(flb_tensor_borrow(FLB_DTYPE_F32, shape, 2, row, sizeof row, NULL, NULL, &x));
  value.kind = FLB_VALUE_TENSOR;
  value.as.tensor = x;
  ok(flb_delegate_run(delegate, &value, 1, &results));
  flb_tensor_free(x);
  REQUIRE(flb_values_count(results) == 1);
  ok(flb_values_get(results, 0, &value));
  REQUIRE(value.kind == FLB_VALUE_TENSOR && flb_tensor_count(value.as.tensor) == 2);
  const float *y = flb_tensor_data(value.as.tensor);
  REQUIRE(y[0] > 0.50053f && y[0] < 0.50054f && y[1] > 0.19053f && y[1] < 0.19054f);
  flb_values_free(results);
  ok(flb_delegate_reset(delegate));

  fails(flb_delegate_run(delegate, NULL, 0, &results), FLB_ERROR_INPUT, "");
  value.kind = FLB_VALUE_INTEGER;
  value.as.integer = (int64_t)1 << 40;
  fails(flb_delegate_run(delegate, &value, 1, &results), FLB_ERROR_INPUT, "more than 32 bits");
  value.kind = FLB_VALUE_NUMBER;
  value.as.number = 1;
  fails(flb_delegate_run(delegate, &value, 1, &results), FLB_ERROR_INPUT, "the number 1");
  REQUIRE(results == NULL);
  flb_delegate_free(delegate);
  REQUIRE(lent_out == 0);
  puts("all hold");
  return 0;
}
