//! Forms of a transcript on the command line.

use flambeau::runners::speech::Transcript;

/// A form of a transcript, by its file's extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// A line per segment
    Txt,
    /// SubRip subtitles
    Srt,
    /// WebVTT subtitles
    Vtt,
    /// Segments with times, tokens and probabilities, under OpenAI's field names
    Json,
    /// Start and end in milliseconds and text, between tabs
    Tsv,
}

impl Format {
    pub(super) fn extension(self) -> &'static str {
        match self {
            Format::Txt => "txt",
            Format::Srt => "srt",
            Format::Vtt => "vtt",
            Format::Json => "json",
            Format::Tsv => "tsv",
        }
    }

    /// The whole text of a file.
    pub(super) fn write(self, transcript: &Transcript) -> String {
        match self {
            Format::Txt => transcript.lines(),
            Format::Srt => transcript.srt(),
            Format::Vtt => transcript.vtt(),
            Format::Json => format!("{:#}\n", transcript.to_json()),
            Format::Tsv => transcript.tsv(),
        }
    }
}
