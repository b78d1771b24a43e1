//! Every program of the conformance folders on an installed MLX, if both are there.

mod changed;
#[path = "../support/mod.rs"]
mod installed;
mod kernels;
mod traces;

use flambeau_testcases::check;

#[test]
fn operators_agree_with_pytorch() {
    let Some(engine) = installed::engine() else { return };
    // Random samples have nothing to compare with.
    check(&engine, &installed::case_folders("ops"), 708, &["sample_"]);
}

#[test]
fn models_agree_with_pytorch() {
    let Some(engine) = installed::engine() else { return };
    // These call kernels outside of their delegates, which is not the engine's work.
    check(&engine, &installed::case_folders("models"), 25, &["bert_mask", "electra", "roberta"]);
}
