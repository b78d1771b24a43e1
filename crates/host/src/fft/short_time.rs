//! Transforms of overlapping frames of a signal.

use flambeau_tensor::Tensor;
use rustfft::{FftPlanner, num_complex::Complex64};

use super::{Field, Results, reals};
use crate::{Call, Error, complex};

/// Partition of a signal into frames.
#[derive(Clone, Debug)]
struct Frames {
    n_fft: usize,
    hop: usize,
    /// One weight for each point of a frame.
    window: Vec<f64>,
}

impl Frames {
    fn of(call: &Call<'_>) -> Result<Frames, Error> {
        let size = |name: &'static str, usual: usize| call.number_or(name, usual as f64).map(|size| size as usize);
        let n_fft = size("n_fft", 0)?;
        let (hop, length) = (size("hop_length", n_fft / 4)?, size("win_length", n_fft)?);
        if n_fft == 0 || hop == 0 || length > n_fft {
            return Err(Error::NoPoints);
        }
        let own = if call.arg("window").is_some() { reals(call.tensor("window")?)? } else { vec![1.0; length] };
        let mut window = vec![0.0; n_fft];
        let left = (n_fft - own.len().min(n_fft)) / 2;
        window.iter_mut().skip(left).zip(own).for_each(|(to, from)| *to = from);
        Ok(Frames { n_fft, hop, window })
    }

    fn scale(&self, call: &Call<'_>) -> f64 {
        if call.flag("normalized") { 1.0 / (self.n_fft as f64).sqrt() } else { 1.0 }
    }
}

/// The signal with `by` more points on both sides.
fn padded(signal: &[Complex64], by: usize, mode: &str) -> Result<Vec<Complex64>, Error> {
    let n = signal.len() as i64;
    let point = |i: i64| match mode {
        "constant" if !(0..n).contains(&i) => Some(Complex64::default()),
        "replicate" => signal.get(i.clamp(0, n - 1) as usize).copied(),
        "circular" => signal.get(i.rem_euclid(n.max(1)) as usize).copied(),
        _ if i < 0 => signal.get((-i) as usize).copied(),
        _ if i >= n => signal.get(usize::try_from(2 * (n - 1) - i).ok()?).copied(),
        _ => signal.get(i as usize).copied(),
    };
    let by = by as i64;
    (-by..n + by).map(point).collect::<Option<_>>().ok_or(Error::Sizes(signal.len(), by as usize))
}

/// `[batch, points]` or `[points]` → `[batch, frequencies, frames]`, with real and imaginary parts
/// last unless `return_complex`.
pub(super) fn forward(call: &Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let frames = Frames::of(call)?;
    let (batch, length) = match *x.shape() {
        [length] => (1, length),
        [batch, length] => (batch, length),
        _ => return Err(Error::Matrix(x.shape().to_vec())),
    };
    let is_complex = x.dtype().part().is_some();
    let onesided = if call.arg("onesided").is_some() { call.flag("onesided") } else { !is_complex };
    let values = Field::of(x)?.values;
    let kept = if onesided { frames.n_fft / 2 + 1 } else { frames.n_fft };
    let fft = FftPlanner::new().plan_fft_forward(frames.n_fft);
    let (mut made, mut count, scale) = (Vec::new(), 0, frames.scale(call));
    for signal in values.chunks(length.max(1)).take(batch) {
        let by = if call.flag("center") { frames.n_fft / 2 } else { 0 };
        let signal = padded(signal, by, call.text("pad_mode").unwrap_or("reflect"))?;
        if signal.len() < frames.n_fft {
            return Err(Error::Sizes(signal.len(), frames.n_fft));
        }
        count = 1 + (signal.len() - frames.n_fft) / frames.hop;
        let mut spectra = Vec::with_capacity(count);
        for frame in 0..count {
            let own = &signal[frame * frames.hop..][..frames.n_fft];
            let mut own: Vec<Complex64> = own.iter().zip(&frames.window).map(|(z, w)| z * w * scale).collect();
            fft.process(&mut own);
            spectra.push(own);
        }
        made.extend((0..kept).flat_map(|k| spectra.iter().map(move |s| s[k])));
    }
    let lead = if x.rank() == 1 { &[][..] } else { &[batch][..] };
    let shape = [lead, &[kept, count]].concat();
    if call.results.first().is_some_and(|d| d.part().is_none()) {
        let parts: Vec<f64> = made.iter().flat_map(|z| [z.re, z.im]).collect();
        return Ok(vec![Tensor::from_slice(&parts, &[&shape[..], &[2]].concat())?]);
    }
    Ok(vec![complex::tensor_of(&made, &shape, call.complex_result())?])
}

/// The signal of a transform: the sum of its overlapping frames, divided by the sum of their
/// squared windows.
pub(super) fn inverse(call: &Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let frames = Frames::of(call)?;
    let (lead, kept, count) = match *x.shape() {
        [kept, count] => (None, kept, count),
        [batch, kept, count] => (Some(batch), kept, count),
        _ => return Err(Error::Matrix(x.shape().to_vec())),
    };
    let onesided = if call.arg("onesided").is_some() { call.flag("onesided") } else { kept != frames.n_fft };
    let values = Field::of(x)?.values;
    let fft = FftPlanner::new().plan_fft_inverse(frames.n_fft);
    let scale = 1.0 / (frames.n_fft as f64 * frames.scale(call));
    let total = frames.n_fft + frames.hop * count.saturating_sub(1);
    let start = if call.flag("center") { frames.n_fft / 2 } else { 0 };
    let length = if call.arg("length").is_some() { Some(call.number("length")? as usize) } else { None };
    let end = length.map_or(total - start, |n| start + n);
    let mut made = Vec::new();
    for spectra in values.chunks((kept * count).max(1)).take(lead.unwrap_or(1)) {
        let (mut signal, mut weights) = (vec![Complex64::default(); total], vec![0.0; total]);
        for frame in 0..count {
            let column: Vec<Complex64> = (0..kept).map(|k| spectra[k * count + frame]).collect();
            let mut own = Field { values: column, shape: vec![kept] };
            if onesided {
                own.complete(0, frames.n_fft);
            }
            own.transform(0, &*fft);
            let at = frame * frames.hop;
            for (i, (z, w)) in own.values.iter().zip(&frames.window).enumerate() {
                let z = if onesided { Complex64::new(z.re, 0.0) } else { *z };
                signal[at + i] += z * w * scale;
                weights[at + i] += w * w;
            }
        }
        let point = |i: usize| if i < total { signal[i] / weights[i] } else { Complex64::default() };
        made.extend((start..end.max(start)).map(point));
    }
    let shape: Vec<usize> = lead.into_iter().chain([end.saturating_sub(start)]).collect();
    if call.results.first().is_some_and(|d| d.part().is_some()) {
        return Ok(vec![complex::tensor_of(&made, &shape, call.complex_result())?]);
    }
    let values: Vec<f64> = made.iter().map(|z| z.re).collect();
    Ok(vec![Tensor::from_slice(&values, &shape)?])
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::DType;

    use super::*;
    use crate::{Argument, call::testing::run};

    #[test]
    fn a_signal_comes_back_from_its_frames() {
        let signal: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin() + i as f32 * 0.01).collect();
        let x = Tensor::from_slice(&signal, &[1, 40]).unwrap();
        let window = Tensor::from_slice(&[0.25f32, 0.75, 1.0, 1.0, 0.75, 0.25], &[6]).unwrap();
        let (int, text, flag) = (Argument::Int, Argument::Str("reflect".to_owned()), Argument::Bool);
        let of = |x| vec![Argument::Tensor(x), int(8), int(2), int(6), Argument::Tensor(window.clone())];
        let mut args = of(x);
        args.extend([flag(true), text, flag(true), Argument::None, flag(true)]);
        let spectrum = run("aten.stft.center", &args, &[DType::C64]).unwrap().remove(0);
        assert_eq!(spectrum.shape(), [1, 5, 21]);
        let mut args = of(spectrum);
        args.extend([flag(true), flag(true), Argument::None, int(40), flag(false)]);
        let found = run("aten.istft.default", &args, &[DType::F32]).unwrap().remove(0);
        assert_eq!(found.shape(), [1, 40]);
        for (a, b) in found.as_slice::<f64>().unwrap().iter().zip(&signal) {
            assert!((a - f64::from(*b)).abs() < 1e-5, "{a} instead of {b}");
        }
    }
}
