//! Transcripts and their output formats.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::{SAMPLE_RATE, Segment, Task, Word};

/// Transcript of one recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcript {
    /// Code of the spoken language, if it is known.
    pub language: Option<String>,
    pub task: Task,
    /// Seconds that were transcribed.
    pub seconds: f64,
    pub segments: Vec<Segment>,
}

impl Transcript {
    /// Merges the transcripts of a recording's channels. Segments are in order of time, each with
    /// its channel's number. The language is the first known one.
    pub fn of_channels(channels: Vec<Transcript>) -> Transcript {
        let language = channels.iter().find_map(|channel| channel.language.clone());
        let task = channels.first().map_or(Task::Transcribe, |channel| channel.task);
        let seconds = channels.iter().map(|channel| channel.seconds).fold(0.0, f64::max);
        let numbered = channels.into_iter().zip(1..).flat_map(|(channel, number)| {
            channel.segments.into_iter().map(move |segment| Segment { channel: Some(number), ..segment })
        });
        let mut segments: Vec<Segment> = numbered.collect();
        segments.sort_by(|a, b| a.start.total_cmp(&b.start));
        Transcript { language, task, seconds, segments }
    }

    /// The whole text, trimmed.
    pub fn text(&self) -> String {
        let text: String = self.segments.iter().map(|s| s.text.as_str()).collect();
        text.trim().to_owned()
    }

    /// A line for each segment.
    pub fn lines(&self) -> String {
        self.each(String::new(), |out, _, segment| writeln!(out, "{}{}", speaker(segment), segment.text.trim()))
    }

    /// SubRip subtitles.
    pub fn srt(&self) -> String {
        self.each(String::new(), |out, number, segment| {
            writeln!(out, "{number}\n{}", cue(segment, ',', &speaker(segment), &plain(segment)))
        })
    }

    /// WebVTT subtitles.
    pub fn vtt(&self) -> String {
        self.each("WEBVTT\n\n".to_owned(), |out, _, segment| {
            writeln!(out, "{}", cue(segment, '.', &voice(segment), &escaped(segment)))
        })
    }

    /// Tab-separated values: start and end in milliseconds, and text.
    pub fn tsv(&self) -> String {
        self.each("start\tend\ttext\n".to_owned(), |out, _, segment| {
            let text = segment.text.trim().replace('\t', " ");
            writeln!(out, "{}\t{}\t{}{text}", milliseconds(segment.start), milliseconds(segment.end), speaker(segment))
        })
    }

    /// All data of the segments, in the names of OpenAI's `verbose_json`.
    pub fn to_json(&self) -> Json {
        json!({
            "task": match self.task {
                Task::Transcribe => "transcribe",
                Task::Translate => "translate",
            },
            "language": self.language,
            "duration": self.seconds,
            "text": self.text(),
            "segments": self.segments.iter().enumerate().map(segment_json).collect::<Json>(),
        })
    }

    fn each(&self, mut out: String, write: impl Fn(&mut String, usize, &Segment) -> std::fmt::Result) -> String {
        for (number, segment) in (1..).zip(&self.segments) {
            // Writing to a string does not fail.
            let _ = write(&mut out, number, segment);
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

/// Channel label in a line of text.
fn speaker(segment: &Segment) -> String {
    segment.channel.map(|number| format!("[channel {number}] ")).unwrap_or_default()
}

/// Channel label in WebVTT.
fn voice(segment: &Segment) -> String {
    segment.channel.map(|number| format!("<v channel {number}>")).unwrap_or_default()
}

/// The text of a segment, without the arrow that separates SubRip times.
fn plain(segment: &Segment) -> String {
    segment.text.trim().replace("-->", "->")
}

/// The text of a segment, with the special characters of WebVTT escaped.
fn escaped(segment: &Segment) -> String {
    segment.text.trim().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A subtitle and the blank line after it.
fn cue(segment: &Segment, point: char, speaker: &str, text: &str) -> String {
    format!("{} --> {}\n{speaker}{text}\n", stamp(segment.start, point), stamp(segment.end, point))
}

/// A word in the names of OpenAI's `verbose_json`.
fn word_json(word: &Word) -> Json {
    json!({ "word": word.text, "start": word.start, "end": word.end })
}

fn segment_json((id, s): (usize, &Segment)) -> Json {
    let mut json = json!({
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
        "words": s.words.iter().map(word_json).collect::<Json>(),
    });
    if let Some(channel) = s.channel {
        json["channel"] = channel.into();
    }
    json
}

/// Rounds a number to its significant digits.
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
            channel: None,
        };
        let segments = vec![segment(0.0, 2.5, " Go on."), segment(3599.999, 3661.0, " A --> B")];
        Transcript { language: Some("en".into()), task: Task::Transcribe, seconds: 3661.0, segments }
    }

    #[test]
    fn subtitles_count_hours_and_keep_arrows_out_of_text() {
        let srt = transcript().srt();
        assert_eq!(srt, "1\n00:00:00,000 --> 00:00:02,500\nGo on.\n\n2\n00:59:59,999 --> 01:01:01,000\nA -> B\n\n");
        let vtt = transcript().vtt();
        assert!(vtt.starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nGo on.\n\n"), "{vtt}");
    }

    #[test]
    fn webvtt_has_no_tags_that_nobody_wrote() {
        let mut transcript = transcript();
        transcript.segments[1].text = " R&D <b> A --> B &amp;".into();
        let vtt = transcript.vtt();
        assert!(vtt.ends_with("\nR&amp;D &lt;b&gt; A --&gt; B &amp;amp;\n\n"), "{vtt}");
        assert!(transcript.srt().contains("\nR&D <b> A -> B &amp;\n"));
    }

    #[test]
    fn text_and_tables_have_a_line_per_segment() {
        assert_eq!(transcript().lines(), "Go on.\nA --> B\n");
        assert_eq!(transcript().tsv(), "start\tend\ttext\n0\t2500\tGo on.\n3599999\t3661000\tA --> B\n");
    }

    #[test]
    fn channels_are_merged_by_time_and_named() {
        let other = Transcript { seconds: 3700.0, language: None, ..transcript() };
        let mut later = transcript();
        later.segments.iter_mut().for_each(|segment| segment.start += 1.0);
        let both = Transcript::of_channels(vec![other, later]);
        let order: Vec<_> = both.segments.iter().map(|segment| (segment.start, segment.channel)).collect();
        assert_eq!(order, [(0.0, Some(1)), (1.0, Some(2)), (3599.999, Some(1)), (3600.999, Some(2))]);
        assert_eq!((both.seconds, both.language.as_deref()), (3700.0, Some("en")));
        assert!(both.lines().starts_with("[channel 1] Go on.\n[channel 2] Go on.\n"), "{}", both.lines());
        assert!(both.srt().contains("\n[channel 2] Go on.\n") && both.vtt().contains("\n<v channel 2>Go on.\n"));
        assert!(both.tsv().contains("\t[channel 2] Go on.\n"));
        assert_eq!(both.to_json()["segments"][1]["channel"], 2);
        assert!(transcript().to_json()["segments"][1].get("channel").is_none());
    }

    #[test]
    fn json_has_the_whole_text_and_every_segment() {
        let json = transcript().to_json();
        assert_eq!(json["text"], "Go on. A --> B");
        assert_eq!((json["segments"][1]["id"].as_u64(), json["segments"][0]["avg_logprob"].as_f64()), (Some(1), Some(-0.25)));
    }
}
