//! Akri's objects in the API group `akri.sh/v0`, as Kubernetes and as local manifests have them, their validation, and
//! their conversion to the model. The agent and the webhook share this validation (invariant 6).

pub mod component;
pub mod condition;
pub mod configuration;
mod convert;
pub mod data;
mod discover_on;
pub mod document;
pub mod duration;
pub mod grants;
pub mod handler;
pub mod instance;
pub mod limits;
pub mod manifest;
pub mod suggestion;
mod templates;
pub mod validate;

pub use component::{ComponentRef, ComponentSource};
pub use configuration::{Configuration, ConfigurationSpec, ConfigurationStatus};
pub use convert::{HandlerRules, IDENTITY_ANNOTATION, configuration_to_model, instance_from_model, instance_to_model};
pub use discover_on::{DiscoverOn, discover_on_to_model};
pub use handler::{DiscoveryHandler, DiscoveryHandlerSpec, DiscoveryHandlerStatus, HandlerKind, HandlerState};
pub use instance::{BrokerCounts, Instance, InstanceSpec, InstanceStatus};
