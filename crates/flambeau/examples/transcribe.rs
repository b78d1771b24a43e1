//! Transcribes a recording with the times of its segments.
//!
//! `cargo run --release -p flambeau --example transcribe -- whisper.pte talk.mp3`

use std::{env, error::Error, fs::File};

use flambeau::{
    audio::Recording,
    runners::speech::{Progress, SAMPLE_RATE, Settings, SpeechModel, Transcriber},
    runtime::Program,
    text::Tokenizer,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [path, recording] = &args[..] else { return Err("expected FILE.pte and RECORDING".into()) };
    let program = Program::open(path)?;
    let tokenizer = Tokenizer::from_json(&program.named("tokenizer.json").ok_or("the program carries no tokenizer")?)?;
    let cpu = flambeau::engines(None, false).get("cpu")?;
    let mut model = SpeechModel::load(&program, &cpu)?;
    let mut transcriber = Transcriber::new(&mut model, &tokenizer, Settings::default())?;
    transcriber.push(&Recording::from_file(File::open(recording)?, SAMPLE_RATE)?.read_to_end()?);
    transcriber.finish();
    while let Progress::Segments(segments) = transcriber.step()? {
        segments.iter().for_each(|segment| println!("{:7.2} {:7.2} {}", segment.start, segment.end, segment.text.trim()));
    }
    Ok(())
}
