//! `akri:discovery/multicast`: datagrams to and from the granted groups.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use akri_model::text::clean;
use akri_node::multicast::{self, Conversation};
use wasmtime::component::Resource;

use crate::bindings::multicast::{Datagram, Host, HostConversation};
use crate::bindings::types::AccessError;
use crate::capabilities::access_error;
use crate::round::Round;

/// Conversations a guest may hold at once.
const CONVERSATIONS: usize = 4;
/// Datagrams a round sends to groups.
pub(crate) const SENDS: u32 = 256;

impl From<multicast::Datagram> for Datagram {
    fn from(datagram: multicast::Datagram) -> Self {
        Self {
            address: datagram.from.ip().to_string(),
            port: datagram.from.port(),
            interface: datagram.interface.to_string(),
            payload: datagram.payload,
        }
    }
}

impl Host for Round {
    fn open(&mut self, group: String, port: u16) -> wasmtime::Result<Result<Resource<Conversation>, AccessError>> {
        match self.converse(&group, port) {
            Ok(conversation) => Ok(Ok(self.table.push(conversation)?)),
            Err(error) => Ok(Err(error)),
        }
    }
}

impl HostConversation for Round {
    async fn send(
        &mut self,
        conversation: Resource<Conversation>,
        payload: Vec<u8>,
    ) -> wasmtime::Result<Result<(), AccessError>> {
        // All conversations of a round together, so that one that is opened anew gives no more.
        let Some(left) = self.sends_left.checked_sub(1) else {
            return Ok(Err(AccessError::Limit(format!(
                "akri:discovery/multicast: more than {SENDS} datagrams are sent"
            ))));
        };
        self.sends_left = left;
        self.call.rates.datagram().await;
        let sent = self.table.get(&conversation)?.send(&payload).await;
        Ok(sent.map_err(|stop| access_error("multicast", stop)))
    }

    async fn receive(
        &mut self,
        conversation: Resource<Conversation>,
        timeout: u64,
        max: u32,
    ) -> wasmtime::Result<Result<Vec<Datagram>, AccessError>> {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        let wait = Duration::from_nanos(timeout).min(self.remaining_wait());
        let datagrams = self.table.get(&conversation)?.receive(max, wait).await;
        Ok(Ok(datagrams.into_iter().map(Datagram::from).collect()))
    }

    fn dropped(&mut self, conversation: Resource<Conversation>) -> wasmtime::Result<u64> {
        Ok(self.table.get(&conversation)?.dropped())
    }

    fn drop(&mut self, conversation: Resource<Conversation>) -> wasmtime::Result<()> {
        self.table.delete(conversation)?;
        Ok(())
    }
}

impl Round {
    fn converse(&mut self, group: &str, port: u16) -> Result<Conversation, AccessError> {
        let address = group.parse::<IpAddr>().map_err(|_| self.ungranted(group, port))?;
        let address = SocketAddr::new(address, port);
        let interfaces = self.call.grants.interfaces(address);
        if interfaces.is_empty() {
            let group = clean(group, 64);
            let what = format_args!("the multicast group {group}, port {port}");
            let entry = format!("{{group: '{group}', port: {port}}}");
            self.log.not_covered("multicast", &self.call.grants.multicast, &what, &entry);
            return Err(self.ungranted(&group, port));
        }
        if self.count::<Conversation>() >= CONVERSATIONS {
            let over = format!("akri:discovery/multicast: more than {CONVERSATIONS} conversations at once");
            return Err(AccessError::Limit(over));
        }
        let senders = &self.component_context.own_senders;
        let opened = Conversation::open(address, &interfaces, senders);
        opened.map_err(|stop| access_error("multicast", stop))
    }

    fn ungranted(&self, group: &str, port: u16) -> AccessError {
        let (group, field) = (clean(group, 64), self.call.grants.field("multicast"));
        AccessError::NotGranted(format!(
            "the group {group}, port {port}; add {{group: '{group}', port: {port}}} to {field}"
        ))
    }
}
