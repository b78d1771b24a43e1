//! Recipes of quantization.

use std::{fs, path::Path};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::{flambeau, live::of_case};

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
fn a_text_calibrates_the_codes() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("text.txt"), "the cat sat on the mat the dog ran to the cat ".repeat(12)).unwrap();
    let divergence = |calibration: &str| {
        let flags = ["--qlinear", "2w", "--group-size", "32", "--dtype", "f32", "--all-logits", "--calibration", calibration];
        let done = flambeau(dir.path(), &[&["export", TINY, "-o", "a.pte"], &flags[..]].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert_eq!(done.stderr.contains("calibrated 8 weights with"), calibration != "none", "{}", done.stderr);
        let eval = ["eval", "a.pte", "--against", TINY, "--text", "text.txt", "--window", "32", "--json", "--cache-dir", "cache"];
        let done = flambeau(dir.path(), &eval);
        let told: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        told["against"]["mean_kl_divergence"].as_f64().unwrap()
    };
    let [none, default, own] = ["none", "default", "text.txt"].map(divergence);
    assert!(default < none && own < none, "{none} {default} {own}");
    let done = flambeau(dir.path(), &["export", TINY, "-o", "a.pte", "--qlinear", "4w", "--calibration", "missing.txt"]);
    assert!(done.code == 1 && done.stderr.contains("missing.txt"), "{}", done.stderr);
    fs::write(dir.path().join("empty.txt"), "").unwrap();
    let done = flambeau(
        dir.path(),
        &["export", TINY, "-o", "b.pte", "--qlinear", "2w", "--group-size", "32", "--calibration", "empty.txt"],
    );
    assert!(done.code == 1 && done.stderr.contains("text of the calibration is empty"), "{}", done.stderr);
    assert!(!dir.path().join("b.pte").exists());
}

#[test]
fn language_models_are_calibrated_unless_told_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let export = |model: &str, flags: &[&str]| {
        let done =
            flambeau(dir.path(), &[&["export", model, "-o", "a.pte", "--qlinear", "2w", "--group-size", "32"], flags].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        (fs::read(dir.path().join("a.pte")).unwrap(), done.stderr)
    };
    let [(usual, said), (default, _), (none, silent)] =
        [&[][..], &["--calibration", "default"], &["--calibration", "none"]].map(|flags| export(TINY, flags));
    assert!(usual == default && usual.len() == none.len() && usual != none);
    assert!(said.contains("--calibration none") && said.contains("calibrated 8 weights"), "{said}");
    assert!(!silent.contains("calibrat"), "{silent}");
    // A checkpoint's first use in another command stays quick.
    let chat = ["generate", TINY, "-p", "the cat", "-n", "2", "--qlinear", "2w", "--group-size", "32", "--cache-dir", "cache"];
    let done = flambeau(dir.path(), &chat);
    assert!(done.code == 0 && !done.stderr.contains("calibrat"), "{}", done.stderr);
    fs::create_dir(dir.path().join("mute")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(Path::new(TINY).join(name), dir.path().join("mute").join(name)).unwrap();
    }
    let (mute, said) = export("mute", &[]);
    assert!(said.contains("without calibration: calibration needs the model's tokenizer"), "{said}");
    assert_eq!(mute, export("mute", &["--calibration", "none"]).0);
}

#[test]
fn bits_are_divided_among_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let usual = ["export", TINY, "-o", "a.pte", "--dtype", "f32", "--group-size", "32", "--qembedding", "8w"];
    let export = |flags: &[&str]| flambeau(dir.path(), &[&usual[..], flags].concat());
    let bits = |line: &str| line.split("bits=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    let mut counts = Vec::new();
    for budget in ["4.6", "6.5"] {
        let done = export(&["--bits-per-weight", budget]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let told = done.stderr.lines().find(|line| line.contains(" bits per weight of linear layers: ")).unwrap_or_default();
        let mean: f64 = told.split(' ').next().and_then(|mean| mean.parse().ok()).unwrap_or_default();
        assert!((4.0..=budget.parse().unwrap()).contains(&mean), "{}", done.stderr);
        let listed = flambeau(dir.path(), &["inspect", "a.pte", "--nodes"]).stdout;
        let mut found: Vec<u32> = listed.lines().filter_map(bits).collect();
        found.sort_unstable();
        // Seven linear layers; the embedding table and the head have 8 bits.
        assert!(found.len() == 9 && found[0] < found[6] && found[7..] == [8, 8], "{found:?} {}", done.stderr);
        counts.push(found.iter().sum::<u32>());
    }
    assert!(counts[0] < counts[1], "{counts:?}");
    for (flags, code, what) in [
        (&["--bits-per-weight", "1"][..], 2, "expected 2.5 to 9"),
        (&["--bits-per-weight", "2.5"], 2, "this model needs at least 2.89"),
        (&["--bits-per-weight", "4.5", "--qlinear", "4w"], 2, "cannot be used with"),
        (&["--bits-per-weight", "4.5", "--calibration", "none"], 2, "needs calibration"),
    ] {
        let done = export(flags);
        assert!(done.code == code && done.stderr.contains(what), "{}", done.stderr);
    }
}

#[test]
fn calibration_that_changes_no_weight_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let export = |flags: &[&str]| flambeau(dir.path(), &[&["export", TINY, "-o", "a.pte", "--qlinear", "mxfp4"], flags].concat());
    let done = export(&["--calibration", "default"]);
    assert!(done.code == 1 && done.stderr.contains("can change no weight"), "{}", done.stderr);
    let done = flambeau(
        dir.path(),
        &["export", TINY, "-o", "a.pte", "--qlinear", "4w", "--group-size", "128", "--calibration", "default"],
    );
    assert!(done.code == 1 && done.stderr.contains("no row is a multiple of the group size"), "{}", done.stderr);
    let done = export(&[]);
    assert!(done.code == 0 && !done.stderr.contains("calibrat"), "{}", done.stderr);
}

/// An older importance matrix with one entry.
fn importance(name: &str, squares: &[f32]) -> Vec<u8> {
    let numbers = |list: [usize; 2]| list.map(|n| (n as u32).to_le_bytes()).concat();
    let squares_bytes = squares.iter().flat_map(|square| square.to_le_bytes());
    let head = [numbers([1, name.len()]), name.as_bytes().to_vec(), numbers([1, squares.len()])].concat();
    head.into_iter().chain(squares_bytes).collect()
}

#[test]
fn an_importance_matrix_decides_the_codes_of_its_weights() {
    let dir = tempfile::tempdir().unwrap();
    let squares: Vec<f32> = (0..64).map(|k| if k % 8 == 0 { 100.0 } else { 0.01 }).collect();
    fs::write(dir.path().join("own.dat"), importance("blk.0.ffn_down.weight", &squares)).unwrap();
    fs::write(dir.path().join("other.dat"), importance("blk.7.ffn_down.weight", &squares)).unwrap();
    let export = |flags: &[&str]| flambeau(dir.path(), &[&["export", TINY, "-o", "a.pte", "--qlinear", "4w"], flags].concat());
    let written = |flags: &[&str]| {
        let done = export(flags);
        assert_eq!(done.code, 0, "{}", done.stderr);
        fs::read(dir.path().join("a.pte")).unwrap()
    };
    let [plain, weighted] = [["--calibration", "none"], ["--imatrix", "own.dat"]].map(|flags| written(&flags));
    let changed = plain.iter().zip(&weighted).filter(|(a, b)| a != b).count();
    assert!(plain.len() == weighted.len() && changed > 0 && changed < 32 * 64, "{changed} bytes differ");
    for (file, what) in [("other.dat", "names no weight of this model"), ("missing.dat", "missing.dat")] {
        let done = export(&["--imatrix", file]);
        assert!(done.code == 1 && done.stderr.contains(what), "{}", done.stderr);
    }
    assert_eq!(export(&["--imatrix", "own.dat", "--calibration", "default"]).code, 2);
    let floats = flambeau(dir.path(), &["export", TINY, "-o", "a.pte", "--calibration", "default"]);
    assert!(floats.code == 2 && floats.stderr.contains("need --qlinear, --recipe or --bits-per-weight"), "{}", floats.stderr);
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

/// A folder with the tiny Whisper, whose width and feed-forward width become 64, in groups of 64.
fn wide_whisper(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let of_tiny = |name: &str| fs::read(of_case("whisper", &format!("checkpoint/{name}"))).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&of_tiny("config.json")).unwrap();
    for key in ["d_model", "decoder_ffn_dim", "encoder_ffn_dim"] {
        config[key] = 64.into();
    }
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    for name in ["generation_config.json", "tokenizer.json"] {
        fs::write(folder.join(name), of_tiny(name)).unwrap();
    }
    let bytes = of_tiny("model.safetensors");
    let wide = |shape: &[usize]| shape.iter().map(|&n| if [16, 24].contains(&n) { 64 } else { n }).collect::<Vec<_>>();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = SafeTensors::deserialize(&bytes)
        .unwrap()
        .iter()
        .map(|(name, tensor)| {
            let shape = wide(tensor.shape());
            let values = (0..shape.iter().product()).flat_map(|i: usize| (0.1 * (i as f32).sin()).to_le_bytes());
            (name.to_owned(), shape, values.collect())
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

#[test]
fn the_decoder_of_a_speech_model_has_eight_bits_by_default() {
    let dir = tempfile::tempdir().unwrap();
    wide_whisper(&dir.path().join("whisper"));
    let audio = of_case("whisper", "audio.wav");
    let transcribe = |model: &str, flags: &[&str]| {
        let done = flambeau(dir.path(), &[&["transcribe", "-m", model, &audio, "-q"], flags].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.stderr
    };
    let note = "the decoder's weights in 8 bits (--qlinear none keeps floats)";
    // Also where the program is in the cache already.
    for _ in 0..2 {
        let said = transcribe("whisper", &["--cache-dir", "eight"]);
        assert_eq!(said.matches(note).count(), 1, "{said}");
    }
    let listed = |cache: &str| {
        let program = fs::read_dir(dir.path().join(cache)).unwrap().next().unwrap().unwrap().path();
        flambeau(dir.path(), &["inspect", program.to_str().unwrap(), "--nodes"]).stdout
    };
    let eight = listed("eight");
    for name in ["layers.1.fc1.weight", "layers.0.encoder_attn.v_proj.weight", "embed_tokens.weight"] {
        assert!(eight.contains(&format!("model.decoder.{name}_packed")), "{name}: {eight}");
    }
    assert!(eight.contains("bits=8 ") && !eight.contains("bits=4 "), "{eight}");
    assert!(
        eight.contains("model.encoder.layers.1.fc1.weight") && !eight.contains("encoder.layers.1.fc1.weight_packed"),
        "{eight}"
    );
    let floats = transcribe("whisper", &["--cache-dir", "floats", "--qlinear", "none"]);
    assert!(floats.contains("as asked") && !floats.contains(note) && !listed("floats").contains("_packed"), "{floats}");
    // Parakeet has no decoder of layers.
    let parakeet = of_case("parakeet-ctc", "checkpoint");
    let said = transcribe(&parakeet, &["--cache-dir", "parakeet"]);
    assert!(said.contains("weights as they are") && !said.contains(note), "{said}");
    // An exported program has what its flags say, as for language models.
    let exported = flambeau(dir.path(), &["export", "whisper", "-o", "a.pte", "--recipe", "speech"]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    assert_eq!(flambeau(dir.path(), &["inspect", "a.pte", "--nodes"]).stdout, eight);
}
