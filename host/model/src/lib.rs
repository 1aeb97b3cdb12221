//! The rules of Akri over plain types: devices, names, plans, slots and claims.
//!
//! No I/O, no async runtime, no Kubernetes, no wasm: everything here is a value or a pure function, and everything that
//! touches the outside world converts to these types at its border. The rules that comments name by number are in
//! `docs/contribute/rules.md`.

pub mod agent_lease;
pub mod broker_info;
pub mod budget;
pub mod chain;
pub mod claim;
pub mod claim_machine;
pub mod configuration;
pub mod configuration_level;
pub mod configuration_status;
pub mod container_paths;
pub mod creation_backoff;
pub mod datagram;
pub mod device;
pub mod device_path;
pub mod discover_on;
pub mod discovery;
pub mod edits;
pub mod environment;
pub mod events;
pub mod glob;
pub mod grant;
pub mod handler_names;
pub mod image;
pub mod instance;
pub mod instance_labels;
pub mod instance_names;
pub mod left_out;
pub mod names;
pub mod node_absence;
pub mod node_report;
pub mod plan;
pub mod policy;
pub mod property;
pub mod publishing;
pub mod rate_limiter;
pub mod readiness;
pub mod reclaim;
pub mod remote;
pub mod resolve;
pub mod retry;
pub mod retry_queue;
pub mod secret_scanner;
pub mod sharing;
pub mod signature;
pub mod slots;
pub mod sources;
pub mod summary;
pub mod template;
pub mod text;
