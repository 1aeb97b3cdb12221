//! The places of device nodes and mounts in containers, as a Configuration wants them (rule 124).

use std::collections::BTreeMap;

use crate::configuration::Configuration;
use crate::device::Device;
use crate::device_path::covers;
use crate::edits::ContainerEdits;
use crate::template::Template;

/// The name in a template that stands for the number of a node among those of its container.
pub const INDEX: &str = "index";

const FIELD: &str = "spec.container.paths";

/// As it is in a path.
const PLACEHOLDER: &str = "{{index}}";

/// Maximum number of bytes of a path in a container (Linux, `PATH_MAX`).
const MAX_PATH: usize = 4096;

/// Maximum number of rules of a Configuration.
pub const MAX_RULES: usize = 64;

/// A rule of `spec.container.paths`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathRule {
    /// The pattern of the path on the node, or of a link to it.
    pub host_path: String,
    /// The path in the container.
    pub container_path: Template,
}

/// The links that lead to each path of the node.
pub type Links = BTreeMap<String, Vec<String>>;

/// Places the nodes and mounts of a device. The number of each in its container is not known yet, [`number`] adds it.
///
/// # Errors
/// If a path has two rules, or the device lacks what a template names, or a path would be too long.
pub fn place(device: &mut Device, configuration: &Configuration, links: &Links) -> Result<(), String> {
    let properties = configuration.broker_view(&device.properties);
    let nodes = device.device_specs.iter_mut().map(|spec| (&spec.host_path, &mut spec.container_path));
    let mounts = device.mounts.iter_mut().map(|mount| (&mount.host_path, &mut mount.container_path));
    for (host_path, container_path) in nodes.chain(mounts) {
        let is_meant = |rule: &&PathRule| sources(host_path, links).any(|source| covers(&rule.host_path, source));
        let mut rules = configuration.paths.iter().filter(is_meant);
        let Some(rule) = rules.next() else { continue };
        if let Some(other) = rules.next() {
            let (first, second) = (&rule.host_path, &other.host_path);
            return Err(format!("{FIELD}: '{host_path}' matches '{first}' and '{second}'; leave one of them out"));
        }
        let template = &rule.container_path;
        let path =
            template.expand(&properties, INDEX).map_err(|missing| format!("{FIELD}: '{template}': {missing}"))?;
        if path.len() > MAX_PATH {
            return Err(format!("{FIELD}: '{template}' gives a path of more than {MAX_PATH} bytes"));
        }
        *container_path = path;
    }
    Ok(())
}

/// Returns a path of the node and the links to it.
fn sources<'p>(host_path: &'p String, links: &'p Links) -> impl Iterator<Item = &'p String> {
    std::iter::once(host_path).chain(links.get(host_path).into_iter().flatten())
}

/// Returns the patterns of rules that match no path of any device.
pub fn unmatched<'c>(devices: &[Device], configuration: &'c Configuration, links: &Links) -> Vec<&'c str> {
    let nodes = devices.iter().flat_map(|device| &device.device_specs).map(|spec| &spec.host_path);
    let paths = nodes.chain(devices.iter().flat_map(|device| &device.mounts).map(|mount| &mount.host_path));
    let sources: Vec<&String> = paths.flat_map(|path| sources(path, links)).collect();
    let patterns = configuration.paths.iter().map(|rule| rule.host_path.as_str());
    patterns.filter(|pattern| !sources.iter().any(|source| covers(pattern, source))).collect()
}

/// Numbers the nodes and mounts of a container for which the number is wanted, slot by slot, and makes variables that hold the path
/// of one on the node tell its path in the container.
pub fn number<'a>(slots: impl IntoIterator<Item = &'a mut ContainerEdits>) {
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    for edits in slots {
        let mut moved: BTreeMap<String, String> = BTreeMap::new();
        let nodes = edits.device_specs.iter_mut().map(|spec| (&spec.host_path, &mut spec.container_path));
        let mounts = edits.mounts.iter_mut().map(|mount| (&mount.host_path, &mut mount.container_path));
        for (host_path, container_path) in nodes.chain(mounts) {
            if is_unnumbered(container_path) {
                let next = used.entry(container_path.clone()).or_default();
                *container_path = container_path.replace(PLACEHOLDER, &next.to_string());
                *next += 1;
            }
            moved.entry(host_path.clone()).or_insert_with(|| container_path.clone());
        }
        for value in edits.env.values_mut() {
            if let Some(path) = moved.get(value) {
                value.clone_from(path);
            }
        }
    }
}

/// Returns whether a path in a container has to be numbered.
pub fn is_unnumbered(container_path: &str) -> bool {
    container_path.contains(PLACEHOLDER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceSpec, Mount};
    use crate::edits::merge;

    fn configuration(rules: &[(&str, &str)]) -> Configuration {
        let rule = |(host_path, container_path): &(&str, &str)| PathRule {
            host_path: (*host_path).to_owned(),
            container_path: container_path.parse().unwrap(),
        };
        let broker_properties = [("ROLE".to_owned(), "plc".to_owned())].into();
        Configuration { paths: rules.iter().map(rule).collect(), broker_properties, ..Configuration::default() }
    }

    fn device(nodes: &[&str]) -> Device {
        let spec = |path: &&str| DeviceSpec {
            container_path: (*path).to_owned(),
            host_path: (*path).to_owned(),
            permissions: "rw".to_owned(),
        };
        let properties = [("UDEV_DEVNODE".to_owned(), nodes[0].to_owned())].into();
        Device { properties, device_specs: nodes.iter().map(spec).collect(), ..Device::default() }
    }

    fn placed(rules: &[(&str, &str)], nodes: &[&str], links: &Links) -> Result<Vec<String>, String> {
        let mut device = device(nodes);
        let paths = |device: Device| device.device_specs.into_iter().map(|spec| spec.container_path).collect();
        place(&mut device, &configuration(rules), links).map(|()| paths(device))
    }

    #[test] // rule 124
    fn nodes_are_placed_by_their_paths_and_links() {
        let links = [("/dev/ttyUSB1".to_owned(), vec!["/dev/serial/by-id/usb-Acme".to_owned()])].into();
        let rules = [("/dev/serial/by-id/*Acme", "/dev/{{ROLE}}"), ("/dev/ttyS*", "/dev/s{{index}}")];
        let nodes = ["/dev/ttyUSB0", "/dev/ttyUSB1", "/dev/ttyS0"];
        let expected = ["/dev/ttyUSB0", "/dev/plc", "/dev/s{{index}}"].map(str::to_owned);
        assert_eq!(placed(&rules, &nodes, &links).unwrap(), expected);
        let mount = Mount { container_path: "/x".into(), host_path: "/dev/ttyS0".into(), read_only: true };
        let mut mounted = Device { mounts: vec![mount], ..Device::default() };
        place(&mut mounted, &configuration(&[("/dev/*", "/dev/y")]), &Links::new()).unwrap();
        assert_eq!(mounted.mounts[0].container_path, "/dev/y");
    }

    #[test] // rule 124
    fn two_rules_for_one_source_and_missing_properties_are_refused() {
        let links = [("/dev/a".to_owned(), vec!["/dev/link".to_owned()])].into();
        let twice = placed(&[("/dev/a", "/dev/x"), ("/dev/l*", "/dev/y")], &["/dev/a"], &links);
        let expected = "spec.container.paths: '/dev/a' matches '/dev/a' and '/dev/l*'; leave one of them out";
        assert_eq!(twice.unwrap_err(), expected);
        let missing = placed(&[("/dev/a", "/dev/{{SERIAL}}")], &["/dev/a"], &links).unwrap_err();
        let expected = "'/dev/{{SERIAL}}': the device has no property 'SERIAL'; it has ROLE, UDEV_DEVNODE";
        assert_eq!(missing, format!("spec.container.paths: {expected}"));
        let long = format!("/dev/{}", "x".repeat(4000));
        let too_long = placed(&[("/dev/*", "/dev/{{UDEV_DEVNODE}}{{UDEV_DEVNODE}}")], &[&long], &links).unwrap_err();
        assert!(too_long.ends_with("gives a path of more than 4096 bytes"), "{too_long}");
    }

    #[test] // rule 124
    fn patterns_without_a_path_are_named() {
        let links = [("/dev/a".to_owned(), vec!["/dev/link".to_owned()])].into();
        let rules = configuration(&[("/dev/l*", "/dev/x"), ("/dev/plc*", "/dev/y"), ("/dev/b", "/dev/z")]);
        assert_eq!(unmatched(&[device(&["/dev/a"]), device(&["/dev/b"])], &rules, &links), ["/dev/plc*"]);
    }

    fn edits(node: &str) -> ContainerEdits {
        let mut device = device(&[node]);
        place(&mut device, &configuration(&[("/dev/tty*", "/dev/plc{{index}}")]), &Links::new()).unwrap();
        ContainerEdits::of_device(&device, &device.properties, "8120fe")
    }

    #[test] // rule 124
    fn nodes_of_a_container_are_numbered_in_the_order_of_slots() {
        let mut slots = [("b".to_owned(), edits("/dev/tty1")), ("a".to_owned(), edits("/dev/tty2"))].into();
        number(BTreeMap::values_mut(&mut slots));
        let merged = merge(&slots).unwrap();
        let paths = merged.device_specs.iter().map(|spec| (spec.host_path.as_str(), spec.container_path.as_str()));
        assert_eq!(paths.collect::<Vec<_>>(), [("/dev/tty2", "/dev/plc0"), ("/dev/tty1", "/dev/plc1")]);
        let variables = slots.values().map(|edits| edits.env["UDEV_DEVNODE_8120FE"].as_str());
        assert_eq!(variables.collect::<Vec<_>>(), ["/dev/plc0", "/dev/plc1"]);
        assert_eq!(merged.env["UDEV_DEVNODE"], "/dev/plc0", "that of the lowest slot");
    }

    #[test] // rule 124
    fn two_sources_for_one_path_conflict() {
        let fixed = |node: &str| {
            let mut device = device(&[node]);
            place(&mut device, &configuration(&[("/dev/tty*", "/dev/plc")]), &Links::new()).unwrap();
            ContainerEdits::of_device(&device, &BTreeMap::new(), "h")
        };
        let slots = [("a".to_owned(), fixed("/dev/tty1")), ("b".to_owned(), fixed("/dev/tty2"))].into();
        let conflict = merge(&slots).unwrap_err();
        assert_eq!(conflict, "container path '/dev/plc' is wanted for both '/dev/tty1' and '/dev/tty2'");
    }
}
