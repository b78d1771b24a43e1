//! Runs as an ETDump, with the names of events that ExecuTorch's runtime uses.

use flambeau::{
    runtime::{InstructionTrace, RunTrace},
    wire::etdump::{EventBlock, ProfileEvent, write_etdump},
};

/// The bytes of an ETDump with one block for each run.
pub(crate) fn bytes(runs: &[RunTrace]) -> Vec<u8> {
    write_etdump(&runs.iter().map(block).collect::<Vec<_>>())
}

fn block(run: &RunTrace) -> EventBlock {
    let mut events: Vec<ProfileEvent> = run.instructions.iter().flat_map(events).collect();
    let (start, end) = (run.start, run.start + run.time);
    events.push(ProfileEvent { name: "Method::execute".into(), chain: -1, instruction: 0, delegate_id: None, start, end });
    EventBlock { name: "Execute".into(), events }
}

/// The events of an instruction, inner ones first.
fn events(of: &InstructionTrace) -> Vec<ProfileEvent> {
    let event = |name: String, delegate_id: Option<String>, start: u64, time: u64| ProfileEvent {
        name,
        chain: of.place.chain as i32,
        instruction: of.place.instruction as i32,
        delegate_id,
        start,
        end: start + time,
    };
    let step = |(number, step): (usize, &flambeau::engine::Span)| {
        // The Inspector shows this text in place of the name.
        let place = step.node.map_or_else(|| format!("step {number}: {}", step.name), |node| format!("node {node}: {}", step.name));
        event(step.name.to_string(), Some(place), step.start, step.time)
    };
    let mut events: Vec<ProfileEvent> = of.steps.iter().enumerate().map(step).collect();
    let whole = |name: &str| event(name.to_owned(), None, of.start, of.time);
    match of.delegate {
        Some(_) => events.push(whole("DELEGATE_CALL")),
        None if of.name.ends_with("_CALL") => events.push(whole(&of.name)),
        None => {
            let name = of.name.rsplit("::").next().unwrap_or_default();
            events.extend([whole(&format!("native_call_{name}")), whole("OPERATOR_CALL")]);
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use flambeau::{engine::Span, runtime::Place};

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
        };
        let step = Span { name: "Add".into(), node: Some(4), start: 11, time: 2, bytes: 0, flops: 0 };
        let instructions = vec![
            instruction(0, None, "aten::add.out", vec![]),
            instruction(1, Some(0), "MLXBackend", vec![step]),
            instruction(2, None, "MOVE_CALL", vec![]),
        ];
        let block = block(&RunTrace { start: 9, time: 20, instructions });
        let shown: Vec<_> =
            block.events.iter().map(|e| (e.name.as_str(), e.instruction, e.delegate_id.as_deref(), e.end)).collect();
        let expected = [
            ("native_call_add.out", 0, None, 15),
            ("OPERATOR_CALL", 0, None, 15),
            ("Add", 1, Some("node 4: Add"), 13),
            ("DELEGATE_CALL", 1, None, 15),
            ("MOVE_CALL", 2, None, 15),
            ("Method::execute", 0, None, 29),
        ];
        assert_eq!(shown, expected);
    }
}
