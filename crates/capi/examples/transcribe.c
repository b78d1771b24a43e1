/* Transcribes a recording: transcribe MODEL RECORDING [FLAG...]
 * Flags are those of `flambeau transcribe` about speech, such as --language=fr. */
#include <flambeau.h>
#include <stdio.h>
#include <stdlib.h>

static void check(flb_error *error) {
  if (error != NULL) {
    fprintf(stderr, "error: %s\n", flb_error_get_text(error));
    flb_error_free(error);
    exit(1);
  }
}

/* Prints a segment when it was heard. A result other than 0 would end the transcription. */
static int32_t print(void *context, const flb_segment *segment) {
  FILE *out = context;
  return fprintf(out, "%6.2f %6.2f %s\n", segment->start, segment->end, segment->text) < 0;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: transcribe MODEL RECORDING [FLAG...]\n");
    return 2;
  }
  flb_engine *engine = NULL;
  flb_speech_model *model = NULL;
  flb_transcript *transcript = NULL;
  check(flb_engine_new(NULL, 0, &engine));
  check(flb_speech_model_load(engine, argv[1], NULL, 0, &model));
  flb_engine_free(engine);

  const char *const *flags = (const char *const *)(argv + 3);
  size_t flag_count = (size_t)argc - 3;
  check(flb_transcribe_file(model, argv[2], flags, flag_count, print, stdout, &transcript));
  const char *language = flb_transcript_language(transcript);
  printf("%.2f seconds, language %s\n", flb_transcript_seconds(transcript),
         language != NULL ? language : "unknown");
  flb_transcript_free(transcript);
  flb_speech_model_free(model);
  return 0;
}
