//! The functions of the host, and the exports.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use self::bindings::akri::discovery::types;
use self::bindings::exports::akri::discovery::handler;
use crate::{Device, DeviceSpec, Failure, Handler, Mount, Problem};

pub use self::bindings::akri::discovery::types::AccessError;
#[cfg(target_family = "wasm")]
pub use self::bindings::akri::discovery::{cache, logging, multicast, properties, round, secrets, udev};
pub use self::round::{keep, note};
#[cfg(not(target_family = "wasm"))]
pub use crate::testing::imports::{cache, logging, multicast, properties, round, secrets, udev};

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

/// Makes a type that implements [`Handler`] the handler of this component.
#[macro_export]
macro_rules! export {
    ($handler:ident) => {
        #[cfg(target_family = "wasm")]
        #[doc(hidden)]
        type AkriHandlerComponent = $crate::host::Exported<$handler>;
        #[cfg(target_family = "wasm")]
        $crate::host::bindings::export_component!(AkriHandlerComponent with_types_in $crate::host::bindings);
    };
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

/// Returns the time until the round should be over: `reserve` before the host ends it.
pub fn time_left(reserve: Duration) -> Duration {
    Duration::from_nanos(round::remaining()).saturating_sub(reserve)
}

/// Returns when the round should be over: `reserve` before the host ends it.
pub fn deadline(reserve: Duration) -> Instant {
    Instant::now() + time_left(reserve)
}

/// Returns a property of the Configuration, from a plain value, a ConfigMap or a Secret.
///
/// # Errors
/// If it may come from a Secret and `grants.secrets` does not cover its name.
pub fn property(name: &str) -> Result<Option<Vec<u8>>, AccessError> {
    match properties::get(name) {
        Some(value) => Ok(Some(value)),
        None => Ok(secrets::get(name)?.map(|secret| secret.reveal())),
    }
}

/// Reports devices that a filter left out, the first of them: whoever looks for one gets to know the filter.
pub fn left_out<T: AsRef<str>>(filter: &str, devices: impl IntoIterator<Item = T>) {
    devices.into_iter().take(64).for_each(|device| note(device.as_ref(), crate::FILTERED, filter));
}

/// Logs a line.
pub fn log(level: logging::Level, context: &str, message: impl AsRef<str>) {
    logging::log(level, context, message.as_ref());
}

/// Returns the text of an error.
pub fn reason(error: AccessError) -> String {
    match error {
        AccessError::NotGranted(why) | AccessError::Limit(why) | AccessError::Unavailable(why) => why,
    }
}

impl From<AccessError> for Failure {
    /// A limit is not the fault of the details: the next round may succeed.
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::NotGranted(what) => Self::NotGranted(what),
            AccessError::Limit(what) | AccessError::Unavailable(what) => Self::Unavailable(what),
        }
    }
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
