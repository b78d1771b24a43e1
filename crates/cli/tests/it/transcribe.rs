//! `flambeau transcribe` on tiny random models: what they say means nothing, and is the same every
//! time.

use std::{fs, path::Path};

use crate::{command, finished, flambeau};

/// A file of a committed case.
fn of_case(family: &str, file: &str) -> String {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testcases/checkpoints");
    cases.join(format!("speech-{family}")).join(file).to_string_lossy().into_owned()
}

fn model() -> String {
    of_case("whisper", "checkpoint")
}

fn audio() -> String {
    of_case("whisper", "audio.wav")
}

/// The committed recording again and again, as long as several windows.
fn long_recording(dir: &Path) -> (String, f64) {
    let once = fs::read(audio()).unwrap();
    let (head, samples) = once.split_at(44);
    let (times, path) = (200, dir.join("long.wav"));
    // Sizes of all bits say that they are unknown.
    let head = [&head[..4], &[0xff; 4], &head[8..40], &[0xff; 4]].concat();
    fs::write(&path, [head, samples.repeat(times)].concat()).unwrap();
    (path.to_string_lossy().into_owned(), (samples.len() * times) as f64 / 32_000.0)
}

#[test]
fn a_recording_becomes_json_with_times_within_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = || flambeau(dir.path(), &["transcribe", "-m", &model(), &audio(), "--json", "--word-timestamps", "-l", "fr"]);
    let first = run();
    assert_eq!(first.code, 0, "{}", first.stderr);
    let json: serde_json::Value = serde_json::from_str(&first.stdout).unwrap();
    assert_eq!((json["language"].as_str(), json["task"].as_str()), (Some("fr"), Some("transcribe")));
    assert!((json["duration"].as_f64().unwrap() - 0.5).abs() < 1e-6);
    for segment in json["segments"].as_array().unwrap() {
        let (start, end) = (segment["start"].as_f64().unwrap(), segment["end"].as_f64().unwrap());
        assert!(0.0 <= start && start < end && end <= 0.5, "{segment}");
        for word in segment["words"].as_array().unwrap() {
            assert!(word["start"].as_f64() <= word["end"].as_f64(), "{word}");
        }
    }
    // The second run finds the program in the cache.
    let second = run();
    assert_eq!((first.stdout, second.stderr.contains("exporting")), (second.stdout, false));
}

#[test]
fn one_program_takes_several_recordings_and_stdin() {
    let dir = tempfile::tempdir().unwrap();
    let exported = flambeau(dir.path(), &["export", &model(), "-o", "whisper.pte"]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    fs::write(dir.path().join("no.wav"), "this is a text\n".repeat(200)).unwrap();
    let args = ["transcribe", "-m", "whisper.pte", &audio(), "no.wav", "-f", "srt,vtt,txt", "--output-dir", "out"];
    let done = flambeau(dir.path(), &args);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("no.wav") && done.stderr.contains("no recording"), "{}", done.stderr);
    for extension in ["srt", "vtt", "txt"] {
        assert!(dir.path().join("out/audio").with_extension(extension).is_file(), "{extension}");
    }
    let mut piped = command(dir.path(), &["transcribe", "-m", "whisper.pte", "-", "-q"]);
    let done = finished(piped.stdin(fs::File::open(audio()).unwrap()).output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert_eq!(done.stdout, fs::read_to_string(dir.path().join("out/audio.txt")).unwrap());
    // The same samples without their container.
    fs::write(dir.path().join("audio.raw"), &fs::read(audio()).unwrap()[44..]).unwrap();
    let json = |args: &[&str]| flambeau(dir.path(), &[&["transcribe", "-m", "whisper.pte", "--json", "-q"], args].concat()).stdout;
    assert_eq!(json(&["audio.raw", "--pcm", "s16le"]), json(&[&audio()]));
    let halved: serde_json::Value = serde_json::from_str(&json(&["audio.raw", "--pcm", "s16le", "--rate", "8000"])).unwrap();
    assert!((halved["duration"].as_f64().unwrap() - 1.0).abs() < 0.01, "{halved}");
}

#[test]
fn webvtt_escapes_what_the_model_writes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("model");
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(of_case("moonshine", "checkpoint")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let run = |format: &str| {
        let done = flambeau(dir.path(), &["transcribe", "-m", "model", &audio(), "-f", format, "-q"]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.stdout
    };
    let json: serde_json::Value = serde_json::from_str(&run("json")).unwrap();
    // From now on, the first token of the text is written in the characters that WebVTT reserves.
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("tokenizer.json")).unwrap()).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let tokens = json["segments"][0]["tokens"].as_array().unwrap();
    let (name, id) = tokens.iter().find_map(|token| vocabulary.iter().find(|(_, id)| *id == token)).unwrap();
    let (name, id) = (name.clone(), id.clone());
    vocabulary.remove(&name);
    vocabulary.insert("▁a&<b>".to_owned(), id);
    tokenizer["model"]["merges"] = serde_json::json!([]);
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    assert!(run("txt").contains("a&<b>"));
    let vtt = run("vtt");
    assert!(vtt.contains("a&amp;&lt;b&gt;") && !vtt.contains("a&<") && !vtt.contains("<b>"), "{vtt}");
}

#[test]
fn several_texts_are_tried_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    for options in [["--beam-size", "8"], ["--best-of", "4"]] {
        let done = flambeau(dir.path(), &[&["transcribe", "-m", &model(), &audio(), "--json"], &options[..]].concat());
        assert_eq!(done.code, 0, "{}", done.stderr);
    }
    for (options, complaint) in
        [(["--beam-size", "9"], "from 1 to 8"), (["--best-of", "0"], "from 1 to 8"), (["--rate", "8000"], "--pcm")]
    {
        let refused = flambeau(dir.path(), &[&["transcribe", "-m", &model(), &audio()], &options[..]].concat());
        assert!(refused.code == 2 && refused.stderr.contains(complaint), "{}", refused.stderr);
    }
    let moonshine = of_case("moonshine", "checkpoint");
    let refused = flambeau(dir.path(), &["transcribe", "-m", &moonshine, &audio(), "--beam-size", "5"]);
    assert!(refused.code == 1 && refused.stderr.contains("takes no beam size"), "{}", refused.stderr);
}

#[test]
fn batches_refuse_what_goes_from_window_to_window() {
    let dir = tempfile::tempdir().unwrap();
    for (options, complaint) in [
        (["--batch-size=2", "--previous-text"], "windows know nothing of one another"),
        (["--batch-size=2", "--beam-size=2"], "takes no beam size"),
        (["--batch-size=2", "--live"], "takes no batch size"),
    ] {
        let refused = flambeau(dir.path(), &[&["transcribe", "-m", &model(), &audio()], &options[..]].concat());
        assert!(refused.code == 1 && refused.stderr.contains(complaint), "{}", refused.stderr);
    }
    let parakeet = of_case("parakeet-ctc", "checkpoint");
    for option in ["--batch-size=2", "--hotwords=Flambeau"] {
        let refused = flambeau(dir.path(), &["transcribe", "-m", &parakeet, &audio(), option]);
        assert!(refused.code == 1 && refused.stderr.contains("Parakeet takes no"), "{}", refused.stderr);
    }
}

#[test]
fn each_channel_has_a_transcript_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let once = fs::read(audio()).unwrap();
    let frames = once[44..].chunks_exact(2);
    // The recording is what the second of two channels hears; the first one is silent.
    let stereo: Vec<u8> = frames.flat_map(|sample| [0, 0, sample[0], sample[1]]).collect();
    fs::write(dir.path().join("two.raw"), stereo).unwrap();
    let parakeet = of_case("parakeet-ctc", "checkpoint");
    let run = |args: &[&str]| flambeau(dir.path(), &[&["transcribe", "-m", &parakeet, "-q"], args].concat());
    let form = ["two.raw", "--pcm", "s16le", "--channels", "2", "--channels", "separate"];
    let json = |done: &crate::Finished| serde_json::from_str::<serde_json::Value>(&done.stdout).unwrap();
    let [alone, both] = [run(&[&audio(), "--json"]), run(&[&form[..], &["--json"]].concat())];
    assert_eq!((both.code, both.stderr.as_str()), (0, ""));
    let heard = |json: &serde_json::Value, channel: Option<u64>| {
        let of_channel = |segment: &&serde_json::Value| segment["channel"].as_u64() == channel;
        json["segments"].as_array().unwrap().iter().filter(of_channel).map(|s| s["text"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(heard(&json(&both), Some(2)), heard(&json(&alone), None));
    assert!(run(&form).stdout.contains("[channel 2] "));
    assert!(run(&[&form[..], &["-f", "vtt"]].concat()).stdout.contains("<v channel 2>"));
    for (args, complaint) in [
        (&["-", "--channels", "separate"][..], "stdin can only be read once"),
        (&["two.raw", "--channels", "2"], "with --pcm only"),
        (&["two.raw", "--channels", "both"], "expected `separate` or a number"),
    ] {
        let refused = run(args);
        assert!(refused.code == 2 && refused.stderr.contains(complaint), "{}", refused.stderr);
    }
}

#[test]
fn bench_measures_the_stages_of_every_family() {
    let dir = tempfile::tempdir().unwrap();
    for (family, stages) in [
        ("whisper", &["features", "encoder", "decoder", "transcribe"][..]),
        ("moonshine", &["encoder", "decoder", "transcribe"]),
        ("parakeet-ctc", &["features", "encoder", "decoder", "transcribe"]),
        ("voxtral", &["features", "encoder", "prompt", "decoder", "transcribe"]),
        ("voxtral-realtime", &["features", "encoder", "decoder", "transcribe"]),
    ] {
        let exported = flambeau(dir.path(), &["export", &of_case(family, "checkpoint"), "-o", "model.pte"]);
        assert_eq!(exported.code, 0, "{}", exported.stderr);
        let done = flambeau(dir.path(), &["bench", "model.pte", "--audio", &audio(), "-r", "1", "--json"]);
        assert_eq!(done.code, 0, "{family}: {}", done.stderr);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        let rows = json.as_array().unwrap();
        let names: Vec<&str> = rows.iter().filter_map(|row| row["test"].as_str()).collect();
        assert_eq!(names, stages, "{family}");
        assert!(rows.iter().all(|row| row["ms_median"].is_number()), "{family}: {json}");
        assert!(rows.last().unwrap()["real_time_factor"].is_number(), "{family}: {json}");
    }
    let audio = audio();
    let profile =
        &["bench", "model.pte", "--audio", &audio, "-r", "1", "--profile", "--trace", "trace.json", "--etdump", "run.etdp"];
    let done = flambeau(dir.path(), profile);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stderr.contains("GFLOP/s  step"), "{}", done.stderr);
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.path().join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let steps_of =
        |method| events.iter().filter(|event| event["args"]["method"] == method && event["args"]["node"].is_u64()).count();
    assert!(["encode_audio_chunk", "text_decoder"].map(steps_of).iter().all(|&count| count > 0), "{trace}");
    assert_eq!(std::fs::read(dir.path().join("run.etdp")).unwrap()[8..12], *b"ED00");
}

#[test]
fn mistakes_are_told_before_work_begins() {
    let dir = tempfile::tempdir().unwrap();
    let usage = flambeau(dir.path(), &["transcribe", "-m", &model(), &audio(), "-f", "srt,txt"]);
    assert_eq!(usage.code, 2, "{}", usage.stderr);
    assert!(usage.stderr.contains("--output-dir"));
    let both = flambeau(dir.path(), &["transcribe", "-m", &model(), &audio(), "--mic"]);
    assert!(both.code == 2 && both.stderr.contains("--mic"), "{}", both.stderr);
    let nothing = flambeau(dir.path(), &["transcribe", "-m", &model()]);
    assert!(nothing.code == 2 && nothing.stderr.contains("<FILE>"), "{}", nothing.stderr);
    if cfg!(not(feature = "microphone")) {
        let microphone = flambeau(dir.path(), &["transcribe", "-m", &model(), "--mic"]);
        assert!(microphone.code == 1 && microphone.stderr.contains("--features microphone"), "{}", microphone.stderr);
    }
    let language = flambeau(dir.path(), &["transcribe", "-m", &model(), &audio(), "-l", "xx"]);
    assert_eq!(language.code, 1);
    assert!(language.stderr.contains("expected one of en, fr, de"), "{}", language.stderr);
    // One of ExecuTorch's three programs exists. Then all do, but two are not what their names say.
    fs::create_dir(dir.path().join("apart")).unwrap();
    let exported = flambeau(dir.path(), &["export", &model(), "-o", "apart/encoder.pte"]);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    let apart = || flambeau(dir.path(), &["transcribe", "-m", "apart", &audio(), "--tokenizer", &model()]);
    assert!(apart().code == 1 && apart().stderr.contains("cross_kv.pte"), "{}", apart().stderr);
    for name in ["cross_kv.pte", "decoder.pte"] {
        fs::copy(dir.path().join("apart/encoder.pte"), dir.path().join("apart").join(name)).unwrap();
    }
    assert!(apart().code == 1 && apart().stderr.contains("`forward`"), "{}", apart().stderr);
    let missing = flambeau(dir.path(), &["transcribe", "-m", &model(), "nothing.mp3"]);
    assert!(missing.code == 1 && missing.stderr.contains("nothing.mp3"), "{}", missing.stderr);
}

#[test]
fn a_parakeet_of_every_kind_tells_when_words_were_said_in_a_long_recording() {
    for kind in ["tdt", "rnnt", "ctc"] {
        let dir = tempfile::tempdir().unwrap();
        let (recording, seconds) = long_recording(dir.path());
        let model = of_case(&format!("parakeet-{kind}"), "checkpoint");
        let done = flambeau(dir.path(), &["transcribe", "-m", &model, &recording, "--json", "--word-timestamps"]);
        assert_eq!(done.code, 0, "{kind}: {}", done.stderr);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert!((json["duration"].as_f64().unwrap() - seconds).abs() < 0.001, "{kind}: {}", json["duration"]);
        assert!(json["language"].is_null());
        let segments = json["segments"].as_array().unwrap();
        let words: Vec<_> = segments.iter().flat_map(|segment| segment["words"].as_array().unwrap()).collect();
        let time = |word: &serde_json::Value, key: &str| word[key].as_f64().unwrap();
        assert!(words.len() > 100, "{kind}: {} words", words.len());
        for pair in words.windows(2) {
            assert!(time(pair[0], "start") < time(pair[0], "end"), "{kind}: {pair:?}");
            assert!(time(pair[0], "start") <= time(pair[1], "start"), "{kind}: {pair:?}");
        }
        // The windows between the first and the last word leave nothing out: the recording says the
        // same again and again.
        let pause = words.windows(2).map(|pair| time(pair[1], "start") - time(pair[0], "end")).fold(0.0, f64::max);
        assert!(
            time(words[0], "start") < 2.0 && time(words[words.len() - 1], "end") > seconds - 2.0 && pause < 2.0,
            "{kind}: {pause}"
        );
    }
}

#[test]
fn with_vad_a_model_hears_nothing_of_steady_noise() {
    let dir = tempfile::tempdir().unwrap();
    let head = fs::read(audio()).unwrap()[..44].to_vec();
    let mut state = 1u32;
    let noise = (0..10 * 16_000).flat_map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 20) as i16 - 2048).to_le_bytes()
    });
    let path = dir.path().join("noise.wav").to_string_lossy().into_owned();
    let head = [&head[..4], &[0xff; 4], &head[8..40], &[0xff; 4]].concat();
    fs::write(&path, head.into_iter().chain(noise).collect::<Vec<u8>>()).unwrap();
    let said = |family: &str, vad: &str| {
        let done = flambeau(dir.path(), &["transcribe", "-m", &of_case(family, "checkpoint"), &path, "--json", vad]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(json["duration"].as_f64(), Some(10.0));
        json["segments"].as_array().unwrap().len()
    };
    for family in ["parakeet-ctc", "voxtral-realtime"] {
        assert!(said(family, "--no-vad") > 0, "{family}: random weights always say something");
        assert_eq!(said(family, "--vad"), 0, "{family}");
    }
}

#[test]
fn a_moonshine_writes_windows_of_a_long_recording() {
    let dir = tempfile::tempdir().unwrap();
    let (recording, seconds) = long_recording(dir.path());
    let model = of_case("moonshine", "checkpoint");
    let done = flambeau(dir.path(), &["transcribe", "-m", &model, &recording, "--json"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert!((json["duration"].as_f64().unwrap() - seconds).abs() < 0.001);
    assert!(json["segments"].as_array().unwrap().len() > 3);
    let refused = flambeau(dir.path(), &["transcribe", "-m", &model, &recording, "--word-timestamps"]);
    assert!(refused.code == 1 && refused.stderr.contains("takes no times of words"), "{}", refused.stderr);
}

#[test]
fn languages_are_taken_in_any_case_and_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for called in ["FR", "french", "fr-CA"] {
        let done = flambeau(dir.path(), &["transcribe", "-m", &model(), &audio(), "--json", "-l", called]);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).expect(&done.stderr);
        assert_eq!(json["language"].as_str(), Some("fr"), "{called}");
    }
}

#[test]
fn channels_in_opposite_phase_are_heard_as_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let once = fs::read(audio()).unwrap();
    let samples = once[44..].chunks_exact(2).map(|sample| i16::from_le_bytes([sample[0], sample[1]]));
    let stereo: Vec<u8> = samples.flat_map(|sample| [sample, sample.saturating_neg()]).flat_map(i16::to_le_bytes).collect();
    fs::write(dir.path().join("two.raw"), stereo).unwrap();
    let parakeet = of_case("parakeet-ctc", "checkpoint");
    let run = |args: &[&str]| flambeau(dir.path(), &[&["transcribe", "-m", &parakeet], args].concat());
    let (alone, both) = (run(&[&audio()]), run(&["two.raw", "--pcm", "s16le", "--channels", "2"]));
    assert_eq!((both.code, &both.stdout), (0, &alone.stdout));
    assert!(both.stderr.contains("cancel one another out") && !alone.stderr.contains("cancel"), "{}", both.stderr);
}
