//! Counts of a session's nodes: planned before runs, or prepared one by one.

/// Counts of planned and unplanned steps in a session's runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Steps prepared before their runs.
    pub planned: u64,
    /// Nodes prepared during runs.
    pub node_by_node: Vec<NodeByNode>,
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
        Steps { planned: self.planned - before.planned, node_by_node }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_by_kind_and_reason() {
        let of = |node, why: &str, count| NodeByNode { node, why: why.into(), count };
        let steps = |planned, node_by_node: &[NodeByNode]| Steps { planned, node_by_node: node_by_node.to_vec() };
        let before = steps(5, &[of("If", "chains", 2), of("Arange", "open", 1)]);
        let mut after = before.clone();
        after.add(&steps(3, &[of("If", "open", 4), of("Arange", "open", 6)]));
        assert_eq!(after, steps(8, &[of("If", "chains", 2), of("Arange", "open", 7), of("If", "open", 4)]));
        assert_eq!(after.since(&before), steps(3, &[of("Arange", "open", 6), of("If", "open", 4)]));
    }
}
