/* Checks that end the program. */
#ifndef REQUIRE_H
#define REQUIRE_H

#include <flambeau.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                       \
  do {                                                                           \
    if (!(condition)) {                                                          \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

/* Requires success. */
static void ok(flb_error *error) {
  if (error != NULL) {
    fprintf(stderr, "error: %s\n", flb_error_get_text(error));
  }
  REQUIRE(error == NULL);
}

/* Requires an error of a kind, with a word in its text. */
static void fails(flb_error *error, flb_error_kind kind, const char *word) {
  REQUIRE(error != NULL);
  if (flb_error_get_kind(error) != kind || strstr(flb_error_get_text(error), word) == NULL) {
    fprintf(stderr, "kind %u: %s\n", (unsigned)flb_error_get_kind(error), flb_error_get_text(error));
    REQUIRE(!"the kind and the text that were expected");
  }
  flb_error_free(error);
}

#endif
