//! Messages to the sandbox process.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use akri_model::datagram::DatagramFilter;
use akri_model::grant::{Grants, Limits};
use akri_model::property::Secret;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::{Bounded, LENGTH, ProtocolError, byte_values, malformed, with_length};

/// A message to the sandbox process. Answers name the `call` they belong to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Load the component in the payload.
    Load {
        /// The call.
        call: u64,
        /// The name it is called by from then on.
        component: u64,
    },
    /// Forget a component.
    Unload {
        /// The component.
        component: u64,
    },
    /// Validate details.
    Validate {
        /// The call.
        call: u64,
        /// The component.
        component: u64,
        /// The arguments.
        arguments: Box<Arguments>,
    },
    /// Run a round.
    Discover {
        /// The call.
        call: u64,
        /// The component.
        component: u64,
        /// The arguments.
        arguments: Box<Arguments>,
    },
    /// End a call, which is answered nevertheless.
    Cancel {
        /// The call.
        call: u64,
    },
    /// Join a multicast group.
    Join {
        /// The name of the listener from then on.
        listener: u64,
        /// The group.
        group: SocketAddr,
        /// Globs for interfaces.
        interfaces: Bounded<String, 4096>,
        /// Filters of which one must match.
        filters: Bounded<DatagramFilter, 64>,
    },
    /// Report the next datagram of a group; asked for anew after each report.
    Listen {
        /// The listener.
        listener: u64,
    },
    /// Leave a multicast group.
    Leave {
        /// The listener.
        listener: u64,
    },
}

/// The arguments of a call of a component.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arguments {
    /// `namespace/name` of the Configuration.
    pub(crate) subject: String,
    /// Its details.
    pub(crate) details: String,
    /// The details as JSON.
    pub(crate) details_json: Option<String>,
    /// Plain properties.
    #[serde(with = "byte_values")]
    pub(crate) properties: BTreeMap<String, Vec<u8>>,
    /// Properties from Secrets; those that are not granted have no value.
    #[serde(with = "byte_values")]
    pub(crate) secrets: BTreeMap<String, Vec<u8>>,
    /// Access.
    pub(crate) grants: Grants,
    /// Limits.
    pub(crate) limits: Limits,
    /// The cache of the handler.
    #[serde(with = "byte_values")]
    pub(crate) cache: Arc<BTreeMap<String, Vec<u8>>>,
    /// The name of the budgets over time that the call shares with others.
    pub(crate) rates: u64,
}

impl fmt::Debug for Arguments {
    /// Leaves out values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arguments").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl Arguments {
    /// Moves secrets out, so that the originals are overwritten.
    pub(crate) fn take_secrets(&mut self) -> BTreeMap<String, Secret> {
        std::mem::take(&mut self.secrets).into_iter().map(|(name, value)| (name, Secret::new(value))).collect()
    }
}

/// Returns the frame of a request, and overwrites the values of secrets in it. A buffer that grew would leave copies.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode_secret(mut request: Request) -> Result<Vec<u8>, ProtocolError> {
    let size = postcard::experimental::serialized_size(&request).unwrap_or_default();
    let mut frame = Vec::with_capacity(LENGTH + size);
    frame.resize(LENGTH, 0);
    let encoded = postcard::to_extend(&request, frame).map_err(malformed);
    if let Request::Validate { arguments, .. } | Request::Discover { arguments, .. } = &mut request {
        arguments.secrets.values_mut().for_each(Zeroize::zeroize);
    }
    with_length(encoded?)
}
