//! `akri discover`: discovery on this machine, without a cluster. Rounds are run by the agent's code.

mod explain;
pub(crate) mod load;
mod source;
mod watch;

use std::process::ExitCode;

use akri_model::configuration::Configuration;
use akri_model::device::Device;
use akri_model::names::{HashInput, HashLength, instance_name, resource_name};
use serde::Serialize;

use crate::cli::{DiscoverArgs, Output};
use crate::get::distinctive_property;
use crate::output::{plain, print, table};
use load::Loaded;
use source::RoundSource;
pub(crate) use watch::changes;

/// A discovered device with its resource name.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DiscoveredDevice {
    configuration: String,
    /// Absent if the Configuration's name is too long.
    resource: Option<String>,
    shared: bool,
    device: Device,
}

/// Runs one round for each Configuration of the file, or the mode selected by flags.
pub(crate) async fn run(args: DiscoverArgs) -> anyhow::Result<ExitCode> {
    let loaded = load::load(&args).await?;
    match &args.explain {
        Some(device) => explain::run(&loaded, device, args.output).await,
        None if args.watch => watch::run(&loaded, args.output).await,
        None => once(&loaded, args.output).await,
    }
}

/// Runs one round for each Configuration. Fails if one of them failed, or came to nothing but warnings.
async fn once(loaded: &Loaded, output: Output) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    let mut failed = false;
    for source in &mut RoundSource::start_all(loaded) {
        match source.next().await {
            Ok(round) => {
                failed |= round.set.has_only_warnings();
                found.extend(round.devices(source.configuration(), &loaded.node));
            }
            Err(failure) => {
                eprintln!("error: {failure}");
                failed = true;
            }
        }
    }
    if !(failed && found.is_empty() && output == Output::Table) {
        print(&found, output, || found_table(&found))?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl DiscoveredDevice {
    pub(crate) fn new(device: Device, configuration: &Configuration, shared: bool, node: &str) -> Self {
        let hash = HashInput::new(&device.id, shared, node).hash(HashLength::Short);
        Self {
            configuration: configuration.key.to_string(),
            resource: instance_name(&configuration.key.name, &hash).map(|name| resource_name(&name)),
            shared,
            device,
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Formats the device as a line that begins with a sign.
    pub(crate) fn line(&self, sign: char) -> String {
        let device = &self.device;
        format!("{sign} {} {} {}", self.resource(), distinctive_property(&device.properties), plain(&device.id))
    }

    fn resource(&self) -> &str {
        self.resource.as_deref().unwrap_or("(name too long)")
    }
}

pub(crate) fn found_table(found: &[DiscoveredDevice]) -> String {
    if found.is_empty() {
        return "no devices\n".to_owned();
    }
    let row = |found: &DiscoveredDevice| {
        let device = &found.device;
        vec![
            found.resource().to_owned(),
            found.configuration.clone(),
            distinctive_property(&device.properties),
            plain(&device.id),
        ]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    table(&["RESOURCE", "CONFIGURATION", "DEVICE", "ID"], &rows)
}
