//! Conversion of a claim's edits to the kubelet's Allocate response.

use akri_kubelet::resource::{ContainerResponse, DeviceNode, Mount};
use akri_model::device;
use akri_model::edits::ContainerEdits;

/// Converts the edits of each container.
pub(crate) fn responses(edits: Vec<ContainerEdits>) -> Vec<ContainerResponse> {
    edits.into_iter().map(response).collect()
}

fn response(edits: ContainerEdits) -> ContainerResponse {
    ContainerResponse {
        envs: edits.env,
        mounts: edits.mounts.into_iter().map(mount).collect(),
        devices: edits.device_specs.into_iter().map(device_node).collect(),
        annotations: edits.annotations,
        cdi_devices: edits.cdi_devices,
    }
}

fn mount(mount: device::Mount) -> Mount {
    let device::Mount { container_path, host_path, read_only } = mount;
    Mount { container_path, host_path, read_only }
}

fn device_node(spec: device::DeviceSpec) -> DeviceNode {
    let device::DeviceSpec { container_path, host_path, permissions } = spec;
    DeviceNode { container_path, host_path, permissions }
}
