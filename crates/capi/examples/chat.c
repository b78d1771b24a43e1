/* A conversation with a language model: chat MODEL [FLAG...]
 * MODEL is a program, a folder of weights or a name on the Hugging Face hub. */
#include <flambeau.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *require(void *memory) {
  if (memory == NULL) {
    fprintf(stderr, "error: out of memory\n");
    exit(1);
  }
  return memory;
}

static void check(flb_error *error) {
  if (error != NULL) {
    fprintf(stderr, "error: %s\n", flb_error_get_text(error));
    flb_error_free(error);
    exit(1);
  }
}

/* What was said so far; the texts are owned. */
typedef struct {
  flb_message *messages;
  size_t count;
} conversation;

static void say(conversation *talk, const char *role, const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = require(malloc(size));
  memcpy(copy, text, size);
  size_t bytes = (talk->count + 1) * sizeof *talk->messages;
  talk->messages = require(realloc(talk->messages, bytes));
  talk->messages[talk->count].role = role;
  talk->messages[talk->count].content = copy;
  talk->count += 1;
}

static void forget(conversation *talk) {
  for (size_t i = 0; i < talk->count; i++) {
    free((void *)talk->messages[i].content);
  }
  free(talk->messages);
}

/* Prints the answer as it is written. A result other than 0 would end it. */
static int32_t print(void *context, const char *text) {
  FILE *out = context;
  fputs(text, out);
  return fflush(out) == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: chat MODEL [FLAG...]\n");
    return 2;
  }
  flb_engine *engine = NULL;
  flb_language_model *model = NULL;
  check(flb_engine_new(NULL, 0, &engine));
  const char *const *flags = (const char *const *)(argv + 2);
  check(flb_language_model_load(engine, argv[1], flags, (size_t)argc - 2, &model));
  flb_engine_free(engine);

  flb_generation_options options = {.struct_size = sizeof options, .max_new_tokens = 512};
  conversation talk = {NULL, 0};
  char line[4096];
  for (;;) {
    fputs("> ", stderr);
    if (fgets(line, sizeof line, stdin) == NULL) {
      break;
    }
    line[strcspn(line, "\n")] = '\0';
    say(&talk, "user", line);
    flb_generation *answer = NULL;
    check(flb_chat(model, talk.messages, talk.count, &options, print, stdout, &answer));
    say(&talk, "assistant", flb_generation_text(answer));
    flb_generation_free(answer);
    putchar('\n');
  }
  forget(&talk);
  flb_language_model_free(model);
  return 0;
}
