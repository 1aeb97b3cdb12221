//! The names of objects. This is the only module that formats or splits a name.

use std::fmt;

use blake2::Blake2b;
use blake2::digest::Digest;
use blake2::digest::consts::{U3, U6, U9, U16};
use serde::{Deserialize, Serialize};

use crate::text;

/// The vendor part of every extended resource and CDI kind.
pub const RESOURCE_PREFIX: &str = "akri.sh/";

/// Longest part of an extended resource name after the slash (Kubernetes qualified names).
pub const MAX_NAME: usize = 63;

/// Longest Configuration name: with `-` and the usual six hex digits it fits into [`MAX_NAME`].
pub const MAX_CONFIGURATION_NAME: usize = 56;

/// Length of a Configuration's name that leaves room for the longer hashes of devices with the same six hex digits. A longer
/// one works, with a warning.
pub const LONG_CONFIGURATION_NAME: usize = 52;

/// A namespaced Kubernetes name. Everything of a Configuration is kept under one, never under the bare name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The name in it.
    pub name: String,
}

impl Key {
    /// A key of its two parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The input of the hash of an Instance's name and identity: the device id, followed by the node's name unless the
/// device is shared. There is no separator, as in upstream Akri.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashInput(String);

impl HashInput {
    /// The input for a device.
    pub fn new(device_id: &str, shared: bool, node: &str) -> Self {
        Self(if shared { device_id.to_owned() } else { format!("{device_id}{node}") })
    }

    /// The value of the annotation `akri.sh/identity`: long enough that two devices never share it (rule 22).
    pub fn identity(&self) -> Identity {
        Identity(hex::<Blake2b<U16>>(&self.0))
    }

    /// The hash part of an Instance's name.
    pub fn hash(&self, length: HashLength) -> String {
        match length {
            HashLength::Short => hex::<Blake2b<U3>>(&self.0),
            HashLength::Medium => hex::<Blake2b<U6>>(&self.0),
            HashLength::Long => hex::<Blake2b<U9>>(&self.0),
        }
    }
}

/// The number of hex digits at the end of an Instance's name: the longer ones are for devices whose short hash another
/// device has (rule 22).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HashLength {
    /// 3 bytes, 6 digits, as in upstream Akri.
    Short,
    /// 6 bytes.
    Medium,
    /// 9 bytes.
    Long,
}

/// Digits of a hash of each length.
const DIGITS: [usize; 3] = [6, 12, 18];

impl HashLength {
    /// All lengths in the order they are tried.
    pub const ALL: [Self; 3] = [Self::Short, Self::Medium, Self::Long];
}

/// The identity of an Instance's device: Blake2b-128 of its [`HashInput`], lower-case hex.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Identity(String);

impl Identity {
    /// An identity as read from an annotation or a journal.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The 32 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `<configuration>-<hash>`, or `None` if that is too long for a resource name (rule 30).
pub fn instance_name(configuration: &str, hash: &str) -> Option<String> {
    let name = format!("{configuration}-{hash}");
    (name.len() <= MAX_NAME).then_some(name)
}

/// The extended resource of an Instance or a Configuration.
pub fn resource_name(name: &str) -> String {
    format!("{RESOURCE_PREFIX}{name}")
}

/// Returns the part of an Instance's name that stands for it in names of CDI and of variables: the hash that it ends in, or the whole of
/// a name that the Configuration chose (rule 125).
pub fn short_name<'a>(configuration: &str, instance: &'a str) -> &'a str {
    let hash = instance.strip_prefix(configuration).and_then(|rest| rest.strip_prefix('-'));
    hash.filter(|hash| is_hash(hash)).unwrap_or(instance)
}

/// Returns whether a text may be the hash of a device.
pub fn is_hash(text: &str) -> bool {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    DIGITS.contains(&text.len()) && text.bytes().all(is_digit)
}

/// Returns the end of the names of variables that are one Instance's, by its short name.
pub fn variable_suffix(short_name: &str) -> String {
    format!("_{}", short_name.to_ascii_uppercase().replace('-', "_"))
}

/// A slot's name, which is also its device plugin id at the instance level and its key in `deviceUsage`.
pub fn slot_name(instance: &str, slot: u32) -> String {
    format!("{instance}-{slot}")
}

/// The slot a name of [`slot_name`] stands for, if it is one of this Instance.
pub fn parse_slot_name(instance: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(instance)?.strip_prefix('-')?;
    let canonical = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    canonical.then(|| digits.parse().ok()).flatten()
}

/// The annotation a container gets for a slot it holds (the published Akri design, "configuration-level resources").
pub fn slot_annotation(slot_name: &str) -> String {
    format!("akri.agent.slot-{slot_name}")
}

/// Reads an annotation of [`slot_annotation`], whose value is the slot or `C:<virtual device>:<slot>`: the slot's name, and how
/// this node uses it.
pub fn parse_slot_annotation(name: &str, value: &str, node: &str) -> Option<(String, Usage)> {
    let slot = name.strip_prefix(&slot_annotation(""))?;
    let node = node.to_owned();
    let usage = match value.strip_prefix("C:") {
        None => Usage::Instance { node },
        Some(rest) => Usage::Configuration { vdev: rest.strip_suffix(slot)?.strip_suffix(':')?.to_owned(), node },
    };
    (usage.vdev().is_some() || value == slot).then(|| (slot.to_owned(), usage))
}

/// `spec.cdiName` of an Instance: a fully qualified CDI device name. The class is the Configuration's name where CDI
/// allows it, else a name derived from it (rule 8).
pub fn cdi_name(configuration: &str, hash: &str) -> String {
    format!("{RESOURCE_PREFIX}{}={hash}", cdi_class(configuration))
}

/// The CDI class of a Configuration. CDI classes start with a letter and hold no dots (CDI specification, "Kind").
pub fn cdi_class(configuration: &str) -> String {
    let letter_first = configuration.starts_with(|c: char| c.is_ascii_alphabetic());
    if letter_first && !configuration.contains('.') {
        return configuration.to_owned();
    }
    format!("c-{}-{}", configuration.replace('.', "-"), hex::<Blake2b<U3>>(configuration))
}

/// The node's part of field managers and labels: names of nodes can be longer than a label value.
pub fn node_hash(node: &str) -> String {
    hex::<Blake2b<U6>>(node)
}

/// Returns whether an Instance's name ends in a short hash, as usual.
pub fn has_usual_name(configuration: &str, instance: &str) -> bool {
    let short = short_name(configuration, instance);
    short != instance && DIGITS.first() == Some(&short.len())
}

/// The usage of a slot, as in `deviceUsage`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Usage {
    /// Free: "".
    #[default]
    Free,
    /// Used through the Instance's own resource: `<node>`.
    Instance {
        /// The node whose container uses it.
        node: String,
    },
    /// Used through the Configuration's resource: `C:<virtual device>:<node>`.
    Configuration {
        /// The configuration-level device plugin id, such as `0`.
        vdev: String,
        /// The node whose container uses it.
        node: String,
    },
    /// Used through a ResourceClaim: `R:<claim uid>:<node>`.
    ResourceClaim {
        /// The UID of the ResourceClaim.
        claim: String,
        /// The node whose container uses it.
        node: String,
    },
    /// Text that is no usage. The slot is not free, and its user is unknown (rule 40).
    Unreadable(String),
}

impl Usage {
    /// Reads a value of `deviceUsage`: today's form and upstream Akri's, whose virtual device is `<configuration>-<n>`
    /// instead of `<n>`. Other text is [`Usage::Unreadable`], never free.
    pub fn read(text: &str) -> Self {
        let parts: Vec<&str> = text.split(':').collect();
        match *parts.as_slice() {
            [""] => Self::Free,
            [node] => Self::Instance { node: node.to_owned() },
            ["C", vdev, node] if !vdev.is_empty() && !node.is_empty() => {
                Self::Configuration { vdev: vdev.to_owned(), node: node.to_owned() }
            }
            ["R", claim, node] if !claim.is_empty() && !node.is_empty() => {
                Self::ResourceClaim { claim: claim.to_owned(), node: node.to_owned() }
            }
            _ => Self::Unreadable(text.to_owned()),
        }
    }

    /// The node whose container uses the slot.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Free | Self::Unreadable(_) => None,
            Self::Instance { node } | Self::Configuration { node, .. } | Self::ResourceClaim { node, .. } => Some(node),
        }
    }

    /// The configuration-level id it was claimed as, if it was.
    pub fn vdev(&self) -> Option<&str> {
        match self {
            Self::Configuration { vdev, .. } => Some(vdev),
            _ => None,
        }
    }

    /// Returns whether a call ends the usage, and not that the kubelet shows no container of it (rule 110).
    pub fn ends_by_call(&self) -> bool {
        matches!(self, Self::ResourceClaim { .. })
    }

    /// Returns the user, for messages.
    pub fn user(&self) -> String {
        match self {
            Self::Free => "nobody".to_owned(),
            Self::Instance { node } => format!("node '{node}'"),
            Self::Configuration { node, .. } => format!("node '{node}', by the Configuration's resource"),
            Self::ResourceClaim { claim, node } => format!("node '{node}', by ResourceClaim {claim}"),
            Self::Unreadable(text) => format!("'{text}', which names no node"),
        }
    }

    /// Returns whether the slot is free.
    pub fn is_free(&self) -> bool {
        *self == Self::Free
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => Ok(()),
            Self::Instance { node } => f.write_str(node),
            Self::Configuration { vdev, node } => write!(f, "C:{vdev}:{node}"),
            Self::ResourceClaim { claim, node } => write!(f, "R:{claim}:{node}"),
            Self::Unreadable(text) => f.write_str(text),
        }
    }
}

impl From<Usage> for String {
    fn from(usage: Usage) -> Self {
        usage.to_string()
    }
}

impl TryFrom<String> for Usage {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match Self::read(&text) {
            Self::Unreadable(text) => Err(format!("'{text}' is no device usage")),
            usage => Ok(usage),
        }
    }
}

/// The digest in lower-case hex.
pub fn hex<D: Digest>(input: &str) -> String {
    text::hex(&D::digest(input.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn short(id: &str, shared: bool, node: &str) -> String {
        HashInput::new(id, shared, node).hash(HashLength::Short)
    }

    #[test] // rule 22
    fn hashes_are_those_of_upstream_akri() {
        for (id, hash) in [
            ("foo0", "8120fe"),
            ("foo1", "a19705"),
            ("foo", "359973"),
            ("bar0", "d46b65"),
            ("bar1", "ab76e6"),
            ("my_shared_device", "4294ea"),
        ] {
            assert_eq!(short(id, true, "any-node"), hash, "{id}");
        }
        assert_eq!(short("my_local_device", false, "my_node"), "e77db4");
        assert_eq!(short("my_local_device", false, "my_other_node"), "099763");
    }

    #[test] // rule 22
    fn longer_hashes_and_identities_are_digests_of_their_own_length() {
        let input = HashInput::new("foo0", true, "n");
        let lengths = HashLength::ALL.map(|l| input.hash(l).len());
        assert_eq!(lengths, [6, 12, 18]);
        assert!(!input.hash(HashLength::Medium).starts_with("8120fe"), "Blake2b is keyed by its length");
        assert_eq!(input.identity().as_str().len(), 32);
    }

    #[test] // rule 125
    fn short_name_is_the_hash_or_all_of_a_chosen_name() {
        for (instance, short, suffix) in [
            ("cam-8120fe", "8120fe", "_8120FE"),
            ("cam-8120fe8120fe", "8120fe8120fe", "_8120FE8120FE"),
            ("cam-sn1", "cam-sn1", "_CAM_SN1"),
            ("cam-8120FE", "cam-8120FE", "_CAM_8120FE"),
            ("plc", "plc", "_PLC"),
        ] {
            assert_eq!((short_name("cam", instance), &*variable_suffix(short)), (short, suffix));
        }
    }

    #[test] // rule 30
    fn names_that_do_not_fit_a_resource_are_refused() {
        assert_eq!(instance_name("cam", "8120fe").as_deref(), Some("cam-8120fe"));
        let longest = "c".repeat(MAX_CONFIGURATION_NAME);
        assert_eq!(instance_name(&longest, "8120fe").map(|n| n.len()), Some(MAX_NAME));
        assert_eq!(instance_name(&longest, "8120fe8120fe"), None);
    }

    #[test]
    fn slot_names_are_read_only_in_the_form_they_are_written() {
        for (name, slot) in [
            ("cam-1-0", Some(0)),
            ("cam-1-17", Some(17)),
            ("cam-1-017", None),
            ("cam-1-+1", None),
            ("cam-1-", None),
            ("cam-1", None),
            ("cam-2-0", None),
            ("cam-1-4294967296", None),
            ("", None),
        ] {
            assert_eq!(parse_slot_name("cam-1", name), slot, "{name}");
        }
    }

    #[test] // rule 15, rule 110
    fn usage_is_read_in_all_forms() {
        let short = Usage::read("C:0:node-b");
        assert_eq!(short, Usage::Configuration { vdev: "0".into(), node: "node-b".into() });
        let long = Usage::read("C:akri-onvif-0:node-b");
        assert_eq!(long.to_string(), "C:akri-onvif-0:node-b");
        let claim = Usage::read("R:1b4e:node-b");
        assert_eq!(claim, Usage::ResourceClaim { claim: "1b4e".into(), node: "node-b".into() });
        assert_eq!((claim.node(), claim.vdev(), claim.is_free()), (Some("node-b"), None, false));
        for wrong in ["C:0", "C:0:a:b", "C::node", "C:0:", "R:0", "R::node", "D:0:node", "::"] {
            assert_eq!(Usage::read(wrong), Usage::Unreadable(wrong.to_owned()));
            assert!(!Usage::read(wrong).is_free(), "{wrong}");
        }
    }

    #[test] // rule 45
    fn slot_annotations_are_read() {
        let read = |value| parse_slot_annotation("akri.agent.slot-cam-1-0", value, "n");
        let node = || "n".to_owned();
        assert_eq!(read("cam-1-0"), Some(("cam-1-0".into(), Usage::Instance { node: node() })));
        let configuration = Usage::Configuration { vdev: "4".into(), node: node() };
        assert_eq!(read("C:4:cam-1-0"), Some(("cam-1-0".into(), configuration)));
        for value in ["", "cam-1-1", "C:cam-1-0", "C:4:cam-1-1"] {
            assert_eq!(read(value), None, "{value}");
        }
        assert_eq!(parse_slot_annotation("other", "cam-1-0", "n"), None);
    }

    #[test] // rule 8
    fn cdi_classes_follow_the_cdi_specification() {
        assert_eq!(cdi_name("cam", "8120fe"), "akri.sh/cam=8120fe");
        for name in ["0cam", "my.cam", "my-cam", "9.9"] {
            let class = cdi_class(name);
            assert!(class.starts_with(|c: char| c.is_ascii_alphabetic()) && !class.contains('.'), "{class}");
        }
        assert_ne!(cdi_class("my.cam"), cdi_class("my-cam"));
        assert_ne!(cdi_class("0.1"), cdi_class("0-1"));
    }

    proptest! {
        #[test]
        fn usage_round_trips(node in "[a-z0-9.-]{1,63}", vdev in "[a-z0-9-]{1,20}", kind in 0..4) {
            let usage = match kind {
                0 => Usage::Free,
                1 => Usage::Instance { node },
                2 => Usage::ResourceClaim { claim: vdev, node },
                _ => Usage::Configuration { vdev, node },
            };
            prop_assert_eq!(Usage::read(&usage.to_string()), usage);
        }

        #[test]
        fn slot_names_round_trip(instance in "[a-z0-9-]{1,30}", slot: u32) {
            prop_assert_eq!(parse_slot_name(&instance, &slot_name(&instance, slot)), Some(slot));
        }
    }
}
