//! Selects the files of a repository that form one model.

use anyhow::{Result, anyhow, bail};
use flambeau::zoo::{Checkpoint, gguf::Gguf};

use super::name::GGUF;
use crate::failure::hint;

/// Quantizations to select without a tag, in order of preference.
const PREFERRED: [&str; 2] = ["Q4_K_M", "UD-Q4_K_XL"];

/// Prefix of Unsloth's mixed quantizations.
const MIXED: &str = "ud";

/// The description of a model, which states its licence.
const README: &str = "README.md";

/// The weights of a CTranslate2 folder.
const CTRANSLATE2: &str = "model.bin";

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Paths in the repository, sorted.
    pub(crate) files: Vec<String>,
    /// The model's file, or the first part of a split one; `None` for a folder.
    pub(crate) single: Option<String>,
}

impl Selection {
    /// The last part of a file's name, which identifies the quantization.
    pub(crate) fn label(&self) -> Option<String> {
        Some(label(&stem(self.single.as_deref()?)))
    }
}

/// Selects the model with this tag, or the default one without a tag.
///
/// # Errors
/// Fails if no file matches the tag.
pub(crate) fn select(names: &[String], tag: Option<&str>) -> Result<Selection> {
    let folder = standard(names);
    if tag.is_none() && folder.iter().any(|name| is_weights(name)) {
        return Ok(Selection { files: folder, single: None });
    }
    let variants = variants(names);
    let chosen = match tag {
        Some(tag) => tagged(&variants, tag),
        None => PREFERRED.iter().find_map(|tag| tagged(&variants, tag)).or(variants.first()),
    };
    match (chosen, tag) {
        (Some(variant), _) => Ok(Selection { files: variant.files.clone(), single: variant.files.first().cloned() }),
        (None, None) => Ok(Selection { files: folder, single: None }),
        (None, Some(tag)) if variants.is_empty() => {
            let missing = anyhow!("there are no GGUF files, so `:{tag}` names none");
            Err(hint(missing, format!("leave out `:{tag}`; --qlinear chooses the bits of a model of floats")))
        }
        (None, Some(tag)) => {
            let labels: Vec<String> = variants.iter().map(|variant| label(&variant.stem)).collect();
            bail!("no GGUF file is `{tag}`; there are {}", labels.join(", "))
        }
    }
}

/// All models of a repository: its folder if it has weights, and each model file.
pub(crate) fn all(names: &[String]) -> Vec<Selection> {
    let folder = Some(standard(names)).filter(|files| files.iter().any(|name| is_weights(name)));
    let folder = folder.map(|files| Selection { files, single: None });
    let single = |variant: Variant| Selection { single: variant.files.first().cloned(), files: variant.files };
    folder.into_iter().chain(variants(names).into_iter().map(single)).collect()
}

/// Whether a file of a folder holds weights.
fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors") || is_binary(name)
}

/// Whether a file holds weights in a form older than safetensors.
fn is_binary(name: &str) -> bool {
    name == CTRANSLATE2 || Checkpoint::is_pickled(name)
}

/// Whether a model needs this file to run: known files at the top level, and module files of
/// sentence-transformers.
fn is_standard(name: &str) -> bool {
    if Checkpoint::is_module_file(name) {
        return true;
    }
    let kept = [".json", ".safetensors", ".jinja", "tokenizer.model", "merges.txt", "vocab.txt"];
    let is_kept = is_binary(name) || kept.iter().any(|end| name.ends_with(end));
    !name.contains('/') && !name.starts_with('.') && is_kept
}

/// The files that a folder's model needs, without duplicate weights in other forms, and its
/// description.
fn standard(names: &[String]) -> Vec<String> {
    let is_twice = names.iter().any(|name| name.starts_with("model") && name.ends_with(".safetensors"));
    let kept = |name: &&String| is_standard(name) && !(is_twice && (name.starts_with("consolidated") || is_binary(name)));
    let mut files: Vec<String> = names.iter().filter(kept).cloned().collect();
    if files.iter().any(|name| is_weights(name)) {
        files.extend(names.iter().filter(|name| *name == README).cloned());
    }
    files.sort();
    files
}

/// A model in one file or in several parts.
struct Variant {
    /// Path without extension and part number, in lower case.
    stem: String,
    files: Vec<String>,
}

/// Single-file models in name order. Incomplete models and companion files are skipped.
fn variants(names: &[String]) -> Vec<Variant> {
    let mut list = Vec::new();
    for name in names {
        let (folder, file) = split(name);
        let is_companion = ["mmproj", "imatrix"].iter().any(|kind| file.to_lowercase().contains(kind));
        let is_ggml = file.starts_with("ggml-") && file.ends_with(".bin");
        let is_model = file.ends_with(".gguf") || file.ends_with(".nemo") || is_ggml;
        if is_companion || !is_model || file.starts_with('.') {
            continue;
        }
        let parts: Vec<String> = match Gguf::part_names(file) {
            None => vec![name.clone()],
            Some(parts) if parts.first().is_some_and(|first| first == file) => {
                parts.into_iter().map(|part| format!("{folder}{part}")).collect()
            }
            Some(_) => continue,
        };
        if parts.iter().all(|part| names.contains(part)) {
            list.push(Variant { stem: stem(name), files: parts });
        }
    }
    list.sort_by(|a, b| a.files.cmp(&b.files));
    list
}

/// A path's folder, with its slash, and file name.
fn split(name: &str) -> (&str, &str) {
    name.split_at(name.rfind('/').map_or(0, |at| at + 1))
}

/// A path without extension and part number, in lower case.
fn stem(name: &str) -> String {
    let (_, file) = split(name);
    let name = match Gguf::part_names(file).and_then(|_| Some(name.rsplit_once("-of-")?.0.rsplit_once('-')?.0)) {
        Some(stem) => stem,
        None => name.rsplit_once('.').map_or(name, |(stem, _)| stem),
    };
    name.to_lowercase()
}

/// The variant that matches a tag best.
fn tagged<'a>(variants: &'a [Variant], tag: &str) -> Option<&'a Variant> {
    let tag = tag.to_lowercase();
    // The name of a file, or of the first part of a split one.
    let tag = if tag.ends_with(GGUF) { stem(&tag) } else { tag };
    let ranked = variants.iter().filter_map(|variant| Some((rank(&variant.stem, &tag)?, variant)));
    ranked.min_by_key(|(rank, variant)| (*rank, variant.stem.len())).map(|(_, variant)| variant)
}

/// Rank of a tag's match with a stem, 0 best: whole name, suffix, suffix without Unsloth's prefix,
/// folder name, or suffix after an underscore.
fn rank(stem: &str, tag: &str) -> Option<u8> {
    let (folder, file) = split(stem);
    let folder = folder.trim_end_matches('/');
    let ends = |text: &str, separators: &[char]| text.strip_suffix(tag).is_some_and(|rest| rest.ends_with(separators));
    let is_mixed = |text: &str| text.strip_suffix(tag).is_some_and(|rest| rest.trim_end_matches(['-', '.']).ends_with(MIXED));
    match () {
        () if file == tag => Some(0),
        () if ends(file, &['-', '.']) && !is_mixed(file) => Some(1),
        () if ends(file, &['-', '.']) => Some(2),
        () if folder == tag || ends(folder, &['-', '.', '/']) => Some(3),
        () if ends(file, &['_']) => Some(4),
        () => None,
    }
}

/// The last part of a stem, which identifies the quantization, in upper case.
fn label(stem: &str) -> String {
    let (_, file) = split(stem);
    let Some(at) = file.rfind(['-', '.']) else { return file.to_uppercase() };
    let before = &file[..at];
    let start = if before == MIXED || before.ends_with("-ud") || before.ends_with(".ud") { at - MIXED.len() } else { at + 1 };
    file[start..].to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn selected(names: &[&str], tag: Option<&str>) -> Vec<String> {
        select(&owned(names), tag).unwrap().files
    }

    const REPOSITORY: [&str; 11] = [
        "config.json",
        "mmproj-F16.gguf",
        "imatrix_unsloth.gguf",
        "BF16/M-BF16-00001-of-00002.gguf",
        "BF16/M-BF16-00002-of-00002.gguf",
        "M-Q3_K_M.gguf",
        "M-Q8_0.gguf",
        "M-UD-Q4_K_XL.gguf",
        "M-UD-Q8_0.gguf",
        "half/model.gguf",
        "M-Q5_0-00001-of-00002.gguf",
    ];

    #[test]
    fn tags_name_files() {
        for (tag, expected) in [
            ("q8_0", &["M-Q8_0.gguf"][..]),
            ("UD-Q8_0", &["M-UD-Q8_0.gguf"]),
            ("Q4_K_XL", &["M-UD-Q4_K_XL.gguf"]),
            ("bf16", &["BF16/M-BF16-00001-of-00002.gguf", "BF16/M-BF16-00002-of-00002.gguf"]),
            ("Half", &["half/model.gguf"]),
            ("M-Q3_K_M", &["M-Q3_K_M.gguf"]),
            ("M-Q3_K_M.gguf", &["M-Q3_K_M.gguf"]),
            ("M-BF16-00001-of-00002.gguf", &["BF16/M-BF16-00001-of-00002.gguf", "BF16/M-BF16-00002-of-00002.gguf"]),
        ] {
            assert_eq!(selected(&REPOSITORY, Some(tag)), expected, "{tag}");
        }
        // One lacks a part, one is an image encoder, and one is the end of a quantization's name.
        for tag in ["Q5_0", "F16", "0"] {
            let error = select(&owned(&REPOSITORY), Some(tag)).map(|found| found.files).err();
            if tag == "0" {
                assert_eq!(selected(&REPOSITORY, Some(tag)), ["M-Q8_0.gguf"]);
            } else {
                assert!(error.unwrap().to_string().contains("UD-Q4_K_XL"), "{tag}");
            }
        }
    }

    #[test]
    fn a_name_without_a_tag_means_the_usual_quantization() {
        assert_eq!(selected(&REPOSITORY, None), ["M-UD-Q4_K_XL.gguf"]);
        assert_eq!(selected(&["m.Q2_K.gguf", "m.q4_k_m.gguf", "m.UD-Q4_K_XL.gguf"], None), ["m.q4_k_m.gguf"]);
        assert_eq!(selected(&["m_q8_0.gguf", "m_q5_0.gguf"], None), ["m_q5_0.gguf"]);
        assert_eq!(selected(&["config.json", "m.gguf"], None), ["m.gguf"]);
        assert_eq!(selected(&["m.nemo", "README.md"], None), ["m.nemo"]);
        assert_eq!(selected(&["ggml-tiny.bin", "ggml-base.bin"], Some("tiny")), ["ggml-tiny.bin"]);
    }

    #[test]
    fn folders_with_weights_come_before_files() {
        let both = ["config.json", "model.safetensors", "m-Q4_K_M.gguf"];
        assert_eq!(selected(&both, None), ["config.json", "model.safetensors"]);
        let described = [&both[..], &["README.md"]].concat();
        assert_eq!(selected(&described, None), ["README.md", "config.json", "model.safetensors"]);
        assert_eq!(selected(&both, Some("q4_k_m")), ["m-Q4_K_M.gguf"]);
        assert_eq!(all(&owned(&both)).len(), 2);
        assert!(select(&owned(&both[..2]), Some("Q8_0")).unwrap_err().to_string().contains("no GGUF"));
    }

    #[test]
    fn weights_are_not_fetched_twice() {
        let own = ["consolidated.safetensors", "params.json", "tekken.json"];
        assert_eq!(selected(&own, None), own);
        let both = ["config.json", "consolidated.safetensors", "model-00001-of-00002.safetensors", "params.json"];
        assert_eq!(selected(&both, None), [both[0], both[2], both[3]]);
        assert_eq!(selected(&["config.json", "model.bin"], None), ["config.json", "model.bin"]);
        assert_eq!(
            selected(&["config.json", "flax_model.msgpack", "pytorch_model.bin"], None),
            ["config.json", "pytorch_model.bin"]
        );
        assert_eq!(
            selected(&["config.json", "model.safetensors", "pytorch_model.bin"], None),
            ["config.json", "model.safetensors"]
        );
    }

    #[test]
    fn labels_are_the_ends_of_names() {
        for (name, expected) in [("a/M-1.5-Q4_K_M.gguf", "Q4_K_M"), ("M-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"), ("m.gguf", "M")] {
            let selection = Selection { files: Vec::new(), single: Some(name.into()) };
            assert_eq!(selection.label().as_deref(), Some(expected));
        }
    }
}
