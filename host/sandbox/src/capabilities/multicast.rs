//! `akri:discovery/multicast`: datagrams to and from a group. No grant exists for it yet, so none can be opened.

use wasmtime::component::Resource;

use crate::bindings::multicast::{Conversation, Datagram, Host, HostConversation};
use crate::bindings::types::AccessError;
use crate::round::Round;

impl Host for Round {
    fn open(&mut self, _group: String, _port: u16) -> wasmtime::Result<Result<Resource<Conversation>, AccessError>> {
        Ok(Err(super::no_grant_exists("multicast")))
    }
}

/// No guest holds a conversation: wasmtime checks every handle, so these are not reached.
impl HostConversation for Round {
    fn send(&mut self, _: Resource<Conversation>, _: Vec<u8>) -> wasmtime::Result<Result<(), AccessError>> {
        Ok(Err(super::no_grant_exists("multicast")))
    }

    fn receive(
        &mut self,
        _: Resource<Conversation>,
        _timeout: u64,
        _max: u32,
    ) -> wasmtime::Result<Result<Vec<Datagram>, AccessError>> {
        Ok(Err(super::no_grant_exists("multicast")))
    }

    fn dropped(&mut self, _: Resource<Conversation>) -> wasmtime::Result<u64> {
        Ok(0)
    }

    fn drop(&mut self, _: Resource<Conversation>) -> wasmtime::Result<()> {
        Ok(())
    }
}
