//! Sorting, and selection by rank or frequency, with PyTorch's positions of equal elements.
//!
//! Nodes give the same values, but other positions where elements are equal. The compiler prefers
//! these kernels where a program uses the positions.

mod arrange;

use flambeau_tensor::{DType, Tensor, cast, normalize_axis};

use self::arrange::Pair;
use crate::{
    Call, Error, Kernel,
    unique::{Keys, gathered},
};

type Results = Result<Vec<Tensor>, Error>;

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel::new("aten::argsort", |call| Ok(sort(call)?.split_off(1))),
    Kernel::new("aten::kthvalue", kthvalue),
    Kernel::new("aten::mode", mode),
    Kernel::new("aten::sort", sort),
    Kernel::new("aten::topk", topk),
];

/// Minimum length of a vector of integers that PyTorch sorts by digits. This sort is stable.
const SORTS_BY_DIGITS: usize = 1 << 15;

/// An operand, cut into lines along an axis.
struct Lines<'x> {
    x: &'x Tensor,
    axis: usize,
    /// Sizes before, along and after the axis. A tensor of rank 0 is one line of one element.
    sizes: [usize; 3],
}

impl<'x> Lines<'x> {
    fn of(call: &'x Call<'_>) -> Result<Lines<'x>, Error> {
        let x = call.tensor("self")?;
        let dim = call.number_or("dim", -1.0)? as i64;
        let axis = normalize_axis(dim, x.rank().max(1)).ok_or(Error::Axis { axis: dim, rank: x.rank() })?;
        let shape = x.shape();
        let along = shape.get(axis).copied().unwrap_or(1);
        let after = shape.get(axis + 1..).unwrap_or_default().iter().product();
        Ok(Lines { x, axis, sizes: [shape[..axis].iter().product(), along, after] })
    }

    fn len(&self) -> usize {
        self.sizes[1]
    }

    /// Elements and positions (i64) that `pick` chooses from each line. The axis gets size `count`,
    /// or is dropped without one. `pick` takes the places of a line's elements in the operand. It
    /// returns positions in the line.
    fn picked(&self, count: Option<usize>, pick: impl Fn(&[usize]) -> Vec<usize>) -> Results {
        let ([before, len, after], width) = (self.sizes, count.unwrap_or(1));
        let mut places = vec![0; before * width * after];
        let mut positions = vec![0i64; places.len()];
        let mut line = vec![0; len];
        for (o, i) in (0..before).flat_map(|o| (0..after).map(move |i| (o, i))) {
            line.iter_mut().enumerate().for_each(|(a, place)| *place = (o * len + a) * after + i);
            for (a, position) in pick(&line).into_iter().enumerate().take(width) {
                let to = (o * width + a) * after + i;
                (places[to], positions[to]) = (line[position], position as i64);
            }
        }
        let mut shape = self.x.shape().to_vec();
        match count {
            Some(count) if !shape.is_empty() => shape[self.axis] = count,
            None if !shape.is_empty() => _ = shape.remove(self.axis),
            _ => {}
        }
        Ok(vec![gathered(self.x, places.into_iter(), &shape)?, Tensor::from_slice(&positions, &shape)?])
    }

    /// One element of each line; the axis stays with size 1 if the call keeps it.
    fn picked_one(&self, call: &Call<'_>, pick: impl Fn(&[usize]) -> usize) -> Results {
        if self.len() == 0 && self.sizes[0] * self.sizes[2] > 0 {
            return Err(Error::Rank { rank: 0, len: 0 });
        }
        self.picked(call.flag("keepdim").then_some(1), |line| vec![pick(line)])
    }

    /// The number `k` of the call, which is in the range of a line's ranks.
    fn rank(&self, call: &Call<'_>) -> Result<usize, Error> {
        let k = call.number("k")?;
        if k < 0.0 || k > self.len() as f64 {
            return Err(Error::Rank { rank: k as i64, len: self.len() });
        }
        Ok(k as usize)
    }
}

/// Pairs of the elements' keys and their positions.
fn pairs<K: Copy>(keys: &[K], line: &[usize]) -> Vec<Pair<K>> {
    line.iter().enumerate().map(|(position, &place)| (keys[place], position)).collect()
}

/// Keys that ascend in the requested order. NaN is larger than all numbers.
fn keys(x: &Tensor, descending: bool) -> Result<Vec<i64>, Error> {
    let keys = Keys::new(x)?.keys;
    Ok(if descending { keys.into_iter().map(|key| !key).collect() } else { keys })
}

fn positions<K>(pairs: &[Pair<K>]) -> Vec<usize> {
    pairs.iter().map(|(_, position)| *position).collect()
}

fn sort(call: &Call<'_>) -> Results {
    let lines = Lines::of(call)?;
    let descending = call.flag("descending");
    let keys = keys(lines.x, descending)?;
    let dtype = lines.x.dtype();
    let by_digits =
        lines.x.rank() == 1 && lines.len() >= SORTS_BY_DIGITS && !descending && !dtype.is_float() && dtype != DType::Bool;
    let stable = call.flag("stable") || by_digits;
    lines.picked(Some(lines.len()), |line| {
        let mut pairs = pairs(&keys, line);
        if stable {
            pairs.sort_by_key(|pair| pair.0)
        } else {
            arrange::sort(&mut pairs)
        }
        positions(&pairs)
    })
}

fn topk(call: &Call<'_>) -> Results {
    /// Minimum number of elements per result for which PyTorch uses a heap.
    const HEAP_FROM: usize = 64;
    let lines = Lines::of(call)?;
    let k = lines.rank(call)?;
    let largest = call.flag_or_true("largest");
    let sorted = call.flag_or_true("sorted");
    let keys = keys(lines.x, largest)?;
    lines.picked(Some(k), |line| {
        let mut pairs = pairs(&keys, line);
        match k.checked_sub(1) {
            None => {}
            Some(_) if k * HEAP_FROM <= line.len() => arrange::sort_smallest(&mut pairs, k),
            Some(last) => {
                arrange::select(&mut pairs, last);
                if sorted {
                    arrange::sort(&mut pairs[..last]);
                }
            }
        }
        positions(&pairs[..k])
    })
}

fn kthvalue(call: &Call<'_>) -> Results {
    let lines = Lines::of(call)?;
    let k = lines.rank(call)?;
    let nth = k.checked_sub(1).ok_or(Error::Rank { rank: 0, len: lines.len() })?;
    let keys = keys(lines.x, false)?;
    lines.picked_one(call, |line| {
        let mut pairs = pairs(&keys, line);
        arrange::select_by_halves(&mut pairs, nth);
        pairs[nth].1
    })
}

fn mode(call: &Call<'_>) -> Results {
    let lines = Lines::of(call)?;
    if lines.x.dtype().is_float() {
        // PyTorch compares without regard for NaN here.
        let wide = cast(lines.x, DType::F64)?;
        let values = wide.as_slice::<f64>()?;
        return lines.picked_one(call, |line| most_frequent(pairs(values, line)));
    }
    let keys = keys(lines.x, false)?;
    lines.picked_one(call, |line| most_frequent(pairs(&keys, line)))
}

/// Position of the last element, once sorted, of the first among the longest runs of equals.
fn most_frequent<K: PartialOrd + Copy>(mut pairs: Vec<Pair<K>>) -> usize {
    arrange::sort(&mut pairs);
    let (mut found, mut longest) = (0, 0);
    for run in pairs.chunk_by(|a, b| a.0 == b.0) {
        if let Some((_, position)) = run.last().filter(|_| run.len() > longest) {
            (found, longest) = (*position, run.len());
        }
    }
    found
}

#[cfg(test)]
mod tests;
