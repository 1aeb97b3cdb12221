//! The agent of one node. It runs discovery handlers, maintains an Instance for each discovered device, and serves the
//! devices to the kubelet. The numbered rules in comments are described in `docs/contribute/rules.md`.

pub mod agent;
pub mod broker_info;
pub mod cdi;
pub mod checkpoint_refresher;
mod handler_reports;
pub mod journal;
pub mod lock;
pub mod metrics;
pub mod owner;
pub mod pod_resources_poller;
pub mod publisher;
pub mod readiness;
pub mod resource_names;
pub mod state_dir;
mod supervisor;
