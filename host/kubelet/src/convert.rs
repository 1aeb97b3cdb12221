//! Conversion between the kubelet's messages and this crate's types. No other file uses both.

use akri_grpc::deviceplugin as proto;
use akri_model::claim_machine::{Preference, Refusal};
use akri_model::device::{DeviceSpec, Mount};
use akri_model::edits::ContainerEdits;
use tonic::Status;

use crate::resource::{AdvertisedDevices, VirtualDevice};

/// Bounds on one request: containers, ids of all containers together, bytes of an id.
const MAX_CONTAINERS: usize = 256;
const MAX_IDS: usize = 4096;
const MAX_ID_BYTES: usize = 256;

/// The device plugin API version.
pub(super) const VERSION: &str = "v1beta1";

const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";

/// Returns the plugin options, sent at registration and on request (rule 2).
pub(super) fn options() -> proto::DevicePluginOptions {
    proto::DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

pub(super) fn register_request(resource: &str, endpoint: &str) -> proto::RegisterRequest {
    proto::RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: Some(options()),
    }
}

/// Returns the full device list.
pub(super) fn list(advertised: &AdvertisedDevices) -> proto::ListAndWatchResponse {
    let device = |device: &VirtualDevice| proto::Device {
        id: device.id.clone(),
        health: if device.healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
        topology: None,
    };
    proto::ListAndWatchResponse { devices: advertised.devices.iter().map(device).collect() }
}

pub(super) fn containers(request: proto::AllocateRequest) -> Result<Vec<Vec<String>>, Status> {
    let containers: Vec<_> = request.container_requests.into_iter().map(|container| container.devices_ids).collect();
    bounded(containers.len(), containers.iter().flatten())?;
    Ok(containers)
}

pub(super) fn preferences(request: proto::PreferredAllocationRequest) -> Result<Vec<Preference>, Status> {
    let containers = request.container_requests;
    let ids = containers
        .iter()
        .flat_map(|container| container.available_device_i_ds.iter().chain(&container.must_include_device_i_ds));
    bounded(containers.len(), ids)?;
    containers.into_iter().map(preference).collect()
}

fn preference(container: proto::ContainerPreferredAllocationRequest) -> Result<Preference, Status> {
    let (available, required) = (container.available_device_i_ds, container.must_include_device_i_ds);
    let size = usize::try_from(container.allocation_size).ok();
    let size = size.filter(|size| (required.len()..=available.len()).contains(size));
    let size = size.ok_or_else(|| Status::invalid_argument("the allocation size does not fit the devices"))?;
    Ok(Preference { available, required, size })
}

pub(super) fn preferred(containers: Vec<Vec<String>>) -> proto::PreferredAllocationResponse {
    let response = |device_i_ds| proto::ContainerPreferredAllocationResponse { device_i_ds };
    proto::PreferredAllocationResponse { container_responses: containers.into_iter().map(response).collect() }
}

pub(super) fn prestart_ids(request: proto::PreStartContainerRequest) -> Result<Vec<String>, Status> {
    bounded(1, request.devices_ids.iter())?;
    Ok(request.devices_ids)
}

fn bounded<'i>(containers: usize, ids: impl Iterator<Item = &'i String>) -> Result<(), Status> {
    let mut count = 0;
    for id in ids {
        count += 1;
        if id.len() > MAX_ID_BYTES {
            let length = id.len();
            let message = format!("a device id of {length} bytes, the limit is {MAX_ID_BYTES}");
            return Err(Status::invalid_argument(message));
        }
    }
    if containers > MAX_CONTAINERS || count > MAX_IDS {
        return Err(Status::invalid_argument(format!(
            "{containers} containers and {count} device ids, the limits are {MAX_CONTAINERS} and {MAX_IDS}"
        )));
    }
    Ok(())
}

/// Returns the Allocate response, which has one element for each container of the request.
pub(super) fn allocated(edits: Vec<ContainerEdits>) -> proto::AllocateResponse {
    proto::AllocateResponse { container_responses: edits.into_iter().map(container).collect() }
}

fn container(edits: ContainerEdits) -> proto::ContainerAllocateResponse {
    proto::ContainerAllocateResponse {
        envs: edits.env.into_iter().collect(),
        mounts: edits.mounts.into_iter().map(mount).collect(),
        devices: edits.device_specs.into_iter().map(device_spec).collect(),
        annotations: edits.annotations.into_iter().collect(),
        cdi_devices: edits.cdi_devices.into_iter().map(|name| proto::CdiDevice { name }).collect(),
    }
}

fn mount(mount: Mount) -> proto::Mount {
    let Mount { container_path, host_path, read_only } = mount;
    proto::Mount { container_path, host_path, read_only }
}

fn device_spec(spec: DeviceSpec) -> proto::DeviceSpec {
    let DeviceSpec { container_path, host_path, permissions } = spec;
    proto::DeviceSpec { container_path, host_path, permissions }
}

pub(super) fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Invalid(message) => Status::invalid_argument(message),
        Refusal::NotFound(message) => Status::not_found(message),
        Refusal::Unavailable(message) => Status::unavailable(message),
        Refusal::Conflict(message) => Status::failed_precondition(message),
        Refusal::Internal(message) => Status::internal(message),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn allocate(containers: Vec<Vec<String>>) -> proto::AllocateRequest {
        let request = |devices_ids| proto::ContainerAllocateRequest { devices_ids };
        proto::AllocateRequest { container_requests: containers.into_iter().map(request).collect() }
    }

    #[test] // rule 2
    fn requests_are_accepted_up_to_their_bounds() {
        let id = |bytes: usize| "i".repeat(bytes);
        let taken = [vec![], vec![vec![]; 256], vec![vec![id(256)]], vec![vec![id(1); 2048]; 2]];
        for containers in taken {
            assert_eq!(super::containers(allocate(containers.clone())).unwrap(), containers);
        }
        let refused = [vec![vec![]; 257], vec![vec![id(257)]], vec![vec![id(1); 2048], vec![id(1); 2049]]];
        for containers in refused {
            let status = super::containers(allocate(containers)).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
        }
        let request = proto::PreStartContainerRequest { devices_ids: vec![id(1); 4097] };
        assert_eq!(prestart_ids(request).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test] // rule 2
    fn preference_size_fits_its_devices() {
        let ask = |available: &[&str], required: &[&str], allocation_size| {
            let own = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
            preferences(proto::PreferredAllocationRequest {
                container_requests: vec![proto::ContainerPreferredAllocationRequest {
                    available_device_i_ds: own(available),
                    must_include_device_i_ds: own(required),
                    allocation_size,
                }],
            })
        };
        assert_eq!(ask(&["a", "b"], &["a"], 2).unwrap()[0].size, 2);
        for (required, size) in [(&[][..], -1), (&[], i32::MIN), (&[], i32::MAX), (&[], 3), (&["a", "b"], 1)] {
            assert_eq!(ask(&["a", "b"], required, size).unwrap_err().code(), Code::InvalidArgument, "size {size}");
        }
    }

    #[test]
    fn list_has_each_device_with_its_health() {
        let devices =
            vec![VirtualDevice { id: "a".into(), healthy: true }, VirtualDevice { id: "b".into(), healthy: false }];
        let advertised = AdvertisedDevices { devices, ..AdvertisedDevices::default() };
        let health: Vec<_> = list(&advertised).devices.into_iter().map(|device| (device.id, device.health)).collect();
        assert_eq!(health, [("a".into(), "Healthy".into()), ("b".into(), "Unhealthy".into())]);
    }

    #[test] // rule 16
    fn each_refusal_keeps_its_code_and_message() {
        let cases = [
            (Refusal::Invalid("m".into()), Code::InvalidArgument),
            (Refusal::NotFound("m".into()), Code::NotFound),
            (Refusal::Unavailable("m".into()), Code::Unavailable),
            (Refusal::Conflict("m".into()), Code::FailedPrecondition),
            (Refusal::Internal("m".into()), Code::Internal),
        ];
        for (refused, code) in cases {
            let status = status(refused);
            assert_eq!((status.code(), status.message()), (code, "m"));
        }
    }
}
