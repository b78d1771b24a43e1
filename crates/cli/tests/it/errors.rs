//! Commands that fail: exit code, an error of one line, and no partial output.

use flambeau::tensor::{DType, Tensor};

use crate::{
    flambeau, op_test_runner,
    program::{bytes, floats, write, write_tensor},
};

fn check(args: &[&str], code: i32, parts: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(write(dir.path())).unwrap();
    std::fs::write(dir.path().join("short.pte"), &whole[..whole.len() - 1]).unwrap();
    std::fs::write(dir.path().join("foreign.pte"), bytes("XnnpackBackend")).unwrap();
    std::fs::write(dir.path().join("text.txt"), "no program").unwrap();
    std::fs::write(dir.path().join("empty.pte"), "").unwrap();
    std::fs::write(dir.path().join("archive.pt2"), b"PK\x03\x04 and little else").unwrap();
    std::fs::write(dir.path().join("model.gguf"), b"GGUF and little else").unwrap();
    write_tensor(dir.path(), "x.bin", floats(&[1.0, 2.0], &[2]));
    write_tensor(dir.path(), "rank.bin", floats(&[1.0, 2.0], &[1, 2]));
    write_tensor(dir.path(), "long.bin", floats(&[1.0, 2.0, 3.0], &[3]));
    write_tensor(dir.path(), "ints.bin", Tensor::zeros(DType::I32, &[2]).unwrap());
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let done = flambeau(dir.path(), args);
    assert_eq!(done.code, code, "{args:?}\n{}{}", done.stdout, done.stderr);
    for part in parts {
        assert!(done.stderr.contains(part), "`{part}` is not in: {}", done.stderr);
    }
    assert!(code == 2 || done.stderr.starts_with("error: "), "{}", done.stderr);
    assert_eq!((done.stdout.as_str(), names()), ("", before), "{args:?}");
}

#[test]
fn damaged_and_foreign_programs_are_named() {
    check(&["run", "short.pte", "-i", "x.bin"], 1, &["short.pte", "truncated"]);
    check(&["run", "text.txt", "-i", "x.bin"], 1, &["text.txt"]);
    check(&["run", "none.pte", "-i", "x.bin"], 1, &["none.pte"]);
    check(&["run", "foreign.pte", "-i", "x.bin"], 1, &["XnnpackBackend", "MLXBackend"]);
    check(&["run", "add.pte", "--method", "backward", "-i", "x.bin"], 1, &["backward", "`forward`"]);
    check(&["inspect", "text.txt"], 1, &["text.txt", "GGUF"]);
    check(&["inspect", "empty.pte"], 1, &["empty.pte is empty"]);
    check(&["inspect", "short.pte"], 1, &["short.pte", "truncated"]);
}

#[test]
fn stand_ins_and_missing_parts_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let pointer = ["version https:", "//git-lfs", ".github", ".com/spec/v1\noid sha256:00\nsize 1\n"].concat();
    std::fs::write(dir.path().join("pointer.gguf"), &pointer).unwrap();
    std::fs::write(dir.path().join("page.gguf"), "\n<!DOCTYPE html><html></html>").unwrap();
    std::fs::write(dir.path().join("m-00001-of-00002.gguf"), "GGUF").unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    std::fs::write(dir.path().join("folder/config.json"), "{}").unwrap();
    std::fs::write(dir.path().join("folder/model.safetensors"), &pointer).unwrap();
    let check = |file: &str, parts: &[&str]| {
        for command in [&["generate", "-p", "x"][..], &["export", "-o", "x.pte"]] {
            let done = flambeau(dir.path(), &[command, &[file]].concat());
            assert_eq!(done.code, 1, "{}", done.stderr);
            parts.iter().for_each(|part| assert!(done.stderr.contains(part), "`{part}` is not in: {}", done.stderr));
        }
    };
    check("pointer.gguf", &["pointer.gguf is a pointer of Git LFS", "hint: `git lfs pull`"]);
    check("folder", &["model.safetensors is a pointer of Git LFS"]);
    check("page.gguf", &["page.gguf is a web page", "hint: "]);
    check("m-00001-of-00002.gguf", &["m-00002-of-00002.gguf is missing, which is part 2 of the 2"]);
}

#[test]
fn files_of_another_kind_are_told_apart_with_what_serves() {
    let run = |file| ["run", "-i", "x.bin", file];
    check(&run("archive.pt2"), 1, &["archive.pt2 is a torch.export archive", "hint: ", "flambeau compile archive.pt2"]);
    check(&run("model.gguf"), 1, &["model.gguf is a GGUF file", "flambeau export model.gguf"]);
    check(&run("empty.pte"), 1, &["empty.pte is empty"]);
    check(&run("."), 1, &["cannot read .", "directory"]);
    for command in [&["generate", "-p", "x"][..], &["chat"], &["bench"]] {
        let on = |file| [command, &[file]].concat();
        check(&on("archive.pt2"), 1, &["archive.pt2 is a torch.export archive", "hint: ", "flambeau compile archive.pt2"]);
        check(&on("empty.pte"), 1, &["empty.pte is empty"]);
        check(&on("model.gguf"), 1, &["model.gguf"]);
        check(&on("."), 1, &["config.json"]);
        check(&on("none.pte"), 1, &["none.pte"]);
        check(&on("nowhere"), 1, &["no file or folder nowhere", "ORG/NAME"]);
    }
    check(&["run", "add.pte", "--data", "add.pte"], 1, &["add.pte is an ExecuTorch program, expected an ExecuTorch data file"]);
    check(&["compile", "add.pte", "-o", "b.pte"], 1, &["add.pte is an ExecuTorch program", "it is compiled"]);
    check(&["compile", "model.gguf", "-o", "b.pte"], 1, &["flambeau export model.gguf"]);
    check(&["compile", "archive.pt2", "-o", "b.pte"], 1, &["archive.pt2: not a readable zip archive"]);
    check(&["export", "add.pte", "-o", "b.pte"], 1, &["add.pte is an ExecuTorch program, expected a GGUF file"]);
    check(&["export", "nowhere", "-o", "b.pte"], 1, &["no file or folder nowhere", "ORG/NAME"]);
    check(&["export", "org/model", "-o", "b.pte"], 1, &["no file or folder org/model", "flambeau pull org/model"]);
}

#[test]
fn models_of_another_kind_are_named_with_their_commands() {
    let dir = tempfile::tempdir().unwrap();
    let data = |path: &str| format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
    for (model, program) in [
        ("flambeau/examples/data/tiny-llama", "text.pte"),
        ("testcases/checkpoints/speech-whisper/checkpoint", "speech.pte"),
        ("testcases/checkpoints/embedding-bert/checkpoint", "encoder.pte"),
    ] {
        assert_eq!(flambeau(dir.path(), &["export", &data(model), "-o", program]).code, 0);
    }
    for (args, part) in [
        (&["generate", "speech.pte", "x"][..], "speech.pte is a model of speech: use it with `flambeau transcribe`"),
        (&["chat", "speech.pte"], "speech.pte is a model of speech"),
        (&["embed", "text.pte", "x"], "text.pte is a language model: use it with `flambeau generate`"),
        (&["embed", "speech.pte", "x"], "speech.pte is a model of speech"),
        (&["bench", "encoder.pte"], "encoder.pte is a text encoder: use it with `flambeau embed`"),
    ] {
        let done = flambeau(dir.path(), args);
        assert!(done.code == 1 && done.stderr.contains(part), "{args:?}: {}", done.stderr);
    }
    let generate = |tokens: &str| flambeau(dir.path(), &["generate", "text.pte", "x", "--raw", "-n", "1", "-q", "-c", tokens]);
    let ignored = generate("7").stderr;
    assert!(ignored.contains("-c 7 has no effect: text.pte was exported with a context of "), "{ignored}");
    let own = ignored.trim_end().rsplit(' ').nth(1).unwrap();
    assert_eq!(generate(own).stderr, "");
}

#[test]
fn unfit_inputs_are_named_with_what_is_expected() {
    check(&["run", "add.pte", "-i", "ints.bin"], 1, &["input 0", "f32[2]", "i32[2]"]);
    check(&["run", "add.pte", "-i", "rank.bin"], 1, &["input 0", "f32[2]", "f32[1, 2]"]);
    check(&["run", "add.pte", "-i", "long.bin"], 1, &["input 0", "f32[2]", "f32[3]"]);
    check(&["run", "add.pte"], 1, &["takes 1 inputs", "found 0", "hint: --input FILE"]);
    check(&["run", "add.pte", "-i", "x.bin", "-i", "x.bin"], 1, &["takes 1 inputs", "found 2"]);
}

#[test]
fn outputs_that_cannot_be_written_are_named() {
    check(
        &["run", "add.pte", "-i", "x.bin", "-o", "no/such/folder/y.bin"],
        1,
        &["cannot write no/such/folder/y.bin: there is no folder"],
    );
    check(&["run", "add.pte", "-i", "x.bin", "--trace", "no/t.json"], 1, &["cannot write no/t.json: there is no folder no"]);
    check(&["compile", "none.pt2", "-o", "."], 1, &["cannot write .: it is a folder"]);
    check(&["compile", "none.pt2", "-o", "no/a.pte"], 1, &["cannot write no/a.pte: there is no folder no"]);
    check(&["compile", "none.pt2", "--dry-run", "--report", "no/r.json"], 1, &["cannot write no/r.json"]);
    check(&["export", "none", "-o", "no/a.pte"], 1, &["cannot write no/a.pte"]);
}

#[test]
fn wrong_usage_exits_with_2() {
    check(&["pull", "not-a-model"], 2, &["expected ORG/NAME", "flambeau list --known"]);
    for args in [
        &["frobnicate"][..],
        &[],
        &["run"],
        &["run", "add.pte", "-i", "text.txt"],
        &["run", "add.pte", "-i", "x.bin", "-o", "y.txt"],
        &["generate", "add.pte"],
        &["generate", "add.pte", "-p", "x", "--temperature=-1"],
        &["compile", "a.pt2"],
        &["compile", "a.pt2", "-o", "a.pte", "--qlinear", "9w"],
        &["conformance", "cases", "--from", "onnx"],
        &["pull", "not-a-model"],
    ] {
        check(args, 2, &[]);
    }
    let check = |args: &[&str], part| check(args, 2, &[part]);
    check(&["run", "add.pte", "--engine", "abacus"], "possible values: cpu, mlx");
    check(&["run", "add.pte", "--threads", "0"], "expected a whole number from 1");
    check(&["run", "add.pte", "-t", "-1"], "'-1' for '--threads <N>'");
    check(&["run", "add.pte", "--repeat", "0"], "expected a whole number from 1");
    check(&["run", "add.pte", "--device", "gpu"], "--device needs --engine mlx");
    check(&["run", "add.pte", "--engine", "mlx", "--device", "tpu"], "expected cpu, gpu or gpu:N");
    check(&["run", "add.pte", "--kv-cache", "1,2"], "capacity,layers,kv_heads,head_dim");
    check(&["generate", "add.pte", "-p", "x", "--temperature", "-1"], "temperature");
    check(&["generate", "add.pte", "-p", "x", "--qlinear", "4w"], "--qlinear is for checkpoints");
    check(&["chat", "add.pte", "--max-seq-len", "4"], "--max-seq-len is for checkpoints");
    check(&["bench", "add.pte", "-p", "0", "-n", "0"], "nothing is left to measure");
    check(&["export", "folder", "-o", "a.pte", "--max-seq-len", "0"], "--max-seq-len");
    check(&["conformance", "cases", "--jobs", "0"], "--jobs");
}

#[test]
fn those_who_expect_a_conversation_of_run_are_told_of_chat() {
    check(&["run", "qwen3:0.6b"], 1, &["cannot read qwen3:0.6b", "hint: ", "flambeau chat MODEL"]);
    check(&["run", "org/model"], 1, &["flambeau chat MODEL"]);
    check(
        &["run", "qwen3:0.6b", "Why is the sky blue?"],
        2,
        &["unexpected argument `Why is the sky blue?`", "flambeau chat MODEL"],
    );
}

#[test]
fn generate_says_what_it_lacks() {
    for command in [&["generate", "-p", "hello"][..], &["chat"]] {
        check(&[command, &["add.pte"]].concat(), 1, &["no tokenizer", "hint: ", "--tokenizer"]);
    }
}

#[test]
fn op_test_runner_fails_with_1() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let done = op_test_runner(dir.path(), &["--pte", "add.pte", "--input", "none.bin", "--output", "y.bin"]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("none.bin") && !dir.path().join("y.bin").exists(), "{}", done.stderr);
}
