//! Memory of this process and of the machine.

use crate::failure::hint;

/// Peak memory of the process in bytes; `None` if unknown.
pub(crate) fn peak() -> Option<u64> {
    peak_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn peak_of(status: &str) -> Option<u64> {
    kilobytes(status, "VmHWM:")
}

/// Parses a size that the system reports as text.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Available memory in bytes; `None` if unknown.
pub(crate) fn available() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// Memory of the machine in bytes; `None` if unknown.
pub(crate) fn total() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Checks that caches fit the available memory, before any computation.
///
/// # Errors
/// Fails if they do not fit.
pub(crate) fn admit_caches(bytes: u64) -> anyhow::Result<()> {
    match available() {
        Some(free) if bytes > free => {
            let error = anyhow::anyhow!("the caches of a conversation take {}, and {} is there", human(bytes), human(free));
            Err(hint(error, "a checkpoint that is exported with a smaller -c, or with --kv-cache int8, takes less"))
        }
        _ => Ok(()),
    }
}

/// Formats a number of bytes.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_read_from_the_status_text() {
        assert_eq!(peak_of("Name:\tx\nVmHWM:\t  12 kB\nVmRSS:\t 3 kB\n"), Some(12288));
        assert_eq!(peak_of("Name:\tx\n"), None);
    }

    #[test]
    fn sizes_are_shown_in_fitting_units() {
        let shown: Vec<String> = [0, 1023, 1536, 5 << 20, 3 << 40].into_iter().map(human).collect();
        assert_eq!(shown, ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.0 TiB"]);
    }
}
