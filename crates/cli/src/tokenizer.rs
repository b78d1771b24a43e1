//! Finds the tokenizer of a program.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flambeau::{
    runtime::Program,
    tensor::Bytes,
    text::{ChatTemplate, Error, GenerationDefaults, Tokenizer, TokenizerFiles},
};

use crate::failure::hint;

/// Text-related files, in a model folder and as named data of a program.
pub(crate) const TEXT_FILES: [&str; 5] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja"];

/// Tokenizer files used if `tokenizer.json` is missing.
pub(crate) const MODEL_FILES: [&str; 2] = ["tekken.json", "tokenizer.model"];

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
    let missing = anyhow::anyhow!(
        "there is no tokenizer in {} and no tokenizer.json, tekken.json or tokenizer.model beside it",
        program_path.display()
    );
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
    let names = || TEXT_FILES[..1].iter().chain(&MODEL_FILES);
    let found = || names().map(|name| path.join(name)).find(|file| file.is_file());
    if path.is_dir() { found().unwrap_or_else(|| path.join(TEXT_FILES[0])) } else { path.to_owned() }
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
    let is_other = tokenizer.extension().is_some_and(|e| e == "model") || tokenizer.ends_with(MODEL_FILES[0]);
    let other = if is_other { Some(Tokenizer::from_model_file(&read(tokenizer)?)?) } else { None };
    Ok(Box::new(move |name| {
        let path = folder.join(name);
        match &other {
            Some(other) if name == TEXT_FILES[0] => Ok(Some(other.to_json()?.into())),
            None if name == TEXT_FILES[0] => read(tokenizer).map(Some),
            _ if path.is_file() => read(&path).map(Some),
            Some(other) if name == TEXT_FILES[1] => Ok(Some(other.special().to_config_json(None).into())),
            _ => Ok(None),
        }
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
