//! Lines of elements along some axes.

use crate::{Call, Error};

/// The elements of a line, and their places in the whole.
#[derive(Clone)]
struct Line<T> {
    values: Vec<T>,
    places: Vec<usize>,
}

impl Call<'_> {
    /// One value for each line of `values` over the reduced axes, and the shape of the result.
    pub(crate) fn folded<T: Copy>(
        &self,
        values: &[T],
        shape: &[usize],
        f: impl Fn(&[T]) -> T,
    ) -> Result<(Vec<T>, Vec<usize>), Error> {
        let axes = self.axes(shape.len())?;
        let keep = self.flag("keepdim");
        let kept = |(i, &n): (usize, &usize)| match (axes.contains(&i), keep) {
            (false, _) => Some(n),
            (true, true) => Some(1),
            (true, false) => None,
        };
        let folded = lines(values, shape, &axes).iter().map(|line| f(&line.values)).collect();
        Ok((folded, shape.iter().enumerate().filter_map(kept).collect()))
    }

    /// As many values for each line of `values` along an axis.
    pub(crate) fn mapped<T: Copy>(&self, values: &[T], shape: &[usize], f: impl Fn(&[T]) -> Vec<T>) -> Result<Vec<T>, Error> {
        let axes: Vec<usize> = self.axes(shape.len())?.into_iter().take(1).collect();
        let mut out = values.to_vec();
        for line in lines(values, shape, &axes) {
            for (value, at) in f(&line.values).into_iter().zip(line.places) {
                out[at] = value;
            }
        }
        Ok(out)
    }
}

/// One line over `axes` for each place of the other axes, in their order.
fn lines<T: Copy>(values: &[T], shape: &[usize], axes: &[usize]) -> Vec<Line<T>> {
    let kept = |a: &usize| !axes.contains(a);
    let count: usize = (0..shape.len()).filter(kept).map(|a| shape[a]).product();
    let mut lines = vec![Line { values: Vec::new(), places: Vec::new() }; count];
    for (i, &value) in values.iter().enumerate() {
        let (mut rest, mut line, mut unit) = (i, 0, 1);
        for a in (0..shape.len()).rev() {
            if kept(&a) {
                line += rest % shape[a] * unit;
                unit *= shape[a];
            }
            rest /= shape[a];
        }
        lines[line].values.push(value);
        lines[line].places.push(i);
    }
    lines
}
