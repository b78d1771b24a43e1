//! Writes the initial corpora from files of the repository and generated inputs: `seeds FOLDER`.

#![forbid(unsafe_code)]

use std::{
    env, fs,
    io::{self, Cursor, Read, Write},
    path::{Path, PathBuf},
};

use flambeau_tensor::Bytes;
use flambeau_testgraphs::{Rounding, random_graph};
use flambeau_wire::{Blob, mlx, ptd::DataFileWriter, read_program};
use serde_json::{Map, Value, json};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

struct Corpora<'a> {
    root: &'a Path,
    written: usize,
}

impl Corpora<'_> {
    fn add(&mut self, target: &str, seed: impl AsRef<[u8]>) -> io::Result<()> {
        let folder = self.root.join(target);
        fs::create_dir_all(&folder)?;
        self.written += 1;
        fs::write(folder.join(format!("seed-{}", self.written)), seed)
    }

    /// Adds a seed after its target's selector byte.
    fn add_as(&mut self, target: &str, choice: u8, seed: impl AsRef<[u8]>) -> io::Result<()> {
        self.add(target, [&[choice], seed.as_ref()].concat())
    }

    fn payload(&mut self, payload: &[u8]) -> io::Result<()> {
        self.add("payload", payload)?;
        self.add_as("session", 0, payload)
    }

    fn programs(&mut self) -> io::Result<()> {
        for case in cases()? {
            let file = Bytes::from(fs::read(case.join("model.pte"))?);
            self.add("pte", &file)?;
            let program = read_program(&file).expect("committed programs read");
            for delegate in program.plans.iter().flat_map(|plan| &plan.delegates) {
                self.payload(&program.delegate_payload(delegate))?;
            }
            self.add_as("tensors", 0, fs::read(case.join("input.bin"))?)?;
        }
        for seed in 0..400 {
            let sample = random_graph(seed, 1 + seed as usize % 6, Rounding::FusedNodes);
            self.payload(&mlx::encode(&sample.graph))?;
        }
        let mut file = DataFileWriter::new();
        file.add("weight", Blob::from_bytes(vec![1u8; 16]), None).expect("the key is free");
        file.add("bias", Blob::from_bytes(vec![2u8; 4]), None).expect("the key is free");
        let mut bytes = Vec::new();
        file.write(&mut bytes).expect("memory is written");
        self.add("ptd", bytes)
    }

    /// Random graphs: seed, maximum number of nodes, and changes.
    fn graphs(&mut self) -> io::Result<()> {
        (0..64u8).try_for_each(|i| self.add("graph", [&[i, 0, 0, 0, 1 + i % 15], &vec![i; usize::from(i % 7)][..]].concat()))
    }

    fn archives(&mut self) -> io::Result<()> {
        for folder in cases()?.iter().map(|case| case.join("model.pt2")).chain(files("../crates/pt2/tests/fixtures", "pt2")?) {
            let archive = fs::read(folder)?;
            self.add_as("pt2", u8::MAX, &archive)?;
            for (name, contents) in members(&archive) {
                match name.rsplit('/').next().unwrap_or_default() {
                    "model.json" => self.add_as("pt2", 0, contents)?,
                    "model_weights_config.json" => self.add_as("pt2", 1, contents)?,
                    _ if name.ends_with(".pt") => {
                        for (_, pickle) in members(&contents).into_iter().filter(|member| member.0.ends_with("data.pkl")) {
                            self.add("pickle", pickle)?;
                        }
                    }
                    _ => {}
                }
            }
        }
        for text in [
            "s77 + 2*s3 - 1",
            "(s0*s1)//(4*s2)",
            "Max(1, Min(s0, 64))",
            "Eq(Mod(s5, 8), 0) & (s5 >= 2) | ~(s5 < 3)",
            "Add(Symbol('s77', integer=True, positive=True), Integer(1))",
            "CeilToInt(IntTrueDiv(s0, 2)) + FloorDiv(s1, 3)**2",
            "ModularIndexing(s0, 2, 3) + CleanDiv(s0, 2) + PythonMod(s0, 3) + LShift(s1, 2)",
            "TruncToInt(ToFloat(s0)*1.5) + RShift(s1, 1) + Piecewise((1, s0 > 2), (2, True))",
            "floor(s0/2 - 0.5) + ceiling(Float('2.5')*s0) + Rational(1, 2)*s1",
        ] {
            self.add("expression", text)?;
        }
        Ok(())
    }

    fn checkpoints(&mut self) -> io::Result<()> {
        for path in files("../crates/zoo/tests/data", "gguf")? {
            self.add("gguf", fs::read(path)?)?;
        }
        self.add("gguf", gguf())?;
        self.add("ggml", ggml())?;
        self.add("ctranslate2", ctranslate2())?;
        self.add("nemo", fs::read("../crates/testcases/checkpoints/speech-parakeet-nemo/checkpoint.nemo")?)?;
        for family in ["llama", "qwen2", "qwen3", "phi3"] {
            for scaling in scalings() {
                let mut config = config(family);
                config["rope_scaling"] = scaling;
                self.add("checkpoint", [config.to_string().as_bytes(), b"\n", &safetensors(family)].concat())?;
            }
        }
        self.add_as("tensors", 4, safetensors("llama"))
    }

    /// A text of two tokens with two tensors; the reader also refuses a wrong checksum of the data.
    fn disk_cache(&mut self) -> io::Result<()> {
        let mut head = vec![7u8; 32];
        head.extend(2u64.to_le_bytes());
        head.extend([3u32, 70_000].iter().flat_map(|id| id.to_le_bytes()));
        head.extend(2u64.to_le_bytes());
        for (dtype, shape) in [(6u8, &[3u64, 1][..]), (0, &[5][..])] {
            head.extend([dtype, shape.len() as u8]);
            head.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
        }
        let mut file = [&b"FLMBTXT\x01"[..], &(head.len() as u64).to_le_bytes(), &[0; 8], &head[..]].concat();
        file.resize(file.len().next_multiple_of(64) + 64 + 5, 1);
        self.add("disk_cache", file)
    }

    fn tokenizers(&mut self) -> io::Result<()> {
        for path in files("../crates/text/fixtures", "json")? {
            self.add("tokenizer", without_spaces(&fs::read(path)?))?;
        }
        for extension in ["model", "json"] {
            for path in files("../crates/text/tests/data", extension)? {
                self.add("tokenizer_model", fs::read(path)?)?;
            }
        }
        let words = json!({"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<s>": 2}, "unk_token": "a"});
        let pairs = json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "byte_fallback": true});
        let scored = json!({"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0], ["ab", -2.5]], "unk_id": 0});
        for (model, splits) in [(words, "WhitespaceSplit"), (pairs, "ByteLevel"), (scored, "Metaspace")] {
            let splits = json!({"type": splits, "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
                                "replacement": "▁", "prepend_scheme": "first", "split": true});
            let regex =
                json!({"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)"}, "behavior": "Isolated", "invert": false});
            let tokenizer = json!({
                "version": "1.0", "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [regex, splits]}, "decoder": {"type": "Fuse"},
                "model": model, "post_processor": null,
                "added_tokens": [{"id": 2, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
                                  "rstrip": false, "normalized": false}],
            });
            self.add("tokenizer", tokenizer.to_string())?;
            let beside = r#"{"bos_token": "<s>", "add_bos_token": true}"#;
            self.add("tokenizer", format!("{tokenizer}\n{beside}\n{{}}\n{{\"eos_token_id\": [1, 2], \"top_k\": 5}}"))?;
        }
        Ok(())
    }

    fn templates(&mut self) -> io::Result<()> {
        for template in [
            "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}",
            "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'system' %}{% set ns.n = ns.n + loop.index0 %}{% endfor %}{{ ns.n }}",
            "{% macro show(x, y=1) %}{{ x }}{{ y * 2 }}{% endmacro %}{{ show('a'.upper().split('b')[0]) }}{{ tools | tojson(indent=2) }}",
            "{{ messages[0].content[1:-1] ~ '%s' % 3 }}{% if messages | length > 1 and not x is defined %}{{ raise_exception('no') }}{% endif %}",
            "{% for i in range(9) %}{% if i == 3 %}{% continue %}{% elif i > 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "{% generation %}{{ '%s=%d' | format('n', 3) }}{{ '{}:{}'.format(1, 'z') }}{% endgeneration %}{{ strftime_now('%d %b') }}",
            "{{ ['a', 'b'] | join(', ') | indent(2) | replace('a', 'xx') }}{{ messages | map(attribute='role') | list | tojson(sort_keys=true) }}",
            "{% set x %}in{{ 1 }}{% endset %}{{ x | sort | unique | batch(2) }}{{ {'a': 1}.items() | dictsort }}{{ x.rjust(3) if x else x[::-1] }}",
        ] {
            self.add("template", template)?;
        }
        Ok(())
    }

    fn recordings(&mut self) -> io::Result<()> {
        for (samples, rate, channels) in [(2000, 16_000, 1), (3000, 44_100, 2), (400, 8_000, 6)] {
            let wav = wav(samples, rate, channels);
            self.add_as("recording", 0, &wav)?;
            self.add_as("recording", 1, &wav)?;
            self.add_as("recording", 2 + channels as u8, &wav[44..])?;
        }
        for amplitude in [0.0f32, 0.1, 1e30, f32::NAN] {
            let samples = (0..4000).flat_map(|at| (amplitude * (at as f32 * 0.1).sin()).to_le_bytes());
            self.add_as("features", 3, samples.collect::<Vec<u8>>())?;
        }
        Ok(())
    }

    fn arrays(&mut self) -> io::Result<()> {
        let mut array = b"\x93NUMPY\x01\x00\x36\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n".to_vec();
        array[8] = (array.len() - 10) as u8;
        array.extend([1.0f32, 2.0].iter().flat_map(|v| v.to_le_bytes()));
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        for name in ["a.npy", "b.npy"] {
            archive.start_file(name, SimpleFileOptions::default())?;
            archive.write_all(&array)?;
        }
        self.add_as("tensors", 1, &array)?;
        self.add_as("tensors", 3, &array)?;
        self.add_as("tensors", 2, archive.finish()?.into_inner())
    }
}

/// A WAV file with `samples` 16-bit samples of a tone per channel.
fn wav(samples: u32, rate: u32, channels: u16) -> Vec<u8> {
    let (frame, size) = (2 * channels, 2 * samples * u32::from(channels));
    let mut wav = [&b"RIFF"[..], &(36 + size).to_le_bytes(), b"WAVEfmt ", &16u32.to_le_bytes(), &1u16.to_le_bytes()].concat();
    wav.extend(channels.to_le_bytes());
    wav.extend(rate.to_le_bytes());
    wav.extend((rate * u32::from(frame)).to_le_bytes());
    wav.extend(frame.to_le_bytes());
    wav.extend(16u16.to_le_bytes());
    wav.extend(*b"data");
    wav.extend(size.to_le_bytes());
    for at in 0..samples {
        let sample = ((f64::from(at) * 0.05).sin() * 8000.0) as i16;
        (0..channels).for_each(|_| wav.extend(sample.to_le_bytes()));
    }
    wav
}

/// Files of the repository with an extension, in order.
fn files(folder: &str, extension: &str) -> io::Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    Ok(files)
}

/// Folders of committed cases.
fn cases() -> io::Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/testcases/cases");
    let mut cases: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    cases.retain(|case| case.join("case.json").is_file());
    cases.sort();
    Ok(cases)
}

/// Names and contents of a zip file's members.
fn members(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = ZipArchive::new(Cursor::new(archive)).expect("the archive is whole");
    let count = archive.len();
    let member = |i| {
        let mut file = archive.by_index(i).expect("a member");
        let (name, mut contents) = (file.name().expect("a plain name").to_string(), Vec::new());
        file.read_to_end(&mut contents).expect("the member reads");
        (name, contents)
    };
    (0..count).map(member).collect()
}

fn without_spaces(text: &[u8]) -> String {
    serde_json::from_slice::<Value>(text).expect("committed files are JSON").to_string()
}

fn config(family: &str) -> Value {
    json!({
        "model_type": family, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 8, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": [2, 3], "hidden_act": "silu",
    })
}

/// All kinds of rotary scaling in configs.
fn scalings() -> [Value; 5] {
    let original = 8;
    [
        Value::Null,
        json!({"rope_type": "linear", "factor": 2.0}),
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": original}),
        json!({"type": "yarn", "factor": 4.0, "beta_fast": 32.0, "original_max_position_embeddings": original}),
        json!({"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0],
               "original_max_position_embeddings": original}),
    ]
}

/// The family's tensors, all zeros.
fn safetensors(family: &str) -> Vec<u8> {
    let mut tensors = vec![("embed_tokens".to_owned(), vec![8, 8]), ("norm".into(), vec![8])];
    let mut layer = |name: &str, shape: &[usize]| tensors.push((format!("layers.0.{name}"), shape.to_vec()));
    layer("input_layernorm", &[8]);
    layer("post_attention_layernorm", &[8]);
    layer("self_attn.o_proj", &[8, 8]);
    layer("mlp.down_proj", &[8, 8]);
    if family == "phi3" {
        layer("mlp.gate_up_proj", &[16, 8]);
        layer("self_attn.qkv_proj", &[16, 8]);
    } else {
        layer("mlp.gate_proj", &[8, 8]);
        layer("mlp.up_proj", &[8, 8]);
        for (name, rows) in [("q", 8), ("k", 4), ("v", 4)] {
            layer(&format!("self_attn.{name}_proj"), &[rows, 8]);
        }
        layer("self_attn.q_norm", &[4]);
        layer("self_attn.k_norm", &[4]);
    }
    let (mut header, mut end) = (Map::new(), 0);
    let mut entry = |name: String, shape: &[usize]| {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}));
    };
    for (name, shape) in tensors {
        entry(format!("model.{name}.weight"), &shape);
    }
    for (name, rows) in [("q", 8), ("k", 4), ("v", 4)] {
        entry(format!("model.layers.0.self_attn.{name}_proj.bias"), &[rows]);
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; end]].concat()
}

/// A small GGUF file with a byte-level vocabulary, whose tensors are missing.
fn gguf() -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let texts = |list: &[&str]| {
        let head = [&8u32.to_le_bytes()[..], &(list.len() as u64).to_le_bytes()].concat();
        list.iter().fold(head, |all, item| [all, text(item)].concat())
    };
    let numbers = |list: &[f32]| {
        let head = [&6u32.to_le_bytes()[..], &(list.len() as u64).to_le_bytes()].concat();
        list.iter().fold(head, |all, item| [&all[..], &item.to_le_bytes()].concat())
    };
    let (word, list, string) = (4u32, 9u32, 8u32);
    let mut entries = vec![
        ("general.architecture", string, text("llama")),
        ("tokenizer.ggml.model", string, text("llama")),
        ("tokenizer.ggml.pre", string, text("qwen2")),
        ("tokenizer.ggml.tokens", list, texts(&["<unk>", "a", "b", "ab", "▁"])),
        ("tokenizer.ggml.merges", list, texts(&["a b"])),
        ("tokenizer.ggml.scores", list, numbers(&[0.0, -1.0, -2.0, -3.0, -4.0])),
        ("llama.rope.scaling.type", string, text("yarn")),
        ("llama.rope.scaling.factor", 6, 2f32.to_le_bytes().to_vec()),
    ];
    for (key, value) in [
        ("llama.embedding_length", 8u32),
        ("llama.feed_forward_length", 8),
        ("llama.block_count", 1),
        ("llama.attention.head_count", 2),
        ("llama.attention.head_count_kv", 1),
        ("llama.context_length", 16),
        ("llama.vocab_size", 5),
        ("tokenizer.ggml.bos_token_id", 0),
        ("tokenizer.ggml.eos_token_id", 1),
    ] {
        entries.push((key, word, value.to_le_bytes().to_vec()));
    }
    let head = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &(entries.len() as u64).to_le_bytes()].concat();
    entries.into_iter().fold(head, |all, (key, kind, value)| [all, text(key), kind.to_le_bytes().to_vec(), value].concat())
}

/// A small English Whisper in whisper.cpp's format with one tensor. Only vocabularies of the real
/// size are read.
fn ggml() -> Vec<u8> {
    let (vocab, ranks) = (51_864, 50_256);
    let (positions, width, heads, layers, mels) = (4, 8, 2, 1, 2);
    let sizes = [vocab, positions, width, heads, layers, positions, width, heads, layers, mels, 1];
    let filters = [mels, 2, 0, 0, 0, 0];
    let numbers = [0x6767_6d6c].into_iter().chain(sizes).chain(filters).chain([ranks]);
    let mut file: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
    for rank in 0..ranks {
        let bytes = rank.checked_sub(256).unwrap_or(rank).to_le_bytes();
        let length = if rank < 256 { 1 } else { 2 };
        file.extend((length as u32).to_le_bytes());
        file.extend(&bytes[..length]);
    }
    let name = b"decoder.ln.bias";
    file.extend([1, name.len() as u32, 0, width].into_iter().flat_map(u32::to_le_bytes));
    file.extend(name);
    file.extend([0u8; 32]);
    file
}

/// The start of a Whisper in CTranslate2's format: one variable and one alias.
fn ctranslate2() -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u16 + 1).to_le_bytes()[..], text.as_bytes(), &[0]].concat();
    let number = u32::to_le_bytes;
    let name = "encoder/conv1/bias";
    let variable = [&text(name)[..], &[1], &number(2), &[0], &number(8), &[0; 8]].concat();
    let head = [&number(6)[..], &text("WhisperSpec"), &number(3), &number(1)].concat();
    [&head[..], &variable, &number(1), &text("alias"), &text(name)].concat()
}

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: seeds FOLDER"))?;
    let mut corpora = Corpora { root: folder.as_ref(), written: 0 };
    corpora.programs()?;
    corpora.graphs()?;
    corpora.archives()?;
    corpora.checkpoints()?;
    corpora.disk_cache()?;
    corpora.tokenizers()?;
    corpora.templates()?;
    corpora.arrays()?;
    corpora.recordings()?;
    println!("{} seeds written", corpora.written);
    Ok(())
}
