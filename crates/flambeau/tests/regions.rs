//! Regions of a single-token step on CUDA devices, of freshly exported checkpoints.
//!
//! The table is `regions/table.txt`. The test also writes the table that it found, and its message
//! names the file.
#![cfg(all(feature = "cpu", feature = "mlx", feature = "zoo"))]

mod fresh;

use std::{fmt::Write as _, ops::Range, path::Path};

use flambeau::{
    ir::{Checked, Graph, Node, check},
    mlx::StepPlan,
    tensor::DType,
    zoo::Model,
};

use fresh::{CHUNK, CHUNK_WITH_RINGS, export, families, model, model_with_adapter, model_with_separate_gates};

const TABLE: &str = include_str!("regions/table.txt");

/// Families that are also listed with an adapter.
const WITH_ADAPTER: [&str; 2] = ["llama", "qwen2"];

/// Counts equal texts, in the order of their first appearance.
fn counted(texts: impl Iterator<Item = String>) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    for text in texts {
        match all.iter_mut().find(|(_, known)| *known == text) {
            Some((count, _)) => *count += 1,
            None => all.push((1, text)),
        }
    }
    all
}

/// The regions of a graph by form, and the other nodes by reason.
fn lines(graph: &Checked) -> String {
    let plan = StepPlan::of(graph);
    let mut text = String::new();
    let form = |region: &flambeau::mlx::Region| match &region.apart {
        Some(why) => format!("{} ({why})", region.form),
        None => region.form.clone(),
    };
    for (count, form) in counted(plan.regions.iter().map(form)) {
        let _ = writeln!(text, "  {count} x {form}");
    }
    for (count, why) in counted(plan.single.into_iter().map(|node| node.why)) {
        let _ = writeln!(text, "  {count} nodes one by one: {why}");
    }
    text
}

fn table() -> String {
    let mut text = String::new();
    for (name, config) in families() {
        add(&mut text, name, &model(&config, CHUNK));
        if !config["sliding_window"].is_null() {
            add(&mut text, &format!("{name}, caches as rings"), &model(&config, CHUNK_WITH_RINGS));
        }
        if WITH_ADAPTER.contains(&name) {
            add(&mut text, &format!("{name}, an adapter"), &model_with_adapter(&config));
        }
        if !config["num_experts"].is_null() {
            add(&mut text, &format!("{name}, separate gates"), &model_with_separate_gates(&config));
        }
    }
    text
}

/// Adds the lines of a model, once for all schemes with the same lines.
fn add(text: &mut String, name: &str, model: &Model) {
    let mut schemes: Vec<(Vec<&str>, String)> = Vec::new();
    for scheme in ["4w", "8w", "bf16"] {
        let found: String = export(model, scheme).graphs().map(lines).collect();
        match schemes.iter_mut().find(|(_, lines)| *lines == found) {
            Some((schemes, _)) => schemes.push(scheme),
            None => schemes.push((vec![scheme], found)),
        }
    }
    for (schemes, lines) in schemes {
        let _ = write!(text, "{name}: {}\n{lines}", schemes.join(", "));
    }
}

/// The text of each model by its first line.
fn blocks(table: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in table.lines() {
        match blocks.last_mut() {
            Some((_, lines)) if line.starts_with(' ') => lines.push(line),
            _ => blocks.push((line, Vec::new())),
        }
    }
    blocks
}

#[test]
fn exported_families_run_in_the_regions_of_the_table() {
    let found = table();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regions.txt");
    std::fs::write(&file, &found).unwrap();
    let (found_blocks, expected_blocks) = (blocks(&found), blocks(TABLE));
    let others = |blocks: &[(&str, Vec<&str>)], known: &[(&str, Vec<&str>)]| -> String {
        let others = blocks.iter().filter(|block| !known.contains(block));
        others.map(|(name, lines)| format!("{name}\n{}\n", lines.join("\n"))).collect()
    };
    let (expected, found_instead) = (others(&expected_blocks, &found_blocks), others(&found_blocks, &expected_blocks));
    assert!(found == TABLE, "expected\n{expected}found\n{found_instead}the whole table is in {}", file.display());
}

/// The graph of a family in 4 bits.
fn graph(name: &str) -> Graph {
    let config = families().into_iter().find(|(known, _)| *known == name).unwrap().1;
    let model = if config["num_experts"].is_null() { model(&config, CHUNK) } else { model_with_separate_gates(&config) };
    let output = export(&model, "4w");
    let graph = output.graphs().next().unwrap();
    (**graph).clone()
}

fn plan(graph: &Graph) -> StepPlan {
    StepPlan::of(&check(graph.clone()).unwrap())
}

/// Number of regions with attention that writes its own cache, and that reads an earlier one.
fn attentions(plan: &StepPlan) -> [usize; 2] {
    let count = |earlier| {
        plan.regions
            .iter()
            .filter(|region| region.form.contains("attention"))
            .filter(|region| region.form.contains("over an earlier cache") == earlier)
            .count()
    };
    [count(false), count(true)]
}

/// The nodes of the first attention over an earlier cache.
fn later_attention(graph: &Graph) -> Range<usize> {
    let plan = plan(graph);
    let of_layer = plan.regions.iter().find(|region| region.form.contains("over an earlier cache"));
    of_layer.unwrap().nodes.clone()
}

#[test]
fn a_cache_that_something_else_reads_is_no_attention_of_its_own() {
    // If one reader of a shared cache is no region, the owner of the cache produces the slices as
    // its nodes would.
    let mut graph = graph("gemma4, shared caches");
    assert_eq!(attentions(&plan(&graph)), [2, 2]);
    let (range, main) = (later_attention(&graph), graph.main as usize);
    for node in &mut graph.chains[main][range] {
        if let Node::Sdpa(sdpa) = node {
            sdpa.v = sdpa.k;
        }
    }
    let found = plan(&graph);
    assert_eq!(attentions(&found), [1, 1]);
    let why = "attention: a node outside of attention steps reads a slice of the cache";
    assert!(found.single.iter().any(|node| node.why == why), "{:?}", found.single);
}

#[test]
fn a_norm_of_another_type_than_the_cache_is_refused() {
    let mut graph = graph("gemma4, shared caches");
    let range = later_attention(&graph);
    let rotation = graph.chains[graph.main as usize][range.clone()].iter().position(|node| matches!(node, Node::Rope(_))).unwrap();
    let nodes = &graph.chains[graph.main as usize][range.start..range.start + rotation];
    let norm = nodes.iter().rev().find_map(|node| if let Node::RMSNorm(norm) = node { norm.weight } else { None }).unwrap();
    graph.meta[norm.0.0 as usize].dtype = DType::F32;
    let found = plan(&graph);
    assert_eq!(attentions(&found), [1, 1]);
    assert!(found.single.iter().any(|node| node.why == "attention: a norm has another type than the cache"), "{:?}", found.single);
}

#[test]
fn experts_that_are_not_the_best_are_no_region() {
    let text = graph("qwen3_moe").to_string();
    // The first of an ascending order, and shares of another sum.
    for (from, to) in [("start=-1 stop=-5 step=-1", "start=0 stop=4"), ("axes=[1] keepdims=true", "axes=[0] keepdims=true")] {
        assert!(text.contains(from), "{from}");
        let changed: Graph = text.replace(from, to).parse().unwrap();
        let found = plan(&changed);
        assert!(found.regions.iter().all(|region| !region.form.contains("experts")), "{to}: {:?}", found.regions);
        assert!(found.single.iter().any(|node| node.why.starts_with("experts: ")), "{to}");
    }
}

#[test]
fn a_mask_of_another_ring_is_no_region() {
    let config = families().into_iter().find(|(known, _)| *known == "mistral").unwrap().1;
    let model = model(&config, CHUNK_WITH_RINGS);
    let output = export(&model, "4w");
    let mut graph: Graph = (**output.graphs().next().unwrap()).clone();
    let over_rings = |plan: StepPlan| plan.regions.iter().filter(|region| region.form.contains("over a ring")).count();
    assert_eq!(over_rings(plan(&graph)), 2);
    // The new rows now go to the places of a ring of the window's length.
    let width = graph.chains[graph.main as usize].iter().find_map(|node| match node {
        Node::Less(less) => Some(less.b),
        _ => None,
    });
    let main = graph.main as usize;
    for node in &mut graph.chains[main] {
        if let Node::Remainder(row) = node {
            row.b = width.unwrap();
            break;
        }
    }
    let found = plan(&graph);
    assert!(
        found.single.iter().any(|node| node.why == "attention: mask and new row belong to different rings"),
        "{:?}",
        found.single
    );
    assert_eq!(over_rings(found), 0);
}
