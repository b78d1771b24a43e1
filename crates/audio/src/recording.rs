//! Decodes files and streams to samples of one channel.

use std::{
    fs::File,
    io::{Cursor, Read},
    panic::{AssertUnwindSafe, catch_unwind},
};

use symphonia::{
    core::{
        audio::GenericAudioBufferRef,
        codecs::audio::{AudioDecoder, AudioDecoderOptions, well_known::CODEC_ID_OPUS},
        errors::Error as Symphonia,
        formats::{FormatOptions, FormatReader, TrackType, probe::Hint},
        io::{MediaSource, MediaSourceStream, ReadOnlySource},
        meta::MetadataOptions,
    },
    default,
};

use crate::{
    Error, Pcm, Result, container,
    limits::{check_channels, check_rate},
    mix::Mixer,
    opus::Opus,
    resample::Resampler,
    wav,
};

/// The largest accepted sample. Some files store floats in the range of 32-bit integers.
const LARGEST: f32 = (1u64 << 31) as f32;

/// A recording, decoded while it is read. Formats: WAV, AIFF, CAF, FLAC, MP3, AAC and ALAC in MP4,
/// Vorbis and Opus in Ogg and WebM. The result is the mean of the channels, or the loudest channel
/// where they cancel out.
pub struct Recording {
    reader: Box<dyn FormatReader>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    /// Rate and channels, once the first packet was decoded.
    form: Option<(u32, usize)>,
    /// The selected channel; `None` for the mean of all.
    channel: Option<usize>,
    /// Whether a decoded packet waits for the next block.
    is_ahead: bool,
    rate: u32,
    mixer: Mixer,
    resampler: Option<Resampler>,
    /// Frames decoded so far, at the recording's own rate.
    frames: u64,
    seconds: Option<f64>,
    interleaved: Vec<f32>,
    mono: Vec<f32>,
    block: Vec<f32>,
    /// Whether the file states its length.
    has_length: bool,
    is_cut_short: bool,
    has_surplus: bool,
    is_finished: bool,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("form", &self.form).field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl Recording {
    /// Opens a file; the result has `rate` samples a second.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unknown format, [`Error::Damaged`] for a recording that breaks
    /// its format.
    pub fn from_file(file: File, rate: u32) -> Result<Recording> {
        Recording::open(Box::new(file), rate)
    }

    /// A file in memory.
    ///
    /// # Errors
    /// As [`from_file`](Recording::from_file).
    pub fn from_bytes(bytes: Vec<u8>, rate: u32) -> Result<Recording> {
        Recording::open(Box::new(Cursor::new(bytes)), rate)
    }

    /// Opens a stream without seeking, such as a pipe.
    ///
    /// # Errors
    /// As [`from_file`](Recording::from_file).
    pub fn from_stream(stream: impl Read + Send + Sync + 'static, rate: u32) -> Result<Recording> {
        Recording::open(Box::new(ReadOnlySource::new(stream)), rate)
    }

    /// A stream of samples without a container.
    ///
    /// # Errors
    /// [`Error::Rate`] and [`Error::Channels`] for impossible values, or an error if the stream
    /// cannot be read.
    pub fn from_pcm(stream: impl Read + Send + Sync + 'static, pcm: Pcm, rate: u32) -> Result<Recording> {
        Recording::from_stream(Cursor::new(pcm.wav_header()).chain(stream), rate)
    }

    fn open(mut source: Box<dyn MediaSource>, rate: u32) -> Result<Recording> {
        let mut head = Vec::new();
        source.as_mut().take(12).read_to_end(&mut head)?;
        let (mut has_length, mut has_surplus) = (true, false);
        if <&[u8; 12]>::try_from(&head[..]).is_ok_and(wav::is_wave) {
            let wave = wav::repaired(source)?;
            (source, has_length, has_surplus) = (wave.source, wave.has_length, wave.has_surplus);
        } else {
            source.as_mut().take((container::HEAD - 12) as u64).read_to_end(&mut head)?;
            container::check(&head)?;
            if source.is_seekable() {
                source.rewind()?;
            } else if container::is_mp4(&head) {
                source = container::mp4(head, source)?;
            } else {
                source = Box::new(ReadOnlySource::new(Cursor::new(head).chain(source)));
            }
        }
        let stream = MediaSourceStream::new(source, Default::default());
        let reader =
            guarded(|| default::get_probe().probe(&Hint::new(), stream, FormatOptions::default(), MetadataOptions::default()))??;
        let track = reader.default_track(TrackType::Audio).ok_or_else(|| Error::Unsupported("there is no sound in it".into()))?;
        let codec = track.codec_params.as_ref().and_then(|codec| codec.audio());
        let codec = codec.ok_or_else(|| Error::Unsupported("its sound is coded in a way that is not known here".into()))?;
        codec.sample_rate.map(check_rate).transpose()?;
        codec.channels.as_ref().map(|channels| check_channels(channels.count())).transpose()?;
        let decoder =
            match codec.codec {
                CODEC_ID_OPUS => Box::new(Opus::new(codec)?),
                other => guarded(|| default::get_codecs().make_audio_decoder(codec, &AudioDecoderOptions::default()))?.map_err(
                    |error| match error {
                        Symphonia::Unsupported(_) => container::unsupported(format!("it holds sound of codec {other}")),
                        other => other.into(),
                    },
                )?,
            };
        let seconds = track.num_frames.zip(codec.sample_rate).map(|(frames, rate)| frames as f64 / f64::from(rate));
        Ok(Recording {
            track: track.id,
            reader,
            decoder,
            form: None,
            channel: None,
            is_ahead: false,
            rate,
            mixer: Mixer::default(),
            resampler: None,
            frames: 0,
            seconds,
            interleaved: Vec::new(),
            mono: Vec::new(),
            block: Vec::new(),
            has_length,
            is_cut_short: false,
            has_surplus,
            is_finished: false,
        })
    }

    /// Length of the recording as stated by its file.
    pub fn seconds(&self) -> Option<f64> {
        self.seconds
    }

    /// Whether the file ended before its announced length.
    pub fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// Whether the file holds more sound than it announces. The rest is decoded, too.
    pub fn has_surplus(&self) -> bool {
        self.has_surplus
    }

    /// Whether channels in opposite phase cancelled out, so that the loudest one replaced their
    /// mean.
    pub fn has_cancelled(&self) -> bool {
        self.mixer.has_cancelled()
    }

    /// Number of channels.
    ///
    /// # Errors
    /// As [`next_block`](Recording::next_block).
    pub fn channels(&mut self) -> Result<usize> {
        if self.form.is_none() {
            self.is_ahead = self.decode()?;
        }
        self.form.map(|(_, channels)| channels).ok_or(Error::Empty)
    }

    /// Selects one channel, counted from 0, for the following samples instead of the mean of all.
    ///
    /// # Errors
    /// [`Error::NoChannel`] for a channel that the recording lacks; otherwise as
    /// [`channels`](Recording::channels).
    pub fn choose_channel(&mut self, channel: usize) -> Result<()> {
        let channels = self.channels()?;
        if channel >= channels {
            return Err(Error::NoChannel { channel, channels });
        }
        self.channel = Some(channel);
        Ok(())
    }

    /// The next samples of one channel, from -1 to 1; `None` at the end.
    ///
    /// # Errors
    /// The file breaks its format or cannot be read, or holds no samples at all.
    pub fn next_block(&mut self) -> Result<Option<&[f32]>> {
        self.block.clear();
        while self.block.is_empty() && !self.is_finished {
            if std::mem::take(&mut self.is_ahead) || self.decode()? {
                self.add_decoded()?;
            } else {
                self.is_finished = true;
                if self.frames == 0 {
                    return Err(Error::Empty);
                }
                if let Some(resampler) = &mut self.resampler {
                    resampler.finish(&mut self.block);
                }
            }
        }
        Ok((!self.block.is_empty()).then_some(&self.block[..]))
    }

    /// All remaining samples.
    ///
    /// # Errors
    /// As [`next_block`](Recording::next_block).
    pub fn read_to_end(&mut self) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        while let Some(block) = self.next_block()? {
            all.extend_from_slice(block);
        }
        Ok(all)
    }

    /// Decodes the next packet into `interleaved`; `false` at the end.
    fn decode(&mut self) -> Result<bool> {
        loop {
            let packet = match guarded(|| self.reader.next_packet())? {
                Ok(Some(packet)) if packet.track_id != self.track => continue,
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(false),
                Err(Symphonia::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    self.is_cut_short = self.frames > 0 && self.has_length;
                    return Ok(false);
                }
                Err(Symphonia::ResetRequired) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            match guarded(|| self.decoder.decode(&packet))? {
                Ok(decoded) if decoded.frames() > 0 => {
                    let form = form(&decoded)?;
                    if let Some(before) = self.form.replace(form).filter(|before| *before != form) {
                        let text = |(rate, channels): (u32, usize)| format!("{channels} channels at {rate} Hz");
                        let seconds = self.frames as f64 / f64::from(before.0);
                        return Err(Error::Changed { before: text(before), after: text(form), seconds });
                    }
                    decoded.copy_to_vec_interleaved(&mut self.interleaved);
                    return Ok(true);
                }
                // A packet that cannot be decoded is a gap; the next one may be whole.
                Ok(_) | Err(Symphonia::DecodeError(_)) => {}
                Err(Symphonia::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Mixes the decoded samples down and resamples them into `block`.
    fn add_decoded(&mut self) -> Result<()> {
        let Some((rate, channels)) = self.form else { return Ok(()) };
        self.mono.clear();
        match self.channel {
            Some(channel) => self.mono.extend(self.interleaved.chunks_exact(channels).map(|frame| frame[channel])),
            None => self.mixer.mix(&self.interleaved, (rate, channels), &mut self.mono),
        }
        if let Some(at) = self.mono.iter().position(|sample| !sample.is_finite() || sample.abs() > LARGEST) {
            let (value, seconds) = (self.mono[at], (self.frames as f64 + at as f64) / f64::from(rate));
            return Err(if value.is_finite() { Error::TooLoud { value, seconds } } else { Error::NotFinite { seconds } });
        }
        self.frames += self.mono.len() as u64;
        if rate == self.rate {
            self.block.extend_from_slice(&self.mono);
            return Ok(());
        }
        if self.resampler.is_none() {
            self.resampler = Some(Resampler::new(rate, self.rate).ok_or(Error::Rate(rate))?);
        }
        if let Some(resampler) = &mut self.resampler {
            resampler.push(&self.mono, &mut self.block);
        }
        Ok(())
    }
}

/// Turns a panic of the library on an unforeseen file into an error.
fn guarded<T>(run: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| Error::Damaged("it breaks its format in a way that stops the decoder".into()))
}

/// Rate and channels of a decoded packet.
fn form(decoded: &GenericAudioBufferRef<'_>) -> Result<(u32, usize)> {
    let (rate, channels) = (decoded.spec().rate(), decoded.spec().channels().count());
    check_rate(rate)?;
    check_channels(channels)?;
    Ok((rate, channels))
}
