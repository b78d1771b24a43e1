//! The kernels of ExecuTorch's programs are those whose text may run.

use flambeau_ir::{MetalKernel, Node};
use flambeau_testcases::Case;
use sha2::{Digest, Sha256};

use crate::case_folders;

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

#[test]
fn kernels_of_the_cases_are_trusted_by_their_text() {
    let mut missing = Vec::new();
    for folder in case_folders("ops").into_iter().chain(case_folders("models")) {
        let case = Case::open(&folder).expect("the case opens");
        let Some((graph, _)) = case.delegate_call().expect("the payload decodes") else { continue };
        for node in graph.chains.iter().flatten() {
            if let Node::MetalKernel(kernel) = node {
                let line = format!("{} {}", digest(kernel), kernel.name);
                // ExecuTorch's tests bring a kernel of their own, which its exporter does not emit.
                if kernel.name != "vadd" && !TRUSTED.lines().any(|l| l == line) && !missing.contains(&line) {
                    missing.push(line);
                }
            }
        }
    }
    assert!(missing.is_empty(), "not in the list:\n{}", missing.join("\n"));
}
