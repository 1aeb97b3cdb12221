//! The admission webhook: the API server sends it Configurations and DiscoveryHandlers before it stores them.
//!
//! ```text
//! API server ── AdmissionReview ──► server ─► review ─► configuration ─► ReviewOutcome
//!                                                          ├── akri-api's validation, which the agent shares
//!                                                          ├── components: the handler's own `validate`
//!                                                          ├── broker: dry runs of the resulting Pod, Job and Services
//!                                                          └── access: may the user read the Secrets that are referenced?
//! certificate: what it serves with ── registration: what the API server trusts
//! ```
//! Everything that a request can choose is bounded: its size, its time, how many there are. A check that cannot be made is a
//! warning, with one exception: a reference to a Secret is refused unless the API server confirms that the user may read it.

mod access;
mod bodies;
mod broker;
mod certificate;
mod components;
mod configuration;
mod metrics;
mod registration;
pub mod review;
pub mod review_outcome;
mod run;
mod server;
#[cfg(test)]
mod testing;

pub use certificate::CertificateSource;
pub use metrics::metric_docs;
pub use run::{WebhookError, WebhookSettings, run};
