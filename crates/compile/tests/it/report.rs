//! Tests of the report and of error messages.

use flambeau_compile::{Error, Options, Scheme, SchemeName, compile, dry_run};

use crate::support::{compiled, engine, exported, written};

fn refusal(name: &str, options: &Options) -> String {
    match compiled(name, options) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{name} was compiled"),
    }
}

#[test]
fn refusals_name_the_call_its_line_and_the_reason() {
    let check_with = |name: &str, options: &Options, parts: &[&str]| {
        let text = refusal(name, options);
        for part in parts {
            assert!(text.contains(part), "{name}: `{part}` is missing in: {text}");
        }
    };
    let check = |name: &str, parts: &[&str]| check_with(name, &Options::default(), parts);
    let full = Options { require_full: true, ..Options::default() };
    check_with("mutated_input", &full, &["user_input_mutation", "writes to an input"]);
    check_with("mutated_input_aten", &full, &["user_input_mutation", "writes to an input"]);
    check("list_writes", &["1 calls", "aten._foreach_add_.Scalar", "it is a step of training"]);
    check("refused", &["1 calls", "aten.linalg_ldl_factor.default", "make.py", "no rule for this operator"]);
}

#[test]
fn dry_runs_report_without_compiling() {
    let (good, bad) = (exported("nonzero"), exported("refused"));
    let report = dry_run(&[("b", &bad), ("a", &good)], &Options::default()).unwrap();
    let names: Vec<&str> = report.methods.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!((report.methods[0].refused().count(), report.methods[0].fallbacks().count()), (0, 1));
    assert_eq!((report.methods[1].refused().count(), report.methods[1].nodes), (1, 0));
    let full = dry_run(&[("a", &good)], &Options { require_full: true, ..Options::default() }).unwrap();
    assert_eq!(full.methods[0].refused().count(), 1);
}

#[test]
fn reports_name_calls_in_another_precision_than_asked_for() {
    let report = dry_run(&[("forward", &exported("narrowed"))], &Options::default()).unwrap();
    let converted: Vec<String> = report.methods[0].converted().map(ToString::to_string).collect();
    for target in ["aten.item.default", "quantized_decomposed.choose_qparams.tensor"] {
        let line = converted.iter().find(|line| line.starts_with(target));
        assert!(line.is_some_and(|line| line.ends_with("in f32 instead of f64") && line.contains("make.py")), "{converted:?}");
    }
    assert_eq!(converted.len(), 2, "{converted:?}");
    assert!(report.methods[0].table().contains("in f32 instead of f64"));
    assert_eq!(dry_run(&[("forward", &exported("item"))], &Options::default()).unwrap().methods[0].converted().count(), 0);
}

#[test]
fn quantized_weights_are_smaller_and_named_for_their_parts() {
    let program = exported("layers");
    let sizes = |options: Options| {
        let output = compile(&[("forward", &program)], &options, &*engine()).unwrap();
        let names: Vec<String> = output.graphs().flat_map(|g| g.names.iter().map(|(n, _)| n.clone())).collect();
        (written(&output).len(), names)
    };
    let scheme = |name: &str| Some(Scheme::from_name(name, None).unwrap());
    let (plain, _) = sizes(Options::default());
    let (linear, names) = sizes(Options { linear: scheme("4w"), ..Options::default() });
    assert!(names.iter().any(|n| n == "0000/l.weight_packed") && names.iter().any(|n| n == "0000/e.weight"), "{names:?}");
    let (both, names) = sizes(Options { linear: scheme("4w"), embedding: scheme("8w"), ..Options::default() });
    assert!(!names.iter().any(|n| n == "0000/e.weight"), "{names:?}");
    assert!(both < linear && linear < plain, "{plain} → {linear} → {both}");
}

#[test]
fn errors_count_all_refusals_of_all_methods() {
    let (a, b) = (exported("refused"), exported("refused"));
    let Err(Error::Refused { calls, report }) = compile(&[("a", &a), ("b", &b)], &Options::default(), &*engine()) else {
        panic!("it was compiled")
    };
    assert_eq!((calls.len(), report.methods.len()), (2, 2));
}
