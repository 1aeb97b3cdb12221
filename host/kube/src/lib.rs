//! Access to the API server: a client, watches that survive disconnects, requests of bounded duration, JSON Patches, Events, Leases, and a queue of
//! what is retried; and the HTTP servers that it and the kubelet call.

pub mod agent_lease;
pub mod api_metrics;
pub mod client;
pub mod events;
pub mod http;
pub mod json_patch;
pub mod leader;
pub mod metrics;
mod process_metrics;
pub mod requests;
pub mod watch;
pub mod work_queue;
