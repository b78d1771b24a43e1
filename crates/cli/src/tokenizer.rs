//! Finds the tokenizer of a program.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flambeau::{
    runtime::Program,
    tensor::Bytes,
    text::{ChatTemplate, Error, GenerationDefaults, Tokenizer, TokenizerFiles, VOCABULARY_FILES, tokenizer_files},
};

use crate::failure::hint;

/// Text-related files, in a model folder and as named data of a program.
pub(crate) const TEXT_FILES: [&str; 5] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja"];

/// Tokenizer files used if `tokenizer.json` is missing.
pub(crate) const MODEL_FILES: [&str; 2] = ["tekken.json", "tokenizer.model"];

/// Vocabularies used if the other files are missing: byte pairs, which `merges.txt` completes, and
/// pieces of words.
pub(crate) const VOCABULARIES: [&str; 2] = [VOCABULARY_FILES[0], VOCABULARY_FILES[2]];

/// The files of a tokenizer, for messages.
pub(crate) const KNOWN_FILES: &str = "tokenizer.json, tekken.json, tokenizer.model, vocab.json with merges.txt, or vocab.txt";

/// A tokenizer with its chat template, if there is one.
pub(crate) struct TextModel {
    pub(crate) tokenizer: Tokenizer,
    /// The template, or the reason why it is unusable. Only conversations need one.
    pub(crate) template: Result<Option<ChatTemplate>, Error>,
    /// The model's recommended sampling settings.
    pub(crate) defaults: Option<GenerationDefaults>,
}

/// Finds the tokenizer: at the given path, inside the program, or in the program's folder.
pub(crate) fn find(program: &Program, program_path: &Path, given: Option<&Path>) -> Result<TextModel> {
    if let Some(path) = given {
        return at(path);
    }
    if program.named(TEXT_FILES[0]).is_some() {
        return build(&|name| Ok(program.named(name))).context("the program's own tokenizer");
    }
    // The folder of a bare file name is the working directory, which is no path of its own.
    let folder = program_path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = tokenizer_file(folder);
    if beside.is_file() {
        return from_folder(&beside).with_context(|| format!("tokenizer {}", beside.display()));
    }
    let missing = anyhow::anyhow!("there is no tokenizer in {} and no {KNOWN_FILES} beside it", program_path.display());
    Err(hint(missing, "give one with --tokenizer FILE_OR_FOLDER"))
}

/// The tokenizer of a file, or of the folder that holds it.
pub(crate) fn at(path: &Path) -> Result<TextModel> {
    from_folder(&tokenizer_file(path)).with_context(|| format!("tokenizer {}", path.display()))
}

/// The files of the tokenizer at a path, by their names in a model folder.
pub(crate) fn files_at(path: &Path) -> Result<Vec<(String, Bytes)>> {
    let file = tokenizer_file(path);
    let read = |name: &&str| Ok(reader(&file)?(name)?.map(|bytes| ((*name).to_owned(), bytes)));
    let files: Vec<_> = TEXT_FILES.iter().map(read).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    at(path)?;
    Ok(files)
}

/// Whether a folder has a tokenizer.
pub(crate) fn is_in(folder: &Path) -> bool {
    tokenizer_file(folder).is_file()
}

fn tokenizer_file(path: &Path) -> PathBuf {
    let found = || file_among(&|name| path.join(name).is_file()).map(|name| path.join(name));
    if path.is_dir() { found().unwrap_or_else(|| path.join(TEXT_FILES[0])) } else { path.to_owned() }
}

/// The file of a folder's tokenizer. `has` tells which files the folder has.
pub(crate) fn file_among(has: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    let is_whole = |name: &&str| *name != VOCABULARIES[0] || has(VOCABULARY_FILES[1]);
    TEXT_FILES[..1].iter().chain(&MODEL_FILES).chain(&VOCABULARIES).copied().filter(|name| has(name)).find(is_whole)
}

/// Converts the tokenizer `name` of a folder, with the contents that `file` gives, to the first two
/// of [`TEXT_FILES`]. `None` for a `tokenizer.json`.
pub(crate) fn converted(name: &str, file: &dyn Fn(&str) -> Result<Option<Bytes>>) -> Result<Option<[Bytes; 2]>> {
    if VOCABULARIES.contains(&name) {
        let read = |name: &&'static str| Ok(file(name)?.map(|bytes| (*name, bytes)));
        let files: Vec<_> = VOCABULARY_FILES.iter().map(read).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        let found = tokenizer_files(&|wanted| files.iter().find(|(name, _)| *name == wanted).map(|(_, bytes)| &**bytes))?;
        return Ok(found.map(|files| [files.tokenizer.into(), files.tokenizer_config.into()]));
    }
    if !name.ends_with(".model") && name != MODEL_FILES[0] {
        return Ok(None);
    }
    let bytes = file(name)?.with_context(|| format!("there is no {name}"))?;
    let tokenizer = Tokenizer::from_model_file(&bytes)?;
    let config = match file(TEXT_FILES[1])? {
        Some(config) => config,
        None => tokenizer.special().to_config_json(None).into(),
    };
    Ok(Some([tokenizer.to_json()?.into(), config]))
}

/// Reads a `tokenizer.json` or another tokenizer format, with its neighbouring files.
fn from_folder(tokenizer: &Path) -> Result<TextModel> {
    build(&*reader(tokenizer)?)
}

/// Reads one of the files of a tokenizer by its name.
type ReadFile<'a> = Box<dyn Fn(&str) -> Result<Option<Bytes>> + 'a>;

/// Reads the files of the folder that holds a tokenizer.
fn reader(tokenizer: &Path) -> Result<ReadFile<'_>> {
    let folder = tokenizer.parent().unwrap_or(Path::new(""));
    let read = move |path: &Path| std::fs::read(path).map(Bytes::from).with_context(|| format!("cannot read {}", path.display()));
    let beside = move |name: &str| {
        let path = folder.join(name);
        if path.is_file() { read(&path).map(Some) } else { Ok(None) }
    };
    let name = tokenizer.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let other = converted(name, &beside)?;
    Ok(Box::new(move |name| match (&other, TEXT_FILES.iter().position(|known| *known == name)) {
        (Some(files), Some(place @ 0..=1)) => Ok(Some(files[place].clone())),
        (None, Some(0)) => read(tokenizer).map(Some),
        _ => beside(name),
    }))
}

fn build(read: &dyn Fn(&str) -> Result<Option<Bytes>>) -> Result<TextModel> {
    let [tokenizer, config, special, generation, template] = TEXT_FILES.map(read);
    let Some(tokenizer) = tokenizer? else { bail!("there is no tokenizer.json") };
    let (config, special, generation, template) = (config?, special?, generation?, template?);
    let files = TokenizerFiles {
        tokenizer: &tokenizer,
        tokenizer_config: config.as_deref(),
        special_tokens_map: special.as_deref(),
        generation_config: generation.as_deref(),
        chat_template: template.as_deref().map(std::str::from_utf8).transpose().context("chat_template.jinja")?,
    };
    let tokenizer = Tokenizer::from_files(&files)?;
    let template = ChatTemplate::from_files(&files, tokenizer.special(), None);
    let defaults = files.generation_config.map(GenerationDefaults::from_json).transpose()?;
    Ok(TextModel { tokenizer, template, defaults })
}
