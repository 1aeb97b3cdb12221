//! Support for discovery handlers in Rust: the contract as a trait, typed details with located errors, devices, and the
//! functions of the host.
//!
//! ```ignore
//! use akri_handler::{Description, Device, Failure, Handler, Problem, read};
//!
//! #[derive(serde::Deserialize)]
//! struct Details { names: Vec<String> }
//!
//! struct Names;
//! akri_handler::export!(Names);
//!
//! impl Handler for Names {
//!     type Details = Details;
//!     const DESCRIPTION: Description = Description::new("names", env!("CARGO_PKG_VERSION"));
//!
//!     fn parse(json: Option<&str>) -> Result<Details, Vec<Problem>> {
//!         read(json, "the details must be a mapping with the field 'names'").map_err(|problem| vec![problem])
//!     }
//!
//!     fn discover(details: Details) -> Result<Vec<Device>, Failure> {
//!         Ok(details.names.into_iter().map(Device::new).collect())
//!     }
//! }
//! ```
//! The functions of the host are in [`host`], and with the feature `net` the network is in [`net`]. Both are for the target
//! `wasm32-wasip2`, and with the feature `testing` for `cargo test`, where `testing::play` answers them from cassettes.

#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod component;
mod details;
mod device;
mod filter;
mod handler;
#[cfg(any(target_family = "wasm", feature = "testing"))]
pub mod host;
#[cfg(all(any(target_family = "wasm", feature = "testing"), feature = "net"))]
pub mod net;
#[cfg(all(not(target_family = "wasm"), feature = "testing"))]
pub mod testing;

pub use self::details::{Problem, Window, read};
pub use self::device::{Device, DeviceSpec, Mount};
pub use self::filter::{FILTERED, Filter, FilterAction};
pub use self::handler::{Description, Failure, Handler};

/// Makes a type that implements [`Handler`] the handler of this component. Natively it has no effect.
#[macro_export]
macro_rules! export {
    ($handler:ident) => {
        #[cfg(target_family = "wasm")]
        #[doc(hidden)]
        type AkriHandlerComponent = $crate::component::Exported<$handler>;
        #[cfg(target_family = "wasm")]
        $crate::component::bindings::export_component!(AkriHandlerComponent with_types_in $crate::component::bindings);
    };
}

/// Puts the JSON Schema of the details into the component, from a file beside this one. `akri handler inspect --schema` prints it.
#[macro_export]
macro_rules! details_schema {
    ($file:literal) => {
        #[cfg(target_family = "wasm")]
        #[allow(unsafe_code, reason = "a section of its own overlaps with nothing")]
        #[used]
        #[unsafe(link_section = "akri:details-schema")]
        static AKRI_DETAILS_SCHEMA: [u8; include_bytes!($file).len()] = *include_bytes!($file);
    };
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
