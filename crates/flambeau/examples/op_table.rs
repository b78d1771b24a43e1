//! Prints the table of nodes and calls, with what exercises each of them.
//!
//! cargo run --example op_table -p flambeau -- FOLDER... > docs/ops.md
//!
//! A folder holds case folders as `flambeau conformance` takes them. Columns about cases come from compiling each `model.pt2` and
//! from the `model.pte` beside it, which ExecuTorch wrote.

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
