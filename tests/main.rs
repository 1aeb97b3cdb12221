//! One story per file: the real program with real components, real devices and a kubelet that is as strict as the real one.

mod local_devices;
mod plugin;
mod support;
