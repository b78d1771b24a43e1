//! Prints the table of nodes and calls, with their coverage by cases.
//!
//! cargo run --example op_table -p flambeau -- FOLDER... > docs/ops.md
//!
//! A folder contains case folders, as for `flambeau conformance`. The columns about cases come from
//! compiling each `model.pt2`, and from ExecuTorch's `model.pte` next to it.

#[path = "../tests/op_table/survey.rs"]
mod survey;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut survey = survey::Survey::default();
    for folder in std::env::args_os().skip(1) {
        survey.add_cases(folder.as_ref())?;
    }
    print!("{}", survey.to_markdown());
    Ok(())
}
