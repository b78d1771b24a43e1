//! Memory of this process and of the machine or the container.

use std::path::Path;

use crate::failure::hint;

mod groups;

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

/// Available memory in bytes, within the limits of a container; `None` if unknown.
pub(crate) fn available() -> Option<u64> {
    available_under(Path::new("/"))
}

/// Memory of the machine in bytes, or of the container where that has less; `None` if unknown.
pub(crate) fn total() -> Option<u64> {
    total_under(Path::new("/"))
}

fn available_under(root: &Path) -> Option<u64> {
    let free = kilobytes(&std::fs::read_to_string(root.join("proc/meminfo")).ok()?, "MemAvailable:")?;
    Some(groups::strictest(root).map_or(free, |group| free.min(group.free)))
}

fn total_under(root: &Path) -> Option<u64> {
    let all = kilobytes(&std::fs::read_to_string(root.join("proc/meminfo")).ok()?, "MemTotal:")?;
    Some(groups::strictest(root).map_or(all, |group| all.min(group.limit)))
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
    fn the_smaller_of_machine_and_container_counts() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let write = |path: &str, text: &str| std::fs::write(root.path().join(path), text);
        std::fs::create_dir_all(root.path().join("proc/self"))?;
        write("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable: 3000 kB\n")?;
        let both = || (available_under(root.path()), total_under(root.path()));
        assert_eq!(both(), (Some(3000 * 1024), Some(4000 * 1024)));
        write("proc/self/cgroup", "0::/\n")?;
        write("proc/self/mountinfo", "1 0 0:1 / /groups rw - cgroup2 none rw\n")?;
        std::fs::create_dir(root.path().join("groups"))?;
        write("groups/memory.max", "2000000\n")?;
        write("groups/memory.current", "1500000\n")?;
        assert_eq!(both(), (Some(500_000), Some(2_000_000)));
        write("groups/memory.max", "9223372036854771712\n")?;
        assert_eq!(both(), (Some(3000 * 1024), Some(4000 * 1024)));
        Ok(())
    }

    #[test]
    fn sizes_are_shown_in_fitting_units() {
        let shown: Vec<String> = [0, 1023, 1536, 5 << 20, 3 << 40].into_iter().map(human).collect();
        assert_eq!(shown, ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.0 TiB"]);
    }
}
