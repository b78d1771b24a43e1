//! Turns a Hugging Face folder into a program that carries its tokenizer.
//!
//! `cargo run --release -p flambeau --example export -- FOLDER tiny.pte`

use std::{
    env,
    error::Error,
    fs::{self, File},
};

use flambeau::{
    compile,
    runtime::map_file,
    zoo::{self, Checkpoint, TokenizerSource},
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [folder, output] = &args[..] else { return Err("expected FOLDER and OUT.pte".into()) };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if [".json", ".safetensors"].iter().any(|end| name.ends_with(end)) {
            files.push((name.to_owned(), map_file(&path)?));
        }
    }
    let checkpoint = Checkpoint::from_folder(files)?;
    let model = zoo::build(&checkpoint, &zoo::Options::default())?;
    let cpu = flambeau::engines(None, false).get("cpu")?;
    let mut program = zoo::compile(&model, compile::Options::default(), &*cpu)?;
    if let TokenizerSource::Files(files) = checkpoint.tokenizer() {
        files.iter().for_each(|(name, bytes)| program.attach(name, bytes.clone()));
    }
    program.write(&mut File::create(output)?)?;
    Ok(())
}
