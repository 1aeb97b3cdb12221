//! `akri webhook`: flags to settings.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use akri_api::duration::parse_duration;
use akri_cli::output::with_causes;
use akri_cli::program::{sandbox_program, stop_signal};
use akri_model::names::Key;
use akri_sandbox::HostConfig;
use akri_webhook::{CertificateSource, WebhookSettings};
use anyhow::{Context as _, bail};
use clap::Args;

use crate::api_server::client;
use crate::cli::{listen, namespaced_name};

/// Bytes of memory of the sandbox process: components are asked about details, and return nothing large.
const SANDBOX_MEMORY: u64 = 256 << 20;

/// The directory of a node's devices, for components that get none.
const NOWHERE: &str = "/nonexistent";

/// Flags of `akri webhook`.
#[derive(Debug, Args)]
pub(crate) struct WebhookArgs {
    /// Serve reviews (/validate), /healthz, /readyz and /metrics over HTTPS at this address.
    #[arg(long, value_name = "ADDRESS", env = "AKRI_WEBHOOK_LISTEN", default_value = ":8443", value_parser = listen)]
    listen: SocketAddr,
    /// Serve with the certificate in this file (PEM), which somebody else renews, such as cert-manager. It is read again when
    /// it changes.
    #[arg(long, value_name = "FILE", env = "AKRI_TLS_CRT_FILE", requires = "tls_key_file")]
    tls_crt_file: Option<PathBuf>,
    /// The private key of --tls-crt-file (PEM).
    #[arg(long, value_name = "FILE", env = "AKRI_TLS_KEY_FILE", requires = "tls_crt_file")]
    tls_key_file: Option<PathBuf>,
    /// Make the certificate, renew it, and keep it in this Secret of the Service's namespace. The Secret has to exist.
    #[arg(long, value_name = "NAME", env = "AKRI_TLS_SECRET", conflicts_with = "tls_crt_file", requires = "service")]
    tls_secret: Option<String>,
    /// The Service that leads here: the certificate in --tls-secret is made for its names.
    #[arg(long, value_name = "NAMESPACE/NAME", env = "AKRI_SERVICE", value_parser = namespaced_name)]
    service: Option<Key>,
    /// The lifetime of a certificate in --tls-secret; it is renewed when a third of that is left.
    #[arg(long, value_name = "DURATION", env = "AKRI_CERTIFICATE_LIFETIME", default_value = "2160h", value_parser = lifetime)]
    certificate_lifetime: Duration,
    /// Write the certificates of --tls-secret into the ValidatingWebhookConfiguration of this name, which then trusts them.
    #[arg(long, value_name = "NAME", env = "AKRI_WEBHOOK_CONFIGURATION")]
    registration: Option<String>,
    /// Directory of component handlers (*.wasm), which are asked about the details of Configurations.
    #[arg(long, value_name = "DIR", env = "AKRI_COMPONENTS", default_value = "/usr/lib/akri/components")]
    components: PathBuf,
    /// Keep compiled components in this directory.
    #[arg(long, value_name = "DIR", env = "AKRI_CACHE_DIR")]
    cache_dir: Option<PathBuf>,
    /// Directory of machine code that ships with the program (`akri handler compile --precompiled`). It is used only if nobody
    /// but root and this user can write to it; components that are not in it are compiled.
    #[arg(long, value_name = "DIR", env = "AKRI_PRECOMPILED", requires = "cache_dir")]
    precompiled: Option<PathBuf>,
    /// Do not try brokers and Services by dry runs. Then the webhook's account needs no right to create them.
    #[arg(long, env = "AKRI_NO_DRY_RUN")]
    no_dry_run: bool,
}

/// Runs the webhook until SIGTERM or SIGINT.
pub(crate) async fn run(args: WebhookArgs, logging: Vec<String>) -> anyhow::Result<ExitCode> {
    let settings = settings(args, logging)?;
    let client = client().await.context("the webhook needs an API server")?;
    akri_webhook::run(client, settings, stop_signal()?).await.map_err(with_causes)?;
    Ok(ExitCode::SUCCESS)
}

fn settings(args: WebhookArgs, logging: Vec<String>) -> anyhow::Result<WebhookSettings> {
    let certificate = match (args.tls_crt_file, args.tls_key_file, args.tls_secret, args.service) {
        (Some(certificate), Some(key), ..) => CertificateSource::Files { certificate, key },
        (_, _, Some(name), Some(service)) => {
            CertificateSource::Secret { name, service, lifetime: args.certificate_lifetime }
        }
        _ => bail!(
            "no certificate: give --tls-secret and --service to have one made, or --tls-crt-file and --tls-key-file"
        ),
    };
    Ok(WebhookSettings {
        listen: args.listen,
        certificate,
        registration: args.registration,
        components: args.components,
        host: HostConfig {
            program: sandbox_program(SANDBOX_MEMORY, logging),
            cache_dir: args.cache_dir.map(std::path::absolute).transpose().context("--cache-dir")?,
            precompiled: args.precompiled.map(std::path::absolute).transpose().context("--precompiled")?,
            sysfs: NOWHERE.into(),
            udev_data: NOWHERE.into(),
        },
        dry_run: !args.no_dry_run,
    })
}

/// Shorter than a minute, and the API server would hardly learn of one certificate before the next is due.
fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = parse_duration(text)?;
    let range = Duration::from_secs(60)..=Duration::from_hours(24 * 3650);
    if range.contains(&lifetime) { Ok(lifetime) } else { Err("this is not between 1m and ten years".to_owned()) }
}
