//! `akri controller`.

use std::process::ExitCode;

use crate::agent::{client, stop_signal};

/// Runs the controller until SIGTERM or SIGINT.
pub(crate) async fn run() -> anyhow::Result<ExitCode> {
    akri_controller::run(client().await?, stop_signal()?).await;
    Ok(ExitCode::SUCCESS)
}
