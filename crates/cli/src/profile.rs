//! Profiles of a run: a table with rates and the machine's limits, and traces.

pub(crate) mod etdump;
mod roofline;
pub(crate) mod trace;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use anyhow::Result;
use flambeau::{
    engine::{Clock, Engine, Span, Steps},
    runtime::{Method, RunTrace},
};

use self::roofline::Roofline;
use crate::{files, outputs};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// Print a profile: the time of each kind of step, and its GB/s and GFLOP/s beside the
    /// machine's roofline. The mlx engine then
    /// waits for the device after every step, which takes longer than its usual runs
    #[arg(long)]
    profile: bool,

    /// Write every step as a trace that Perfetto and chrome://tracing open
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,

    /// Write every step as an ETDump, which the Inspector of ExecuTorch reads
    #[arg(long, value_name = "FILE.etdp")]
    etdump: Option<PathBuf>,
}

/// Total of the steps with one name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Total {
    calls: u64,
    time: u64,
    bytes: u64,
    flops: u64,
}

impl ProfileArgs {
    /// Whether the engine must measure times.
    pub(crate) fn is_wanted(&self) -> bool {
        self.profile || self.files().next().is_some()
    }

    /// A clock for the engine and the method, if they must measure times.
    pub(crate) fn clock(&self) -> Option<Clock> {
        self.is_wanted().then(flambeau::clock)
    }

    /// Records the runs of methods from now on, if their instructions are requested.
    pub(crate) fn watch(&self, methods: &mut [&mut Method], clock: Option<Clock>) {
        let clock = clock.filter(|_| self.files().next().is_some());
        methods.iter_mut().for_each(|method| method.trace_with(clock.clone()));
    }

    /// Output files of the traces.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.trace, &self.etdump].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Checks that an output file is writable and not also an input.
    pub(crate) fn check_writable<'a>(&self, read: impl IntoIterator<Item = &'a Path>) -> Result<()> {
        let written: Vec<&Path> = self.files().collect();
        outputs::check(&written, read)?;
        written.into_iter().try_for_each(files::check_writable)
    }

    /// Prints and writes the requested profiles of all steps since the methods were loaded. Values
    /// that the methods kept go to `debug_buffer`.
    pub(crate) fn report(&self, methods: &mut [&mut Method], engine: &dyn Engine, debug_buffer: Option<&Path>) -> Result<()> {
        if !self.is_wanted() {
            return Ok(());
        }
        let mut runs: Vec<RunTrace> = methods.iter_mut().flat_map(|method| method.take_runs()).collect();
        runs.sort_by_key(|run| run.start);
        let nodes = kinds(methods.iter_mut().flat_map(|method| method.take_profile()));
        let mut spans: Vec<Span> = runs.iter().flat_map(|run| &run.instructions).flat_map(|i| i.steps.clone()).collect();
        spans.extend(methods.iter_mut().flat_map(|method| method.take_spans()));
        for steps in methods.iter().filter_map(|method| method.steps()).filter(|_| self.profile) {
            prepared(&steps).iter().for_each(|line| eprintln!("{line}"));
        }
        if engine.name() == "mlx" {
            eprintln!(
                "measured step by step, each waited for: without --profile, --trace and --etdump, runs overlap steps and take less time"
            );
        }
        if let Some(path) = &self.trace {
            files::write(path, |out| trace::write(&runs, out))?;
        }
        if let Some(path) = &self.etdump {
            let dump = etdump::dump(&runs);
            files::write(path, |out| Ok(out.write_all(&dump.file)?))?;
            if let Some(path) = debug_buffer {
                files::write(path, |out| Ok(out.write_all(&dump.debug_buffer)?))?;
            }
        }
        if self.profile && spans.is_empty() {
            eprintln!("{:>10} {:>8}  node", "µs", "calls");
            nodes.iter().for_each(|(name, calls, time)| eprintln!("{:>10.1} {calls:>8}  {name}", *time as f64 / 1e3));
        } else if self.profile {
            let roofline = Roofline::measure(engine)?;
            eprintln!("this machine reads {:.1} GB/s and computes {:.0} GFLOP/s", roofline.bytes / 1e9, roofline.flops / 1e9);
            table(&spans, &roofline).iter().for_each(|line| eprintln!("{line}"));
        }
        Ok(())
    }
}

/// Kinds of nodes with their calls and nanoseconds, slowest first.
fn kinds(nodes: impl Iterator<Item = (&'static str, u64, u64)>) -> Vec<(&'static str, u64, u64)> {
    let mut totals: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, calls, time) in nodes {
        let total = totals.entry(name).or_default();
        *total = (total.0 + calls, total.1 + time);
    }
    let mut list: Vec<_> = totals.into_iter().map(|(name, (calls, time))| (name, calls, time)).collect();
    list.sort_by_key(|&(.., time)| std::cmp::Reverse(time));
    list
}

/// The execution plan in words.
fn prepared(steps: &Steps) -> Vec<String> {
    let waited: u64 = steps.node_by_node.iter().map(|n| n.count).sum();
    let mut lines = vec![format!("{} steps were planned ahead, {waited} nodes were prepared when their turn came", steps.planned)];
    lines.extend(steps.regions.iter().map(|r| format!("{:>10} fused, {} nodes in all: {}", r.count, r.nodes, r.form)));
    lines.extend(steps.node_by_node.iter().map(|n| format!("{:>10} {}: {}", n.count, n.node, n.why)));
    lines
}

/// Totals by name, slowest first.
fn totals(spans: &[Span]) -> Vec<(&str, Total)> {
    let mut totals: HashMap<&str, Total> = HashMap::new();
    for span in spans {
        let total = totals.entry(&span.name).or_default();
        let Total { calls, time, bytes, flops } = *total;
        *total = Total { calls: calls + 1, time: time + span.time, bytes: bytes + span.bytes, flops: flops + span.flops };
    }
    let mut list: Vec<_> = totals.into_iter().collect();
    list.sort_by_key(|(name, total)| (std::cmp::Reverse(total.time), *name));
    list
}

fn table(spans: &[Span], roofline: &Roofline) -> Vec<String> {
    let totals = totals(spans);
    let whole: u64 = totals.iter().map(|(_, total)| total.time).sum();
    let share = |part: f64, whole: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
    let mut lines = vec![format!("{:>10} {:>8} {:>6} {:>14} {:>16}  step", "ms", "calls", "%", "GB/s", "GFLOP/s")];
    for (name, total) in &totals {
        let seconds = total.time.max(1) as f64 / 1e9;
        let (bytes, flops) = (total.bytes as f64 / seconds, total.flops as f64 / seconds);
        let rate = |value: f64, ceiling: f64, digits: usize| match value {
            0.0 => "-".to_owned(),
            value => format!("{:.digits$} ({:.0} %)", value / 1e9, share(value, ceiling)),
        };
        lines.push(format!(
            "{:>10.2} {:>8} {:>6.1} {:>14} {:>16}  {name}",
            total.time as f64 / 1e6,
            total.calls,
            share(total.time as f64, whole as f64),
            rate(bytes, roofline.bytes, 1),
            rate(flops, roofline.flops, 0),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use flambeau::engine::{FusedRegion, NodeByNode};

    use super::*;

    #[test]
    fn nodes_that_wait_are_listed_with_their_reasons() {
        let why = "it runs other chains".to_owned();
        let regions = vec![FusedRegion { form: "norm, 3 products".to_owned(), nodes: 28, count: 7 }];
        let steps = Steps { planned: 7, regions, node_by_node: vec![NodeByNode { node: "If", why, count: 2 }] };
        let expected = [
            "7 steps were planned ahead, 2 nodes were prepared when their turn came",
            "         7 fused, 28 nodes in all: norm, 3 products",
            "         2 If: it runs other chains",
        ];
        assert_eq!(prepared(&steps), expected);
    }

    fn span(name: &str, start: u64, time: u64, bytes: u64, flops: u64) -> Span {
        Span { name: name.into(), node: None, start, time, bytes, flops }
    }

    #[test]
    fn steps_of_one_name_are_one_line_slowest_first() {
        let spans = [span("a", 0, 1000, 500, 0), span("b", 1000, 5000, 10_000, 40_000), span("a", 6000, 1000, 500, 0)];
        let lines = table(&spans, &Roofline { bytes: 4e9, flops: 16e9 });
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines[1]), ["0.01", "1", "71.4", "2.0", "(50", "%)", "8", "(50", "%)", "b"]);
        assert_eq!(words(&lines[2]), ["0.00", "2", "28.6", "0.5", "(12", "%)", "-", "a"]);
        assert_eq!(lines.len(), 3);
    }
}
