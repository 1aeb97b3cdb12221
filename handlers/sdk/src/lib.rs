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
//! The functions of the host are in [`host`], and with the feature `net` the network is in [`net`], both for the target
//! `wasm32-wasip2`. With the feature `testing`, `testing::play` plays cassettes in `cargo test`, natively: it answers the functions of
//! [`host`]. Logic that uses the network and is to be tested natively takes what that returns as arguments.

mod details;
mod device;
mod filter;
mod handler;
#[cfg(any(target_family = "wasm", feature = "testing"))]
pub mod host;
#[cfg(all(target_family = "wasm", feature = "net"))]
pub mod net;
#[cfg(all(not(target_family = "wasm"), feature = "testing"))]
pub mod testing;

pub use self::details::{Problem, read};
pub use self::device::{Device, DeviceSpec, Mount};
pub use self::filter::{FILTERED, Filter, FilterAction};
pub use self::handler::{Description, Failure, Handler};
