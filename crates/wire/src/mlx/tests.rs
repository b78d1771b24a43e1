use flambeau_ir::{
    Add, Addmm, Graph, IdCopy, In, MetaDim, Node, Noop, Out, QuantMode, Slot, SlotCounts, TensorMeta, Tid, Transpose, Vid,
};
use flambeau_tensor::DType;

use super::{
    decode, encode_unchecked,
    field::WireField,
    header, node,
    schema::{chain, graph as g, instruction, named_slot, slot_variant},
};
use crate::{
    error::Error,
    flat::{Field, Flat, FlatWriter, Row},
    limits,
};

/// A value of a field type as JSON. `other` selects the second form of a type with several forms.
fn sample(ty: &str, other: bool) -> String {
    let ty = ty.replace(' ', "");
    if let Some(of) = ty.strip_prefix("Vec<").and_then(|t| t.strip_suffix('>')) {
        return format!("[{},{}]", sample(of, other), sample(of, !other));
    }
    if let Some(of) = ty.strip_prefix("Option<").and_then(|t| t.strip_suffix('>')) {
        return sample(of, other);
    }
    let (one, two) = match ty.as_str() {
        "In" | "Out" | "InOut" => ("\"t7\"", "\"t0\""),
        "InVid" | "OutVid" => ("\"v3\"", "\"v0\""),
        "Int" => ("-9223372036854775808", "\"v2\""),
        "Float" => ("-0.0", "\"v2\""),
        "VidOrTid" => ("\"v4\"", "\"t4\""),
        "Index" => ("\"v4\"", "\"t4\""),
        "DType" => ("\"bf16\"", "\"u8\""),
        "QuantMode" => ("\"mxfp4\"", "\"affine\""),
        "String" => ("\"tanh\"", "\"\""),
        "ChainId" => ("3", "0"),
        "bool" => ("true", "false"),
        "i8" => ("-7", "0"),
        "i32" => ("-2147483648", "0"),
        "u64" => ("18446744073709551615", "0"),
        "f32" => ("0.25", "\"-inf\""),
        other => panic!("no sample of {other}"),
    };
    if other { two } else { one }.to_owned()
}

/// Three forms of every node: with samples in all fields, with the other samples, and with only the
/// required fields.
fn every_node() -> Vec<Node> {
    let mut nodes = Vec::new();
    for info in Node::ALL {
        for variant in 0..3 {
            let value = |name: &str| {
                let field = info.fields.iter().find(|f| f.name == name)?;
                let optional = field.default.is_some() || field.ty.starts_with("Option");
                (variant < 2 || !optional).then(|| sample(field.ty, variant == 1).parse().expect("samples are JSON"))
            };
            nodes.push(Node::from_fields(info.name, &value).unwrap_or_else(|| panic!("{} from samples", info.name)));
        }
    }
    nodes
}

fn graph(chains: Vec<Vec<Node>>) -> Graph {
    Graph {
        slots: SlotCounts { constants: 1, inputs: 1, outputs: 1, buffers: 1, temps: 4 },
        values: 5,
        chains,
        main: 0,
        init: Some(1),
        inputs: vec![Slot::Tensor(Tid(1)), Slot::Value(Vid(4))],
        outputs: vec![Slot::Tensor(Tid(2))],
        buffers: vec![Tid(3)],
        names: vec![("4602/w".into(), Slot::Tensor(Tid(0))), ("n".into(), Slot::Value(Vid(4)))],
        meta: vec![
            TensorMeta::fixed(DType::F32, &[]),
            TensorMeta::row_major(DType::BF16, vec![MetaDim::Static(0), MetaDim::Dynamic { min: 2, max: Some(512) }]),
            TensorMeta::row_major(DType::U8, vec![MetaDim::Dynamic { min: 0, max: None }]),
            TensorMeta { dim_order: Some(vec![]), ..TensorMeta::fixed(DType::Bool, &[]) },
        ],
    }
}

#[test]
fn every_node_survives_encoding() {
    let nodes = every_node();
    assert_eq!(nodes.len(), 3 * Node::ALL.len());
    let before = graph(vec![nodes, vec![]]);
    let payload = encode_unchecked(&before);
    assert_eq!(payload.len() % 16, 0);
    assert_eq!(decode(&payload).expect("our own payload decodes"), before);
}

/// A little-endian buffer with a root offset and the given bytes after it.
fn at_root(root: u32, rest: &[u8]) -> Vec<u8> {
    [&root.to_le_bytes(), rest].concat()
}

#[test]
fn bytes_that_executorch_wrote_are_understood() {
    // The Addmm table of the worked payload: vtable, then bias, out, mat2, mat1 inline. Alpha and
    // beta have their defaults.
    let addmm = [
        0x0c, 0, 0x14, 0, 0x10, 0, 0x0c, 0, 0x08, 0, 0x04, 0, // vtable
        0x0c, 0, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0,
    ];
    let bytes = at_root(0x10, &addmm);
    let flat = Flat::new("test", &bytes, 0);
    let table = flat.root().unwrap();
    let field = |id| Field { id, name: "field" };
    for (id, tid) in [(0, 3), (1, 7), (2, 6), (3, 1)] {
        assert_eq!(In::read(&table, field(id), None).unwrap(), In(Tid(tid)));
    }
    assert_eq!(f32::read(&table, field(4), Some(1.0)).unwrap(), 1.0);
    assert!(In::read(&table, field(5), None).is_err());

    // The Transpose instruction of the worked payload (tag at +9, operation at +4), followed by its
    // table.
    let instruction = [
        0x08, 0, 0x0a, 0, 0x09, 0, 0x04, 0, // vtable of the instruction
        0x08, 0, 0, 0, 0x10, 0, 0, 0, 0, 0x29, // instruction
        0x0a, 0, 0x10, 0, 0x0c, 0, 0x08, 0, 0x04, 0, // vtable of the operation
        0x0a, 0, 0, 0, 0x0c, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, // operation
        2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // perm
    ];
    let bytes = at_root(0x0c, &instruction);
    let flat = Flat::new("test", &bytes, 0);
    let read = node::read(flat.root().unwrap()).unwrap();
    assert_eq!(read, Node::from(Transpose { x: In(Tid(0)), out: Out(Tid(7)), perm: vec![1, 0] }));
}

/// Encodes the worked example: `acc += linear(x); acc + 1`.
#[test]
fn the_worked_graph_keeps_its_shape() {
    let tids = |ids: &[u32]| ids.iter().map(|&i| Slot::Tensor(Tid(i))).collect::<Vec<_>>();
    let (i, o) = (|t| In(Tid(t)), |t| Out(Tid(t)));
    let names = ["l.weight", "l.bias", "acc", "_lifted_tensor_constant1", "x", "aten_add_tensor_1"];
    let example = Graph {
        slots: SlotCounts { constants: 3, inputs: 1, outputs: 1, buffers: 1, temps: 2 },
        chains: vec![vec![
            Transpose { x: i(0), out: o(7), perm: vec![1, 0] }.into(),
            Addmm { mat1: i(3), mat2: i(7), out: o(6), bias: Some(i(1)), alpha: 1.0, beta: 1.0 }.into(),
            Add { a: i(5), b: i(6), out: o(7) }.into(),
            Add { a: i(7), b: i(2), out: o(4) }.into(),
            IdCopy { x: i(7), out: o(5) }.into(),
        ]],
        inputs: tids(&[3]),
        outputs: tids(&[4]),
        buffers: vec![Tid(5)],
        names: names.iter().zip([0, 1, 5, 2, 3, 4]).map(|(n, t)| (format!("4602/{n}"), Slot::Tensor(Tid(t)))).collect(),
        meta: [&[2, 4][..], &[2], &[], &[1, 4], &[1, 2], &[1, 2]].map(|s| TensorMeta::fixed(DType::F32, s)).to_vec(),
        ..Graph::default()
    };
    let payload = encode_unchecked(&example);
    // ExecuTorch's encoding has 1024 bytes.
    assert!(payload.len() <= 1152, "{}", payload.len());
    assert_eq!(
        payload[..16],
        [0, 0, 0, 0, b'M', b'L', b'X', b'0', payload.len() as u8, (payload.len() >> 8) as u8, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(decode(&payload).unwrap(), example);
}

#[test]
fn an_instruction_without_operation_does_nothing() {
    let mut out = FlatWriter::default();
    let empty = out.table(Row::default());
    let list = out.offsets(&[empty]);
    let chain = out.table(Row::default().set(chain::instructions, list));
    let chains = out.offsets(&[chain]);
    let root = out.table(Row::default().set(g::instruction_chains, chains));
    let graph = decode(&header::wrap(&out.finish(root, None))).unwrap();
    assert_eq!(graph.chains, [vec![Node::from(Noop {})]]);
    assert_eq!((graph.init, graph.main), (None, 0));
}

/// A payload whose root table has these fields and an empty list of chains.
fn with_root(fill: impl FnOnce(&mut FlatWriter, Row) -> Row) -> Vec<u8> {
    let mut out = FlatWriter::default();
    let chains = out.offsets(&[]);
    let row = fill(&mut out, Row::default().set(g::instruction_chains, chains));
    let root = out.table(row);
    header::wrap(&out.finish(root, None))
}

/// A payload with one instruction.
fn with_instruction(tag: u8, fill: impl FnOnce(&mut FlatWriter) -> Row) -> Vec<u8> {
    let mut out = FlatWriter::default();
    let row = fill(&mut out);
    let op = out.table(row);
    let one = out.table(Row::default().set(instruction::op_type, tag).set(instruction::op, op));
    let list = out.offsets(&[one]);
    let one = out.table(Row::default().set(chain::instructions, list));
    let chains = out.offsets(&[one]);
    let root = out.table(Row::default().set(g::instruction_chains, chains));
    header::wrap(&out.finish(root, None))
}

#[test]
fn refusals_say_where_and_why() {
    let check = |payload: Vec<u8>, expected: &[&str]| {
        let message = decode(&payload).expect_err("must be refused").to_string();
        expected.iter().for_each(|part| assert!(message.contains(part), "`{message}` lacks `{part}`"));
    };
    let field = |id| Field { id, name: "" };
    check(vec![], &["truncated", "24", "0 bytes"]);
    check(b"0000MLX1________________".to_vec(), &["MLX1", "MLX0"]);
    check(with_root(|out, row| row.set(g::version, out.string("2"))), &["version `2`", "`1`"]);
    check(with_root(|out, row| row.set(g::version, out.string("\u{1b}[2J"))), &["\\u{1b}[2J"]);
    check(with_root(|_, row| row.set(g::num_temp_tensors, u32::MAX)), &["MAX_TENSOR_SLOTS"]);
    check(with_root(|_, row| row.set(g::num_values, u32::MAX)), &["MAX_VALUE_SLOTS"]);
    for (count, most) in
        [(g::num_temp_tensors, flambeau_ir::limits::MAX_TENSOR_SLOTS as u32), (g::num_values, flambeau_ir::limits::MAX_VALUE_SLOTS)]
    {
        assert!(decode(&with_root(|_, row| row.set(count, most))).is_ok(), "{}", count.name);
    }
    check(with_root(|_, row| row.set(g::init_chain_idx, -2i32)), &["init_chain_idx", "-2"]);
    let slot = |out: &mut FlatWriter, kind: i8| out.table(Row::default().set(slot_variant::slot_type, kind));
    let list = |out: &mut FlatWriter, item| out.offsets(&[item]);
    check(
        with_root(|out, row| {
            let slot = slot(out, 2);
            row.set(g::input_map, list(out, slot))
        }),
        &["input_map[0].slot_type", "2"],
    );
    check(
        with_root(|out, row| {
            let slot = slot(out, 1);
            row.set(g::mutable_buffer_map, list(out, slot))
        }),
        &["mutable_buffer_map[0].slot_type", "tensor"],
    );
    check(
        with_root(|out, row| {
            let slot = slot(out, 0);
            let name = out.table(Row::default().set(named_slot::slot, slot));
            row.set(g::named_slots, list(out, name))
        }),
        &["named_slots[0].name", "absent"],
    );
    let (last, unknown) = (Node::ALL.len(), Node::ALL.len() as u8 + 1);
    let said = ["instruction_chains[0].instructions[0].op_type", &unknown.to_string(), &last.to_string()];
    check(with_instruction(unknown, |_| Row::default()), &said);
    check(with_instruction(13, |_| Row::default().set(field(0), 0u32)), &["op.Add.b", "absent"]);
    check(
        with_instruction(46, |_| Row::default().set(field(0), 0u32).set(field(1), 0u32).set(field(2), 44i8)),
        &["AsType.scalar_type", "44"],
    );
    let dequantize = |out: &mut FlatWriter| {
        let row = Row::default().set(field(0), 0u32).set(field(1), 0u32).set(field(2), 0u32);
        row.set(field(6), out.string("nf4"))
    };
    check(with_instruction(53, dequantize), &["Dequantize.mode", "nf4"]);
    assert!(QuantMode::from_name("nf4").is_none());
}

#[test]
fn shared_targets_cannot_multiply_without_bound() {
    let check = |payload: Vec<u8>, limit: &str| match decode(&payload) {
        Err(Error::Limit { limit: found, .. }) => assert_eq!(found, limit),
        other => panic!("expected {limit}, got {:?}", other.map(|g| g.node_count())),
    };
    // 20,000 chains share one chain, whose 20,000 instructions share one instruction.
    let many = 20_000;
    let mut out = FlatWriter::default();
    let empty = out.table(Row::default());
    let list = out.offsets(&vec![empty; many]);
    let one = out.table(Row::default().set(chain::instructions, list));
    let chains = out.offsets(&vec![one; many]);
    let root = out.table(Row::default().set(g::instruction_chains, chains));
    check(header::wrap(&out.finish(root, None)), "MAX_WORK");

    // Many names share one long string.
    let names = with_root(|out, row| {
        let name = out.string(&"n".repeat(100_000));
        let slot = out.table(Row::default());
        let named = out.table(Row::default().set(named_slot::name, name).set(named_slot::slot, slot));
        let names = out.offsets(&vec![named; 10_000]);
        row.set(g::named_slots, names)
    });
    check(names, "MAX_WORK");

    let wide = with_root(|out, row| {
        let slot = out.table(Row::default());
        let slots = out.offsets(&vec![slot; limits::MAX_VECTOR_ENTRIES + 1]);
        row.set(g::input_map, slots)
    });
    check(wide, "MAX_VECTOR_ENTRIES");
}
