//! Counts of a session's nodes: prepared before runs, fused, or run one by one.

/// Counts of steps in a session's runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Steps prepared before their runs. They include runs of fused regions.
    pub planned: u64,
    /// Regions that the engine's own kernels computed. Empty if the engine has no such kernels.
    pub regions: Vec<FusedRegion>,
    /// Nodes prepared during runs.
    pub node_by_node: Vec<NodeByNode>,
}

/// Runs of nodes of one form that a kernel computed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedRegion {
    /// The computation in words.
    pub form: String,
    /// Number of nodes in all runs.
    pub nodes: u64,
    pub count: u64,
}

/// Nodes of one kind that were prepared during runs for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeByNode {
    pub node: &'static str,
    pub why: String,
    pub count: u64,
}

impl Steps {
    /// Adds another session's counts.
    pub fn add(&mut self, other: &Steps) {
        self.planned += other.planned;
        for new in &other.regions {
            match self.regions.iter_mut().find(|old| old.form == new.form) {
                Some(old) => (old.nodes, old.count) = (old.nodes + new.nodes, old.count + new.count),
                None => self.regions.push(new.clone()),
            }
        }
        for new in &other.node_by_node {
            match self.node_by_node.iter_mut().find(|old| old.node == new.node && old.why == new.why) {
                Some(old) => old.count += new.count,
                None => self.node_by_node.push(new.clone()),
            }
        }
    }

    /// Counts since the same sessions reported `before`.
    #[must_use]
    pub fn since(&self, before: &Steps) -> Steps {
        let counted = |new: &NodeByNode| {
            let old = before.node_by_node.iter().find(|old| old.node == new.node && old.why == new.why);
            NodeByNode { count: new.count - old.map_or(0, |old| old.count), ..new.clone() }
        };
        let node_by_node = self.node_by_node.iter().map(counted).filter(|counted| counted.count > 0).collect();
        let fused = |new: &FusedRegion| {
            let old = before.regions.iter().find(|old| old.form == new.form);
            let [nodes, count] = old.map_or([0, 0], |old| [old.nodes, old.count]);
            FusedRegion { form: new.form.clone(), nodes: new.nodes - nodes, count: new.count - count }
        };
        let regions = self.regions.iter().map(fused).filter(|fused| fused.count > 0).collect();
        Steps { planned: self.planned - before.planned, regions, node_by_node }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_by_kind_and_reason() {
        let of = |node, why: &str, count| NodeByNode { node, why: why.into(), count };
        let steps =
            |planned, node_by_node: &[NodeByNode]| Steps { planned, node_by_node: node_by_node.to_vec(), ..Steps::default() };
        let before = steps(5, &[of("If", "chains", 2), of("Arange", "open", 1)]);
        let mut after = before.clone();
        after.add(&steps(3, &[of("If", "open", 4), of("Arange", "open", 6)]));
        assert_eq!(after, steps(8, &[of("If", "chains", 2), of("Arange", "open", 7), of("If", "open", 4)]));
        assert_eq!(after.since(&before), steps(3, &[of("Arange", "open", 6), of("If", "open", 4)]));
    }

    #[test]
    fn regions_are_counted_by_form() {
        let of = |form: &str, nodes, count| FusedRegion { form: form.into(), nodes, count };
        let steps = |planned, regions: &[FusedRegion]| Steps { planned, regions: regions.to_vec(), ..Steps::default() };
        let before = steps(3, &[of("attention", 20, 1), of("product", 2, 2)]);
        let mut after = before.clone();
        after.add(&steps(4, &[of("attention", 60, 3), of("experts", 9, 1)]));
        assert_eq!(after, steps(7, &[of("attention", 80, 4), of("product", 2, 2), of("experts", 9, 1)]));
        assert_eq!(after.since(&before), steps(4, &[of("attention", 60, 3), of("experts", 9, 1)]));
    }
}
