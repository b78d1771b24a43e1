//! Runs case folders and says what came of each: `cases FOLDER [PART OF A NAME]`.

use std::{collections::BTreeMap, path::PathBuf};

use flambeau_cpu::CpuEngine;

#[path = "../tests/support/mod.rs"]
mod support;
use support::{Outcome, run_case};

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let root = PathBuf::from(args.next().unwrap_or_else(|| ".".into()));
    let part = args.next().unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&root)?.filter_map(|e| e.ok().map(|e| e.path())).collect();
    folders.sort();
    let engine = CpuEngine::new(Some(2));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for folder in folders {
        let name = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.contains(&part) {
            continue;
        }
        let start = std::time::Instant::now();
        let outcome = run_case(&engine, &folder);
        let (kind, what) = match &outcome {
            Outcome::Passed => ("passed", ""),
            Outcome::Skipped(what) => ("skipped", what.as_str()),
            Outcome::Failed(what) => ("failed", what.as_str()),
        };
        *counts.entry(kind).or_default() += 1;
        println!("{kind}\t{name}\t{:?}\t{what}", start.elapsed());
    }
    println!("{counts:?}");
    Ok(())
}
