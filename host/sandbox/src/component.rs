//! A loaded component, wherever it runs.

use std::net::SocketAddr;

use akri_engine::{Call, Import, LocalComponent};
use akri_model::datagram::DatagramFilter;
use akri_model::device::DeviceSet;
use akri_model::discovery::{Description, RoundError, Trigger};
use akri_model::grant::{Grants, Isolation};

use crate::listener::Listener;
use crate::worker::WorkerComponent;

/// A loaded handler. Clones share everything.
#[derive(Clone)]
pub struct Component(Backend);

#[derive(Clone)]
enum Backend {
    Local(LocalComponent),
    Remote(WorkerComponent),
}

/// Calls a method of whichever component it is.
macro_rules! of_both {
    ($self:ident, $component:ident => $call:expr) => {
        match &$self.0 {
            Backend::Local($component) => $call,
            Backend::Remote($component) => $call,
        }
    };
}

impl From<LocalComponent> for Component {
    fn from(component: LocalComponent) -> Self {
        Self(Backend::Local(component))
    }
}

impl From<WorkerComponent> for Component {
    fn from(component: WorkerComponent) -> Self {
        Self(Backend::Remote(component))
    }
}

impl Component {
    /// SHA-256 of its bytes, in lower hex.
    pub fn digest(&self) -> &str {
        of_both!(self, component => component.digest())
    }

    /// Its description of itself.
    pub fn description(&self) -> &Description {
        of_both!(self, component => component.description())
    }

    /// Returns whether loading it compiled it, in place of using code from the cache.
    pub fn was_compiled(&self) -> bool {
        of_both!(self, component => component.was_compiled())
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        of_both!(self, component => component.size())
    }

    /// The interface by which it is a handler, with the version it was made for: `akri:discovery/handler@0.1.0`.
    pub fn exported(&self) -> &str {
        of_both!(self, component => component.exported())
    }

    /// The interfaces it imports, such as `akri:discovery/udev@0.1.0` and `wasi:io/poll@0.2.6`, in its own order.
    pub fn imports(&self) -> &[String] {
        of_both!(self, component => component.imports())
    }

    /// Its imports, beside what these grants give.
    pub fn coverage(&self, grants: &Grants) -> Vec<Import> {
        self.imports().iter().map(|name| Import::new(name, grants)).collect()
    }

    /// Returns the isolation it was loaded with.
    pub fn isolation(&self) -> Isolation {
        match &self.0 {
            Backend::Local(_) => Isolation::Shared,
            Backend::Remote(component) => component.isolation(),
        }
    }

    /// Checks details; returns what should start a round of them besides the interval. It is a question about the details
    /// alone: the handler is granted nothing meanwhile.
    ///
    /// # Errors
    /// [`RoundError::InvalidDetails`] with what is wrong, or what kept the handler from answering.
    pub async fn validate(&self, call: Call) -> Result<Vec<Trigger>, RoundError> {
        of_both!(self, component => component.validate(call).await)
    }

    /// Runs one round: every device the handler sees now.
    ///
    /// It waits for its turn, for at most four rounds run at once, two of them of one component; from then on it takes
    /// `limits.round` at most. Dropping the future ends the round.
    ///
    /// # Errors
    /// The reason why there is no answer. None of them means that a device has gone.
    pub async fn discover(&self, call: Call) -> Result<DeviceSet, RoundError> {
        of_both!(self, component => component.discover(call).await)
    }

    /// Receives what is sent to a multicast group, also while no round runs: datagrams that one of the filters lets through
    /// and that no round of the component's process sent, on the interfaces that the globs cover (loopback has to be named).
    /// Has to be called within a tokio runtime.
    ///
    /// It can't fail: where the group can't be joined, it is tried again from time to time.
    pub fn listen(&self, group: SocketAddr, interfaces: &[String], filters: Vec<DatagramFilter>) -> Listener {
        match &self.0 {
            Backend::Local(component) => component.listen(group, interfaces, filters).into(),
            Backend::Remote(component) => component.listen(group, interfaces, filters).into(),
        }
    }

    /// Returns whether a listener is in the process of this component. If not, it is of a component that this one has replaced,
    /// and receives nothing more.
    pub fn owns_listener(&self, listener: &Listener) -> bool {
        match &self.0 {
            Backend::Local(_) => true,
            Backend::Remote(component) => listener.remote().is_some_and(|listener| component.owns_listener(listener)),
        }
    }
}
