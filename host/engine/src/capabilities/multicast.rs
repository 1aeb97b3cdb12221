//! `akri:discovery/multicast`: datagrams to and from the granted groups.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use akri_model::text::clean;
use akri_node::multicast::{self, Conversation, Stop};
use wasmtime::component::Resource;

use crate::bindings::multicast::{Datagram, Host, HostConversation};
use crate::bindings::types::AccessError;
use crate::round::Round;
use akri_cassette::Payload;
use akri_cassette::call::{ReceivedDatagram, Recorded, Refused};

/// Conversations a guest may hold at once.
const CONVERSATIONS: usize = 4;
/// Datagrams a round sends to groups.
pub(crate) const SENDS: u32 = 256;

/// A conversation, with its number on a tape.
#[derive(Debug)]
#[expect(unreachable_pub, reason = "the bindings re-export it")]
pub enum Talk {
    /// With a group.
    Live(Conversation, u32),
    /// Of a cassette.
    Played(u32),
}

impl From<ReceivedDatagram> for Datagram {
    fn from(datagram: ReceivedDatagram) -> Self {
        let (address, port) = (datagram.from.ip().to_string(), datagram.from.port());
        Self { address, port, interface: datagram.interface, payload: datagram.payload.0 }
    }
}

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

fn recorded(datagram: &multicast::Datagram) -> ReceivedDatagram {
    let interface = datagram.interface.to_string();
    ReceivedDatagram { from: datagram.from, interface, payload: Payload::from(&*datagram.payload) }
}

impl From<Stop> for AccessError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Limit(what) => Self::Limit(format!("akri:discovery/multicast: {what}")),
            Stop::Unavailable(what) => Self::Unavailable(format!("akri:discovery/multicast: {what}")),
        }
    }
}

impl Host for Round {
    fn open(&mut self, group: String, port: u16) -> wasmtime::Result<Result<Resource<Talk>, AccessError>> {
        let talk = match self.call.tape.player() {
            Some(player) => player.open_multicast(&group, port)?.map(Talk::Played).map_err(AccessError::from),
            None => self.talk(&group, port),
        };
        match talk {
            Ok(talk) => Ok(Ok(self.table.push(talk)?)),
            Err(error) => Ok(Err(error)),
        }
    }
}

impl HostConversation for Round {
    async fn send(
        &mut self,
        conversation: Resource<Talk>,
        payload: Vec<u8>,
    ) -> wasmtime::Result<Result<(), AccessError>> {
        let (live, number) = match self.table.get(&conversation)? {
            Talk::Live(_, number) => (true, *number),
            Talk::Played(number) => (false, *number),
        };
        if let (false, Some(player)) = (live, self.call.tape.player()) {
            return Ok(player.send_multicast(number, &payload)?.map_or(Ok(()), |error| Err(error.into())));
        }
        let sent = self.send_live(&conversation, &payload).await?;
        if let Some(recorder) = self.call.tape.recorder() {
            let error = sent.as_ref().err().map(Refused::from);
            let (at, payload) = (recorder.at(), Payload(payload));
            recorder.push(Recorded::MulticastSend { at, conversation: number, payload, error });
        }
        Ok(sent)
    }

    async fn receive(
        &mut self,
        conversation: Resource<Talk>,
        timeout: u64,
        max: u32,
    ) -> wasmtime::Result<Result<Vec<Datagram>, AccessError>> {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        let wait = Duration::from_nanos(timeout).min(self.remaining_wait());
        let (datagrams, number) = match self.table.get(&conversation)? {
            Talk::Live(conversation, number) => (conversation.receive(max, wait).await, *number),
            Talk::Played(number) => {
                let Some(player) = self.call.tape.player() else { return Ok(Ok(Vec::new())) };
                return Ok(Ok(player
                    .receive_multicast(*number, max, wait)
                    .await
                    .into_iter()
                    .map(Datagram::from)
                    .collect()));
            }
        };
        if let Some(recorder) = self.call.tape.recorder().filter(|_| !datagrams.is_empty()) {
            let datagrams = datagrams.iter().map(recorded).collect();
            recorder.push(Recorded::MulticastReceive { at: recorder.at(), conversation: number, datagrams });
        }
        Ok(Ok(datagrams.into_iter().map(Datagram::from).collect()))
    }

    fn dropped(&mut self, conversation: Resource<Talk>) -> wasmtime::Result<u64> {
        Ok(match self.table.get(&conversation)? {
            Talk::Live(conversation, _) => conversation.dropped(),
            Talk::Played(_) => 0,
        })
    }

    fn drop(&mut self, conversation: Resource<Talk>) -> wasmtime::Result<()> {
        self.table.delete(conversation)?;
        Ok(())
    }
}

impl Round {
    /// Begins a conversation, and writes that down if there is a tape.
    fn talk(&mut self, group: &str, port: u16) -> Result<Talk, AccessError> {
        let conversation = self.converse(group, port);
        let Some(recorder) = self.call.tape.recorder() else { return Ok(Talk::Live(conversation?, 0)) };
        let number = recorder.number();
        recorder.push(Recorded::MulticastOpen {
            at: recorder.at(),
            conversation: number,
            group: group.to_owned(),
            port,
            error: conversation.as_ref().err().map(Refused::from),
        });
        Ok(Talk::Live(conversation?, number))
    }

    async fn send_live(
        &mut self,
        conversation: &Resource<Talk>,
        payload: &[u8],
    ) -> wasmtime::Result<Result<(), AccessError>> {
        // All conversations of a round together, so that one that is opened anew gives no more.
        let Some(left) = self.sends_left.checked_sub(1) else {
            return Ok(Err(AccessError::Limit(format!(
                "akri:discovery/multicast: more than {SENDS} datagrams are sent"
            ))));
        };
        self.sends_left = left;
        self.call.rates.datagram().await;
        let sent = match self.table.get(conversation)? {
            Talk::Live(conversation, _) => conversation.send(payload).await,
            Talk::Played(_) => Ok(()),
        };
        Ok(sent.map_err(AccessError::from))
    }

    fn converse(&mut self, group: &str, port: u16) -> Result<Conversation, AccessError> {
        let address = group.parse::<IpAddr>().map_err(|_| not_granted(group, port))?;
        let granted = self.call.grants.multicast.iter().filter(|group| (group.address, group.port) == (address, port));
        let interfaces: Vec<String> = granted.flat_map(|group| group.interfaces.clone()).collect();
        if interfaces.is_empty() {
            self.refuse_group(group, port);
            return Err(not_granted(group, port));
        }
        if self.count::<Talk>() >= CONVERSATIONS {
            let over = format!("akri:discovery/multicast: more than {CONVERSATIONS} conversations at once");
            return Err(AccessError::Limit(over));
        }
        Ok(Conversation::open(SocketAddr::new(address, port), &interfaces, &self.component_context.own_senders)?)
    }
}

impl Round {
    fn refuse_group(&self, group: &str, port: u16) {
        let what = format!("the multicast group {}, port {port}", clean(group, 64));
        if self.call.grants.multicast.is_empty() {
            self.log.not_granted("multicast", &what);
        } else {
            self.log.refused(&format_args!("{what} is not covered by grants.multicast"));
        }
    }
}

fn not_granted(group: &str, port: u16) -> AccessError {
    let group = clean(group, 64);
    AccessError::NotGranted(format!(
        "akri:discovery/multicast: the group {group}, port {port}; add it to grants.multicast of the handler's \
         DiscoveryHandler object"
    ))
}
