//! Perplexity and divergences of a tiny model of sixteen words, whose context holds 64 tokens.

use std::{fs, path::Path};

use serde_json::Value as Json;

use crate::flambeau;

/// The model's folder.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");

fn folder_with_text() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("text.txt"), "the cat sat on the mat the dog ran to the cat ".repeat(12)).unwrap();
    dir
}

fn figures(folder: &Path, args: &[&str]) -> Json {
    let done = flambeau(folder, &[&["eval", "--text", "text.txt", "--json"], args].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn quantized_weights_are_compared_with_floats() {
    let dir = folder_with_text();
    let same = figures(dir.path(), &[TINY, "--qlinear", "none", "--against", TINY, "--window", "32"]);
    let against = &same["against"];
    assert_eq!((against["mean_kl_divergence"].as_f64(), against["same_best_token"].as_f64()), (Some(0.0), Some(1.0)), "{same}");
    assert_eq!(against["perplexity"], same["perplexity"]);
    let four_bits = figures(dir.path(), &[TINY, "--against", TINY, "--window", "32"]);
    let divergence = four_bits["against"]["mean_kl_divergence"].as_f64().unwrap();
    assert!(divergence > 1e-6 && divergence < 1.0, "{four_bits}");
    assert_eq!(four_bits["predictions"].as_u64(), Some(four_bits["windows"].as_u64().unwrap() * 15));
}

#[test]
fn programs_that_give_the_last_logits_only_agree() {
    let dir = folder_with_text();
    for (file, flags) in [("last.pte", &[][..]), ("all.pte", &["--all-logits"][..])] {
        let done = flambeau(dir.path(), &[&["export", TINY, "-o", file, "--dtype", "f32"], flags].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
    }
    let [last, all] = ["last.pte", "all.pte"].map(|file| figures(dir.path(), &[file, "--window", "32", "--windows", "2"]));
    let perplexity = |figures: &Json| figures["perplexity"].as_f64().unwrap();
    assert!((perplexity(&last) / perplexity(&all) - 1.0).abs() < 1e-4, "{last} {all}");
    assert_eq!(last["windows"], 2);
    let told = flambeau(dir.path(), &["eval", "last.pte", "--text", "text.txt", "--window", "32"]);
    assert!(told.stderr.contains("--all-logits") && told.stdout.starts_with("perplexity "), "{} {}", told.stdout, told.stderr);
}

#[test]
fn texts_that_cannot_be_read_or_cut_are_errors() {
    let dir = folder_with_text();
    fs::write(dir.path().join("short.txt"), "the cat").unwrap();
    fs::write(dir.path().join("bytes.txt"), [0xff, 0xfe, 0x00]).unwrap();
    for (args, what) in [
        (&["short.txt"][..], "a window of 512 tokens does not fit"),
        (&["bytes.txt"][..], "is no text in UTF-8"),
        (&["none.txt"][..], "none.txt"),
        (&["text.txt", "--window", "2"][..], "a window of 2 tokens"),
        (&["text.txt", "--window", "100"][..], "context holds 64"),
        (&["text.txt", "--window", "32", "--against", "none.pte"][..], "none.pte"),
    ] {
        let done = flambeau(dir.path(), &[&["eval", TINY, "--text"], args].concat());
        assert!(
            done.code == 1 && done.stderr.contains(what) && done.stdout.is_empty(),
            "{args:?}: {} {}",
            done.stdout,
            done.stderr
        );
    }
}
