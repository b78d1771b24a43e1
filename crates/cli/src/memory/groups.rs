//! Limits that a container sets: Linux's control groups, versions 1 and 2.

use std::path::{Component, Path, PathBuf};

/// Memory of the strictest control group of this process, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Group {
    pub(super) limit: u64,
    /// Rest of the limit. Cached file pages that were not used lately count as free.
    pub(super) free: u64,
}

/// Names of the files in a control group's folder.
struct Files {
    kind: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    /// Line of `memory.stat`, summed over the groups below.
    inactive: &'static str,
}

const V1: Files =
    Files { kind: "cgroup", limits: &["memory.limit_in_bytes"], used: "memory.usage_in_bytes", inactive: "total_inactive_file" };
const V2: Files =
    Files { kind: "cgroup2", limits: &["memory.max", "memory.high"], used: "memory.current", inactive: "inactive_file" };

impl Files {
    /// Reads one group; `None` if it sets no limit.
    fn read(&self, folder: &Path) -> Option<Group> {
        let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let limit = self.limits.iter().filter_map(|name| number(name)).min()?;
        let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let inactive = stat.lines().find_map(|line| line.strip_prefix(self.inactive)?.trim().parse::<u64>().ok());
        let used = number(self.used)?.saturating_sub(inactive.unwrap_or(0));
        Some(Group { limit, free: limit.saturating_sub(used) })
    }
}

/// Reads the limits of this process's control group and of the groups above it.
/// Paths start at `root`, which is `/` outside of tests. Returns `None` without a limit.
///
/// Version 1 writes "no limit" as a number near 2⁶³, so callers compare with the machine's memory.
pub(super) fn strictest(root: &Path) -> Option<Group> {
    let own = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = std::fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let groups = own.lines().filter_map(|line| {
        let (files, group) = membership(line)?;
        let (mount, top) = mounts.lines().find_map(|line| mount(line, files.kind))?;
        // A container sees its own group as the top, or its path from the machine's top.
        let below = Path::new(group).strip_prefix(top).or_else(|_| Path::new(group).strip_prefix("/")).ok()?;
        let mount = root.join(mount.strip_prefix("/").ok()?);
        Some((files, mount, below.to_path_buf()))
    });
    groups.flat_map(|(files, mount, below)| folders(mount, &below).filter_map(|folder| files.read(&folder))).reduce(stricter)
}

fn stricter(a: Group, b: Group) -> Group {
    Group { limit: a.limit.min(b.limit), free: a.free.min(b.free) }
}

/// Parses a line of `/proc/self/cgroup` that names the group for memory.
fn membership(line: &str) -> Option<(&'static Files, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    match controllers {
        "" => Some((&V2, group)),
        _ if controllers.split(',').any(|name| name == "memory") => Some((&V1, group)),
        _ => None,
    }
}

/// Parses a line of `/proc/self/mountinfo`: where groups are mounted, and the mounted group.
fn mount<'a>(line: &'a str, kind: &str) -> Option<(&'a Path, &'a Path)> {
    let (place, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let controls_memory = |options: &str| options.split(',').any(|name| name == "memory");
    if system.next()? != kind || (kind == V1.kind && !controls_memory(system.nth(1)?)) {
        return None;
    }
    let mut place = place.split(' ').skip(3);
    let top = place.next()?;
    Some((Path::new(place.next()?), Path::new(top)))
}

/// The folder of a group, then the folders above it, up to the mount.
fn folders(mount: PathBuf, below: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let inside = below.components().all(|part| matches!(part, Component::Normal(_)));
    let first = if inside { mount.join(below) } else { mount.clone() };
    std::iter::successors(Some(first), move |folder| (*folder != mount).then(|| folder.parent().map(Path::to_path_buf))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A folder with made-up system files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            std::fs::write(path, text).expect("a file");
        }
        root
    }

    const MOUNTS_V2: &str = "24 1 0:22 / /proc rw - proc proc rw\n30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";

    #[test]
    fn version_2_counts_what_was_not_used_lately_as_free() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", MOUNTS_V2),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/memory.high", "max\n"),
            ("sys/fs/cgroup/memory.current", "536870912\n"),
            ("sys/fs/cgroup/memory.stat", "anon 1\nactive_file 268435456\ninactive_file 104857600\n"),
        ]);
        assert_eq!(strictest(root.path()), Some(Group { limit: 1024 * MIB, free: 612 * MIB }));
    }

    #[test]
    fn groups_above_bind_too() {
        let mut files = vec![
            ("proc/self/cgroup", "0::/pods/a/b\n"),
            ("proc/self/mountinfo", MOUNTS_V2),
            ("sys/fs/cgroup/pods/memory.max", "104857600\n"),
            ("sys/fs/cgroup/pods/memory.current", "94371840\n"),
            ("sys/fs/cgroup/pods/a/memory.max", "max\n"),
            ("sys/fs/cgroup/pods/a/memory.current", "1048576\n"),
            ("sys/fs/cgroup/pods/a/b/memory.max", "52428800\n"),
            ("sys/fs/cgroup/pods/a/b/memory.current", "1048576\n"),
        ];
        assert_eq!(strictest(machine(&files).path()), Some(Group { limit: 50 * MIB, free: 10 * MIB }));
        files.retain(|(path, _)| !path.ends_with("memory.max"));
        assert_eq!(strictest(machine(&files).path()), None);
        files.push(("sys/fs/cgroup/pods/a/memory.high", "20971520\n"));
        assert_eq!(strictest(machine(&files).path()), Some(Group { limit: 20 * MIB, free: 19 * MIB }));
    }

    #[test]
    fn version_1_in_a_container_that_sees_the_path_of_the_machine() {
        let root = machine(&[
            ("proc/self/cgroup", "9:name=systemd:/docker/12\n4:cpu,memory:/docker/12\n0::/\n"),
            (
                "proc/self/mountinfo",
                "31 2 0:28 /docker/12 /sys/fs/cgroup/blkio ro - cgroup cgroup rw,blkio\n\
                 35 2 0:32 /docker/12 /sys/fs/cgroup/memory ro shared:9 - cgroup cgroup rw,memory\n\
                 41 2 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 524288000\n"),
        ]);
        assert_eq!(strictest(root.path()), Some(Group { limit: 2048 * MIB, free: 1524 * MIB }));
    }

    #[test]
    fn a_group_that_is_over_its_limit_has_nothing_free() {
        let root = machine(&[
            ("proc/self/cgroup", "4:memory:/a\n"),
            ("proc/self/mountinfo", "35 2 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1001\n"),
        ]);
        assert_eq!(strictest(root.path()), Some(Group { limit: 1000, free: 0 }));
    }

    #[test]
    fn systems_without_groups_set_no_limit() {
        assert_eq!(strictest(machine(&[]).path()), None);
        let broken = [("proc/self/cgroup", "0::/../..\nx\n::\n"), ("proc/self/mountinfo", "- cgroup2\n1 2 3 - cgroup2\n")];
        assert_eq!(strictest(machine(&broken).path()), None);
    }
}
