/* Chooses the adapters of answers: adapters MODEL CACHE LORA... */
#include <flambeau.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

int main(int argc, char **argv) {
  REQUIRE(argc >= 4 && argc < 8);
  const char *flags[16] = {"--cache-dir", argv[2], "--qlinear=none"};
  size_t count = 3;
  for (int i = 3; i < argc; i++) {
    flags[count++] = "--lora";
    flags[count++] = argv[i];
  }
  flb_language_model *model = NULL;
  flb_engine *engine = NULL;
  ok(flb_engine_new(NULL, 0, &engine));
  ok(flb_language_model_load(engine, argv[1], flags, count, &model));
  flb_engine_free(engine);

  flb_generation_options options = {.struct_size = sizeof options, .max_new_tokens = 16, .ignore_eos = 1};
  const char *const choices[4] = {NULL, "none", "calm:0.5", "calm:0.5 loud"};
  for (int i = 0; i < 4; i++) {
    flb_generation *answer = NULL;
    options.adapters = choices[i];
    ok(flb_generate(model, "the cat sat", &options, NULL, NULL, &answer));
    puts(flb_generation_text(answer));
    flb_generation_free(answer);
  }
  flb_generation *refused = NULL;
  options.adapters = "silent";
  fails(flb_generate(model, "the cat sat", &options, NULL, NULL, &refused), FLB_ERROR_INPUT, "calm, loud");
  REQUIRE(refused == NULL);
  flb_language_model_free(model);
  return 0;
}
