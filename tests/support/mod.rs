//! Support for stories.

pub mod agent;
pub mod api_metrics;
pub mod brokers;
pub mod browser;
pub mod cluster;
pub mod cluster_fixture;
pub mod costly_components;
pub mod dns;
pub mod faulty_cluster;
pub mod fleet;
pub mod kubelet;
pub mod namespace;
pub mod node;
pub mod onvif;
pub mod opcua;
pub mod prometheus;
pub mod recorder;
pub mod registry;
pub mod remote;
pub mod secrecy;
pub mod skip;
pub mod udev;
pub mod zram;
