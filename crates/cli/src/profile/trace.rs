//! Traces in the format of Chrome's trace events.

use std::io::Write;

use anyhow::Result;
use flambeau::runtime::RunTrace;
use serde_json::{Value as Json, json};

/// Writes complete events of one thread, times in microseconds: runs, in them instructions, in them
/// steps of delegates.
pub(crate) fn write(runs: &[RunTrace], out: &mut dyn Write) -> Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut is_first = true;
    let mut put = |name: &str, start: u64, time: u64, args: Json| -> Result<()> {
        let event = json!({
            "name": name, "ph": "X", "pid": 1, "tid": 1, "ts": start as f64 / 1e3, "dur": time as f64 / 1e3, "args": args,
        });
        let comma = if std::mem::take(&mut is_first) { "" } else { "," };
        Ok(write!(out, "{comma}\n{event}")?)
    };
    for (number, run) in runs.iter().enumerate() {
        put(&run.method, run.start, run.time, json!({ "run": number }))?;
        for i in &run.instructions {
            put(&i.name, i.start, i.time, json!({ "chain": i.place.chain, "instruction": i.place.instruction }))?;
            for step in &i.steps {
                let args = json!({ "method": run.method, "delegate": i.delegate, "node": step.node, "bytes": step.bytes, "flops": step.flops });
                put(&step.name, step.start, step.time, args)?;
            }
        }
    }
    Ok(writeln!(out, "]}}")?)
}

#[cfg(test)]
mod tests {
    use flambeau::{
        engine::Span,
        runtime::{InstructionTrace, Place},
    };

    use super::*;

    #[test]
    fn events_are_nested_by_time() {
        let step = Span { name: "a \"b\"".into(), node: Some(7), start: 1500, time: 250, bytes: 1, flops: 2 };
        let place = Place { chain: 0, instruction: 3 };
        let call = InstructionTrace {
            place,
            delegate: Some(1),
            name: "MLXBackend".into(),
            start: 1400,
            time: 400,
            steps: vec![step],
            values: vec![],
            results: vec![],
        };
        let mut out = Vec::new();
        write(
            &[RunTrace { method: "forward".into(), start: 1000, time: 1000, instructions: vec![call], outputs: vec![] }],
            &mut out,
        )
        .unwrap();
        let trace: Json = serde_json::from_slice(&out).unwrap();
        let names: Vec<&str> = trace["traceEvents"].as_array().unwrap().iter().filter_map(|event| event["name"].as_str()).collect();
        assert_eq!(names, ["forward", "MLXBackend", "a \"b\""]);
        let last = &trace["traceEvents"][2];
        assert_eq!((last["ts"].as_f64(), last["dur"].as_f64()), (Some(1.5), Some(0.25)));
        assert_eq!((&last["args"]["delegate"], &last["args"]["node"]), (&json!(1), &json!(7)));
        assert_eq!(last["args"]["method"], "forward");
    }
}
