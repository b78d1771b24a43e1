//! Compiles one archive: `compile_pt2 IN.pt2 OUT.pte [linear scheme] [embedding scheme]`. Prints what became of its calls.

use std::{fs, io::Write, time::Instant};

use flambeau_compile::{Options, Scheme, SchemeName, compile};
use flambeau_cpu::CpuEngine;
use flambeau_pt2::Archive;

fn main() {
    if let Err(error) = run() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, input, output, schemes @ ..] = &args[..] else { return Err("expected IN.pt2 OUT.pte".into()) };
    let scheme = |i: usize| schemes.get(i).map(|s| Scheme::from_name(s, None)).transpose();
    let options = Options { linear: scheme(0)?, embedding: scheme(1)?, ..Options::default() };
    let start = Instant::now();
    let program = Archive::open(fs::read(input)?.into())?.only_program()?;
    let read = start.elapsed();
    let engine = CpuEngine::new(None);
    let compiled = compile(&[("forward", &program)], &options, &engine)?;
    let lowered = start.elapsed();
    let mut file = std::io::BufWriter::new(fs::File::create(output)?);
    let bytes = compiled.write(&mut file)?;
    file.flush()?;
    for method in &compiled.report.methods {
        println!("{}", method.table());
    }
    println!("read {read:?}, lowered {:?}, written {:?}, {bytes} bytes", lowered - read, start.elapsed() - lowered);
    Ok(())
}
