//! Report on the outcome of every call of a program.

use std::{collections::BTreeMap, fmt};

use flambeau_pt2::SourceLocation;
use flambeau_tensor::DType;
use serde_json::{Value, json};

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Expressed by these nodes.
    Lowered(Vec<&'static str>),
    /// Needs no node: a folded view, a constant, a part of a fused node, or an assertion.
    Absorbed,
    /// Runs on the portable kernel with this name, outside of delegates.
    Fallback(String),
    /// Cannot be expressed, with the reason.
    Refused(String),
}

/// Report on one call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallReport {
    pub target: String,
    /// Label of the call in the program.
    pub name: String,
    pub source: SourceLocation,
    pub outcome: Outcome,
    /// Element types that the call was lowered in, where the program asks for others.
    pub precision: Option<Precision>,
}

/// An element type that replaces the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Element type that the program asks for.
    pub asked: DType,
    /// Element type of the computation.
    pub used: DType,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {} instead of {}", self.used, self.asked)
    }
}

/// Report on one method.
#[derive(Clone, Debug, Default)]
pub struct MethodReport {
    pub name: String,
    pub calls: Vec<CallReport>,
    /// Number of nodes that the method runs, including the init chain.
    pub nodes: usize,
    /// Largest size of unbounded axes, if memory limits it.
    pub unbounded: Option<u32>,
}

/// Report on a whole program.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub methods: Vec<MethodReport>,
}

impl fmt::Display for CallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (`{}`)", self.target, self.name)?;
        let source = self.source.to_string();
        if !source.is_empty() {
            write!(f, " at {source}")?;
        }
        match &self.outcome {
            Outcome::Lowered(nodes) => write!(f, " → {}", nodes.join(" "))?,
            Outcome::Absorbed => {}
            Outcome::Fallback(kernel) => write!(f, " → {kernel} (not delegated)")?,
            Outcome::Refused(reason) => return write!(f, ": {reason}"),
        }
        self.precision.map_or(Ok(()), |precision| write!(f, " {precision}"))
    }
}

impl MethodReport {
    /// Calls that cannot be expressed.
    pub fn refused(&self) -> impl Iterator<Item = &CallReport> {
        self.calls.iter().filter(|c| matches!(c.outcome, Outcome::Refused(_)))
    }

    /// Calls that fall back to portable kernels.
    pub fn fallbacks(&self) -> impl Iterator<Item = &CallReport> {
        self.calls.iter().filter(|c| matches!(c.outcome, Outcome::Fallback(_)))
    }

    /// Calls that are computed in another element type than the program asks for.
    pub fn converted(&self) -> impl Iterator<Item = &CallReport> {
        self.calls.iter().filter(|c| c.precision.is_some())
    }

    /// A table with one line per operator and outcome, and the number of calls.
    pub fn table(&self) -> String {
        let mut rows: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for call in &self.calls {
            let mut outcome = match &call.outcome {
                Outcome::Lowered(nodes) => nodes.join(" "),
                Outcome::Absorbed => "–".to_owned(),
                Outcome::Fallback(kernel) => format!("{kernel} (not delegated)"),
                Outcome::Refused(reason) => format!("refused: {reason}"),
            };
            if let Some(precision) = call.precision {
                outcome.push_str(&format!(", {precision}"));
            }
            *rows.entry((&call.target, outcome)).or_default() += 1;
        }
        let width = rows.keys().map(|(target, _)| target.len()).max().unwrap_or(0);
        let mut text = format!("method {}: {} calls, {} nodes\n", self.name, self.calls.len(), self.nodes);
        if let Some(bound) = self.unbounded {
            text.push_str(&format!(
                "  sizes without an upper bound can be up to {bound}, so that planned memory stays small; bound them at export for more\n"
            ));
        }
        for ((target, outcome), count) in rows {
            text.push_str(&format!("  {count:>5}  {target:<width$}  {outcome}\n"));
        }
        text
    }
}

impl Report {
    /// Every call of every method as JSON.
    pub fn to_json(&self) -> Value {
        let call = |c: &CallReport| {
            let mut entry = json!({ "target": c.target, "name": c.name, "source": c.source.to_string() });
            match &c.outcome {
                Outcome::Lowered(nodes) => entry["nodes"] = json!(nodes),
                Outcome::Absorbed => entry["nodes"] = json!([]),
                Outcome::Fallback(kernel) => entry["kernel"] = json!(kernel),
                Outcome::Refused(reason) => entry["refused"] = json!(reason),
            }
            if let Some(Precision { asked, used }) = c.precision {
                entry["precision"] = json!({ "asked": asked.to_string(), "used": used.to_string() });
            }
            entry
        };
        let method = |m: &MethodReport| {
            let calls = m.calls.iter().map(call).collect::<Vec<_>>();
            json!({ "name": m.name, "nodes": m.nodes, "unbounded": m.unbounded, "calls": calls })
        };
        json!({ "methods": self.methods.iter().map(method).collect::<Vec<_>>() })
    }
}
