//! `flambeau transcribe`: recordings to text with times.

mod format;
mod live;
mod output;
mod source;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use anyhow::{Context, Result};
use flambeau::{
    audio::Recording,
    engine::Engine,
    runners::speech::{
        Progress, SAMPLE_RATE, Segment, Settings, SpeechModel, Task, Transcriber, Transcript,
        whisper::{Search, Whisper},
    },
    text::Tokenizer,
};
use indicatif::ProgressBar;

use self::{format::Format, live::Live, source::SourceArgs};
use crate::{
    engine::EngineArgs,
    failure::{self, INTERRUPTED},
    file_kind::LockArgs,
    interrupt,
    model::{ExportArgs, ModelArgs},
    progress, tokenizer,
};

/// Transcribe recordings with Whisper, Parakeet, Moonshine or Voxtral
///
/// Reads WAV, AIFF, CAF, FLAC, MP3, AAC, ALAC, Vorbis and Opus, up to 384 kHz and 64 channels. Text
/// is printed as it is recognized, and Ctrl-C keeps the finished part.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau transcribe -m ./whisper-tiny.en talk.mp3\n  \
    flambeau transcribe -m openai/whisper-small -l fr --translate entretien.m4a -f srt -o entretien.srt\n  \
    flambeau transcribe -m whisper.pte *.flac -f txt,vtt,json --output-dir transcripts\n  \
    flambeau transcribe -m whisper.pte --mic")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    model: ModelFlags,

    /// Transcribe live, with a hypothesis every N seconds; a word is final once two hypotheses
    /// agree (Whisper, Parakeet, Voxtral Realtime)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = seconds)]
    live: Option<f64>,

    /// Formats of the transcript, separated by commas
    #[arg(short, long, value_name = "FORMAT", value_delimiter = ',', default_value = "txt", alias = "output-format")]
    format: Vec<Format>,

    /// File to write instead of stdout, for one recording and one format
    #[arg(short, long, value_name = "FILE", conflicts_with = "output_dir")]
    output: Option<PathBuf>,

    /// Folder for one file per recording and format
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,

    /// Print JSON, as `--format json` does
    #[arg(long, conflicts_with = "format")]
    json: bool,

    #[command(flatten)]
    speech: SpeechArgs,

    /// Print no statistics
    #[arg(short, long)]
    quiet: bool,
}

/// A model of speech and how it is loaded.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelFlags {
    /// Model: a program (.pte), a folder, a .nemo file, whisper.cpp's ggml file, or ORG/NAME on
    /// the Hugging Face hub. A folder holds weights, or ExecuTorch's three programs of Whisper.
    /// All but programs are exported once, into the cache, with the decoder in 8 bits (--qlinear
    /// none keeps floats)
    #[arg(short, long, value_name = "MODEL")]
    model: String,

    /// tokenizer.json, tekken.json or tokenizer.model, or the folder that holds it; by default the
    /// program's own, or the one beside it
    #[arg(long, value_name = "PATH", alias = "tokenizer-path")]
    tokenizer: Option<PathBuf>,

    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    export: ExportArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

/// How to transcribe.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SpeechArgs {
    /// Spoken language, such as en, fr or french (Whisper, Voxtral); by default the model detects
    /// it
    #[arg(help_heading = "Speech", short, long, value_name = "LANGUAGE", default_value = "auto")]
    language: String,

    /// Translate speech in other languages into English (Whisper)
    #[arg(help_heading = "Speech", long)]
    translate: bool,

    /// Prompt before every window, with names and spellings to prefer (Whisper)
    #[arg(
        help_heading = "Speech",
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        alias = "initial-prompt"
    )]
    prompt: String,

    /// Names and words to prefer in every window, such as "Flambeau, ExecuTorch" (Whisper)
    #[arg(help_heading = "Speech", long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    hotwords: String,

    /// Add the time of each word to JSON (Whisper, Parakeet)
    #[arg(help_heading = "Speech", long)]
    word_timestamps: bool,

    /// Put the preceding text into the prompt of each window (Whisper)
    #[arg(help_heading = "Speech", long, alias = "condition-on-previous-text")]
    previous_text: bool,

    /// Number of windows that are decoded at a time, 1 to 16; the windows end in pauses (Whisper)
    #[arg(help_heading = "Speech", long, value_name = "N", default_value_t = 1, value_parser = windows)]
    batch_size: usize,

    /// Number of candidate texts of a window, 1 to 8; the likeliest is returned (Whisper)
    #[arg(help_heading = "Speech", long, value_name = "N", default_value_t = 1, value_parser = texts)]
    beam_size: usize,

    /// Continue the beam search until X times the beam size of texts have ended (Whisper)
    #[arg(help_heading = "Speech", long, value_name = "X", default_value_t = 1.0)]
    patience: f32,

    /// Length penalty: higher values prefer longer texts; by default the mean log-probability ranks
    /// texts (Whisper)
    #[arg(help_heading = "Speech", long, value_name = "X")]
    length_penalty: Option<f32>,

    /// Number of texts to sample when a window is decoded again at a temperature above 0, 1 to 8
    /// (Whisper)
    #[arg(help_heading = "Speech", long, value_name = "N", default_value_t = 1, value_parser = texts)]
    best_of: usize,

    /// Skip silence and steady noise; only possible speech reaches the model
    #[arg(help_heading = "Speech", long, alias = "vad-filter", overrides_with = "no_vad")]
    vad: bool,

    /// Transcribe all sound, silence included (default)
    #[arg(help_heading = "Speech", long, overrides_with = "vad")]
    no_vad: bool,
}

/// The files of a Whisper that ExecuTorch's exporter wrote.
const APART: [&str; 3] = ["encoder.pte", "cross_kv.pte", "decoder.pte"];

/// Parses the seconds between two hypotheses.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=10.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.1 to 10".into())
}

/// Parses a number of windows.
fn windows(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=16).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 16".into())
}

/// Parses a number of candidate texts, limited by the room in programs.
fn texts(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=8).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 8".into())
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let formats = if args.json { vec![Format::Json] } else { args.format.clone() };
    args.source.check()?;
    output::check(args, &formats)?;
    let (mut model, tokenizer) = load(&args.model, &args.model.engine.engine(false)?)?;
    let cancelled = interrupt::flag()?;
    let mut code = ExitCode::SUCCESS;
    let files = args.source.files();
    for file in &files {
        match transcribe(args, &formats, file, (&mut model, &tokenizer), &cancelled) {
            Ok(()) => {}
            // The other recordings may be whole.
            Err(error) if files.len() > 1 && !failure::is_closed_pipe(&error) => code = failure::report(&error),
            Err(error) => return Err(error),
        }
        if cancelled.load(Ordering::Relaxed) && !args.source.is_microphone() {
            return Ok(ExitCode::from(INTERRUPTED));
        }
    }
    Ok(code)
}

impl Args {
    /// Seconds between hypotheses in live transcription.
    fn live(&self) -> Option<f64> {
        self.live.or(self.source.is_microphone().then_some(1.0))
    }
}

/// Loads a model of speech on an engine.
pub(crate) fn load(args: &ModelFlags, engine: &Arc<dyn Engine>) -> Result<(SpeechModel, Tokenizer)> {
    let model = ModelArgs::new(&args.model, args.lock, &args.export);
    let given = args.tokenizer.as_deref();
    let folder = Path::new(&args.model);
    if APART.iter().any(|name| folder.join(name).is_file()) {
        model.check_unused()?;
        let open = |name: &str| args.lock.open(&folder.join(name));
        let [encoder, cross_kv, decoder] = APART.map(open);
        let programs = [&encoder?, &cross_kv?, &decoder?];
        let processor = Some(folder.join("processor")).filter(|folder| folder.is_dir());
        let tokenizer = tokenizer::at(given.or(processor.as_deref()).unwrap_or(folder))?.tokenizer;
        let mut whisper = Whisper::load_apart(programs, &tokenizer, engine)?;
        let lists = [Some(folder), processor.as_deref()].into_iter().flatten().map(|folder| folder.join("generation_config.json"));
        if let Some(path) = lists.into_iter().find(|path| path.is_file()) {
            let config = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            whisper.suppress(&config).with_context(|| path.display().to_string())?;
        }
        return Ok((SpeechModel::Whisper(Box::new(whisper)), tokenizer));
    }
    let (program, path) = model.open_speech(args.engine.threads)?;
    let tokenizer = tokenizer::find(&program, &path, given)?.tokenizer;
    Ok((SpeechModel::load(&program, engine)?, tokenizer))
}

/// Transcribes one recording. Writes the transcript when it ends, fails or is cancelled, unless
/// there is none.
fn transcribe(
    args: &Args,
    formats: &[Format],
    file: &Path,
    (model, tokenizer): (&mut SpeechModel, &Tokenizer),
    cancelled: &Arc<AtomicBool>,
) -> Result<()> {
    let start = Instant::now();
    let mut first = args.source.open(file, args.live().is_some(), cancelled)?;
    let is_separate = args.source.is_separate();
    let as_it_comes = args.output.is_none() && args.output_dir.is_none() && formats == [Format::Txt] && !is_separate;
    // A microphone ends by itself when it is cancelled, and its transcript is still written.
    let never = Arc::default();
    let stop = if args.source.is_microphone() { &never } else { cancelled };
    let (mut heard, mut result, mut live, mut warnings) = (Vec::new(), Ok(()), None, Vec::new());
    let count = if is_separate { first.channels().with_context(|| file.display().to_string())? } else { 1 };
    let mut first = Some(first);
    for channel in 0..count {
        // Each channel decodes the file again, so no audio is buffered.
        let mut recording = first.take().map_or_else(|| args.source.open(file, args.live().is_some(), cancelled), Ok)?;
        if is_separate {
            recording.choose_channel(channel).with_context(|| file.display().to_string())?;
        }
        live = args.live().map(|_| Live::new(as_it_comes));
        let mut transcriber = Transcriber::new(model, tokenizer, Settings { live: args.live(), ..args.speech.settings() })?;
        let mut segments = Vec::new();
        result = feed(&mut transcriber, &mut recording, (&mut segments, live.as_mut()), as_it_comes, stop)
            .with_context(|| file.display().to_string());
        warnings = source::warnings(&recording);
        if !args.speech.word_timestamps {
            // Live transcription times words in any case.
            segments.iter_mut().for_each(|segment: &mut Segment| segment.words.clear());
        }
        let language = transcriber.language().map(str::to_owned);
        heard.push(Transcript { language, task: args.speech.task(), seconds: transcriber.seconds(), segments });
        if result.is_err() || cancelled.load(Ordering::Relaxed) {
            break;
        }
    }
    let alone = if is_separate { None } else { heard.pop() };
    let transcript = alone.unwrap_or_else(|| Transcript::of_channels(heard));
    // An empty transcript of an interrupted run replaces no older file.
    let is_whole = result.is_ok() && !stop.load(Ordering::Relaxed);
    if !as_it_comes && (is_whole || !transcript.segments.is_empty()) {
        output::write(args, formats, file, &transcript)?;
    }
    warnings.iter().for_each(|warning| eprintln!("{}: {warning}", file.display()));
    if !args.quiet {
        let (seconds, took) = (transcript.seconds, start.elapsed().as_secs_f64());
        let of = transcript.language.map(|code| format!(" of {code}")).unwrap_or_default();
        let speed = match live {
            Some(live) => live.summary(seconds),
            None => format!("{:.1} times real time", seconds / took),
        };
        eprintln!("{}: {seconds:.1} s{of} in {took:.1} s, {speed}", file.display());
    }
    result
}

impl SpeechArgs {
    fn task(&self) -> Task {
        if self.translate { Task::Translate } else { Task::Transcribe }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            language: Some(self.language.clone()).filter(|code| code != "auto"),
            task: self.task(),
            prompt: self.prompt.clone(),
            hotwords: self.hotwords.clone(),
            words: self.word_timestamps,
            condition_on_previous: self.previous_text,
            batch: self.batch_size,
            search: Search {
                beam_size: self.beam_size,
                patience: self.patience,
                length_penalty: self.length_penalty,
                best_of: self.best_of,
            },
            voice_activity: self.vad,
            ..Settings::default()
        }
    }
}

/// Feeds a recording to a transcriber until it ends or is cancelled. Prints segments as they come,
/// or appends them to `segments`.
fn feed(
    transcriber: &mut Transcriber<'_>,
    recording: &mut Recording,
    (segments, mut live): (&mut Vec<Segment>, Option<&mut Live>),
    as_it_comes: bool,
    cancelled: &AtomicBool,
) -> Result<()> {
    let bar = Bar(progress::seconds(recording.seconds().filter(|_| live.is_none()).unwrap_or(0.0)));
    let mut heard = 0;
    while !cancelled.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match transcriber.step()? {
            Progress::NeedsSamples => {
                let block = recording.next_block()?;
                heard += block.map_or(0, <[f32]>::len);
                transcriber.feed(block);
            }
            Progress::Segments(new) => {
                if let Some(live) = &mut live {
                    let heard = heard as f64 / f64::from(SAMPLE_RATE);
                    live.take(&new, &transcriber.draft(), heard, begun.elapsed().as_secs_f64())?;
                } else if as_it_comes {
                    bar.0.suspend(|| print(&new))?;
                }
                // Printed segments are dropped, because a stream may have no end.
                segments.extend(new.into_iter().filter(|_| !as_it_comes));
                bar.0.set_position(transcriber.seconds() as u64);
            }
            Progress::Finished => break,
        }
    }
    Ok(())
}

/// A progress bar that is removed when dropped.
struct Bar(ProgressBar);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Prints segments as they come, one a line.
fn print(segments: &[Segment]) -> Result<()> {
    let mut out = io::stdout().lock();
    for segment in segments {
        writeln!(out, "{}", segment.text.trim())?;
    }
    Ok(out.flush()?)
}
