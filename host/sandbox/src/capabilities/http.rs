//! `wasi:http`: what a store keeps for it, and the way out. Where requests may go is in [`crate::network::http`].

use wasmtime::component::{Linker, Resource};
use wasmtime_wasi_http::p2::HttpResult;
use wasmtime_wasi_http::p2::bindings::http::outgoing_handler::Host;
use wasmtime_wasi_http::p2::bindings::http::types::{self, ErrorCode};
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::{RequestOptions, WasiHttp, WasiHttpCtxView, WasiHttpView};

use crate::round::Round;

type Response = Resource<HostFutureIncomingResponse>;

/// Links the types and the way out; nothing comes in.
pub(super) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    types::add_to_linker::<_, WasiHttp>(linker, &types::LinkOptions::default(), Round::http)?;
    let mut outgoing = linker.instance("wasi:http/outgoing-handler@0.2.0")?;
    outgoing.func_wrap("handle", |mut store, (request, options)| {
        let sent = store.data_mut().send(request, options);
        let told: wasmtime::Result<Result<Response, ErrorCode>> =
            sent.map(Ok).or_else(|error| error.downcast().map(Err));
        Ok((told?,))
    })
}

impl Round {
    /// A request without a path is for the root. Without one it would be an error, and each time a warning in the agent's
    /// log.
    fn send(
        &mut self,
        request: Resource<HostOutgoingRequest>,
        options: Option<Resource<RequestOptions>>,
    ) -> HttpResult<Response> {
        self.table.get_mut(&request)?.path_with_query.get_or_insert_with(|| "/".to_owned());
        self.http().handle(request, options)
    }
}

impl WasiHttpView for Round {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.http, table: &mut self.table, ctx: &mut self.http_context }
    }
}
