//! Adapters of a checkpoint: merged into its weights, or applied at run time.

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result, anyhow};
use flambeau::{
    runners::llm::{Adapters, Model},
    tensor::Bytes,
    zoo::{Adapter, Checkpoint},
};

use crate::{failure::usage, files};

/// The flags for adapters.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LoraArgs {
    /// Apply a LoRA adapter: a folder of PEFT or mlx-lm, or a GGUF file. SCALE multiplies its
    /// strength, by default 1. NAME names it for --lora-mode run. May be given several times
    #[arg(help_heading = "Export", long = "lora", value_name = "[NAME=]PATH[:SCALE]")]
    adapters: Vec<AdapterArg>,

    /// Mode of the adapters; by default `run` if one has a NAME, else `merge`
    #[arg(help_heading = "Export", long = "lora-mode", value_name = "MODE", requires = "adapters")]
    mode: Option<LoraMode>,
}

/// Mode of adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LoraMode {
    /// Merge them into the weights before quantization. This costs no speed
    Merge,
    /// Keep them separate from the weights, of any type. Requests select adapters and scales
    Run,
}

/// An adapter on the command line.
#[derive(Clone, Debug, PartialEq)]
struct AdapterArg {
    name: Option<String>,
    path: PathBuf,
    strength: f32,
}

impl AdapterArg {
    /// The given name, or the name of the file or folder.
    fn name(&self) -> String {
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let own = || if path.is_dir() { path.file_name() } else { path.file_stem() };
        self.name.clone().unwrap_or_else(|| own().map_or_else(String::new, |name| name.to_string_lossy().into_owned()))
    }
}

impl FromStr for AdapterArg {
    type Err = String;

    fn from_str(text: &str) -> Result<AdapterArg, String> {
        let (name, text) = match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !name.contains(['/', '\\']) => (Some(name.to_owned()), path),
            _ => (None, text),
        };
        let number = text.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        match number {
            Some((path, strength)) if !path.is_empty() && strength.is_finite() => {
                Ok(AdapterArg { name, path: path.into(), strength })
            }
            Some(_) => Err("expected a path, or a path and a finite number".into()),
            None if text.is_empty() => Err("expected a path".into()),
            None => Ok(AdapterArg { name, path: text.into(), strength: 1.0 }),
        }
    }
}

impl LoraArgs {
    pub(crate) fn is_empty(&self) -> bool {
        self.adapters.is_empty()
    }

    /// The adapters' paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.adapters.iter().map(|given| given.path.as_path())
    }

    /// Whether adapters are merged or applied at run time.
    ///
    /// # Errors
    /// Fails if an adapter to merge has a name.
    fn mode(&self) -> Result<LoraMode> {
        let named = self.adapters.iter().find_map(|given| given.name.as_deref());
        match (self.mode, named) {
            (Some(LoraMode::Merge), Some(name)) => {
                Err(usage(format!("--lora {name}=…: merged adapters have no names, and --lora-mode run keeps them apart")))
            }
            (Some(mode), _) => Ok(mode),
            (None, Some(_)) => Ok(LoraMode::Run),
            (None, None) => Ok(LoraMode::Merge),
        }
    }

    /// Merges or attaches the adapters in order.
    ///
    /// # Errors
    /// Fails if an adapter is unreadable or does not fit the checkpoint.
    pub(crate) fn apply(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        let mode = self.mode()?;
        for given in &self.adapters {
            let mut apply = |adapter: Adapter| match mode {
                LoraMode::Merge => checkpoint.merge(&adapter, given.strength),
                LoraMode::Run => checkpoint.attach(&given.name(), &adapter, given.strength),
            };
            let applied = read(&given.path).and_then(|adapter| Ok(apply(adapter)?));
            applied.with_context(|| format!("adapter {}", given.path.display()))?;
        }
        Ok(())
    }

    /// Fingerprint of the adapters' files, for cache keys. Empty without adapters.
    ///
    /// # Errors
    /// Fails if a file is unreadable.
    pub(crate) fn state(&self) -> Result<String> {
        let mode = self.mode()?;
        let mut state = String::new();
        for given in &self.adapters {
            let place = || format!("adapter {}", given.path.display());
            for path in adapter_files(&given.path)?.into_iter().map(|(_, path)| path) {
                let path = path.canonicalize().with_context(place)?;
                let data = fs::metadata(&path).with_context(place)?;
                let time = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
                let name = if mode == LoraMode::Run { format!("{:?}=", given.name()) } else { String::new() };
                state += &format!(" {name}{} {} {} {}", path.display(), data.len(), time.as_nanos(), given.strength);
            }
        }
        Ok(state)
    }
}

/// The adapters with these scales by name, all others left out.
///
/// # Errors
/// A name is unknown.
pub(crate) fn choose(model: &Model, scales: &[(&str, f32)]) -> Result<Adapters> {
    let unknown = || {
        let names: Vec<&str> = model.metadata().adapters.iter().map(|adapter| adapter.name.as_str()).collect();
        match names.is_empty() {
            true => anyhow!("the model has no adapters; --lora NAME=PATH gives a checkpoint some"),
            false => anyhow!("expected names of adapters, which are {}, or none", names.join(", ")),
        }
    };
    model.adapters(scales).ok_or_else(unknown)
}

/// Names and scales in a text such as `calm:0.5 facts`. It is empty for `none`.
pub(crate) fn scales(text: &str) -> Vec<(&str, f32)> {
    let scale = |text: &str| text.parse::<f32>().ok().filter(|scale| scale.is_finite());
    let entry = |text| match str::rsplit_once(text, ':') {
        Some((name, number)) => scale(number).map_or((text, 1.0), |number| (name, number)),
        None => (text, 1.0),
    };
    if text.trim() == "none" { Vec::new() } else { text.split_whitespace().map(entry).collect() }
}

/// Reads a folder or a GGUF file.
pub(crate) fn read(path: &Path) -> Result<Adapter> {
    let read = |(name, path): (String, PathBuf)| Ok((name, files::read(&path)?));
    if path.is_dir() {
        let files: Result<Vec<(String, Bytes)>> = adapter_files(path)?.into_iter().map(read).collect();
        return Ok(Adapter::from_folder(files?)?);
    }
    Ok(Adapter::from_gguf(files::read(path)?)?)
}

/// The file itself, or the JSON and safetensors files of a folder, by name.
fn adapter_files(path: &Path) -> Result<Vec<(String, PathBuf)>> {
    if !path.is_dir() {
        return Ok(vec![(String::new(), path.to_owned())]);
    }
    let mut list = Vec::new();
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let path = entry?.path();
        let is_wanted = path.extension().is_some_and(|extension| extension == "json" || extension == "safetensors");
        if let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| is_wanted) {
            list.push((name.to_owned(), path.clone()));
        }
    }
    list.sort();
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_behind_the_last_colon_is_the_scale() {
        let given = |text: &str| text.parse::<AdapterArg>();
        let want = |path: &str, strength| Ok(AdapterArg { name: None, path: path.into(), strength });
        assert_eq!(given("style"), want("style", 1.0));
        assert_eq!(given("style:0.5"), want("style", 0.5));
        assert_eq!(given(r"C:\style"), want(r"C:\style", 1.0));
        assert_eq!(given(r"C:\style:-1"), want(r"C:\style", -1.0));
        assert!(given(":0.5").is_err());
        assert!(given("style:inf").is_err());
    }

    #[test]
    fn a_name_stands_before_the_first_equals_sign() {
        let given = |text: &str| text.parse::<AdapterArg>();
        let want = |name: &str, path: &str, strength| Ok(AdapterArg { name: Some(name.into()), path: path.into(), strength });
        assert_eq!(given("calm=./style"), want("calm", "./style", 1.0));
        assert_eq!(given("calm=a=b:2"), want("calm", "a=b", 2.0));
        assert_eq!(given("./r=8/style").map(|given| given.name), Ok(None));
        assert!(given("calm=").is_err() && given("calm=:2").is_err());
        assert_eq!(given("some/where/style").map(|given| given.name()), Ok("style".to_owned()));
    }

    #[test]
    fn adapters_in_a_text_have_a_scale_of_one_by_default() {
        assert_eq!(scales("calm:0.5  facts"), [("calm", 0.5), ("facts", 1.0)]);
        assert_eq!(scales("a:b"), [("a:b", 1.0)]);
        assert_eq!(scales(" none "), []);
    }

    #[test]
    fn names_choose_the_mode() {
        let mode = |mode, adapters: &[&str]| {
            let adapters = adapters.iter().map(|text| text.parse().unwrap()).collect();
            LoraArgs { adapters, mode }.mode().map_err(|error| error.to_string())
        };
        assert_eq!(mode(None, &["style"]), Ok(LoraMode::Merge));
        assert_eq!(mode(None, &["style", "calm=style"]), Ok(LoraMode::Run));
        assert_eq!(mode(Some(LoraMode::Run), &["style"]), Ok(LoraMode::Run));
        assert!(mode(Some(LoraMode::Merge), &["calm=style"]).unwrap_err().contains("--lora calm=…: merged adapters have no names"));
    }
}
