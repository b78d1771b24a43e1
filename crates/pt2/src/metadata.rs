//! Source metadata of nodes, kept as the archive's text and parsed on demand.

use std::fmt;

use flambeau_tensor::Bytes;
use indexmap::IndexMap;

/// A node's annotations: a map of strings. It holds the JSON text as a slice of the archive, and
/// parses it on demand.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata(Bytes);

impl Metadata {
    /// Takes the text of a JSON object. Any other text counts as empty.
    pub fn from_json(text: Bytes) -> Metadata {
        Metadata(text)
    }

    /// Creates a map with these entries.
    pub fn from_entries<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Metadata {
        let map: IndexMap<&str, &str> = entries.into_iter().collect();
        Metadata(serde_json::to_vec(&map).unwrap_or_default().into())
    }

    /// All entries.
    pub fn entries(&self) -> IndexMap<String, String> {
        serde_json::from_slice(&self.0).unwrap_or_default()
    }

    /// The Python stack at the call, outermost frame first: pairs of a `File "…", line N, in f`
    /// line and a code line.
    pub fn stack_trace(&self) -> Option<String> {
        self.entries().swap_remove("stack_trace")
    }

    /// The modules around the call, outermost first: `key,path,type` items joined by `;`.
    pub fn nn_module_stack(&self) -> Option<String> {
        self.entries().swap_remove("nn_module_stack")
    }

    /// The innermost module and the innermost line of the user's code, if known.
    pub fn source(&self) -> SourceLocation {
        let entries = self.entries();
        let module = entries.get("nn_module_stack").and_then(|stack| innermost_module(stack));
        let frame = entries.get("stack_trace").and_then(|trace| innermost_frame(trace));
        let (file, line, code) = frame.unwrap_or_default();
        SourceLocation { module, file, line, code }
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metadata({} bytes)", self.0.len())
    }
}

/// A place in the user's program, for diagnostics. Empty if the archive does not state it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceLocation {
    /// Path of the innermost module, such as `model.layers.0.self_attn`.
    pub module: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// The text of that line.
    pub code: Option<String>,
}

/// Formats as `model.layers.0, attention.py:34: \`x = self.norm(x)\``. Empty if nothing is known.
impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(module) = &self.module {
            f.write_str(module)?;
        }
        if let Some(file) = &self.file {
            let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
            write!(f, "{}{name}:{}", if self.module.is_some() { ", " } else { "" }, self.line.unwrap_or(0))?;
            if let Some(code) = &self.code {
                write!(f, ": `{code}`")?;
            }
        }
        Ok(())
    }
}

fn innermost_module(stack: &str) -> Option<String> {
    let path = |item: &str| item.split(',').nth(1).map(str::to_owned);
    let path = stack.rsplit(';').find_map(|item| path(item).filter(|p| !p.is_empty()))?;
    Some(path.strip_prefix("L['self'].").unwrap_or(&path).to_owned())
}

type Frame = (Option<String>, Option<u32>, Option<String>);

/// The last frame that is neither generated nor PyTorch's code, else the last frame.
fn innermost_frame(trace: &str) -> Option<Frame> {
    let mut last: Option<(Frame, bool)> = None;
    let mut lines = trace.lines().peekable();
    while let Some(text) = lines.next() {
        let Some((file, rest)) = text.trim_start().strip_prefix("File \"").and_then(|t| t.split_once("\", line ")) else {
            continue;
        };
        let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
        let code = lines.peek().map(|l| l.trim()).filter(|l| !l.is_empty() && !l.starts_with("File \"")).map(str::to_owned);
        let own = !file.starts_with('<') && !file.contains("/site-packages/torch/");
        if own || last.as_ref().is_none_or(|(_, last_own)| !last_own) {
            last = Some(((Some(file.to_owned()), digits.parse().ok(), code), own));
        }
    }
    last.map(|(frame, _)| frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "  File \"/a/model.py\", line 12, in forward\n    y = self.norm(x)\n  File \"/a/norm.py\", line 7, in forward\n    return x * 2\n  \
                         File \"/v/site-packages/torch/nn/f.py\", line 9, in mul\n    return _C.mul(x)\n  File \"<eval_with_key>.1\", line 3, in g\n    z";

    fn check(entries: &[(&str, &str)], want: &str) {
        assert_eq!(Metadata::from_entries(entries.iter().copied()).source().to_string(), want);
    }

    #[test]
    fn source_names_module_and_innermost_user_line() {
        let stack = "L__self__,,m.M;_mod,model.layers.0,m.L";
        check(&[("stack_trace", TRACE), ("nn_module_stack", stack)], "model.layers.0, norm.py:7: `return x * 2`");
        check(&[("stack_trace", TRACE)], "norm.py:7: `return x * 2`");
        check(&[("nn_module_stack", "L__self__,,m.M")], "");
        check(&[("stack_trace", "File \"<x>\", line 99999999999, in f")], "<x>:0");
        check(&[], "");
    }

    #[test]
    fn text_that_is_no_object_reads_as_empty() {
        assert_eq!(Metadata::from_json(Bytes::from_static(b"[1")).source(), SourceLocation::default());
    }
}
