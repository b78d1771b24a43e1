//! Runs as an ETDump, with the names of events that ExecuTorch's runtime uses.

use flambeau::{
    engine::Span,
    runtime::{InstructionTrace, RunTrace, Value},
    wire::etdump::{DebugEvent, DebugValue, EtDump, Event, EventBlock, ProfileEvent, write_etdump},
};

/// An ETDump with one block for each run.
pub(crate) fn dump(runs: &[RunTrace]) -> EtDump {
    write_etdump(&runs.iter().map(block).collect::<Vec<_>>())
}

fn block(run: &RunTrace) -> EventBlock {
    let mut events: Vec<Event> = run.instructions.iter().flat_map(events).collect();
    let (start, end) = (run.start, run.start + run.time);
    let whole = ProfileEvent { name: "Method::execute".into(), chain: -1, instruction: 0, delegate_id: None, start, end };
    events.push(Event::Profile(whole));
    let output = |value: &Value| {
        let (name, value) = (String::new(), debug_value(value)?);
        Some(Event::Debug(DebugEvent { name, chain: 0, instruction: -1, delegate_id: None, value, is_output: true }))
    };
    events.extend(run.outputs.iter().filter_map(output));
    EventBlock { name: "Execute".into(), events }
}

/// The events of an instruction, inner ones first.
fn events(of: &InstructionTrace) -> Vec<Event> {
    let mut events = Vec::new();
    let mut results = of.results.iter().peekable();
    for (number, step) in of.steps.iter().enumerate() {
        let place = place_of(number, step);
        events.push(measured(of, step.name.to_string(), Some(place.clone()), step.start, step.time));
        while let Some((_, value)) = results.next_if(|(at, _)| *at == number) {
            events.extend(recorded(of, Some(&place), value));
        }
    }
    let mut names = Vec::new();
    match of.delegate {
        Some(_) => names.push("DELEGATE_CALL".to_owned()),
        None if of.name.ends_with("_CALL") => names.push(of.name.clone()),
        None => {
            let name = of.name.rsplit("::").next().unwrap_or_default();
            names.extend([format!("native_call_{name}"), "OPERATOR_CALL".into()]);
        }
    }
    events.extend(names.into_iter().map(|name| measured(of, name, None, of.start, of.time)));
    events.extend(of.values.iter().filter_map(|value| recorded(of, None, value)));
    events
}

/// The step's text, which the Inspector shows in place of its name.
fn place_of(number: usize, step: &Span) -> String {
    step.node.map_or_else(|| format!("step {number}: {}", step.name), |node| format!("node {node}: {}", step.name))
}

fn measured(of: &InstructionTrace, name: String, delegate_id: Option<String>, start: u64, time: u64) -> Event {
    let (chain, instruction) = (of.place.chain as i32, of.place.instruction as i32);
    Event::Profile(ProfileEvent { name, chain, instruction, delegate_id, start, end: start + time })
}

/// A value without a name of its own, which would replace the names of the measured events.
fn recorded(of: &InstructionTrace, delegate_id: Option<&str>, value: &Value) -> Option<Event> {
    Some(Event::Debug(DebugEvent {
        name: String::new(),
        chain: of.place.chain as u64,
        instruction: of.place.instruction as i32,
        delegate_id: delegate_id.map(str::to_owned),
        value: debug_value(value)?,
        is_output: false,
    }))
}

/// The value in an ETDump's form. `None` for a text, which an ETDump cannot hold.
fn debug_value(value: &Value) -> Option<DebugValue> {
    match value {
        Value::Tensor(tensor) => Some(DebugValue::Tensor(tensor.clone())),
        Value::Int(v) => Some(DebugValue::Int(*v)),
        Value::Bool(v) => Some(DebugValue::Bool(*v)),
        Value::Double(v) => Some(DebugValue::Double(*v)),
        Value::String(_) | Value::None => None,
    }
}

#[cfg(test)]
mod tests {
    use flambeau::runtime::Place;

    use super::*;

    #[test]
    fn events_have_the_names_of_executorch() {
        let instruction = |at, delegate, name: &str, steps| InstructionTrace {
            place: Place { chain: 0, instruction: at },
            delegate,
            name: name.into(),
            start: 10,
            time: 5,
            steps,
            values: Vec::new(),
            results: Vec::new(),
        };
        let step = Span { name: "Add".into(), node: Some(4), start: 11, time: 2, bytes: 0, flops: 0 };
        let instructions = vec![
            instruction(0, None, "aten::add.out", vec![]),
            instruction(1, Some(0), "MLXBackend", vec![step]),
            instruction(2, None, "MOVE_CALL", vec![]),
        ];
        let block = block(&RunTrace { method: "forward".into(), start: 9, time: 20, instructions, outputs: Vec::new() });
        let measured = |event: &Event| match event {
            Event::Profile(e) => Some((e.name.clone(), e.instruction, e.delegate_id.clone(), e.end)),
            Event::Debug(_) => None,
        };
        let shown: Vec<_> = block.events.iter().filter_map(measured).collect();
        let expected = [
            ("native_call_add.out", 0, None, 15),
            ("OPERATOR_CALL", 0, None, 15),
            ("Add", 1, Some("node 4: Add"), 13),
            ("DELEGATE_CALL", 1, None, 15),
            ("MOVE_CALL", 2, None, 15),
            ("Method::execute", 0, None, 29),
        ];
        let expected = expected.map(|(name, at, id, end)| (name.to_owned(), at, id.map(str::to_owned), end));
        assert_eq!(shown, expected);
    }

    #[test]
    fn results_follow_their_step() {
        let step = |name: &'static str| Span { name: name.into(), node: None, start: 0, time: 1, bytes: 0, flops: 0 };
        let instruction = InstructionTrace {
            place: Place { chain: 0, instruction: 0 },
            delegate: Some(0),
            name: "MLXBackend".into(),
            start: 0,
            time: 3,
            steps: vec![step("Split"), step("Drop"), step("Add")],
            values: Vec::new(),
            results: vec![(0, Value::Int(1)), (0, Value::Int(2)), (2, Value::Int(3))],
        };
        let text = |event: &Event| match event {
            Event::Profile(e) => e.name.clone(),
            Event::Debug(e) => format!("{:?}", e.value),
        };
        let shown: Vec<String> = events(&instruction).iter().map(text).collect();
        assert_eq!(shown, ["Split", "Int(1)", "Int(2)", "Drop", "Add", "Int(3)", "DELEGATE_CALL"]);
    }
}
