//! Counts of main chain nodes that ran in fused regions and one by one.

use std::{collections::BTreeMap, ops::Range};

use flambeau_ir::{
    Node,
    engine::{FusedRegion, NodeByNode, Steps},
};

/// Counts of a session's runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Runs of each node by itself, by index.
    single: Vec<u64>,
    /// Runs of regions, by their nodes and by whether the rows of several sessions were computed.
    regions: BTreeMap<(usize, usize, bool), u64>,
}

/// The plan's words for nodes.
pub(crate) trait Describe {
    /// The computation of a region in words.
    fn region(&self, nodes: Range<usize>, is_of_rows: bool) -> String;

    /// Reason why a node runs by itself.
    fn why_single(&self, nodes: &[Node], at: usize) -> String;
}

impl Counts {
    /// Counts a node that ran by itself.
    pub(crate) fn single(&mut self, at: usize) {
        if self.single.len() <= at {
            self.single.resize(at + 1, 0);
        }
        self.single[at] += 1;
    }

    /// Counts a region; of rows if it ran for several sessions at once.
    pub(crate) fn region(&mut self, nodes: Range<usize>, is_of_rows: bool) {
        *self.regions.entry((nodes.start, nodes.end, is_of_rows)).or_default() += 1;
    }

    /// Adds another run's counts.
    pub(crate) fn add(&mut self, other: &Counts) {
        if self.single.len() < other.single.len() {
            self.single.resize(other.single.len(), 0);
        }
        self.single.iter_mut().zip(&other.single).for_each(|(count, more)| *count += more);
        for (region, more) in &other.regions {
            *self.regions.entry(*region).or_default() += more;
        }
    }

    /// Counts since `before`, an earlier copy.
    pub(crate) fn since(&self, before: &Counts) -> Counts {
        let old = before.single.iter().copied().chain(std::iter::repeat(0));
        let single = self.single.iter().zip(old).map(|(count, old)| count - old).collect();
        let new = self.regions.iter().map(|(region, count)| (*region, count - before.regions.get(region).copied().unwrap_or(0)));
        Counts { single, regions: new.filter(|(_, count)| *count > 0).collect() }
    }

    /// The counts by form of region, and by kind of node and reason.
    pub(crate) fn steps(&self, nodes: &[Node], plan: &dyn Describe) -> Steps {
        let mut steps = Steps::default();
        for (&(start, end, is_of_rows), &count) in &self.regions {
            let form = plan.region(start..end, is_of_rows);
            let nodes = (end - start) as u64 * count;
            steps.add(&Steps { planned: count, regions: vec![FusedRegion { form, nodes, count }], node_by_node: Vec::new() });
        }
        for (at, (node, &count)) in nodes.iter().zip(&self.single).enumerate().filter(|(_, (_, count))| **count > 0) {
            let by_itself = NodeByNode { node: node.name(), why: plan.why_single(nodes, at), count };
            steps.add(&Steps { node_by_node: vec![by_itself], ..Steps::default() });
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names regions by their length and nodes by their index.
    struct Numbers;

    impl Describe for Numbers {
        fn region(&self, nodes: Range<usize>, is_of_rows: bool) -> String {
            format!("{}{}", nodes.len(), if is_of_rows { " of rows" } else { "" })
        }

        fn why_single(&self, _nodes: &[Node], at: usize) -> String {
            format!("odd {}", at % 2)
        }
    }

    #[test]
    fn runs_are_counted_by_form_and_by_reason() {
        let nodes: Vec<Node> = vec!["Noop".parse().expect("a node"); 9];
        let mut counts = Counts::default();
        (0..3).for_each(|at| counts.single(at));
        counts.region(3..6, false);
        let before = counts.clone();
        counts.single(7);
        counts.region(0..3, false);
        counts.region(6..9, true);
        let after = counts.since(&before);
        counts.add(&after);
        let region = |form: &str, nodes, count| FusedRegion { form: form.into(), nodes, count };
        let steps = counts.steps(&nodes, &Numbers);
        assert_eq!((steps.planned, steps.regions), (5, vec![region("3", 9, 3), region("3 of rows", 6, 2)]));
        let single: Vec<_> = steps.node_by_node.iter().map(|n| (n.node, &*n.why, n.count)).collect();
        assert_eq!(single, [("Noop", "odd 0", 2), ("Noop", "odd 1", 3)]);
        assert_eq!(after.steps(&nodes, &Numbers).planned, 2);
    }
}
