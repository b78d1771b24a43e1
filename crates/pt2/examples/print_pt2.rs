//! Prints the programs of `torch.export` archives: `print_pt2 FILE…`. With several files each goes under a line `== FILE`.

use std::{env, fs, process::ExitCode};

use flambeau_pt2::{Archive, Result, Weight};
use flambeau_tensor::Bytes;

fn print(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let archive = Archive::open(Bytes::from(fs::read(path)?))?;
    for name in archive.program_names() {
        let program = archive.program(&name)?;
        println!("{program}");
        for (name, weight) in program.weights.iter().chain(&program.constants) {
            match weight {
                Weight::Strided(view) => drop(view.tensor().map_err(|e| format!("{name}: {e}"))?),
                Weight::Subclass(s) => {
                    for view in s.tensors.values() {
                        view.tensor().map_err(|e| format!("{name}: {e}"))?;
                    }
                }
                Weight::Foreign { dtype, .. } => eprintln!("{name}: elements of type {dtype} are not read"),
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let paths: Vec<String> = env::args().skip(1).collect();
    let mut code = ExitCode::SUCCESS;
    for path in &paths {
        if paths.len() > 1 {
            println!("== {path}");
        }
        if let Err(e) = print(path) {
            eprintln!("{path}: {e}");
            code = ExitCode::FAILURE;
        }
    }
    code
}
