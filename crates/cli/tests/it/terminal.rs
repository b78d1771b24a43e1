//! Conversations at a terminal: a pseudoterminal of 40 columns, and a model that says the same
//! words for ever.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command},
    sync::{Arc, Mutex, PoisonError},
    thread::{sleep, spawn},
    time::Duration,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use crate::command;

const COLUMNS: usize = 40;
const WORDS: [&str; 5] = ["alpha ", "beta ", "gamma ", "delta ", "incomprehensible "];
/// Looks of 5 ms at what is shown, until a test fails.
const PATIENCE: usize = 12_000;

/// The command at a terminal.
struct Terminal {
    child: Child,
    master: File,
    slave: File,
    written: Arc<Mutex<String>>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Terminal {
    /// Talks with the model, whose answers have so many tokens.
    fn chat(folder: &Path, tokens: &str) -> Terminal {
        let (program, tokenizer) = flambeau_testcases::script(&WORDS, 1 << 20, false);
        std::fs::write(folder.join("model.pte"), program).unwrap();
        std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
        let config = r#"{"chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"}"#;
        std::fs::write(folder.join("tokenizer_config.json"), config).unwrap();
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let plain = command(folder, &["chat", "model.pte", "-n", tokens]);
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(plain.get_program()).args(plain.get_args()).current_dir(folder);
        session.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm").env("NO_COLOR", "1");
        let end = || slave.try_clone().unwrap();
        let child = session.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid is part of util-linux");
        let master = File::from(master);
        let written = Arc::new(Mutex::new(String::new()));
        let (mut reader, all) = (master.try_clone().unwrap(), Arc::clone(&written));
        spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                all.lock().unwrap_or_else(PoisonError::into_inner).push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        let terminal = Terminal { child, master, slave, written };
        terminal.await_text(0, "leaves.");
        terminal
    }

    fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// All that was written.
    fn text(&self) -> String {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a text behind a position; where it ends.
    fn await_text(&self, from: usize, wanted: &str) -> usize {
        for _ in 0..PATIENCE {
            if let Some(at) = self.text()[from..].find(wanted) {
                return from + at + wanted.len();
            }
            sleep(Duration::from_millis(5));
        }
        panic!("no {wanted:?} in {:?}", self.text().get(from..));
    }

    /// Leaves the conversation; the terminal is as it was.
    fn leave(mut self) {
        self.type_in("/exit\r");
        assert_eq!(self.child.wait().unwrap().into_raw(), 0);
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON));
    }
}

/// Lines on a terminal's screen after text that moves the cursor back and erases a word.
fn lines(written: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in written.split("\r\n") {
        let mut shown = String::new();
        for part in line.split('\r') {
            if let Some((columns, rest)) = part.strip_prefix("\x1b[").and_then(|rest| rest.split_once("C\x1b[K")) {
                shown.truncate(columns.parse().unwrap());
                shown.push_str(rest);
            } else {
                shown.push_str(part);
            }
        }
        lines.push(shown);
    }
    lines
}

#[test]
fn what_is_typed_during_an_answer_waits_for_the_next_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::chat(folder.path(), "20000");
    terminal.type_in("one\r");
    let begun = terminal.await_text(0, "alpha");
    terminal.type_in("zwei\r");
    let prompt = terminal.await_text(begun, "> ");
    let answer = terminal.text()[begun..prompt - 2].to_owned();
    assert!(!answer.contains("zwei"), "what is typed stands in the answer");
    let second = terminal.await_text(prompt, "alpha");
    assert!(terminal.text()[prompt..second].contains("zwei"), "{:?}", &terminal.text()[prompt..second]);
    terminal.await_text(second, "> ");
    // Words are whole, and lines fit.
    let lines = lines(&answer);
    assert!(lines.len() > 1000);
    for line in &lines[1..lines.len() - 1] {
        assert!(line.len() <= COLUMNS, "{line:?}");
        assert!(line.split_whitespace().all(|word| WORDS.iter().any(|known| known.trim() == word)), "{line:?}");
    }
    terminal.leave();
}

#[test]
fn an_interrupted_answer_does_not_show_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::chat(folder.path(), "-1");
    terminal.type_in("one\r");
    let begun = terminal.await_text(0, "alpha");
    terminal.type_in("\x03");
    let stopped = terminal.await_text(begun, "(stopped; the answer is kept");
    assert!(!terminal.text()[begun..stopped].contains("^C"));
    terminal.await_text(stopped, "> ");
    terminal.leave();
}

#[test]
fn tab_completes_commands() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::chat(folder.path(), "4");
    terminal.type_in("/he\t\r");
    terminal.await_text(0, "begin anew");
    terminal.leave();
}
