//! Elements and slices without repeats, and counts of whole numbers.

use std::cmp::Ordering;

use flambeau_tensor::{DType, Tensor, cast, normalize_axis};

use crate::{Call, Error, Kernel, call::Argument};

type Results = Result<Vec<Tensor>, Error>;

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel::new("aten::_unique", |call| elements(call, true, 2)),
    Kernel::new("aten::_unique2", |call| elements(call, true, 3)),
    Kernel::new("aten::bincount", bincount),
    Kernel::new("aten::unique_consecutive", |call| match call.arg("dim") {
        Some(_) => slices(call, false),
        None => elements(call, false, 3),
    }),
    Kernel::new("aten::unique_dim", |call| slices(call, true)),
    Kernel::new("aten::unique_dim_consecutive", |call| slices(call, false)),
];

/// Elements as integers in the same order. Each NaN is unlike every other, and comes last.
pub(crate) struct Keys {
    pub(crate) keys: Vec<i64>,
    nan: Vec<bool>,
}

impl Keys {
    pub(crate) fn new(x: &Tensor) -> Result<Keys, Error> {
        if !x.dtype().is_float() {
            let keys = cast(x, DType::I64)?.as_slice::<i64>()?.to_vec();
            return Ok(Keys { nan: vec![false; keys.len()], keys });
        }
        let wide = cast(x, DType::F64)?;
        let values = wide.as_slice::<f64>()?;
        let key = |&v: &f64| match v {
            v if v.is_nan() => i64::MAX,
            0.0 => 0,
            v if v < 0.0 => -((v.to_bits() & !(1 << 63)) as i64),
            v => v.to_bits() as i64,
        };
        Ok(Keys { keys: values.iter().map(key).collect(), nan: values.iter().map(|v| v.is_nan()).collect() })
    }

    fn order(&self, a: &[usize], b: &[usize]) -> Ordering {
        a.iter().map(|&i| self.keys[i]).cmp(b.iter().map(|&i| self.keys[i]))
    }

    fn equal(&self, a: &[usize], b: &[usize]) -> bool {
        a.iter().zip(b).all(|(&i, &j)| self.keys[i] == self.keys[j] && !self.nan[i])
    }
}

/// Rows in groups of equals.
struct Groups {
    /// The first row of each.
    firsts: Vec<usize>,
    /// The group of each row.
    inverse: Vec<i64>,
    counts: Vec<i64>,
}

/// Groups of neighbours, or of all equal rows in their order.
fn groups(keys: &Keys, rows: &[Vec<usize>], sorts: bool) -> Groups {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if sorts {
        order.sort_by(|&a, &b| keys.order(&rows[a], &rows[b]));
    }
    let mut found = Groups { firsts: Vec::new(), inverse: vec![0; rows.len()], counts: Vec::new() };
    for row in order {
        let last = found.firsts.last().copied().filter(|&first| keys.equal(&rows[first], &rows[row]));
        match (last, found.counts.last_mut()) {
            (Some(_), Some(count)) => *count += 1,
            _ => {
                found.firsts.push(row);
                found.counts.push(1);
            }
        }
        found.inverse[row] = found.firsts.len() as i64 - 1;
    }
    found
}

/// Integers of that shape, or none if the call does not ask for them.
fn if_asked(asked: bool, values: &[i64], shape: &[usize]) -> Result<Tensor, Error> {
    if asked { Ok(Tensor::from_slice(values, shape)?) } else { Ok(Tensor::from_slice::<i64>(&[], &[0])?) }
}

/// The elements at these places.
pub(crate) fn gathered(x: &Tensor, places: impl Iterator<Item = usize>, shape: &[usize]) -> Result<Tensor, Error> {
    let size = x.dtype().size();
    let bytes: Vec<u8> = places.flat_map(|i| x.bytes()[i * size..(i + 1) * size].iter().copied()).collect();
    Ok(Tensor::new(x.dtype(), shape, bytes.into())?.aligned())
}

/// Distinct elements, the place of each element among them, and their numbers.
fn elements(call: &Call<'_>, sorts: bool, results: usize) -> Results {
    let x = call.tensor("self")?;
    let rows: Vec<Vec<usize>> = (0..x.numel()).map(|i| vec![i]).collect();
    let found = groups(&Keys::new(x)?, &rows, sorts);
    let n = found.firsts.len();
    let mut made = vec![
        gathered(x, found.firsts.into_iter(), &[n])?,
        if_asked(call.flag("return_inverse"), &found.inverse, x.shape())?,
        if_asked(call.flag("return_counts"), &found.counts, &[n])?,
    ];
    made.truncate(results);
    Ok(made)
}

/// Distinct slices along an axis, the place of each slice among them, and their numbers.
fn slices(call: &Call<'_>, sorts: bool) -> Results {
    let x = call.tensor("self")?;
    let dim = call.number("dim")? as i64;
    let axis = normalize_axis(dim, x.rank()).ok_or(Error::Axis { axis: dim, rank: x.rank() })?;
    let shape = x.shape();
    let (outer, inner): (usize, usize) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
    let size = shape[axis];
    let place = |o: usize, a: usize, i: usize| (o * size + a) * inner + i;
    let row = |a: usize| (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| place(o, a, i)).collect();
    let rows: Vec<Vec<usize>> = (0..size).map(row).collect();
    let found = groups(&Keys::new(x)?, &rows, sorts);
    let n = found.firsts.len();
    let firsts = &found.firsts;
    let places = (0..outer).flat_map(|o| firsts.iter().flat_map(move |&a| (0..inner).map(move |i| (o * size + a) * inner + i)));
    let mut made = shape.to_vec();
    made[axis] = n;
    Ok(vec![
        gathered(x, places, &made)?,
        if_asked(call.flag("return_inverse"), &found.inverse, &[size])?,
        if_asked(call.flag("return_counts"), &found.counts, &[n])?,
    ])
}

/// Number of occurrences of each integer from 0 on, or their total weight.
fn bincount(call: &Call<'_>) -> Results {
    /// More bins than this are not a model's.
    const MAX: i64 = 1 << 28;
    let wide = cast(call.tensor("self")?, DType::I64)?;
    let values = wide.as_slice::<i64>()?;
    let least = call.number_or("minlength", 0.0)? as i64;
    let bins = values.iter().map(|v| v.saturating_add(1)).max().unwrap_or(0).max(least);
    if bins > MAX || values.iter().any(|&v| v < 0) {
        return Err(Error::Counts(MAX));
    }
    if let Some(Argument::Tensor(weights)) = call.arg("weights") {
        let weights = cast(weights, DType::F64)?;
        let mut sums = vec![0.0; bins as usize];
        values.iter().zip(weights.as_slice::<f64>()?).for_each(|(&v, w)| sums[v as usize] += w);
        return Ok(vec![Tensor::from_slice(&sums, &[sums.len()])?]);
    }
    let mut counts = vec![0i64; bins as usize];
    values.iter().for_each(|&v| counts[v as usize] += 1);
    Ok(vec![Tensor::from_slice(&counts, &[counts.len()])?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::testing::run;

    fn check(target: &str, args: &[Argument], expected: &[(&[usize], &[f64])]) {
        let found = run(target, args, &[]).unwrap();
        for (t, (shape, values)) in found.iter().zip(expected) {
            let wide = cast(t, DType::F64).unwrap();
            assert_eq!((t.shape(), wide.as_slice::<f64>().unwrap()), (*shape, *values), "{target}");
        }
    }

    #[test]
    fn repeats_are_left_out() {
        let yes = || Argument::Bool(true);
        let x = || Argument::Tensor(Tensor::from_slice(&[3.0f32, -1.0, 3.0, 3.0], &[4]).unwrap());
        let sorted: [(&[usize], &[f64]); 3] = [(&[2], &[-1.0, 3.0]), (&[4], &[1.0, 0.0, 1.0, 1.0]), (&[2], &[1.0, 3.0])];
        check("aten._unique2.default", &[x(), yes(), yes(), yes()], &sorted);
        let runs: [(&[usize], &[f64]); 3] = [(&[3], &[3.0, -1.0, 3.0]), (&[4], &[0.0, 1.0, 2.0, 2.0]), (&[3], &[1.0, 1.0, 2.0])];
        check("aten.unique_consecutive.default", &[x(), yes(), yes(), Argument::None], &runs);
        let m = Argument::Tensor(Tensor::from_slice(&[1i64, 0, 1, 2, 5, 2], &[2, 3]).unwrap());
        let columns: [(&[usize], &[f64]); 3] = [(&[2, 2], &[0.0, 1.0, 5.0, 2.0]), (&[3], &[1.0, 0.0, 1.0]), (&[2], &[1.0, 2.0])];
        check("aten.unique_dim.default", &[m, Argument::Int(1), yes(), yes(), yes()], &columns);
        let nan = Argument::Tensor(Tensor::from_slice(&[f32::NAN, 0.0, f32::NAN], &[3]).unwrap());
        assert_eq!(run("aten._unique2.default", &[nan, yes()], &[]).unwrap()[0].shape(), [3]);
    }

    #[test]
    fn whole_numbers_are_counted() {
        let x = || Argument::Tensor(Tensor::from_slice(&[1i64, 4, 1], &[3]).unwrap());
        check("aten.bincount.default", &[x(), Argument::None, Argument::Int(7)], &[(&[7], &[0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.0])]);
        let w = Argument::Tensor(Tensor::from_slice(&[0.5f32, 2.0, 1.0], &[3]).unwrap());
        check("aten.bincount.default", &[x(), w], &[(&[5], &[0.0, 1.5, 0.0, 0.0, 2.0])]);
    }
}
