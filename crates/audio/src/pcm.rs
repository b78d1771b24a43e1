//! Raw PCM sound, without a container.

/// Format of a sample, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Unsigned 8 bits; 128 is silence.
    U8,
    S16,
    S24,
    S32,
    F32,
    F64,
}

/// Format of raw PCM sound, with interleaved channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcm {
    pub sample: Sample,
    /// Sample rate in Hz.
    pub rate: u32,
    pub channels: u16,
}

impl Pcm {
    /// A WAV header for sound of this format and unknown length.
    pub(crate) fn wav_header(self) -> Vec<u8> {
        let (code, bits) = match self.sample {
            Sample::U8 => (1u16, 8u16),
            Sample::S16 => (1, 16),
            Sample::S24 => (1, 24),
            Sample::S32 => (1, 32),
            Sample::F32 => (3, 32),
            Sample::F64 => (3, 64),
        };
        let frame = u32::from(self.channels) * u32::from(bits / 8);
        let mut header = [&b"RIFF"[..], &[0xff; 4], b"WAVEfmt ", &16u32.to_le_bytes(), &code.to_le_bytes()].concat();
        header.extend(self.channels.to_le_bytes());
        header.extend(self.rate.to_le_bytes());
        header.extend(self.rate.saturating_mul(frame).to_le_bytes());
        header.extend((frame as u16).to_le_bytes());
        header.extend(bits.to_le_bytes());
        header.extend(*b"data");
        header.extend([0xff; 4]);
        header
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::{Error, Recording};

    fn read(pcm: Pcm, bytes: &[u8]) -> Result<Vec<f32>, Error> {
        Recording::from_pcm(Cursor::new(bytes.to_vec()), pcm, 16_000)?.read_to_end()
    }

    #[test]
    fn samples_of_every_form_are_read() {
        let wanted = [0.5f32, -0.25, 0.0, 0.75];
        let ints = |bytes: usize| {
            let scaled = wanted.map(|value| (f64::from(value) * f64::from(1u32 << 31)) as i32);
            scaled.iter().flat_map(|value| value.to_le_bytes()[4 - bytes..].to_vec()).collect::<Vec<u8>>()
        };
        for (sample, bytes) in [
            (Sample::U8, wanted.map(|value| (128.0 + value * 128.0) as u8).to_vec()),
            (Sample::S16, ints(2)),
            (Sample::S24, ints(3)),
            (Sample::S32, ints(4)),
            (Sample::F32, wanted.iter().flat_map(|value| value.to_le_bytes()).collect()),
            (Sample::F64, wanted.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect()),
        ] {
            let pcm = Pcm { sample, rate: 16_000, channels: 1 };
            assert_eq!(read(pcm, &bytes).unwrap(), wanted, "{sample:?}");
            assert_eq!(read(Pcm { channels: 2, ..pcm }, &bytes).unwrap(), [0.125, 0.375], "{sample:?}, two channels");
        }
    }

    #[test]
    fn what_no_recording_has_is_refused() {
        let pcm = Pcm { sample: Sample::S16, rate: 16_000, channels: 1 };
        assert!(matches!(read(pcm, &[]), Err(Error::Empty)));
        assert!(matches!(read(Pcm { rate: 0, ..pcm }, &[0; 8]), Err(Error::Rate(0))));
        assert!(matches!(read(Pcm { channels: 0, ..pcm }, &[0; 8]), Err(Error::Channels(0))));
        assert!(matches!(read(Pcm { channels: 65, ..pcm }, &[0; 8]), Err(Error::Channels(65))));
        assert_eq!(read(pcm, &[0; 5]).unwrap().len(), 2, "half a sample at the end says nothing");
    }
}
