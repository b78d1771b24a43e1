//! Regions of a single-token step on CUDA devices, of freshly exported checkpoints.
//!
//! The table is `regions/table.txt`. The test also writes the table that it found, and its message
//! names the file.
#![cfg(all(feature = "cpu", feature = "mlx", feature = "zoo"))]

mod fresh;

use std::{fmt::Write as _, path::Path};

use flambeau::{ir::Checked, mlx::StepPlan, zoo::Model};

use fresh::{CHUNK, CHUNK_WITH_RINGS, export, families, model, model_with_separate_gates};

const TABLE: &str = include_str!("regions/table.txt");

/// Counts equal texts, in the order of their first appearance.
fn counted(texts: impl Iterator<Item = String>) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    for text in texts {
        match all.iter_mut().find(|(_, known)| *known == text) {
            Some((count, _)) => *count += 1,
            None => all.push((1, text)),
        }
    }
    all
}

/// The regions of a graph by form, and the other nodes by reason.
fn lines(graph: &Checked) -> String {
    let plan = StepPlan::of(graph);
    let mut text = String::new();
    let form = |region: &flambeau::mlx::Region| match &region.apart {
        Some(why) => format!("{} ({why})", region.form),
        None => region.form.clone(),
    };
    for (count, form) in counted(plan.regions.iter().map(form)) {
        let _ = writeln!(text, "  {count} x {form}");
    }
    for (count, why) in counted(plan.single.into_iter().map(|node| node.why)) {
        let _ = writeln!(text, "  {count} nodes one by one: {why}");
    }
    text
}

fn table() -> String {
    let mut text = String::new();
    for (name, config) in families() {
        add(&mut text, name, &model(&config, CHUNK));
        if !config["sliding_window"].is_null() {
            add(&mut text, &format!("{name}, caches as rings"), &model(&config, CHUNK_WITH_RINGS));
        }
        if !config["num_experts"].is_null() {
            add(&mut text, &format!("{name}, separate gates"), &model_with_separate_gates(&config));
        }
    }
    text
}

/// Adds the lines of a model, once for all schemes with the same lines.
fn add(text: &mut String, name: &str, model: &Model) {
    let mut schemes: Vec<(Vec<&str>, String)> = Vec::new();
    for scheme in ["4w", "8w", "bf16"] {
        let found: String = export(model, scheme).graphs().map(lines).collect();
        match schemes.iter_mut().find(|(_, lines)| *lines == found) {
            Some((schemes, _)) => schemes.push(scheme),
            None => schemes.push((vec![scheme], found)),
        }
    }
    for (schemes, lines) in schemes {
        let _ = write!(text, "{name}: {}\n{lines}", schemes.join(", "));
    }
}

#[test]
fn exported_families_run_in_the_regions_of_the_table() {
    let found = table();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regions.txt");
    std::fs::write(&file, &found).unwrap();
    let differing: Vec<String> = found
        .lines()
        .zip(TABLE.lines())
        .filter(|(found, expected)| found != expected)
        .map(|(found, expected)| format!("expected {expected}\n   found {found}"))
        .collect();
    assert!(found == TABLE, "{}\nthe whole table is in {}", differing.join("\n"), file.display());
}
