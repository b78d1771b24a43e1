//! Flags of quantization.

use anyhow::Result;
use flambeau::compile::{Options, Scheme, SchemeName};

use crate::{failure::usage, recipe};

/// How float weights are quantized.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct QuantizeArgs {
    /// Quantize weights of linear layers: 2w, 3w, 4w, 5w, 6w, 8w, nvfp4, mxfp4, mxfp8 or none
    #[arg(long, value_name = "SCHEME")]
    qlinear: Option<String>,

    /// Quantize embedding tables, with the same schemes
    #[arg(long, value_name = "SCHEME")]
    qembedding: Option<String>,

    /// Quantization group size, weights that share a scale: 32, 64 or 128
    #[arg(long, value_name = "N", alias = "qlinear-group-size")]
    group_size: Option<u32>,

    /// Quantize by a recipe: default, sensitive, speech, or a TOML file
    #[arg(long, value_name = "NAME|FILE.toml", conflicts_with_all = ["qlinear", "qembedding", "group_size"])]
    recipe: Option<String>,
}

impl QuantizeArgs {
    pub(crate) fn options(&self) -> Result<Options> {
        if let Some(recipe) = &self.recipe {
            return recipe::options(recipe);
        }
        let scheme = |name: &Option<String>| {
            let name = name.as_deref().filter(|&name| name != "none");
            name.map(|name| Scheme::from_name(name, self.group_size)).transpose().map_err(|e| usage(e.to_string()))
        };
        let options = Options { linear: scheme(&self.qlinear)?, embedding: scheme(&self.qembedding)?, ..Options::default() };
        if self.group_size.is_some() && options.linear.is_none() && options.embedding.is_none() {
            return Err(usage("--group-size needs --qlinear or --qembedding"));
        }
        Ok(options)
    }

    /// Name or file of the recipe.
    pub(crate) fn recipe(&self) -> Option<&str> {
        self.recipe.as_deref()
    }

    /// The quantization of a named recipe.
    pub(crate) fn of_recipe(name: &str) -> QuantizeArgs {
        QuantizeArgs { qlinear: None, qembedding: None, group_size: None, recipe: Some(name.into()) }
    }

    /// Floats as they are.
    pub(crate) fn floats() -> QuantizeArgs {
        QuantizeArgs { qlinear: Some("none".into()), qembedding: None, group_size: None, recipe: None }
    }

    /// A flag that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let flags = [
            (self.qlinear.is_some(), "--qlinear"),
            (self.qembedding.is_some(), "--qembedding"),
            (self.group_size.is_some(), "--group-size"),
            (self.recipe.is_some(), "--recipe"),
        ];
        flags.into_iter().find_map(|(given, flag)| given.then_some(flag))
    }
}
