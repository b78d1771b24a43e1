//! Forms of a transcript.

use std::fmt::Write;

use flambeau::runners::speech::{SAMPLE_RATE, Segment, Word};
use serde_json::json;

/// A form of a transcript, by its file's extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// A line per segment
    Txt,
    /// SubRip subtitles
    Srt,
    /// WebVTT subtitles
    Vtt,
    /// Segments with everything known of them, in OpenAI's field names
    Json,
    /// Start and end in milliseconds and text, between tabs
    Tsv,
}

/// What was recognized in one recording.
pub(super) struct Transcript {
    /// As far as it is known.
    pub(super) language: Option<String>,
    /// `transcribe` or `translate`.
    pub(super) task: &'static str,
    /// Seconds that were heard.
    pub(super) seconds: f64,
    pub(super) segments: Vec<Segment>,
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
        let mut out = match self {
            Format::Json => return format!("{:#}\n", to_json(transcript)),
            Format::Vtt => "WEBVTT\n\n".to_owned(),
            Format::Tsv => "start\tend\ttext\n".to_owned(),
            Format::Txt | Format::Srt => String::new(),
        };
        for (number, segment) in (1..).zip(&transcript.segments) {
            let (start, end, text) = (segment.start, segment.end, segment.text.trim());
            // Writing to a string does not fail.
            let _ = match self {
                Format::Srt => {
                    let text = text.replace("-->", "->");
                    writeln!(out, "{number}\n{} --> {}\n{text}\n", stamp(start, ','), stamp(end, ','))
                }
                Format::Vtt => writeln!(out, "{} --> {}\n{}\n", stamp(start, '.'), stamp(end, '.'), text.replace("-->", "->")),
                Format::Tsv => writeln!(out, "{}\t{}\t{}", milliseconds(start), milliseconds(end), text.replace('\t', " ")),
                Format::Txt | Format::Json => writeln!(out, "{text}"),
            };
        }
        out
    }
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

/// Hours, minutes, seconds and thousandths.
fn stamp(seconds: f64, point: char) -> String {
    let all = milliseconds(seconds);
    let (hours, minutes, seconds, thousandths) = (all / 3_600_000, all / 60_000 % 60, all / 1000 % 60, all % 1000);
    format!("{hours:02}:{minutes:02}:{seconds:02}{point}{thousandths:03}")
}

fn to_json(transcript: &Transcript) -> serde_json::Value {
    let segment = |(id, s): (usize, &Segment)| {
        let word = |word: &Word| json!({ "word": word.text, "start": word.start, "end": word.end });
        json!({
            "id": id,
            "seek": (s.window * f64::from(SAMPLE_RATE) / 160.0).round() as u64,
            "start": s.start,
            "end": s.end,
            "text": s.text,
            "tokens": s.tokens,
            "temperature": rounded(s.temperature),
            "avg_logprob": rounded(s.mean_log_probability),
            "compression_ratio": rounded(s.compression_ratio),
            "no_speech_prob": rounded(s.no_speech_probability),
            "words": s.words.iter().map(word).collect::<Vec<_>>(),
        })
    };
    let text: String = transcript.segments.iter().map(|s| s.text.as_str()).collect();
    json!({
        "task": transcript.task,
        "language": transcript.language,
        "duration": transcript.seconds,
        "text": text.trim(),
        "segments": transcript.segments.iter().enumerate().map(segment).collect::<Vec<_>>(),
    })
}

/// A number with as many digits as it has meaning.
fn rounded(value: f32) -> f64 {
    (f64::from(value) * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |start, end, text: &str| Segment {
            window: 0.0,
            start,
            end,
            text: text.into(),
            tokens: vec![1],
            words: Vec::new(),
            temperature: 0.0,
            mean_log_probability: -0.25,
            no_speech_probability: 0.125,
            compression_ratio: 1.0,
        };
        let segments = vec![segment(0.0, 2.5, " Go on."), segment(3599.999, 3661.0, " A --> B")];
        Transcript { language: Some("en".into()), task: "transcribe", seconds: 3661.0, segments }
    }

    #[test]
    fn subtitles_count_hours_and_keep_arrows_out_of_text() {
        let srt = Format::Srt.write(&transcript());
        assert_eq!(srt, "1\n00:00:00,000 --> 00:00:02,500\nGo on.\n\n2\n00:59:59,999 --> 01:01:01,000\nA -> B\n\n");
        let vtt = Format::Vtt.write(&transcript());
        assert!(vtt.starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nGo on.\n\n"), "{vtt}");
    }

    #[test]
    fn text_and_tables_have_a_line_per_segment() {
        assert_eq!(Format::Txt.write(&transcript()), "Go on.\nA --> B\n");
        assert_eq!(Format::Tsv.write(&transcript()), "start\tend\ttext\n0\t2500\tGo on.\n3599999\t3661000\tA --> B\n");
    }

    #[test]
    fn json_has_the_whole_text_and_every_segment() {
        let json: serde_json::Value = serde_json::from_str(&Format::Json.write(&transcript())).unwrap();
        assert_eq!(json["text"], "Go on. A --> B");
        assert_eq!((json["segments"][1]["id"].as_u64(), json["segments"][0]["avg_logprob"].as_f64()), (Some(1), Some(-0.25)));
    }
}
