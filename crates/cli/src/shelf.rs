//! Models and programs on this machine: properties of models, the program cache, and tables of
//! both.

pub(crate) mod facts;
pub(crate) mod programs;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use crate::files;

/// Prints a table with a header.
pub(crate) fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<()> {
    let mut all: Vec<Vec<String>> = vec![titles.iter().map(|title| (*title).to_owned()).collect()];
    all.extend(rows);
    let width = |column: usize| all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    for row in &all {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        files::print_line(cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// Formats a time relative to now.
pub(crate) fn ago(time: SystemTime, now: SystemTime) -> String {
    const UNITS: [(u64, &str); 5] = [(31_536_000, "year"), (2_592_000, "month"), (86_400, "day"), (3_600, "hour"), (60, "minute")];
    let passed = now.duration_since(time).map_or(0, |passed| passed.as_secs());
    match UNITS.iter().find(|(unit, _)| passed >= *unit) {
        Some((unit, name)) if passed / unit == 1 => format!("1 {name} ago"),
        Some((unit, name)) => format!("{} {name}s ago", passed / unit),
        None => "now".to_owned(),
    }
}

/// Unix time in seconds.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_told_in_the_largest_unit() {
        let told = |passed| ago(UNIX_EPOCH, UNIX_EPOCH + Duration::from_secs(passed));
        assert_eq!([5, 60, 7_199, 7_200, 200_000].map(told), ["now", "1 minute ago", "1 hour ago", "2 hours ago", "2 days ago"]);
    }
}
