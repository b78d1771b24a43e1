//! Comparisons with expected tensors.

use anyhow::{Context, Result, bail};
use flambeau::{
    runtime::{
        Method, Value, ValueKind,
        verify::{self, Verdict, rounding},
    },
    tensor::{Tolerance, compare},
    wire::bundled::{BundledValue, TestCase, TestSuite},
};

use super::{Subject, captures::Captures};
use crate::inputs;

/// The test cases of a method. Each starts with fresh state. Where an output differs, the engines
/// are compared too.
pub(super) fn suite(subject: &Subject<'_>, suite: &TestSuite) -> Result<Verdict> {
    let mut method = subject.program.method(&suite.method, &subject.tested, &subject.options())?;
    let mut total = Verdict::default();
    for (number, case) in suite.cases.iter().enumerate() {
        let inputs =
            case_inputs(&method, case).with_context(|| format!("test case {number} of {}", suite.method.escape_debug()))?;
        method.reset();
        let wrong = match method.run(&inputs) {
            Ok(outputs) => output_differences(&outputs, &case.expected_outputs, subject.tolerance()),
            Err(error) => vec![(0, error.to_string())],
        };
        total.outputs.extend(wrong.into_iter().map(|(output, what)| (number, output, what)));
        let engines = [&subject.tested, &subject.cpu];
        let nodes = verify::check(&subject.program, &suite.method, engines, &[inputs], subject.tolerance(), &subject.options())?;
        total.nodes += nodes.nodes;
        total.skipped.extend(nodes.skipped);
        total.differences.extend(nodes.differences);
        let larger = |found: &(verify::Difference, flambeau::tensor::Distance)| {
            total.largest.as_ref().is_none_or(|(_, most)| most.absolute < found.1.absolute)
        };
        if let Some(found) = nodes.largest.filter(larger) {
            total.largest = Some(found);
        }
    }
    total.skipped.sort();
    total.skipped.dedup();
    Ok(total)
}

/// The inputs of a test case, which the method must accept.
pub(crate) fn case_inputs(method: &Method, case: &TestCase) -> Result<Vec<Value>> {
    if case.inputs.len() != method.inputs().len() {
        bail!("{} inputs, the method takes {}", case.inputs.len(), method.inputs().len());
    }
    let given = method.inputs().iter().zip(&case.inputs).map(|(spec, value)| match (&spec.kind, value) {
        (ValueKind::Fixed(value), _) => value.clone(),
        (_, BundledValue::Tensor(tensor)) => Value::Tensor(tensor.clone()),
        (_, BundledValue::Int(value)) => Value::Int(*value),
        (_, BundledValue::Bool(value)) => Value::Bool(*value),
        (_, BundledValue::Double(value)) => Value::Double(*value),
    });
    Ok(given.collect())
}

/// Outputs that differ from a test case, with the mismatch.
pub(crate) fn output_differences(
    outputs: &[Value],
    expected: &[BundledValue],
    tolerance: Option<Tolerance>,
) -> Vec<(usize, String)> {
    let differs = |(number, (output, expected)): (usize, (&Value, &BundledValue))| {
        let BundledValue::Tensor(expected) = expected else { return None };
        let what = match output {
            Value::Tensor(output) => compare(output, expected, tolerance.unwrap_or_else(|| rounding(expected))).err()?.to_string(),
            other => format!("{} instead of a tensor", other.describe()),
        };
        Some((number, what))
    };
    outputs.iter().zip(expected).enumerate().filter_map(differs).collect()
}

/// A folder's tensors.
pub(super) fn captures(subject: &Subject<'_>, captures: Captures) -> Result<Verdict> {
    let method = subject.program.method(subject.method(), &subject.cpu, &subject.options())?;
    let inputs = inputs::arguments(method.inputs(), captures.inputs)?;
    let recording = verify::record(&subject.program, subject.method(), &subject.cpu, &[inputs], &subject.options())?;
    let mut verdict = verify::compare_with_recorded(&recording, &captures.nodes, subject.tolerance());
    if captures.nodes.is_empty() {
        verdict.skipped.clear();
    }
    let expected: Vec<Value> = captures.outputs.into_iter().map(Value::Tensor).collect();
    let outputs = recording.outputs.last().map(Vec::as_slice).unwrap_or_default();
    let wrong = verify::compare_outputs(outputs, &expected, recording.nodes.len(), subject.tolerance());
    verdict.outputs.extend(wrong.into_iter().map(|(output, what)| (0, output, what)));
    Ok(verdict)
}
