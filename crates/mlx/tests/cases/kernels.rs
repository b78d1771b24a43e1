//! The kernels of ExecuTorch's programs are those whose text may run.

use std::{collections::BTreeSet, path::Path};

use flambeau_ir::{MetalKernel, Node};
use flambeau_testcases::{LoadedCase, Outcome, all};
use sha2::{Digest, Sha256};

use crate::TARGET;

/// Digests of the texts that may run, one a line with the kernel's name.
const TRUSTED: &str = include_str!("../../src/ops/metal/trusted.txt");

fn digest(node: &MetalKernel) -> String {
    let mut hash = Sha256::new();
    for part in [&node.name, node.header.as_deref().unwrap_or_default(), &node.source] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// The kernels of a case that are not in the list.
fn not_trusted(folder: &Path) -> Vec<String> {
    let case = LoadedCase::open(folder).expect("the case opens");
    let graph = case.delegate_call().expect("the payload decodes").map(|(graph, _)| graph).unwrap_or_default();
    let kernels = graph.chains.iter().flatten().filter_map(|node| match node {
        // ExecuTorch's tests bring a kernel of their own, which its exporter does not emit.
        Node::MetalKernel(kernel) if kernel.name != "vadd" => Some(format!("{} {}", digest(kernel), kernel.name)),
        _ => None,
    });
    kernels.filter(|kernel| !TRUSTED.lines().any(|line| line == kernel)).collect()
}

pub(crate) fn kernels_of_the_cases_are_trusted_by_their_text() -> Outcome {
    let mut missing = BTreeSet::new();
    for case in all(Path::new(TARGET)) {
        match case.folder {
            Ok(folder) => missing.extend(not_trusted(&folder)),
            Err(reason) => return Outcome::Ignored(reason),
        }
    }
    assert!(missing.is_empty(), "not in the list: {missing:#?}");
    Outcome::Passed
}
