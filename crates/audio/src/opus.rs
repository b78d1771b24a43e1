//! Opus in Ogg, WebM, Matroska, MP4 and CAF.

use opus_decoder::{OpusDecoder, OpusError};
use symphonia::core::{
    audio::{AsGenericAudioBufferRef, AudioBuffer, AudioMut, AudioSpec, Channels, GenericAudioBufferRef, layouts},
    codecs::{
        CodecInfo,
        audio::{AudioCodecParameters, AudioDecoder, FinalizeResult},
    },
    errors::{Error as Symphonia, Result as Decoded},
    packet::PacketRef,
};

use crate::{Error, Result, limits::check_channels};

/// Opus is always decoded at this rate; a packet then has at most this many samples per channel.
const RATE: u32 = 48_000;
const LONGEST: usize = RATE as usize * 120 / 1000;
const INFO: CodecInfo = CodecInfo { short_name: "opus", long_name: "Opus", profiles: &[] };

/// An Opus decoder behind the container library's decoder trait.
pub(crate) struct Opus {
    parameters: AudioCodecParameters,
    head: Head,
    decoder: OpusDecoder,
    /// Remaining samples per channel to drop at the start.
    skipped: usize,
    interleaved: Vec<f32>,
    buffer: AudioBuffer<f32>,
}

/// The fields of the identification header.
#[derive(Clone, Debug, PartialEq)]
struct Head {
    channels: usize,
    /// Pre-skip: samples per channel before the first audible one.
    skip: usize,
    /// Output gain, as a factor.
    gain: f32,
}

impl Head {
    /// The header in a container's parameters. Without one, there are one or two channels.
    fn read(parameters: &AudioCodecParameters) -> Result<Head> {
        let channels = parameters.channels.as_ref().map_or(1, Channels::count);
        let plain = Head { channels, skip: 0, gain: 1.0 };
        let extra = parameters.extra_data.as_deref().unwrap_or_default();
        let Some(body) = extra.strip_prefix(b"OpusHead") else { return Ok(plain) };
        let Some(&[_, channels, s0, s1, _, _, _, _, g0, g1, family]) = body.first_chunk() else {
            return Err(Error::Damaged("its Opus header ends too early".into()));
        };
        let channels = usize::from(channels);
        let streams = if family == 0 { 1 } else { body.get(11).copied().unwrap_or(0) };
        if channels > 2 || streams != 1 {
            return Err(Error::Unsupported(format!(
                "it holds Opus of {channels} channels, of which at most 2 are decoded; `ffmpeg -i IN -ac 1 OUT.wav` mixes them"
            )));
        }
        let decibels = f32::from(i16::from_le_bytes([g0, g1])) / 256.0;
        let skip = u16::from_le_bytes([s0, s1]).into();
        Ok(Head { channels, skip, gain: 10f32.powf(decibels / 20.0) })
    }
}

impl Opus {
    /// A decoder of a track.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for more than two channels, [`Error::Damaged`] and
    /// [`Error::Channels`] for a header that no recording has.
    pub(crate) fn new(parameters: &AudioCodecParameters) -> Result<Opus> {
        let head = Head::read(parameters)?;
        check_channels(head.channels)?;
        let decoder = OpusDecoder::new(RATE, head.channels);
        let decoder = decoder.map_err(|error| Error::Damaged(format!("its Opus header: {error}")))?;
        let channels = if head.channels == 1 { layouts::CHANNEL_LAYOUT_MONO } else { layouts::CHANNEL_LAYOUT_STEREO };
        Ok(Opus {
            parameters: parameters.clone(),
            skipped: head.skip,
            interleaved: vec![0.0; LONGEST * head.channels],
            buffer: AudioBuffer::new(AudioSpec::new(RATE, channels), LONGEST),
            head,
            decoder,
        })
    }
}

impl AudioDecoder for Opus {
    fn reset(&mut self) {
        self.decoder.reset();
    }

    fn codec_info(&self) -> &CodecInfo {
        &INFO
    }

    fn codec_params(&self) -> &AudioCodecParameters {
        &self.parameters
    }

    fn decode_ref(&mut self, packet: &PacketRef<'_>) -> Decoded<GenericAudioBufferRef<'_>> {
        self.buffer.clear();
        let decoded = self.decoder.decode_float(packet.data, &mut self.interleaved, false);
        let count = decoded.map_err(|_: OpusError| Symphonia::DecodeError("an Opus packet is damaged"))?;
        let (first, gain) = (self.skipped.min(count), self.head.gain);
        self.skipped -= first;
        let last = count.saturating_sub(usize::try_from(packet.trim_end.get()).unwrap_or(count)).max(first);
        let heard = &mut self.interleaved[first * self.head.channels..last * self.head.channels];
        heard.iter_mut().for_each(|sample| *sample *= gain);
        self.buffer.render_uninit(Some(last - first));
        self.buffer.copy_from_slice_interleaved(&heard);
        Ok(self.buffer.as_generic_audio_buffer_ref())
    }

    fn finalize(&mut self) -> FinalizeResult {
        FinalizeResult::default()
    }

    fn last_decoded(&self) -> GenericAudioBufferRef<'_> {
        self.buffer.as_generic_audio_buffer_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(extra: &[u8]) -> Result<Head> {
        Head::read(AudioCodecParameters::new().with_extra_data(extra.into()))
    }

    #[test]
    fn headers_tell_channels_gain_and_what_to_leave_out() {
        let plain = b"OpusHead\x01\x02\x38\x01\x80\xbb\x00\x00\x00\xfa\x00";
        let found = head(plain).unwrap();
        assert_eq!((found.channels, found.skip), (2, 312));
        assert!((found.gain - 10f32.powf(-6.0 / 20.0)).abs() < 1e-6);
        for length in 8..plain.len() {
            assert!(head(&plain[..length]).is_err(), "{length} bytes");
        }
        let six = b"OpusHead\x01\x06\x00\x00\x80\xbb\x00\x00\x00\x00\x01\x04\x02\x00\x04\x01\x02\x03\x05";
        assert!(matches!(head(six), Err(Error::Unsupported(_))));
        assert!(matches!(
            Opus::new(
                AudioCodecParameters::new()
                    .with_extra_data(b"OpusHead\x01\x00\x00\x00\x80\xbb\x00\x00\x00\x00\x00".as_slice().into())
            ),
            Err(Error::Channels(0))
        ));
    }
}
