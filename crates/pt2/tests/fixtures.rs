//! Reads archives that `fixtures/make.py` wrote and checks their contents. Damaged archives must be
//! refused.

use std::{fs, path::PathBuf};

use flambeau_pt2::{Archive, Attribute, Dialect, Exported, InputSpec, OutputSpec, View, Weight};
use flambeau_tensor::{Bytes, DType, Element, Expr, Symbol};
use proptest::prelude::*;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn bytes(name: &str) -> Bytes {
    fs::read(path(name)).unwrap().into()
}

fn program(name: &str) -> Exported {
    Archive::open(bytes(name)).unwrap().only_program().unwrap()
}

fn view<'a>(program: &'a Exported, name: &str) -> &'a View {
    match program.weights.get(name).or_else(|| program.constants.get(name)) {
        Some(Weight::Strided(view)) => view,
        other => panic!("{name}: {other:?}"),
    }
}

fn values<T: Element>(view: &View) -> Vec<T> {
    view.tensor().unwrap().aligned().as_slice::<T>().unwrap().to_vec()
}

#[test]
fn text_is_that_of_pytorch() {
    for name in ["views", "dynamic", "cache_training", "cache_aten", "intx"] {
        let want = fs::read_to_string(path(&format!("{name}.txt"))).unwrap();
        assert_eq!(format!("{}\n", program(&format!("{name}.pt2")).to_string().split("\n\n").next().unwrap()), want, "{name}");
    }
}

/// Checks weights of the model `Views` in an archive of any layout.
fn check_views(file: &str) {
    let p = program(file);
    assert_eq!(p.dialect, Dialect::Training, "{file}");
    assert_eq!(view(&p, "embed.weight"), view(&p, "head.weight"), "{file}: tied weights are one");
    assert_eq!(values::<f32>(view(&p, "head.weight")), (0..20).map(|v| v as f32).collect::<Vec<_>>());
    let transposed = view(&p, "transposed");
    assert_eq!((&transposed.shape[..], transposed.is_contiguous()), (&[4, 3][..], false), "{file}");
    assert_eq!(values::<i32>(transposed), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11], "{file}");
    let (top, bottom) = (view(&p, "top"), view(&p, "bottom"));
    assert_eq!((top.storage.id(), bottom.offset), (bottom.storage.id(), 8), "{file}: overlapping views share their storage");
    assert_ne!(top, bottom, "{file}");
    assert_eq!(values::<f32>(bottom)[..4], [8.0, 9.0, 10.0, 11.0], "{file}");
    assert_eq!((view(&p, "halves").dtype, view(&p, "none").tensor().unwrap().shape()), (DType::BF16, &[0, 3][..]), "{file}");
    assert_eq!(values::<i64>(view(&p, "scratch")), [7], "{file}");
    assert!(p.constants.contains_key("scratch") && !p.weights.contains_key("scratch"), "{file}");
    for input in &p.signature.inputs {
        assert_eq!(p.weight_of(input).is_some(), !matches!(input, InputSpec::UserInput(_)), "{file}: {input:?}");
    }
}

#[test]
fn weights_keep_their_aliasing() {
    check_views("views.pt2");
}

#[test]
fn pickled_layouts_give_the_same_weights() {
    check_views("folder_2_8.pt2");
    check_views("flat_2_7.pt2");
}

#[test]
fn stored_weights_are_slices_of_the_archive() {
    let whole = bytes("views.pt2");
    let range = whole.as_ptr_range();
    let p = Archive::open(whole.clone()).unwrap().only_program().unwrap();
    assert!(range.contains(&view(&p, "head.weight").tensor().unwrap().bytes().as_ptr()));
}

#[test]
fn sizes_are_symbolic() {
    let p = program("dynamic.pt2");
    let x = p.graph.tensor("x").unwrap();
    let rows = x.sizes[0].as_symbol().unwrap().clone();
    assert_eq!((p.ranges.get(&rows), &x.sizes[1]), (Some(&(Some(4), Some(64))), &Expr::Int(2)));
    let extra = p.graph.tensor("extra_pair_0").unwrap().sizes[0].clone();
    assert_eq!(p.graph.tensor("reshape").unwrap().sizes[0], x.sizes[0].clone() + extra.clone());
    assert_eq!(p.graph.sym_ints["mul"], Expr::Int(3) * (x.sizes[0].clone() + extra));
    let gt = |v: i64| p.graph.sym_bools["gt"].eval(&|s: &Symbol| (*s == rows).then_some(v));
    assert_eq!((gt(5), gt(6)), (Some(false), Some(true)));
    assert_eq!(p.graph.subgraphs().map(|s| s.graph.nodes.len()).collect::<Vec<_>>(), [1, 2]);
    let constants = p.signature.inputs.iter().filter(|s| matches!(s, InputSpec::ConstantInput { .. })).count();
    assert_eq!((constants, &p.forward_arg_names[..]), (2, &["x", "extra", "n", "flag"].map(String::from)[..]));
    assert!(p.in_spec.contains("builtins.dict") && p.out_spec.contains("builtins.tuple"));
}

#[test]
fn recorded_sizes_widen_the_range_of_their_symbol() {
    let graph = r#"{"tensor_values":{"x":{"dtype":7,"sizes":[{"as_expr":{"expr_str":"s0","hint":{"as_int":150}}}],"device":{"type":"cpu"},"strides":[{"as_int":1}],"storage_offset":{"as_int":0},"layout":7}}}"#;
    let json = format!(
        r#"{{"graph_module":{{"graph":{graph}}},"range_constraints":{{"s0":{{"min_val":2,"max_val":64}}}},"schema_version":{{"major":8,"minor":20}}}}"#
    );
    let p = Archive::open(folder(&[("models/m.json", &json)])).unwrap().only_program().unwrap();
    assert_eq!(p.ranges.values().collect::<Vec<_>>(), [&(Some(2), Some(150))]);
}

#[test]
fn writes_are_calls_or_outputs_by_dialect() {
    let (training, aten) = (program("cache_training.pt2"), program("cache_aten.pt2"));
    assert_eq!((training.dialect, aten.dialect), (Dialect::Training, Dialect::Aten));
    assert!(training.graph.nodes.iter().any(|n| n.target == "torch.ops.aten.copy_.default"));
    assert!(matches!(training.signature.outputs[..], [OutputSpec::UserOutput(_)]));
    assert!(matches!(&aten.signature.outputs[0], OutputSpec::BufferMutation { name, .. } if name == "k"));
}

#[test]
fn nodes_know_their_source() {
    let p = program("views.pt2");
    let node = p.graph.nodes.iter().find(|n| n.target == "torch.ops.aten.linear.default").unwrap();
    let source = node.source();
    assert_eq!((source.module.as_deref(), source.code.is_some(), source.line.is_some()), (Some("head"), true, true));
}

#[test]
fn quantized_weights_give_their_fields() {
    let p = program("intx.pt2");
    let Some(Weight::Subclass(s)) = p.weights.get("0.weight") else { panic!("{:?}", p.weights) };
    assert_eq!((s.class.as_str(), s.dtype, &s.shape[..]), ("IntxUnpackedToInt8Tensor", DType::F32.into(), &[4, 32][..]));
    let fields: Vec<_> = s.tensors.iter().map(|(name, v)| (name.as_str(), v.dtype, v.shape.clone())).collect();
    let want = [("qdata", DType::I8, vec![4, 32]), ("scale", DType::F32, vec![4, 1]), ("zero_point", DType::I8, vec![4, 1])];
    assert_eq!(fields, want);
    assert_eq!(s.attributes["target_dtype"], Attribute::DType("int4".into()));
    assert_eq!(s.attributes["block_size"], Attribute::List(vec![Attribute::Int(1), Attribute::Int(32)]));
    assert!(values::<u8>(&View { dtype: DType::U8, ..s.tensors["qdata"].clone() }).iter().any(|&v| v != 0));

    assert!(p.weights["0.weight"].tensor().is_err());
}

/// Reads all contents of an archive.
fn read_all(bytes: Bytes) -> flambeau_pt2::Result<()> {
    let archive = Archive::open(bytes)?;
    for name in archive.program_names() {
        let p = archive.program(&name)?;
        for weight in p.weights.values().chain(p.constants.values()) {
            match weight {
                Weight::Subclass(s) => s.tensors.values().try_for_each(|v| v.tensor().map(drop))?,
                other => other.tensor().map(drop)?,
            }
        }
        let _ = (p.to_string(), p.graph.nodes.iter().map(|n| n.source()).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn truncated_archives_are_refused() {
    for name in ["views.pt2", "dynamic.pt2", "intx.pt2", "folder_2_8.pt2", "flat_2_7.pt2"] {
        let whole = bytes(name);
        assert!(read_all(whole.clone()).is_ok(), "{name}");
        for end in (0..whole.len()).step_by(37) {
            assert!(read_all(whole.slice(..end)).is_err(), "{name} cut at {end}");
        }
    }
}

#[test]
fn other_files_are_refused_by_name() {
    let check = |bytes: &[u8], want: &str| {
        let error = Archive::open(Bytes::copy_from_slice(bytes)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    check(b"", "not a readable zip archive");
    check(b"GGUF....", "not a readable zip archive");
    let unknown = Archive::open(bytes("views.pt2")).unwrap().program("other").unwrap_err().to_string();
    assert_eq!(unknown, "no program `other` in the archive, which has: model");
}

/// An archive in the folder layout with these members.
fn folder(members: &[(&str, &str)]) -> Bytes {
    use std::io::Write;
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let empty = [
        ("data/weights/m_weights_config.json", r#"{"config":{}}"#),
        ("data/constants/m_constants_config.json", r#"{"config":{}}"#),
    ];
    let marks = [("archive_format", "pt2"), ("archive_version", "0")];
    let defaults = empty.iter().filter(|d| !members.iter().any(|m| m.0 == d.0));
    for (name, text) in marks.iter().chain(defaults).chain(members) {
        zip.start_file(format!("r/{name}"), options).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner().into()
}

#[test]
fn members_that_share_their_data_are_refused() {
    const LEN: u32 = 1_000_003;
    let whole = folder(&[("data/weights/weight_0", &"0".repeat(LEN as usize))]);
    assert!(Archive::open(whole.clone()).is_ok());
    let mut larger = whole.to_vec();
    for at in 0..larger.len() - 4 {
        if larger[at..at + 4] == LEN.to_le_bytes() {
            larger[at..at + 4].copy_from_slice(&u32::MAX.saturating_sub(1).to_le_bytes());
        }
    }
    let error = Archive::open(larger.into()).unwrap_err().to_string();
    assert!(error.contains("bytes of all members"), "{error}");
}

#[test]
fn faults_of_the_program_are_named() {
    let check = |json: &str, want: &str| {
        let error = read_all(folder(&[("models/m.json", json)])).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    let with_graph = |graph: &str| format!(r#"{{"graph_module":{{"graph":{graph}}},"schema_version":{{"major":8,"minor":20}}}}"#);
    check(r#"{"graph_module":{"graph":{}},"schema_version":{"major":9,"minor":1}}"#, "expected schema 8, found schema 9.1");
    check("[", "archive member `models/m.json`: EOF");
    check(&with_graph(r#"{"inputs":[{"as_tensor":{"name":"x"}}]}"#), "describes 0 inputs, the graph has 1");
    check(&with_graph(r#"{"inputs":[{"as_surprise":1}]}"#), "unknown variant `as_surprise`");
    check(&with_graph(r#"{"outputs":[{"as_tensor":{"name":"x"}}]}"#), "value `x` is used by the outputs before it is defined");
    let meta = r#"{"dtype":77,"sizes":[],"device":{"type":"cpu"},"strides":[],"storage_offset":{"as_int":0},"layout":7}"#;
    check(&with_graph(&format!(r#"{{"tensor_values":{{"x":{meta}}}}}"#)), "element type 77 is not known");
    let nested = (0..12).fold("{}".to_owned(), |g, _| {
        format!(r#"{{"nodes":[{{"target":"t","inputs":[{{"arg":{{"as_graph":{{"name":"g","graph":{g}}}}}}}]}}]}}"#)
    });
    check(&with_graph(&nested), "graphs inside of graphs: 9 exceeds the limit of 8");
}

#[test]
fn faults_of_the_weights_are_named() {
    let meta = |dtype: i64, sizes: &str| {
        format!(
            r#"{{"dtype":{dtype},"sizes":{sizes},"device":{{"type":"cpu"}},"strides":[{{"as_int":1}}],"storage_offset":{{"as_int":0}},"layout":7}}"#
        )
    };
    let check = |meta: &str, pickled: bool, want: &str| {
        let config = format!(r#"{{"config":{{"w":{{"path_name":"weight_0","use_pickle":{pickled},"tensor_meta":{meta}}}}}}}"#);
        let program = r#"{"graph_module":{"graph":{}},"schema_version":{"major":8,"minor":20}}"#;
        let members =
            [("models/m.json", program), ("data/weights/m_weights_config.json", &config), ("data/weights/weight_0", "12345678")];
        let error = read_all(folder(&members)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    check(&meta(7, r#"[{"as_int":3}]"#), false, "reaches byte 12 of a storage of 8");
    check(&meta(7, r#"[{"as_int":-3}]"#), false, "expected a size, found -3");
    check(&meta(7, r#"[{"as_expr":{"expr_str":"s0"}}]"#), false, "expected a size, found s0");
    check(&meta(11, r#"[{"as_int":1}]"#), false, "which is not supported");
    check(&meta(7, r#"[{"as_int":2}]"#), true, "not a readable zip archive");
    check("null", true, "constant `w` is a script or Python object");
}

#[test]
fn weights_of_fake_tensors_have_shapes_but_no_elements() {
    let config = |sizes: &str, strides: &str| {
        format!(
            r#"{{"config":{{"w":{{"path_name":"weight_0","use_pickle":false,"tensor_meta":{{"dtype":7,"sizes":{sizes},"device":{{"type":"cpu"}},"strides":{strides},"storage_offset":{{"as_int":0}},"layout":7}}}}}}}}"#
        )
    };
    let open = |config: &str| {
        let program = r#"{"graph_module":{"graph":{}},"schema_version":{"major":8,"minor":20}}"#;
        let members = [("models/m.json", program), ("data/weights/m_weights_config.json", config), ("data/weights/weight_0", "")];
        Archive::open(folder(&members)).unwrap().only_program().unwrap()
    };
    let program = open(&config(r#"[{"as_int":3},{"as_int":5}]"#, r#"[{"as_int":5},{"as_int":1}]"#));
    let weight = view(&program, "w");
    assert_eq!((&weight.shape[..], weight.storage.len(), weight.storage.is_absent()), (&[3, 5][..], 60, true));
    let error = weight.tensor().unwrap_err().to_string();
    assert!(error.contains("the archive has only its shape"), "{error}");
    let none = open(&config(r#"[{"as_int":0},{"as_int":5}]"#, r#"[{"as_int":5},{"as_int":1}]"#));
    assert_eq!(view(&none, "w").tensor().unwrap().shape(), [0, 5]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_archives_never_panic(which in 0usize..5, damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let name = ["views.pt2", "dynamic.pt2", "intx.pt2", "folder_2_8.pt2", "flat_2_7.pt2"][which];
        let mut data = bytes(name).to_vec();
        for (at, value) in damage {
            let at = at.index(data.len());
            data[at] = value;
        }
        let _ = read_all(data.into());
    }

    #[test]
    fn any_program_text_is_read_or_refused(cut in any::<prop::sample::Index>(), insert in ".{0,6}") {
        let json = r#"{"graph_module":{"graph":{"inputs":[{"as_tensor":{"name":"x"}}],"outputs":[{"as_tensor":{"name":"y"}}],"nodes":[{"target":"torch.ops.aten.relu.default","inputs":[{"name":"self","arg":{"as_tensor":{"name":"x"}},"kind":1}],"outputs":[{"as_tensor":{"name":"y"}}],"metadata":{}}],"tensor_values":{}}},"schema_version":{"major":8,"minor":20}}"#;
        let at = cut.index(json.len());
        let _ = read_all(folder(&[("models/m.json", &format!("{}{insert}{}", &json[..at], &json[at + 1..]))]));
    }
}
