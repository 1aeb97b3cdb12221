//! The agent of one node: it runs discovery handlers, keeps an Instance for each device they find, and lets the kubelet
//! hand the devices to containers. The rules that comments name by number are in `docs/rules.md`.

pub mod agent;
pub mod cdi;
pub mod cluster;
pub mod discovery;
pub mod journal;
pub mod listen;
pub mod lock;
pub mod metrics;
pub mod owner;
pub mod plugin;
pub mod publisher;
pub mod reclaim;
pub mod remote;
mod replace;
pub mod uevent;
mod watch_dir;
