//! Rules of udev that mean something else than to upstream Akri. That asks libudev for some matches, which joins those of one field by
//! OR, and takes the values of others for regular expressions.

/// Returns whether the matches of a rule are of a kind.
type Predicate = fn(&[&str]) -> bool;

/// Fields of the device or one of its parents.
const OF_PARENTS: [&str; 5] = ["KERNELS", "SUBSYSTEMS", "DRIVERS", "ATTRS{", "TAGS"];

/// Fields that upstream takes for regular expressions where they exclude.
const EXCLUDING: [&str; 4] = ["KERNEL", "DEVPATH", "ENV{", "TAG"];

/// Subsystems, and beginnings of kernel names, whose device nodes are not among those that are granted.
const NOT_GRANTED: [&str; 7] = ["block", "nvme", "scsi_generic", "bsg", "watchdog", "dma_heap", "ipmi"];
const NOT_GRANTED_NAMES: [&str; 18] = [
    "sd", "nvme", "mmcblk", "loop", "dm-", "watchdog", "kmem", "kmsg", "kvm", "ipmi", "mem", "vhost", "fuse", "hpet",
    "mei", "ptp", "ppp", "hwrng",
];

/// The serial ports that are granted, but for `tty` itself; a rule for another `tty...` is told of.
const GRANTED_TTYS: [&str; 21] = [
    "ttyUSB", "ttyACM", "ttyAMA", "ttymxc", "ttyTHS", "ttyO", "ttyPS", "ttySC", "ttyLP", "ttyAL", "ttyAS", "ttyGS",
    "ttyHS", "ttyMSM", "ttyRPMSG", "ttySAC", "ttySTM", "ttyTCU", "ttyUL", "ttyXRUSB", "ttyS",
];

const DIFFERENCES: [(Predicate, &str); 8] = [
    (repeats_a_field, "all of its matches have to hold, as in udev; upstream took one of them for enough"),
    (
        |matches| any(matches, "DEVPATH", "=="),
        "DEVPATH narrows the devices, as in udev; upstream took all devices there are",
    ),
    (
        |matches| matches.iter().any(|one| (of_parents(&one) || is_of(one, "DRIVER")) && is_expression(one)),
        "values are globs, as in udev; upstream took those of KERNELS, SUBSYSTEMS, DRIVERS, DRIVER, ATTRS{, TAGS for regular \
         expressions",
    ),
    (
        excludes_by_expression,
        "values are globs, as in udev; upstream took those of KERNEL!=, DEVPATH!=, ENV{}!= and TAG!= for regular expressions: \
         write 'loop*' in place of 'loop.*'",
    ),
    (
        |matches| matches.iter().any(|one| of_parents(&one) && one.contains("!=")),
        "one device of the lineage that differs is enough, as in udev; in upstream all of them had to differ",
    ),
    (
        |matches| any(matches, "ATTR{", "!="),
        "a device without that attribute does not match ATTR{}!=, as in udev; in upstream it did",
    ),
    (
        |matches| matches.iter().filter(of_parents).count() > 1,
        "its matches of parents have to hold for one and the same parent, as in udev; in upstream each could have its own",
    ),
    (
        is_not_granted,
        "the DiscoveryHandler 'udev' does not grant such device nodes, so that devices are withheld: add yours to its \
         grants.devicePaths, disks and memory by their own names; the chart's udev.discovery.grants replaces all grants, so copy \
         the others into it",
    ),
];

/// Returns what differs for a rule.
pub(super) fn differences(rule: &str) -> impl Iterator<Item = &'static str> {
    let matches: Vec<&str> = rule.split(',').map(str::trim).collect();
    DIFFERENCES.into_iter().filter(move |(applies, _)| applies(&matches)).map(|(_, message)| message)
}

fn is_of(one: &str, field: &str) -> bool {
    one.strip_prefix(field).is_some_and(|rest| field.ends_with('{') || rest.starts_with(['=', '!', ' ']))
}

fn of_parents(one: &&&str) -> bool {
    OF_PARENTS.iter().any(|field| is_of(one, field))
}

fn is_expression(one: &str) -> bool {
    one.contains(['*', '?', '[', '(', '+', '^', '$', '|'])
}

fn repeats_a_field(matches: &[&str]) -> bool {
    ["ENV{", "KERNEL", "SUBSYSTEM"].iter().any(|field| {
        let equal = matches.iter().filter(|one| is_of(one, field) && one.contains("=="));
        equal.count() > 1
    })
}

fn any(matches: &[&str], field: &str, operator: &str) -> bool {
    matches.iter().any(|one| is_of(one, field) && one.contains(operator))
}

fn excludes_by_expression(matches: &[&str]) -> bool {
    let is_excluding = |one: &&&str| EXCLUDING.iter().any(|field| is_of(one, field)) && one.contains("!=");
    matches.iter().filter(is_excluding).any(|one| is_expression(one))
}

fn is_not_granted(matches: &[&str]) -> bool {
    let is_subsystem = |value: &str| NOT_GRANTED.contains(&value);
    let is_name = |value: &str| NOT_GRANTED_NAMES.iter().any(|start| value.starts_with(start)) || is_other_tty(value);
    let any = |field: &str, is_it: &dyn Fn(&str) -> bool| {
        let values = matches.iter().filter(|one| is_of(one, field)).filter_map(|one| one.split_once("=="));
        values.flat_map(|(_, value)| value.trim_matches('"').split('|')).any(is_it)
    };
    any("SUBSYSTEM", &is_subsystem) || any("KERNEL", &is_name)
}

/// Returns whether the kernel names of a glob are those of serial ports that are not granted.
fn is_other_tty(value: &str) -> bool {
    let start = value.split(['*', '?', '[']).next().unwrap_or_default();
    let may_match = |granted: &str| granted.starts_with(start) || start.starts_with(granted);
    start.starts_with("tty") && !GRANTED_TTYS.into_iter().any(may_match)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 65
    fn granted_serial_ports_are_those_of_the_handler() {
        let handler = include_str!("../../../../handlers/udev/handler.yaml");
        let granted = handler.lines().filter_map(|line| line.trim().strip_prefix("- /dev/tty"));
        let granted: Vec<String> = granted.map(|rest| format!("tty{}", rest.trim_end_matches('*'))).collect();
        assert_eq!(granted.iter().collect::<std::collections::BTreeSet<_>>().len(), GRANTED_TTYS.len());
        assert!(granted.iter().all(|name| GRANTED_TTYS.contains(&&**name)), "{granted:?}");
        let others = [&NOT_GRANTED_NAMES[..], &["ttyprintk"]].concat();
        let is_granted = |name: &str| handler.contains(&format!("- /dev/{name}"));
        assert_eq!(others.into_iter().filter(|name| is_granted(name)).collect::<Vec<_>>(), <[&str; 0]>::default());
    }

    #[test] // rule 65
    fn rules_that_mean_the_same_are_not_mentioned() {
        for rule in [
            "KERNEL==\"video[0-9]*\"",
            "SUBSYSTEM==\"tty\", ENV{ID_BUS}==\"usb\"",
            "ATTRS{idVendor}==\"1d6b\"",
            "KERNEL==\"a*\", KERNEL!=\"b\"",
            "SUBSYSTEM==\"usb\", SUBSYSTEMS==\"pci\"",
            "KERNEL==\"ttyLP*\"",
            "KERNEL==\"tty[A-Z]*\"",
            "KERNEL==\"ttyS0\"",
        ] {
            assert_eq!(differences(rule).collect::<Vec<_>>(), <[&str; 0]>::default(), "{rule}");
        }
    }

    #[test] // rule 65
    fn each_difference_is_named() {
        for (rule, part) in [
            ("ENV{A}==\"1\", ENV{B}==\"2\"", "all of its matches"),
            ("SUBSYSTEM==\"usb\", SUBSYSTEM==\"tty\"", "all of its matches"),
            ("DEVPATH==\"/devices/x\"", "DEVPATH narrows"),
            ("KERNELS==\"usb.+\"", "values are globs"),
            ("KERNEL==\"a?\", KERNEL!=\"loop.*\"", "'loop*' in place"),
            ("DEVPATH!=\"/devices/virtual/.*\"", "'loop*' in place"),
            ("ENV{ID_MODEL}!=\"(a|b)\"", "'loop*' in place"),
            ("TAG!=\"a+\"", "'loop*' in place"),
            ("DRIVERS!=\"usb\"", "one device of the lineage"),
            ("ATTR{serial}!=\"x\"", "without that attribute"),
            ("ATTRS{idVendor}==\"046d\", KERNELS==\"1-1\"", "one and the same parent"),
            ("SUBSYSTEM==\"block\"", "does not grant"),
            ("KERNEL==\"ttyUSB0|sd[a-z]\"", "does not grant"),
            ("KERNEL==\"kvm\"", "does not grant"),
            ("KERNEL==\"ipmi*\"", "does not grant"),
            ("KERNEL==\"ttyprintk\"", "does not grant"),
        ] {
            let found: Vec<&str> = differences(rule).collect();
            assert!(found.len() == 1 && found[0].contains(part), "{rule}: {found:?}");
        }
    }
}
