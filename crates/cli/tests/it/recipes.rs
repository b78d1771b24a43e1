//! Recipes of quantization.

use std::fs;

use crate::flambeau;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../flambeau/examples/data/tiny-llama");

/// The lines in which `inspect` lists the weights of a program, exported by a recipe.
fn exported(flags: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let recipe = "group-size = 32\nlinear = \"4w\"\nhead = \"none\"\n[[weights]]\nname = \"*.v_proj.weight\"\nscheme = \"8w\"\n\
        [[weights]]\nname = \"*.o_proj.weight\"\nscheme = \"none\"";
    fs::write(dir.path().join("recipe.toml"), recipe).unwrap();
    let done = flambeau(dir.path(), &[&["export", TINY, "-o", "a.pte"], flags].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    let listed = flambeau(dir.path(), &["inspect", "a.pte", "--nodes"]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    listed.stdout
}

#[test]
fn weights_are_quantized_as_the_recipe_says() {
    let program = exported(&["--recipe", "recipe.toml"]);
    let bits = |bits: u32| program.matches(&format!("bits={bits} ")).count();
    // Queries, keys, and the three of the gated layer; values.
    assert_eq!((bits(4), bits(8)), (5, 1), "{program}");
    assert!(program.contains("self_attn.o_proj.weight") && !program.contains("o_proj.weight_packed"), "{program}");
    assert_eq!(
        exported(&["--recipe", "default", "--dtype", "f32"]),
        exported(&["--qlinear", "4w", "--qembedding", "8w", "--dtype", "f32"])
    );
}

#[test]
fn recipes_that_say_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let rule = |name: &str| format!("[[weights]]\nname = \"{name}\"\nscheme = \"8w\"");
    for (text, what) in [
        ("linear = \"4w\"\nlinaer = \"4w\"".to_owned(), "linaer"),
        (rule("*.vproj.weight"), "no weight is called `*.vproj.weight`"),
        ("linear = 4".to_owned(), "recipe.toml"),
    ] {
        fs::write(dir.path().join("recipe.toml"), &text).unwrap();
        let done = flambeau(dir.path(), &["export", TINY, "-o", "a.pte", "--recipe", "recipe.toml"]);
        assert!(done.code == 1 && done.stderr.contains(what), "{text}: {}", done.stderr);
    }
    let usage = [&["--recipe", "unheard-of"][..], &["--recipe", "default", "--qlinear", "4w"]];
    for flags in usage {
        let done = flambeau(dir.path(), &[&["export", TINY, "-o", "a.pte"], flags].concat());
        assert_eq!(done.code, 2, "{}", done.stderr);
    }
}
