//! Slaney's mel filters. All supported speech models were trained with them.

/// Sample rate in Hz.
const RATE: f64 = 16_000.0;

/// A triangle over neighbouring frequencies.
#[derive(Clone, Debug)]
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

/// Triangles over three neighbouring points of the mel scale each, of equal area, from 0 to 8 kHz.
#[derive(Clone, Debug)]
pub(crate) struct MelFilters(Vec<Filter>);

impl MelFilters {
    /// `mels` filters for spectra of `frequencies` values up to half the rate.
    pub(crate) fn new(mels: usize, frequencies: usize) -> MelFilters {
        let highest = mel(RATE / 2.0);
        let points: Vec<f64> = (0..mels + 2).map(|i| hertz(highest * i as f64 / (mels + 1) as f64)).collect();
        let hertz_of = |i: usize| i as f64 * RATE / 2.0 / (frequencies - 1) as f64;
        let triangle = |&[low, middle, high]: &[f64; 3]| {
            let weight =
                |i| ((hertz_of(i) - low) / (middle - low)).min((high - hertz_of(i)) / (high - middle)) * 2.0 / (high - low);
            let within = (0..frequencies).filter(|&i| weight(i) > 0.0);
            let first = within.clone().next().unwrap_or(0);
            Filter { first, weights: within.map(|i| weight(i) as f32).collect() }
        };
        MelFilters(points.array_windows().map(triangle).collect())
    }

    /// Number of filters.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The energy in each filter, for a power spectrum `[frequencies]`.
    pub(crate) fn of<'a>(&'a self, power: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
        self.0.iter().map(|filter| filter.weights.iter().zip(&power[filter.first..]).map(|(weight, power)| weight * power).sum())
    }
}

/// Slaney's mel scale: linear below 1 kHz, logarithmic above.
fn hertz(mel: f64) -> f64 {
    let log_step = 6.4f64.ln() / 27.0;
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * log_step).exp() }
}

fn mel(hertz: f64) -> f64 {
    let log_step = 6.4f64.ln() / 27.0;
    if hertz < 1000.0 { hertz * 3.0 / 200.0 } else { 15.0 + (hertz / 1000.0).ln() / log_step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_goes_both_ways() {
        for hertz_in in [0.0, 440.0, 999.0, 1000.0, 4321.0, 8000.0] {
            assert!((hertz(mel(hertz_in)) - hertz_in).abs() < 1e-9);
        }
        assert!((mel(1000.0) - 15.0).abs() < 1e-12 && (mel(6400.0) - 42.0).abs() < 1e-12);
    }

    #[test]
    fn a_frequency_is_loudest_in_the_filter_around_it() {
        // 1000 Hz is the 15th of 45.245 mels, and the 25th of 201 frequencies.
        let mut power = vec![0.0; 201];
        power[25] = 1.0;
        let passed: Vec<f32> = MelFilters::new(80, 201).of(&power).collect();
        let loudest = (0..80).max_by(|&a, &b| passed[a].total_cmp(&passed[b])).unwrap();
        let expected = 15.0 / mel(8000.0) * 81.0 - 1.0;
        assert!((loudest as f64 - expected).abs() <= 1.0, "filter {loudest}, expected {expected}");
    }
}
