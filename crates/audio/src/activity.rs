//! Voice activity detection without a model.

use std::{collections::VecDeque, ops::Range};

use crate::{filters::MelFilters, spectrum::PowerSpectrum};

/// Samples of a frame, and from frame to frame.
const WINDOW: usize = 512;
const HOP: usize = 160;
/// Bands on the mel scale.
const BANDS: usize = 20;
/// Frames per block, and number of blocks before and after a frame in its noise estimate.
const BLOCK: usize = 25;
const BEHIND: usize = 12;
const AHEAD: usize = 2;
/// Share of the previous frames in the smoothed power for the noise estimate, and ratio of the
/// noise to that power's minimum.
const SMOOTHING: f32 = 0.6;
const BIAS: f32 = 1.5;
/// Power in a band of four times the quantization noise of 16-bit samples. Softer sound is silence.
const LEAST_NOISE: f32 = 2e-9;
/// Frames on either side in the envelope of a frame (the loudest power): gaps between syllables are
/// speech too.
const AROUND: usize = 2;
/// Minimum rise of speech over the noise in decibels, as means over all bands and over the
/// `MOST_RISING` bands with the largest rise. In noise, a voice rises in few bands.
type Rise = [f32; 2];
const MOST_RISING: usize = 8;
/// Rise of speech, and of its soft ends.
const SPEECH: Rise = [5.0, 7.0];
const SOFT_ENDS: Rise = [2.5, 4.0];
/// Minimum frames in a row that rise: a click has 8.
const LEAST_FRAMES: usize = 9;

type Bands = [f32; BANDS];

/// Distinguishes speech from steady noise in streamed samples. It compares the envelope over a few
/// frames with the noise of each band. The noise is the softest moment of the 3 seconds before and
/// the half second after. This is the long-term spectral divergence of Ramírez et al. 2004, with
/// noise by minimum statistics (Martin 2001). It also finds other sounds above steady noise, such
/// as music and animals.
#[derive(Debug)]
pub struct VoiceActivity {
    filters: MelFilters,
    spectrum: PowerSpectrum,
    power: Vec<f32>,
    /// Samples from the beginning of the next frame on.
    pending: Vec<f32>,
    /// The frames from `first` on.
    frames: VecDeque<Bands>,
    first: usize,
    smoothed: Bands,
    /// The minimum smoothed power of each block in the noise estimate.
    softest: VecDeque<Bands>,
    /// Number of judged frames, and number of the last ones that rise above the noise.
    judged: usize,
    rising: usize,
    /// Minimum rise of speech after its beginning.
    continued: Rise,
}

impl Default for VoiceActivity {
    fn default() -> VoiceActivity {
        let spectrum = PowerSpectrum::hann(WINDOW);
        let frequencies = spectrum.frequencies();
        VoiceActivity {
            filters: MelFilters::new(BANDS, frequencies),
            spectrum,
            power: vec![0.0; frequencies],
            pending: Vec::new(),
            frames: VecDeque::new(),
            first: 0,
            smoothed: [0.0; BANDS],
            softest: VecDeque::new(),
            judged: 0,
            rising: 0,
            continued: SPEECH,
        }
    }
}

impl VoiceActivity {
    /// Detects speech with its soft ends: speech needs a smaller rise to continue than to begin.
    /// Ranges then reach into pauses if the noise varies.
    pub fn with_soft_ends() -> VoiceActivity {
        VoiceActivity { continued: SOFT_ENDS, ..VoiceActivity::default() }
    }

    /// Takes the next samples at 16 kHz and appends the ranges of speech, as indices over all
    /// samples in ascending order. Neighbouring ranges may overlap. Returns the index of the first
    /// undecided sample. At most a second of samples is undecided.
    pub fn push(&mut self, samples: &[f32], speech: &mut Vec<Range<u64>>) -> u64 {
        self.pending.extend_from_slice(samples);
        let mut at = 0;
        while at + WINDOW <= self.pending.len() {
            self.listen(at);
            at += HOP;
            if self.total_frames() == self.judged + (1 + AHEAD) * BLOCK {
                self.judge(BLOCK, speech);
            }
        }
        self.pending.drain(..at);
        let open = if self.rising < LEAST_FRAMES { self.rising } else { 0 };
        ((self.judged - open) * HOP) as u64
    }

    /// Marks the end of the samples, and judges the rest.
    pub fn finish(&mut self, speech: &mut Vec<Range<u64>>) {
        if !self.pending.is_empty() {
            self.pending.resize(WINDOW, 0.0);
            self.listen(0);
            self.pending.clear();
        }
        while self.judged < self.total_frames() {
            self.judge(BLOCK.min(self.total_frames() - self.judged), speech);
        }
    }

    fn total_frames(&self) -> usize {
        self.first + self.frames.len()
    }

    /// Appends the frame that begins at index `at` of the pending samples.
    fn listen(&mut self, at: usize) {
        self.spectrum.of(&self.pending[at..at + WINDOW], &mut self.power);
        let mut frame = [0.0; BANDS];
        for (to, power) in frame.iter_mut().zip(self.filters.of(&self.power)) {
            *to = if power.is_finite() { power } else { 0.0 };
        }
        let kept = if self.total_frames() == 0 { 0.0 } else { SMOOTHING };
        for (smoothed, power) in self.smoothed.iter_mut().zip(frame) {
            *smoothed = kept * *smoothed + (1.0 - kept) * power;
        }
        let begins_block = self.total_frames().is_multiple_of(BLOCK);
        match self.softest.back_mut().filter(|_| !begins_block) {
            Some(softest) => softest.iter_mut().zip(self.smoothed).for_each(|(least, power)| *least = least.min(power)),
            None => self.softest.push_back(self.smoothed),
        }
        self.frames.push_back(frame);
    }

    /// Judges the next frames of a block.
    fn judge(&mut self, count: usize, speech: &mut Vec<Range<u64>>) {
        let least = |band: usize| self.softest.iter().map(|softest| softest[band]).fold(f32::INFINITY, f32::min);
        let noise: Bands = std::array::from_fn(|band| (least(band) * BIAS).max(LEAST_NOISE));
        for frame in self.judged..self.judged + count {
            self.rising = if self.rises(frame, &noise) { self.rising + 1 } else { 0 };
            if self.rising >= LEAST_FRAMES {
                let first = if self.rising == LEAST_FRAMES { frame + 1 - LEAST_FRAMES } else { frame };
                let range = (first * HOP) as u64..(frame * HOP + WINDOW) as u64;
                match speech.last_mut().filter(|last| last.end >= range.start) {
                    Some(last) => last.end = range.end,
                    None => speech.push(range),
                }
            }
        }
        self.judged += count;
        if self.softest.len() > BEHIND + AHEAD {
            self.softest.pop_front();
        }
        let passed = self.judged.saturating_sub(AROUND).saturating_sub(self.first);
        self.frames.drain(..passed);
        self.first += passed;
    }

    /// Whether the envelope around a frame exceeds the noise enough for speech to begin or go on.
    fn rises(&self, frame: usize, noise: &Bands) -> bool {
        let [least, least_of_most] = if self.rising < LEAST_FRAMES { SPEECH } else { self.continued };
        let at = frame - self.first;
        let around = at.saturating_sub(AROUND)..(at + AROUND + 1).min(self.frames.len());
        let mut rise: Bands = std::array::from_fn(|band| {
            let loudest = self.frames.range(around.clone()).map(|powers| powers[band]).fold(0.0, f32::max);
            10.0 * (loudest / noise[band]).max(1.0).log10()
        });
        if rise.iter().sum::<f32>() > least * BANDS as f32 {
            return true;
        }
        rise.sort_unstable_by(|a, b| b.total_cmp(a));
        rise[..MOST_RISING].iter().sum::<f32>() > least_of_most * MOST_RISING as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: usize = 16_000;

    /// Steady, reproducible noise of that amplitude.
    fn noise(samples: usize, amplitude: f32) -> Vec<f32> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..samples).map(|_| amplitude * next()).collect()
    }

    /// A buzz of 120 Hz whose loudness rises and falls four times a second, as syllables do.
    fn voice(samples: usize) -> impl Iterator<Item = f32> {
        (0..samples).map(|i| {
            let seconds = i as f32 / RATE as f32;
            let envelope = (seconds * 4.0 * std::f32::consts::PI).sin().powi(2);
            let buzz = (seconds * 120.0).fract() - 0.5;
            0.4 * envelope * buzz
        })
    }

    fn found(samples: &[f32], block: usize) -> Vec<Range<u64>> {
        found_by(VoiceActivity::default(), samples, block)
    }

    fn found_by(mut activity: VoiceActivity, samples: &[f32], block: usize) -> Vec<Range<u64>> {
        let mut speech = Vec::new();
        for block in samples.chunks(block) {
            let judged = activity.push(block, &mut speech);
            assert!(speech.last().is_none_or(|last| last.start <= judged), "{judged}: {speech:?}");
        }
        activity.finish(&mut speech);
        speech
    }

    #[test]
    fn silence_and_steady_noise_are_no_speech() {
        let hum: Vec<f32> = (0..10 * RATE).map(|i| (0.3 * (i as f64 * 0.02).sin()) as f32).collect();
        for samples in [vec![], vec![0.0; 10 * RATE], vec![f32::NAN; RATE], noise(10 * RATE, 0.3), noise(10 * RATE, 1e-5), hum] {
            assert_eq!(found(&samples, 1000), []);
            assert_eq!(found_by(VoiceActivity::with_soft_ends(), &samples, 1000), []);
        }
    }

    #[test]
    fn a_click_is_no_speech() {
        let mut samples = noise(5 * RATE, 1e-3);
        samples[2 * RATE..2 * RATE + 20].fill(0.9);
        assert_eq!(found(&samples, RATE), []);
    }

    #[test]
    fn a_voice_is_found_where_it_speaks_however_samples_come() {
        let mut samples = noise(12 * RATE, 0.01);
        samples[5 * RATE..].iter_mut().zip(voice(2 * RATE)).for_each(|(sample, voice)| *sample += voice);
        let whole = found(&samples, samples.len());
        let (first, last) = (whole[0].start, whole[whole.len() - 1].end);
        assert!((78_000..84_000).contains(&first) && (108_000..114_000).contains(&last), "{whole:?}");
        for block in [1, 160, 7777] {
            let mut merged: Vec<Range<u64>> = Vec::new();
            for range in found(&samples, block) {
                match merged.last_mut().filter(|last| last.end >= range.start) {
                    Some(last) => last.end = range.end,
                    None => merged.push(range),
                }
            }
            assert_eq!(merged, whole, "blocks of {block}");
        }
    }

    #[test]
    fn a_soft_voice_is_found_as_a_loud_one_is() {
        let mut samples: Vec<f32> = vec![0.0; 12 * RATE];
        samples[5 * RATE..].iter_mut().zip(voice(2 * RATE)).for_each(|(sample, voice)| *sample = voice);
        let seconds = |decibels: f32| {
            let gain = 10f32.powf(decibels / 20.0);
            let soft: Vec<f32> = samples.iter().map(|sample| (sample * gain * 32768.0).round() / 32768.0).collect();
            found(&soft, 4000).iter().map(|range| range.end - range.start).sum::<u64>() as f64 / RATE as f64
        };
        let loud = seconds(0.0);
        assert!(loud > 1.8 && seconds(-30.0) > 0.9 * loud && seconds(-45.0) > 0.8 * loud, "{loud}, {}", seconds(-45.0));
    }

    #[test]
    fn a_voice_of_few_bands_is_found_in_noise() {
        // Two intermittent tones: most bands contain only noise.
        let mut samples = noise(12 * RATE, 0.02);
        let tone = |i: usize, hertz: f32| (i as f32 * hertz * std::f32::consts::TAU / RATE as f32).sin();
        samples[5 * RATE..7 * RATE].iter_mut().enumerate().for_each(|(i, sample)| {
            let envelope = (i as f32 / RATE as f32 * 4.0 * std::f32::consts::PI).sin().powi(2);
            *sample += 0.01 * envelope * [300.0, 500.0, 700.0, 1200.0, 1500.0].iter().map(|&hertz| tone(i, hertz)).sum::<f32>();
        });
        let seconds: u64 = found(&samples, 4000).iter().map(|range| range.end - range.start).sum();
        assert!(seconds as f64 / RATE as f64 > 0.8, "{seconds}");
    }

    #[test]
    fn the_soft_end_of_a_voice_is_found_in_noise() {
        let mut samples = noise(12 * RATE, 0.02);
        // From 5 to 6 seconds it is loud, and then it fades by 24 dB in 0.8 seconds.
        let fading = |i: usize| 10f32.powf(-1.5 * i.saturating_sub(RATE) as f32 / RATE as f32);
        let voice = (0..9 * RATE / 5).map(|i| fading(i) * 0.2 * ((i as f32 / RATE as f32 * 120.0).fract() - 0.5));
        samples[5 * RATE..].iter_mut().zip(voice).for_each(|(sample, voice)| *sample += voice);
        let end = |activity| found_by(activity, &samples, 4000).last().unwrap().end as f32 / RATE as f32;
        let [plain, soft] = [VoiceActivity::default(), VoiceActivity::with_soft_ends()].map(end);
        assert!(plain + 0.2 < soft && soft < 7.1, "{plain}, {soft}");
    }

    #[test]
    fn a_voice_without_anything_before_it_is_found() {
        let samples: Vec<f32> = voice(2 * RATE).collect();
        assert!(found(&samples, 500)[0].start < 3200);
    }
}
