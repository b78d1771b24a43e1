//! The page of `flambeau inspect --html`, in a browser without a window.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use flambeau::{
    ir::check,
    wire::{
        Blob, ProgramWriter, mlx,
        pte::{Allocation, Chain, Delegate, EValue, ExecutionPlan, Instruction, TensorValue},
    },
};
use flambeau_testcases::test;

fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../flambeau/examples/data").join(name).to_string_lossy().into_owned()
}

fn chromium() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file())
}

fn has_chromium() -> Result<(), String> {
    chromium().map(drop).ok_or_else(|| "there is no Chromium, which Debian has in the package chromium".into())
}

fn flambeau(folder: &Path, args: &[&str]) {
    let done = Command::new(env!("CARGO_BIN_EXE_flambeau")).args(args).current_dir(folder).output().expect("the command runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The elements of a page after its script ran, as text, in the state that `state` names.
fn shown(page: &Path, state: &str) -> String {
    let mut command = Command::new(chromium().expect("it is there"));
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", page.with_extension("profile").display()));
    let done = command.arg(format!("file://{}#{state}", page.display())).output().expect("the browser runs");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && text.contains("<main>"), "{text}{}", String::from_utf8_lossy(&done.stderr));
    // The data and the script are part of the page too.
    let end = text.find("<script id=\"data\"").expect("the page has its data");
    text[..end].to_owned()
}

fn assert_shows(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// The page of the perceptron, with source lines and measured times.
fn a_program_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (program, archive) = (data("mlp.pte"), data("mlp.pt2"));
    std::fs::write(dir.path().join("x.bin"), flambeau::tensor::tensor_list::write(&[input()]).unwrap()).unwrap();
    flambeau(dir.path(), &["run", &program, "-i", "x.bin", "-o", "y.bin", "--repeat", "3", "--trace", "trace.json"]);
    flambeau(dir.path(), &["inspect", &program, "--html", "mlp.html", "--source", &archive, "--profile", "trace.json"]);
    let page = dir.path().join("mlp.html");
    let folded = shown(&page, "");
    assert_shows(&folded, &["mlp.pte, 4.0 KiB", "<summary>up", "<summary>down", "µs"]);
    let node = shown(&page, "v=graph&n=0");
    assert_shows(&node, &["<div id=\"node\">", "aten.linear.default", "up.weight", "f32[64,4]", "<svg"]);
    assert_shows(&shown(&page, "v=graph&n=4"), &["a run, 100.0 % of the delegate"]);
    let found = shown(&page, "v=graph&q=down");
    assert_shows(&found, &["id=\"found\">", "data-node="]);
    assert_shows(&shown(&page, "v=weights"), &["4 weights and buffers, 1.8 KiB", "down.bias"]);
    assert_shows(&shown(&page, "v=source"), &["aten.gelu.default"]);
    assert_shows(&shown(&page, "v=memory"), &["planned arenas: ", "arena 1"]);
    assert_shows(&shown(&page, "v=overview"), &["method forward", "delegate 0 [", "MLXBackend"]);
}

fn input() -> flambeau::tensor::Tensor {
    flambeau::tensor::Tensor::from_slice(&[1.0f32; 8], &[2, 4]).unwrap()
}

/// A chain of `count` nodes, whose one weight has a hostile name.
fn long_program(count: usize) -> Vec<u8> {
    let mut text = String::from(
        "slots constants=1 inputs=1 outputs=1 temps=1\nmain 0\ninput t1\noutput t2\nname t0 \"0000/a.</script><b>.weight\"\n\
         meta t0 f32[2]\nmeta t1 f32[2]\nmeta t2 f32[2]\nchain 0\n  Add a=t1 b=t0 out=t3\n",
    );
    text.extend(std::iter::repeat_n("  Tanh x=t3 out=t3\n", count - 2));
    text += "  Exp x=t3 out=t2\n";
    program(&text, &["0000/a.</script><b>.weight"], 1)
}

/// A program of one delegate with the graph's text. Its arguments are tensors f32[2], and integers
/// after the first input.
fn program(text: &str, weights: &[&str], inputs: u32) -> Vec<u8> {
    let graph = check(text.parse().expect("the text is right")).expect("the graph is right");
    let tensor = |offset| {
        let mut value = TensorValue::new(flambeau::tensor::DType::F32, &[2]);
        value.allocation = Some(Allocation { memory_id: 1, offset });
        EValue::Tensor(Box::new(value))
    };
    let plan = ExecutionPlan {
        name: "forward".into(),
        values: [tensor(0), tensor(16)].into_iter().chain((1..inputs).map(|_| EValue::Int(0))).collect(),
        inputs: [0].into_iter().chain(2..=inputs).collect(),
        outputs: vec![1],
        chains: vec![Chain {
            instructions: vec![Instruction::DelegateCall {
                delegate: 0,
                args: [0].into_iter().chain(2..=inputs).chain([1]).collect(),
            }],
            ..Chain::default()
        }],
        delegates: vec![Delegate { id: "MLXBackend".into(), ..Delegate::default() }],
        non_const_buffer_sizes: vec![0, 32],
        ..ExecutionPlan::default()
    };
    let mut writer = ProgramWriter::new();
    writer.method(plan, vec![Blob::from_bytes(mlx::encode(&graph))]).expect("one payload for one delegate");
    for &name in weights {
        writer.named(name, Blob::from_bytes(vec![0; 8])).expect("a new key");
    }
    let mut out = Vec::new();
    writer.write(&mut out).expect("memory takes all bytes");
    out
}

/// Branches and loops with the nodes that they run.
fn branches_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let text = "slots constants=1 inputs=1 outputs=1 temps=3 values=1\nmain 0\ninput t1\ninput v0\noutput t2\n\
        name t0 \"0000/gate.weight\"\nmeta t0 f32[2]\nmeta t1 f32[2]\nmeta t2 f32[2]\n\
        chain 0\n  Tanh x=t1 out=t3\n  If cond=v0 then_chain_idx=1 else_chain_idx=2\n  Exp x=t4 out=t2\n\
        chain 1\n  Multiply a=t3 b=t0 out=t5\n  Sin x=t5 out=t4\n\
        chain 2\n  If cond=v0 then_chain_idx=3 else_chain_idx=3\n\
        chain 3\n  Neg x=t3 out=t4\n";
    std::fs::write(dir.path().join("if.pte"), program(text, &["0000/gate.weight"], 2)).unwrap();
    flambeau(dir.path(), &["inspect", "if.pte", "--html", "if.html"]);
    let page = dir.path().join("if.html");
    assert_shows(&shown(&page, ""), &["delegate 0: 3 nodes and 4 in branches and loops", "if true of 1", "if false of 1"]);
    let branch = shown(&page, "v=graph&n=1");
    assert_shows(&branch, &["Nodes of if true", "Nodes of if false", ">3 Multiply</text>", ">4 Sin</text>", "data-node=\"3\""]);
    // The innermost node is found, and its folders are open.
    let node = shown(&page, "v=graph&n=6");
    assert_shows(&node, &["if true of node <span><button class=\"link\">5</button>", "data-node=\"6\"", "Neg x=t3 out=t4"]);
    assert_shows(&shown(&page, "v=graph&q=gate"), &["1 of 7 nodes", "data-node=\"3\""]);
}

/// A page of 10,000 nodes shows a bounded part of them at once.
fn a_long_program_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("long.pte"), long_program(10_000)).unwrap();
    flambeau(dir.path(), &["inspect", "long.pte", "--html", "long.html"]);
    let page = dir.path().join("long.html");
    let size = std::fs::metadata(&page).unwrap().len();
    assert!(size < 3 << 20, "{size} bytes");
    let found = shown(&page, "v=graph&q=tanh&n=5000");
    assert_shows(&found, &["9998 of 10000 nodes", "4999 Tanh", "5001 Tanh"]);
    let rows = found.matches("data-node=").count();
    assert_eq!(rows, 300);
    assert_shows(&shown(&page, "v=weights"), &["a.&lt;/script&gt;&lt;b&gt;.weight"]);
}

fn main() -> ExitCode {
    flambeau_testcases::run(vec![
        test("a_program_is_shown", has_chromium, a_program_is_shown),
        test("branches_are_shown", has_chromium, branches_are_shown),
        test("a_long_program_is_shown", has_chromium, a_long_program_is_shown),
    ])
}
