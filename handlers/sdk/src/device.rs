//! Devices as a handler reports them.

/// A discovered device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Identifies the device permanently: the same device has the same id in every round, and on every node if devices are
    /// shared. Not empty, and unique in a round.
    pub id: String,
    /// The source of the device, such as a URL; "" if the handler has one source. `host::keep` keeps devices by it.
    pub origin: String,
    /// Environment variables of containers that use the device.
    pub properties: Vec<(String, String)>,
    /// The mounts of these containers. The grants have to cover the paths of the node.
    pub mounts: Vec<Mount>,
    /// Device nodes that these containers get, likewise.
    pub device_specs: Vec<DeviceSpec>,
}

impl Device {
    /// Creates a device without properties.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// Adds a property.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.push((name.into(), value.into()));
        self
    }

    /// Adds a device node that containers get at the same path. `permissions` are any of `r`, `w` and `m`.
    #[must_use]
    pub fn node(mut self, path: impl Into<String>, permissions: impl Into<String>) -> Self {
        let path = path.into();
        self.device_specs.push(DeviceSpec {
            container_path: path.clone(),
            host_path: path,
            permissions: permissions.into(),
        });
        self
    }
}

/// A mount of a container that uses the device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path inside the container.
    pub container_path: String,
    /// Absolute path on the node.
    pub host_path: String,
    /// Set if the container can't write to it.
    pub read_only: bool,
}

/// A device node of a container that uses the device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Absolute path inside the container.
    pub container_path: String,
    /// Absolute path on the node.
    pub host_path: String,
    /// Any of `r` (read), `w` (write), `m` (mknod).
    pub permissions: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_has_the_same_path_in_containers() {
        let device = Device::new("d").property("NAME", "d").node("/dev/video0", "rw");
        assert_eq!((device.id.as_str(), device.properties), ("d", vec![("NAME".to_owned(), "d".to_owned())]));
        let [spec] = device.device_specs.as_slice() else { panic!("{:?}", device.device_specs) };
        assert_eq!((spec.host_path.as_str(), spec.container_path.as_str()), ("/dev/video0", "/dev/video0"));
        assert_eq!(spec.permissions, "rw");
    }
}
