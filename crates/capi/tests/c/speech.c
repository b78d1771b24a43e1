/* Holds transcription to what flambeau.h promises: speech MODEL CACHE RECORDING
 * MODEL is a Parakeet, which knows no languages.
 * RECORDING is a WAV file of 16-bit samples behind 44 bytes, 16,000 a second. */
#include <flambeau.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

typedef struct {
  size_t count;
  double end;
  size_t words;
  int32_t result;
} seen;

static int32_t on_segment(void *context, const flb_segment *segment) {
  seen *so_far = context;
  REQUIRE(segment->struct_size == sizeof *segment && segment->start >= so_far->end);
  REQUIRE(segment->end >= segment->start && segment->text != NULL);
  for (size_t i = 0; i < segment->word_count; i++) {
    REQUIRE(segment->words[i].end >= segment->words[i].start && segment->words[i].text != NULL);
  }
  so_far->count += 1;
  so_far->end = segment->end;
  so_far->words += segment->word_count;
  return so_far->result;
}

/* Samples in memory that are read in pieces. */
typedef struct {
  const unsigned char *next;
  size_t left;
  int reads;
} stream;

static size_t read_piece(void *context, void *data, size_t size) {
  stream *from = context;
  size_t count = size < 777 ? size : 777;
  count = count < from->left ? count : from->left;
  memcpy(data, from->next, count);
  from->next += count;
  from->left -= count;
  from->reads += 1;
  return count;
}

static size_t read_too_much(void *context, void *data, size_t size) {
  (void)context, (void)data;
  return size + 1;
}

int main(int argc, char **argv) {
  REQUIRE(argc == 4);
  flb_engine *engine = NULL;
  flb_speech_model *model = NULL;
  flb_transcript *whole = NULL;
  ok(flb_engine_new(NULL, 0, &engine));
  const char *const load[2] = {"--cache-dir", argv[2]};
  fails(flb_speech_model_load(engine, "./missing", load, 2, &model), FLB_ERROR_LOAD, "missing");
  ok(flb_speech_model_load(engine, argv[1], load, 2, &model));
  flb_engine_free(engine);

  const char *const flags[1] = {"--word-timestamps"};
  seen segments = {0, 0, 0, 0};
  ok(flb_transcribe_file(model, argv[3], flags, 1, on_segment, &segments, &whole));
  REQUIRE(flb_transcript_language(whole) == NULL);
  REQUIRE(flb_transcript_seconds(whole) > 0.499 && flb_transcript_seconds(whole) < 0.501);
  REQUIRE(segments.count > 0 && segments.count == flb_transcript_segment_count(whole));
  size_t words = 0;
  for (size_t i = 0; i < flb_transcript_segment_count(whole); i++) {
    flb_segment segment = {.struct_size = sizeof segment};
    ok(flb_transcript_segment(whole, i, &segment));
    REQUIRE(strstr(flb_transcript_text(whole), segment.text) != NULL);
    words += segment.word_count;
  }
  REQUIRE(words > 0 && words == segments.words);
  flb_segment none = {.struct_size = sizeof none};
  fails(flb_transcript_segment(whole, segments.count, &none), FLB_ERROR_INPUT, "no segment");
  puts(flb_transcript_json(whole));

  /* The samples of the file give the same. */
  FILE *file = fopen(argv[3], "rb");
  REQUIRE(file != NULL);
  static unsigned char bytes[1 << 20];
  size_t size = fread(bytes, 1, sizeof bytes, file);
  REQUIRE(fclose(file) == 0 && size > 44 && size < sizeof bytes);
  size -= 44;
  flb_tensor *samples = NULL;
  flb_transcript *again = NULL;
  const size_t shape[2] = {size / 2, 1};
  ok(flb_tensor_copy(FLB_DTYPE_I16, shape, 2, bytes + 44, size, &samples));
  ok(flb_transcribe_samples(model, samples, 16000, flags, 1, NULL, NULL, &again));
  REQUIRE(strcmp(flb_transcript_json(again), flb_transcript_json(whole)) == 0);
  flb_transcript_free(again);

  /* So do samples that come in pieces. */
  stream pieces = {bytes + 44, size, 0};
  ok(flb_transcribe_stream(model, FLB_DTYPE_I16, 16000, 1, read_piece, flags, 1, NULL, &pieces, &again));
  REQUIRE(strcmp(flb_transcript_json(again), flb_transcript_json(whole)) == 0);
  REQUIRE(pieces.left == 0 && pieces.reads > 10);
  flb_transcript_free(again);
  fails(flb_transcribe_stream(model, FLB_DTYPE_I16, 16000, 1, read_too_much, flags, 1, NULL, NULL, &again),
        FLB_ERROR_INPUT, "there was room for");
  fails(flb_transcribe_stream(model, FLB_DTYPE_I16, 16000, 1, NULL, flags, 1, NULL, NULL, &again),
        FLB_ERROR_INPUT, "`read` is NULL");
  fails(flb_transcribe_stream(model, FLB_DTYPE_I64, 16000, 1, read_piece, flags, 1, NULL, &pieces, &again),
        FLB_ERROR_INPUT, "samples are i64");

  /* A callback ends the transcription. */
  segments = (seen){0, 0, 0, 1};
  ok(flb_transcribe_samples(model, samples, 16000, flags, 1, on_segment, &segments, &again));
  REQUIRE(segments.count == 1);
  flb_transcript_free(again);
  flb_tensor_free(samples);

  const size_t cube[3] = {1, 1, 1};
  ok(flb_tensor_copy(FLB_DTYPE_F32, cube, 3, &(float){0}, sizeof(float), &samples));
  fails(flb_transcribe_samples(model, samples, 16000, NULL, 0, NULL, NULL, &again), FLB_ERROR_INPUT,
        "expected [samples]");
  flb_tensor_free(samples);
  fails(flb_transcribe_file(model, "no.wav", NULL, 0, NULL, NULL, &again), FLB_ERROR_INPUT,
        "no.wav");
  fails(flb_transcribe_file(model, argv[1], NULL, 0, NULL, NULL, &again), FLB_ERROR_INPUT, "");
  const char *const wrong[1] = {"--language=fr"};
  fails(flb_transcribe_file(model, argv[3], wrong, 1, NULL, NULL, &again), FLB_ERROR_INPUT,
        "takes no language");
  REQUIRE(again == NULL);
  flb_transcript_free(whole);
  flb_speech_model_free(model);
  return 0;
}
