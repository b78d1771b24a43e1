//! Files that transcripts are written to.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use flambeau::runners::speech::Transcript;

use super::{APART, Args, format::Format};
use crate::{failure::usage, files, outputs};

/// Refuses arguments whose transcripts could not be written, or would overwrite an input or each
/// other.
pub(super) fn check(args: &Args, formats: &[Format]) -> Result<()> {
    let recordings = args.source.files();
    let count = recordings.len() * formats.len();
    if args.output.is_some() && count > 1 {
        return Err(usage(format!("--output takes one transcript, and there will be {count}; use --output-dir")));
    }
    if args.output.is_none() && args.output_dir.is_none() && formats.len() > 1 {
        return Err(usage("several formats cannot share stdout; use --output-dir"));
    }
    let written: Vec<(&Path, PathBuf)> =
        recordings.iter().flat_map(|file| formats.iter().map(|format| (file.as_path(), path(args, file, *format)))).collect();
    let paths: Vec<&Path> = written.iter().map(|(_, path)| path.as_path()).collect();
    if let Some((first, second)) = outputs::shared(&paths) {
        let [(one, path), (other, _)] = [&written[first], &written[second]];
        return Err(usage(format!(
            "the transcripts of {} and {} would both be written to {}: transcribe them into different folders",
            one.display(),
            other.display(),
            path.display()
        )));
    }
    let model = Path::new(&args.model.model);
    let programs: Vec<PathBuf> = APART.iter().map(|name| model.join(name)).collect();
    let read = [Some(model), args.model.tokenizer.as_deref()].into_iter().flatten().chain(programs.iter().map(PathBuf::as_path));
    outputs::check(&paths, read.chain(recordings.iter().map(PathBuf::as_path)))?;
    if let Some(folder) = &args.output_dir {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    paths.into_iter().try_for_each(files::check_writable)
}

/// Where the transcript of a recording is written; `-` is stdout.
fn path(args: &Args, recording: &Path, format: Format) -> PathBuf {
    match (&args.output, &args.output_dir) {
        (Some(output), _) => output.clone(),
        (None, Some(folder)) => {
            let stem = if files::is_standard(recording) { Some("stdin".as_ref()) } else { recording.file_stem() };
            folder.join(stem.unwrap_or_default()).with_added_extension(format.extension())
        }
        (None, None) => PathBuf::from("-"),
    }
}

/// Writes the transcript of a recording in every form.
pub(super) fn write(args: &Args, formats: &[Format], recording: &Path, transcript: &Transcript) -> Result<()> {
    for format in formats {
        let text = format.write(transcript);
        files::write(&path(args, recording, *format), |out| Ok(out.write_all(text.as_bytes())?))?;
    }
    Ok(())
}
