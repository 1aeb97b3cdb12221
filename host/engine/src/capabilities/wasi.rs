//! WASI 0.2: the interfaces that runtimes of languages import, all of them, with almost nothing behind them.
//!
//! Clocks and random numbers work, standard output and error end in the log, the network is checked by grants. The rest is
//! there to be imported, and empty.

use wasmtime::component::Linker;
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::{LinkOptions, cli, filesystem, random, sockets};
use wasmtime_wasi::random::{WasiRandom, WasiRandomView};
use wasmtime_wasi::sockets::{WasiSockets, WasiSocketsView};

use super::{http, names};
use crate::round::Round;

/// Links all of it.
pub(crate) fn link(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_proxy_interfaces_async(linker)?;
    random::insecure::add_to_linker::<_, WasiRandom>(linker, Round::random)?;
    random::insecure_seed::add_to_linker::<_, WasiRandom>(linker, Round::random)?;
    link_nothing(linker)?;
    link_sockets(linker)?;
    http::link(linker)
}

/// Links interfaces that exist and are empty.
fn link_nothing(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    cli::exit::add_to_linker::<_, WasiCli>(linker, Round::cli)?;
    cli::environment::add_to_linker::<_, WasiCli>(linker, Round::cli)?;
    cli::terminal_input::add_to_linker::<_, WasiCli>(linker, Round::cli)?;
    cli::terminal_output::add_to_linker::<_, WasiCli>(linker, Round::cli)?;
    cli::terminal_stdin::add_to_linker::<_, WasiCli>(linker, Round::cli)?;
    cli::terminal_stdout::add_to_linker::<_, WasiCli>(linker, Round::cli)?;
    cli::terminal_stderr::add_to_linker::<_, WasiCli>(linker, Round::cli)?;
    filesystem::types::add_to_linker::<_, WasiFilesystem>(linker, Round::filesystem)?;
    filesystem::preopens::add_to_linker::<_, WasiFilesystem>(linker, Round::filesystem)
}

/// Sockets are made by us, so that they are counted; names are resolved by us, so that they are granted.
fn link_sockets(linker: &mut Linker<Round>) -> wasmtime::Result<()> {
    super::sockets::link(linker)?;
    names::link(linker)?;
    sockets::tcp::add_to_linker::<_, WasiSockets>(linker, Round::sockets)?;
    sockets::udp::add_to_linker::<_, WasiSockets>(linker, Round::sockets)?;
    sockets::instance_network::add_to_linker::<_, WasiSockets>(linker, Round::sockets)?;
    sockets::network::add_to_linker::<_, WasiSockets>(linker, &(&LinkOptions::default()).into(), Round::sockets)
}
