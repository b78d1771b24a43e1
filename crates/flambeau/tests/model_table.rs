//! `docs/models.md` must list every language model family, with the wording of the family table.
#![cfg(feature = "zoo")]

use std::{fs, path::Path};

use flambeau::zoo::families;

#[test]
fn every_family_has_its_row() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let page = fs::read_to_string(page).expect("docs/models.md reads");
    let row = |names: &[&str], what| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        format!("| {} | {what} |", names.join(", "))
    };
    let rows: Vec<String> = families().iter().map(|family| row(family.names, family.what)).collect();
    let found: Vec<&str> = page.lines().skip_while(|line| !line.starts_with("| `model_type`")).skip(2).collect();
    let found = found.into_iter().take_while(|line| line.starts_with("| `"));
    assert!(found.eq(rows.iter()), "replace the rows of the table by these:\n{}", rows.join("\n"));
}
