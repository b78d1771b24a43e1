//! The verdict as lines and as JSON.

use anyhow::Result;
use flambeau::{
    runtime::verify::{Difference, Verdict},
    tensor::Distance,
};
use serde_json::{Value as Json, json};

use crate::{files, source_map::SourceMap};

/// Differences that are printed as lines; JSON has all of them.
const SHOWN: usize = 5;

/// The verdict on a method.
pub(crate) struct MethodVerdict {
    pub(crate) method: String,
    pub(crate) runs: usize,
    pub(crate) verdict: Verdict,
    pub(crate) source: Option<SourceMap>,
}

impl MethodVerdict {
    pub(crate) fn agrees(&self) -> bool {
        self.verdict.agrees()
    }

    fn source_of(&self, difference: &Difference) -> Option<String> {
        self.source.as_ref()?.describe(difference.graph, *difference.nodes.end())
    }

    fn lines(&self) -> Vec<String> {
        let verdict = &self.verdict;
        let state = if self.agrees() { "agrees" } else { "differs" };
        let mut lines =
            vec![format!("method {} {state}: {} nodes compared in {}", self.method, verdict.nodes, counted(self.runs, "run"))];
        for (run, output, what) in verdict.outputs.iter().take(SHOWN) {
            lines.push(format!("run {run}, output {output}: {what}"));
        }
        for difference in verdict.differences.iter().take(SHOWN) {
            lines.extend(difference.to_string().lines().map(str::to_owned));
            lines.extend(self.source_of(difference).map(|source| format!("  from {source}")));
        }
        if verdict.differences.len() > SHOWN {
            lines.push(format!("and {} more nodes", verdict.differences.len() - SHOWN));
        }
        if !self.agrees() && verdict.differences.is_empty() {
            lines.push("every compared node agrees; the outputs differ".to_owned());
        }
        if let Some((at, most)) = verdict.largest.as_ref().filter(|_| self.agrees()) {
            let node = at.node.split(' ').next().unwrap_or_default();
            let place = format!("delegate {}, node {}, {node}", at.graph, at.nodes.end());
            lines.push(format!("largest error {:e} ({}) at {place}", most.absolute, counted(most.ulps as usize, "ULP")));
        }
        lines.extend(verdict.skipped.iter().take(SHOWN).map(|(node, why)| format!("not compared: {node}: {why}")));
        lines
    }

    pub(crate) fn json(&self) -> Json {
        let verdict = &self.verdict;
        let outputs = verdict.outputs.iter().map(|(run, output, what)| json!({ "run": run, "output": output, "what": what }));
        let skipped = verdict.skipped.iter().map(|(node, why)| json!({ "node": node, "why": why }));
        json!({
            "method": self.method,
            "agrees": self.agrees(),
            "runs": self.runs,
            "nodes": verdict.nodes,
            "outputs": outputs.collect::<Vec<_>>(),
            "differences": verdict.differences.iter().map(|d| self.difference(d, d.distance)).collect::<Vec<_>>(),
            "largest": verdict.largest.as_ref().map(|(at, most)| self.difference(at, Some(*most))),
            "skipped": skipped.collect::<Vec<_>>(),
        })
    }

    fn difference(&self, d: &Difference, distance: Option<Distance>) -> Json {
        let distance = distance.map(
            |m| json!({ "absolute": m.absolute, "ulps": m.ulps, "index": m.index, "actual": m.actual, "expected": m.expected }),
        );
        json!({
            "delegate": d.graph,
            "first_node": d.nodes.start(),
            "last_node": d.nodes.end(),
            "node": d.node,
            "weights": d.weights,
            "source": self.source_of(d),
            "slot": d.slot.map(|slot| slot.to_string()),
            "expected": d.expected,
            "what": d.what,
            "error": distance,
        })
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Prints all verdicts.
pub(super) fn verdicts(verdicts: &[MethodVerdict], json: bool) -> Result<()> {
    if json {
        let methods: Vec<Json> = verdicts.iter().map(MethodVerdict::json).collect();
        return files::print_json(&json!({ "agrees": verdicts.iter().all(MethodVerdict::agrees), "methods": methods }));
    }
    verdicts.iter().flat_map(MethodVerdict::lines).try_for_each(files::print_line)
}
