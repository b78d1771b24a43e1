//! `docs/ops.md` must cover every node and call, and the coverage by conformance cases.

mod survey;

use std::{fs, path::Path, process::ExitCode};

use flambeau::ir::Node;
use flambeau_lower as lower;
use flambeau_testcases::{Outcome, archives, functions};

fn committed() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ops.md")).expect("docs/ops.md reads")
}

fn every_node_and_call_has_its_line() {
    let text = committed();
    let lines = |columns: &str| text.lines().filter(|line| line.starts_with(columns)).count();
    for info in Node::ALL {
        assert_eq!(lines(&survey::node_columns(info)), 1, "{}", info.name);
    }
    for row in lower::rule_rows() {
        assert_eq!(lines(&survey::call_column(row.target)), 1, "{}", row.target);
    }
    for refusal in lower::refusals() {
        assert_eq!(lines(&survey::refusal_columns(refusal)), 1, "{}", refusal.reason);
    }
    let rows = text
        .lines()
        .filter(|line| {
            line.starts_with("| ") && !line.starts_with("| tag") && !line.starts_with("| call") && !line.starts_with("| operators")
        })
        .count();
    assert_eq!(rows, Node::ALL.len() + lower::rule_rows().count() + lower::refusals().len(), "nothing else has a line");
}

fn the_table_tells_what_the_cases_exercise() -> Outcome {
    let mut found = survey::Survey::default();
    for (_, folder) in archives(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        match folder {
            Ok(folder) => found.add_cases(&folder).expect("the cases compile"),
            Err(missing) => return Outcome::Ignored(missing),
        }
    }
    for (line, (found, committed)) in found.to_markdown().lines().zip(committed().lines()).enumerate() {
        assert_eq!(found, committed, "docs/ops.md, line {}: generate it anew", line + 1);
    }
    Outcome::Passed
}

fn main() -> ExitCode {
    flambeau_testcases::run(functions![|| Ok(()); every_node_and_call_has_its_line, the_table_tells_what_the_cases_exercise])
}
