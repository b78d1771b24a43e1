//! The microphone, with the feature `microphone`.

use std::sync::{Arc, atomic::AtomicBool};

use anyhow::Result;
use flambeau::audio::Pcm;

use crate::read_ahead::ReadAhead;

/// Records from the named device, or from the default one, until it is cancelled or the receiver is
/// dropped. Returns the samples and their format.
///
/// # Errors
/// Fails if the device is missing or cannot record.
#[cfg(feature = "microphone")]
pub(crate) fn open(name: Option<&str>, cancelled: &Arc<AtomicBool>) -> Result<(ReadAhead, Pcm)> {
    recording::open(name, Arc::clone(cancelled))
}

#[cfg(not(feature = "microphone"))]
pub(crate) fn open(_: Option<&str>, _: &Arc<AtomicBool>) -> Result<(ReadAhead, Pcm)> {
    let error = anyhow::anyhow!("this build does not record from a microphone");
    Err(crate::failure::hint(
        error,
        "build it with `--features microphone`, or pipe sound in: `arecord -f S16_LE -r 16000 | flambeau transcribe -m MODEL - --live`",
    ))
}

#[cfg(feature = "microphone")]
mod recording {
    use std::{
        io,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
            mpsc::{SyncSender, TrySendError, sync_channel},
        },
        thread,
    };

    use anyhow::{Context, Result, anyhow, bail};
    use cpal::{
        Data, Device, SampleFormat, Stream,
        traits::{DeviceTrait, HostTrait, StreamTrait},
    };
    use flambeau::audio::{Pcm, Sample};

    use crate::{failure::hint, read_ahead::ReadAhead};

    /// Maximum number of unread blocks of about 10 ms: minutes of audio.
    const WAITING: usize = 1 << 14;

    type Blocks = SyncSender<io::Result<Vec<u8>>>;

    pub(super) fn open(name: Option<&str>, cancelled: Arc<AtomicBool>) -> Result<(ReadAhead, Pcm)> {
        let (sender, blocks) = sync_channel(WAITING);
        let (ready, is_ready) = sync_channel(1);
        let name = name.map(str::to_owned);
        // A stream ends in the thread that began it.
        thread::Builder::new().name("microphone".into()).spawn(move || {
            let (done, is_done) = sync_channel(1);
            match record(name.as_deref(), sender, (cancelled, done)) {
                Ok((stream, pcm)) => {
                    let _ = ready.send(Ok(pcm));
                    let _ = is_done.recv();
                    drop(stream);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        let pcm = is_ready.recv().context("the microphone's thread ended")??;
        Ok((ReadAhead::of(blocks), pcm))
    }

    /// Starts recording. Sends to `done` when the recording is cancelled or its receiver is
    /// dropped.
    fn record(name: Option<&str>, blocks: Blocks, (cancelled, done): (Arc<AtomicBool>, SyncSender<()>)) -> Result<(Stream, Pcm)> {
        let device = find(name)?;
        let config = device.default_input_config().context("the microphone tells no form of its samples")?;
        let pcm = Pcm { sample: sample(config.sample_format())?, rate: config.sample_rate(), channels: config.channels() };
        let (failed, mut has_lost) = (blocks.clone(), false);
        let take = move |data: &Data, _: &cpal::InputCallbackInfo| {
            if cancelled.load(Ordering::Relaxed) {
                let _ = done.try_send(());
                return;
            }
            match blocks.try_send(Ok(data.bytes().to_vec())) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) if has_lost => {}
                Err(TrySendError::Full(_)) => {
                    eprintln!("sound is lost: the model is minutes behind");
                    has_lost = true;
                }
                Err(TrySendError::Disconnected(_)) => _ = done.try_send(()),
            }
        };
        let fail = move |error: cpal::Error| _ = failed.try_send(Err(io::Error::other(error)));
        let stream = device.build_input_stream_raw(config.config(), config.sample_format(), take, fail, None)?;
        stream.play().context("the microphone does not record")?;
        Ok((stream, pcm))
    }

    fn find(name: Option<&str>) -> Result<Device> {
        let host = cpal::default_host();
        let Some(name) = name else {
            return host.default_input_device().context("there is no microphone");
        };
        let devices = host.input_devices().context("the microphones cannot be listed")?;
        let named = devices.filter_map(|device| Some((device.description().ok()?.name().to_owned(), device)));
        let (found, others): (Vec<_>, Vec<_>) = named.partition(|(other, _)| other == name);
        let names: Vec<String> = others.into_iter().map(|(name, _)| name).collect();
        let missing = || hint(anyhow!("there is no microphone `{name}`"), format!("there are: {}", names.join(", ")));
        found.into_iter().next().map(|(_, device)| device).ok_or_else(missing)
    }

    fn sample(format: SampleFormat) -> Result<Sample> {
        Ok(match format {
            SampleFormat::U8 => Sample::U8,
            SampleFormat::I16 => Sample::S16,
            SampleFormat::I32 => Sample::S32,
            SampleFormat::F32 => Sample::F32,
            SampleFormat::F64 => Sample::F64,
            other => bail!("the microphone's samples are of the form {other}, which nothing here reads"),
        })
    }
}
