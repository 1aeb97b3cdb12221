//! The exports of a component, with the generated bindings.

use std::marker::PhantomData;

use self::bindings::akri::discovery::{round, types};
use self::bindings::exports::akri::discovery::handler;
use crate::{Device, DeviceSpec, Failure, Handler, Mount, Problem};

/// The WIT package, for the macro `export!`.
#[doc(hidden)]
#[allow(
    unsafe_code,
    unreachable_pub,
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated: the calls over the component boundary move raw memory"
)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "wit",
        world: "discovery-handler",
        pub_export_macro: true,
        export_macro_name: "export_component",
    });
}

/// The exports of a component, made from a [`Handler`].
#[doc(hidden)]
#[derive(Debug)]
pub struct Exported<H>(PhantomData<H>);

impl<H: Handler> handler::Guest for Exported<H> {
    fn describe() -> handler::Description {
        let description = H::DESCRIPTION;
        handler::Description {
            name: description.name.into(),
            version: description.version.into(),
            shared: description.shared,
            hints: vec![("interval-ms".into(), description.interval.as_millis().to_string())],
        }
    }

    fn validate(_details: String) -> Result<Vec<(String, String)>, Vec<types::Problem>> {
        details::<H>().map(|details| H::triggers(&details))
    }

    fn discover(_details: String) -> Result<Vec<types::Device>, types::DiscoveryError> {
        let details = details::<H>().map_err(types::DiscoveryError::InvalidDetails)?;
        let devices = H::discover(details).map_err(types::DiscoveryError::from)?;
        Ok(devices.into_iter().map(types::Device::from).collect())
    }
}

fn details<H: Handler>() -> Result<H::Details, Vec<types::Problem>> {
    let json = round::details_json();
    H::parse(json.as_deref()).map_err(|problems| problems.into_iter().map(types::Problem::from).collect())
}

impl From<Failure> for types::DiscoveryError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotGranted(what) => Self::NotGranted(what),
            Failure::Unavailable(what) => Self::Unavailable(what),
        }
    }
}

impl From<Problem> for types::Problem {
    fn from(Problem { path, reason, message }: Problem) -> Self {
        Self { path, reason: reason.into(), message }
    }
}

impl From<Device> for types::Device {
    fn from(Device { id, origin, properties, mounts, device_specs }: Device) -> Self {
        let mount =
            |Mount { container_path, host_path, read_only }| types::Mount { container_path, host_path, read_only };
        let spec = |DeviceSpec { container_path, host_path, permissions }| types::DeviceSpec {
            container_path,
            host_path,
            permissions,
        };
        Self {
            id,
            origin,
            properties,
            mounts: mounts.into_iter().map(mount).collect(),
            device_specs: device_specs.into_iter().map(spec).collect(),
            hints: Vec::new(),
        }
    }
}
