//! `akri:discovery/multicast` with a tape.

use std::convert::identity;
use std::net::SocketAddr;
use std::time::Duration;

use akri_engine::linking::multicast::{Datagram, Host, HostConversation};
use akri_engine::linking::{AccessError, Round};
use akri_node::multicast::Conversation;
use wasmtime::component::{Linker, Resource, ResourceType};

use super::TapedRound;
use crate::call::{ReceivedDatagram, Recorded, Refused};
use crate::payload::Payload;

type Answer<T> = wasmtime::Result<Result<T, AccessError>>;
type Handle = Resource<Conversation>;

/// As the engine links it.
const MULTICAST: &str = "akri:discovery/multicast@0.1.0";

/// A conversation of a cassette, which the guest holds in the place of a real one.
struct PlayedConversation;

pub(super) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    replace! {
        linker, MULTICAST, identity,
        "open" => open(group, port)
        "[method]conversation.dropped" => dropped(handle)
    }
    replace_async!(linker, MULTICAST, identity, "[method]conversation.send" => send(handle, payload));
    replace_async!(linker, MULTICAST, identity, "[method]conversation.receive" => receive(handle, timeout, max));
    let conversation = ResourceType::host::<Conversation>();
    linker.instance(MULTICAST)?.resource("conversation", conversation, |mut store, handle| {
        TapedRound(store.data_mut()).drop_conversation(handle)
    })
}

impl From<ReceivedDatagram> for Datagram {
    fn from(datagram: ReceivedDatagram) -> Self {
        let (address, port) = (datagram.from.ip().to_string(), datagram.from.port());
        Self { address, port, interface: datagram.interface, payload: datagram.payload.0 }
    }
}

fn recorded(datagram: &Datagram) -> wasmtime::Result<ReceivedDatagram> {
    let from = SocketAddr::new(datagram.address.parse()?, datagram.port);
    let interface = datagram.interface.clone();
    Ok(ReceivedDatagram { from, interface, payload: Payload::from(&*datagram.payload) })
}

impl TapedRound<'_> {
    fn open(&mut self, group: String, port: u16) -> Answer<Handle> {
        if let Some(player) = self.player() {
            let number = match player.open_multicast(&group, port)? {
                Ok(number) => number,
                Err(error) => return Ok(Err(error.into())),
            };
            let handle = self.0.table().push(PlayedConversation)?.rep();
            self.handles()?.numbers.insert(handle, number);
            return Ok(Ok(Resource::new_own(handle)));
        }
        let opened = self.0.open(group.clone(), port)?;
        let recorder = self.recorder();
        let conversation = recorder.number();
        if let Ok(handle) = &opened {
            self.handles()?.numbers.insert(handle.rep(), conversation);
        }
        let error = opened.as_ref().err().map(Refused::from);
        recorder.push(Recorded::MulticastOpen { conversation, group, port, error });
        Ok(opened)
    }

    fn dropped(&mut self, handle: Handle) -> wasmtime::Result<u64> {
        if self.player().is_some() { Ok(0) } else { self.0.dropped(handle) }
    }

    fn drop_conversation(&mut self, handle: u32) -> wasmtime::Result<()> {
        if self.player().is_some() {
            self.0.table().delete(Resource::<PlayedConversation>::new_own(handle))?;
            return Ok(());
        }
        HostConversation::drop(self.0, Resource::new_own(handle))
    }

    async fn send(&mut self, handle: Handle, payload: Vec<u8>) -> Answer<()> {
        let conversation = self.number(handle.rep())?;
        if let Some(player) = self.player() {
            return Ok(player.send_multicast(conversation, &payload)?.map_or(Ok(()), |error| Err(error.into())));
        }
        let sent = HostConversation::send(self.0, handle, payload.clone()).await?;
        let error = sent.as_ref().err().map(Refused::from);
        self.recorder().push(Recorded::MulticastSend { conversation, payload: Payload(payload), error });
        Ok(sent)
    }

    async fn receive(&mut self, handle: Handle, timeout: u64, max: u32) -> Answer<Vec<Datagram>> {
        let conversation = self.number(handle.rep())?;
        if let Some(player) = self.player() {
            let wait = Duration::from_nanos(timeout).min(self.0.remaining_wait());
            let datagrams =
                player.receive_multicast(conversation, usize::try_from(max).unwrap_or(usize::MAX), wait).await;
            return Ok(Ok(datagrams.into_iter().map(Datagram::from).collect()));
        }
        let received = HostConversation::receive(self.0, handle, timeout, max).await?;
        if let Ok(datagrams @ [_, ..]) = received.as_deref() {
            let datagrams = datagrams.iter().map(recorded).collect::<wasmtime::Result<_>>()?;
            self.recorder().push(Recorded::MulticastReceive { conversation, datagrams });
        }
        Ok(received)
    }
}
