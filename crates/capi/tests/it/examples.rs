//! The examples, and the header's promises, under each compiler.

use std::{fs::File, path::Path, sync::atomic::AtomicBool, time::Duration};

use flambeau::{
    audio::Recording,
    runners::{
        llm::{Request, generate},
        speech::{Progress, SAMPLE_RATE, Transcriber, Transcript},
    },
    text::{ChatInput, message},
};
use flambeau_cli::library::{self, LanguageModel};
use flambeau_testcases::{low_rank_adapter, test};
use libtest_mimic::Trial;

use crate::toolchain::{Program, SANITIZER, has, has_sanitizer, package};

/// Results of PyTorch on `mlp.pt2` for the rows below, rounded.
const RESULTS: [f32; 6] = [0.500_533_6, 0.190_533_1, 0.587_792_9, 0.162_802_2, -0.721_456_9, 0.785_947_9];
const ROWS: [&str; 12] = ["0.5", "-1", "0", "2", "1", "1", "1", "1", "-3", "0.25", "4", "-0.5"];

/// A compiler, and how it is used.
#[derive(Clone, Copy)]
struct Setup {
    name: &'static str,
    c: &'static str,
    cpp: &'static str,
    flags: &'static [&'static str],
    requirement: fn() -> Result<(), String>,
}

const SETUPS: [Setup; 4] = [
    Setup { name: "gcc", c: "gcc", cpp: "g++", flags: &[], requirement: || has("gcc").and(has("g++")) },
    Setup { name: "clang", c: "clang", cpp: "clang++", flags: &[], requirement: || has("clang").and(has("clang++")) },
    Setup { name: "gcc_sanitized", c: "gcc", cpp: "g++", flags: &SANITIZER, requirement: || has_sanitizer("gcc") },
    Setup { name: "clang_sanitized", c: "clang", cpp: "clang++", flags: &SANITIZER, requirement: || has_sanitizer("clang") },
];

impl Setup {
    fn cpp17(self, source: &Path) -> Program {
        Program::compile(self.cpp, &[&["-std=c++17"], self.flags].concat(), source)
    }

    fn c99(self, source: &str) -> Program {
        Program::compile(self.c, &[&["-std=c99"], self.flags].concat(), &package(source))
    }
}

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = Vec::new();
    for setup in SETUPS {
        let mut add = |name: &str, body: fn(Setup)| {
            tests.push(test(&format!("{}::{name}", setup.name), setup.requirement, move || body(setup)));
        };
        add("run_program", run_program);
        add("contract", contract);
        add("threads", threads);
        add("generation", generation);
        add("adapters", adapters);
        add("state", state);
        add("chat", chat);
        add("delegate", delegate);
        add("speech", speech);
        add("transcribe", transcribe);
        add("header_is_cpp", header_is_cpp);
        add("run_program_in_cpp", run_program_in_cpp);
        add("owners", owners);
    }
    tests
}

pub(crate) fn mlp() -> String {
    package("../flambeau/examples/data/mlp.pte").to_str().unwrap().to_owned()
}

pub(crate) fn tiny_llama() -> String {
    package("../flambeau/examples/data/tiny-llama").to_str().unwrap().to_owned()
}

fn run_program(setup: Setup) {
    let program = setup.c99("examples/run_program.c");
    let output = program.run(&[&[mlp().as_str()], &ROWS[..]].concat());
    let mut lines = output.lines();
    assert_eq!(lines.next(), Some("output ?: f32[..64, 2]"));
    assert_eq!(lines.next(), Some("input ?: f32[..64, 4]"));
    let numbers: Vec<f32> = lines.map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.len(), RESULTS.len(), "{output}");
    assert!(numbers.iter().zip(RESULTS).all(|(found, expected)| (found - expected).abs() < 2e-6), "{numbers:?}");
}

fn contract(setup: Setup) {
    let program = setup.c99("tests/c/contract.c");
    assert_eq!(program.run(&[&mlp()]), "all hold\n");
}

fn threads(setup: Setup) {
    let program = setup.c99("examples/threads.c");
    assert_eq!(program.run(&[&mlp()]), "4 threads, 50 runs each, 0 differences\n");
}

/// The greedy answer to a prompt, without C.
fn answer(flags: &[&str], prompt: impl Fn(&LanguageModel) -> Vec<u32>, max_new_tokens: usize, ignore_eos: bool) -> String {
    let engine = library::engine(&[]).unwrap();
    let model = library::language_model(
        &[&[tiny_llama()], &flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>()[..]].concat(),
        &engine,
    )
    .unwrap();
    let request = Request {
        prompt: prompt(&model),
        max_new_tokens,
        stop_ids: model.model.metadata().eos.clone(),
        ignore_eos,
        ..Request::default()
    };
    let mut sequence = model.model.sequence().unwrap();
    let now = || Duration::ZERO;
    generate(&mut sequence, &model.tokenizer, &request, &now, &AtomicBool::new(false), &mut |_| ()).unwrap().text
}

/// The tokens that ask for the next message of a conversation.
fn conversation(model: &LanguageModel, messages: &[(&str, &str)]) -> Vec<u32> {
    let messages = messages.iter().map(|(role, text)| message(role, text)).collect();
    let chat = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
    model.tokenizer.encode(&model.template.as_ref().unwrap().render(&chat).unwrap(), false).unwrap()
}

fn generation(setup: Setup) {
    let cache = tempfile::tempdir().unwrap();
    let flags = ["--cache-dir", cache.path().to_str().unwrap(), "--ctx-size", "64"];
    let program = setup.c99("tests/c/generation.c");
    let prompt = |model: &LanguageModel| model.tokenizer.encode("the cat sat on", true).unwrap();
    assert_eq!(program.run(&[&tiny_llama(), flags[1]]).trim_end(), answer(&flags, prompt, 8, true).trim_end());
}

/// Adapters that C chooses give the texts of merged ones.
fn adapters(setup: Setup) {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    let module = "model.layers.0.self_attn.q_proj";
    let [calm, loud] = ["calm", "loud"].map(|name| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        for (file, bytes) in low_rank_adapter(&[(module, [32, 32])], name.bytes().map(u64::from).sum()) {
            std::fs::write(path.join(file), bytes).unwrap();
        }
        path.to_str().unwrap().to_owned()
    });
    let program = setup.c99("tests/c/adapters.c");
    let output = program.run(&[&tiny_llama(), cache, &format!("calm={calm}:0.5"), &format!("loud={loud}")]);
    let merged = |adapters: &[&str]| {
        let given = adapters.iter().flat_map(|adapter| ["--lora".to_owned(), (*adapter).to_owned()]);
        let flags: Vec<String> = ["--cache-dir", cache, "--qlinear=none"].map(str::to_owned).into_iter().chain(given).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        answer(&flags, |model| model.tokenizer.encode("the cat sat", true).unwrap(), 16, true)
    };
    let (half, loud) = (format!("{calm}:0.5"), loud.as_str());
    let expected = [&[half.as_str(), loud][..], &[], &[half.as_str()], &[half.as_str(), loud]].map(merged);
    assert!(expected[0] != expected[1] && expected[1] != expected[2] && expected[0] != expected[2], "{expected:?}");
    assert_eq!(output.lines().map(str::trim).collect::<Vec<_>>(), expected.each_ref().map(|text| text.trim()));
}

fn state(setup: Setup) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("llama.pte");
    let program = program.to_str().unwrap();
    flambeau_cli::run(["flambeau", "export", &tiny_llama(), "-o", program].map(Into::into));
    assert_eq!(setup.c99("tests/c/state.c").run(&[program]), "all hold\n");
}

fn chat(setup: Setup) {
    let cache = tempfile::tempdir().unwrap();
    // Room for two answers without an end.
    let flags = ["--cache-dir", cache.path().to_str().unwrap(), "--ctx-size", "1200"];
    let source = "examples/chat.c";
    assert!(std::fs::read_to_string(package(source)).unwrap().lines().count() <= 100);
    let program = setup.c99(source);
    let output = program.run_with(&[&[tiny_llama().as_str()], &flags[..]].concat(), "where is the cat ?\nwhere is a dog ?\n");
    let first = answer(&flags, |model| conversation(model, &[("user", "where is the cat ?")]), 512, false);
    let so_far = [("user", "where is the cat ?"), ("assistant", first.as_str()), ("user", "where is a dog ?")];
    let second = answer(&flags, |model| conversation(model, &so_far), 512, false);
    assert_eq!(output, format!("{first}\n{second}\n"));
}

/// A delegate without the program around it.
fn delegate(setup: Setup) {
    let program = flambeau::runtime::Program::open(mlp()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = program.file();
    let delegate = &file.plan("forward").unwrap().delegates[0];
    std::fs::write(folder.path().join("payload"), file.delegate_payload(delegate)).unwrap();
    for key in file.named_data.keys() {
        std::fs::write(folder.path().join(key.replace('/', "_")), program.named(key).unwrap()).unwrap();
    }
    assert_eq!(setup.c99("tests/c/delegate.c").run(&[folder.path().to_str().unwrap()]), "all hold\n");
}

/// A file of the committed case of a model of speech.
fn of_case(family: &str, file: &str) -> String {
    package("../testcases/checkpoints").join(format!("speech-{family}")).join(file).to_str().unwrap().to_owned()
}

fn speech(setup: Setup) {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().to_str().unwrap();
    let output =
        setup.c99("tests/c/speech.c").run(&[&of_case("parakeet-ctc", "checkpoint"), cache, &of_case("parakeet-ctc", "audio.wav")]);

    let flags = |list: &[&str]| list.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>();
    let engine = library::engine(&[]).unwrap();
    let (mut model, tokenizer) =
        library::speech_model(&flags(&["--model", &of_case("parakeet-ctc", "checkpoint"), "--cache-dir", cache]), &engine).unwrap();
    let settings = library::speech_settings(&flags(&["--word-timestamps"])).unwrap();
    let task = settings.task;
    let mut recording = Recording::from_file(File::open(of_case("parakeet-ctc", "audio.wav")).unwrap(), SAMPLE_RATE).unwrap();
    let mut transcriber = Transcriber::new(&mut model, &tokenizer, settings).unwrap();
    let mut segments = Vec::new();
    loop {
        match transcriber.step().unwrap() {
            Progress::NeedsSamples => transcriber.feed(recording.next_block().unwrap()),
            Progress::Segments(new) => segments.extend(new),
            Progress::Finished => break,
        }
    }
    let language = transcriber.language().map(str::to_owned);
    let expected = Transcript { language, task, seconds: transcriber.seconds(), segments };
    assert_eq!(output.trim_end(), expected.to_json().to_string());
}

fn transcribe(setup: Setup) {
    let program = setup.c99("examples/transcribe.c");
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("voxtral.pte");
    let export = ["flambeau", "export", &of_case("voxtral", "checkpoint"), "-o", model.to_str().unwrap()];
    flambeau_cli::run(export.map(Into::into));
    let output = program.run(&[model.to_str().unwrap(), &of_case("voxtral", "audio.wav"), "--language=en"]);
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.len() > 1 && lines[0].starts_with("  0."), "{output}");
    assert_eq!(lines.last(), Some(&"0.50 seconds, language en"));
}

fn header_is_cpp(setup: Setup) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("header.cpp");
    std::fs::write(&source, "#include <flambeau.h>\nint main() { return flb_abi_version() == FLB_ABI_VERSION ? 0 : 1; }\n")
        .unwrap();
    setup.cpp17(&source).run(&[]);
}

fn run_program_in_cpp(setup: Setup) {
    let program = setup.cpp17(&package("examples/run_program.cpp"));
    assert_eq!(program.run(&[&mlp(), "0.5", "-1", "0", "2"]), "f32[..64, 4] -> f32[..64, 2]\n0.500534\n0.190533\n");
}

fn owners(setup: Setup) {
    let cache = tempfile::tempdir().unwrap();
    let program = setup.cpp17(&package("tests/c/owners.cpp"));
    let speech = ["checkpoint", "audio.wav"].map(|file| of_case("parakeet-ctc", file));
    let args = [&mlp(), cache.path().to_str().unwrap(), &tiny_llama(), &speech[0], &speech[1]];
    assert_eq!(program.run(&args), "all hold\n");
}
