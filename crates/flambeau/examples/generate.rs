//! Continues a text with a program that carries its tokenizer.
//!
//! `cargo run --release -p flambeau --example generate -- model.pte "Once upon a time"`

use std::{
    env,
    error::Error,
    io::{self, Write},
    sync::atomic::AtomicBool,
    time::Instant,
};

use flambeau::{
    runners::llm::{self, Model, ModelOptions, Request},
    runtime::Program,
    text::Tokenizer,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [path, prompt] = &args[..] else { return Err("expected FILE.pte and PROMPT".into()) };
    let program = Program::open(path)?;
    let tokenizer = Tokenizer::from_json(&program.named("tokenizer.json").ok_or("the program carries no tokenizer")?)?;
    let cpu = flambeau::engines(None, false).get("cpu")?;
    let mut sequence = Model::load(&program, &cpu, &ModelOptions::default())?.sequence()?;
    let request = Request { prompt: tokenizer.encode(prompt, true)?, max_new_tokens: 64, ..Request::default() };
    let (start, cancelled) = (Instant::now(), AtomicBool::new(false));
    let mut show = |piece: &str| {
        print!("{piece}");
        // A closed terminal ends the program at its next write.
        let _ = io::stdout().flush();
    };
    let answer = llm::generate(&mut sequence, &tokenizer, &request, &|| start.elapsed(), &cancelled, &mut show)?;
    println!("\n{} tokens", answer.ids.len());
    Ok(())
}
