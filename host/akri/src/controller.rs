//! `akri controller`.

use std::process::ExitCode;

use akri_cli::args::node_name;
use akri_cli::program::stop_signal;
use akri_controller::Settings;

use crate::api_server::client;
use crate::cli::ControllerArgs;
use crate::get::args::SourceArgs;
use crate::page::beside;

/// Runs the controller until SIGTERM or SIGINT.
pub(crate) async fn run(args: ControllerArgs) -> anyhow::Result<ExitCode> {
    let client = client().await?;
    let settings = Settings {
        namespace: args.namespace,
        lease_namespace: args.lease_namespace.unwrap_or_else(|| client.default_namespace().to_owned()),
        // The host name is that of the pod; two processes of one machine differ by their number.
        identity: format!("{}-{}", node_name(None)?, std::process::id()),
        listen: args.listen,
    };
    let work = akri_controller::run(client, settings, stop_signal()?);
    beside(args.page, SourceArgs { is_cluster: true, ..SourceArgs::default() }, None, work).await??;
    Ok(ExitCode::SUCCESS)
}
