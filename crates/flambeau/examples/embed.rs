//! Prints how similar two texts are to a text encoder.
//!
//! `cargo run --release -p flambeau --example embed -- minilm.pte "a cat" "a kitten"`

use std::{env, error::Error};

use flambeau::{runners::embed::Embedder, runtime::Program, text::Tokenizer};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [path, a, b] = &args[..] else { return Err("expected FILE.pte and two texts".into()) };
    let program = Program::open(path)?;
    let tokenizer = Tokenizer::from_json(&program.named("tokenizer.json").ok_or("the program carries no tokenizer")?)?;
    let cpu = flambeau::engines(None, false).get("cpu")?;
    let texts = [tokenizer.encode(a, true)?, tokenizer.encode(b, true)?];
    let vectors = Embedder::load(&program, &cpu)?.embed(&[&texts[0], &texts[1]])?;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let [a, b] = [&vectors[0], &vectors[1]];
    println!("{:.4}", dot(a, b) / (dot(a, a) * dot(b, b)).sqrt());
    Ok(())
}
