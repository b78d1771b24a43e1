//! The examples, and the header's promises, under each compiler.

use flambeau_testcases::test;
use libtest_mimic::Trial;

use crate::toolchain::{Program, has, package};

/// What PyTorch computes from `mlp.pt2` for the rows below, rounded.
const RESULTS: [f32; 6] = [0.500_533_6, 0.190_533_1, 0.587_792_9, 0.162_802_2, -0.721_456_9, 0.785_947_9];
const ROWS: [&str; 12] = ["0.5", "-1", "0", "2", "1", "1", "1", "1", "-3", "0.25", "4", "-0.5"];

const C99: &[&str] = &["-std=c99"];
const CPP17: &[&str] = &["-xc++", "-std=c++17"];

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = Vec::new();
    for (compiler, requirement) in [("gcc", (|| has("gcc")) as fn() -> _), ("clang", || has("clang"))] {
        let mut add =
            |name: &str, body: fn(&str)| tests.push(test(&format!("{compiler}::{name}"), requirement, move || body(compiler)));
        add("run_program", run_program);
        add("contract", contract);
        add("header_is_cpp", header_is_cpp);
    }
    tests
}

fn mlp() -> String {
    package("../flambeau/examples/data/mlp.pte").to_str().unwrap().to_owned()
}

fn run_program(compiler: &str) {
    let program = Program::compile(compiler, C99, &package("examples/run_program.c"));
    let output = program.run(&[&[mlp().as_str()], &ROWS[..]].concat());
    let mut lines = output.lines();
    assert_eq!(lines.next(), Some("output ?: f32[..64, 2]"));
    assert_eq!(lines.next(), Some("input ?: f32[..64, 4]"));
    let numbers: Vec<f32> = lines.map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.len(), RESULTS.len(), "{output}");
    assert!(numbers.iter().zip(RESULTS).all(|(found, expected)| (found - expected).abs() < 2e-6), "{numbers:?}");
}

fn contract(compiler: &str) {
    let program = Program::compile(compiler, C99, &package("tests/c/contract.c"));
    assert_eq!(program.run(&[&mlp()]), "all hold\n");
}

fn header_is_cpp(compiler: &str) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("header.cpp");
    std::fs::write(&source, "#include <flambeau.h>\nint main() { return flb_abi_version() == FLB_ABI_VERSION ? 0 : 1; }\n")
        .unwrap();
    Program::compile(compiler, CPP17, &source).run(&[]);
}
