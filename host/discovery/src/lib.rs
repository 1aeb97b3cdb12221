//! Discovery for Configurations: component handlers and how they are loaded, their rounds, and the results of components
//! and remote handlers combined. It knows neither Instances nor the kubelet.

mod component_file;
mod fetch;
pub mod handler_activity;
pub mod images;
pub mod load_progress;
mod load_retries;
mod loader;
mod missing_handler;
mod multicast_triggers;
pub mod registry;
mod round;
pub mod round_metrics;
mod round_rate_limit;
pub mod rounds;
pub mod sources;

pub use round::{call, details_json, round, ungranted, validate_details};
