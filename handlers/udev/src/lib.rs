//! `udev`: a discovery handler for the devices of the node it runs on, chosen by udev rules.
//!
//! ```yaml
//! discoveryHandler:
//!   name: udev
//!   discoveryDetails: |
//!     udevRules:                 # required; a device is found if one of the rules holds
//!     - 'SUBSYSTEM=="video4linux", ENV{ID_V4L_CAPABILITIES}=="*:capture:*"'
//!     groupRecursive: false      # devices below one another become one device
//!     permissions: "rw"          # of containers on the device node: some of r, w, m
//!     properties: []             # udev properties and sysfs attributes to report, such as ID_SERIAL_SHORT or serial
//! ```
//!
//! # Rules
//!
//! A rule is `filter, filter, ...`, a filter is `FIELD=="value"` or `FIELD!="value"`, and all filters of a rule have to
//! hold. The fields are in `docs/reference/handlers/udev.md`.
//!
//! Values are globs: `*`, `?`, `[a-z]`, `[!a-z]`, and `|` between alternatives, of which an empty one matches the empty
//! string. Meaning is that of udev (`udev(7)`, systemd's `udev-rules.c`):
//! - All filters on `KERNELS`, `SUBSYSTEMS`, `DRIVERS`, `ATTRS` and `TAGS` hold for **one and the same** of the device and its
//!   ancestors. So `DRIVERS!="usb"` holds if some device of the lineage is not bound to `usb`.
//! - A device without driver, subsystem or that property is compared as the empty string. Without that attribute a filter
//!   on it does not hold, not even `ATTR{name}!="x"`.
//! - White space at the end of an attribute does not count, unless the value in the rule ends in white space itself.
//!
//! # Devices
//!
//! The id and the property `UDEV_DEVPATH` are the path without `/sys`; `UDEV_DEVNODE` and a device spec are the device
//! node. A device without a node is replaced by its nearest ancestor that has one (an interface by its USB device); if
//! there is none, it has a path only. With `groupRecursive` a device found below another joins it: the topmost names
//! the group, and the nodes are `UDEV_DEVNODE_0`, `UDEV_DEVNODE_1`, ... in ascending order of path.
//!
//! Only devices of the subsystems granted to the handler are found, and an ancestor of another subsystem only has a name
//! and a subsystem: rules with `ATTRS{idVendor}` on video devices need `usb` granted too.
//!
//! The `discoveryProperties` entry `devicePluginResourceName` adds the variables that KubeVirt reads:
//! `USB_RESOURCE_<NAME>` (bus and device number, for nodes below `/dev/bus/usb`) or `PCI_RESOURCE_<NAME>` (PCI address,
//! for other devices). `vfioPassthrough: "true"` adds the nodes a virtual machine needs to be given a PCI device itself:
//! `/dev/vfio/<IOMMU group>` and `/dev/vfio/vfio`, with permissions `rwm`.
//!
//! # Explanations
//!
//! The `discoveryProperties` entry `explain` is reserved for `akri discover --explain`. Its value is the path of a device
//! without `/sys`. The round then also writes to the log, at level info with context `explain`, which filters of which rule
//! hold for this device, which fail, and what they found. What the round finds is the same.
//!
//! # Differences from Akri's handler
//!
//! Akri mixes libudev's enumeration (where several filters on one field are alternatives) with regular expressions. Here
//! a rule means what it means to udev; the same page has examples.
//!
//! `permissions` may be in any order (Akri refuses `wr`). Groups go by whole path components (for Akri
//! `/devices/usb1` is above `/devices/usb10`) and number their nodes in the same order each time. Values may hold any
//! character.
//!
//! # Differences from udev
//!
//! Rules only match devices, so keys that act (`NAME`, `RUN`, ...) or ask about the event, the machine, files or programs
//! (`ACTION`, `CONST`, `TEST`, `PROGRAM`, ...) are refused. Filters need a comma between them. Refused, so that nothing is understood wrongly: `e"..."` and
//! `i"..."`, `$` and `%` in attribute names, `ATTR{[subsystem/kernel]name}`, `..` in attribute names, `[[:digit:]]`, a
//! `[` without `]`. `TAG=="?*"` holds for devices with a tag (in udev it always holds), `SUBSYSTEM=="bus"` is not taken
//! to mean `subsystem` and `class` too, and since the host cuts white space at the end of attributes, a value that ends in
//! white space finds none.

#[cfg(any(target_family = "wasm", test))]
mod component;
pub mod details;
pub mod device;
pub mod explain;
#[cfg(test)]
mod fixture;
pub mod glob;
pub mod parse;
pub mod query;
pub mod record;
pub mod resource;
pub mod rule;

/// The name Configurations use.
pub const NAME: &str = "udev";

/// The pause between rounds in milliseconds: a safety net, since uevents start rounds.
pub const INTERVAL_MS: u32 = 60_000;
