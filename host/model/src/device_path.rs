//! The paths of a node that a grant covers.

/// Nodes below `/dev` that give away the node itself: its memory, its log, its disks and what is on them. A pattern does not
/// cover them, only their own names do.
const GUARDED: [&str; 19] = [
    "block", "bsg", "core", "cpu", "crash", "cxl", "disk", "kmem", "kmsg", "mapper", "mem", "nvram", "oldmem", "port",
    "pts", "raw", "root", "snapshot", "zfs",
];

/// Prefixes of the names of disks and their controllers.
const DISKS: [&str; 27] = [
    "aac", "bcache", "cciss", "dasd", "dm-", "drbd", "hd", "loop", "md", "megadev", "megaraid", "mmcblk", "mtd", "nbd",
    "ndctl", "nvme", "pmem", "ram", "rbd", "sd", "sg", "twa", "ubi", "vd", "xvd", "zram", "zvol",
];

/// Names of disks, tapes and persistent memory that a digit follows.
const NUMBERED: [&str; 10] = ["dax", "fd", "mpt", "ng", "nosst", "nst", "osst", "scd", "sr", "st"];

/// Links to what the process that opens them has open: they lead elsewhere in each process.
const OWN: [&str; 4] = ["fd", "stderr", "stdin", "stdout"];

/// Names that every container has below `/dev`: its terminals, standard streams, shared memory, and devices that programs rely on.
const OF_CONTAINERS: [&str; 17] = [
    "console",
    "core",
    "fd",
    "full",
    "mqueue",
    "null",
    "ptmx",
    "pts",
    "random",
    "shm",
    "stderr",
    "stdin",
    "stdout",
    "termination-log",
    "tty",
    "urandom",
    "zero",
];

/// Returns whether a path is absolute, not the root, and every component of it a plain name.
pub fn is_plain(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
        && !path.contains(char::is_control)
}

/// Returns whether one of the granted patterns covers a path; of a guarded one it has to be the path itself.
pub fn is_granted(path: &str, granted: &[String]) -> bool {
    if is_guarded(path) { is_named(path, granted) } else { granted.iter().any(|pattern| covers(pattern, path)) }
}

/// Returns whether a path is granted by its own name and not only by a pattern.
pub fn is_named(path: &str, granted: &[String]) -> bool {
    granted.iter().any(|pattern| pattern == path)
}

/// Returns whether a path is a process's own: a link such as `/dev/stdin`.
pub fn is_own(path: &str) -> bool {
    below_dev(path).is_some_and(|name| OWN.contains(&name))
}

/// Returns whether a path is that of a file which every container has.
pub fn is_of_containers(path: &str) -> bool {
    below_dev(path).is_some_and(|name| OF_CONTAINERS.contains(&name))
}

/// Returns whether a path leads to the memory, the log or a disk of the node, as far as its name tells.
pub fn is_guarded(path: &str) -> bool {
    let is_disk = |name: &str| DISKS.iter().any(|prefix| name.starts_with(prefix));
    let is_digit = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    let is_numbered = |name: &str| NUMBERED.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(is_digit));
    below_dev(path).is_some_and(|name| GUARDED.contains(&name) || is_disk(name) || is_numbered(name))
}

/// The first component below `/dev`.
fn below_dev(path: &str) -> Option<&str> {
    path.strip_prefix("/dev/")?.split('/').next()
}

/// Returns whether a pattern covers a path: the path itself, with `/**` at its end everything below a directory, and with a
/// `*` in a component any characters of that component.
pub fn covers(pattern: &str, path: &str) -> bool {
    let (parts, below) = match pattern.strip_suffix("/**") {
        Some(directory) => (directory, true),
        None => (pattern, false),
    };
    let (mut wanted, mut names) = (parts.split('/'), path.split('/'));
    loop {
        match (wanted.next(), names.next()) {
            (Some(wanted), Some(name)) if matches(wanted, name) => {}
            (None, rest) => return rest.is_some() == below,
            _ => return false,
        }
    }
}

/// Returns whether a name matches a pattern in which `*` is any number of characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let end = pieces.pop().unwrap_or_default();
    for piece in pieces {
        match name.find(piece) {
            Some(at) => name = name.get(at + piece.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    name.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_covers_complete_components() {
        for (pattern, path, covered) in [
            ("/dev/**", "/dev/video0", true),
            ("/dev/**", "/dev/bus/usb/001/002", true),
            ("/dev/**", "/dev", false),
            ("/dev/**", "/devx", false),
            ("/**", "/etc/passwd", true),
            ("/dev/video0", "/dev/video0", true),
            ("/dev/video0", "/dev/video01", false),
            ("/dev/video*", "/dev/video0", true),
            ("/dev/video*", "/dev/video", true),
            ("/dev/video*", "/dev/video/x", false),
            ("/dev/tty*S*0", "/dev/ttyAS10", true),
            ("/dev/tty*S*0", "/dev/ttyAS11", false),
            ("/dev/*/x", "/dev/a/x", true),
            ("/dev/*/x", "/dev/a/b/x", false),
            ("/dev/snd*/**", "/dev/snd/pcm", true),
            ("/dev/snd*/**", "/dev/snd", false),
        ] {
            assert_eq!(covers(pattern, path), covered, "{pattern} {path}");
        }
    }

    #[test] // rule 137, threat 12
    fn memory_and_disks_are_granted_by_name_only() {
        let all = ["/dev/**".to_owned(), "/dev/*".to_owned(), "/**".to_owned()];
        for path in [
            "/dev/mem",
            "/dev/kmsg",
            "/dev/port",
            "/dev/sda",
            "/dev/vda1",
            "/dev/nvme0n1",
            "/dev/mapper/root",
            "/dev/dm-0",
            "/dev/ng0n1",
            "/dev/dax0.0",
            "/dev/raw/raw1",
            "/dev/crash",
            "/dev/oldmem",
            "/dev/megaraid_sas_ioctl_node",
            "/dev/mpt3ctl",
            "/dev/fd0",
            "/dev/sr0",
            "/dev/st0",
            "/dev/nst0",
            "/dev/aac0",
            "/dev/twa0",
            "/dev/megadev0",
            "/dev/ndctl0",
            "/dev/cxl/mem0",
            "/dev/zfs",
        ] {
            assert!(!is_granted(path, &all), "{path}");
            assert!(is_granted(path, &[path.to_owned()]), "{path}");
        }
        for path in
            ["/dev/video0", "/dev/ttyUSB0", "/dev/snd/pcmC0D0c", "/dev/bus/usb/001/002", "/dev/null", "/dev/stlink"]
        {
            assert!(is_granted(path, &all), "{path}");
        }
    }

    #[test]
    fn links_to_open_files_are_recognized() {
        for path in ["/dev/fd", "/dev/fd/3", "/dev/stdin", "/dev/stderr"] {
            assert!(is_own(path), "{path}");
        }
        assert!(!is_own("/dev/fd0") && !is_own("/fd/3"));
    }
}
