//! Compiles a program of `torch.export` for ExecuTorch's MLX delegate, with linear layers in 4
//! bits.
//!
//! `cargo run --release -p flambeau --example compile -- model.pt2 model.pte`

use std::{env, error::Error, fs::File};

use flambeau::{
    compile::{self, Options, Scheme, SchemeName},
    pt2::Archive,
    runtime::map_file,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [input, output] = &args[..] else { return Err("expected IN.pt2 and OUT.pte".into()) };
    let exported = Archive::open(map_file(input)?)?.only_program()?;
    let options = Options { linear: Some(Scheme::from_name("4w", Some(32))?), ..Options::default() };
    let cpu = flambeau::engines(None, false).get("cpu")?;
    let compiled = compile::compile(&[("forward", &exported)], &options, &*cpu)?;
    compiled.write(&mut File::create(output)?)?;
    Ok(())
}
