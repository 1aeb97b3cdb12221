//! Flags and credentials for registries of components.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use akri_model::image::{check_registry, is_loopback};
use akri_node::{if_found, regular_file};
use akri_oci::{Credentials, Progress, Settings};
use anyhow::{Context as _, anyhow};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

/// Bytes of a file of certificates or credentials.
const MAX_FILE: u64 = 16 << 20;

/// The settings of connections to registries.
#[derive(Debug, Clone, Args)]
pub struct RegistryArgs {
    /// Reach this registry of this machine without TLS, such as localhost:5000. May be given more than once.
    #[arg(long, value_name = "HOST:PORT", env = "AKRI_INSECURE_REGISTRIES", value_delimiter = ',',
        value_parser = insecure)]
    pub insecure_registry: Vec<String>,
    /// PEM file with certificates of authorities for registries, beside those of the system.
    #[arg(long, value_name = "FILE", env = "AKRI_REGISTRY_CA")]
    pub registry_ca: Option<PathBuf>,
}

impl RegistryArgs {
    /// Returns the settings.
    ///
    /// # Errors
    /// If the certificates can't be read.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let authorities = self.registry_ca.as_ref().map(|file| {
            regular_file::read(file, MAX_FILE)
                .with_context(|| format!("--registry-ca: cannot read '{}'", file.display()))
        });
        let settings = Settings {
            insecure: self.insecure_registry.clone(),
            authorities: authorities.transpose()?,
            ..Settings::default()
        };
        if settings.authorities.is_some() {
            akri_oci::Client::new(&settings).map_err(|error| anyhow!("--registry-ca: {error}"))?;
        }
        Ok(settings)
    }
}

fn insecure(text: &str) -> Result<String, String> {
    check_registry(text).map_err(|error| error.to_string())?;
    if is_loopback(text) {
        return Ok(text.to_owned());
    }
    Err("only a registry of this machine (localhost, 127.0.0.0/8, [::1]) may be reached without TLS; for another one, give \
         the certificate of its authority with --registry-ca"
        .to_owned())
}

/// Returns the user's credentials, as `podman login` and `docker login` keep them. Credential helpers are not asked.
///
/// # Errors
/// If a file of credentials can't be read.
pub fn user_credentials() -> anyhow::Result<Credentials> {
    let mut credentials = Credentials::default();
    for file in credential_files(|name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)) {
        let found = if_found(regular_file::read(&file, MAX_FILE))
            .map_err(|e| anyhow!("cannot read '{}': {e}", file.display()))?;
        let Some(json) = found else { continue };
        credentials.extend(Credentials::parse(&json).map_err(|error| anyhow!("'{}' {error}", file.display()))?);
    }
    Ok(credentials)
}

/// Returns the files that may hold credentials, the first one first, as containers-auth.json(5) says.
fn credential_files(set: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(file) = set("REGISTRY_AUTH_FILE") {
        return vec![file];
    }
    let home = |directory: &str| Some(set("HOME")?.join(directory));
    let podman = [set("XDG_RUNTIME_DIR"), set("XDG_CONFIG_HOME").or_else(|| home(".config"))];
    let docker = set("DOCKER_CONFIG").or_else(|| home(".docker"));
    let podman = podman.into_iter().flatten().map(|directory| directory.join("containers/auth.json"));
    podman.chain(docker.map(|directory| directory.join("config.json"))).collect()
}

/// Shows the progress of a transfer on a terminal while it lasts.
pub async fn shown<T>(what: &'static str, progress: &Arc<Progress>, transfer: impl Future<Output = T>) -> T {
    let bar = ProgressBar::new(0).with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}") {
        bar.set_style(style);
    }
    tokio::pin!(transfer);
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let result = loop {
        tokio::select! {
            result = &mut transfer => break result,
            _ = tick.tick() => {}
        }
        if let Some((done, total)) = progress.get() {
            bar.set_length(total);
            bar.set_position(done.min(total));
        }
    };
    bar.finish_and_clear();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_where_logins_put_them() {
        let files = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(of, _)| *of == name).map(|(_, value)| PathBuf::from(value));
            credential_files(value).iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(files(&[]), "");
        assert_eq!(files(&[("HOME", "/h")]), "/h/.config/containers/auth.json /h/.docker/config.json");
        assert_eq!(
            files(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/1"), ("XDG_CONFIG_HOME", "/c"), ("DOCKER_CONFIG", "/d")]),
            "/run/1/containers/auth.json /c/containers/auth.json /d/config.json"
        );
        assert_eq!(files(&[("HOME", "/h"), ("REGISTRY_AUTH_FILE", "/a.json")]), "/a.json");
    }

    #[test]
    fn registries_elsewhere_need_tls() {
        assert_eq!(insecure("localhost:5000").as_deref(), Ok("localhost:5000"));
        for text in ["registry.example:5000", "10.0.0.1:5000", "http://localhost:5000", "localhost:5000/a", ""] {
            assert!(insecure(text).is_err(), "{text}");
        }
    }
}
