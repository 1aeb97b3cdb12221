//! Which devices of a handler may be handed to containers. A handler, component or remote, is not trusted with the
//! node's file system: what it names has to be covered by its grant.

use crate::device::Device;
use crate::grant::Grants;

/// Why a device is not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The path is relative, goes up, or is the root.
    #[error("path '{0}' is not an absolute path without '.' and '..'")]
    MalformedPath(String),
    /// No grant covers the path.
    #[error("path '{path}' is not covered by grants.{grant} of the DiscoveryHandler")]
    PathNotGranted {
        /// The path on the node.
        path: String,
        /// The field of the grant that would have to name it.
        grant: &'static str,
    },
    /// Not a subset of `rwm`.
    #[error("permissions '{0}' are not a combination of 'r', 'w' and 'm'")]
    InvalidPermissions(String),
    /// The name can't be an environment variable.
    #[error("property name '{0}' can't be an environment variable")]
    InvalidPropertyName(String),
    /// The value can't be in an environment.
    #[error("the value of property '{0}' holds a NUL character")]
    InvalidPropertyValue(String),
}

/// Checks everything about a device that can be checked without looking at the node.
pub fn check(device: &Device, grants: &Grants) -> Result<(), Refusal> {
    for (name, value) in &device.properties {
        check_property(name, value)?;
    }
    for spec in &device.device_specs {
        check_container_path(&spec.container_path)?;
        check_granted(&spec.host_path, &grants.device_paths, "devicePaths")?;
        check_permissions(&spec.permissions)?;
    }
    for mount in &device.mounts {
        check_container_path(&mount.container_path)?;
        check_granted(&mount.host_path, &grants.mount_paths, "mountPaths")?;
    }
    Ok(())
}

fn check_property(name: &str, value: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Refusal::InvalidPropertyName(name.to_owned()));
    }
    if value.contains('\0') {
        return Err(Refusal::InvalidPropertyValue(name.to_owned()));
    }
    Ok(())
}

fn check_permissions(permissions: &str) -> Result<(), Refusal> {
    let known = !permissions.is_empty() && permissions.chars().all(|c| matches!(c, 'r' | 'w' | 'm'));
    if known { Ok(()) } else { Err(Refusal::InvalidPermissions(permissions.to_owned())) }
}

fn check_container_path(path: &str) -> Result<(), Refusal> {
    if is_plain(path) { Ok(()) } else { Err(Refusal::MalformedPath(path.to_owned())) }
}

fn check_granted(path: &str, granted: &[String], grant: &'static str) -> Result<(), Refusal> {
    check_container_path(path)?;
    if is_granted(path, granted) {
        return Ok(());
    }
    Err(Refusal::PathNotGranted { path: path.to_owned(), grant })
}

/// Whether one of the granted patterns covers a path.
pub fn is_granted(path: &str, granted: &[String]) -> bool {
    granted.iter().any(|pattern| covers(pattern, path))
}

/// Whether a granted path covers a path: the path itself, or with `/**` at its end everything below it.
fn covers(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix("/**") {
        Some(directory) => path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/')),
        None => pattern == path,
    }
}

/// Absolute, not the root, and every component a plain name.
fn is_plain(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
        && !path.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceSpec, Mount};

    fn grants() -> Grants {
        Grants {
            device_paths: vec!["/dev/**".into()],
            mount_paths: vec!["/run/cam/**".into(), "/etc/cam.conf".into()],
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
        for path in ["/", "", "dev/video0", "/dev/../etc/shadow", "/dev/./x", "/dev//x", "/dev/", "/dev/x\0y", "/devx"]
        {
            assert!(check(&with_node(path, "rw"), &grants()).is_err(), "{path}");
        }
        for path in ["/", "/run/cam", "/run/camera/x", "/etc/cam.conf/x", "/var/run/docker.sock"] {
            assert!(check(&with_mount(path), &grants()).is_err(), "{path}");
        }
    }

    #[test]
    fn nothing_is_granted_by_default() {
        let refusal = check(&with_node("/dev/video0", "rw"), &Grants::default()).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "path '/dev/video0' is not covered by grants.devicePaths of the DiscoveryHandler"
        );
    }

    #[test]
    fn permissions_and_properties_have_to_make_sense() {
        for permissions in ["", "x", "rwx", "rw "] {
            let refusal = check(&with_node("/dev/video0", permissions), &grants());
            assert_eq!(refusal, Err(Refusal::InvalidPermissions(permissions.into())));
        }
        for (name, value) in [("", "v"), ("A=B", "v"), ("A\0", "v"), ("A", "\0")] {
            let device = Device { properties: [(name.into(), value.into())].into(), ..Device::default() };
            assert!(check(&device, &grants()).is_err(), "{name:?}={value:?}");
        }
    }
}
