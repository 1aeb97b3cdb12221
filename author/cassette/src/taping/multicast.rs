//! `akri:discovery/multicast` with a tape.

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

/// A conversation of a cassette, which the guest holds in the place of a real one.
struct PlayedConversation;

pub(super) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    let mut multicast = linker.instance("akri:discovery/multicast@0.1.0")?;
    multicast.func_wrap("open", |mut store, (group, port): (String, u16)| {
        Ok((TapedRound(store.data_mut()).open(group, port)?,))
    })?;
    multicast.func_wrap_async("[method]conversation.send", |mut store, (handle, payload): (Handle, Vec<u8>)| {
        Box::new(async move { Ok((TapedRound(store.data_mut()).send(handle, payload).await?,)) })
    })?;
    multicast.func_wrap_async(
        "[method]conversation.receive",
        |mut store, (handle, timeout, max): (Handle, u64, u32)| {
            Box::new(async move { Ok((TapedRound(store.data_mut()).receive(handle, timeout, max).await?,)) })
        },
    )?;
    multicast.func_wrap("[method]conversation.dropped", |mut store, (handle,): (Handle,)| {
        let round = TapedRound(store.data_mut());
        Ok((if round.player().is_some() { 0 } else { round.0.dropped(handle)? },))
    })?;
    multicast.resource("conversation", ResourceType::host::<Conversation>(), |mut store, handle| {
        let round = TapedRound(store.data_mut());
        if round.player().is_some() {
            round.0.table().delete(Resource::<PlayedConversation>::new_own(handle))?;
            return Ok(());
        }
        HostConversation::drop(round.0, Resource::new_own(handle))
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
            self.handles()?.conversations.insert(handle, number);
            return Ok(Ok(Resource::new_own(handle)));
        }
        let opened = self.0.open(group.clone(), port)?;
        let Some(recorder) = self.recorder() else { return Ok(opened) };
        let conversation = recorder.number();
        if let Ok(handle) = &opened {
            self.handles()?.conversations.insert(handle.rep(), conversation);
        }
        let error = opened.as_ref().err().map(Refused::from);
        recorder.push(Recorded::MulticastOpen { conversation, group, port, error });
        Ok(opened)
    }

    /// Returns the number of a conversation; none has 0.
    fn conversation(&mut self, handle: &Handle) -> wasmtime::Result<u32> {
        Ok(self.handles()?.conversations.get(&handle.rep()).copied().unwrap_or_default())
    }

    async fn send(&mut self, handle: Handle, payload: Vec<u8>) -> Answer<()> {
        let conversation = self.conversation(&handle)?;
        if let Some(player) = self.player() {
            return Ok(player.send_multicast(conversation, &payload)?.map_or(Ok(()), |error| Err(error.into())));
        }
        let recorder = self.recorder();
        let sent = HostConversation::send(self.0, handle, payload.clone()).await?;
        if let Some(recorder) = recorder {
            let error = sent.as_ref().err().map(Refused::from);
            recorder.push(Recorded::MulticastSend { conversation, payload: Payload(payload), error });
        }
        Ok(sent)
    }

    async fn receive(&mut self, handle: Handle, timeout: u64, max: u32) -> Answer<Vec<Datagram>> {
        let conversation = self.conversation(&handle)?;
        if let Some(player) = self.player() {
            let wait = Duration::from_nanos(timeout).min(self.0.remaining_wait());
            let datagrams =
                player.receive_multicast(conversation, usize::try_from(max).unwrap_or(usize::MAX), wait).await;
            return Ok(Ok(datagrams.into_iter().map(Datagram::from).collect()));
        }
        let recorder = self.recorder();
        let received = HostConversation::receive(self.0, handle, timeout, max).await?;
        if let (Some(recorder), Ok(datagrams @ [_, ..])) = (recorder, received.as_deref()) {
            let datagrams = datagrams.iter().map(recorded).collect::<wasmtime::Result<_>>()?;
            recorder.push(Recorded::MulticastReceive { conversation, datagrams });
        }
        Ok(received)
    }
}
