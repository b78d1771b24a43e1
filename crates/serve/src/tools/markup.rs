//! A call as `<function=NAME><parameter=KEY>VALUE</parameter></function>`.

/// The name and the arguments' texts; `None` if it is no such call.
pub(super) fn read(text: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let (name, mut rest) = text.trim().strip_prefix("<function=")?.split_once('>')?;
    let mut arguments = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with("</function>") {
            return Some((name.trim(), arguments));
        }
        let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        // A line of its own is the markup's, not the value's.
        let value = value.strip_prefix('\n').unwrap_or(value);
        arguments.push((key.trim(), value.strip_suffix('\n').unwrap_or(value)));
        rest = after;
    }
}
