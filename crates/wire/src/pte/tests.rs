use flambeau_tensor::{Bytes, DType};

use super::{
    encode::write_plan,
    header::Header,
    schema::{buffer, inline_data, program as root, subsegment},
    *,
};
use crate::{
    Blob, Error,
    flat::{FlatWriter, Row},
};

/// Puts bytes at an offset of a file under construction.
fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Little-endian bytes of 32-bit words.
fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Header, root table, named data and segment table of the worked example, at ExecuTorch's offsets.
fn golden() -> Vec<u8> {
    let mut f = vec![0; 3460];
    put(&mut f, 0, &words(&[0x3c]));
    put(&mut f, 4, b"ET12eh00");
    put(&mut f, 0x0c, &words(&[32, 0x830, 0, 0x880, 0, 0x504, 0]));
    put(&mut f, 0x28, &[0x14, 0, 0x1c, 0, 0, 0, 0x18, 0, 0x14, 0, 0x10, 0, 0x0c, 0, 8, 0, 0, 0, 4, 0]);
    put(&mut f, 0x3c, &words(&[0x14, 0x18, 0x90, 0xa4, 0x124, 0x124, 0x124]));
    put(&mut f, 0x58, &words(&[3, 0x58, 0x38, 0x04]));
    // Named data, with the vtable far after its users. The segment tables share two vtables.
    put(&mut f, 0x6cc, &[8, 0, 12, 0, 4, 0, 8, 0]);
    for (at, key, segment) in
        [(0xb4u32, "4602/l.weight", 2u32), (0x98, "4602/l.bias", 3), (0x68, "4602/_lifted_tensor_constant1", 4)]
    {
        put(&mut f, at as usize, &words(&[(at as i32 - 0x6cc) as u32, 8, segment, key.len() as u32]));
        put(&mut f, at as usize + 16, key.as_bytes());
    }
    put(&mut f, 0x6d4, &[8, 0, 8, 0, 0, 0, 4, 0]);
    put(&mut f, 0xd4, &words(&[(0xd4i32 - 0x6d4) as u32, 8, 0, 1, 0, 0]));
    put(&mut f, 0xec, &words(&[5]));
    put(&mut f, 0x6e0, &[8, 0, 20, 0, 4, 0, 12, 0]);
    put(&mut f, 0x6e8, &[4, 0, 4, 0]);
    for (i, (offset, size)) in [(0, 0), (0, 0x400), (0x400, 32), (0x480, 8), (0x500, 4)].into_iter().enumerate() {
        let (slot, at) = (0xf0 + 4 * i as u32, 0x700 + 24 * i as u32);
        put(&mut f, slot as usize, &words(&[at - slot]));
        let vtable = if size == 0 { 0x6e8 } else { 0x6e0 };
        put(&mut f, at as usize, &words(&[at - vtable, offset, 0, size, 0]));
    }
    put(&mut f, 0xc80, &words(&[0, 0x3f80_0000]));
    put(&mut f, 0xd00, &words(&[0x3f00_0000, 0xbf00_0000]));
    put(&mut f, 0xd80, &words(&[0x3f80_0000]));
    f
}

#[test]
fn bytes_that_executorch_wrote_are_understood() {
    let file = Bytes::from(golden());
    let program = read_program(&file).unwrap();
    let keys: Vec<&str> = program.named_data.keys().map(String::as_str).collect();
    assert_eq!(keys, ["4602/l.weight", "4602/l.bias", "4602/_lifted_tensor_constant1"]);
    let places: Vec<(u64, usize)> = program.segments.iter().map(|s| (s.offset, s.data.len())).collect();
    assert_eq!(places, [(0x880, 0), (0x880, 0x400), (0xc80, 32), (0xd00, 8), (0xd80, 4)]);
    assert_eq!(program.named("4602/l.bias").unwrap(), words(&[0x3f00_0000, 0xbf00_0000]));
    assert_eq!(program.named("4602/acc"), None);
    // Segments are views of the file.
    assert_eq!(program.segment(4).as_ptr(), file[0xd80..].as_ptr());
    let (header, base) = Header::bytes(0x830 - 32, 0x504);
    assert_eq!((&header[..], base), (&file[8..40], 0x880));
}

fn write(writer: ProgramWriter<'_>) -> Bytes {
    let mut out = Vec::new();
    let len = writer.write(&mut out).unwrap();
    assert_eq!(len, out.len() as u64);
    out.into()
}

fn planned(dtype: DType, sizes: &[u32], offset: u64) -> TensorValue {
    TensorValue { allocation: Some(Allocation { memory_id: 1, offset }), ..TensorValue::new(dtype, sizes) }
}

fn value(t: TensorValue) -> EValue {
    EValue::Tensor(Box::new(t))
}

/// A method with every kind of value and instruction.
fn busy_plan(name: &str) -> ExecutionPlan {
    let channels_last = TensorValue { dim_order: vec![0, 2, 3, 1], dynamic: true, ..planned(DType::BF16, &[1, 2, 2, 2], 16) };
    let external = ExtraTensorInfo { fully_qualified_name: Some("w".into()), external: true, ..ExtraTensorInfo::default() };
    let devices = vec![BufferDevice { buffer: 1, device: Device { kind: 1, index: 2 } }];
    ExecutionPlan {
        name: name.into(),
        container: ContainerMeta { inputs: "[1]".into(), outputs: String::new() },
        values: vec![
            EValue::None,
            EValue::Int(i64::MIN),
            EValue::Bool(true),
            EValue::Double(-0.0),
            EValue::String("é".into()),
            value(planned(DType::F32, &[], 0)),
            value(channels_last),
            value(TensorValue { extra: Some(external), ..TensorValue::new(DType::U8, &[0, 3]) }),
            EValue::IntList(vec![1, 1]),
            EValue::DoubleList(vec![0.5]),
            EValue::BoolList(vec![true, false]),
            EValue::TensorList(vec![5, 6]),
            EValue::OptionalTensorList(vec![None, Some(0), Some(7)]),
        ],
        inputs: vec![5, 1],
        outputs: vec![6],
        chains: vec![Chain {
            inputs: vec![],
            outputs: vec![],
            instructions: vec![
                Instruction::KernelCall { op: 0, args: vec![5, 8, 6, 6] },
                Instruction::DelegateCall { delegate: 1, args: vec![5, 6] },
                Instruction::MoveCall { from: 5, to: 6 },
                Instruction::JumpFalse { cond: 2, destination: 5 },
                Instruction::Free { value: 6 },
            ],
        }],
        operators: vec![Operator { name: "aten::add".into(), overload: "out".into() }],
        delegates: ["MLXBackend", "Other"]
            .map(|id| Delegate {
                id: id.into(),
                compile_specs: vec![CompileSpec { key: "k".into(), value: Bytes::from_static(&[1, 2]) }],
                ..Delegate::default()
            })
            .to_vec(),
        non_const_buffer_sizes: vec![0, 1 << 33],
        devices,
    }
}

#[test]
fn what_is_written_is_read() {
    let mut writer = ProgramWriter::new();
    let weights = || Blob::lazy(200, b"w", |out| out.write_all(&[7; 200]));
    let constant = writer.constant(Blob::from_bytes(vec![1; 4]));
    assert_eq!(writer.constant(Blob::from_bytes(vec![2; 20])), constant + 1);
    assert_eq!(writer.constant(Blob::from_bytes(vec![1; 4])), constant);
    let initial = writer.initial(Blob::from_bytes(vec![3; 4]));
    let mut plan = busy_plan("forward");
    plan.values.push(value(TensorValue { data_buffer_idx: constant + 1, ..TensorValue::new(DType::F32, &[5]) }));
    plan.values.push(value(TensorValue { data_buffer_idx: initial, ..planned(DType::F32, &[1], 32) }));
    writer.method(plan.clone(), vec![Blob::from_bytes(vec![9; 100]), Blob::from_bytes(vec![])]).unwrap();
    writer.method(busy_plan("prefill"), vec![Blob::from_bytes(vec![8; 300]), Blob::from_bytes(vec![9; 100])]).unwrap();
    writer.constant_method("get_eos_ids", vec![EValue::Int(2), EValue::Int(3)]);
    for key in ["a/w", "b/w", "a/w"] {
        writer.named(key, weights()).unwrap();
    }
    writer.named("b/x", Blob::from_bytes(vec![7; 200])).unwrap();
    assert!(matches!(writer.named("a/w", Blob::from_bytes(vec![0])), Err(Error::KeyConflict { .. })));

    let file = write(writer);
    let program = read_program(&file).unwrap();
    let [forward, prefill, eos] = &program.plans[..] else { panic!("{} plans", program.plans.len()) };
    assert_eq!(eos.outputs, [0, 1]);
    assert_eq!(forward.delegates[0].data, DelegateData::Segment(2));
    assert_eq!((forward.delegates[0].data, forward.delegates[1].data), (prefill.delegates[1].data, DelegateData::Inline(0)));
    assert_eq!(program.delegate_payload(&prefill.delegates[0]), vec![8; 300]);
    assert!(program.delegate_payload(&forward.delegates[1]).is_empty());
    assert_eq!((program.named_data["a/w"], program.named_data["b/w"], program.named_data["b/x"]), (4, 4, 5));
    assert_eq!(program.named("b/w").unwrap(), vec![7; 200]);
    let data: Vec<_> =
        forward.values.iter().filter_map(|v| if let EValue::Tensor(t) = v { program.tensor_data(t) } else { None }).collect();
    assert_eq!(data, [vec![2; 20], vec![3; 4]]);
    for segment in &program.segments {
        assert_eq!(segment.offset % 128, 0);
    }
    let last = program.segments.last().unwrap();
    assert_eq!(last.offset + last.data.len() as u64, file.len() as u64);

    let mut same = forward.clone();
    same.delegates.iter_mut().zip(&plan.delegates).for_each(|(a, b)| a.data = b.data);
    assert_eq!(same, plan);

    // A copy drops unused constants and shares equal data. A copy of the copy is identical.
    let copy = |p: &Program| {
        let writer = ProgramWriter::from_program(p, |_, payload| Ok(Blob::from_bytes(payload))).unwrap();
        read_program(&write(writer)).unwrap()
    };
    let once = copy(&program);
    assert_eq!((once.segments.len(), program.segments.len()), (5, 6));
    assert_eq!(once.named("b/x"), program.named("b/x"));
    assert_eq!(copy(&once), once);
}

#[test]
fn without_segment_data_there_is_no_header() {
    let mut writer = ProgramWriter::new();
    writer.constant_method("get_max_seq_len", vec![EValue::Int(128)]);
    let file = write(writer);
    assert_eq!(&file[4..8], b"ET12");
    assert_ne!(&file[8..12], b"eh00");
    let program = read_program(&file).unwrap();
    assert_eq!(program.plan("get_max_seq_len").unwrap().values, [EValue::Int(128)]);
}

/// A small file with a header.
fn small() -> Vec<u8> {
    let mut writer = ProgramWriter::new();
    writer.method(ExecutionPlan { delegates: vec![], ..ExecutionPlan::constant("forward", vec![]) }, vec![]).unwrap();
    writer.named("w", Blob::from_bytes(vec![1; 8])).unwrap();
    write(writer).to_vec()
}

fn refused(file: Vec<u8>, expected: &[&str]) {
    let message = read_program(&Bytes::from(file)).expect_err("must be refused").to_string();
    expected.iter().for_each(|part| assert!(message.contains(part), "`{message}` lacks `{part}`"));
}

/// A file in the form from before segments: constants and payloads inside the tables.
fn legacy(plan: &ExecutionPlan, constants: &[&[u8]], segment_offsets: &[u64]) -> Vec<u8> {
    let mut out = FlatWriter::default();
    let plans = out.each(std::slice::from_ref(plan), write_plan);
    let buffers = out.each(constants, |out, bytes| {
        let storage = out.scalars::<u8>(bytes);
        out.table(Row::default().set(buffer::storage, storage))
    });
    let payload = out.scalars::<u8>(b"payload");
    let payload = out.table(Row::default().set(inline_data::data, payload));
    let payloads = out.offsets(&[payload]);
    let offsets = out.scalars(segment_offsets);
    let constant_segment = out.table(Row::default().set(subsegment::offsets, offsets));
    let row = Row::default().set(root::execution_plan, plans).set(root::constant_buffer, buffers);
    let row = row.set(root::backend_delegate_data, payloads).set(root::constant_segment, constant_segment);
    let table = out.table(row);
    out.finish(table, Some("ET12"))
}

#[test]
fn files_older_than_segments_are_read() {
    let constant = value(TensorValue { data_buffer_idx: 1, ..TensorValue::new(DType::U8, &[3]) });
    let delegate = Delegate { id: "Other".into(), ..Delegate::default() };
    let plan = ExecutionPlan { delegates: vec![delegate], ..ExecutionPlan::constant("forward", vec![constant]) };
    let program = read_program(&Bytes::from(legacy(&plan, &[b"", b"abcd"], &[]))).unwrap();
    let [read] = &program.plans[..] else { panic!("{} plans", program.plans.len()) };
    assert_eq!(read, &plan);
    assert_eq!(program.delegate_payload(&read.delegates[0]), "payload");
    let EValue::Tensor(tensor) = &read.values[0] else { panic!("{:?}", read.values) };
    assert_eq!(program.tensor_data(tensor).unwrap(), "abc");

    refused(legacy(&plan, &[b"", b"ab"], &[]), &["values[0].data_buffer_idx", "3 bytes needed, 2 available"]);
    refused(legacy(&plan, &[b""], &[]), &["values[0].data_buffer_idx", "constant 1 of 1"]);
    // A single offset is the placeholder, so there are no constants, neither in a segment nor
    // inline.
    refused(legacy(&plan, &[b"", b"abcd"], &[0]), &["constant 1 of 0"]);
    refused(legacy(&plan, &[b"", b"abcd"], &[0, 0]), &["constant_buffer", "both"]);
    refused(legacy(&plan, &[], &[0, 0]), &["constant_segment.segment_index", "segment 0 of 0"]);
    let second = ExecutionPlan { delegates: vec![Delegate { data: DelegateData::Inline(1), ..Delegate::default() }], ..plan };
    refused(legacy(&second, &[b"", b"abcd"], &[]), &["delegates[0].processed", "inline payload 1 of 1"]);
}

#[test]
fn what_one_method_needs_stops_no_other() {
    let plain = ExecutionPlan::constant("plain", vec![EValue::Int(7)]);
    let complex = ExecutionPlan::constant("complex", vec![value(planned(DType::C64, &[2], 0))]);
    let complex = ExecutionPlan { non_const_buffer_sizes: vec![0, 64], ..complex };
    let mut writer = ProgramWriter::new();
    writer.method(plain.clone(), vec![]).unwrap();
    writer.method(complex.clone(), vec![]).unwrap();
    let file = write(writer);
    assert_eq!(read_program(&file).unwrap().plans, [plain.clone(), complex]);
    // Replaces 64-bit complex numbers by 128-bit ones.
    let changed = (0..file.len()).filter(|&at| file[at] == DType::C64.code() as u8).filter_map(|at| {
        let mut file = file.to_vec();
        file[at] += 1;
        read_program(&file.into()).ok()
    });
    let refusing: Vec<Program> = changed.filter(|program| !program.unsupported.is_empty()).collect();
    let [program] = &refusing[..] else { panic!("{} programs refuse a method", refusing.len()) };
    assert_eq!(program.plans, [plain]);
    let [method] = &program.unsupported[..] else { panic!("{:?}", program.unsupported) };
    assert_eq!(method.name, "complex");
    assert!(method.reason.contains("values[0].val.scalar_type`: scalar type 10"), "{}", method.reason);
    assert!(ProgramWriter::from_program(program, |_, data| Ok(Blob::from_bytes(data))).is_err());
}

#[test]
fn old_headers_are_accepted() {
    let mut file = small();
    let program = read_program(&Bytes::from(file.clone())).unwrap();
    put(&mut file, 12, &words(&[24]));
    put(&mut file, 32, &u64::MAX.to_le_bytes());
    assert_eq!(read_program(&Bytes::from(file)).unwrap(), program);
}

#[test]
fn bad_heads_are_refused() {
    refused(vec![], &["truncated", "0 bytes"]);
    refused(b"PK\x03\x04\0\0\0\0\0\0".to_vec(), &["not an ExecuTorch program", "ET12"]);
    refused([&[0; 4], &b"ET13"[..], &[0; 60]].concat(), &["ET13", "ET12"]);
    refused(b"\x08\0\0\0ET12eh00".to_vec(), &["truncated", "header"]);
    let edit = |at: usize, bytes: &[u8]| {
        let mut file = small();
        put(&mut file, at, bytes);
        file
    };
    refused(edit(12, &words(&[23])), &["header.length", "23"]);
    refused(edit(16, &u64::MAX.to_le_bytes()), &["truncated", "program"]);
    refused(edit(16, &8u64.to_le_bytes()), &["program_size"]);
    refused(edit(24, &8u64.to_le_bytes()), &["segment_base_offset"]);
    refused(edit(24, &u64::MAX.to_le_bytes()), &["segment_data_size", "overflows"]);
    refused(edit(32, &100u64.to_le_bytes()), &["truncated", "segment area"]);
    refused(edit(32, &1u64.to_le_bytes()), &["segments[1].size", "leave the segment area"]);
    refused(edit(0, &words(&[u32::MAX])), &["root"]);
    let mut short = small();
    short.pop();
    refused(short, &["truncated", "copy or export the file again"]);
    let mut overlap = golden();
    put(&mut overlap, 0x700 + 24 * 3 + 4, &words(&[0x410]));
    refused(overlap, &["segments[3]", "inside segment 2"]);
    let mut twice = golden();
    put(&mut twice, 0x98, &words(&[(0x98i32 - 0x6cc) as u32, 0xb4 + 12 - 0x9c]));
    put(&mut twice, 0x6cc, &[8, 0, 12, 0, 4, 0, 8, 0]);
    refused(twice, &["named_data[1].key", "4602/l.weight"]);
}

#[test]
fn invalid_methods_are_refused_before_a_byte_is_written() {
    let written = |edit: &dyn Fn(&mut ExecutionPlan)| {
        let mut plan = busy_plan("forward");
        edit(&mut plan);
        let mut writer = ProgramWriter::new();
        let payloads = plan.delegates.iter().map(|_| Blob::from_bytes(vec![1])).collect();
        writer.method(plan, payloads).unwrap();
        let mut out = Vec::new();
        (writer.write(&mut out), out)
    };
    let check = |edit: &dyn Fn(&mut ExecutionPlan), expected: &[&str]| {
        let (result, out) = written(edit);
        let message = result.expect_err("must be refused").to_string();
        assert!(out.is_empty());
        expected.iter().for_each(|part| assert!(message.contains(part), "`{message}` lacks `{part}`"));
    };
    fn tensor(plan: &mut ExecutionPlan, i: usize) -> &mut TensorValue {
        let EValue::Tensor(t) = &mut plan.values[i] else { panic!("value {i} is a tensor") };
        t
    }
    check(&|p| p.inputs.push(13), &["execution_plan[0].inputs", "value 13 of 13"]);
    check(&|p| p.outputs.push(u32::MAX), &["outputs"]);
    check(&|p| p.chains.clear(), &["chains"]);
    let instruction = |i| move |p: &mut ExecutionPlan| p.chains[0].instructions[0] = i;
    let at = "chains[0].instructions[0]";
    for (i, what) in [
        (Instruction::KernelCall { op: 1, args: vec![] }, "operator 1"),
        (Instruction::KernelCall { op: 0, args: vec![13] }, "value 13"),
        (Instruction::DelegateCall { delegate: 2, args: vec![] }, "delegate 2"),
        (Instruction::DelegateCall { delegate: 0, args: vec![13] }, "value 13"),
        (Instruction::MoveCall { from: 13, to: 0 }, "value 13"),
        (Instruction::MoveCall { from: 0, to: 13 }, "value 13"),
        (Instruction::JumpFalse { cond: 13, destination: 0 }, "value 13"),
        (Instruction::JumpFalse { cond: 2, destination: 6 }, "instruction 6"),
        (Instruction::Free { value: 13 }, "value 13"),
    ] {
        let edit = instruction;
        check(&move |p| edit(i.clone())(p), &[at, what]);
    }
    check(&|p| p.values[8] = EValue::IntList(vec![2]), &["values[8]", "not an integer"]);
    check(&|p| p.values[11] = EValue::TensorList(vec![11]), &["values[11]", "not a tensor"]);
    check(&|p| p.values[0] = EValue::TensorList(vec![5]), &["values[0]", "after its list"]);
    check(&|p| p.values[12] = EValue::OptionalTensorList(vec![Some(1)]), &["values[12]", "tensor or none"]);
    check(&|p| tensor(p, 6).dim_order = vec![0, 1, 2, 2], &["values[6].dim_order"]);
    check(&|p| tensor(p, 6).dim_order = vec![0, 1, 2], &["values[6].dim_order"]);
    check(&|p| *tensor(p, 5) = TensorValue::new(DType::U8, &[1; 17]), &["values[5].sizes", "17"]);
    check(&|p| *tensor(p, 5) = TensorValue::new(DType::U8, &[u32::MAX]), &["values[5].sizes", "31 bits"]);
    check(&|p| *tensor(p, 5) = TensorValue::new(DType::U8, &[1 << 30; 3]), &["values[5].sizes", "overflow"]);
    check(&|p| tensor(p, 5).data_buffer_idx = 1, &["values[5].data_buffer_idx", "initial contents 1"]);
    check(
        &|p| tensor(p, 7).extra = Some(ExtraTensorInfo { external: true, ..Default::default() }),
        &["values[7].extra", "without a name"],
    );
    let place = |memory_id, offset| Some(Allocation { memory_id, offset });
    for (allocation, what) in
        [(place(0, 0), "arena 0"), (place(2, 0), "arena 2"), (place(1, (1 << 33) - 3), "leave"), (place(1, u64::MAX), "leave")]
    {
        check(&|p| tensor(p, 5).allocation = allocation, &["values[5].allocation_info", what]);
    }
    assert!(written(&|p| tensor(p, 5).allocation = place(1, (1 << 33) - 4)).0.is_ok());
    check(&|p| p.devices[0].buffer = 2, &["non_const_buffer_device[0]"]);
}

#[test]
fn methods_of_one_name_and_delegates_without_payloads_are_refused() {
    let mut twice = ProgramWriter::new();
    twice.constant_method("a", vec![]);
    twice.constant_method("a", vec![]);
    assert!(twice.write(&mut Vec::new()).unwrap_err().to_string().contains("`a` occurs twice"));
    let mut unequal = ProgramWriter::new();
    assert!(unequal.method(busy_plan("f"), vec![]).unwrap_err().to_string().contains("2 delegates, but 0 payloads"));
}
