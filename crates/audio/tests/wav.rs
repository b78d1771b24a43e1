//! WAV files that the tests write: sound ones, odd ones and hostile ones.

use flambeau_audio::{Error, Recording};

const RATE: u32 = 16_000;

/// A quarter of a second of a tone, from -0.5 to 0.5.
fn tone(rate: u32) -> Vec<f64> {
    (0..rate / 4).map(|i| 0.5 * (2.0 * std::f64::consts::PI * 440.0 * f64::from(i) / f64::from(rate)).sin()).collect()
}

/// A chunk with its padding.
fn chunk(id: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut out = [id.as_slice(), &(body.len() as u32).to_le_bytes(), body].concat();
    out.resize(out.len().next_multiple_of(2), 0);
    out
}

/// A format chunk's body.
fn format(tag: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
    let frame = channels.wrapping_mul(bits / 8);
    let mut out = [tag.to_le_bytes(), channels.to_le_bytes()].concat();
    out.extend([rate, rate.wrapping_mul(frame.into())].iter().flat_map(|v| v.to_le_bytes()));
    out.extend([frame, bits].iter().flat_map(|v| v.to_le_bytes()));
    out
}

fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    let body = [b"WAVE".as_slice(), &chunks.concat()].concat();
    [b"RIFF".as_slice(), &(body.len() as u32).to_le_bytes(), &body].concat()
}

/// A file of one channel whose samples `code` writes.
fn wave(tag: u16, bits: u16, rate: u32, samples: &[f64], code: impl Fn(f64) -> Vec<u8>) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|&sample| code(sample)).collect();
    riff(&[chunk(b"fmt ", &format(tag, 1, rate, bits)), chunk(b"data", &data)])
}

fn pcm16(sample: f64) -> Vec<u8> {
    ((sample * 32768.0) as i16).to_le_bytes().to_vec()
}

fn read(bytes: Vec<u8>) -> Result<Vec<f32>, Error> {
    Recording::from_bytes(bytes, RATE)?.read_to_end()
}

#[track_caller]
fn assert_is_tone(found: &[f32], within: f64) {
    let expected = tone(RATE);
    assert_eq!(found.len(), expected.len());
    let error = found.iter().zip(&expected).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
    assert!(error <= within, "{error}");
}

#[test]
fn every_depth_gives_the_same_samples() {
    let samples = tone(RATE);
    let scaled = |sample: f64, bits: u32| (sample * f64::from(1u32 << (bits - 1))) as i32;
    let files = [
        (wave(1, 8, RATE, &samples, |s| vec![(s * 128.0 + 128.0) as u8]), 1.0 / 127.0),
        (wave(1, 16, RATE, &samples, pcm16), 1.0 / 32767.0),
        (wave(1, 24, RATE, &samples, |s| scaled(s, 24).to_le_bytes()[..3].to_vec()), 1e-6),
        (wave(1, 32, RATE, &samples, |s| ((s * 2147483648.0) as i32).to_le_bytes().to_vec()), 1e-7),
        (wave(3, 32, RATE, &samples, |s| (s as f32).to_le_bytes().to_vec()), 1e-7),
        (wave(3, 64, RATE, &samples, |s| s.to_le_bytes().to_vec()), 1e-7),
    ];
    for (file, within) in files {
        assert_is_tone(&read(file).unwrap(), within);
    }
}

#[test]
fn channels_become_their_mean() {
    let data: Vec<u8> = tone(RATE).iter().flat_map(|&s| [pcm16(s * 1.5), pcm16(s * 0.5)].concat()).collect();
    let file = riff(&[chunk(b"fmt ", &format(1, 2, RATE, 16)), chunk(b"data", &data)]);
    assert_is_tone(&read(file).unwrap(), 1e-4);
}

#[test]
fn odd_chunks_and_sizes_that_say_nothing_are_passed() {
    let data: Vec<u8> = tone(RATE).iter().flat_map(|&s| pcm16(s)).collect();
    let fmt = chunk(b"fmt ", &format(1, 1, RATE, 16));
    // A list whose own entry has an odd length, and a chunk of three bytes.
    let list = chunk(b"LIST", b"INFOISFT\x05\0\0\0test\0\0\0");
    let sound = chunk(b"data", &data);
    assert_is_tone(&read(riff(&[list, chunk(b"junk", b"abc"), fmt.clone(), sound.clone(), chunk(b"LIST", b"end")])).unwrap(), 1e-4);
    for size in [0u32, u32::MAX] {
        let mut file = riff(&[fmt.clone(), sound.clone()]);
        let at = file.len() - data.len();
        file[at - 4..at].copy_from_slice(&size.to_le_bytes());
        file[4..8].copy_from_slice(&size.to_le_bytes());
        assert_is_tone(&read(file.clone()).unwrap(), 1e-4);
        // As a pipe of unknown length.
        let mut piped = Recording::from_stream(std::io::Cursor::new(file), RATE).unwrap();
        assert_is_tone(&piped.read_to_end().unwrap(), 1e-4);
        assert!(!piped.is_cut_short());
    }
}

#[test]
fn what_is_there_of_a_file_cut_short_is_read() {
    let mut file = wave(1, 16, RATE, &tone(RATE), pcm16);
    file.truncate(44 + 2000);
    let mut recording = Recording::from_bytes(file, RATE).unwrap();
    assert_eq!(recording.read_to_end().unwrap().len(), 1000);
    assert!(recording.is_cut_short());
}

#[test]
fn other_rates_are_resampled() {
    for rate in [8_000, 11_025, 44_100, 48_000] {
        let found = read(wave(1, 16, rate, &tone(rate), pcm16)).unwrap();
        let expected = tone(RATE);
        assert!(found.len().abs_diff(expected.len()) <= 1, "{rate}: {}", found.len());
        let error = (400..3600).map(|i| (f64::from(found[i]) - expected[i]).abs()).fold(0.0, f64::max);
        assert!(error < 2e-3, "{rate}: {error}");
    }
}

#[track_caller]
fn refusal(bytes: Vec<u8>) -> String {
    read(bytes).expect_err("it is refused").to_string()
}

#[test]
fn hostile_files_are_refused() {
    let sound = chunk(b"data", &[0; 64]);
    let with = |format: Vec<u8>| refusal(riff(&[chunk(b"fmt ", &format), sound.clone()]));
    assert!(with(format(1, 1, 0, 16)).contains('0'));
    assert!(with(format(1, 1, 768_000, 16)).contains("768000 samples a second"));
    assert!(with(format(1, u16::MAX, RATE, 16)).contains("65535 channels"));
    assert!(with(format(1, 0, RATE, 16)).contains("0 channels"));
    assert!(with(vec![1, 0]).contains("2 bytes"));
    let nan = wave(3, 32, RATE, &[0.0, f64::NAN], |s| (s as f32).to_le_bytes().to_vec());
    assert!(refusal(nan).contains("no number"));
    assert!(refusal(wave(1, 16, RATE, &[], pcm16)).contains("no sound"));
    assert!(refusal(b"This is a text, and no recording at all.\n".repeat(50)).contains("no recording"));
    assert!(!refusal(Vec::new()).is_empty());
    assert!(refusal(riff(&[chunk(b"fmt ", &format(1, 1, RATE, 16))])).contains("no sound"));
    assert!(refusal(riff(&[chunk(b"fmt ", &[0; 9000])])).contains("9000 bytes"));
    let mut lying = riff(&[chunk(b"fmt ", &format(1, 1, RATE, 16))]);
    lying.extend(b"junk\xff\xff\xff\xff");
    assert!(refusal(lying).contains("no sound"));
    assert!(refusal(riff(&[sound])).contains("no format"));
}

#[test]
fn one_channel_can_be_chosen() {
    let tone = tone(RATE);
    let data: Vec<u8> = tone.iter().flat_map(|&sample| [pcm16(0.25), pcm16(sample)].concat()).collect();
    let file = riff(&[chunk(b"fmt ", &format(1, 2, RATE, 16)), chunk(b"data", &data)]);
    let channel = |number: usize| {
        let mut recording = Recording::from_bytes(file.clone(), RATE)?;
        assert_eq!(recording.channels()?, 2);
        recording.choose_channel(number)?;
        recording.read_to_end()
    };
    assert_eq!(channel(0).unwrap(), vec![0.25; tone.len()]);
    assert_is_tone(&channel(1).unwrap(), 1e-4);
    assert!(matches!(channel(2), Err(Error::NoChannel { channel: 2, channels: 2 })));
}

#[test]
fn sound_behind_the_end_that_its_chunk_states_is_heard() {
    let samples = tone(RATE);
    let whole = wave(1, 16, RATE, &samples, pcm16);
    let mut short = whole.clone();
    short[40..44].copy_from_slice(&1000u32.to_le_bytes());
    let mut recording = Recording::from_bytes(short, RATE).unwrap();
    assert_is_tone(&recording.read_to_end().unwrap(), 1.0 / 32767.0);
    assert!(recording.has_surplus());
    // A chunk behind the sound is none.
    for tail in [Vec::new(), chunk(b"LIST", &[1; 20]), vec![0; 64]] {
        let mut recording = Recording::from_bytes([whole.clone(), tail].concat(), RATE).unwrap();
        assert_eq!(recording.read_to_end().unwrap().len(), samples.len());
        assert!(!recording.has_surplus());
    }
}

#[test]
fn samples_far_beyond_full_scale_are_refused_with_their_place() {
    let samples = |value: f32| wave(3, 32, RATE, &tone(RATE), move |_| value.to_le_bytes().to_vec());
    for value in [1e30, -1e30, 1e38] {
        let error = read(samples(value)).unwrap_err();
        assert!(matches!(error, Error::TooLoud { .. }) && error.to_string().contains("full scale"), "{error}");
    }
    assert!(read(samples(32768.0)).is_ok(), "floats in the scale of integers");
}
