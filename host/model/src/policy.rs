//! Checks of devices against grants. Handlers are not trusted with the node's file system: every path they report must
//! be covered by a grant.

use std::collections::BTreeMap;

use crate::device::Device;
use crate::device_path::{covers, is_granted, is_named, is_of_containers, is_own, is_plain};
use crate::environment;
use crate::grant::Grants;
use crate::text::{cut, visible};

/// The directory of device nodes in containers.
const DEVICES: &str = "/dev/";

/// Bytes shown of what a handler wrote.
const SHOWN: usize = 256;

/// The reason for refusing a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefusal {
    /// The path is relative, contains `..`, or is the root.
    #[error("path '{0}' is not an absolute path without '.' and '..'")]
    MalformedPath(String),
    /// No grant covers the path.
    #[error("path '{path}' is not covered by {field}; {grant}: ['{path}'] would allow it")]
    PathNotGranted {
        /// The path on the node.
        path: String,
        /// The grant that has to cover it.
        grant: &'static str,
        /// The field, with its object.
        field: String,
    },
    /// It gives away the node itself.
    #[error("path '{path}' leads to the node's own memory, log or disks; {field} has to name it")]
    PathNotNamed {
        /// The path on the node.
        path: String,
        /// The grant that would have to name it, with its object.
        field: String,
    },
    /// A link to what the process that opens it has open.
    #[error("path '{0}' is another file for every process")]
    OwnPath(String),
    /// It would appear where a container's own files are.
    #[error("path '{path}' in the container is not covered by {field}")]
    ContainerPathNotGranted {
        /// The path in the container.
        path: String,
        /// The grant, with its object.
        field: String,
    },
    /// Not a subset of `rwm`.
    #[error("permissions '{0}' are not a combination of 'r', 'w' and 'm'")]
    InvalidPermissions(String),
    /// The name can't be an environment variable.
    #[error("property name '{0}' can't be an environment variable: letters, digits, '_', '-' and '.', no digit first")]
    InvalidPropertyName(String),
    /// The name decides what programs run.
    #[error("property '{name}' would choose what programs in the container run or trust; {field} has to name it")]
    ReservedPropertyName {
        /// The property.
        name: String,
        /// The grant, with its object.
        field: String,
    },
    /// The value can't be in an environment.
    #[error("the value of property '{0}' holds a NUL character")]
    InvalidPropertyValue(String),
}

/// Checks everything about a device that does not require access to the node.
pub fn check(device: &Device, grants: &Grants) -> Result<(), DeviceRefusal> {
    check_properties(&device.properties, grants)?;
    for spec in &device.device_specs {
        check_container_path(&spec.container_path, &spec.host_path, grants)?;
        check_granted(&spec.host_path, &grants.device_paths, grants, "devicePaths")?;
        check_permissions(&spec.permissions)?;
    }
    for mount in &device.mounts {
        check_container_path(&mount.container_path, &mount.host_path, grants)?;
        check_granted(&mount.host_path, &grants.mount_paths, grants, "mountPaths")?;
    }
    Ok(())
}

/// Checks properties, which are the environment of containers.
///
/// # Errors
/// The first that would be dangerous, or is none.
pub fn check_properties(properties: &BTreeMap<String, String>, grants: &Grants) -> Result<(), DeviceRefusal> {
    properties.iter().try_for_each(|(name, value)| check_property(name, value, grants))
}

fn check_property(name: &str, value: &str, grants: &Grants) -> Result<(), DeviceRefusal> {
    if !environment::is_name(name) {
        return Err(DeviceRefusal::InvalidPropertyName(shown(name)));
    }
    if environment::is_reserved(name) && !grants.environment.iter().any(|granted| granted == name) {
        let field = grants.field("environment");
        return Err(DeviceRefusal::ReservedPropertyName { name: name.to_owned(), field });
    }
    if value.contains('\0') {
        return Err(DeviceRefusal::InvalidPropertyValue(name.to_owned()));
    }
    Ok(())
}

/// Returns a handler's text, cut and cleaned for a message.
fn shown(text: &str) -> String {
    visible(cut(text, SHOWN))
}

fn check_permissions(permissions: &str) -> Result<(), DeviceRefusal> {
    let is_once = |c: char| permissions.matches(c).count() == 1;
    let known = !permissions.is_empty() && permissions.chars().all(|c| matches!(c, 'r' | 'w' | 'm') && is_once(c));
    if known { Ok(()) } else { Err(DeviceRefusal::InvalidPermissions(shown(permissions))) }
}

fn check_plain(path: &str) -> Result<(), DeviceRefusal> {
    if is_plain(path) { Ok(()) } else { Err(DeviceRefusal::MalformedPath(shown(path))) }
}

/// Checks a place in the container. What every container has is replaced by the same of the node only.
fn check_container_path(path: &str, on_node: &str, grants: &Grants) -> Result<(), DeviceRefusal> {
    check_plain(path)?;
    let granted = match is_of_containers(path) && path != on_node {
        true => is_named(path, &grants.container_paths),
        false => path.starts_with(DEVICES) || is_granted(path, &grants.container_paths),
    };
    if granted || grants.any_path {
        return Ok(());
    }
    Err(DeviceRefusal::ContainerPathNotGranted { path: shown(path), field: grants.field("containerPaths") })
}

fn check_granted(path: &str, granted: &[String], grants: &Grants, grant: &'static str) -> Result<(), DeviceRefusal> {
    check_plain(path)?;
    if is_own(path) {
        return Err(DeviceRefusal::OwnPath(shown(path)));
    }
    if grants.any_path || is_granted(path, granted) {
        return Ok(());
    }
    let is_covered = granted.iter().any(|pattern| covers(pattern, path));
    let (path, field) = (shown(path), grants.field(grant));
    Err(if is_covered {
        DeviceRefusal::PathNotNamed { path, field }
    } else {
        DeviceRefusal::PathNotGranted { path, grant, field }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceSpec, Mount};

    fn grants() -> Grants {
        Grants {
            device_paths: vec!["/dev/**".into()],
            mount_paths: vec!["/run/cam/**".into(), "/etc/cam.conf".into()],
            container_paths: vec!["/cam".into()],
            ..Grants::default()
        }
    }

    fn with_node(host_path: &str, permissions: &str) -> Device {
        let spec = DeviceSpec {
            container_path: "/dev/video0".into(),
            host_path: host_path.into(),
            permissions: permissions.into(),
        };
        Device { id: "d".into(), device_specs: vec![spec], ..Device::default() }
    }

    fn with_mount(host_path: &str) -> Device {
        let mount = Mount { container_path: "/cam".into(), host_path: host_path.into(), read_only: true };
        Device { id: "d".into(), mounts: vec![mount], ..Device::default() }
    }

    #[test]
    fn granted_paths_are_allowed() {
        for device in
            [with_node("/dev/video0", "rw"), with_node("/dev/bus/usb/001/002", "mwr"), with_mount("/run/cam/a/b")]
        {
            assert_eq!(check(&device, &grants()), Ok(()));
        }
        assert_eq!(check(&with_mount("/etc/cam.conf"), &grants()), Ok(()));
    }

    #[test]
    fn escapes_are_refused() {
        for path in [
            "/",
            "",
            "dev/video0",
            "/dev/../etc/shadow",
            "/dev/./x",
            "/dev//x",
            "/dev/",
            "/dev/x\0y",
            "/dev/x\n",
            "/devx",
        ] {
            assert!(check(&with_node(path, "rw"), &grants()).is_err(), "{path}");
        }
        for path in ["/", "/run/cam", "/run/camera/x", "/etc/cam.conf/x", "/var/run/docker.sock"] {
            assert!(check(&with_mount(path), &grants()).is_err(), "{path}");
        }
    }

    #[test]
    fn nothing_is_granted_by_default() {
        for (holder, shown) in
            [("", "the DiscoveryHandler"), ("DiscoveryHandler 'x' (x.yaml)", "DiscoveryHandler 'x' (x.yaml)")]
        {
            let grants = Grants { holder: holder.to_owned(), ..Grants::default() };
            let refusal = check(&with_node("/dev/video0", "rw"), &grants).unwrap_err().to_string();
            let expected = format!(
                "path '/dev/video0' is not covered by grants.devicePaths of {shown}; devicePaths: ['/dev/video0'] would allow it"
            );
            assert_eq!(refusal, expected);
        }
    }

    #[test]
    fn permissions_and_properties_have_to_make_sense() {
        for permissions in ["", "x", "rwx", "rw ", "rr"] {
            let refusal = check(&with_node("/dev/video0", permissions), &grants());
            assert_eq!(refusal, Err(DeviceRefusal::InvalidPermissions(permissions.into())));
        }
        for (name, value) in [("", "v"), ("A=B", "v"), ("A\0", "v"), ("A\nB", "v"), ("1", "v"), ("A", "\0")] {
            let device = Device { properties: [(name.into(), value.into())].into(), ..Device::default() };
            assert!(check(&device, &grants()).is_err(), "{name:?}={value:?}");
        }
    }
    #[test] // threat 13
    fn reserved_names_have_to_be_granted() {
        let device = Device { properties: [("LD_PRELOAD".into(), "/x.so".into())].into(), ..Device::default() };
        let field = grants().field("environment");
        let refusal = DeviceRefusal::ReservedPropertyName { name: "LD_PRELOAD".into(), field };
        assert_eq!(check(&device, &grants()), Err(refusal));
        let grants = Grants { environment: vec!["LD_PRELOAD".into()], ..grants() };
        assert_eq!(check(&device, &grants), Ok(()));
    }

    fn not_in_container(path: &str) -> DeviceRefusal {
        DeviceRefusal::ContainerPathNotGranted { path: path.into(), field: grants().field("containerPaths") }
    }

    #[test] // threat 12
    fn container_paths_outside_dev_need_a_grant() {
        let mut device = with_node("/dev/video0", "rw");
        device.device_specs[0].container_path = "/etc/ld.so.preload".into();
        assert_eq!(check(&device, &grants()), Err(not_in_container("/etc/ld.so.preload")));
        let granted = Grants { container_paths: vec!["/etc/ld.so.preload".into()], ..grants() };
        assert_eq!(check(&device, &granted), Ok(()));
        let trusted = Grants { any_path: true, ..Grants::default() };
        assert_eq!(check(&device, &trusted), Ok(()));
    }

    #[test] // threat 12
    fn files_of_every_container_are_replaced_by_the_same_only() {
        let of = |on_node: &str, path: &str, grants: &Grants| {
            let mut device = with_node(on_node, "rw");
            device.device_specs[0].container_path = path.into();
            check(&device, grants)
        };
        let all = Grants { container_paths: vec!["/dev/**".into()], ..grants() };
        for path in ["/dev/shm/x", "/dev/termination-log", "/dev/null", "/dev/fd/1", "/dev/stdout", "/dev/pts/0"] {
            let refusal = Err(not_in_container(path));
            assert_eq!([of("/dev/video0", path, &grants()), of("/dev/video0", path, &all)], [refusal.clone(), refusal]);
        }
        assert_eq!(of("/dev/null", "/dev/null", &grants()), Ok(()));
        let named = Grants { container_paths: vec!["/dev/random".into()], ..grants() };
        assert_eq!(of("/dev/hwrng", "/dev/random", &named), Ok(()));
    }

    #[test] // threat 12
    fn disks_are_not_covered_by_patterns() {
        let refusal = check(&with_node("/dev/vda", "rw"), &grants()).unwrap_err();
        let field = grants().field("devicePaths");
        assert_eq!(refusal, DeviceRefusal::PathNotNamed { path: "/dev/vda".into(), field });
        let named = Grants { device_paths: vec!["/dev/vda".into()], ..Grants::default() };
        assert_eq!(check(&with_node("/dev/vda", "rw"), &named), Ok(()));
        assert_eq!(check(&with_node("/dev/stdin", "rw"), &grants()), Err(DeviceRefusal::OwnPath("/dev/stdin".into())));
    }
}
