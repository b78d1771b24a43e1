//! Quantization recipes: schemes by weight, from a named recipe or a TOML file.

use std::path::Path;

use anyhow::{Context, Result};
use flambeau::compile::{Fit, Layers, Options, Scheme, SchemeName, WeightRule};
use serde::Deserialize;

use crate::{failure::usage, files};

/// Named recipes.
const NAMED: [(&str, &str); 3] = [
    ("default", include_str!("recipe/default.toml")),
    ("sensitive", include_str!("recipe/sensitive.toml")),
    ("speech", include_str!("recipe/speech.toml")),
];

/// A recipe file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Recipe {
    linear: Option<String>,
    embedding: Option<String>,
    head: Option<String>,
    group_size: Option<u32>,
    fit: Option<FitName>,
    #[serde(default)]
    weights: Vec<Rule>,
}

/// Rules of a recipe for weights by name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Rule {
    name: String,
    scheme: String,
    #[serde(default)]
    layers: LayersName,
    group_size: Option<u32>,
    fit: Option<FitName>,
    #[serde(default)]
    optional: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FitName {
    Range,
    LeastError,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LayersName {
    #[default]
    All,
    Edges,
}

/// Quantization options of a recipe: a [named](NAMED) one, or a file.
pub(crate) fn options(recipe: &str) -> Result<Options> {
    let found = NAMED.iter().find(|(name, _)| *name == recipe);
    let text = match found {
        Some((_, text)) => (*text).to_owned(),
        None if Path::new(recipe).is_file() => {
            String::from_utf8(files::read(Path::new(recipe))?.to_vec()).with_context(|| format!("{recipe} is no text in UTF-8"))?
        }
        None => {
            let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
            return Err(usage(format!("--recipe {recipe}: expected {} or a TOML file", names.join(", "))));
        }
    };
    let parsed: Recipe = toml::from_str(&text).with_context(|| recipe.to_owned())?;
    parsed.options().with_context(|| recipe.to_owned())
}

impl Recipe {
    fn options(&self) -> Result<Options> {
        let scheme = |name: &str| self.scheme(name, None, None);
        let all = |name: &Option<String>| name.as_deref().map(scheme).transpose();
        let rule = |rule: &Rule| -> Result<WeightRule> {
            Ok(WeightRule {
                pattern: rule.name.clone(),
                layers: match rule.layers {
                    LayersName::All => Layers::All,
                    LayersName::Edges => Layers::Edges,
                },
                scheme: self.scheme(&rule.scheme, rule.group_size, rule.fit)?,
                is_optional: rule.optional,
            })
        };
        Ok(Options {
            linear: all(&self.linear)?.flatten(),
            embedding: all(&self.embedding)?.flatten(),
            head: all(&self.head)?,
            rules: self.weights.iter().map(rule).collect::<Result<_>>()?,
            ..Options::default()
        })
    }

    /// A scheme by its name; `none` keeps floats. Missing settings come from the recipe's defaults.
    /// The default group size applies to schemes with a choice of groups.
    fn scheme(&self, name: &str, group_size: Option<u32>, fit: Option<FitName>) -> Result<Option<Scheme>> {
        if name == "none" {
            return Ok(None);
        }
        let group_size = group_size.or(self.group_size.filter(|_| name.ends_with('w')));
        let fit = match fit.or(self.fit) {
            Some(FitName::LeastError) => Fit::LeastError,
            Some(FitName::Range) | None => Fit::Range,
        };
        Ok(Some(Scheme { fit, ..Scheme::from_name(name, group_size)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Options> {
        toml::from_str::<Recipe>(text)?.options()
    }

    #[test]
    fn named_recipes_are_recipes() {
        for name in ["default", "sensitive"] {
            let options = options(name).unwrap();
            assert_eq!(options.linear.map(|s| (s.bits, s.group_size)), Some((4, 64)), "{name}");
            assert_eq!(options.embedding.map(|s| s.bits), Some(8), "{name}");
        }
        let speech = options("speech").unwrap();
        assert_eq!((speech.linear, speech.embedding, speech.head), (None, None, None), "other weights keep floats");
        assert!(speech.rules.iter().all(|rule| rule.is_optional && rule.scheme.is_some_and(|s| (s.bits, s.group_size) == (8, 64))));
        assert!(options("sensitiv").unwrap_err().to_string().contains("default, sensitive, speech or a TOML file"));
    }

    #[test]
    fn rules_take_what_they_do_not_say_from_the_recipe() {
        let text = "group-size = 128\nfit = \"least-error\"\nlinear = \"4w\"\nhead = \"none\"\n[[weights]]\nname = \"a*\"\nscheme = \"6w\"\n\
            [[weights]]\nname = \"b\"\nscheme = \"nvfp4\"\nfit = \"range\"\nlayers = \"edges\"\noptional = true";
        let options = parsed(text).unwrap();
        assert_eq!((options.head, options.embedding), (Some(None), None));
        let [a, b] = &options.rules[..] else { panic!("two rules") };
        assert_eq!(a.scheme.map(|s| (s.bits, s.group_size, s.fit)), Some((6, 128, Fit::LeastError)));
        assert_eq!(b.scheme.map(|s| (s.group_size, s.fit)), Some((16, Fit::Range)));
        assert_eq!((a.layers, b.layers, a.is_optional, b.is_optional), (Layers::All, Layers::Edges, false, true));
    }

    #[test]
    fn what_no_recipe_says_is_refused() {
        for (text, what) in [
            ("lineer = \"4w\"", "lineer"),
            ("linear = \"7w\"", "7w"),
            ("linear = \"4w\"\ngroup-size = 48", "48"),
            ("fit = \"best\"", "best"),
            ("[[weights]]\nname = \"a\"", "scheme"),
            ("[[weights]]\nname = \"a\"\nscheme = \"nvfp4\"\ngroup-size = 64", "groups of 16"),
        ] {
            let error = format!("{:#}", parsed(text).unwrap_err());
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
