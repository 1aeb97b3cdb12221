//! One story per file: the real program with real components, real devices and a kubelet that is as strict as the real one.
//! Rules that comments name by number are in `docs/rules.md`, with the tests that show them.

mod architecture;
mod bad_input;
mod cdi;
mod cluster_crds;
mod cluster_deployed;
mod cluster_kubelet;
mod command_line;
mod configuration_level;
mod discover;
mod edits;
mod handler_command;
mod health;
mod kubernetes_claims;
mod kubernetes_configurations;
mod kubernetes_instances;
mod kubernetes_outages;
mod lists;
mod local_devices;
mod lost_api;
mod lost_state;
mod misbehaving_handlers;
mod names;
mod onvif;
mod onvif_faults;
mod onvif_peers;
mod opcua;
mod opcua_peers;
mod plugin;
mod properties;
mod publishing;
mod quarantine;
mod reclaim;
mod reload;
mod remote_faults;
mod remote_registration;
mod remote_sources;
mod remote_stacks;
mod restarts;
mod storm;
mod udev_rules;
mod uevents;
mod wakeups;

use akri_tests as support;
