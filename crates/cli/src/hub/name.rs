//! Model names on the hub.

use std::fmt;

use anyhow::{Result, anyhow};

use super::known;
use crate::failure::{hint, usage};

/// The default revision.
const MAIN: &str = "main";

/// Ollama's tag for the default quantization.
const LATEST: &str = "latest";

/// End of the names of GGUF files.
pub(super) const GGUF: &str = ".gguf";

/// Advice about names.
const SHORT_NAMES: &str = "`flambeau list --known` prints short names of well-known models";

/// URL prefixes that users copy along with a name.
const SITES: [&str; 3] = ["hf.co/", "huggingface.co/", "hf://"];

/// `ORG/NAME:QUANT@REVISION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelName {
    pub(crate) organisation: String,
    pub(crate) model: String,
    /// Quantization of a GGUF file, as the user wrote it.
    pub(crate) tag: Option<String>,
    pub(crate) revision: String,
}

impl ModelName {
    /// Parses a model name, a short name, or the address of a model's page or file. Names that
    /// could escape the cache's folder are rejected.
    pub(crate) fn parse(text: &str) -> Result<ModelName> {
        let bad = || {
            let refused = usage(format!("`{text}` is no model name; expected ORG/NAME, ORG/NAME:QUANT or ORG/NAME@REVISION"));
            hint(refused, SHORT_NAMES)
        };
        let plain_text = text.strip_prefix("https://").unwrap_or(text);
        let site = SITES.iter().find_map(|site| plain_text.strip_prefix(site));
        let page = site.and_then(of_page);
        let rest = page.as_deref().or(site).unwrap_or(text);
        let rest = known::repository(rest).unwrap_or(rest);
        let (name, revision) = rest.split_once('@').unwrap_or((rest, MAIN));
        let (name, tag) = name.split_once(':').map_or((name, None), |(name, tag)| (name, Some(tag)));
        let (organisation, model) = name.split_once('/').ok_or_else(bad)?;
        let is_plain = [organisation, model].into_iter().chain(tag).chain(revision.split('/')).all(is_plain);
        if !is_plain {
            return Err(bad());
        }
        let tag = tag.filter(|tag| !tag.eq_ignore_ascii_case(LATEST)).map(str::to_owned);
        Ok(ModelName { organisation: organisation.into(), model: model.into(), tag, revision: revision.into() })
    }

    /// Parses a text as a model name if no such file or folder exists.
    pub(crate) fn of_no_file(text: &str) -> Result<ModelName> {
        ModelName::parse(text).map_err(|_| {
            hint(anyhow!("there is no file or folder {text}, and it is no model name, which is ORG/NAME"), SHORT_NAMES)
        })
    }

    /// `ORG/NAME`.
    pub(crate) fn repository(&self) -> String {
        format!("{}/{}", self.organisation, self.model)
    }

    /// Name of its folder in the cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}--{}", self.organisation, self.model)
    }

    /// Parses the name of a folder in the cache.
    pub(super) fn of_folder(folder: &str) -> Option<ModelName> {
        let (organisation, model) = folder.strip_prefix("models--")?.split_once("--")?;
        ModelName::parse(&format!("{organisation}/{model}")).ok()
    }
}

/// The name of the model on a page of a branch (`ORG/NAME/tree/REVISION`) or of a file
/// (`ORG/NAME/blob/REVISION/FILE`). The name of a GGUF file becomes the tag.
fn of_page(address: &str) -> Option<String> {
    let address = address.split(['?', '#']).next()?.trim_end_matches('/');
    let mut parts = address.splitn(5, '/');
    let (organisation, model) = (parts.next()?, parts.next()?);
    let Some(kind) = parts.next() else { return Some(format!("{organisation}/{model}")) };
    if !["tree", "blob", "resolve"].contains(&kind) {
        return None;
    }
    let (revision, file) = (parts.next()?, parts.next().unwrap_or_default());
    let tag = file.rsplit('/').next().filter(|name| name.ends_with(GGUF)).map(|name| format!(":{name}")).unwrap_or_default();
    Some(format!("{organisation}/{model}{tag}@{revision}"))
}

/// Whether a part of a name is valid in paths and URLs.
fn is_plain(part: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !part.is_empty() && !part.starts_with('.') && part.chars().all(safe)
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_tag_and_a_revision() {
        for (text, shown) in [
            ("org/model-1.5", "org/model-1.5"),
            ("org/model-1.5@v2", "org/model-1.5@v2"),
            ("org/m:q4_k_m", "org/m:q4_k_m"),
            ("org/m:Q8_0@refs/pr/1", "org/m:Q8_0@refs/pr/1"),
            ("org/m:latest", "org/m"),
            ("hf.co/org/m:Q8_0", "org/m:Q8_0"),
            ("https://huggingface.co/org/m", "org/m"),
            ("https://huggingface.co/org/m/", "org/m"),
            ("https://huggingface.co/org/m/tree/main", "org/m"),
            ("https://huggingface.co/org/m/tree/v2?not-for-all-audiences=true", "org/m@v2"),
            ("https://huggingface.co/org/m/blob/main/m-Q8_0.gguf", "org/m:m-Q8_0.gguf"),
            ("hf.co/org/m/resolve/v2/BF16/m-BF16-00001-of-00002.gguf?download=true", "org/m:m-BF16-00001-of-00002.gguf@v2"),
            ("https://huggingface.co/org/m/blob/main/config.json", "org/m"),
        ] {
            assert_eq!(ModelName::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn names_cannot_lead_elsewhere() {
        for bad in [
            "model",
            "a/b/c",
            "../x",
            "a/..",
            "a/b@",
            "a/b@../c",
            "a/b?c",
            "/b",
            "a/b:",
            "a/b:..",
            "a/b:c/d",
            "a/b:c:d",
            "hf.co/a/b/c",
            "hf.co/a/b/tree/..",
        ] {
            assert!(ModelName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn folders_of_the_cache_have_names() {
        let name = ModelName::parse("org/a--b:Q8_0").unwrap();
        assert_eq!(name.folder(), "models--org--a--b");
        assert_eq!(ModelName::of_folder(&name.folder()).unwrap().to_string(), "org/a--b");
        assert_eq!(ModelName::of_folder("datasets--org--a"), None);
    }
}
