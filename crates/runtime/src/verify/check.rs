//! Compares the results of a program on two engines.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use flambeau_ir::{
    Effect,
    engine::{Engine, EngineError, KvCacheConfig, LoadOptions, Value as EngineValue},
};
use flambeau_tensor::{Distance, Tolerance, distance};

use super::{
    difference::{Difference, Scale},
    engine::NodeByNode,
    walk::{GraphRun, NodeRun, Observer, keeps_state, own_cache, run_part},
};
use crate::{Program, Result, Value};

/// Differences that a verdict lists.
const MAX_DIFFERENCES: usize = 100;

/// The outcome of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Number of compared nodes, over all runs.
    pub nodes: usize,
    /// Nodes that were not compared, with the reason.
    pub skipped: Vec<(String, &'static str)>,
    /// Differences in the order of the runs and nodes, at most 100.
    pub differences: Vec<Difference>,
    /// Outputs of whole runs that differ: run, output and mismatch.
    pub outputs: Vec<(usize, usize, String)>,
    /// Largest error of a node, and the node.
    pub largest: Option<(Difference, Distance)>,
}

impl Verdict {
    /// Whether nothing differs.
    pub fn agrees(&self) -> bool {
        self.differences.is_empty() && self.outputs.is_empty()
    }

    pub(super) fn push(&mut self, difference: Difference) {
        if self.differences.len() < MAX_DIFFERENCES {
            self.differences.push(difference);
        }
    }

    /// Compares the results of a node.
    pub(super) fn compare(
        &mut self,
        at: &Difference,
        slot: flambeau_ir::Slot,
        [actual, expected]: [&EngineValue; 2],
        scale: Scale,
    ) {
        if let Some(difference) = at.of_result(slot, actual, expected, scale) {
            self.push(difference);
            return;
        }
        if let (EngineValue::Tensor(actual), EngineValue::Tensor(expected)) = (actual, expected)
            && let Some(found) = distance(actual, expected)
            && found.absolute > self.largest.as_ref().map_or(0.0, |(_, most)| most.absolute)
        {
            self.largest = Some((Difference { slot: Some(slot), ..at.clone() }, found));
        }
    }
}

/// Runs a method on both engines with each list of inputs, one run after another, and compares.
///
/// The reference runs node by node. The engine under test gets the operands of each node, and runs
/// the whole method too. If only the whole run differs, the first group of nodes is named that
/// differs when it runs together. Graphs whose nodes keep a cache are not searched for such groups.
/// Without a tolerance, floats may differ by their type's rounding.
///
/// # Errors
/// The reference cannot run the method, or the inputs do not fit.
pub fn check(
    program: &Program,
    method: &str,
    [tested, reference]: [&Arc<dyn Engine>; 2],
    runs: &[Vec<Value>],
    tolerance: Option<Tolerance>,
    options: &LoadOptions,
) -> Result<Verdict> {
    let observer = Arc::new(Mutex::new(Single {
        tested: Arc::clone(tested),
        scale: Scale { given: tolerance, nodes: 1 },
        kv_cache: options.kv_cache.clone(),
        caches: BTreeMap::new(),
        verdict: Verdict::default(),
        skipped: BTreeMap::new(),
    }));
    let stepping: Arc<dyn Engine> = Arc::new(NodeByNode::new(Arc::clone(reference), Arc::clone(&observer) as _));
    let mut slow = program.method(method, &stepping, options)?;
    let mut whole = program.method(method, tested, options)?;
    let scale = Scale { given: tolerance, nodes: slow.node_count() };
    let mut differing = Vec::new();
    for (run, inputs) in runs.iter().enumerate() {
        let expected = slow.run(inputs)?;
        match whole.run(inputs) {
            Ok(outputs) => {
                differing.extend(output_differences(&outputs, &expected, scale).map(|(output, what)| (run, output, what)))
            }
            Err(error) => {
                differing.push((run, 0, error.to_string()));
                break;
            }
        }
    }
    drop(slow);
    let mut verdict = {
        let mut single = observer.lock().unwrap_or_else(PoisonError::into_inner);
        single.verdict.skipped = std::mem::take(&mut single.skipped).into_iter().collect();
        std::mem::take(&mut single.verdict)
    };
    let last = differing.iter().map(|(run, ..)| *run).min();
    verdict.outputs = differing;
    if let Some(last) = last.filter(|_| verdict.differences.is_empty()) {
        verdict.differences = check_groups(program, method, [tested, reference], &runs[..=last], tolerance, options)?;
    }
    Ok(verdict)
}

/// Outputs beyond the tolerance, with the mismatch.
pub(super) fn output_differences<'a>(
    actual: &'a [Value],
    expected: &'a [Value],
    scale: Scale,
) -> impl Iterator<Item = (usize, String)> + 'a {
    actual.iter().zip(expected).enumerate().filter_map(move |(output, pair)| match pair {
        (Value::Tensor(actual), Value::Tensor(expected)) => {
            let mismatch = flambeau_tensor::compare(actual, expected, scale.tolerance(expected)).err()?;
            Some((output, mismatch.to_string()))
        }
        (actual, expected) if actual.describe() == expected.describe() => None,
        (actual, expected) => Some((output, format!("{} instead of {}", actual.describe(), expected.describe()))),
    })
}

/// Runs each node on the tested engine with the reference's operands.
struct Single {
    tested: Arc<dyn Engine>,
    scale: Scale,
    /// The cache that a node with state starts from.
    kv_cache: Option<KvCacheConfig>,
    /// Caches of nodes with state, by graph.
    caches: BTreeMap<usize, LoadOptions>,
    verdict: Verdict,
    skipped: BTreeMap<String, &'static str>,
}

impl Observer for Single {
    fn node(&mut self, run: &NodeRun<'_>) -> Result<(), EngineError> {
        if run.part.graph.chains.iter().flatten().any(|node| node.effect() == Effect::Random(None)) {
            self.skipped.insert(run.node.to_string(), "it draws random numbers without a seed");
            return Ok(());
        }
        let at = Difference::at(run.graph_number, run.graph, run.instruction..=run.instruction);
        self.verdict.nodes += 1;
        let options = match keeps_state(&run.part.graph) {
            true => self.caches.entry(run.graph_number).or_insert_with(|| own_cache(self.kv_cache.clone())).clone(),
            false => LoadOptions::default(),
        };
        let mut session = match self.tested.load(Arc::clone(&run.part.graph), run.constants, &options) {
            Ok(session) => session,
            Err(error) => {
                self.verdict.push(at.failed(&error));
                return Ok(());
            }
        };
        match session.run(run.inputs) {
            Ok(results) => {
                for ((&slot, actual), expected) in run.part.outputs.iter().zip(&results).zip(run.results) {
                    self.verdict.compare(&at, slot, [actual, expected], self.scale);
                }
            }
            Err(error) => self.verdict.push(at.failed(&error)),
        }
        Ok(())
    }
}

/// The first groups of nodes that differ when they run together, at most one for each graph.
fn check_groups(
    program: &Program,
    method: &str,
    [tested, reference]: [&Arc<dyn Engine>; 2],
    runs: &[Vec<Value>],
    tolerance: Option<Tolerance>,
    options: &LoadOptions,
) -> Result<Vec<Difference>> {
    let observer = Arc::new(Mutex::new(Groups { tested: Arc::clone(tested), tolerance, found: Vec::new() }));
    let stepping: Arc<dyn Engine> = Arc::new(NodeByNode::new(Arc::clone(reference), Arc::clone(&observer) as _));
    let mut method = program.method(method, &stepping, options)?;
    for inputs in runs {
        method.run(inputs)?;
        if !observer.lock().unwrap_or_else(PoisonError::into_inner).found.is_empty() {
            break;
        }
    }
    let found = std::mem::take(&mut observer.lock().unwrap_or_else(PoisonError::into_inner).found);
    Ok(found)
}

/// Compares groups of nodes from the start of a graph.
struct Groups {
    tested: Arc<dyn Engine>,
    tolerance: Option<Tolerance>,
    found: Vec<Difference>,
}

impl Observer for Groups {
    fn node(&mut self, _: &NodeRun<'_>) -> Result<(), EngineError> {
        Ok(())
    }

    fn graph(&mut self, run: &GraphRun<'_>) -> Result<(), EngineError> {
        if keeps_state(run.graph) {
            return Ok(());
        }
        let count = run.graph.chains[run.graph.main as usize].len();
        let Some(mut found) = self.differs(run, 0..count)? else { return Ok(()) };
        // The nodes before `agree` agree, the nodes before `end` do not.
        let (mut agree, mut end) = (0, count);
        while end - agree > 1 {
            let middle = agree + (end - agree) / 2;
            match self.differs(run, 0..middle)? {
                Some(earlier) => (found, end) = (earlier, middle),
                None => agree = middle,
            }
        }
        // The nodes from `start` differ, the nodes from `late` agree.
        let (mut start, mut late) = (0, end);
        while late - start > 1 {
            let middle = start + (late - start) / 2;
            match self.differs(run, middle..end)? {
                Some(smaller) => (found, start) = (smaller, middle),
                None => late = middle,
            }
        }
        self.found.push(found);
        Ok(())
    }
}

impl Groups {
    /// The difference after these nodes ran together on the reference's operands.
    fn differs(&self, run: &GraphRun<'_>, nodes: Range<usize>) -> Result<Option<Difference>, EngineError> {
        let before = run.walk.replay(run.before, nodes.start)?;
        let expected = run.walk.replay(run.before, nodes.end)?;
        let part = run.walk.cut(&before, nodes.clone())?;
        let at = Difference::at(run.graph_number, run.graph, nodes.start..=nodes.end.saturating_sub(1));
        let results = match run_part(&self.tested, run.walk.constants(), &part, &before) {
            Ok((_, results)) => results,
            Err(error) => return Ok(Some(at.failed(&error))),
        };
        let scale = Scale { given: self.tolerance, nodes: nodes.len() };
        let differs = |(&slot, actual)| at.of_result(slot, actual, &expected.get(slot)?, scale);
        Ok(part.outputs.iter().zip(&results).find_map(differs))
    }
}
