//! Every archive of the cases can be parsed, and all its weights can be read.

use std::{fs, path::Path, process::ExitCode};

use flambeau_pt2::{Archive, Weight};
use flambeau_testcases::{all, per_case};

fn check(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let program = Archive::open(fs::read(path)?.into())?.only_program()?;
    for input in &program.signature.inputs {
        let Some(weight) = program.weight_of(input) else { continue };
        match weight {
            Weight::Subclass(s) => s.tensors.values().try_for_each(|v| v.tensor().map(drop))?,
            other => drop(other.tensor()?),
        }
    }
    let calls = program.to_string().matches("= call_function[").count();
    if calls < program.graph.nodes.len() { Err("calls are missing in the text".into()) } else { Ok(()) }
}

fn main() -> ExitCode {
    let tests = per_case(all(Path::new(env!("CARGO_TARGET_TMPDIR"))), |_, folder| {
        check(&folder.join("model.pt2")).map_err(|e| e.to_string())
    });
    flambeau_testcases::run(tests)
}
