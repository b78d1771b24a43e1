//! Benchmarks of speech models.

use std::{fs::File, path::Path, process::ExitCode, time::Instant};

use anyhow::{Context, Result, bail};
use flambeau::{
    audio::Recording,
    runners::speech::{Progress, SAMPLE_RATE, Settings, SpeechModel, Transcriber},
    runtime::Program,
    text::Tokenizer,
};
use serde_json::{Value as Json, json};

use super::{Args, Format, median};
use crate::{files, progress, tokenizer};

/// Number of tokens that the decoder reads one by one. Their ID is in all vocabularies.
const TOKENS: usize = 32;
const TOKEN: u32 = 1;

/// A measured stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Samples to encoder inputs.
    Features,
    Encoder,
    /// A prompt with audio rows among its tokens.
    Prompt,
    /// One token, or a whole window in families that transcribe while they read audio.
    Decoder,
    /// The whole recording to text.
    Transcribe,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Features => "features",
            Stage::Encoder => "encoder",
            Stage::Prompt => "prompt",
            Stage::Decoder => "decoder",
            Stage::Transcribe => "transcribe",
        }
    }
}

/// A measurement of a stage.
#[derive(Clone, Copy, Debug)]
struct Lap {
    stage: Stage,
    /// Seconds of audio processed; `None` for a single token.
    sound: Option<f64>,
    took: f64,
}

/// Times of a stage in seconds, ascending.
struct Measured {
    stage: Stage,
    sound: Option<f64>,
    took: Vec<f64>,
}

pub(super) fn run(args: &Args, program: &Program, path: &Path) -> Result<ExitCode> {
    args.profile.check_writable(args.model.paths().chain(args.audio.as_deref()))?;
    let samples = match &args.audio {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let read = Recording::from_file(file, SAMPLE_RATE).and_then(|mut recording| recording.read_to_end());
            read.with_context(|| path.display().to_string())?
        }
        None => tones(30),
    };
    if samples.is_empty() {
        bail!("the recording has no samples");
    }
    let clock = args.profile.clock();
    let engine = args.engine.engine_with(clock.clone())?;
    let mut model = SpeechModel::load(program, &engine)?;
    args.profile.watch(&mut model.methods(), clock);
    let tokenizer = tokenizer::find(program, path, None).ok().map(|text| text.tokenizer);
    let bar = progress::count(args.repetitions as u64);
    let mut measured: Vec<Measured> = Vec::new();
    for repetition in 0..=args.repetitions {
        let mut laps = stages(&mut model, &samples)?;
        if let Some(tokenizer) = &tokenizer {
            laps.push(transcribe(&mut model, tokenizer, &samples)?);
        }
        if repetition == 0 {
            measured = laps.into_iter().map(|Lap { stage, sound, .. }| Measured { stage, sound, took: Vec::new() }).collect();
        } else {
            measured.iter_mut().zip(laps).for_each(|(measured, lap)| measured.took.push(lap.took));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    measured.iter_mut().for_each(|measured| measured.took.sort_by(f64::total_cmp));
    if tokenizer.is_none() {
        eprintln!("the program has no tokenizer: nothing was transcribed");
    }
    print(args, engine.name(), &measured)?;
    args.profile.report(&mut model.methods(), &*engine, None)?;
    Ok(ExitCode::SUCCESS)
}

/// Test audio: tones that start four times a second, from low to high.
fn tones(seconds: usize) -> Vec<f32> {
    let rate = SAMPLE_RATE as f32;
    let sample = |i: usize| {
        let at = i as f32 / rate;
        0.2 * (at * 12.0).sin().powi(2) * (at * (600.0 + 100.0 * at)).sin()
    };
    (0..seconds * SAMPLE_RATE as usize).map(sample).collect()
}

/// Stopwatch of the stages.
struct Watch {
    start: Instant,
    sound: f64,
    laps: Vec<Lap>,
}

impl Watch {
    fn start(samples: usize) -> Watch {
        Watch { start: Instant::now(), sound: samples as f64 / f64::from(SAMPLE_RATE), laps: Vec::new() }
    }

    /// Ends a stage that processed all audio.
    fn lap(&mut self, stage: Stage) {
        self.laps.push(Lap { stage, sound: Some(self.sound), took: self.start.elapsed().as_secs_f64() });
        self.start = Instant::now();
    }

    /// Decodes this number of tokens, one call each.
    fn read(&mut self, count: usize, mut token: impl FnMut() -> Result<()>) -> Result<()> {
        (0..count).try_for_each(|_| token())?;
        self.tokens(count);
        Ok(())
    }

    /// Ends a stage that decoded single tokens.
    fn tokens(&mut self, count: usize) {
        let took = self.start.elapsed().as_secs_f64() / count.max(1) as f64;
        self.laps.push(Lap { stage: Stage::Decoder, sound: None, took });
        self.start = Instant::now();
    }
}

/// Runs each stage once on the first window.
fn stages(model: &mut SpeechModel, samples: &[f32]) -> Result<Vec<Lap>> {
    let window = |most: usize| &samples[..samples.len().min(most)];
    let mut logits = Vec::new();
    Ok(match model {
        SpeechModel::Whisper(model) => {
            let heard = window(model.window());
            let mut watch = Watch::start(heard.len());
            let features = model.features(heard)?;
            watch.lap(Stage::Features);
            model.encode(features)?;
            watch.lap(Stage::Encoder);
            watch.read(TOKENS.min(model.context()), || Ok(model.step(&[TOKEN], &mut logits)?))?;
            watch.laps
        }
        SpeechModel::Moonshine(model) => {
            let heard = window(model.window());
            let mut watch = Watch::start(heard.len());
            model.encode(heard)?;
            watch.lap(Stage::Encoder);
            watch.read(TOKENS.min(model.context()), || Ok(model.step(&[TOKEN], &mut logits)?))?;
            watch.laps
        }
        SpeechModel::Parakeet(model) => {
            let heard = window(model.positions() * model.step_samples());
            let mut watch = Watch::start(heard.len());
            let features = model.features(heard)?;
            watch.lap(Stage::Features);
            let [_, made] = model.encode(features)?;
            watch.lap(Stage::Encoder);
            model.decode(&made, &mut |_, _| {})?;
            watch.lap(Stage::Decoder);
            watch.laps
        }
        SpeechModel::Voxtral(model) => {
            let heard = window(model.window());
            let mut watch = Watch::start(heard.len());
            let features = model.features(heard)?;
            watch.lap(Stage::Features);
            let rows = model.encode(features)?;
            watch.lap(Stage::Encoder);
            model.begin([&[TOKEN], &[TOKEN]], &rows, &mut logits)?;
            watch.lap(Stage::Prompt);
            watch.read(TOKENS.min(model.context() - model.position()), || Ok(model.step(TOKEN, &mut logits)?))?;
            watch.laps
        }
        SpeechModel::VoxtralRealtime(model) => {
            let heard = window(model.longest());
            model.restart();
            let mut watch = Watch::start(heard.len());
            model.push(heard);
            watch.lap(Stage::Features);
            model.listen()?;
            watch.lap(Stage::Encoder);
            let (prompt, mut count) = (vec![TOKEN; model.prompt_len()], 0);
            while model.next_token(&prompt)?.is_some() {
                count += 1;
            }
            watch.tokens(count);
            watch.laps
        }
    })
}

/// Transcribes the whole recording greedily.
fn transcribe(model: &mut SpeechModel, tokenizer: &Tokenizer, samples: &[f32]) -> Result<Lap> {
    let mut watch = Watch::start(samples.len());
    let settings = Settings { temperatures: vec![0.0], ..Settings::default() };
    let mut transcriber = Transcriber::new(model, tokenizer, settings)?;
    transcriber.push(samples);
    transcriber.finish();
    while transcriber.step()? != Progress::Finished {}
    watch.lap(Stage::Transcribe);
    Ok(watch.laps[0])
}

fn print(args: &Args, engine: &str, rows: &[Measured]) -> Result<()> {
    let threads = args.engine.thread_count();
    let milliseconds = |took: Option<f64>| took.map(|took| took * 1e3);
    let factor = |row: &Measured| median(&row.took).zip(row.sound).map(|(took, sound)| took / sound);
    match args.format() {
        Format::Json => {
            let row = |row: &Measured| {
                json!({
                    "test": row.stage.name(),
                    "seconds": row.sound,
                    "ms_median": milliseconds(median(&row.took)),
                    "ms_min": milliseconds(row.took.first().copied()),
                    "ms_max": milliseconds(row.took.last().copied()),
                    "real_time_factor": factor(row),
                    "engine": engine,
                    "threads": threads,
                })
            };
            return files::print_json(&rows.iter().map(row).collect::<Json>());
        }
        Format::Md => {
            files::print_line("| engine | threads | test | of | ms, median | min | max | real-time factor |")?;
            files::print_line("|---|---:|---|---:|---:|---:|---:|---:|")?;
        }
        Format::Csv => files::print_line("engine,threads,test,of,ms_median,ms_min,ms_max,real_time_factor")?,
    }
    for row in rows {
        let of = row.sound.map_or_else(|| "a token".into(), |seconds| format!("{seconds:.1} s"));
        let times = [median(&row.took), row.took.first().copied(), row.took.last().copied()];
        let numbers = times.map(|took| format!("{:.2}", milliseconds(took).unwrap_or_default()));
        let factor = factor(row).map(|factor| format!("{factor:.4}")).unwrap_or_default();
        let cells = [engine.to_owned(), threads.to_string(), row.stage.name().to_owned(), of].into_iter().chain(numbers);
        let cells: Vec<String> = cells.chain([factor]).collect();
        let is_csv = args.format() == Format::Csv;
        files::print_line(if is_csv { cells.join(",") } else { format!("| {} |", cells.join(" | ")) })?;
    }
    Ok(())
}
