//! Fill-in-the-middle prompts and their control tokens.

use flambeau::text::{self, Tokenizer};

/// Control tokens of a model family: before the prefix, the suffix and the middle.
struct Family {
    prefix: &'static str,
    suffix: &'static str,
    /// `None` for Codestral, where the prefix comes last.
    middle: Option<&'static str>,
}

const FAMILIES: [Family; 6] = [
    // Qwen2.5-Coder, CodeGemma, Granite 4.
    Family { prefix: "<|fim_prefix|>", suffix: "<|fim_suffix|>", middle: Some("<|fim_middle|>") },
    // StarCoder, Granite 3.
    Family { prefix: "<fim_prefix>", suffix: "<fim_suffix>", middle: Some("<fim_middle>") },
    // SantaCoder.
    Family { prefix: "<fim-prefix>", suffix: "<fim-suffix>", middle: Some("<fim-middle>") },
    // DeepSeek-Coder.
    Family { prefix: "<｜fim▁begin｜>", suffix: "<｜fim▁hole｜>", middle: Some("<｜fim▁end｜>") },
    // GLM 4.
    Family { prefix: "<|code_prefix|>", suffix: "<|code_suffix|>", middle: Some("<|code_middle|>") },
    // Codestral.
    Family { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: None },
];

/// Tokens before a repository name.
const REPOSITORIES: [&str; 3] = ["<|repo_name|>", "<reponame>", "<repo_name>"];
/// Tokens before a file name.
const FILES: [&str; 4] = ["<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>"];
/// Additional tokens that end the middle.
const PADDING: [&str; 3] = ["<|fim_pad|>", "<fim_pad>", "<fim-pad>"];

/// A model's fill-in-the-middle tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Infill {
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
    repository: Option<u32>,
    file: Option<u32>,
    /// Tokens that end the middle, in addition to the model's end tokens.
    pub(crate) ends: Vec<u32>,
}

/// A prefix, a suffix and further files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) before: String,
    pub(crate) after: String,
    /// Names and contents of other files.
    pub(crate) files: Vec<(String, String)>,
    /// Start of the middle, if known.
    pub(crate) begun: String,
}

impl Gap {
    /// Creates a gap between two texts.
    pub(crate) fn new(before: String, after: String) -> Gap {
        Gap { before, after, ..Gap::default() }
    }

    /// Total length of all texts in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let files = self.files.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
        self.before.len() + self.after.len() + self.begun.len() + files
    }
}

impl Infill {
    /// Looks up the tokens; `None` if the model does not fill gaps.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Option<Infill> {
        let id = |text: &str| tokenizer.token_to_id(text);
        let first = |texts: &[&str]| texts.iter().find_map(|text| id(text));
        let tokens = |family: &Family| {
            let middle = family.middle.map(id);
            Some((id(family.prefix)?, id(family.suffix)?, middle.map_or(Some(None), |middle| middle.map(Some))?))
        };
        let (prefix, suffix, middle) = FAMILIES.iter().find_map(tokens)?;
        let (repository, file) = (first(&REPOSITORIES), first(&FILES));
        let ends = [repository, file, first(&PADDING)].into_iter().flatten().collect();
        Some(Infill { prefix, suffix, middle, repository, file, ends })
    }

    /// Builds the tokens of the prompt.
    ///
    /// # Errors
    /// Fails if the tokenizer cannot encode a text.
    pub(crate) fn prompt(&self, tokenizer: &Tokenizer, gap: &Gap) -> Result<Vec<u32>, text::Error> {
        let mut ids = tokenizer.encode_prompt("")?;
        let add = |ids: &mut Vec<u32>, text: &str| tokenizer.encode_plain(text).map(|more| ids.extend(more));
        if let (Some(repository), Some(_), false) = (self.repository, self.file, gap.files.is_empty()) {
            ids.push(repository);
            add(&mut ids, "project\n")?;
        }
        for (name, text) in &gap.files {
            match self.file {
                Some(file) => {
                    ids.push(file);
                    add(&mut ids, &format!("{name}\n{text}\n"))?;
                }
                None => add(&mut ids, &format!("{text}\n\n"))?,
            }
        }
        if let (Some(file), false) = (self.file, gap.files.is_empty()) {
            ids.push(file);
            add(&mut ids, "filename\n")?;
        }
        let parts = [(self.prefix, &gap.before), (self.suffix, &gap.after)];
        let parts = if self.middle.is_some() { parts } else { [parts[1], parts[0]] };
        for (token, text) in parts {
            ids.push(token);
            add(&mut ids, text)?;
        }
        ids.extend(self.middle);
        add(&mut ids, &gap.begun)?;
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    /// A test tokenizer with words and these control tokens.
    fn tokenizer(control: &[&str]) -> Tokenizer {
        let words = [&["<unk>"], control, &["a", "b", "m", "x", "filename", "project"]].concat();
        let vocabulary: serde_json::Map<String, Json> =
            words.iter().zip(0u32..).map(|(word, id)| ((*word).to_owned(), id.into())).collect();
        let token = |(word, id): (&&str, u32)| json!({ "id": id, "content": word, "special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false });
        let added: Vec<Json> = control.iter().zip(1u32..).map(token).collect();
        let json = json!({
            "version": "1.0", "added_tokens": added, "pre_tokenizer": { "type": "Whitespace" },
            "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>" },
        });
        Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
    }

    fn written(control: &[&str], gap: &Gap) -> String {
        let tokenizer = tokenizer(control);
        let infill = Infill::of(&tokenizer).unwrap();
        let ids = infill.prompt(&tokenizer, gap).unwrap();
        ids.iter().map(|&id| tokenizer.id_to_token(id).unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn gaps_are_written_as_each_family_wants() {
        let gap = Gap { begun: "m".into(), ..Gap::new("a".into(), "b".into()) };
        let qwen = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
        assert_eq!(written(&qwen, &gap), "<|fim_prefix|> a <|fim_suffix|> b <|fim_middle|> m");
        assert_eq!(written(&["[PREFIX]", "[SUFFIX]"], &gap), "[SUFFIX] b [PREFIX] a m");
        assert_eq!(Infill::of(&tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>"])), None);
        let smuggled = Gap::new("<|fim_middle|>".into(), String::new());
        assert_eq!(written(&qwen, &smuggled).matches("<|fim_middle|>").count(), 1, "text stays text");
    }

    #[test]
    fn other_files_come_first() {
        let gap = Gap { files: vec![("a".into(), "x".into())], ..Gap::new("a".into(), "b".into()) };
        let all = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"];
        let expected =
            "<|repo_name|> project <|file_sep|> a x <|file_sep|> filename <|fim_prefix|> a <|fim_suffix|> b <|fim_middle|>";
        assert_eq!(written(&all, &gap), expected);
        assert_eq!(Infill::of(&tokenizer(&all)).unwrap().ends, [4, 5, 6]);
        assert_eq!(written(&all[..3], &gap), "x <|fim_prefix|> a <|fim_suffix|> b <|fim_middle|>");
    }
}
