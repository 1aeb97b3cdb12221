//! Components in registries, in the layout of the CNCF's WebAssembly working group: one manifest, one configuration and one
//! layer, which is the component (rule 74); and cosign's signatures of them (rule 75).
//!
//! A registry is not trusted. What it sends is bounded in size, time and redirects, and counts only if it has the digest that
//! was asked for.

mod address;
mod auth;
mod client;
mod credentials;
mod error;
mod http;
mod manifest;
mod signature;

use std::sync::atomic::{AtomicU64, Ordering};

pub use self::client::{Client, Pulled};
pub use self::credentials::Credentials;
pub use self::error::RegistryError;
pub use self::http::Limits;
pub use self::manifest::{Layer, MAX_COMPONENT, check_manifest, digest_of};
pub use self::signature::{Signature, verify};

/// The settings of connections to registries.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Registries (`HOST:PORT`) of this machine that are reached without TLS. Others are ignored.
    pub insecure: Vec<String>,
    /// Certificates in PEM of authorities that are trusted beside those of the system.
    pub authorities: Option<Vec<u8>>,
    /// Bounds on what registries may take.
    pub limits: Limits,
}

/// The progress of a transfer, shared with whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Returns the bytes transferred and all bytes, or nothing if there is no transfer.
    pub fn get(&self) -> Option<(u64, u64)> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| (self.done.load(Ordering::Relaxed), total))
    }

    fn begin(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) {
        self.done.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn end(&self) {
        self.total.store(0, Ordering::Relaxed);
    }
}
