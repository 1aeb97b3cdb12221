//! Flags that several commands have.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Location of the node's devices.
#[derive(Debug, Clone, Args)]
pub struct HostArgs {
    /// The mount point of sysfs.
    #[arg(long, value_name = "DIR", env = "AKRI_SYSFS", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// udev's database.
    #[arg(long, value_name = "DIR", env = "AKRI_UDEV_DATA", default_value = "/run/udev/data")]
    pub udev_data: PathBuf,
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table.
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Returns the given node name, or the host name.
///
/// # Errors
/// If it can't be one.
pub fn node_name(given: Option<String>) -> anyhow::Result<String> {
    let name = given.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().to_lowercase());
    let valid = !name.is_empty() && name.len() <= 253 && !name.contains([':', '/', ' ']);
    anyhow::ensure!(valid, "'{name}' can't be a node name; give one with --node-name");
    Ok(name)
}
