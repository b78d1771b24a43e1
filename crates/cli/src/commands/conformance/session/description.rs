//! `session.json`: the calls of a session, their expected results, and the source of the program.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context, Result, bail};
use flambeau::{pt2::ScalarType, tensor::DType};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value as Json;

use crate::{files, kv_cache::HostCache};

/// Ignored fields: the origin of a session, and results of other programs.
const SESSION_REMARKS: [&str; 19] = [
    "atol",
    "bf16",
    "block_size",
    "case",
    "chain",
    "ci_ids",
    "config",
    "eager_max_abs_diff",
    "eager_note",
    "family",
    "flags",
    "hf_max_abs_diff",
    "mask_token_id",
    "model_class",
    "note",
    "params",
    "rms_tol_over_std",
    "source",
    "taps",
];
const CALL_REMARKS: [&str; 2] = ["eager_error", "note"];
const OUTPUT_REMARKS: [&str; 9] =
    ["abs_max", "bf16_vs_f32", "eager_equal", "eager_max_abs_diff", "eager_vs_f32", "logit_err", "margin", "same_in_f32", "std"];

type Remarks = BTreeMap<String, Json>;

/// A session on one program.
#[derive(Debug, Deserialize)]
pub(super) struct Session {
    kind: String,
    /// The exporter.
    pub(super) flow: String,
    /// Relative tolerance of all calls.
    pub(super) rtol: f64,
    pub(super) kv_cache: Option<HostCache>,
    pub(super) methods: BTreeMap<String, MethodFacts>,
    pub(super) calls: Vec<Call>,
    #[serde(flatten)]
    remarks: Remarks,
}

/// Expected counts of a method.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MethodFacts {
    /// How many nodes the main chains of its delegates hold.
    pub(super) nodes: usize,
    /// How often each node occurs, in all chains.
    pub(super) ops: BTreeMap<String, usize>,
    /// `name [sizes] dtype` of each mutable buffer, the dtype as ExecuTorch numbers it.
    pub(super) buffers: BTreeSet<String>,
}

/// One call.
#[derive(Debug, Deserialize)]
pub(super) struct Call {
    pub(super) method: String,
    /// File with the tensors that go in.
    pub(super) inputs: String,
    /// File with the tensors that come out.
    pub(super) expected: String,
    pub(super) compare: Compare,
    /// Bound of each output's elements.
    pub(super) atol: Vec<f64>,
    /// Bound of each output's root mean square of differences.
    pub(super) rms_tol: Vec<f64>,
    pub(super) outputs: Vec<Output>,
    #[serde(flatten)]
    remarks: Remarks,
}

/// The compared part of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Compare {
    All,
    /// The last entry along the second-to-last axis.
    Last,
    /// Integers that a program chose.
    Token,
}

/// One output of a call.
#[derive(Debug, Deserialize)]
pub(super) struct Output {
    pub(super) shape: Vec<usize>,
    #[serde(deserialize_with = "dtype_of_pytorch")]
    pub(super) dtype: DType,
    /// Whether rounding cannot change which entry of the last row is the largest.
    #[serde(default)]
    pub(super) argmax_safe: bool,
    /// Whether rounding cannot change an integer.
    #[serde(default = "certain")]
    pub(super) certain: bool,
    /// The integers that come out.
    pub(super) value: Option<Vec<i64>>,
    #[serde(flatten)]
    remarks: Remarks,
}

fn certain() -> bool {
    true
}

/// An element type by the name that PyTorch gives it.
fn dtype_of_pytorch<'de, D: Deserializer<'de>>(json: D) -> Result<DType, D::Error> {
    let name = String::deserialize(json)?;
    let found = ScalarType::from_torch_name(&name).and_then(ScalarType::dtype);
    found.ok_or_else(|| D::Error::custom(format!("unknown dtype `{name}`")))
}

impl Session {
    /// Reads the file. A field of unknown meaning is an error.
    pub(super) fn read(path: &Path) -> Result<Session> {
        let text = String::from_utf8(files::read(path)?.to_vec())?;
        let session: Session = serde_json::from_str(&without_infinities(&text))?;
        if session.kind != "session" {
            bail!("the kind is `{}`, expected `session`", session.kind);
        }
        if session.calls.is_empty() {
            bail!("there are no calls");
        }
        all_known(&session.remarks, &SESSION_REMARKS)?;
        for (i, call) in session.calls.iter().enumerate() {
            call.check().with_context(|| format!("call {i}"))?;
        }
        Ok(session)
    }
}

impl Call {
    fn check(&self) -> Result<()> {
        all_known(&self.remarks, &CALL_REMARKS)?;
        self.outputs.iter().try_for_each(|output| all_known(&output.remarks, &OUTPUT_REMARKS))?;
        let (outputs, bounds, rms) = (self.outputs.len(), self.atol.len(), self.rms_tol.len());
        if bounds != outputs || rms != outputs {
            bail!("{outputs} outputs have {bounds} bounds `atol` and {rms} bounds `rms_tol`");
        }
        Ok(())
    }
}

/// The text with `null` for the numbers that Python writes and JSON lacks: `NaN`, `Infinity`,
/// `-Infinity`.
fn without_infinities(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Quotes that no backslash escapes begin and end strings.
    let (mut quoted, mut escaped) = (false, false);
    let ends_part = |c: char| {
        let is_end = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    };
    for part in text.split_inclusive(ends_part) {
        if quoted {
            out.push_str(part);
        } else {
            out.push_str(&part.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null"));
        }
        quoted = !quoted;
    }
    out
}

fn all_known(remarks: &Remarks, known: &[&str]) -> Result<()> {
    match remarks.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => bail!("the field `{}` is not known", name.escape_debug()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_lacks_are_null_outside_of_strings() {
        let check = |text: &str, expected: &str| assert_eq!(without_infinities(text), expected);
        check(r#"{"a": -Infinity, "b": [NaN, Infinity]}"#, r#"{"a": null, "b": [null, null]}"#);
        check(r#"{"NaN \" NaN": "Infinity \\", "c": NaN}"#, r#"{"NaN \" NaN": "Infinity \\", "c": null}"#);
    }
}
