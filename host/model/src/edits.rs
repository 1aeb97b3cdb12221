//! The changes made to a container for its devices.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::container_paths::is_unnumbered;
use crate::device::{Device, DeviceSpec, Mount};
use crate::names::{slot_annotation, variable_suffix};

/// The changes to one container, for all the devices it got.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEdits {
    /// Environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Bind mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Device nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_specs: Vec<DeviceSpec>,
    /// Annotations the container runtime gets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Fully qualified CDI device names, which then stand for the mounts and device nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cdi_devices: Vec<String>,
}

impl ContainerEdits {
    /// Returns the edits for a device: each property as `KEY` and as `KEY_<HASH>`, so that several devices of one
    /// container can be distinguished, the mounts and the device nodes. `hash` is the short name of the Instance: the hash at the
    /// end of its name, unless the Configuration chose that.
    pub fn of_device(device: &Device, properties: &BTreeMap<String, String>, hash: &str) -> Self {
        let suffix = variable_suffix(hash);
        let env = properties
            .iter()
            .flat_map(|(key, value)| [(key.clone(), value.clone()), (format!("{key}{suffix}"), value.clone())]);
        Self {
            env: env.collect(),
            mounts: device.mounts.clone(),
            device_specs: device.device_specs.clone(),
            ..Self::default()
        }
    }

    /// Adds the annotation of the published Akri design for a slot of the device, whose value is the slot's name, or
    /// `C:<virtual device>:<slot>` for a claim at the configuration level.
    #[must_use]
    pub fn with_slot(mut self, slot: &str, vdev: Option<&str>) -> Self {
        let value = vdev.map_or_else(|| slot.to_owned(), |vdev| format!("C:{vdev}:{slot}"));
        self.annotations.insert(slot_annotation(slot), value);
        self
    }

    /// Names the CDI device that has the mounts and the device nodes: [`merge`] leaves these to it (rule 8).
    #[must_use]
    pub fn by_cdi(self, name: String) -> Self {
        Self { cdi_devices: vec![name], ..self }
    }

    /// Returns whether a path depends on what else the container gets.
    pub(crate) fn is_unnumbered(&self) -> bool {
        let nodes = self.device_specs.iter().map(|spec| &spec.container_path);
        nodes.chain(self.mounts.iter().map(|mount| &mount.container_path)).any(|path| is_unnumbered(path))
    }
}

/// Merges the edits of all slots of one container, keyed by slot name. A variable that several set comes from the lowest
/// slot name; identical mounts and nodes count once; one path for two things is an error (rule 16).
pub fn merge(slots: &BTreeMap<String, ContainerEdits>) -> Result<ContainerEdits, String> {
    let mut merged = ContainerEdits::default();
    for edits in slots.values() {
        for (key, value) in &edits.env {
            merged.env.entry(key.clone()).or_insert_with(|| value.clone());
        }
        merged.annotations.extend(edits.annotations.clone());
    }
    let mounts = slots.values().flat_map(|edits| &edits.mounts);
    let nodes = slots.values().flat_map(|edits| &edits.device_specs);
    let mounted = mounts.map(|mount| {
        let access = if mount.read_only { "a read-only mount" } else { "a mount" };
        (mount.container_path.as_str(), (mount.host_path.as_str(), access))
    });
    let nodes = nodes.map(|node| (node.container_path.as_str(), (node.host_path.as_str(), node.permissions.as_str())));
    check_paths(mounted.chain(nodes))?;
    let explicit = || slots.values().filter(|edits| edits.cdi_devices.is_empty());
    merged.mounts = distinct(explicit().flat_map(|edits| &edits.mounts));
    merged.device_specs = distinct(explicit().flat_map(|edits| &edits.device_specs));
    merged.cdi_devices = distinct(slots.values().flat_map(|edits| &edits.cdi_devices));
    Ok(merged)
}

fn distinct<'a, T: Ord + Clone + 'a>(items: impl Iterator<Item = &'a T>) -> Vec<T> {
    items.collect::<BTreeSet<_>>().into_iter().cloned().collect()
}

/// Checks that each path in a container is for one path of the host, with one kind of access.
fn check_paths<'a>(paths: impl Iterator<Item = (&'a str, (&'a str, &'a str))>) -> Result<(), String> {
    let mut taken = BTreeMap::new();
    for (container_path, source) in paths {
        let first = *taken.entry(container_path).or_insert(source);
        if first != source {
            let ((one, access), (other, other_access)) = (first, source);
            let both = if one == other {
                format!("'{one}' as '{access}' and as '{other_access}'")
            } else {
                format!("both '{one}' and '{other}'")
            };
            return Err(format!("container path '{container_path}' is wanted for {both}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_node(container: &str, host: &str) -> ContainerEdits {
        let spec = DeviceSpec { container_path: container.into(), host_path: host.into(), permissions: "rw".into() };
        ContainerEdits { device_specs: vec![spec], ..ContainerEdits::default() }
    }

    fn with_env(key: &str, value: &str) -> ContainerEdits {
        ContainerEdits { env: [(key.into(), value.into())].into(), ..ContainerEdits::default() }
    }

    #[test] // rule 16
    fn properties_come_bare_and_with_the_hash() {
        let properties = [("URL".to_owned(), "rtsp://cam".to_owned())].into();
        let edits = ContainerEdits::of_device(&Device::default(), &properties, "8120fe");
        let env: Vec<(&str, &str)> = edits.env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(env, [("URL", "rtsp://cam"), ("URL_8120FE", "rtsp://cam")]);
    }

    #[test] // rule 15
    fn annotation_names_slot_and_resource() {
        let annotation = |vdev| ContainerEdits::default().with_slot("cam-8120fe-1", vdev).annotations;
        let key = "akri.agent.slot-cam-8120fe-1".to_owned();
        assert_eq!(annotation(None), [(key.clone(), "cam-8120fe-1".to_owned())].into());
        assert_eq!(annotation(Some("0")), [(key, "C:0:cam-8120fe-1".to_owned())].into());
    }

    #[test] // rule 8
    fn by_cdi_name_there_are_no_nodes_and_each_name_counts_once() {
        let edits = with_node("/dev/v", "/dev/v0").by_cdi("akri.sh/cam=8120fe".into());
        let slots = [("a".to_owned(), edits.clone()), ("b".to_owned(), edits)].into();
        let merged = merge(&slots).unwrap();
        assert_eq!(merged.cdi_devices, ["akri.sh/cam=8120fe"]);
        assert!(merged.device_specs.is_empty());
    }

    #[test] // rule 16
    fn devices_by_cdi_name_conflict_too() {
        let by_cdi = |host, name: &str| with_node("/dev/v", host).by_cdi(name.to_owned());
        let slots = [
            ("a".to_owned(), by_cdi("/dev/v0", "akri.sh/cam=1")),
            ("b".to_owned(), by_cdi("/dev/v1", "akri.sh/cam=2")),
        ];
        assert!(merge(&slots.into()).is_err());
    }

    #[test] // rule 16
    fn lowest_slot_name_gives_the_bare_variable() {
        let slots = [("cam-b-0".to_owned(), with_env("K", "b")), ("cam-a-1".to_owned(), with_env("K", "a"))].into();
        assert_eq!(merge(&slots).unwrap().env["K"], "a");
    }

    #[test] // rule 16
    fn identical_nodes_count_once_and_different_ones_conflict() {
        let same = [("a".to_owned(), with_node("/dev/v", "/dev/v0")), ("b".to_owned(), with_node("/dev/v", "/dev/v0"))];
        assert_eq!(merge(&same.into()).unwrap().device_specs.len(), 1);
        let two = [("a".to_owned(), with_node("/dev/v", "/dev/v0")), ("b".to_owned(), with_node("/dev/v", "/dev/v1"))];
        let conflict = merge(&two.into()).unwrap_err();
        assert_eq!(conflict.to_string(), "container path '/dev/v' is wanted for both '/dev/v0' and '/dev/v1'");
        let mounted = |read_only| {
            let mount = Mount { container_path: "/m".into(), host_path: "/m".into(), read_only };
            ContainerEdits { mounts: vec![mount], ..ContainerEdits::default() }
        };
        let conflict = merge(&[("a".to_owned(), mounted(true)), ("b".to_owned(), mounted(false))].into()).unwrap_err();
        assert_eq!(conflict, "container path '/m' is wanted for '/m' as 'a read-only mount' and as 'a mount'");
    }

    #[test] // rule 16
    fn mount_and_a_node_at_one_path_conflict_too() {
        let mount = Mount { container_path: "/dev/v".into(), host_path: "/run/v".into(), read_only: true };
        let mounted = ContainerEdits { mounts: vec![mount], ..ContainerEdits::default() };
        let slots = [("a".to_owned(), mounted), ("b".to_owned(), with_node("/dev/v", "/dev/v0"))];
        assert!(merge(&slots.into()).is_err());
    }
}
