//! `wasi:http`: what a store keeps for it, and the way out. Where requests may go is in [`crate::network::http`].

use wasmtime::component::{Linker, Resource};
use wasmtime_wasi_http::p2::HttpResult;
use wasmtime_wasi_http::p2::bindings::http::outgoing_handler::Host;
use wasmtime_wasi_http::p2::bindings::http::types::{self, ErrorCode, HostOutgoingRequest as _, Method};
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::{RequestOptions, WasiHttp, WasiHttpCtxView, WasiHttpView};

use crate::round::Round;

type Request = Resource<HostOutgoingRequest>;
type Response = Resource<HostFutureIncomingResponse>;
/// Sets a text of a request.
type SetText = fn(&mut WasiHttpCtxView<'_>, Request, Option<String>) -> wasmtime::Result<Result<(), ()>>;

/// Bytes of a method that is none of the usual ones.
const METHOD: usize = 64;
/// Bytes of a server: a name, of 253 at most, and a port.
const AUTHORITY: usize = 300;
/// Bytes of a path with its query; servers take no more.
const PATH: usize = 8 << 10;
/// As wasmtime links the types, of which a few functions are to be replaced; a test holds the version.
const TYPES: &str = "wasi:http/types@0.2.12";

/// Links the types and the way out; nothing comes in.
pub(super) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    types::add_to_linker::<_, WasiHttp>(linker, &types::LinkOptions::default(), Round::http)?;
    linker.allow_shadowing(true);
    let mut types = linker.instance(TYPES)?;
    // By itself each part of a request may have any length, and a guest as many requests as resources.
    types.func_wrap("[method]outgoing-request.set-method", |mut store, (request, method): (Request, Method)| {
        let is_longer = matches!(&method, Method::Other(name) if name.len() > METHOD);
        Ok((if is_longer { Err(()) } else { store.data_mut().http().set_method(request, method)? },))
    })?;
    let texts: [(&str, usize, SetText); 2] = [
        ("set-authority", AUTHORITY, |http, request, name| http.set_authority(request, name)),
        ("set-path-with-query", PATH, |http, request, path| http.set_path_with_query(request, path)),
    ];
    for (function, most, set) in texts {
        let function = format!("[method]outgoing-request.{function}");
        types.func_wrap(&function, move |mut store, (request, text): (Request, Option<String>)| {
            let is_longer = text.as_ref().is_some_and(|text| text.len() > most);
            Ok((if is_longer { Err(()) } else { set(&mut store.data_mut().http(), request, text)? },))
        })?;
    }
    linker.allow_shadowing(false);
    let mut outgoing = linker.instance("wasi:http/outgoing-handler@0.2.0")?;
    outgoing.func_wrap("handle", |mut store, (request, options)| {
        let sent = store.data_mut().send(request, options);
        let response: wasmtime::Result<Result<Response, ErrorCode>> =
            sent.map(Ok).or_else(|error| error.downcast().map(Err));
        Ok((response?,))
    })
}

impl Round {
    /// A request without a path is for the root: it would be an error, and each time a warning in the agent's log.
    fn send(&mut self, request: Request, options: Option<Resource<RequestOptions>>) -> HttpResult<Response> {
        self.table.get_mut(&request)?.path_with_query.get_or_insert_with(|| "/".to_owned());
        // They are given away with the request, and would fill the table.
        let given = options.as_ref().map(|options| Resource::<RequestOptions>::new_own(options.rep()));
        let response = self.http().handle(request, options)?;
        if let Some(given) = given {
            self.table.delete(given)?;
        }
        Ok(response)
    }
}

impl WasiHttpView for Round {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.http, table: &mut self.table, ctx: &mut self.http_context }
    }
}
