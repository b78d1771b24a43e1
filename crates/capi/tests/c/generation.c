/* Holds generation to what flambeau.h promises: generation MODEL CACHE */
#include <flambeau.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

/* What a callback has seen. */
typedef struct {
  char text[4096];
  int calls;
  int most; /* Calls until it ends the answer; 0 means never. */
} seen;

static int32_t on_text(void *context, const char *text) {
  seen *so_far = context;
  REQUIRE(strlen(so_far->text) + strlen(text) < sizeof so_far->text);
  strcat(so_far->text, text);
  so_far->calls += 1;
  return so_far->most != 0 && so_far->calls >= so_far->most;
}

int main(int argc, char **argv) {
  REQUIRE(argc == 3);
  flb_engine *engine = NULL;
  flb_language_model *model = NULL;
  ok(flb_engine_new(NULL, 0, &engine));
  const char *const flags[2] = {"--cache-dir", argv[2]};
  const char *const wrong[1] = {"--colour=red"};
  fails(flb_language_model_load(engine, argv[1], wrong, 1, &model), FLB_ERROR_LOAD, "--colour");
  fails(flb_language_model_load(engine, "./missing", flags, 2, &model), FLB_ERROR_LOAD, "missing");
  ok(flb_language_model_load(engine, argv[1], flags, 2, &model));
  flb_engine_free(engine);
  REQUIRE(flb_language_model_context(model) == 64 && flb_language_model_can_chat(model) == 1);

  /* The pieces are the text. */
  flb_generation_options options = {.struct_size = sizeof options, .max_new_tokens = 8, .ignore_eos = 1};
  flb_generation *whole = NULL;
  seen pieces = {"", 0, 0};
  ok(flb_generate(model, "the cat sat on", &options, on_text, &pieces, &whole));
  REQUIRE(flb_generation_finish(whole) == FLB_FINISH_LENGTH && flb_generation_token_count(whole) == 8);
  REQUIRE(strlen(pieces.text) > 8 && strcmp(pieces.text, flb_generation_text(whole)) == 0);
  REQUIRE(flb_generation_prompt_count(whole) >= 4 && flb_generation_tokens_per_second(whole) > 0);
  puts(flb_generation_text(whole));

  /* The same prompt once more: its beginning is known, and so is the answer. */
  flb_generation *again = NULL;
  ok(flb_generate(model, "the cat sat on", &options, NULL, NULL, &again));
  REQUIRE(strcmp(flb_generation_text(again), flb_generation_text(whole)) == 0);
  REQUIRE(flb_generation_prompt_count(again) < flb_generation_prompt_count(whole));
  REQUIRE(memcmp(flb_generation_tokens(again), flb_generation_tokens(whole), 8 * sizeof(uint32_t)) == 0);
  flb_generation_free(again);

  /* A callback ends the answer. */
  flb_generation *part = NULL;
  pieces = (seen){"", 0, 3};
  ok(flb_generate(model, "the cat sat on", &options, on_text, &pieces, &part));
  REQUIRE(pieces.calls == 3 && flb_generation_finish(part) == FLB_FINISH_CANCELLED);
  REQUIRE(flb_generation_token_count(part) == 3);
  REQUIRE(strncmp(flb_generation_text(whole), flb_generation_text(part), strlen(flb_generation_text(part))) == 0);
  flb_generation_free(part);

  /* Equal seeds draw the same. */
  options.temperature = 0.8f;
  options.seed = 7;
  ok(flb_generate(model, "a dog", &options, NULL, NULL, &part));
  ok(flb_generate(model, "a dog", &options, NULL, NULL, &again));
  REQUIRE(strcmp(flb_generation_text(part), flb_generation_text(again)) == 0);
  flb_generation_free(part);
  flb_generation_free(again);
  options.temperature = 0;

  /* A text of the answer as the one that ends it. */
  char word[64] = "";
  REQUIRE(sscanf(flb_generation_text(whole), "%*s %63s", word) == 1);
  const char *const stop[1] = {word};
  options.stop = stop;
  options.stop_count = 1;
  ok(flb_generate(model, "the cat sat on", &options, NULL, NULL, &part));
  REQUIRE(flb_generation_finish(part) == FLB_FINISH_STOP && strstr(flb_generation_text(part), word) == NULL);
  flb_generation_free(part);
  options.stop_count = 0;

  /* What cannot be done is an error, and the model can be used afterwards. */
  options.temperature = -1;
  fails(flb_generate(model, "a dog", &options, NULL, NULL, &part), FLB_ERROR_INPUT, "temperature");
  REQUIRE(part == NULL);
  options.temperature = 0;
  options.schema = "{";
  fails(flb_generate(model, "a dog", &options, NULL, NULL, &part), FLB_ERROR_INPUT, "schema");
  options.schema = NULL;
  char prompt[400] = "the";
  for (int i = 0; i < 90; i++) {
    strcat(prompt, " cat");
  }
  fails(flb_generate(model, prompt, &options, NULL, NULL, &part), FLB_ERROR_INPUT, "context holds 64");
  const flb_message messages[1] = {{"user", NULL}};
  fails(flb_chat(model, messages, 1, &options, NULL, NULL, &part), FLB_ERROR_INPUT, "NULL");
  struct {
    flb_generation_options known;
    uint64_t later;
  } newer = {options, 1};
  newer.known.struct_size = sizeof newer;
  fails(flb_generate(model, "a dog", &newer.known, NULL, NULL, &part), FLB_ERROR_INPUT, "a field that version");
  newer.later = 0;
  ok(flb_generate(model, "the cat sat on", &newer.known, NULL, NULL, &again));
  REQUIRE(strcmp(flb_generation_text(again), flb_generation_text(whole)) == 0);

  flb_generation_free(again);
  flb_generation_free(whole);
  flb_language_model_free(model);
  return 0;
}
