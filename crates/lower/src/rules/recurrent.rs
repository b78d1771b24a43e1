//! Recurrent layers: one product over all steps gives the input's part of the gates; a loop
//! computes the rest.

use flambeau_ir::{Addmm, In, Stack, Tid};
use flambeau_tensor::{DType, Expr};

use super::{
    RuleRow,
    linalg::linear_of,
    ops::{self, Emitted},
    row,
    scan::{LoopStep, scan},
};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW};

type Items = Result<Vec<Item>, Refuse>;

#[derive(Clone, Copy, PartialEq)]
enum Cell {
    Lstm,
    Gru,
    Tanh,
    Relu,
}

/// Parameters of one layer in one direction.
struct Weights {
    input: Tid,
    hidden: Tid,
    input_bias: Option<Tid>,
    hidden_bias: Option<Tid>,
    projection: Option<Tid>,
}

/// `h @ wᵀ + bias`, given the transposed weight.
fn recurrent_product(cx: &mut Lower, h: Tid, transposed: Tid, bias: Option<Tid>) -> Emitted {
    cx.emit(Addmm { mat1: In(h), mat2: In(transposed), out: NEW, bias: bias.map(In), alpha: 1.0, beta: 1.0 })
}

/// The input's part of the gates for all steps, plus every bias that can be added before the loop.
fn input_gates(cx: &mut Lower, cell: Cell, x: Tid, w: &Weights) -> Emitted {
    let gates = linear_of(cx, x, w.input, w.input_bias)?;
    match w.hidden_bias {
        Some(bias) if cell != Cell::Gru => ops::add(cx, gates, bias),
        _ => Ok(gates),
    }
}

/// One step of a cell; `state` and the result are `[h]` or `[h, c]`.
fn step(
    cx: &mut Lower,
    cell: Cell,
    gates: Tid,
    state: &[Tid],
    transposed: [Option<Tid>; 2],
    bias: Option<Tid>,
) -> Result<Vec<Tid>, Refuse> {
    let ([Some(hidden), projection], &[h, ..]) = (transposed, state) else { return unsupported("a cell without state") };
    match cell {
        Cell::Tanh | Cell::Relu => {
            let sum = recurrent_product(cx, h, hidden, Some(gates))?;
            let zero = ops::number_like(cx, sum, 0.0)?;
            Ok(vec![if cell == Cell::Tanh { ops::tanh(cx, sum)? } else { ops::maximum(cx, sum, zero)? }])
        }
        Cell::Gru => {
            let own = recurrent_product(cx, h, hidden, bias)?;
            gru_step(cx, gates, own, h).map(|h| vec![h])
        }
        Cell::Lstm => {
            let &[h, c] = state else { return unsupported("an LSTM without a cell state") };
            let sum = recurrent_product(cx, h, hidden, Some(gates))?;
            let (h, c) = lstm_step(cx, sum, c)?;
            let h = match projection {
                Some(p) => recurrent_product(cx, h, p, None)?,
                None => h,
            };
            Ok(vec![h, c])
        }
    }
}

fn lstm_step(cx: &mut Lower, gates: Tid, c: Tid) -> Result<(Tid, Tid), Refuse> {
    let last = cx.spec(gates).rank() - 1;
    let [i, f, g, o] = ops::split_evenly(cx, gates, 4, last)?[..] else { return unsupported("four gates") };
    let (i, f, g, o) = (ops::sigmoid(cx, i)?, ops::sigmoid(cx, f)?, ops::tanh(cx, g)?, ops::sigmoid(cx, o)?);
    let (kept, new) = (ops::mul(cx, f, c)?, ops::mul(cx, i, g)?);
    let c = ops::add(cx, kept, new)?;
    let squashed = ops::tanh(cx, c)?;
    Ok((ops::mul(cx, o, squashed)?, c))
}

/// `n = tanh(x_n + r h_n)`, `h = n + z (h - n)`.
fn gru_step(cx: &mut Lower, input: Tid, own: Tid, h: Tid) -> Emitted {
    let last = cx.spec(h).rank() - 1;
    let hidden = cx.spec(h).dims[last].clone();
    let parts = [Expr::Int(2) * hidden.clone(), hidden];
    let ([x_rz, x_n], [h_rz, h_n]) = (&ops::split(cx, input, &parts, last)?[..], &ops::split(cx, own, &parts, last)?[..]) else {
        return unsupported("three gates");
    };
    let (x_rz, x_n, h_rz, h_n) = (*x_rz, *x_n, *h_rz, *h_n);
    let sum = ops::add(cx, x_rz, h_rz)?;
    let gates = ops::sigmoid(cx, sum)?;
    let [r, z] = ops::split_evenly(cx, gates, 2, last)?[..] else { return unsupported("two gates") };
    let reset = ops::mul(cx, r, h_n)?;
    let sum = ops::add(cx, x_n, reset)?;
    let n = ops::tanh(cx, sum)?;
    let way = ops::sub(cx, h, n)?;
    let moved = ops::mul(cx, z, way)?;
    ops::add(cx, n, moved)
}

fn transposed(cx: &mut Lower, w: Tid) -> Emitted {
    cx.permute(w, &[1, 0])
}

/// One layer in one direction; returns all outputs and the last state.
fn run(
    cx: &mut Lower,
    cell: Cell,
    x: Tid,
    time: usize,
    reverse: bool,
    init: &[Tid],
    w: &Weights,
) -> Result<(Tid, Vec<Tid>), Refuse> {
    let gates = input_gates(cx, cell, x, w)?;
    let gates = if reverse { ops::flip(cx, gates, time)? } else { gates };
    let hidden = transposed(cx, w.hidden)?;
    let projection = w.projection.map(|p| transposed(cx, p)).transpose()?;
    let (last, outputs) = scan(cx, &[gates], time, init, |cx, slices, state| {
        let carry = step(cx, cell, slices[0], state, [Some(hidden), projection], w.hidden_bias)?;
        Ok(LoopStep { collect: vec![carry[0]], carry })
    })?;
    let y = outputs[0];
    Ok((if reverse { ops::flip(cx, y, time)? } else { y }, last))
}

/// Parameters in PyTorch's order, one entry per layer and direction.
fn weights(cx: &mut Lower, call: &Call, dtype: DType, n: usize, biased: bool, projected: bool) -> Result<Vec<Weights>, Refuse> {
    let params = call.tensors("params")?;
    let each = 2 + 2 * usize::from(biased) + usize::from(projected);
    if params.len() != n * each {
        return unsupported(format!("{} parameters where {n} directions have {each} each", params.len()));
    }
    let params = params.into_iter().map(|p| cx.cast(p, dtype)).collect::<Result<Vec<_>, _>>()?;
    let one = |p: &[Tid]| Weights {
        input: p[0],
        hidden: p[1],
        input_bias: biased.then(|| p[2]),
        hidden_bias: biased.then(|| p[3]),
        projection: projected.then(|| p[each - 1]),
    };
    Ok(params.chunks_exact(each).map(one).collect())
}

/// The initial states, `[layers * directions, batch, size]` each.
fn states(cx: &mut Lower, call: &Call, cell: Cell, dtype: DType) -> Result<Vec<Tid>, Refuse> {
    let given = if cell == Cell::Lstm { call.tensors("hx")? } else { vec![call.tensor("hx")?] };
    let given = given.into_iter().map(|t| cx.cast(t, dtype)).collect::<Result<Vec<_>, _>>()?;
    if given.len() == if cell == Cell::Lstm { 2 } else { 1 } { Ok(given) } else { unsupported("a wrong number of initial states") }
}

fn recurrent(cx: &mut Lower, call: &Call, cell: Cell) -> Items {
    let dtype = call.out(0)?.dtype;
    let mut x = cx.operand(call, "input", dtype)?;
    if call.bool_or("train", false)? && call.float_or("dropout", 0.0)? != 0.0 {
        return unsupported(super::random::TRAINING_DROPOUT);
    }
    if cx.spec(x).rank() != 3 {
        return unsupported("a sequence without a batch axis");
    }
    let time = usize::from(call.bool_or("batch_first", false)?);
    let directions = 1 + usize::from(call.bool_or("bidirectional", false)?);
    let layers = usize::try_from(call.int_or("num_layers", 1)?).unwrap_or(0);
    let init = states(cx, call, cell, dtype)?;
    let size = |cx: &Lower, t: Tid| cx.spec(t).dims.last().cloned();
    let projected = cell == Cell::Lstm && size(cx, init[0]) != size(cx, init[1]);
    let weights = weights(cx, call, dtype, layers * directions, call.bool_or("has_biases", true)?, projected)?;
    let mut finals: Vec<Vec<Tid>> = vec![Vec::new(); init.len()];
    for (layer, both) in weights.chunks(directions).enumerate() {
        let mut outputs = Vec::new();
        for (direction, w) in both.iter().enumerate() {
            let at = (layer * directions + direction) as i64;
            let own = init.iter().map(|&t| ops::take_one(cx, t, at, 0)).collect::<Result<Vec<_>, _>>()?;
            let (y, last) = run(cx, cell, x, time, direction == 1, &own, w)?;
            outputs.push(y);
            finals.iter_mut().zip(last).for_each(|(f, t)| f.push(t));
        }
        x = ops::concat(cx, &outputs, 2)?;
    }
    let mut items = vec![Item::Tensor(x)];
    for (i, last) in finals.into_iter().enumerate() {
        items.push(if call.is_used(i + 1) { Item::Tensor(stacked(cx, &last)?) } else { Item::None });
    }
    Ok(items)
}

fn stacked(cx: &mut Lower, tensors: &[Tid]) -> Emitted {
    match tensors {
        [only] => cx.unsqueeze(*only, 0),
        _ => cx.emit(Stack { tensors: tensors.iter().map(|&t| In(t)).collect(), out: NEW, axis: 0 }),
    }
}

/// One step of one layer.
fn cell(cx: &mut Lower, call: &Call, cell: Cell) -> Items {
    let dtype = call.out(0)?.dtype;
    let x = cx.operand(call, "input", dtype)?;
    let init = states(cx, call, cell, dtype)?;
    let weight = |cx: &mut Lower, p: &str| call.arg(p).map(|_| cx.operand(call, p, dtype)).transpose();
    let (Some(input), Some(hidden)) = (weight(cx, "w_ih")?, weight(cx, "w_hh")?) else {
        return unsupported("a cell without weights");
    };
    let (input_bias, hidden_bias) = (weight(cx, "b_ih")?, weight(cx, "b_hh")?);
    let w = Weights { input, hidden, input_bias, hidden_bias, projection: None };
    let gates = input_gates(cx, cell, x, &w)?;
    let hidden = transposed(cx, w.hidden)?;
    let state = step(cx, cell, gates, &init, [Some(hidden), None], w.hidden_bias)?;
    Ok(state.into_iter().map(Item::Tensor).collect())
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.gru.input", |cx, call| recurrent(cx, call, Cell::Gru)),
    row("aten.gru_cell.default", |cx, call| cell(cx, call, Cell::Gru)),
    row("aten.lstm.input", |cx, call| recurrent(cx, call, Cell::Lstm)),
    row("aten.lstm_cell.default", |cx, call| cell(cx, call, Cell::Lstm)),
    row("aten.rnn_relu.input", |cx, call| recurrent(cx, call, Cell::Relu)),
    row("aten.rnn_relu_cell.default", |cx, call| cell(cx, call, Cell::Relu)),
    row("aten.rnn_tanh.input", |cx, call| recurrent(cx, call, Cell::Tanh)),
    row("aten.rnn_tanh_cell.default", |cx, call| cell(cx, call, Cell::Tanh)),
];
